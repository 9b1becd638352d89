/* runtime/sampler.c -- from logits to a token id.
 *
 * Order (the one Hugging Face generation uses, so that published sampling
 * settings mean here what they mean there):
 *
 *   1. penalties on the raw logits, over the last repeat_window accepted ids:
 *      repeat divides positive logits and multiplies negative ones, once per id
 *      however often it occurred; presence is subtracted once per id, frequency
 *      once per occurrence; then logit_bias is added;
 *   2. temperature 0: the largest logit, lowest id first among equals.  Done;
 *   3. temperature, then top-k, then top-p over what top-k left, then min-p
 *      relative to the most likely id;
 *   4. one draw from what is left, in proportion.
 *
 * Every filter of step 3 keeps a head of the ids ordered by (logit, lowest id
 * first), so nothing is ever sorted in full: top-k keeps a heap of k, top-p pops
 * from a heap as many ids as it keeps, min-p is a threshold.
 *
 * Memory:  everything is allocated by create; accept and sample allocate nothing.  What is as large as the vocabulary
 *          is needed only while a token is chosen, so that replies that take turns can share it.
 * Refuses: logits that are NaN or plus infinity, rows without a finite one, and biases that leave none.
 *          Minus infinity is legal: an id that must not be chosen.
 */
#include "runtime/sampler.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 64, WINDOW_DEFAULT = 64, WINDOW_MAX = 1 << 24 };

typedef struct candidate {
    float logit;  /* after penalties */
    float weight; /* exp((logit - largest) / temperature) */
    int32_t id;
} candidate;

struct mox_sampler_space {
    int64_t n_vocab;
    float *logits;         /* [V] after penalties */
    float *peaks;          /* [V / BLOCK, rounded up] the largest of each block of logits */
    candidate *candidates; /* [V] */
    int32_t *counts;       /* [V] how often an id stands in the ring; 0 but while penalties are applied */
    unsigned char *mask;   /* [V] */
};

struct mox_sampler {
    mox_sampler_opts opts; /* with "off" written in one way and the window filled in */
    bool penalties;        /* any of the three is on */
    int32_t n_vocab;
    mox_rng rng;
    mox_sampler_space *space, *own; /* own: NULL when it is borrowed */
    int32_t *ring;         /* [repeat_window] the last accepted ids */
    mox_logit_bias *bias;  /* [opts.n_logit_bias] */
    int32_t ring_used, ring_next;
};

/* ---- life ------------------------------------------------------------------ */

static mox_status check_range(const char *what, float value, float low, float high, mox_err *err)
{
    if (value >= low && value <= high) return MOX_OK; /* NaN fails both */
    return mox_fail(err, MOX_E_ARG, "%s must be between %g and %g, not %g", what, (double)low, (double)high,
                    (double)value);
}

static mox_status check_bias(const mox_sampler_opts *o, int64_t n_vocab, mox_err *err)
{
    if (o->n_logit_bias < 0 || (o->n_logit_bias > 0 && !o->logit_bias))
        return mox_fail(err, MOX_E_ARG, "logit_bias: a list of %d ids is not there", (int)o->n_logit_bias);
    for (int32_t i = 0; i < o->n_logit_bias; i++) {
        const mox_logit_bias *b = &o->logit_bias[i];
        if (b->token < 0 || b->token >= n_vocab)
            return mox_fail(err, MOX_E_ARG, "logit_bias: %d is outside the vocabulary of %lld ids", (int)b->token,
                            (long long)n_vocab);
        if (!(b->bias < INFINITY)) /* NaN, too */
            return mox_fail(err, MOX_E_ARG, "logit_bias: what is added for id %d must be a number", (int)b->token);
    }
    return MOX_OK;
}

static mox_status check_opts(const mox_sampler_opts *o, mox_err *err)
{
    MOX_TRY(check_range("temperature", o->temperature, 0.0f, 100.0f, err));
    MOX_TRY(check_range("top_p", o->top_p, 0.0f, 1.0f, err));
    MOX_TRY(check_range("min_p", o->min_p, 0.0f, 1.0f, err));
    if (o->repeat_penalty != 0.0f)
        MOX_TRY(check_range("repeat_penalty", o->repeat_penalty, 0.1f, 10.0f, err));
    MOX_TRY(check_range("presence_penalty", o->presence_penalty, -100.0f, 100.0f, err));
    MOX_TRY(check_range("frequency_penalty", o->frequency_penalty, -100.0f, 100.0f, err));
    if (o->top_k < 0) return mox_fail(err, MOX_E_ARG, "top_k must be 0 (off) or more, not %d", (int)o->top_k);
    if (o->repeat_window < 0 || o->repeat_window > WINDOW_MAX)
        return mox_fail(err, MOX_E_ARG, "repeat_window must be between 0 and %d, not %d", WINDOW_MAX,
                        (int)o->repeat_window);
    return MOX_OK;
}

static mox_status check_vocab(int64_t n_vocab, mox_err *err)
{
    if (n_vocab >= 1 && n_vocab <= INT32_MAX) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "a vocabulary of %lld ids cannot be sampled from", (long long)n_vocab);
}

mox_status mox_sampler_space_create(mox_sampler_space **out, int64_t n_vocab, mox_err *err)
{
    *out = NULL;
    MOX_TRY(check_vocab(n_vocab, err));
    mox_sampler_space *x = mox_alloc_array(1, sizeof *x);
    if (!x) return mox_fail_memory(err, sizeof *x, "the sampler");
    const size_t v = (size_t)n_vocab;
    x->n_vocab = n_vocab;
    x->logits = mox_alloc_array(v, sizeof *x->logits);
    x->peaks = mox_alloc_array((v + BLOCK - 1) / BLOCK, sizeof *x->peaks);
    x->candidates = mox_alloc_array(v, sizeof *x->candidates);
    x->counts = mox_alloc_array(v, sizeof *x->counts);
    x->mask = mox_alloc_array(v, 1);
    if (!x->logits || !x->peaks || !x->candidates || !x->counts || !x->mask) {
        mox_sampler_space_destroy(&x);
        return mox_fail_memory(err, v * (sizeof(float) + sizeof(candidate) + sizeof(int32_t) + 1), "the sampler");
    }
    *out = x;
    return MOX_OK;
}

void mox_sampler_space_destroy(mox_sampler_space **space)
{
    mox_sampler_space *x = *space;
    if (!x) return;
    mox_free(x->logits);
    mox_free(x->peaks);
    mox_free(x->candidates);
    mox_free(x->counts);
    mox_free(x->mask);
    mox_free(x);
    *space = NULL;
}

mox_status mox_sampler_create(mox_sampler **out, int64_t n_vocab, const mox_sampler_opts *opts, mox_err *err)
{
    mox_sampler_space *own;
    *out = NULL;
    MOX_TRY(mox_sampler_space_create(&own, n_vocab, err));
    const mox_status status = mox_sampler_create_in(out, own, opts, err);
    if (status == MOX_OK) (*out)->own = own;
    else mox_sampler_space_destroy(&own);
    return status;
}

mox_status mox_sampler_create_in(mox_sampler **out, mox_sampler_space *space, const mox_sampler_opts *opts, mox_err *err)
{
    *out = NULL;
    const int64_t n_vocab = space->n_vocab;
    const mox_sampler_opts o = opts ? *opts : (mox_sampler_opts){0};
    MOX_TRY(check_opts(&o, err));
    MOX_TRY(check_bias(&o, n_vocab, err));

    mox_sampler *s = mox_alloc_array(1, sizeof *s);
    if (!s) return mox_fail_memory(err, sizeof *s, "the sampler");
    s->opts = o;
    if (s->opts.repeat_window == 0) s->opts.repeat_window = WINDOW_DEFAULT;
    if (s->opts.repeat_penalty == 0.0f) s->opts.repeat_penalty = 1.0f;
    if (s->opts.top_p == 0.0f) s->opts.top_p = 1.0f;
    if (s->opts.top_k == 0 || s->opts.top_k > n_vocab) s->opts.top_k = (int32_t)n_vocab;
    s->penalties = s->opts.repeat_penalty != 1.0f || o.presence_penalty != 0.0f || o.frequency_penalty != 0.0f;
    s->n_vocab = (int32_t)n_vocab;
    mox_rng_init(&s->rng, o.seed);

    s->space = space;
    s->ring = mox_alloc_array((size_t)s->opts.repeat_window, sizeof *s->ring);
    s->bias = mox_alloc_array((size_t)o.n_logit_bias, sizeof *s->bias);
    if (!s->ring || !s->bias) {
        const size_t bytes = (size_t)s->opts.repeat_window * sizeof *s->ring + (size_t)o.n_logit_bias * sizeof *s->bias;
        mox_sampler_destroy(&s);
        return mox_fail_memory(err, bytes, "the sampler");
    }
    if (o.n_logit_bias > 0) memcpy(s->bias, o.logit_bias, (size_t)o.n_logit_bias * sizeof *s->bias);
    s->opts.logit_bias = s->bias;
    *out = s;
    return MOX_OK;
}

void mox_sampler_destroy(mox_sampler **s)
{
    if (!s || !*s) return;
    mox_sampler_space_destroy(&(*s)->own);
    mox_free((*s)->ring);
    mox_free((*s)->bias);
    mox_free(*s);
    *s = NULL;
}

void mox_sampler_accept(mox_sampler *s, int32_t token)
{
    if (token < 0 || token >= s->n_vocab) return; /* no logit that a penalty could change */
    if (s->ring_used < s->opts.repeat_window) s->ring_used++;
    s->ring[s->ring_next] = token;
    s->ring_next = s->ring_next + 1 == s->opts.repeat_window ? 0 : s->ring_next + 1;
}

/* ---- penalties ------------------------------------------------------------- */

/* From the caller's logits, not in place, so that an id that stands in the ring
 * several times is still penalised once. */
static void apply_penalties(mox_sampler *s, const float *logits)
{
    int32_t *counts = s->space->counts;
    for (int32_t i = 0; i < s->ring_used; i++) counts[s->ring[i]]++;
    for (int32_t i = 0; i < s->ring_used; i++) {
        const int32_t id = s->ring[i];
        float x = logits[id];
        x = x > 0.0f ? x / s->opts.repeat_penalty : x * s->opts.repeat_penalty;
        x -= s->opts.presence_penalty + s->opts.frequency_penalty * (float)counts[id];
        s->space->logits[id] = x;
    }
    for (int32_t i = 0; i < s->ring_used; i++) counts[s->ring[i]] = 0;
}

/* Nothing may come next: by the biases, which are the caller's, or by the model's numbers. */
static mox_status nothing_left(const mox_sampler *s, const float *logits, const unsigned char *allowed, mox_err *err)
{
    for (int32_t i = 0; s->opts.n_logit_bias > 0 && i < s->n_vocab; i++)
        if ((!allowed || allowed[i]) && logits[i] > -INFINITY)
            return mox_fail(err, MOX_E_ARG, "logit_bias excludes every token that may come next%s",
                            allowed ? " in the form of the reply" : "");
    return mox_fail(err, MOX_E_NUMERIC, "no id%s has a finite logit: the model's output is broken",
                    allowed ? " that the form of the reply allows" : "");
}

/* A vocabulary is long, and of many replies a server draws from each in turn.  So what has to look at all logits has no
 * branches, and compilers make vectors of it. */

/* False: one of them is not a number, or plus infinity, which a bias must not hide. */
static bool copy_numbers(float *to, const float *from, int32_t n)
{
    int32_t broken = 0;
    for (int32_t i = 0; i < n; i++) {
        to[i] = from[i];
        broken |= !(from[i] < INFINITY);
    }
    return !broken;
}

/* The largest of n <= BLOCK numbers. */
static float peak_of(const float *x, int32_t n)
{
    enum { LANES = 16 };
    float peak[LANES], all = -INFINITY;
    for (int32_t k = 0; k < LANES; k++) peak[k] = -INFINITY;
    for (int32_t i = 0; n == BLOCK && i < BLOCK; i += LANES)
        for (int32_t k = 0; k < LANES; k++) peak[k] = x[i + k] > peak[k] ? x[i + k] : peak[k];
    for (int32_t i = 0; n < BLOCK && i < n; i++) all = x[i] > all ? x[i] : all;
    for (int32_t k = 0; k < LANES; k++) all = peak[k] > all ? peak[k] : all;
    return all;
}

/* Fills s->space->peaks and finds the largest of s->space->logits (the lowest id among equals). */
static int32_t find_peaks(mox_sampler *s)
{
    int32_t block = 0;
    for (int32_t b = 0; b * BLOCK < s->n_vocab; b++) {
        const int32_t left = s->n_vocab - b * BLOCK;
        s->space->peaks[b] = peak_of(s->space->logits + b * BLOCK, left < BLOCK ? left : BLOCK);
        if (s->space->peaks[b] > s->space->peaks[block]) block = b;
    }
    int32_t top = block * BLOCK;
    while (s->space->logits[top] != s->space->peaks[block]) top++;
    return top;
}

/* Fills s->space->logits and finds the largest of them (the lowest id among equals). */
static mox_status prepare(mox_sampler *s, const float *logits, const unsigned char *allowed, int32_t *best, mox_err *err)
{
    if (!copy_numbers(s->space->logits, logits, s->n_vocab)) {
        int32_t i = 0;
        while (logits[i] < INFINITY) i++;
        return mox_fail(err, MOX_E_NUMERIC, "the logit of id %d is %s: the model's output is broken", (int)i,
                        isnan(logits[i]) ? "not a number" : "infinite");
    }
    if (s->penalties) apply_penalties(s, logits);
    for (int32_t i = 0; i < s->opts.n_logit_bias; i++) s->space->logits[s->bias[i].token] += s->bias[i].bias;
    for (int32_t i = 0; allowed && i < s->n_vocab; i++)
        if (!allowed[i]) s->space->logits[i] = -INFINITY;
    const int32_t top = find_peaks(s);
    if (s->space->logits[top] == INFINITY)
        return mox_fail(err, MOX_E_NUMERIC, "the logit of id %d is infinite: the model's output is broken", (int)top);
    if (s->space->logits[top] == -INFINITY) return nothing_left(s, logits, allowed, err);
    *best = top;
    return MOX_OK;
}

/* ---- filters --------------------------------------------------------------- */

static bool more_likely(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Restores a heap below i.  best_on_top chooses which end of the order its root is. */
static void sift_down(candidate *heap, int32_t n, int32_t i, bool best_on_top)
{
    const candidate moving = heap[i];
    while (i < n / 2) {
        int32_t child = 2 * i + 1;
        if (child + 1 < n && more_likely(&heap[child + 1], &heap[child]) == best_on_top) child++;
        if (more_likely(&moving, &heap[child]) == best_on_top) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static void make_heap(candidate *heap, int32_t n, bool best_on_top)
{
    for (int32_t i = n / 2; i-- > 0;) sift_down(heap, n, i, best_on_top);
}

/* Puts the top_k most likely ids (all of them when it is off) into candidates. */
static int32_t take_top_k(mox_sampler *s)
{
    candidate *c = s->space->candidates;
    const int32_t k = s->opts.top_k;
    for (int32_t i = 0; i < k; i++) c[i] = (candidate){.logit = s->space->logits[i], .id = i};
    if (k == s->n_vocab) return k;
    make_heap(c, k, false);
    for (int32_t b = k / BLOCK; b * BLOCK < s->n_vocab; b++) {
        if (s->space->peaks[b] <= c[0].logit) continue; /* equal: the lower id stays */
        for (int32_t i = b * BLOCK < k ? k : b * BLOCK; i < s->n_vocab && i < (b + 1) * BLOCK; i++) {
            if (s->space->logits[i] <= c[0].logit) continue;
            c[0] = (candidate){.logit = s->space->logits[i], .id = i};
            sift_down(c, k, 0, false);
        }
    }
    return k;
}

/* Gives n candidates their weights and returns the sum. */
static double weigh(candidate *c, int32_t n, float largest, float temperature)
{
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) {
        c[i].weight = expf((c[i].logit - largest) / temperature);
        total += (double)c[i].weight;
    }
    return total;
}

/* Keeps the shortest head of the order whose weights reach top_p * total: an id
 * stays while those before it hold less than that. */
static int32_t take_top_p(candidate *c, int32_t n, double total, double top_p)
{
    /* Ids lighter than this hold together less than 1 - top_p, so all of them are
     * in the tail: the heap never sees them. */
    const double light = total * (1.0 - top_p) / (double)n;
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++)
        if ((double)c[i].weight >= light) c[m++] = c[i];
    make_heap(c, m, true);
    double held = 0.0;
    int32_t left = m; /* heap in [0, left), kept ids in [left, m) */
    while (left > 0 && held < top_p * total) {
        const candidate best = c[0];
        held += (double)best.weight;
        c[0] = c[--left];
        if (left > 0) sift_down(c, left, 0, true);
        c[left] = best;
    }
    memmove(c, c + left, (size_t)(m - left) * sizeof *c);
    return m - left;
}

static int32_t take_min_p(candidate *c, int32_t n, float min_p)
{
    int32_t m = 0; /* the most likely id has weight 1 and always stays */
    for (int32_t i = 0; i < n; i++)
        if (c[i].weight >= min_p) c[m++] = c[i];
    return m;
}

static int32_t draw(mox_sampler *s, int32_t n)
{
    const candidate *c = s->space->candidates;
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) total += (double)c[i].weight;
    const double target = mox_rng_unit(&s->rng) * total;
    double passed = 0.0;
    int32_t chosen = c[0].id;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].weight == 0.0f) continue;
        chosen = c[i].id; /* stays when rounding lets the target pass the end */
        passed += (double)c[i].weight;
        if (target < passed) break;
    }
    return chosen;
}

unsigned char *mox_sampler_mask(const mox_sampler *s) { return s->space->mask; }

mox_status mox_sampler_propose(mox_sampler *s, const float *logits, const unsigned char *allowed, int32_t *token, mox_err *err)
{
    int32_t best = 0;
    MOX_TRY(prepare(s, logits, allowed, &best, err));
    if (s->opts.temperature > 0.0f) {
        candidate *c = s->space->candidates;
        int32_t n = take_top_k(s);
        const double total = weigh(c, n, s->space->logits[best], s->opts.temperature);
        if (s->opts.top_p < 1.0f) n = take_top_p(c, n, total, (double)s->opts.top_p);
        if (s->opts.min_p > 0.0f) n = take_min_p(c, n, s->opts.min_p);
        best = draw(s, n);
    }
    *token = best;
    return MOX_OK;
}

mox_status mox_sampler_sample(mox_sampler *s, const float *logits, int32_t *token, mox_err *err)
{
    MOX_TRY(mox_sampler_propose(s, logits, NULL, token, err));
    mox_sampler_accept(s, *token);
    return MOX_OK;
}
