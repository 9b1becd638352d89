/* ops/ref/online.h -- softmax attention in one pass over the keys, in double.
 *
 * The weighted sum of values is kept relative to the largest score so far, so no
 * score is stored and no length is too long.  A sum wider than MOX_PIECE elements
 * is made in several passes. */
#ifndef MOX_OPS_REF_ONLINE_H
#define MOX_OPS_REF_ONLINE_H

#include "ops/attention.h"
#include "ops/q8.h"

#include <math.h>

enum { MOX_PIECE = 512 };

typedef struct mox_online {
    double max, denom;
    double sum[MOX_PIECE];
} mox_online;

static inline void mox_online_begin(mox_online *o, int64_t n)
{
    o->max = -INFINITY;
    o->denom = 0.0;
    for (int64_t i = 0; i < n; i++) o->sum[i] = 0.0;
}

/* Takes one more score into the denominator and returns the weight of its value.
 * A NaN score poisons the sum, as it should; -inf weighs nothing. */
static inline double mox_online_weight(mox_online *o, double score, int64_t n)
{
    if (score == -INFINITY) return 0.0;
    if (score > o->max) {
        const double shrink = exp(o->max - score);
        o->denom *= shrink;
        for (int64_t i = 0; i < n; i++) o->sum[i] *= shrink;
        o->max = score;
    }
    const double weight = exp(score - o->max);
    o->denom += weight;
    return weight;
}

/* Number i of the vector at offset. */
static inline double mox_cache_number(const mox_cache *c, int64_t offset, int64_t i)
{
    if (c->type == MOX_DT_I8) return (double)mox_q8_load((const uint8_t *)c->data + offset, i);
    return (double)mox_load_as_f32(c->data, c->type, offset + i);
}

/* q . the vector at offset, and sum += weight * its numbers [from, from + n). */
static inline double mox_cache_dot(const mox_cache *c, int64_t offset, const float *q, int64_t n)
{
    double dot = 0.0;
    if (c->type == MOX_DT_F32) {
        const float *k = (const float *)c->data + offset;
        for (int64_t i = 0; i < n; i++) dot += (double)q[i] * (double)k[i];
    } else if (c->type == MOX_DT_I8) {
        const uint8_t *k = (const uint8_t *)c->data + offset;
        for (int64_t i = 0; i < n; i++) dot += (double)q[i] * (double)mox_q8_load(k, i);
    } else {
        const uint16_t *k = (const uint16_t *)c->data + offset;
        for (int64_t i = 0; i < n; i++) dot += (double)q[i] * (double)mox_f16_to_f32(k[i]);
    }
    return dot;
}

static inline void mox_cache_add(const mox_cache *c, int64_t offset, int64_t from, double weight, double *sum, int64_t n)
{
    if (c->type == MOX_DT_F32) {
        const float *v = (const float *)c->data + offset + from;
        for (int64_t i = 0; i < n; i++) sum[i] += weight * (double)v[i];
    } else if (c->type == MOX_DT_I8) {
        const uint8_t *v = (const uint8_t *)c->data + offset;
        for (int64_t i = 0; i < n; i++) sum[i] += weight * (double)mox_q8_load(v, from + i);
    } else {
        const uint16_t *v = (const uint16_t *)c->data + offset + from;
        for (int64_t i = 0; i < n; i++) sum[i] += weight * (double)mox_f16_to_f32(v[i]);
    }
}

#endif
