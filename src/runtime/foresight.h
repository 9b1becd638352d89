/* runtime/foresight.h -- whether guesses about the next layer's experts are worth a read.
 *
 * A right guess saves the wait for a read at most; a wrong one takes the disk's time for as
 * long, and a slot.  So reads pay when more guesses are right than wrong.  Only guesses that
 * would have to be read count: what is in a slot already teaches nothing.
 *
 * While reads do not pay, guesses are still made now and then and only held against what
 * comes, so that a text that is easier to foresee turns them on again. */
#ifndef MOX_RUNTIME_FORESIGHT_H
#define MOX_RUNTIME_FORESIGHT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mox_foresight { /* zeroed: nothing is known */
    bool reads;             /* guesses are to be read */
    double share;           /* of late guesses that were right */
    int64_t guessed, right; /* since the beginning */
    int64_t n_passed;       /* layers without a guess since the last one */
} mox_foresight;

/* Whether to make a guess for the layer that comes. */
bool mox_foresight_wants(mox_foresight *f);
/* Guesses about a layer, each a different one, and what it asks for. */
void mox_foresight_compare(mox_foresight *f, const int32_t *guess, int64_t n_guess, const int32_t *ids, int64_t n);
/* So many guesses, and so many of them right. */
void mox_foresight_learn(mox_foresight *f, int64_t guessed, int64_t right);

#endif
