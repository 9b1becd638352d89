/* ops/entry.h -- what the checked entries share: sentences for wrong arguments, and
 * sharing the units of a kernel out over the pool.
 *
 * Internal to ops.  An entry reads
 *
 *     const mox_check c = {"add", err};
 *     MOX_TRY(mox_check_size(&c, "n", a->n, 0));
 *     MOX_TRY(mox_check_f32(&c, "a", a->a, a->n));
 *     ...
 *     mox_run_add(e, a, a->n, MOX_GRAIN_ELEMENTS);
 *     return MOX_OK;
 *
 * I1  what passes the checks cannot make a kernel compute an address that wraps:
 *     every extent that was checked fits in an int64 of bytes. */
#ifndef MOX_OPS_ENTRY_H
#define MOX_OPS_ENTRY_H

#include "base/size.h"
#include "ops/kern.h"

/* Units that one thread takes at a time. */
enum { MOX_GRAIN_ELEMENTS = 4096 };
/* The same for units of `work` elements each. */
static inline int64_t mox_grain(int64_t work)
{
    return mox_max_i64(1, MOX_GRAIN_ELEMENTS / mox_max_i64(1, work));
}

typedef struct mox_check {
    const char *op;
    mox_err *err; /* may be NULL */
} mox_check;

/* value >= least. */
mox_status mox_check_size(const mox_check *c, const char *name, int64_t value, int64_t least);
/* a * b, refused when it wraps; *out may be used as an extent. */
mox_status mox_check_product(const mox_check *c, const char *name, int64_t a, int64_t b, int64_t *out);
/* n elements of `size` bytes behind p: not NULL unless n is 0, and no wrap. */
mox_status mox_check_array(const mox_check *c, const char *name, const void *p, int64_t n, int64_t size);
static inline mox_status mox_check_f32(const mox_check *c, const char *name, const float *p, int64_t n)
{
    return mox_check_array(c, name, p, n, (int64_t)sizeof *p);
}
static inline mox_status mox_check_i32(const mox_check *c, const char *name, const int32_t *p, int64_t n)
{
    return mox_check_array(c, name, p, n, (int64_t)sizeof *p);
}
/* f32 [rows, width] with stride: stride >= width, when there is a row at all. */
mox_status mox_check_rows(const mox_check *c, const char *name, const float *p, int64_t rows, int64_t width,
                          int64_t stride);
/* f32 [n, heads, dim] with two strides, tokens or heads outermost; no two rows overlap. */
mox_status mox_check_heads(const mox_check *c, const char *name, const float *p, int64_t n, int64_t heads,
                           int64_t dim, int64_t stride, int64_t head_stride);
/* Sizes, layout and pointers of a matrix. */
mox_status mox_check_mat(const mox_check *c, const char *name, const mox_mat *m);
/* A vector of n elements; optional allows type NONE. */
mox_status mox_check_vec(const mox_check *c, const char *name, const mox_vec *v, int64_t n, bool optional);
/* Every list[i] in [0, bound), i < n. */
mox_status mox_check_ids(const mox_check *c, const char *name, const int32_t *list, int64_t n, int64_t bound);
/* Any other refusal: mox_fail with the operation's name in front. */
mox_status mox_refuse(const mox_check *c, mox_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* mox_run_OP: the table's kernel for OP over [0, units), `grain` units at a time. */
#define MOX_RUN_DECLARE(op, args) \
    void mox_run_##op(const mox_exec *e, const args *a, int64_t units, int64_t grain);
MOX_KERN_LIST(MOX_RUN_DECLARE)
MOX_PREPARE_LIST(MOX_RUN_DECLARE)
#undef MOX_RUN_DECLARE

#endif
