/* ops/entry.c -- see entry.h.
 *
 * The pool calls jobs through one function type and kernels have one type each, so
 * every operation has a trampoline here that knows both. */
#include "ops/entry.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

/* Whether rows of groups take about as long as each other: those of few pairs wait for memory, others take as long as their
 * group has pairs. */
static bool are_even(const int64_t *offsets, int64_t n)
{
    enum { FEW = 8 };
    int64_t most = 0;
    for (int64_t g = 0; g < n; g++) most = mox_max_i64(most, offsets[g + 1] - offsets[g]);
    return most <= FEW || most <= 2 * (offsets[n] / n);
}
static bool always_even(const void *a) { return (void)a, true; }
static bool never_even(const void *a) { return (void)a, false; }
static bool grouped_even(const void *user)
{
    const mox_matmul_grouped_args *a = user;
    return are_even(a->offsets, a->n_groups);
}
static bool gate_up_even(const void *user)
{
    const mox_gate_up_swiglu_args *a = user;
    return are_even(a->offsets, a->n_groups);
}
#define IS_EVEN(a)                                             \
    _Generic((a), const mox_matmul_args *: always_even,        \
             const mox_matmul_grouped_args *: grouped_even,    \
             const mox_gate_up_swiglu_args *: gate_up_even, default: never_even)(a)

#define MOX_RUN_DEFINE(op, args)                                                           \
    typedef struct {                                                                       \
        mox_##op##_fn *kernel;                                                             \
        const args *a;                                                                     \
    } op##_call;                                                                           \
    static void op##_job(const void *user, int64_t begin, int64_t end)                     \
    {                                                                                      \
        const op##_call *call = user;                                                      \
        call->kernel(call->a, begin, end);                                                 \
    }                                                                                      \
    void mox_run_##op(const mox_exec *e, const args *a, int64_t units, int64_t grain)      \
    {                                                                                      \
        assert(e && e->kern && e->kern->op);                                               \
        const op##_call call = {e->kern->op, a};                                           \
        (IS_EVEN(a) ? mox_pool_run_even : mox_pool_run)(e->pool, op##_job, &call, units, grain); \
    }
MOX_KERN_LIST(MOX_RUN_DEFINE)
MOX_PREPARE_LIST(MOX_RUN_DEFINE)
#undef MOX_RUN_DEFINE
#undef IS_EVEN

mox_status mox_refuse(const mox_check *c, mox_status status, const char *format, ...)
{
    char what[200];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return mox_fail(c->err, status, "%s: %s", c->op, what);
}

mox_status mox_check_size(const mox_check *c, const char *name, int64_t value, int64_t least)
{
    if (value >= least) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%s is %lld, which is less than %lld", name, (long long)value, (long long)least);
}

mox_status mox_check_product(const mox_check *c, const char *name, int64_t a, int64_t b, int64_t *out)
{
    if (mox_mul_i64(a, b, out)) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%s: %lld times %lld is too large", name, (long long)a, (long long)b);
}

mox_status mox_check_array(const mox_check *c, const char *name, const void *p, int64_t n, int64_t size)
{
    int64_t bytes;
    MOX_TRY(mox_check_size(c, name, n, 0));
    MOX_TRY(mox_check_product(c, name, n, size, &bytes));
    if (n > 0 && !p) return mox_refuse(c, MOX_E_ARG, "%s is NULL", name);
    return MOX_OK;
}

/* Elements from the first to the last of rows of `width` that start `stride` apart. */
static bool extent(int64_t rows, int64_t width, int64_t stride, int64_t *out)
{
    int64_t before;
    return mox_mul_i64(rows - 1, stride, &before) && mox_add_i64(before, width, out);
}

mox_status mox_check_rows(const mox_check *c, const char *name, const float *p, int64_t rows, int64_t width,
                          int64_t stride)
{
    MOX_TRY(mox_check_size(c, name, rows, 0));
    MOX_TRY(mox_check_size(c, name, width, 0));
    if (rows == 0) return MOX_OK;
    if (stride < width)
        return mox_refuse(c, MOX_E_ARG, "%s: the stride of %lld is less than the %lld elements of a row", name,
                          (long long)stride, (long long)width);
    int64_t n;
    if (!extent(rows, width, stride, &n))
        return mox_refuse(c, MOX_E_ARG, "%s: %lld rows at a stride of %lld are too many", name, (long long)rows,
                          (long long)stride);
    return mox_check_f32(c, name, p, width == 0 ? 0 : n);
}

mox_status mox_check_heads(const mox_check *c, const char *name, const float *p, int64_t n, int64_t heads,
                           int64_t dim, int64_t stride, int64_t head_stride)
{
    MOX_TRY(mox_check_size(c, name, n, 0));
    MOX_TRY(mox_check_size(c, name, heads, 0));
    MOX_TRY(mox_check_size(c, name, dim, 0));
    if (n == 0 || heads == 0) return MOX_OK;
    int64_t heads_wide, tokens_wide;
    const int64_t hs = heads > 1 ? head_stride : dim, ts = n > 1 ? stride : dim; /* of one row: does not matter */
    if (hs < dim || ts < dim)
        return mox_refuse(c, MOX_E_ARG, "%s: a stride of %lld is less than the %lld elements of a row", name,
                          (long long)mox_min_i64(hs, ts), (long long)dim);
    if (!extent(heads, dim, hs, &heads_wide) || !extent(n, dim, ts, &tokens_wide))
        return mox_refuse(c, MOX_E_ARG, "%s: %lld x %lld rows are too many", name, (long long)n, (long long)heads);
    if (n == 1 || ts >= heads_wide) return mox_check_rows(c, name, p, n, heads_wide, mox_max_i64(ts, heads_wide));
    if (heads == 1 || hs >= tokens_wide)
        return mox_check_rows(c, name, p, heads, tokens_wide, mox_max_i64(hs, tokens_wide));
    return mox_refuse(c, MOX_E_ARG, "%s: strides of %lld and %lld make rows overlap", name, (long long)stride,
                      (long long)head_stride);
}

mox_status mox_check_mat(const mox_check *c, const char *name, const mox_mat *m)
{
    MOX_TRY(mox_check_size(c, name, m->rows, 0));
    MOX_TRY(mox_check_size(c, name, m->cols, 0));
    MOX_TRY(mox_check_size(c, name, m->row0, 0));
    const char *problem = mox_mat_layout_problem(&m->layout, m->cols);
    if (problem) return mox_refuse(c, MOX_E_ARG, "%s: %s", name, problem);
    int64_t n, last_row;
    MOX_TRY(mox_check_product(c, name, m->rows, m->cols, &n));
    MOX_TRY(mox_check_product(c, name, n, 8, &n)); /* no layout has more bytes or bits per element */
    if (!mox_add_i64(m->row0, m->rows, &last_row))
        return mox_refuse(c, MOX_E_ARG, "%s: row0 is too large", name);
    if (n == 0) return MOX_OK;
    if (!m->w) return mox_refuse(c, MOX_E_ARG, "%s has no data", name);
    const bool affine = m->layout.kind == MOX_MAT_AFFINE;
    if ((affine || m->layout.kind == MOX_MAT_FP8) && !m->scales)
        return mox_refuse(c, MOX_E_ARG, "%s has no scales", name);
    if (affine && !m->biases) return mox_refuse(c, MOX_E_ARG, "%s has no biases", name);
    return MOX_OK;
}

mox_status mox_check_vec(const mox_check *c, const char *name, const mox_vec *v, int64_t n, bool optional)
{
    if (v->type == MOX_DT_NONE) {
        if (optional) return MOX_OK;
        return mox_refuse(c, MOX_E_ARG, "%s is missing", name);
    }
    if (!mox_dtype_is_float(v->type))
        return mox_refuse(c, MOX_E_ARG, "%s is of type %s, not a floating type", name, mox_dtype_name(v->type));
    if (v->n != n)
        return mox_refuse(c, MOX_E_ARG, "%s has %lld elements, not %lld", name, (long long)v->n, (long long)n);
    return mox_check_array(c, name, v->data, n, mox_dtype_bytes(v->type));
}

mox_status mox_check_ids(const mox_check *c, const char *name, const int32_t *list, int64_t n, int64_t bound)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] < 0 || list[i] >= bound)
            return mox_refuse(c, MOX_E_ARG, "%s[%lld] is %d, which is not in [0, %lld)", name, (long long)i, list[i],
                              (long long)bound);
    return MOX_OK;
}
