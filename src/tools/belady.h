/* tools/belady.h -- the policy that knows the future: whoever is asked for latest gives way.
 *
 * No store can have it.  Replayed, it says how many hits there are to be had (Belady's MIN):
 * with at least as many slots as a batch has keys nothing that keeps to the rules of the
 * index has more. */
#ifndef MOX_TOOLS_BELADY_H
#define MOX_TOOLS_BELADY_H

#include "runtime/policy.h"

/* Later than any use. */
#define MOX_BELADY_NEVER INT64_MAX

extern const mox_policy mox_policy_belady;

/* When a key is asked for next.  For all keys at first, then before a batch for each of its own.  state is of
 * an index with mox_policy_belady. */
void mox_belady_foresee(void *state, int64_t key, int64_t when);
/* Whether key is asked for before what is in the slot. */
bool mox_belady_prefers(const void *state, int64_t key, int32_t slot);

#endif
