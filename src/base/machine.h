/* base/machine.h -- what the process may use of the machine: processors, memory nodes,
 * memory.
 *
 * Everything is read when asked for, because masks and limits change while a program
 * runs.  What the system does not say, or says in words that are not understood, counts
 * as no limit: none of this may keep a program from running.
 *
 * The functions with a root read below that folder instead of "", so that tests can
 * make up machines. */
#ifndef MOX_BASE_MACHINE_H
#define MOX_BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

enum { MOX_MACHINE_IDS = 4096, MOX_ID_BITS = 8 * (int)sizeof(unsigned long) };

/* Numbers of processors or of memory nodes, as the kernel's masks have them. */
typedef struct mox_id_set {
    unsigned long words[MOX_MACHINE_IDS / MOX_ID_BITS];
} mox_id_set;

static inline bool mox_id_set_has(const mox_id_set *s, int id)
{
    return id >= 0 && id < MOX_MACHINE_IDS && (s->words[id / MOX_ID_BITS] >> (id % MOX_ID_BITS) & 1u);
}
int mox_id_set_count(const mox_id_set *s);
/* A list as the kernel writes them: "0-3,8,10-11", with or without a newline.  False,
 * and an empty set, when it is anything else or a number is too large. */
bool mox_id_set_parse(mox_id_set *s, const char *list);

/* One processor of every core that has any in allowed, ascending, and behind them the
 * others of those cores; at most max in all.  Returns the number of cores. */
int mox_machine_cores(const char *root, const mox_id_set *allowed, int *cpus, int max);
/* Processors' worth of time that the control groups of the process (version 2) leave
 * it, rounded up; 0 = no limit. */
int mox_machine_quota(const char *root);
/* Memory nodes that are online; empty when the system does not say. */
void mox_machine_nodes(const char *root, mox_id_set *out);
/* Bytes that could be allocated without swapping: what the system has available, and no
 * more than any control group of the process (version 1 or 2) has left below its limit,
 * where file pages that it could drop count as left.  INT64_MAX when the system does not
 * say. */
int64_t mox_machine_memory(const char *root);
/* Memory of the process that is nobody else's: not files that it maps.  0 when the system
 * does not say. */
int64_t mox_machine_own(const char *root);

/* Microseconds since the beginning in which somebody had to wait for memory (pressure stall
 * information): of the control groups of the process (version 2), its own one first, and of
 * the machine.  Returns how many of them there are: 0 when the system does not say. */
enum { MOX_MACHINE_STALLS = 16 };
int mox_machine_stalls(const char *root, int64_t out[MOX_MACHINE_STALLS]);

/* Bytes of mapped files that the process has in memory, and how many of them on huge
 * pages; 0 when the system does not say. */
void mox_machine_mapped(const char *root, int64_t *bytes, int64_t *huge_bytes);

/* Of this machine: the processors that the process may run on, in the order of
 * mox_machine_cores; returns the number of cores, at least 1, and *n, the processors. */
int mox_machine_cpus(int *cpus, int max, int *n);
/* Threads that pay: one per core that the process may use, no more than its quota. */
int mox_machine_threads(void);

#endif
