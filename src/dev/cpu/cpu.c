/* dev/cpu/cpu.c -- the processor as a device: its slots are the operations of
 * the catalogue, run on the device's kernels and threads. */
#include "dev/cpu/cpu.h"

#include "base/alloc.h"
#include "base/size.h"

#include <string.h>

#define CPU_OP(op, args)                                                \
    static mox_status cpu_##op(mox_dev *d, const args *a, mox_err *err) \
    {                                                                   \
        return mox_op_##op(&((mox_dev_cpu *)d)->exec, a, err);          \
    }
MOX_DEV_CATALOGUE(CPU_OP)
MOX_DEV_OPTIONAL(CPU_OP)
#undef CPU_OP

static mox_status cpu_project(mox_dev *d, const mox_project_args *a, mox_err *err)
{
    return mox_op_matmul_list(&((mox_dev_cpu *)d)->exec, a->product, a->n, err);
}

/* Rows behind those that the caller will begin with: what is fetched is in the caches of the other threads. */
void mox_dev_cpu_expect(mox_dev *d, const mox_mat *all, int64_t n_all, int64_t n_rows)
{
    enum { CACHED = 3 << 17 }; /* bytes: less than half of a second cache of a MiB */
    const mox_exec *e = &((mox_dev_cpu *)d)->exec;
    const int64_t begin = mox_pool_first(e->pool, n_rows, mox_matmul_grain(all, 1));
    if (begin >= n_all * all->rows) return;
    const mox_mat *w = &all[begin / all->rows];
    const bool affine = w->layout.kind == MOX_MAT_AFFINE;
    const int64_t row = mox_mat_row_bytes(&w->layout, w->cols), scales = affine ? mox_mat_scale_row_bytes(&w->layout, w->cols) : 0;
    const int64_t first = begin % w->rows, n = mox_min_i64(w->rows - first, CACHED / mox_max_i64(row + 2 * scales, 1));
    mox_pool_ahead ahead = {.at = {w->w + first * row}, .step = {row, scales, scales}, .n_steps = n};
    if (affine) {
        ahead.at[1] = w->scales + first * scales;
        ahead.at[2] = w->biases + first * scales;
    }
    mox_pool_expect(e->pool, &ahead);
}

static void cpu_expect(mox_dev *d, const mox_mat *w, int64_t n) { mox_dev_cpu_expect(d, w, 1, n); }

/* ---- memory: that of the process ---- */

static mox_status cpu_alloc(mox_dev *d, int64_t bytes, void **out, mox_err *err)
{
    (void)d;
    *out = mox_alloc_pages((size_t)bytes);
    return *out ? MOX_OK : mox_fail_memory(err, (size_t)bytes, "a context");
}
static void cpu_free(mox_dev *d, void *p, int64_t bytes)
{
    (void)d;
    mox_free_pages(p, (size_t)bytes);
}
static void cpu_copy(mox_dev *d, void *to, const void *from, int64_t bytes)
{
    (void)d;
    memcpy(to, from, (size_t)bytes);
}
static void cpu_zero(mox_dev *d, void *p, int64_t bytes)
{
    (void)d;
    memset(p, 0, (size_t)bytes);
}
static mox_status cpu_download(mox_dev *d, void *to, const void *from, int64_t bytes, mox_err *err)
{
    (void)err;
    cpu_copy(d, to, from, bytes);
    return MOX_OK;
}
static mox_status cpu_sync(mox_dev *d, mox_err *err)
{
    (void)d, (void)err;
    return MOX_OK;
}

static void cpu_close(mox_dev *d)
{
    mox_dev_cpu *c = (mox_dev_cpu *)d;
    mox_pool_destroy(&c->exec.pool);
    mox_free(c);
}

mox_status mox_dev_cpu_open(mox_dev **out, const mox_pool_opts *threads, const char *isa, mox_precision precision,
                            bool deterministic, mox_err *err)
{
    *out = NULL;
    int level;
    MOX_TRY(mox_isa_find(isa, &level, err));
    mox_dev_cpu *c = mox_alloc_array(1, sizeof *c);
    if (!c) return mox_fail_memory(err, sizeof *c, "the cpu device");
    mox_status status = mox_pool_create(&c->exec.pool, threads, err);
    if (status != MOX_OK) {
        mox_free(c);
        return status;
    }
    mox_kern_init(&c->kern, level);
    c->exec.kern = &c->kern;
    c->exec.precision = precision;
    c->exec.deterministic = deterministic;
    c->dev.name = "cpu";
    c->dev.level = mox_isa_name(level);
    c->dev.n_threads = mox_pool_size(c->exec.pool);
    c->dev.expect = cpu_expect;
    c->dev.close = cpu_close;
    c->dev.memory = (mox_dev_memory){.alloc = cpu_alloc, .free = cpu_free, .upload = cpu_copy, .copy = cpu_copy, .zero = cpu_zero,
                                     .download = cpu_download, .sync = cpu_sync};
#define CPU_SLOT(op, args) c->dev.ops.op = cpu_##op;
    MOX_DEV_CATALOGUE(CPU_SLOT)
    MOX_DEV_OPTIONAL(CPU_SLOT)
#undef CPU_SLOT
    c->dev.ops.project = cpu_project;
    c->dev.ops.moe_acquire = mox_dev_cpu_moe_acquire;
    c->dev.ops.moe_ffn = mox_dev_cpu_moe_ffn;
    mox_dev_complete(&c->dev);
    *out = &c->dev;
    return MOX_OK;
}
