/* dev/gpu/fill.h -- weights, vectors and caches of the host's structs as kernels take them.
 * Host code only.  The pointers must be memory of the device already. */
#ifndef MOX_DEV_GPU_FILL_H
#define MOX_DEV_GPU_FILL_H

#include "dev/gpu/params.h"
#include "ops/attention.h"
#include "tensor/matrix.h"

/* MOX_GPU_NONE for a type that kernels do not read. */
static inline int32_t mox_gpu_type_of(mox_dtype type)
{
    switch (type) {
    case MOX_DT_F32: return MOX_GPU_F32;
    case MOX_DT_F16: return MOX_GPU_F16;
    case MOX_DT_BF16: return MOX_GPU_BF16;
    case MOX_DT_F8_E8M0: return MOX_GPU_E8M0;
    case MOX_DT_I8: return MOX_GPU_Q8;
    default: return MOX_GPU_NONE;
    }
}

static inline int32_t mox_gpu_kind_of(mox_mat_kind kind)
{
    switch (kind) {
    case MOX_MAT_F32: return MOX_GPU_F32;
    case MOX_MAT_F16: return MOX_GPU_F16;
    case MOX_MAT_BF16: return MOX_GPU_BF16;
    case MOX_MAT_AFFINE: return MOX_GPU_AFFINE;
    case MOX_MAT_FP8: return MOX_GPU_FP8;
    default: return MOX_GPU_NONE;
    }
}

static inline mox_gpu_mat mox_gpu_mat_of(const mox_mat *m)
{
    const mox_mat_layout *l = &m->layout;
    mox_gpu_mat g = {.w = m->w, .scales = m->scales, .biases = m->biases, .rows = m->rows, .cols = m->cols, .row0 = m->row0,
                     .row_bytes = mox_mat_row_bytes(l, m->cols), .kind = mox_gpu_kind_of(l->kind), .bits = l->bits,
                     .group = l->group, .scale_type = mox_gpu_type_of(l->scale_type), .block_rows = l->block_rows,
                     .block_cols = l->block_cols};
    if (l->kind == MOX_MAT_AFFINE) g.scale_cols = m->cols / l->group;
    if (l->kind == MOX_MAT_FP8) g.scale_cols = (m->cols + l->block_cols - 1) / l->block_cols;
    return g;
}

/* Can matvec4.h read it? */
static inline bool mox_gpu_mat_is_four(const mox_gpu_mat *m)
{
    return m->kind == MOX_GPU_AFFINE && m->bits == 4 && m->group == 64 && m->scale_type == MOX_GPU_BF16 && m->cols % 256 == 0 &&
           m->rows > 0 && m->rows <= INT32_MAX && m->cols <= INT32_MAX && (uintptr_t)m->w % 16 == 0 && (uintptr_t)m->scales % 8 == 0 && (uintptr_t)m->biases % 8 == 0;
}

/* Are n matrices, all of which matvec4.h can read, a stack? */
static inline bool mox_gpu_stack_of(const mox_gpu_mat *m, int64_t n, mox_gpu_stack *out)
{
    *out = (mox_gpu_stack){.first = m[0], .w_step = n > 1 ? (int64_t)((uintptr_t)m[1].w - (uintptr_t)m[0].w) : 0,
                           .scale_step = n > 1 ? (int64_t)((uintptr_t)m[1].scales - (uintptr_t)m[0].scales) : 0};
    for (int64_t i = 0; i < n; i++) {
        const uintptr_t w = (uintptr_t)(i * out->w_step), scale = (uintptr_t)(i * out->scale_step);
        if (!mox_gpu_mat_is_four(&m[i]) || m[i].rows != m[0].rows || m[i].cols != m[0].cols) return false;
        if ((uintptr_t)m[i].w != (uintptr_t)m[0].w + w || (uintptr_t)m[i].scales != (uintptr_t)m[0].scales + scale ||
            (uintptr_t)m[i].biases != (uintptr_t)m[0].biases + scale)
            return false;
    }
    return true;
}

/* Can matvec_row.h read it? */
static inline bool mox_gpu_mat_is_rowwise(const mox_gpu_mat *m)
{
    if (m->cols == 0 || m->cols % 8 != 0) return false;
    if (m->kind == MOX_GPU_AFFINE) return m->bits == 8 && (uintptr_t)m->w % 8 == 0;
    return (m->kind == MOX_GPU_BF16 || m->kind == MOX_GPU_F16) && (uintptr_t)m->w % 16 == 0;
}

/* Can the kernels of matmul.h called _q4 read it? */
static inline bool mox_gpu_mat_is_q4(const mox_gpu_mat *m)
{
    return m->kind == MOX_GPU_AFFINE && m->bits == 4 && (m->group == 32 || m->group == 64 || m->group == 128) &&
           (m->scale_type == MOX_GPU_BF16 || m->scale_type == MOX_GPU_F16) && (uintptr_t)m->w % 8 == 0 &&
           (uintptr_t)m->scales % 2 == 0 && (uintptr_t)m->biases % 2 == 0;
}

static inline mox_gpu_vec mox_gpu_vec_of(const mox_vec *v)
{
    return (mox_gpu_vec){.data = v->data, .type = mox_gpu_type_of(v->type)};
}

static inline mox_gpu_cache mox_gpu_cache_of(const mox_cache *c)
{
    return (mox_gpu_cache){.data = c->data, .page_len = c->page_len, .page_stride = c->page_stride,
                           .token_stride = c->token_stride, .head_stride = c->head_stride, .type = mox_gpu_type_of(c->type)};
}

/* Can flash.h and share.h read it?  They take f16 in quads. */
static inline bool mox_gpu_cache_is_quads(const mox_gpu_cache *c)
{
    return c->type == MOX_GPU_F16 && (uintptr_t)c->data % 16 == 0 && c->page_stride % 8 == 0 && c->token_stride % 8 == 0 &&
           c->head_stride % 8 == 0 && c->page_stride <= INT32_MAX; /* so are all offsets in a page */
}

#endif
