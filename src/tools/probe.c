/* tools/probe.c -- how fast the machine reads and multiplies at this moment, and how fast the
 * kernels of products do on it.
 *
 * Owns: its threads and a buffer larger than any cache, as long as that much is allowed.  Products
 * take the buffer for matrices of 4-bit codes: what the codes are does not matter to their speed.  Speeds of shared and of
 * throttled machines change by the second, so a probe is short and meant to be run
 * beside every measurement. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "base/size.h"
#include "moxie/tools.h"
#include "ops/kern.h"
#include "ops/probe.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, LEAST_BYTES = 256 << 20, MOST_BYTES = 1 << 30, PIECES = 4 };
enum { ROWS = 768, COLS = 2048, MOST_TOKENS = 128 }; /* like an expert: less than a chunk with its scales */
static const mox_mat_layout layout = {.kind = MOX_MAT_AFFINE, .bits = 4, .group = 64, .scale_type = MOX_DT_BF16};
static const double multiply_s = 0.02;

struct mox_probe {
    mox_pool *pool;
    mox_probe_kern kern;
    mox_kern products;
    mox_precision precision;
    unsigned char *buffer;
    int64_t bytes, rounds; /* rounds: of one piece of the arithmetic probe */
    int64_t next;          /* where the next matrix begins */
    float *x, *y;          /* [MOST_TOKENS, COLS], [MOST_TOKENS, ROWS] */
    void *scratch;
};

typedef struct probe_job {
    const mox_probe *p;
    _Atomic uint64_t *sum; /* keeps the loops from being left out */
} probe_job;

static void read_chunks(const void *args, int64_t begin, int64_t end)
{
    const probe_job *j = args;
    atomic_fetch_add_explicit(j->sum, j->p->kern.read(j->p->buffer + begin * CHUNK, (end - begin) * CHUNK),
                              memory_order_relaxed);
}

static void multiply_pieces(const void *args, int64_t begin, int64_t end)
{
    const probe_job *j = args;
    for (int64_t i = begin; i < end; i++)
        atomic_fetch_add_explicit(j->sum, j->p->kern.multiply(j->p->rounds), memory_order_relaxed);
}

int64_t mox_probe_bytes(void)
{
    int64_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return mox_max_i64(LEAST_BYTES, mox_min_i64(2 * cache, MOST_BYTES)) / CHUNK * CHUNK;
}

/* Rounds per piece that take about so long; the best of some tries, because one of them
 * may have been disturbed. */
static int64_t rounds_for(mox_probe *p, double seconds)
{
    double best = 0.0;
    p->rounds = 1 << 14;
    for (int i = 0; i < 8; i++) best = fmax(best, mox_probe_macs(p));
    const double rounds = seconds * best * p->kern.passes / (double)p->kern.macs_per_round;
    return mox_max_i64(1, (int64_t)(rounds / (PIECES * mox_pool_size(p->pool))));
}

static mox_status reserve(mox_probe *p, int64_t most_bytes, mox_err *err)
{
    p->bytes = mox_probe_bytes();
    if (most_bytes > 0) p->bytes = mox_max_i64(mox_min_i64(p->bytes, most_bytes) / CHUNK, 1) * CHUNK;
    p->buffer = mox_alloc_pages((size_t)p->bytes);
    p->x = mox_alloc_array(MOST_TOKENS * COLS, sizeof *p->x);
    p->y = mox_alloc_array(MOST_TOKENS * ROWS, sizeof *p->y);
    p->scratch = mox_alloc_array((size_t)mox_matmul_scratch(MOST_TOKENS, COLS), 1);
    if (!p->buffer || !p->x || !p->y || !p->scratch) return mox_fail_memory(err, (size_t)p->bytes, "a probe of the memory");
    for (int64_t i = 0; i < p->bytes; i += 64) p->buffer[i] = (unsigned char)(i >> 6); /* real pages, not the zero page */
    for (int64_t i = 0; i < MOST_TOKENS * COLS; i++) p->x[i] = 1.0f;
    return MOX_OK;
}

mox_status mox_probe_create(mox_probe **out, const mox_context_opts *opts, int64_t most_bytes, mox_err *err)
{
    *out = NULL;
    int level;
    MOX_TRY(mox_isa_find(opts->isa, &level, err));
    mox_probe *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "a probe");
    p->precision = opts->exact ? MOX_PRECISION_EXACT : opts->fast ? MOX_PRECISION_FAST : MOX_PRECISION_DEFAULT;
    mox_probe_kern_init(&p->kern, level, p->precision);
    mox_kern_init(&p->products, level);
    const mox_pool_opts threads = {.n_threads = opts->n_threads, .pin = opts->pin};
    mox_status status = reserve(p, most_bytes, err);
    if (status == MOX_OK) status = mox_pool_create(&p->pool, &threads, err);
    if (status != MOX_OK) {
        mox_probe_destroy(&p);
        return status;
    }
    p->rounds = rounds_for(p, multiply_s);
    *out = p;
    return status;
}

void mox_probe_destroy(mox_probe **probe)
{
    mox_probe *p = *probe;
    if (!p) return;
    mox_pool_destroy(&p->pool);
    mox_free_pages(p->buffer, (size_t)p->bytes);
    mox_free(p->x);
    mox_free(p->y);
    mox_free(p->scratch);
    mox_free(p);
    *probe = NULL;
}

/* Matrices per second, where the last call left off in the buffer. */
static double products_per_s(mox_probe *p, int64_t n_tokens, int64_t n)
{
    const int64_t codes = ROWS * mox_mat_row_bytes(&layout, COLS), scales = ROWS * mox_mat_scale_row_bytes(&layout, COLS);
    const mox_exec exec = {.kern = &p->products, .pool = p->pool, .precision = p->precision};
    const double start = mox_clock_now();
    for (int64_t i = 0; i < n; i++, p->next = (p->next + CHUNK) % p->bytes) {
        const unsigned char *at = p->buffer + p->next;
        const mox_matmul_args a = {
            .w = {.layout = layout, .rows = ROWS, .cols = COLS, .w = at, .scales = at + codes, .biases = at + codes + scales},
            .x = p->x, .y = p->y, .n = n_tokens, .x_stride = COLS, .y_stride = ROWS, .scratch = p->scratch};
        (void)mox_op_matmul(&exec, &a, NULL); /* refuses nothing of this shape */
    }
    return (double)n / (mox_clock_now() - start);
}

double mox_probe_weights(mox_probe *p)
{
    const int64_t bytes = mox_mat_row_bytes(&layout, COLS) + 2 * mox_mat_scale_row_bytes(&layout, COLS);
    return products_per_s(p, 1, p->bytes / CHUNK) * (double)(ROWS * bytes);
}

double mox_probe_products(mox_probe *p)
{
    enum { MATRICES = 4 };
    return products_per_s(p, MOST_TOKENS, MATRICES) * (double)((int64_t)MOST_TOKENS * ROWS * COLS);
}

double mox_probe_read(mox_probe *p)
{
    _Atomic uint64_t sum = 0;
    const double start = mox_clock_now();
    mox_pool_run(p->pool, read_chunks, &(probe_job){p, &sum}, p->bytes / CHUNK, 1);
    return (double)p->bytes / (mox_clock_now() - start);
}

double mox_probe_macs(mox_probe *p)
{
    _Atomic uint64_t sum = 0;
    const int64_t pieces = (int64_t)PIECES * mox_pool_size(p->pool);
    const double start = mox_clock_now();
    mox_pool_run(p->pool, multiply_pieces, &(probe_job){p, &sum}, pieces, 1);
    const double seconds = mox_clock_now() - start;
    return (double)pieces * (double)p->rounds * (double)p->kern.macs_per_round / seconds / p->kern.passes;
}

const char *mox_probe_instruction(const mox_probe *p) { return p->kern.instruction; }
