/* tests/check/device.c -- see device.h. */
#include "device.h"

#include "base/size.h"
#include "dev/emu/backend.h"
#include "dev/gpu/device.h"

#include <stdlib.h>
#include <string.h>

enum { MIRRORS = 1024, ROWS_MAX = 65536, SPANS_MAX = 64, PAGES_MAX = 65536 };
static const int64_t memory_bytes = (int64_t)4 << 30, large_bytes = (int64_t)64 << 20;

/* A buffer of the test and its twin. */
typedef struct mirror {
    unsigned char *host, *block, *device;
    int64_t bytes;
    bool back; /* an operation may have written it */
} mirror;

static struct {
    mox_dev *dev;
    mirror mirrors[MIRRORS];
    int n_mirrors;
    bool too_large; /* one of the buffers */
    int64_t n_computed;
    const ck_device_plant *plant;
    void (*launch)(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t params_bytes);
} at;

/* ---- bringing over and fetching ---- */

static void must(mox_status status, const mox_err *err)
{
    if (status != MOX_OK) ck_fail("the device says: %s", err->msg);
}

/* Address on the device of p, which has bytes behind it where it is no buffer of check.h. */
static void *twin(const void *p, int64_t bytes, bool back)
{
    unsigned char *start = (unsigned char *)(uintptr_t)p;
    if (!p) return NULL;
    for (int i = 0; i < at.n_mirrors; i++) {
        mirror *m = &at.mirrors[i];
        if (start != m->host && (start < m->host || start >= m->host + m->bytes)) continue;
        m->back |= back;
        return m->device + (start - m->host);
    }
    int64_t offset = 0;
    unsigned char *whole = ck_buffer_of(start, &bytes);
    if (whole) {
        offset = start - whole;
        start = whole;
    }
    if (bytes > large_bytes) {
        at.too_large = true;
        return NULL;
    }
    if (at.n_mirrors == MIRRORS) ck_fail("an operation with more than %d buffers", MIRRORS);
    mox_err err;
    mirror *m = &at.mirrors[at.n_mirrors++];
    void *block;
    const int64_t skip = (int64_t)((uintptr_t)start % 64); /* as aligned as it was, and no more */
    must(at.dev->memory.alloc(at.dev, bytes + skip, &block, &err), &err);
    *m = (mirror){.host = start, .block = block, .device = (unsigned char *)block + skip, .bytes = bytes, .back = back};
    at.dev->memory.upload(at.dev, m->device, start, bytes);
    return m->device + offset;
}

static const void *in(const void *p, int64_t bytes) { return twin(p, bytes, false); }
static void *out(void *p, int64_t bytes) { return twin(p, bytes, true); }

/* Bytes of f32 [n, heads, dim] with strides. */
static int64_t extent(int64_t n, int64_t stride, int64_t heads, int64_t head_stride, int64_t dim)
{
    return n > 0 && heads > 0 ? ((n - 1) * stride + (heads - 1) * head_stride + dim) * 4 : 0;
}

static mox_mat mat(const mox_mat *m)
{
    mox_mat d = *m;
    int64_t scales = m->rows * mox_mat_scale_row_bytes(&m->layout, m->cols);
    if (m->layout.kind == MOX_MAT_FP8)
        scales = mox_ceil_div(m->row0 + m->rows, m->layout.block_rows) * mox_ceil_div(m->cols, m->layout.block_cols) *
                 mox_dtype_bytes(m->layout.scale_type);
    d.w = in(m->w, m->rows * mox_mat_row_bytes(&m->layout, m->cols));
    d.scales = in(m->scales, scales);
    d.biases = in(m->biases, scales);
    return d;
}

static mox_vec vec(const mox_vec *v)
{
    mox_vec d = *v;
    d.data = v->type == MOX_DT_NONE ? NULL : in(v->data, v->n * mox_dtype_bytes(v->type));
    return d;
}

static mox_cache cache(const mox_cache *c, bool back)
{
    mox_cache d = *c;
    d.data = twin(c->data, c->n_pages * c->page_stride * mox_dtype_bytes(c->type), back);
    return d;
}

static void begin_spans(const mox_span *spans, int64_t n)
{
    mox_batch b = {.spans = spans, .n_spans = n};
    at.dev->apart->begin(at.dev, &b);
}

/* Fetches results and gives the memory back; says whether the device computed. */
static bool done(mox_status status, const mox_err *err)
{
    mox_err late;
    const bool computed = status == MOX_OK && !at.too_large;
    if (!computed && !at.too_large && status != MOX_E_UNSUPPORTED) must(status, err);
    for (int i = 0; i < at.n_mirrors; i++) {
        mirror *m = &at.mirrors[i];
        if (computed && m->back) must(at.dev->memory.download(at.dev, m->host, m->device, m->bytes, &late), &late);
        at.dev->memory.free(at.dev, m->block, m->bytes);
    }
    must(at.dev->memory.sync(at.dev, &late), &late);
    at.n_mirrors = 0;
    at.n_computed += computed;
    at.too_large = false;
    return computed;
}

/* A function of the kernel table.  The device computes all units at once, when the first is asked
 * for; of what it refuses the reference computes each unit.  The body changes a, a copy of the
 * arguments; g are those that were given. */
#define DEVICE_OP(op, args, body)                                                               \
    static void dev_##op(const args *g, int64_t begin, int64_t end)                             \
    {                                                                                           \
        static bool computed;                                                                   \
        mox_err err = {0};                                                                      \
        if (begin == 0) {                                                                       \
            args a = *g;                                                                        \
            body                                                                                \
            const mox_status status = at.too_large ? MOX_OK : at.dev->ops.op(at.dev, &a, &err); \
            computed = done(status, &err);                                                      \
        }                                                                                       \
        if (!computed) mox_##op##_ref(g, begin, end);                                           \
    }

/* ---- rows ---- */

DEVICE_OP(add, mox_add_args, {
    a.a = in(g->a, g->n * 4);
    a.b = in(g->b, g->n * 4);
    a.out = out(g->out, g->n * 4);
})
DEVICE_OP(copy_slice, mox_copy_slice_args, {
    a.src = in(g->src, extent(g->rows, g->src_stride, 1, 0, g->cols));
    a.dst = out(g->dst, extent(g->rows, g->dst_stride, 1, 0, g->cols));
})
DEVICE_OP(sigmoid_gate, mox_sigmoid_gate_args, {
    a.x = out(g->x, g->n * 4);
    a.gate = in(g->gate, g->n * 4);
})
DEVICE_OP(rms_norm, mox_rms_norm_args, {
    a.x = in(g->x, extent(g->n, g->x_stride, g->heads, g->x_head_stride, g->dim));
    a.out = out(g->out, extent(g->n, g->out_stride, g->heads, g->out_head_stride, g->dim));
    a.weight = vec(&g->weight);
})
DEVICE_OP(residual_norm, mox_residual_norm_args, {
    const int64_t bytes = g->rows * g->dim * 4;
    a.a = in(g->a, bytes);
    a.b = in(g->b, bytes);
    a.res = out(g->res, bytes);
    a.norm = out(g->norm, bytes);
    a.weight = vec(&g->weight);
})
DEVICE_OP(gated_rms_norm, mox_gated_rms_norm_args, {
    const int64_t bytes = g->rows * g->dim * 4;
    a.x = in(g->x, bytes);
    a.z = in(g->z, bytes);
    a.out = out(g->out, bytes);
    a.weight = vec(&g->weight);
})

/* The device is told of frequencies once; here they are others in every call. */
static void forget_known(void)
{
    mox_dev_gpu *gpu = (mox_dev_gpu *)at.dev;
    while (gpu->n_known > 0) at.dev->memory.free(at.dev, gpu->known[--gpu->n_known].device, 0);
}
DEVICE_OP(rope, mox_rope_args, {
    forget_known();
    must(at.dev->apart->know(at.dev, g->inv_freq, g->rotary_dim / 2, &err), &err);
    a.x = out(g->x, extent(g->n, g->stride, g->heads, g->head_stride, g->rotary_dim));
    a.pos = in(g->pos, ((g->n - 1) * g->pos_stride + 1) * 4);
})

/* ---- products ---- */

DEVICE_OP(embed, mox_embed_args, {
    a.table = mat(&g->table);
    a.ids = in(g->ids, g->n * 4);
    a.out = out(g->out, extent(g->n, g->out_stride, 1, 0, g->table.cols));
})
DEVICE_OP(matmul, mox_matmul_args, {
    a.w = mat(&g->w);
    a.x = in(g->x, extent(g->n, g->x_stride, 1, 0, g->w.cols));
    a.y = out(g->y, extent(g->n, g->y_stride, 1, 0, g->w.rows));
    a.bias = vec(&g->bias);
})

/* The experts' kernels over any lists of rows: what moe_ffn launches. */
static void grouped(mox_gpu_kernel kernel, const mox_matmul_grouped_args *g, const mox_mat *up)
{
    const int64_t pairs = g->offsets[g->n_groups], n = g->n_groups;
    mox_gpu_mat *mats = ck_bytes(2 * n * (int64_t)sizeof *mats);
    for (int64_t i = 0; i < n; i++) {
        const mox_mat gate = mat(&g->w[i]), other = up ? mat(&up[i]) : gate;
        mats[i] = mox_gpu_mat_of(&gate);
        mats[n + i] = mox_gpu_mat_of(&other);
    }
    const mox_gpu_mat *device = in(mats, 2 * n * (int64_t)sizeof *mats);
    const mox_gpu_experts_gate_up p = {.gate = device, .up = device + n, .offsets = in(g->offsets, (n + 1) * 8),
                                       .x_row = in(g->x_row, pairs * 4), .y_row = in(g->y_row, pairs * 4),
                                       .x = in(g->x, extent(g->n_x_rows, g->x_stride, 1, 0, g->w[0].cols)),
                                       .y = out(g->y, extent(g->n_y_rows, g->y_stride, 1, 0, g->w[0].rows)), .rows = g->w[0].rows,
                                       .x_stride = g->x_stride, .y_stride = g->y_stride, .x_divisor = 1};
    mox_gpu_launch(at.dev, kernel, mox_ceil_div(p.rows, MOX_GPU_MATVEC_ROWS), 1, n, &p, sizeof p);
}
static void dev_matmul_grouped(const mox_matmul_grouped_args *g, int64_t begin, int64_t end)
{
    if (begin != 0 || end == 0) return;
    grouped(MOX_GPU_KERNEL_experts_down, g, NULL);
    (void)done(MOX_OK, NULL);
}
static void dev_gate_up_swiglu(const mox_gate_up_swiglu_args *g, int64_t begin, int64_t end)
{
    mox_err err = {0};
    if (begin != 0 || end == 0) return;
    if (g->n_groups > 1 || g->x_row || g->y_row) {
        const mox_matmul_grouped_args same = {.n_groups = g->n_groups, .w = g->gate, .offsets = g->offsets, .x_row = g->x_row,
                                              .y_row = g->y_row, .x = g->x, .y = g->y, .x_stride = g->x_stride,
                                              .y_stride = g->y_stride, .n_x_rows = g->n_x_rows, .n_y_rows = g->n_y_rows};
        grouped(MOX_GPU_KERNEL_experts_gate_up, &same, g->up);
        (void)done(MOX_OK, NULL);
        return;
    }
    mox_gate_up_swiglu_args a = *g;
    const mox_mat gate = mat(g->gate), up = mat(g->up);
    a.gate = &gate;
    a.up = &up;
    a.x = in(g->x, extent(g->n_x_rows, g->x_stride, 1, 0, gate.cols));
    a.y = out(g->y, extent(g->n_y_rows, g->y_stride, 1, 0, gate.rows));
    (void)done(at.dev->ops.gate_up_swiglu(at.dev, &a, &err), &err);
}

/* ---- attention ---- */

DEVICE_OP(split_q_gate, mox_split_q_gate_args, {
    const int64_t bytes = g->n * g->heads * g->dim * 4;
    a.in = in(g->in, 2 * bytes);
    a.q = out(g->q, bytes);
    a.gate = out(g->gate, bytes);
})
DEVICE_OP(kv_append, mox_kv_append_args, {
    begin_spans(g->spans, g->n_spans);
    int64_t rows = 0;
    for (int64_t i = 0; i < g->n_spans; i++) rows = mox_max_i64(rows, g->spans[i].row0 + g->spans[i].n);
    a.cache = cache(&g->cache, true);
    a.src = in(g->src, extent(rows, g->stride, g->heads, g->head_stride, g->dim));
})
/* The slot does what three kernels of the processor do one after the other, so whichever of the
 * first two is called has it all done. */
static bool attend(const mox_attention_args *g)
{
    mox_err err = {0};
    mox_attention_args a = *g;
    int64_t rows = 0;
    begin_spans(g->spans, g->n_spans);
    for (int64_t i = 0; i < g->n_spans; i++) rows = mox_max_i64(rows, g->spans[i].row0 + g->spans[i].n);
    a.q = in(g->q, extent(rows, g->q_stride, g->heads, g->q_head_stride, g->dim));
    a.out = out(g->out, extent(rows, g->out_stride, g->heads, g->out_head_stride, g->v_dim));
    a.k = cache(&g->k, false);
    a.v = cache(&g->v, false);
    a.parts = out(g->parts, g->n_parts * 4);
    forget_known();
    if (g->sinks) must(at.dev->apart->know(at.dev, g->sinks, g->heads, &err), &err);
    const mox_status status = at.too_large ? MOX_OK : at.dev->ops.attention(at.dev, &a, &err);
    return done(status, &err);
}
static void dev_attention(const mox_attention_args *g, int64_t begin, int64_t end)
{
    static bool computed;
    if (begin == 0) computed = attend(g);
    if (!computed) mox_attention_ref(g, begin, end);
}
static bool parts_computed;
static void dev_attention_parts(const mox_attention_args *g, int64_t begin, int64_t end)
{
    if (begin == 0) parts_computed = attend(g);
    if (!parts_computed) mox_attention_parts_ref(g, begin, end);
}
static void dev_attention_merge(const mox_attention_args *g, int64_t begin, int64_t end)
{
    if (!parts_computed) mox_attention_merge_ref(g, begin, end);
}

DEVICE_OP(mla_split, mox_mla_split_args, {
    a.q_full = in(g->q_full, g->n * g->heads * (g->nope + g->rope) * 4);
    a.kv = in(g->kv, g->n * (g->rank + g->rope) * 4);
    a.q_nope = out(g->q_nope, g->n * g->heads * g->nope * 4);
    a.q_pe = out(g->q_pe, g->n * g->heads * g->rope * 4);
    a.latent = out(g->latent, g->n * g->rank * 4);
    a.k_pe = out(g->k_pe, g->n * g->rope * 4);
})
DEVICE_OP(mla_q_absorb, mox_mla_q_absorb_args, {
    a.w = mat(&g->w);
    a.q_nope = in(g->q_nope, g->n * g->heads * g->nope * 4);
    a.out = out(g->out, g->n * g->heads * g->rank * 4);
})
DEVICE_OP(mla_out, mox_mla_out_args, {
    a.w = mat(&g->w);
    a.ctx = in(g->ctx, g->n * g->heads * g->rank * 4);
    a.out = out(g->out, g->n * g->heads * g->v_dim * 4);
})
DEVICE_OP(mla_attention, mox_mla_attention_args, {
    begin_spans(g->spans, g->n_spans);
    int64_t rows = 0;
    for (int64_t i = 0; i < g->n_spans; i++) rows = mox_max_i64(rows, g->spans[i].row0 + g->spans[i].n);
    a.q = in(g->q, rows * g->heads * g->rank * 4);
    a.q_pe = in(g->q_pe, rows * g->heads * g->rope * 4);
    a.ctx = out(g->ctx, rows * g->heads * g->rank * 4);
    a.latent = cache(&g->latent, false);
    a.k_pe = cache(&g->k_pe, false);
})
DEVICE_OP(mla_expanded, mox_mla_expanded_args, {
    begin_spans(g->spans, g->n_spans);
    int64_t rows = 0;
    for (int64_t i = 0; i < g->n_spans; i++) rows = mox_max_i64(rows, g->spans[i].row0 + g->spans[i].n);
    a.key = mat(&g->key);
    a.value = mat(&g->value);
    a.q_nope = in(g->q_nope, rows * g->heads * g->nope * 4);
    a.q_pe = in(g->q_pe, rows * g->heads * g->rope * 4);
    a.out = out(g->out, rows * g->heads * g->v_dim * 4);
    a.latent = cache(&g->latent, false);
    a.k_pe = cache(&g->k_pe, false);
    a.q = out(ck_f32(rows * g->heads * g->rank), 0);
    a.ctx = out(ck_f32(rows * g->heads * g->rank), 0);
})

/* ---- the delta rule ---- */

DEVICE_OP(gdn_split, mox_gdn_split_args, {
    const int64_t key = g->k_heads * g->k_dim;
    const int64_t value = g->v_heads * g->v_dim;
    a.qkvz = in(g->qkvz, g->n * (2 * key + 2 * value) * 4);
    a.ba = in(g->ba, g->n * 2 * g->v_heads * 4);
    a.qkv = out(g->qkv, g->n * (2 * key + value) * 4);
    a.z = out(g->z, g->n * value * 4);
    a.b = out(g->b, g->n * g->v_heads * 4);
    a.a = out(g->a, g->n * g->v_heads * 4);
})
DEVICE_OP(conv1d_silu, mox_conv1d_silu_args, {
    a.state = in(g->state, (g->width - 1) * g->channels * 4); /* first: x may begin there and be shorter */
    a.x = in(g->x, extent(g->n, g->x_stride, 1, 0, g->channels));
    a.out = out(g->out, extent(g->n, g->out_stride, 1, 0, g->channels));
    a.weight = vec(&g->weight);
})
DEVICE_OP(conv1d_shift, mox_conv1d_shift_args, {
    a.x = in(g->x, extent(g->n, g->x_stride, 1, 0, g->channels));
    a.state = out(g->state, (g->width - 1) * g->channels * 4);
})
DEVICE_OP(gdn_qk_norm, mox_gdn_qk_norm_args, {
    a.q = out(g->q, extent(g->n, g->stride, g->heads, g->dim, g->dim));
    a.k = out(g->k, extent(g->n, g->stride, g->heads, g->dim, g->dim));
})
DEVICE_OP(gdn_gates, mox_gdn_gates_args, {
    a.a = in(g->a, extent(g->n, g->a_stride, 1, 0, g->heads));
    a.b = in(g->b, extent(g->n, g->b_stride, 1, 0, g->heads));
    a.g = out(g->g, g->n * g->heads * 4);
    a.beta = out(g->beta, g->n * g->heads * 4);
    a.a_log = vec(&g->a_log);
    a.dt_bias = vec(&g->dt_bias);
})
static mox_gdn_args gdn(const mox_gdn_args *g)
{
    mox_gdn_args a = *g;
    a.q = in(g->q, extent(g->n, g->q_stride, g->k_heads, g->k_dim, g->k_dim));
    a.k = in(g->k, extent(g->n, g->k_stride, g->k_heads, g->k_dim, g->k_dim));
    a.v = in(g->v, extent(g->n, g->v_stride, g->v_heads, g->v_dim, g->v_dim));
    a.g = in(g->g, g->n * g->v_heads * 4);
    a.beta = in(g->beta, g->n * g->v_heads * 4);
    a.state = out(g->state, g->v_heads * g->v_dim * g->k_dim * 4);
    a.out = out(g->out, g->n * g->v_heads * g->v_dim * 4);
    return a;
}
DEVICE_OP(gdn_recurrent, mox_gdn_args, { a = gdn(g); })
DEVICE_OP(gdn_chunk, mox_gdn_args, { a = gdn(g); })

/* ---- routing and combining ---- */

DEVICE_OP(router_topk, mox_router_topk_args, {
    if (g->n_degenerate && g->order == MOX_TOPK_SORTED) { /* which a device does not count */
        mox_router_topk_args counted = *g;
        counted.ids = ck_i32(g->n * g->k);
        counted.weights = ck_f32(g->n * g->k);
        mox_router_topk_ref(&counted, begin, end);
        a.n_degenerate = NULL;
    }
    a.logits = in(g->logits, g->n * g->n_experts * 4);
    a.ids = out(g->ids, g->n * g->k * 4);
    a.weights = out(g->weights, g->n * g->k * 4);
})
DEVICE_OP(router_sigmoid, mox_router_sigmoid_args, {
    a.logits = in(g->logits, g->n * g->n_experts * 4);
    a.bias = vec(&g->bias);
    a.ids = out(g->ids, g->n * g->k * 4);
    a.weights = out(g->weights, g->n * g->k * 4);
})
DEVICE_OP(moe_combine, mox_moe_combine_args, {
    const int64_t bytes = g->n * g->dim * 4;
    a.h = in(g->h, bytes);
    a.experts = in(g->experts, bytes * g->k);
    a.w = in(g->w, g->n * g->k * 4);
    a.shared = in(g->shared, bytes);
    a.gate = in(g->gate, extent(g->n, g->gate_stride, 1, 0, 1));
    a.out = out(g->out, bytes);
})
static void dev_moe_bucket(const mox_moe_bucket_args *g, int64_t begin, int64_t end)
{
    if (begin != 0 || end == 0) return;
    MOX_GPU_LAUNCH(at.dev, moe_bucket, 1, 1, 1, .ids = in(g->ids, g->n_pairs * 4), .offsets = out(g->offsets, (g->n_experts + 1) * 8),
                   .pairs = out(g->pairs, g->n_pairs * 4), .n_pairs = g->n_pairs, .n_experts = g->n_experts);
    (void)done(MOX_OK, NULL);
}

/* ---- sequences ---- */

static mox_matmul_args product(const mox_matmul_args *g)
{
    mox_matmul_args a = *g;
    a.w = mat(&g->w);
    a.x = in(g->x, extent(g->n, g->x_stride, 1, 0, g->w.cols));
    a.y = out(g->y, extent(g->n, g->y_stride, 1, 0, g->w.rows));
    a.bias = vec(&g->bias);
    return a;
}
void ck_device_project(const mox_project_args *g)
{
    mox_err err = {0};
    mox_project_args a = *g;
    for (int64_t i = 0; i < g->n; i++) a.product[i] = product(&g->product[i]);
    must(at.dev->ops.project(at.dev, &a, &err), &err);
    (void)done(MOX_OK, &err);
}

void ck_device_gqa_heads(const mox_gqa_heads_args *g)
{
    mox_err err = {0};
    mox_gqa_heads_args a = *g;
    begin_spans(g->k_append.spans, g->k_append.n_spans);
    forget_known();
    must(at.dev->apart->know(at.dev, g->q_rope.inv_freq, g->q_rope.rotary_dim / 2, &err), &err);
    a.q_norm.x = a.q_norm.out = a.q_rope.x = out(g->q_rope.x, 0);
    a.k_norm.x = a.k_norm.out = a.k_rope.x = out(g->k_rope.x, 0);
    a.k_append.src = a.k_rope.x;
    a.v_append.src = in(g->v_append.src, 0);
    a.q_rope.pos = a.k_rope.pos = in(g->q_rope.pos, 0);
    a.q_norm.weight = vec(&g->q_norm.weight);
    a.k_norm.weight = vec(&g->k_norm.weight);
    a.k_append.cache = cache(&g->k_append.cache, true);
    a.v_append.cache = cache(&g->v_append.cache, true);
    must(at.dev->ops.gqa_heads(at.dev, &a, &err), &err);
    (void)done(MOX_OK, &err);
}

void ck_device_mla_heads(const mox_mla_heads_args *g)
{
    mox_err err = {0};
    mox_mla_heads_args a = *g;
    begin_spans(g->k_append.spans, g->k_append.n_spans);
    forget_known();
    must(at.dev->apart->know(at.dev, g->q_rope.inv_freq, g->q_rope.rotary_dim / 2, &err), &err);
    a.split.q_full = in(g->split.q_full, 0);
    a.split.kv = in(g->split.kv, 0);
    a.split.q_nope = out(g->split.q_nope, 0);
    a.q_rope.x = a.split.q_pe = out(g->split.q_pe, 0);
    a.norm.x = a.norm.out = a.split.latent = out(g->split.latent, 0);
    a.k_rope.x = a.split.k_pe = out(g->split.k_pe, 0);
    a.latent_append.src = a.split.latent;
    a.k_append.src = a.split.k_pe;
    a.q_rope.pos = a.k_rope.pos = in(g->q_rope.pos, 0);
    a.norm.weight = vec(&g->norm.weight);
    a.latent_append.cache = cache(&g->latent_append.cache, true);
    a.k_append.cache = cache(&g->k_append.cache, true);
    must(at.dev->ops.mla_heads(at.dev, &a, &err), &err);
    (void)done(MOX_OK, &err);
}

void ck_device_gdn_mix(const mox_gdn_mix_args *g)
{
    mox_err err = {0};
    mox_gdn_mix_args a = *g;
    a.gates.a = in(g->gates.a, 0);
    a.gates.b = in(g->gates.b, 0);
    a.gates.g = out(g->gates.g, 0);
    a.gates.beta = out(g->gates.beta, 0);
    a.gates.a_log = vec(&g->gates.a_log);
    a.gates.dt_bias = vec(&g->gates.dt_bias);
    a.conv.x = a.shift.x = in(g->conv.x, 0);
    a.conv.state = a.shift.state = out(g->shift.state, 0);
    a.conv.out = out(g->conv.out, 0);
    a.conv.weight = vec(&g->conv.weight);
    a.qk_norm.q = out(g->qk_norm.q, 0);
    a.qk_norm.k = out(g->qk_norm.k, 0);
    a.rule = gdn(&g->rule);
    a.norm.x = a.norm.out = a.rule.out;
    a.norm.z = in(g->norm.z, 0);
    a.norm.weight = vec(&g->norm.weight);
    must(at.dev->ops.gdn_mix(at.dev, &a, &err), &err);
    (void)done(MOX_OK, &err);
}

static mox_moe_shared shared_expert(const mox_moe_shared *g, mox_shared_mode mode)
{
    mox_moe_shared a = *g;
    if (mode == MOX_SHARED_NONE) return a;
    a.gate = mat(&g->gate);
    a.up = mat(&g->up);
    a.down = mat(&g->down);
    if (mode == MOX_SHARED_GATED) a.scale = mat(&g->scale);
    a.mid = out(g->mid, 0);
    a.out = out(g->out, 0);
    a.logit = out(g->logit, 0);
    return a;
}

void ck_device_moe_finish(const mox_moe_finish_args *g, const mox_expert *experts)
{
    static int32_t layer; /* of which a device is told once */
    mox_err err = {0};
    mox_moe_finish_args a = *g;
    mox_expert *there = ck_bytes(g->ffn.n_experts * (int64_t)sizeof *there);
    for (int64_t i = 0; i < g->ffn.n_experts; i++)
        there[i] = (mox_expert){.id = experts[i].id, .gate = mat(&experts[i].gate), .up = mat(&experts[i].up), .down = mat(&experts[i].down)};
    must(at.dev->apart->place_experts(at.dev, layer, there, g->ffn.n_experts, NULL, 0, &err), &err);
    a.ffn.layer = layer++;
    a.ffn.x = in(g->ffn.x, 0);
    a.ffn.ids = in(g->ffn.ids, 0);
    a.ffn.rows = out(g->ffn.rows, 0);
    a.ffn.mid = out(g->ffn.mid, 0);
    a.ffn.bucket_offsets = out(g->ffn.bucket_offsets, 0);
    a.ffn.bucket_pairs = out(g->ffn.bucket_pairs, 0);
    a.ffn.batch_pairs = out(g->ffn.batch_pairs, 0);
    a.combine.h = in(g->combine.h, 0);
    a.combine.experts = a.ffn.rows;
    a.combine.w = in(g->combine.w, 0);
    a.shared = shared_expert(&g->shared, g->combine.mode);
    a.combine.shared = a.shared.out;
    a.combine.gate = a.shared.logit;
    a.combine.out = out(g->combine.out, 0);
    must(at.dev->ops.moe_acquire(at.dev, &a.ffn, &err), &err);
    must(at.dev->ops.moe_finish(at.dev, &a, &err), &err);
    (void)done(MOX_OK, &err);
}

/* ---- the level ---- */

/* Operations of the device, by the names of the catalogue; moe_ffn by its parts, and attention also
 * over many keys. */
#define DEVICE_OPS(X) MOX_DEV_CATALOGUE(X) MOX_DEV_OPTIONAL(X) X(moe_bucket, ) X(matmul_grouped, ) X(attention_parts, )

static const char *const names[] = {
#define NAME(op, args) #op,
    DEVICE_OPS(NAME) MOX_DEV_SEQUENCES(NAME)
#undef NAME
};
enum { N_NAMES = sizeof names / sizeof *names };

bool ck_device_has(const char *op)
{
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(names[i], op) == 0) return true;
    return false;
}

const char *ck_device_untested(int i, bool (*tested)(const char *op))
{
    for (int j = 0; j < N_NAMES; j++)
        if (!tested(names[j]) && i-- == 0) return names[j];
    return NULL;
}

/* Between the device and its backend: counts launches through the orders of threads, and plants. */
static void watched_launch(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t bytes)
{
    static uint64_t n;
    unsigned char changed[sizeof(mox_gpu_attention) + sizeof(mox_gpu_project4)];
    if (strcmp(b->name, "emu") == 0) {
        mox_emu_set_order(mox_emu_backend_device(b), (mox_emu_order)(n % 3), n);
        n++;
    }
    if (at.plant && at.plant->kernel == (int)kernel) {
        if (bytes > sizeof changed) ck_fail("parameters of %zu bytes", bytes);
        memcpy(changed, params, bytes);
        at.plant->change(changed);
        params = changed;
    }
    at.launch(b, kernel, groups, params, bytes);
}

bool ck_device_open(const char *name, mox_kern *kern, const ck_device_plant *plant)
{
    mox_err err;
    if (strcmp(name, "emu") == 0) must(mox_dev_emu_open(&at.dev, memory_bytes, false, &err), &err);
    else if (strcmp(name, "cuda") == 0) must(mox_dev_cuda_open(&at.dev, 0, false, &err), &err);
    else if (strcmp(name, "metal") == 0) must(mox_dev_metal_open(&at.dev, false, &err), &err);
    else return false;
    must(at.dev->apart->reserve(at.dev, &(mox_dev_sizes){.n_rows = ROWS_MAX, .n_spans = SPANS_MAX, .n_pages = PAGES_MAX}, &err), &err);
    mox_gpu_backend *b = ((mox_dev_gpu *)at.dev)->backend;
    at.launch = b->launch;
    at.plant = plant;
    b->launch = watched_launch;
#define FILL(op, args) kern->op = dev_##op;
    DEVICE_OPS(FILL)
#undef FILL
    kern->attention_merge = dev_attention_merge;
    kern->matmul_prepare = NULL;
    kern->matmul_grouped_prepare = NULL;
    kern->gate_up_swiglu_prepare = NULL;
    return true;
}

void ck_device_close(void)
{
    if (at.n_computed == 0) ck_fail("the device computed nothing");
    mox_dev_close(&at.dev);
}
