/* ops/kern.c -- which kernels serve at which level. */
#include "ops/kern.h"

#include <string.h>

static const char *const levels[] = {"ref"};

int mox_isa_count(void) { return (int)(sizeof levels / sizeof *levels); }
const char *mox_isa_name(int level) { return levels[level]; }
bool mox_isa_available(int level) { return level == 0; }

int mox_isa_find(const char *name)
{
    for (int level = mox_isa_count() - 1; level >= 0; level--)
        if (mox_isa_available(level) && (!name || strcmp(name, levels[level]) == 0)) return level;
    return -1;
}

void mox_kern_init(mox_kern *k, int level)
{
    (void)level; /* the reference serves at every level */
#define MOX_KERN_INIT(op, args) .op = mox_##op##_ref,
    *k = (mox_kern){MOX_KERN_LIST(MOX_KERN_INIT)};
#undef MOX_KERN_INIT
}
