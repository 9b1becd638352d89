/* ops/simd/pointwise.c -- element by element, for one level.
 *
 * The last elements of a range go through the same vector operations as the others,
 * so an element has the same bytes wherever a range is cut.  Products are rounded
 * before they are added, as in the references. */
#include "ops/kern.h"
#include "ops/simd/level.h"

/* Elements up to the first whose address is a multiple of a vector's size. */
static int64_t misaligned(const float *p) { return (int64_t)(-((uintptr_t)p / sizeof *p) % LANES); }

/* STEP(i, n) for elements [i, i + n), n <= LANES, over [begin, end); whole vectors of
 * out are aligned when there are many. */
#define FOR_VECTORS(out, begin, end, STEP)                        \
    do {                                                          \
        int64_t i_ = (begin);                                     \
        const int64_t head_ = misaligned((out) + i_);             \
        if (head_ > 0 && (end) - i_ >= 16 * LANES) {              \
            STEP(i_, head_);                                      \
            i_ += head_;                                          \
        }                                                         \
        for (; i_ + LANES <= (end); i_ += LANES) STEP(i_, LANES); \
        if (i_ < (end)) STEP(i_, (end) - i_);                     \
    } while (0)

void MOX_AT(mox_swiglu)(const mox_swiglu_args *a, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const float *gate = a->gate + r * a->gate_stride, *up = a->up + r * a->up_stride;
        float *out = a->out + r * a->out_stride;
#define STEP(i, n) vf_store_n(out + (i), vf_mul(vf_silu(vf_load_n(gate + (i), n)), vf_load_n(up + (i), n)), n)
        FOR_VECTORS(out, 0, a->dim, STEP);
#undef STEP
    }
}

void MOX_AT(mox_sigmoid_gate)(const mox_sigmoid_gate_args *a, int64_t begin, int64_t end)
{
#define STEP(i, n) vf_store_n(a->x + (i), vf_mul(vf_load_n(a->x + (i), n), vf_sigmoid(vf_load_n(a->gate + (i), n))), n)
    FOR_VECTORS(a->x, begin, end, STEP);
#undef STEP
}

void MOX_AT(mox_add)(const mox_add_args *a, int64_t begin, int64_t end)
{
#define STEP(i, n) vf_store_n(a->out + (i), vf_add(vf_load_n(a->a + (i), n), vf_load_n(a->b + (i), n)), n)
    FOR_VECTORS(a->out, begin, end, STEP);
#undef STEP
}

void MOX_AT(mox_scale_add)(const mox_scale_add_args *a, int64_t begin, int64_t end)
{
    while (begin < end) { /* one pass over the scale at a time */
        const int64_t at = begin % a->scale_len, stop = end - begin < a->scale_len - at ? end : begin + a->scale_len - at;
        const float *scale = a->scale + at;
        const int64_t first = begin;
#define SCALED(i, n) vf_mul(vf_load_n(a->b + (i), n), vf_load_n(scale + (i) - first, n))
#define STEP(i, n) vf_store_n(a->out + (i), vf_add(vf_load_n(a->a + (i), n), SCALED(i, n)), n)
        FOR_VECTORS(a->out, begin, stop, STEP);
#undef STEP
#undef SCALED
        begin = stop;
    }
}

void MOX_AT(mox_scaled_add)(const mox_scaled_add_args *a, int64_t begin, int64_t end)
{
    const vf s = vf_set(a->s);
#define STEP(i, n) vf_store_n(a->dst + (i), vf_add(vf_load_n(a->dst + (i), n), vf_mul(s, vf_load_n(a->src + (i), n))), n)
    FOR_VECTORS(a->dst, begin, end, STEP);
#undef STEP
}
