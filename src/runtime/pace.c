/* runtime/pace.c -- see pace.h. */
#include "runtime/pace.h"

#include "base/size.h"

static const double FACTOR = 2.5;   /* times that a step may take with prompt tokens */
static const double JOINT_S = 0.25; /* seconds of a step that several prompts share */
static const double LEARN = 0.25;   /* what a measurement counts against those before it */
enum {
    BESIDE_FIRST = 16,  /* before anything is known */
    BESIDE_LEAST = 4,   /* a prompt gets on, whatever it costs */
    MEASURE_EVERY = 16  /* mixed steps, then one without prompt tokens */
};

void mox_pace_init(mox_pace *p, int64_t n_batch)
{
    *p = (mox_pace){.n_batch = n_batch};
    for (int i = 0; i < MOX_PACE_SIZES; i++) p->sizes[i].beside = BESIDE_FIRST;
}

static int32_t count_generating(const mox_pace_item *items, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) count += items[i].generating;
    return count;
}

static int size_of(int32_t n_generating)
{
    int size = 0;
    while (n_generating > 1 && size + 1 < MOX_PACE_SIZES) {
        n_generating /= 2;
        size++;
    }
    return size;
}

static mox_pace_item *next_in_line(mox_pace_item *items, int32_t n)
{
    mox_pace_item *best = NULL;
    for (mox_pace_item *x = items; x < items + n; x++) {
        if (x->left == 0 || x->take > 0) continue;
        const int64_t key = x->left - x->passed, best_key = best ? best->left - best->passed : 0;
        if (!best || key < best_key || (key == best_key && x->order < best->order)) best = x;
    }
    return best;
}

/* Tokens that may still join a step that has `taken` of prompts already. */
static int64_t room_in(const mox_pace *p, int32_t n_generating, int64_t taken)
{
    const int64_t room = p->n_batch - n_generating - taken;
    if (n_generating > 0) {
        const struct mox_pace_size *size = &p->sizes[size_of(n_generating)];
        if (size->step_s == 0 || size->n_mixed >= MEASURE_EVERY) return 0; /* this step measures */
        return mox_min_i64(room, size->beside - taken);
    }
    if (taken == 0) return room;
    return p->token_s == 0 ? 0 : mox_min_i64(room, (int64_t)(JOINT_S / p->token_s) - taken);
}

void mox_pace_share(const mox_pace *p, mox_pace_item *items, int32_t n)
{
    const int32_t n_generating = count_generating(items, n);
    for (int32_t i = 0; i < n; i++) items[i].take = items[i].generating;
    int64_t taken = 0;
    for (;;) {
        mox_pace_item *next = next_in_line(items, n);
        const int64_t room = room_in(p, n_generating, taken);
        if (!next || room <= 0) return;
        next->take = mox_min_i64(next->left, room);
        taken += next->take;
    }
}

static void learn(double *known, double seconds) { *known = *known == 0 ? seconds : *known + LEARN * (seconds - *known); }

/* What a step beside generating requests may take, after one with n prompt tokens. */
static void adapt(struct mox_pace_size *size, int64_t n, double seconds)
{
    const double more = seconds - size->step_s, allowed = (FACTOR - 1) * size->step_s;
    double want = more > 0 ? (double)n * allowed / more : 2.0 * (double)size->beside;
    if (n < size->beside && want > (double)size->beside) return; /* a short rest proves nothing about long ones */
    const double least = (double)size->beside / 2, most = (double)size->beside * 1.5 + 1;
    want = want < least ? least : want > most ? most : want;
    size->beside = mox_max_i64((int64_t)want, BESIDE_LEAST);
}

/* What is forgiven an item after a step with `total` prompt tokens.  Never more than it has left,
 * or a long wait would let it keep everyone else waiting; and its own tokens count twice against
 * it, so that it falls back behind short ones while it is served. */
static int64_t forgive(const mox_pace_item *x, int64_t total)
{
    const int64_t passed = x->passed + (total - x->take) - 2 * x->take;
    return mox_max_i64(0, mox_min_i64(passed, x->left - x->take));
}

void mox_pace_ran(mox_pace *p, mox_pace_item *items, int32_t n, double seconds)
{
    const int32_t n_generating = count_generating(items, n);
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        if (!items[i].generating) total += items[i].take;
    for (int32_t i = 0; i < n; i++)
        if (items[i].left > 0) items[i].passed = forgive(&items[i], total);
    if (n_generating == 0) {
        if (total > 0) learn(&p->token_s, seconds / (double)total);
        return;
    }
    struct mox_pace_size *size = &p->sizes[size_of(n_generating)];
    if (total == 0) {
        learn(&size->step_s, seconds);
        size->n_mixed = 0;
        return;
    }
    size->n_mixed++;
    adapt(size, total, seconds);
    size->beside = mox_min_i64(size->beside, p->n_batch);
}
