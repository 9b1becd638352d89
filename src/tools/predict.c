/* tools/predict.c -- from a plan and the speeds of a machine to rates of tokens.
 *
 * Experts are asked for layer by layer, again and again.  With p_i the chance that a step
 * (one token, or a batch) needs expert i of a layer, m steps need
 *
 *     sum over all experts of 1 - (1 - p_i)^m
 *
 * different ones on average.  Where the least recently used one gives way, an expert that
 * was last needed m steps ago is found if no more than the slots were needed since.  Their
 * number varies like a sum of independent choices, less what is certain: that a step needs
 * so many of a layer.  When not even one step fits, everything of a layer is gone when its
 * turn comes again, and nothing is found.
 *
 * Reads go on while experts are computed, and in a prompt, whose next layer is read ahead, all the time.  Both
 * use the same memory, so that time is not saved as a whole.
 *
 * Refuses nothing: what is not known is 0. */
#include "moxie/tools.h"
#include "tools/popularity.h"

#include <math.h>

enum { MOST_EXPERTS = 1 << 16, MOST_STEPS = 1 << 15 };

/* Measured on a machine of two cores (bench/results/stream.md): a step takes a tenth longer than its products;
 * computing and reading slow each other down to these parts of their speeds. */
static const double of_products = 0.9, beside_reads = 0.8, beside_computing = 0.64;

/* Of the experts of one layer, what m steps need and what was needed m steps ago and not
 * since, both on average; *variance: of the former. */
static void window(const mox_popularity *q, double tokens, int64_t m, double *needed, double *variance, double *returning)
{
    double sum = 0.0, spread = 0.0, shared = 0.0, single = 0.0, back = 0.0;
    for (int64_t i = 1; i <= q->n; i++) {
        const double p = mox_popularity_chance(q, i, tokens), missed = 1.0 - mox_popularity_chance(q, i, (double)m * tokens);
        const double missed_since = 1.0 - mox_popularity_chance(q, i, (double)(m - 1) * tokens);
        sum += 1.0 - missed;
        spread += missed * (1.0 - missed);
        shared += p * missed;
        single += p * (1.0 - p);
        back += p * p * missed_since;
    }
    *needed = sum;
    *variance = single > 0.0 ? fmax(0.0, spread - (double)m * shared * shared / single) : 0.0;
    *returning = back;
}

/* Of what steps of so many tokens need, the part that is found in slots for all layers;
 * *needed: experts that a step needs in one layer. */
static double hits(const mox_popularity *q, double slots, double layers, double tokens, double *needed)
{
    double found = 0.0;
    *needed = mox_popularity_sum(q, tokens);
    if (slots >= layers * (double)q->n) return 1.0;
    for (int64_t m = 1; m <= MOST_STEPS; m++) {
        double mean, variance, returning;
        window(q, tokens, m, &mean, &variance, &returning);
        const double room = slots + 0.5 - layers * mean, deviation = sqrt(layers * variance);
        const double fits = deviation > 0.0 ? 0.5 * erfc(-room / (deviation * sqrt(2.0))) : room > 0.0;
        found += fits * returning;
        if (fits < 1e-6) break;
    }
    return found / *needed;
}

/* Seconds that a step of so many tokens takes; *disk: bytes that it reads there. */
static double step_seconds(const mox_plan *p, const mox_plan_machine *m, double tokens, double *hit_rate, double *disk)
{
    const double layers = (double)p->n_layers_moe;
    double expert_bytes = 0.0, needed = 0.0;
    *hit_rate = 1.0;
    *disk = 0.0;
    if (p->n_experts > 0 && p->n_experts / p->n_layers_moe <= MOST_EXPERTS) {
        const double each = (double)p->expert_bytes_all / (double)p->n_experts;
        const mox_popularity q =
            mox_popularity_of(p->n_experts / p->n_layers_moe, p->n_experts_active / p->n_layers_moe, m->zipf);
        const double slots = (double)(p->experts == MOX_EXPERTS_STREAM ? p->n_slots : p->n_experts);
        *hit_rate = hits(&q, slots, layers, tokens, &needed);
        *disk = layers * needed * (1.0 - *hit_rate) * (double)p->slot_bytes;
        expert_bytes = layers * needed * each;
    }
    const double bytes = (double)p->token_bytes + expert_bytes;
    const double macs = tokens * (double)p->token_macs + (double)p->head_macs;
    const double reading = bytes / m->weights_per_s, multiplying = macs / m->macs_per_s;
    const double computing = fmax(reading, multiplying) / of_products, loading = *disk > 0.0 ? *disk / m->disk_bytes_per_s : 0.0;
    const double overlapping = tokens > 1.0 ? computing : computing * expert_bytes / bytes;
    const double both = fmin(overlapping / beside_reads, loading / beside_computing);
    return computing + loading - both * (beside_reads + beside_computing - 1.0);
}

void mox_plan_predict(const mox_plan *p, const mox_plan_machine *m, mox_plan_speed *out)
{
    double hit_rate, disk;
    *out = (mox_plan_speed){0};
    if (p->experts == MOX_EXPERTS_MMAP) return; /* the system decides */
    const double batch = (double)p->n_batch, prefill = batch / step_seconds(p, m, batch, &hit_rate, &disk);
    out->prefill_per_s = isfinite(prefill) ? prefill : 0.0;
    const double decode = 1.0 / step_seconds(p, m, 1.0, &out->hit_rate, &out->disk_bytes_per_token);
    out->decode_per_s = isfinite(decode) ? decode : 0.0;
}
