/* model/rope_table.c -- rotary frequencies.
 *
 * YaRN keeps the fast pairs of a rotation, stretches the slow ones by `factor` and
 * blends in between; the blend runs between the pairs that turn beta_fast and
 * beta_slow times over the original context. */
#include "model/rope_table.h"

#include <math.h>

double mox_yarn_magnitude(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0; }

/* The (fractional) pair that makes this many turns over the original context. */
static double pair_turning(const mox_rope_config *rope, int64_t dim, double turns)
{
    const double pi = 3.14159265358979323846;
    return (double)dim * log((double)rope->original_max_position_embeddings / (2 * pi * turns)) / (2 * log(rope->theta));
}

float mox_rope_frequencies(const mox_rope_config *rope, int64_t dim, float *inv_freq)
{
    double low = 0, high = 1;
    if (rope->kind == MOX_ROPE_YARN) {
        low = pair_turning(rope, dim, rope->beta_fast);
        high = pair_turning(rope, dim, rope->beta_slow);
        if (rope->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        low = fmax(low, 0);
        high = fmin(high, (double)(dim - 1));
        if (low == high) high += 0.001;
    }
    for (int64_t i = 0; i < dim / 2; i++) {
        const double plain = pow(rope->theta, -2.0 * (double)i / (double)dim);
        double slow = 0;
        if (rope->kind == MOX_ROPE_YARN) slow = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        inv_freq[i] = (float)((1 - slow) * plain + (slow > 0 ? slow * plain / rope->factor : 0));
    }
    if (rope->kind != MOX_ROPE_YARN) return 1.0f;
    if (rope->attention_factor > 0) return (float)rope->attention_factor;
    if (rope->mscale != 0 && rope->mscale_all_dim != 0)
        return (float)(mox_yarn_magnitude(rope->factor, rope->mscale) / mox_yarn_magnitude(rope->factor, rope->mscale_all_dim));
    return (float)mox_yarn_magnitude(rope->factor, 1.0);
}
