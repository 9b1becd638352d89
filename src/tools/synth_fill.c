/* tools/synth_fill.c -- the numbers of synthetic tensors.
 *
 * A tensor is made in blocks of BLOCK bytes of which each begins with a state of its
 * own, derived from the tensor's stream and the block's number: any block can be made
 * alone, by any thread.  Inside a block eight xorshift generators run side by side,
 * which compilers turn into vector instructions; their numbers are random enough to
 * keep weights from repeating, which is all that is asked of them. */
#include "tools/synth.h"

#include "base/size.h"

#include <math.h>
#include <string.h>

enum { SIDE_BY_SIDE = 8 };

typedef struct random_state {
    uint64_t s[SIDE_BY_SIDE];
} random_state;

static uint64_t mix(uint64_t z) /* the finalizer of splitmix64 */
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static random_state state_of(uint64_t stream, int64_t block)
{
    random_state r;
    const uint64_t start = mix(stream) + (uint64_t)block * SIDE_BY_SIDE;
    for (uint64_t i = 0; i < SIDE_BY_SIDE; i++) r.s[i] = mix((start + i) * 0x9E3779B97F4A7C15u) | 1; /* never 0 */
    return r;
}

static inline void advance(random_state *r)
{
    for (int i = 0; i < SIDE_BY_SIDE; i++) {
        uint64_t x = r->s[i];
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        r->s[i] = x;
    }
}

static void random_bytes(random_state *r, unsigned char *dst, int64_t n)
{
    int64_t i = 0;
    for (; i + (int64_t)sizeof r->s <= n; i += (int64_t)sizeof r->s) {
        advance(r);
        memcpy(dst + i, r->s, sizeof r->s);
    }
    advance(r);
    memcpy(dst + i, r->s, (size_t)(n - i));
}

/* Place of a row in a random order of n rows, from 1. */
static int64_t rank_of(uint64_t stream, int64_t row, int64_t n)
{
    const uint64_t start = mix(stream + 0x5CE3u), own = mix(start + (uint64_t)row);
    int64_t rank = 1;
    for (int64_t i = 0; i < n; i++) rank += mix(start + (uint64_t)i) > own; /* mix never gives a number twice */
    return rank;
}

double mox_synth_deviations(double chance)
{
    enum { ROUNDS = 60 };
    double low = 0.0, high = 40.0;
    for (int i = 0; i < ROUNDS; i++) {
        const double x = 0.5 * (low + high);
        if (0.5 * erfc(x / sqrt(2.0)) > fmin(chance, MOX_SYNTH_CHANCE_MOST)) low = x;
        else high = x;
    }
    return 0.5 * (low + high);
}

/* A score is normally distributed with the length of its row for a deviation, and whatever is above
 * a threshold that hardly varies is chosen. */
static double row_factor(const mox_synth_tensor *t, int64_t row)
{
    const int64_t rank = rank_of(t->stream, row, t->popularity.n);
    return t->row_middle / mox_synth_deviations(mox_popularity_chance(&t->popularity, rank, 1.0));
}

static float rounded(const mox_synth_tensor *t, double x)
{
    return t->dtype == MOX_DT_BF16 ? mox_bf16_to_f32(mox_f32_to_bf16((float)x)) : (float)x;
}

/* The 256 values that the elements of a row take, as stored bytes. */
static void make_table(const mox_synth_tensor *t, double factor, unsigned char table[256][4])
{
    for (int b = 0; b < 256; b++) {
        const float base = rounded(t, (t->low + (t->high - t->low) * b / 255.0) * factor);
        const float v = (float)((double)base * t->times);
        const uint16_t half = mox_f32_to_bf16(v);
        if (t->dtype == MOX_DT_BF16) memcpy(table[b], &half, sizeof half);
        else memcpy(table[b], &v, sizeof v);
    }
}

/* The elements of a block; random bytes are those of a block of codes. */
static void fill_numbers(const mox_synth_tensor *t, int64_t block, unsigned char *dst, int64_t n)
{
    enum { PIECE = 4096 };
    const int size = mox_dtype_bytes(t->dtype);
    random_state r = state_of(t->stream, block);
    unsigned char table[256][4], random[PIECE];
    int64_t element = block * (MOX_SYNTH_BLOCK / size), row = -1;
    if (t->popularity.n == 0) make_table(t, 1.0, table);
    for (int64_t left = n / size; left > 0;) {
        const int64_t m = mox_min_i64(left, PIECE);
        random_bytes(&r, random, m);
        for (int64_t i = 0; i < m; i++, element++, dst += size) {
            if (t->popularity.n > 0 && element / t->row_elements != row) {
                row = element / t->row_elements;
                make_table(t, row_factor(t, row), table);
            }
            memcpy(dst, table[random[i]], (size_t)size);
        }
        left -= m;
    }
}

typedef struct fill_args {
    const mox_synth_tensor *tensor;
    int64_t first; /* block */
    unsigned char *dst;
    int64_t n;
} fill_args;

static void fill_blocks(const void *args, int64_t begin, int64_t end)
{
    const fill_args *a = args;
    for (int64_t i = begin; i < end; i++) {
        unsigned char *dst = a->dst + i * MOX_SYNTH_BLOCK;
        const int64_t n = mox_min_i64(MOX_SYNTH_BLOCK, a->n - i * MOX_SYNTH_BLOCK);
        if (a->tensor->source == MOX_SYNTH_NUMBERS) {
            fill_numbers(a->tensor, a->first + i, dst, n);
        } else {
            random_state r = state_of(a->tensor->stream, a->first + i);
            random_bytes(&r, dst, n);
        }
    }
}

void mox_synth_fill(const mox_synth_tensor *t, mox_pool *pool, int64_t offset, unsigned char *dst, int64_t n)
{
    const fill_args args = {.tensor = t, .first = offset / MOX_SYNTH_BLOCK, .dst = dst, .n = n};
    mox_pool_run(pool, fill_blocks, &args, mox_ceil_div(n, MOX_SYNTH_BLOCK), 4);
}
