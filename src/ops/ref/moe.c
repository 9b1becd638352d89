/* ops/ref/moe.c -- sorting pairs into experts, and adding up what experts return.
 *
 * Sums over slots are doubles in ascending order of slots, rounded to f32 before
 * anything else is added to them: all combining operations agree on that value. */
#include "base/size.h"
#include "ops/kern.h"
#include "ops/ref/math.h"
#include "ops/ref/rms.h"

#include <assert.h>

static bool known(int32_t id, int64_t n_experts) { return id >= 0 && id < n_experts; }

void mox_moe_bucket_ref(const mox_moe_bucket_args *a, int64_t begin, int64_t end)
{
    if (begin >= end) return;
    int64_t *at = a->offsets;
    for (int64_t x = 0; x <= a->n_experts; x++) at[x] = 0;
    for (int64_t p = 0; p < a->n_pairs; p++)
        if (known(a->ids[p], a->n_experts)) at[a->ids[p] + 1]++;
    for (int64_t x = 0; x < a->n_experts; x++) at[x + 1] += at[x];
    for (int64_t p = 0; p < a->n_pairs; p++)
        if (known(a->ids[p], a->n_experts)) a->pairs[at[a->ids[p]]++] = (int32_t)p;
    for (int64_t x = a->n_experts; x > 0; x--) at[x] = at[x - 1]; /* each had moved on to its end */
    at[0] = 0;
}

static void write_launch(uint32_t *launch, int64_t most, int64_t m, int64_t n_experts)
{
    if (!launch) return;
    launch[0] = (uint32_t)mox_ceil_div(mox_max_i64(1, most), 32);
    launch[1] = (uint32_t)mox_ceil_div(m, 64);
    launch[2] = (uint32_t)n_experts;
}

void mox_moe_bucket_strided_ref(const mox_moe_bucket_strided_args *a, int64_t begin, int64_t end)
{
    if (begin >= end) return;
    int64_t most = 0;
    for (int64_t x = 0; x < a->n_experts; x++) a->counts[x] = 0;
    for (int64_t p = 0; p < a->n_pairs; p++) {
        const int32_t id = a->ids[p];
        if (!known(id, a->n_experts)) continue;
        assert(a->counts[id] < a->row_stride);
        a->rows[id * a->row_stride + a->counts[id]++] = (int32_t)p;
        most = mox_max_i64(most, a->counts[id]);
    }
    write_launch(a->launch_gate_up, most, a->m_gate_up, a->n_experts);
    write_launch(a->launch_down, most, a->m_down, a->n_experts);
}

void mox_weighted_sum_ref(const mox_weighted_sum_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < a->dim; i++) {
            double sum = 0;
            for (int64_t p = t * a->k; p < (t + 1) * a->k; p++)
                sum += (double)a->w[p] * (double)a->slots[(a->row_of ? a->row_of[p] : p) * a->dim + i];
            a->out[t * a->dim + i] = (float)sum;
        }
}

/* sum_s w[s] slots[s * dim + i] */
static float slot_sum(const float *slots, const float *w, int64_t k, int64_t dim, int64_t i)
{
    double sum = 0;
    for (int64_t s = 0; s < k; s++) sum += (double)w[s] * (double)slots[s * dim + i];
    return (float)sum;
}

void mox_weighted_sum_residual_ref(const mox_weighted_sum_residual_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const float *slots = a->slots + t * a->k * a->dim, *w = a->w + t * a->k;
        for (int64_t i = 0; i < a->dim; i++) a->res[t * a->dim + i] += slot_sum(slots, w, a->k, a->dim, i);
    }
}

void mox_weighted_sum_residual_norm_ref(const mox_weighted_sum_residual_norm_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const float *slots = a->slots + t * a->k * a->dim, *w = a->w + t * a->k;
        float *res = a->res + t * a->dim, *normed = a->normed + t * a->dim;
        for (int64_t i = 0; i < a->dim; i++) res[i] += slot_sum(slots, w, a->k, a->dim, i);
        mox_ref_rms_row(res, a->dim, &a->weight, a->offset, a->eps, normed);
    }
}

static float shared_part(mox_shared_mode mode, float shared, float gate)
{
    if (mode == MOX_SHARED_UNSCALED) return shared;
    return (float)(mox_ref_sigmoid((double)gate) * (double)shared);
}

void mox_moe_combine_ref(const mox_moe_combine_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const float gate = a->mode == MOX_SHARED_GATED ? a->gate[t * a->gate_stride] : 0;
        for (int64_t i = 0; i < a->dim; i++) {
            const int64_t at = t * a->dim + i;
            double sum = 0;
            for (int64_t s = 0; s < a->k; s++) {
                const int64_t p = t * a->k + s;
                const float v = a->slots ? a->slots[s][at] : a->experts[p * a->dim + i];
                sum += (double)a->w[p] * (double)v;
            }
            float out = a->h[at] + (float)sum;
            if (a->mode != MOX_SHARED_NONE) out += shared_part(a->mode, a->shared[at], gate);
            a->out[at] = out;
        }
    }
}

void mox_moe_combine_sum_ref(const mox_moe_combine_sum_args *a, int64_t begin, int64_t end)
{
    for (int64_t t = begin; t < end; t++) {
        const float gate = a->mode == MOX_SHARED_GATED ? a->gate[t * a->gate_stride] : 0;
        for (int64_t at = t * a->dim; at < (t + 1) * a->dim; at++) {
            float out = a->h[at] + a->moe[at];
            if (a->mode != MOX_SHARED_NONE) out += shared_part(a->mode, a->shared[at], gate);
            a->out[at] = out;
        }
    }
}

void mox_moe_bucket_accumulate_ref(const mox_moe_bucket_accumulate_args *a, int64_t begin, int64_t end)
{
    for (int64_t b = 0; b < a->n_rows; b++) {
        float *sum = a->sum + a->token[b] * a->dim;
        const float *row = a->rows + b * a->dim;
        for (int64_t i = begin; i < end; i++) sum[i] = (float)((double)sum[i] + (double)a->w[b] * (double)row[i]);
    }
}
