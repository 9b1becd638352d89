/* tools/pack_plan.c -- which bytes go to which file of a packed model, and the headers.
 *
 * The plan depends on the source alone, so that a run that goes on after another makes
 * the same files. */
#include "tools/pack.h"

#include "base/alloc.h"
#include "base/ending.h"
#include "base/size.h"
#include "tools/manifest.h"
#include "tools/place.h"

#define XXH_STATIC_LINKING_ONLY
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const int64_t largest_dense_file = 4000000000, largest_other_file = 64 << 20;

/* ---- experts ---- */

int mox_pack_parts(const mox_expert_weights *x, mox_pack_part out[MOX_PACK_PARTS], int64_t *bytes)
{
    static const char *const modules[] = {"gate_proj", "up_proj", "down_proj"};
    const mox_weight *weights[] = {&x->gate, &x->up, &x->down};
    int n = 0;
    int64_t end = 0;
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 3; i++) {
            const mox_weight *w = weights[i];
            const mox_extent *e = kind == 0 ? &w->w : kind == 1 ? &w->scales : &w->biases;
            if (e->bytes == 0) continue;
            const char *suffix = kind == 0                           ? ".weight"
                                 : kind == 2                         ? ".biases"
                                 : w->layout.kind == MOX_MAT_AFFINE ? ".scales"
                                                                     : ".weight_scale_inv";
            out[n++] = (mox_pack_part){.module = modules[i], .suffix = suffix, .from = *e, .to = end};
            end += e->bytes;
        }
    }
    *bytes = mox_ceil_div(end, MOX_PACK_ALIGN) * MOX_PACK_ALIGN;
    return n;
}

void mox_pack_expert_name(const mox_pack_plan *p, int64_t layer, int64_t expert, char out[MOX_NAME_BYTES])
{
    (void)snprintf(out, MOX_NAME_BYTES, "%slayers.%lld.mlp.experts.%lld", mox_bind_prefix(&p->model->tensors),
                   (long long)layer, (long long)expert);
}

/* ---- tensors by place ---- */

/* Index in place of the tensor that the extent lies in: extents of experts are cut out
 * of tensors, so there is one. */
static int64_t holder(const mox_pack_plan *p, const mox_extent *e)
{
    int64_t low = 0, high = p->model->tensors.n_tensors;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        const mox_extent *m = &p->place[middle]->extent;
        const bool after = m->file != e->file ? m->file > e->file : m->offset > e->offset;
        if (after) high = middle;
        else low = middle;
    }
    const mox_extent *found = &p->place[low]->extent;
    assert(found->file == e->file && found->offset <= e->offset && e->offset + e->bytes <= found->offset + found->bytes);
    return low;
}

static mox_status sort_tensors(mox_pack_plan *p, mox_err *err)
{
    const mox_tensors *t = &p->model->tensors;
    const size_t n = (size_t)t->n_tensors;
    p->place = mox_tensors_by_place(t);
    p->expert = mox_alloc_array(n, 1);
    p->dense = mox_alloc_array(n, sizeof *p->dense);
    if (!p->place || !p->expert || !p->dense)
        return mox_fail_memory(err, n * (2 * sizeof *p->place + 1), "the list of tensors");
    for (int64_t layer = 0; layer < p->model->dims.n_layers; layer++) {
        const mox_expert_weights *x = p->model->layers[layer].experts;
        for (int64_t e = 0; x && e < p->model->n_experts; e++) {
            mox_pack_part parts[MOX_PACK_PARTS];
            int64_t bytes;
            const int n_parts = mox_pack_parts(&x[e], parts, &bytes);
            for (int i = 0; i < n_parts; i++) p->expert[holder(p, &parts[i].from)] = 1;
            p->expert_bytes_max = mox_max_i64(p->expert_bytes_max, bytes);
        }
    }
    return MOX_OK;
}

/* ---- headers ---- */

typedef struct header {
    mox_writer *w;
    int64_t data; /* bytes described so far */
    mox_err *err;
} header;

static mox_status describe(header *h, const char *name, mox_dtype dtype, const int64_t *shape, int n_dims, int64_t bytes)
{
    char text[96];
    MOX_TRY(mox_write_text(h->w, ",", h->err));
    MOX_TRY(mox_write_json(h->w, name, strlen(name), h->err));
    (void)snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":[", mox_dtype_name(dtype));
    MOX_TRY(mox_write_text(h->w, text, h->err));
    for (int i = 0; i < n_dims; i++) {
        (void)snprintf(text, sizeof text, "%s%lld", i ? "," : "", (long long)shape[i]);
        MOX_TRY(mox_write_text(h->w, text, h->err));
    }
    (void)snprintf(text, sizeof text, "],\"data_offsets\":[%lld,%lld]}", (long long)h->data, (long long)(h->data + bytes));
    h->data += bytes;
    return mox_write_text(h->w, text, h->err);
}

static mox_status describe_expert(const mox_pack_plan *p, header *h, int64_t layer, int64_t expert)
{
    char path[MOX_NAME_BYTES], name[MOX_NAME_BYTES + 64];
    mox_pack_part parts[MOX_PACK_PARTS];
    int64_t bytes;
    const int n = mox_pack_parts(&p->model->layers[layer].experts[expert], parts, &bytes);
    mox_pack_expert_name(p, layer, expert, path);
    const int64_t start = h->data;
    for (int i = 0; i < n; i++) {
        const mox_tensor_info *t = p->place[holder(p, &parts[i].from)];
        const int64_t cols = t->shape[t->n_dims - 1], rows = parts[i].from.bytes / (cols * mox_dtype_bytes(t->dtype));
        (void)snprintf(name, sizeof name, "%s.%s%s", path, parts[i].module, parts[i].suffix);
        MOX_TRY(describe(h, name, t->dtype, (const int64_t[]){rows, cols}, 2, parts[i].from.bytes));
    }
    const int64_t padding = start + bytes - h->data;
    if (padding == 0) return MOX_OK;
    (void)snprintf(name, sizeof name, "%s%lld", MOX_BIND_PADDING, (long long)(layer * p->model->n_experts + expert));
    return describe(h, name, MOX_DT_U8, &padding, 1, padding);
}

mox_status mox_pack_header(const mox_pack_plan *p, const mox_pack_step *s, mox_writer *out, mox_err *err)
{
    enum { LENGTH_BYTES = 8 };
    static const char spaces[] = "                                                                ";
    header h = {.w = out, .err = err};
    out->n = 0;
    MOX_TRY(mox_write(out, spaces, LENGTH_BYTES, err));
    MOX_TRY(mox_write_text(out, "{\"__metadata__\":{\"format\":\"pt\"}", err));
    for (int64_t i = 0; i < s->n && s->kind == MOX_PACK_DENSE; i++) {
        const mox_tensor_info *t = p->dense[s->first + i];
        MOX_TRY(describe(&h, t->name, t->dtype, t->shape, t->n_dims, t->extent.bytes));
    }
    for (int64_t e = 0; e < p->model->n_experts && s->kind == MOX_PACK_EXPERTS; e++)
        MOX_TRY(describe_expert(p, &h, s->first, e));
    MOX_TRY(mox_write_text(out, "}", err));
    while (out->n % MOX_PACK_ALIGN != 0) { /* so that the data is aligned, too */
        const size_t rest = MOX_PACK_ALIGN - out->n % MOX_PACK_ALIGN;
        MOX_TRY(mox_write(out, spaces, rest < sizeof spaces - 1 ? rest : sizeof spaces - 1, err));
    }
    unsigned char *length = out->bytes.data;
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (unsigned char)((out->n - LENGTH_BYTES) >> 8 * i & 255);
    return MOX_OK;
}

/* ---- steps ---- */

static mox_status add_step(mox_pack_plan *p, const mox_pack_step *s, mox_err *err)
{
    if (p->n_steps == p->capacity) {
        const int64_t capacity = p->capacity ? 2 * p->capacity : 32;
        mox_pack_step *grown = mox_realloc_array(p->steps, (size_t)capacity, sizeof *grown);
        if (!grown) return mox_fail_memory(err, (size_t)capacity * sizeof *grown, "the list of files");
        p->steps = grown;
        p->capacity = capacity;
    }
    p->steps[p->n_steps++] = *s;
    p->bytes += s->bytes;
    return MOX_OK;
}

static const char *last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Files without experts as they are; of the others, the dense tensors in files of our own. */
static mox_status plan_dense(mox_pack_plan *p, mox_err *err)
{
    const mox_tensors *t = &p->model->tensors;
    int number = 0;
    for (int64_t i = 0; i < t->n_tensors;) {
        const int32_t file = p->place[i]->extent.file;
        int64_t end = i, n_experts = 0;
        for (; end < t->n_tensors && p->place[end]->extent.file == file; end++) n_experts += p->expert[end];
        if (n_experts == 0) {
            mox_pack_step s = {.kind = MOX_PACK_WHOLE, .first = file, .bytes = t->files[file].size};
            (void)snprintf(s.name, sizeof s.name, "model-dense-%05d.safetensors", ++number);
            (void)snprintf(s.from, sizeof s.from, "%s", last_component(t->files[file].path));
            MOX_TRY(add_step(p, &s, err));
        }
        for (; i < end; i++)
            if (n_experts > 0 && !p->expert[i]) p->dense[p->n_dense++] = p->place[i];
    }
    for (int64_t i = 0; i < p->n_dense;) {
        mox_pack_step s = {.kind = MOX_PACK_DENSE, .first = i};
        for (; i < p->n_dense && (s.n == 0 || p->dense[i]->extent.bytes <= largest_dense_file - s.bytes); i++, s.n++)
            s.bytes += p->dense[i]->extent.bytes;
        (void)snprintf(s.name, sizeof s.name, "model-dense-%05d.safetensors", ++number);
        MOX_TRY(add_step(p, &s, err));
    }
    return MOX_OK;
}

static mox_status plan_experts(mox_pack_plan *p, mox_err *err)
{
    for (int64_t layer = 0; layer < p->model->dims.n_layers; layer++) {
        const mox_expert_weights *x = p->model->layers[layer].experts;
        if (!x) continue;
        mox_pack_step s = {.kind = MOX_PACK_EXPERTS, .first = layer};
        (void)snprintf(s.name, sizeof s.name, "model-experts-%05lld.safetensors", (long long)layer);
        for (int64_t e = 0; e < p->model->n_experts; e++) {
            mox_pack_part parts[MOX_PACK_PARTS];
            int64_t bytes;
            (void)mox_pack_parts(&x[e], parts, &bytes);
            s.bytes += bytes;
        }
        MOX_TRY(add_step(p, &s, err));
    }
    return MOX_OK;
}

/* Whether a file of the folder goes along: hidden ones, weights, their index and names that
 * no model has do not. */
static bool goes_along(const char *name)
{
    if (name[0] == '.' || strlen(name) >= MOX_PACK_FILE_NAME) return false;
    for (const char *c = name; *c; c++)
        if (*c <= ' ' || *c > '~') return false;
    return !mox_ends_with(name, ".safetensors") && !mox_ends_with(name, ".safetensors.index.json") &&
           !mox_ends_with(name, ".part") && strcmp(name, mox_manifest_name) != 0;
}

static mox_status plan_others(mox_pack_plan *p, const mox_folder *files, bool config, mox_err *err)
{
    for (size_t i = 0; i < files->n; i++) {
        const char *name = files->names[i];
        if (!goes_along(name) || (strcmp(name, "config.json") == 0) != config) continue;
        mox_pack_step s = {.kind = MOX_PACK_WHOLE, .first = -1};
        (void)snprintf(s.name, sizeof s.name, "%s", name);
        (void)snprintf(s.from, sizeof s.from, "%s", name);
        char *path = mox_path_join(p->dir, name);
        if (!path) return mox_fail_memory(err, strlen(p->dir) + strlen(name) + 2, "a file name");
        int64_t modified;
        const bool small = mox_path_stat(path, &s.bytes, &modified) && s.bytes <= largest_other_file;
        mox_free(path);
        if (small) MOX_TRY(add_step(p, &s, err));
    }
    return MOX_OK;
}

/* ---- the source ---- */

static void mix_file(XXH3_state_t *sum, const char *path)
{
    int64_t facts[2] = {0};
    (void)mox_path_stat(path, &facts[0], &facts[1]);
    (void)XXH3_64bits_update(sum, facts, sizeof facts);
}

static mox_status sum_source(mox_pack_plan *p, mox_err *err)
{
    const mox_tensors *t = &p->model->tensors;
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int32_t i = 0; i < t->n_files; i++) mix_file(&sum, t->files[i].path);
    for (int64_t i = 0; i < t->n_tensors; i++) {
        const mox_tensor_info *x = &t->tensors[i];
        const int64_t facts[4] = {x->dtype, x->extent.file, x->extent.offset, x->extent.bytes};
        (void)XXH3_64bits_update(&sum, x->name, strlen(x->name));
        (void)XXH3_64bits_update(&sum, facts, sizeof facts);
    }
    char *config = mox_path_join(p->dir, "config.json");
    if (!config) return mox_fail_memory(err, strlen(p->dir) + 16, "a file name");
    mix_file(&sum, config);
    mox_free(config);
    p->source = XXH3_64bits_digest(&sum);
    return MOX_OK;
}

mox_status mox_pack_plan_init(mox_pack_plan *p, const mox_model *m, const char *dir, mox_err *err)
{
    *p = (mox_pack_plan){.model = m, .dir = dir};
    mox_folder files = {0};
    mox_status status = mox_folder_list(&files, dir, err);
    if (status == MOX_OK) status = sort_tensors(p, err);
    if (status == MOX_OK) status = sum_source(p, err);
    if (status == MOX_OK) status = plan_dense(p, err);
    if (status == MOX_OK) status = plan_experts(p, err);
    if (status == MOX_OK) status = plan_others(p, &files, false, err);
    /* last, so that what is not finished does not pass for a model */
    if (status == MOX_OK) status = plan_others(p, &files, true, err);
    if (status != MOX_OK) mox_pack_plan_deinit(p);
    mox_folder_deinit(&files);
    return status;
}

void mox_pack_plan_deinit(mox_pack_plan *p)
{
    mox_free(p->place);
    mox_free(p->expert);
    mox_free(p->dense);
    mox_free(p->steps);
    *p = (mox_pack_plan){0};
}
