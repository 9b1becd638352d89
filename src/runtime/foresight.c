/* runtime/foresight.c -- see foresight.h. */
#include "runtime/foresight.h"

#include <assert.h>

enum {
    FEW = 64,       /* guesses that say nothing yet */
    TRY_EVERY = 16, /* layers, while reads do not pay */
};
static const double rate = 1.0 / 128.0;           /* of forgetting, per guess */
static const double pays = 0.55, pays_not = 0.45; /* apart, so that it does not go on and off */

bool mox_foresight_wants(mox_foresight *f)
{
    if (f->reads || f->guessed < FEW || ++f->n_passed >= TRY_EVERY) {
        f->n_passed = 0;
        return true;
    }
    return false;
}

void mox_foresight_learn(mox_foresight *f, int64_t guessed, int64_t right)
{
    assert(right >= 0 && right <= guessed);
    if (guessed == 0) return;
    f->guessed += guessed;
    f->right += right;
    if (f->guessed <= FEW) f->share = (double)f->right / (double)f->guessed;
    else f->share += ((double)right / (double)guessed - f->share) * (double)(guessed < 64 ? guessed : 64) * rate;
    if (f->guessed < FEW) return;
    f->reads = f->share > (f->reads ? pays_not : pays);
}

void mox_foresight_compare(mox_foresight *f, const int32_t *guess, int64_t n_guess, const int32_t *ids, int64_t n)
{
    int64_t right = 0;
    for (int64_t i = 0; i < n_guess; i++) {
        int64_t k = 0;
        while (k < n && ids[k] != guess[i]) k++;
        right += k < n;
    }
    mox_foresight_learn(f, n_guess, right);
}
