/* runtime/pace.h -- which tokens a step computes, when many requests want some.
 *
 * A request that generates has one token in every step.  What else a step can take is
 * shared out to prompts, and two things decide how:
 *
 *   how much   Replies under way keep their pace: a step that computes prompt tokens beside
 *              them may take FACTOR times as long as one without.  Both are measured while
 *              they run, for numbers of generating requests that are within a factor of two;
 *              now and then a step without prompt tokens measures anew.  When nobody
 *              generates, one prompt takes the whole batch, and others join it as long as
 *              the step is expected to be short: a step with several requests is not
 *              interrupted when one of them is cancelled.
 *   whose      The one with the least left, so that short prompts overtake long ones; but
 *              whoever is passed by has that much of its own length forgiven.  A prompt of
 *              n tokens therefore waits for n tokens of others at most, and then takes turns
 *              with them.
 *
 * Knows tokens and seconds and nothing else; owns nothing. */
#ifndef MOX_RUNTIME_PACE_H
#define MOX_RUNTIME_PACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mox_pace_item { /* a running request */
    uint64_t order;  /* who came first, where nothing else decides */
    bool generating;
    int64_t left;    /* tokens of its prompt that are to be computed; generating: 0 */
    int64_t passed;  /* tokens of others that were computed first */
    int64_t take;    /* of the step */
} mox_pace_item;

enum { MOX_PACE_SIZES = 13 }; /* numbers of generating requests: 1, 2-3, 4-7, ... 4096 */

typedef struct mox_pace {
    int64_t n_batch;
    double token_s; /* of a prompt token when nobody generates; 0: not known */
    struct mox_pace_size {
        double step_s;   /* of a step without prompt tokens; 0: not known */
        int64_t beside;  /* prompt tokens that a step may have */
        int32_t n_mixed; /* steps that had some since it was measured */
    } sizes[MOX_PACE_SIZES];
} mox_pace;

void mox_pace_init(mox_pace *p, int64_t n_batch);
/* Fills take of every item. */
void mox_pace_share(const mox_pace *p, mox_pace_item *items, int32_t n);
/* A step has run with these takes, which may be less than share said: learns from its time, and
 * fills passed. */
void mox_pace_ran(mox_pace *p, mox_pace_item *items, int32_t n, double seconds);

#endif
