/* runtime/policy.c -- the policies by name. */
#include "runtime/policy.h"

#include <string.h>

const mox_policy *const mox_policies[] = {&mox_policy_lfu, &mox_policy_lru, &mox_policy_2q, NULL};

const mox_policy *mox_policy_find(const char *name)
{
    if (!name) return mox_policies[0];
    for (const mox_policy *const *p = mox_policies; *p; p++)
        if (strcmp((*p)->name, name) == 0) return *p;
    return NULL;
}
