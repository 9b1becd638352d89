/* tools/synth_plan.c -- the tensors of a synthetic checkpoint, shared out to files.
 *
 * Names, shapes and types are those of an mlx-lm conversion: matrices of 4 bits in
 * groups of 64 with BF16 scales and biases, routers and shared gates of the Qwen models
 * of 8 bits, DeepSeek's router in BF16, experts in stacks, gains of norms stored whole,
 * convolutions as [channels, width, 1].  Headers are not padded, so that tensors lie at
 * any address, as they do in real files of this kind. */
#include "tools/synth.h"

#include "base/alloc.h"
#include "base/size.h"
#include "tools/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct planner {
    mox_synth_plan *p;
    uint64_t next_stream;
    mox_err *err;
} planner;

__attribute__((format(printf, 3, 4))) static mox_status add(planner *b, mox_synth_tensor t, const char *format, ...)
{
    mox_synth_plan *p = b->p;
    if (p->n_tensors == p->capacity) {
        const int64_t capacity = p->capacity ? 2 * p->capacity : 256;
        mox_synth_tensor *grown = mox_realloc_array(p->tensors, (size_t)capacity, sizeof *grown);
        if (!grown) return mox_fail_memory(b->err, (size_t)capacity * sizeof *grown, "the list of tensors");
        p->tensors = grown;
        p->capacity = capacity;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(t.name, sizeof t.name, format, args);
    va_end(args);
    t.bytes = mox_dtype_bytes(t.dtype);
    for (int i = 0; i < t.n_dims; i++) t.bytes *= t.shape[i];
    p->bytes += t.bytes;
    p->tensors[p->n_tensors++] = t;
    return MOX_OK;
}

/* A vector (or a convolution) of n numbers between low and high. */
static mox_status add_vector(planner *b, const char *name, mox_dtype dtype, int64_t n, double low, double high)
{
    return add(b, (mox_synth_tensor){.dtype = dtype, .n_dims = 1, .shape = {n}, .source = MOX_SYNTH_NUMBERS,
                                     .stream = b->next_stream++, .low = low, .high = high, .times = 1.0}, "%s", name);
}

static mox_status add_norm(planner *b, const char *name, int64_t n) { return add_vector(b, name, MOX_DT_BF16, n, 0.9, 1.1); }

/* members = 0: a matrix, else a stack.  Codes are uniform, so those of 4 bits around
 * their middle 7.5 have a deviation of 4.61, those of 8 bits of 73.9. */
typedef struct quantized {
    int bits;
    int64_t members, rows, cols;
    double deviation;          /* of its numbers */
    mox_popularity popularity; /* of a router's rows */
    double row_middle;
} quantized;

static mox_status add_quantized(planner *b, const char *module, const quantized *q)
{
    const double codes = (double)(1 << q->bits), middle = (codes - 1.0) / 2.0;
    const double scale = q->deviation / sqrt((codes * codes - 1.0) / 12.0);
    mox_synth_tensor t = {.dtype = MOX_DT_U32, .n_dims = q->members ? 3 : 2, .source = MOX_SYNTH_CODES,
                          .stream = b->next_stream++};
    int64_t *shape = t.shape;
    if (q->members) *shape++ = q->members;
    shape[0] = q->rows;
    shape[1] = q->cols * q->bits / 32;
    MOX_TRY(add(b, t, "%s.weight", module));
    t.dtype = MOX_DT_BF16;
    t.source = MOX_SYNTH_NUMBERS;
    t.stream = b->next_stream++; /* of scales and biases both */
    t.low = 0.75 * scale;
    t.high = 1.25 * scale;
    t.times = 1.0;
    t.popularity = q->popularity;
    t.row_middle = q->row_middle;
    (t.n_dims == 3 ? t.shape + 1 : t.shape)[1] = t.row_elements = q->cols / MOX_SYNTH_GROUP;
    MOX_TRY(add(b, t, "%s.scales", module));
    t.times = -middle;
    return add(b, t, "%s.biases", module);
}

static double usual_deviation(int64_t cols) { return 1.0 / sqrt((double)cols); }

/* As add_matrix, of so many bits each, and one per member. */
static mox_status add_stack(planner *b, const char *module, int bits, int64_t members, int64_t rows, int64_t cols)
{
    return add_quantized(b, module, &(quantized){.bits = bits, .members = members, .rows = rows, .cols = cols,
                                                 .deviation = usual_deviation(cols)});
}

static mox_status add_matrix(planner *b, const char *module, int64_t rows, int64_t cols)
{
    return add_stack(b, module, 4, 0, rows, cols);
}

/* ---- layers ---- */

/* Names within a layer: at("mlp.gate") is "model.layers.3.mlp.gate". */
typedef struct layer_names {
    char text[100];
    size_t n;
} layer_names;

static const char *at(layer_names *l, const char *rest)
{
    (void)snprintf(l->text + l->n, sizeof l->text - l->n, "%s", rest);
    return l->text;
}

static mox_status add_attention(planner *b, const mox_synth_spec *s, layer_names *l)
{
    const int64_t gated = s->conv ? 2 : 1, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    MOX_TRY(add_matrix(b, at(l, "self_attn.q_proj"), gated * q, s->dim));
    MOX_TRY(add_matrix(b, at(l, "self_attn.k_proj"), kv, s->dim));
    MOX_TRY(add_matrix(b, at(l, "self_attn.v_proj"), kv, s->dim));
    MOX_TRY(add_matrix(b, at(l, "self_attn.o_proj"), s->dim, q));
    MOX_TRY(add_norm(b, at(l, "self_attn.q_norm.weight"), s->head_dim));
    return add_norm(b, at(l, "self_attn.k_norm.weight"), s->head_dim);
}

static mox_status add_latent(planner *b, const mox_synth_spec *s, layer_names *l)
{
    MOX_TRY(add_matrix(b, at(l, "self_attn.q_a_proj"), s->q_rank, s->dim));
    MOX_TRY(add_norm(b, at(l, "self_attn.q_a_layernorm.weight"), s->q_rank));
    MOX_TRY(add_matrix(b, at(l, "self_attn.q_b_proj"), s->heads * (s->nope + s->rope), s->q_rank));
    MOX_TRY(add_matrix(b, at(l, "self_attn.kv_a_proj_with_mqa"), s->kv_rank + s->rope, s->dim));
    MOX_TRY(add_norm(b, at(l, "self_attn.kv_a_layernorm.weight"), s->kv_rank));
    MOX_TRY(add_matrix(b, at(l, "self_attn.kv_b_proj"), s->heads * (s->nope + s->mla_v_dim), s->kv_rank));
    return add_matrix(b, at(l, "self_attn.o_proj"), s->dim, s->heads * s->mla_v_dim);
}

static mox_status add_delta_net(planner *b, const mox_synth_spec *s, layer_names *l)
{
    const int64_t keys = s->k_heads * s->k_dim, values = s->v_heads * s->v_dim, channels = 2 * keys + values;
    if (s->kind == MOX_SYNTH_NEXT) {
        MOX_TRY(add_matrix(b, at(l, "linear_attn.in_proj_qkvz"), channels + values, s->dim));
        MOX_TRY(add_matrix(b, at(l, "linear_attn.in_proj_ba"), 2 * s->v_heads, s->dim));
    } else {
        MOX_TRY(add_matrix(b, at(l, "linear_attn.in_proj_qkv"), channels, s->dim));
        MOX_TRY(add_matrix(b, at(l, "linear_attn.in_proj_z"), values, s->dim));
        MOX_TRY(add_matrix(b, at(l, "linear_attn.in_proj_b"), s->v_heads, s->dim));
        MOX_TRY(add_matrix(b, at(l, "linear_attn.in_proj_a"), s->v_heads, s->dim));
    }
    MOX_TRY(add(b, (mox_synth_tensor){.dtype = MOX_DT_BF16, .n_dims = 3, .shape = {channels, s->conv, 1},
                                      .source = MOX_SYNTH_NUMBERS, .stream = b->next_stream++, .low = -0.5, .high = 0.5,
                                      .times = 1.0}, "%s", at(l, "linear_attn.conv1d.weight")));
    /* Decay rates of 1 to 16 and steps around 0.01: a memory of tens to thousands of tokens. */
    MOX_TRY(add_vector(b, at(l, "linear_attn.A_log"), MOX_DT_F32, s->v_heads, 0.0, log(16.0)));
    MOX_TRY(add_vector(b, at(l, "linear_attn.dt_bias"), MOX_DT_BF16, s->v_heads, -6.9, -2.2));
    MOX_TRY(add_norm(b, at(l, "linear_attn.norm.weight"), s->v_dim));
    return add_matrix(b, at(l, "linear_attn.out_proj"), s->dim, values);
}

static mox_status add_dense(planner *b, layer_names *l, const char *path, int64_t width, int64_t dim)
{
    char name[64];
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof name, "%s.%s", path, parts[i]);
        MOX_TRY(add_matrix(b, at(l, name), i == 2 ? dim : width, i == 2 ? width : dim));
    }
    return MOX_OK;
}

static mox_status add_router(planner *b, const mox_synth_spec *s, const char *module)
{
    quantized q = {.bits = 8, .rows = s->experts, .cols = s->dim, .deviation = usual_deviation(s->dim)};
    if (s->skew > 0.0) {
        q.popularity = mox_popularity_of(s->experts, s->active, s->skew);
        q.row_middle = mox_synth_deviations((double)s->active / (double)s->experts);
    }
    return add_quantized(b, module, &q);
}

static mox_status add_experts(planner *b, const mox_synth_spec *s, layer_names *l)
{
    if (s->kind == MOX_SYNTH_DEEPSEEK) {
        const double reach = sqrt(3.0 / (double)s->dim), lean = 0.01 + 0.1 * s->skew;
        MOX_TRY(add(b, (mox_synth_tensor){.dtype = MOX_DT_BF16, .n_dims = 2, .shape = {s->experts, s->dim},
                                          .source = MOX_SYNTH_NUMBERS, .stream = b->next_stream++, .low = -reach,
                                          .high = reach, .times = 1.0}, "%s", at(l, "mlp.gate.weight")));
        MOX_TRY(add_vector(b, at(l, "mlp.gate.e_score_correction_bias"), MOX_DT_F32, s->experts, -lean, lean));
    } else {
        MOX_TRY(add_router(b, s, at(l, "mlp.gate")));
    }
    MOX_TRY(add_stack(b, at(l, "mlp.switch_mlp.gate_proj"), 4, s->experts, s->expert_width, s->dim));
    MOX_TRY(add_stack(b, at(l, "mlp.switch_mlp.up_proj"), 4, s->experts, s->expert_width, s->dim));
    MOX_TRY(add_stack(b, at(l, "mlp.switch_mlp.down_proj"), 4, s->experts, s->dim, s->expert_width));
    if (!s->shared_width) return MOX_OK;
    if (s->kind == MOX_SYNTH_DEEPSEEK) return add_dense(b, l, "mlp.shared_experts", s->shared_width, s->dim);
    MOX_TRY(add_dense(b, l, "mlp.shared_expert", s->shared_width, s->dim));
    return add_stack(b, at(l, "mlp.shared_expert_gate"), 8, 0, 1, s->dim);
}

static mox_status add_layer(planner *b, const mox_synth_spec *s, int64_t i)
{
    layer_names l;
    l.n = (size_t)snprintf(l.text, sizeof l.text, "%slayers.%lld.", mox_synth_prefix(s), (long long)i);
    MOX_TRY(add_norm(b, at(&l, "input_layernorm.weight"), s->dim));
    if (s->kind == MOX_SYNTH_DEEPSEEK) MOX_TRY(add_latent(b, s, &l));
    else if (mox_synth_is_full(s, i)) MOX_TRY(add_attention(b, s, &l));
    else MOX_TRY(add_delta_net(b, s, &l));
    MOX_TRY(add_norm(b, at(&l, "post_attention_layernorm.weight"), s->dim));
    return mox_synth_is_dense(s, i) ? add_dense(b, &l, "mlp", s->dense_width, s->dim) : add_experts(b, s, &l);
}

/* Much more than layers add, each of order one at most. */
#define EMBEDDING_DEVIATION 16.0

static mox_status add_tensors(planner *b, const mox_synth_spec *s)
{
    char name[64];
    (void)snprintf(name, sizeof name, "%sembed_tokens", mox_synth_prefix(s));
    MOX_TRY(add_quantized(b, name, &(quantized){.bits = 4, .rows = s->vocab, .cols = s->dim,
                                                .deviation = EMBEDDING_DEVIATION}));
    for (int64_t i = 0; i < s->layers; i++) MOX_TRY(add_layer(b, s, i));
    (void)snprintf(name, sizeof name, "%snorm.weight", mox_synth_prefix(s));
    MOX_TRY(add_norm(b, name, s->dim));
    return add_matrix(b, s->kind == MOX_SYNTH_QWEN3_5 ? "language_model.lm_head" : "lm_head", s->vocab, s->dim);
}

/* ---- files ---- */

void mox_synth_file_name(char out[64], int32_t i, int32_t n)
{
    (void)snprintf(out, 64, "model-%05d-of-%05d.safetensors", i + 1, n);
}

static mox_status share_out(mox_synth_plan *p, int64_t file_bytes, mox_err *err)
{
    int64_t in_file = 0;
    p->n_files = 1;
    for (int64_t i = 0; i < p->n_tensors; i++) {
        mox_synth_tensor *t = &p->tensors[i];
        if (in_file > 0 && t->bytes > file_bytes - in_file) {
            p->n_files++;
            in_file = 0;
        }
        t->file = p->n_files - 1;
        t->offset = in_file; /* of the data, until the header is known */
        in_file += t->bytes;
    }
    p->files = mox_alloc_array((size_t)p->n_files, sizeof *p->files);
    return p->files ? MOX_OK : mox_fail_memory(err, (size_t)p->n_files * sizeof *p->files, "the list of files");
}

/* The header of the file that begins with tensor *first; moves *first behind it. */
static mox_status make_header(mox_synth_plan *p, int32_t file, int64_t *first, mox_err *err)
{
    enum { LENGTH_BYTES = 8 };
    mox_text t = {0};
    mox_text_add(&t, "%*s{\"__metadata__\":{\"format\":\"mlx\"}", LENGTH_BYTES, "");
    int64_t i = *first, bytes = 0;
    for (; i < p->n_tensors && p->tensors[i].file == file; i++) {
        const mox_synth_tensor *x = &p->tensors[i];
        mox_text_add(&t, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", x->name, mox_dtype_name(x->dtype));
        for (int d = 0; d < x->n_dims; d++) mox_text_add(&t, "%s%lld", d ? "," : "", (long long)x->shape[d]);
        mox_text_add(&t, "],\"data_offsets\":[%lld,%lld]}", (long long)x->offset, (long long)(x->offset + x->bytes));
        bytes += x->bytes;
    }
    mox_text_add(&t, "}");
    const size_t n = t.n;
    char *header = mox_text_end(&t);
    if (!header) return mox_fail_memory(err, n, "a header");
    for (int j = 0; j < LENGTH_BYTES; j++) header[j] = (char)((n - LENGTH_BYTES) >> 8 * j & 255);
    p->files[file] = (mox_synth_file){.header = header, .header_bytes = (int64_t)n, .bytes = (int64_t)n + bytes};
    for (; *first < i; ++*first) p->tensors[*first].offset += (int64_t)n;
    return MOX_OK;
}

static char *index_text(const mox_synth_plan *p)
{
    mox_text t = {0};
    mox_text_add(&t, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", (long long)p->bytes);
    for (int64_t i = 0; i < p->n_tensors; i++) {
        char file[64];
        mox_synth_file_name(file, p->tensors[i].file, p->n_files);
        mox_text_add(&t, "%s\n    \"%s\": \"%s\"", i ? "," : "", p->tensors[i].name, file);
    }
    mox_text_add(&t, "\n  }\n}\n");
    return mox_text_end(&t);
}

mox_status mox_synth_plan_init(mox_synth_plan *p, const mox_synth_spec *spec, int64_t file_bytes, mox_err *err)
{
    *p = (mox_synth_plan){.spec = *spec};
    planner b = {.p = p, .next_stream = spec->seed * 0x9E3779B97F4A7C15u, .err = err};
    mox_status status = add_tensors(&b, spec);
    if (status == MOX_OK) status = share_out(p, file_bytes, err);
    int64_t first = 0;
    for (int32_t i = 0; i < p->n_files && status == MOX_OK; i++) status = make_header(p, i, &first, err);
    if (status == MOX_OK) {
        p->config = mox_synth_config_text(spec);
        p->generation = mox_synth_generation_text(spec);
        p->index = index_text(p);
        if (!p->config || !p->generation || !p->index) status = mox_fail_memory(err, 1 << 16, "the configuration");
    }
    if (status != MOX_OK) mox_synth_plan_deinit(p);
    return status;
}

void mox_synth_plan_deinit(mox_synth_plan *p)
{
    for (int32_t i = 0; i < p->n_files && p->files; i++) mox_free(p->files[i].header);
    mox_free(p->files);
    mox_free(p->tensors);
    mox_free(p->config);
    mox_free(p->generation);
    mox_free(p->index);
    *p = (mox_synth_plan){0};
}
