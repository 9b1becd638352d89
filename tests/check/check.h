/* tests/check/check.h -- the harness that holds every operation to its contract.
 *
 * A test file registers one function per operation.  The program runs it once per
 * ISA level with ck.exec calling that level's kernels, and once more with each
 * planted bug of that operation, where it must fail.
 *
 * Buffers come from ck_f32 & co.: poisoned with NaN (or 0xA5 bytes), with guard
 * bands on both sides that are checked when the test ends, and freed then.
 * ck_at_odd gives the same bytes at an odd address. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include "ops/kern.h"

#include <stdbool.h>

/* What benches found, over all processes. */
typedef struct ck_tally {
    int n_compared, n_slower; /* with the level below; slower than it */
} ck_tally;

typedef struct ck_state {
    mox_exec exec;    /* kernels of the level under test, with a pool of 2 threads */
    mox_exec ref;     /* the reference kernels, no pool */
    bool at_ref;      /* the level under test is the reference itself */
    bool on_device;   /* it is a device, which computes all units of an operation at once */
    bool wide;        /* also the shapes of large models: minutes instead of seconds */
    const mox_kern *below; /* the level below, NULL at the reference */
    ck_tally *tally;
} ck_state;
extern ck_state ck;

typedef void ck_test_fn(void);
/* A planted bug: replaces a slot of the kernel table by a kernel that is wrong in
 * the way real kernels go wrong (a dropped tail, a wrong epsilon, a swapped pair). */
typedef void ck_plant_fn(mox_kern *k);

typedef struct ck_op {
    const char *name;       /* of the operation: "rms_norm" */
    ck_test_fn *test;
    ck_plant_fn *plants[4]; /* at least one; NULL-terminated when fewer */
    ck_test_fn *bench;      /* may be NULL */
} ck_op;

/* Each test file defines its table; check.c lists the tables. */
extern const ck_op ck_ops_matmul[], ck_ops_pointwise[], ck_ops_router[], ck_ops_moe[], ck_ops_norm[], ck_ops_rope[],
    ck_ops_attention[], ck_ops_cache[], ck_ops_mla[], ck_ops_deltanet[], ck_ops_delta_rule[],
    ck_ops_layer[]; /* end with a NULL name */

/* ---- data; the seed is printed and can be set ---- */
float *ck_f32(int64_t n);                  /* poisoned output */
int32_t *ck_i32(int64_t n);
void *ck_bytes(int64_t n);
float *ck_random(int64_t n, float scale);  /* normal, mean 0 */
float *ck_uniform(int64_t n, float low, float high);
uint64_t ck_rand(uint64_t bound);          /* [0, bound) */
void *ck_at_odd(const void *src, int64_t n); /* a copy whose address is odd */
unsigned char *ck_buffer_of(const void *p, int64_t *bytes); /* the buffer that p is in; NULL and bytes as they were: in none */

/* A random matrix of any layout with the bytes to match, at an odd address;
 * affine scales of both signs; for FP8 a ragged grid.  ck_mat_dense writes its
 * decoded values [rows, cols] as doubles by a decoder of its own (bit by bit), and,
 * when mag is not NULL, |code * scale| + |bias| (or |value|). */
typedef enum ck_layout {
    CK_F32, CK_F16, CK_BF16, CK_Q2, CK_Q3, CK_Q4, CK_Q5, CK_Q6, CK_Q8, CK_FP8, CK_LAYOUTS
} ck_layout;
mox_mat ck_mat(ck_layout layout, int group, int64_t rows, int64_t cols);
const char *ck_layout_name(ck_layout layout);
void ck_mat_dense(const mox_mat *m, double *value, double *mag);
mox_vec ck_vec(mox_dtype type, const float *values, int64_t n); /* converted, at an odd address */

/* ---- verdicts: the first failure prints op, level, seed and case, and ends the test ---- */
_Noreturn void ck_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void ck_ok(mox_status status, const mox_err *err);                    /* must be MOX_OK */
void ck_refused(mox_status status, mox_status expected);              /* must be this error */
void ck_true(bool condition, const char *what);
void ck_exact(const void *got, const void *want, int64_t bytes, const char *what);
/* |got - want| <= rel * mag + abs for every element; NaN only where want is NaN. */
void ck_close(const float *got, const double *want, const double *mag, int64_t n, double rel, double abs,
              const char *what);
void ck_class_p(const float *got, const double *want, int64_t n, const char *what);   /* 5e-6 |want| + 1e-7 */
void ck_class_d(const float *got, const double *want, const double *mag, int64_t n,
                const char *what); /* 1e-5 mag + 1e-7 */
/* 1e-5 * scale absolute, and cosine >= 0.9999 over all n. */
void ck_class_s(const float *got, const double *want, int64_t n, double scale, const char *what);
/* 1e-4 max|want| absolute, and cosine >= 0.99999. */
void ck_class_g(const float *got, const double *want, int64_t n, const char *what);
void ck_label(const char *format, ...) __attribute__((format(printf, 1, 2))); /* names the case in messages */

/* ---- for the harness itself ---- */
typedef struct ck_where {
    const char *op, *level;
    uint64_t seed;
    bool quiet;   /* failures are expected: say nothing */
    bool aligned; /* float buffers start at multiples of 64, as the engine's do: for benches */
} ck_where;
void ck_begin(const ck_where *where); /* seeds the data for this operation */
void ck_end(void);                    /* checks guard bands and frees all buffers */
void ck_begin_data(uint64_t seed, bool aligned);
void ck_end_data(void);

/* Times body (with --bench, after the test passed), which calls an operation with
 * ck.exec: on one thread, at this level and, run by run in turn, at the level below.
 * Prints the fastest run, which others on the machine disturb least, and how many
 * times faster it is than that of the level below. */
void ck_bench(const char *label, double bytes, double flops, void (*body)(void *), void *user);
/* "what, n tokens", until the next call. */
const char *ck_tokens(const char *what, int64_t n);
/* The body of a bench of one operation: run_OP, whose user is its arguments. */
#define CK_RUN(op) static void run_##op(void *user) { (void)mox_op_##op(&ck.exec, user, NULL); }

#endif
