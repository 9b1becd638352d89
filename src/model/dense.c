/* model/dense.c -- see dense.h. */
#include "model/dense.h"

#include <stdio.h>

static mox_status feed(mox_run *r, const mox_dense *f, const float *x, float *y)
{
    float *mid = MOX_TAKE(r->arena, float, r->n * f->width); /* [n, F] */
    const mox_mat gate = mox_run_mat(r, &f->gate), up = mox_run_mat(r, &f->up);
    const int64_t offsets[2] = {0, r->n};
    MOX_TRY(r->dev->ops.gate_up_swiglu(r->dev,
                                       &(mox_gate_up_swiglu_args){.n_groups = 1, .gate = &gate, .up = &up, .offsets = offsets,
                                                                  .x = x, .y = mid, .x_stride = f->gate.cols,
                                                                  .y_stride = f->width, .n_x_rows = r->n, .n_y_rows = r->n,
                                                                  .scratch = mox_arena_take(r->arena, mox_matmul_scratch(r->n, f->gate.cols), 1)},
                                       r->err));
    return mox_run_linear(r, &f->down, NULL, mid, y);
}

static mox_status forward(mox_run *r, const mox_ffn *ffn, int32_t layer, const float *x, float *h)
{
    (void)layer;
    const mox_dense *f = ffn->data;
    const int64_t n = r->n * f->down.rows;
    float *y = MOX_TAKE(r->arena, float, n);
    MOX_TRY(feed(r, f, x, y));
    return r->dev->ops.add(r->dev, &(mox_add_args){.a = h, .b = y, .out = h, .n = n}, r->err);
}

mox_status mox_dense_bind(mox_model *m, mox_binder *b, mox_dense *out, int64_t width, mox_err *err, const char *path, ...)
{
    char module[256];
    va_list args;
    va_start(args, path);
    (void)vsnprintf(module, sizeof module, path, args);
    va_end(args);
    out->width = width;
    MOX_TRY(mox_bind_matrix(b, &out->gate, width, m->dims.dim, err, "%s.gate_proj", module));
    MOX_TRY(mox_bind_matrix(b, &out->up, width, m->dims.dim, err, "%s.up_proj", module));
    return mox_bind_matrix(b, &out->down, m->dims.dim, width, err, "%s.down_proj", module);
}

mox_status mox_dense_layer(mox_model *m, mox_binder *b, int64_t layer, int64_t width, mox_err *err)
{
    mox_dense *f = MOX_KEEP(m, mox_dense, 1);
    if (!f) return mox_fail_memory(err, sizeof *f, "a layer");
    MOX_TRY(mox_dense_bind(m, b, f, width, err, "layers.%lld.mlp", (long long)layer));
    m->layers[layer].ffn = (mox_ffn){.forward = forward, .data = f};
    m->report.n_layers_dense++;
    m->report.ffn_width = width;
    return MOX_OK;
}
