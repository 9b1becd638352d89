/* ops/kern.c -- which kernels serve at which level. */
#include "ops/kern.h"

#include "base/cpu.h"
#include "base/err.h"
#if defined(__x86_64__)
#include "ops/x86/x86.h"
#elif defined(__aarch64__)
#include "ops/arm/arm.h"
#endif

#include <stdio.h>
#include <string.h>

/* Lowest first; each contains the ones before it. */
static const struct {
    const char *name;
    unsigned needs;
} levels[] = {
    {"ref", 0},
#if defined(__x86_64__)
    {"avx2", MOX_CPU_AVX2},
    {"avx512", MOX_CPU_AVX512},
    {"avx512vnni", MOX_CPU_VNNI},
    {"amx", MOX_CPU_AMX},
#elif defined(__aarch64__)
    {"neon", MOX_CPU_NEON},
    {"dotprod", MOX_CPU_DOTPROD},
    {"i8mm", MOX_CPU_I8MM},
#endif
};

static unsigned hidden; /* features that count as absent */

int mox_isa_count(void) { return (int)(sizeof levels / sizeof *levels); }
const char *mox_isa_name(int level) { return levels[level].name; }
void mox_isa_set_mask(unsigned features) { hidden = ~features; }
bool mox_isa_available(int level) { return (mox_cpu_features() & ~hidden & levels[level].needs) == levels[level].needs; }

mox_status mox_isa_find(const char *name, int *out, mox_err *err)
{
    char there[64] = "";
    for (int level = mox_isa_count() - 1; level >= 0; level--) {
        if (!mox_isa_available(level)) continue;
        *out = level;
        if (!name || strcmp(name, levels[level].name) == 0) return MOX_OK;
        const size_t n = strlen(there);
        (void)snprintf(there + n, sizeof there - n, "%s%s", n ? ", " : "", levels[level].name);
    }
    return mox_fail(err, MOX_E_ARG, "isa: '%s' is not a level that this processor and build have; they have %s", name,
                    there);
}

void mox_kern_init(mox_kern *k, int level)
{
#define MOX_KERN_INIT(op, args) .op = mox_##op##_ref,
    *k = (mox_kern){MOX_KERN_LIST(MOX_KERN_INIT)};
#undef MOX_KERN_INIT
    const unsigned features = mox_cpu_features() & ~hidden;
    k->by_rows = features & MOX_CPU_BY_ROWS;
    k->stripes = features & MOX_CPU_STRIPES;
#if defined(__x86_64__)
    mox_kern_init_x86(k, level);
#elif defined(__aarch64__)
    mox_kern_init_arm(k, level);
#else
    (void)level;
#endif
}
