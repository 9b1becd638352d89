/* base/numa.c -- see numa.h.  The two system calls are made by number, because the C
 * library has no functions for them. */
#include "base/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Values of the kernel's interface. */
enum { POLICY_DEFAULT = 0, POLICY_INTERLEAVE = 3, ASK_ALLOWED = 1 << 2, N_BITS = MOX_MACHINE_IDS + 1 };

bool mox_numa_interleave_over(void *p, size_t bytes, const mox_id_set *nodes)
{
#ifdef SYS_mbind
    return syscall(SYS_mbind, p, bytes, POLICY_INTERLEAVE, nodes->words, (unsigned long)N_BITS, 0u) == 0;
#else
    (void)p, (void)bytes, (void)nodes;
    return false;
#endif
}

void mox_numa_interleave(void *p, size_t bytes)
{
    mox_id_set nodes;
    mox_machine_nodes("", &nodes);
    if (mox_id_set_count(&nodes) < 2) return;
#ifdef SYS_get_mempolicy
    int policy = POLICY_DEFAULT;
    mox_id_set allowed = {0};
    if (syscall(SYS_get_mempolicy, &policy, NULL, 0ul, NULL, 0ul) == 0 && policy != POLICY_DEFAULT) return;
    if (syscall(SYS_get_mempolicy, NULL, allowed.words, (unsigned long)N_BITS, NULL, (unsigned long)ASK_ALLOWED) == 0)
        for (int i = 0; i < MOX_MACHINE_IDS / MOX_ID_BITS; i++) nodes.words[i] &= allowed.words[i];
#endif
    if (mox_id_set_count(&nodes) > 1) (void)mox_numa_interleave_over(p, bytes, &nodes);
}
