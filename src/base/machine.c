/* base/machine.c -- see machine.h.  Linux says all of it in small text files. */
#include "base/machine.h"

#include "base/file.h"
#include "base/size.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_ROOM = 1024, TEXT_ROOM = 16384 };

/* ---- sets ---- */

static void add(mox_id_set *s, int id) { s->words[id / MOX_ID_BITS] |= 1ul << (id % MOX_ID_BITS); }

int mox_id_set_count(const mox_id_set *s)
{
    int n = 0;
    for (int i = 0; i < MOX_MACHINE_IDS / MOX_ID_BITS; i++) n += __builtin_popcountl(s->words[i]);
    return n;
}

static bool read_id(const char **text, int *out)
{
    int id = 0;
    const char *p = *text;
    for (; *p >= '0' && *p <= '9'; p++) {
        id = 10 * id + (*p - '0');
        if (id >= MOX_MACHINE_IDS) return false;
    }
    if (p == *text) return false;
    *text = p;
    *out = id;
    return true;
}

static bool parse(mox_id_set *s, const char *list)
{
    for (;; list++) {
        int first, last;
        if (!read_id(&list, &first)) return false;
        last = first;
        if (*list == '-') {
            list++;
            if (!read_id(&list, &last) || last < first) return false;
        }
        for (int id = first; id <= last; id++) add(s, id);
        if (*list != ',') return *list == '\0' || (*list == '\n' && list[1] == '\0');
    }
}

bool mox_id_set_parse(mox_id_set *s, const char *list)
{
    *s = (mox_id_set){0};
    if (parse(s, list)) return true;
    *s = (mox_id_set){0};
    return false;
}

/* ---- processors ---- */

/* The processors of the core that cpu belongs to; cpu alone when nobody says. */
static void siblings(const char *root, int cpu, mox_id_set *out)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    (void)snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
    if (mox_file_peek(path, text, sizeof text) && mox_id_set_parse(out, text) && mox_id_set_has(out, cpu)) return;
    *out = (mox_id_set){0};
    add(out, cpu);
}

int mox_machine_cores(const char *root, const mox_id_set *allowed, int *cpus, int max)
{
    mox_id_set rest = *allowed, others = {0};
    int n = 0;
    for (int cpu = 0; cpu < MOX_MACHINE_IDS; cpu++) {
        if (!mox_id_set_has(&rest, cpu)) continue;
        mox_id_set core;
        siblings(root, cpu, &core);
        if (n < max) cpus[n] = cpu;
        n++;
        for (int i = 0; i < MOX_MACHINE_IDS / MOX_ID_BITS; i++) {
            others.words[i] |= core.words[i] & rest.words[i];
            rest.words[i] &= ~core.words[i];
        }
        others.words[cpu / MOX_ID_BITS] &= ~(1ul << (cpu % MOX_ID_BITS));
    }
    for (int cpu = 0, at = n; cpu < MOX_MACHINE_IDS && at < max; cpu++)
        if (mox_id_set_has(&others, cpu)) cpus[at++] = cpu;
    return n;
}

/* ---- control groups ---- */

/* The smaller of *least and what file says in the group of the process and in those
 * above it; number reads the text of one, INT64_MAX for no limit. */
static void tightest(const char *root, const char *file, int64_t (*number)(const char *), int64_t *least)
{
    char path[PATH_ROOM], text[TEXT_ROOM], group[PATH_ROOM] = "";
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!mox_file_peek(path, text, sizeof text)) return;
    const char *own = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    if (!own) return;
    own += own == text ? 3 : 4;
    (void)snprintf(group, sizeof group, "%.*s", (int)mox_min_i64((int64_t)strcspn(own, "\n"), PATH_ROOM / 2), own);
    for (;;) {
        const int n = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/%s", root, group, file);
        if (n > 0 && n < PATH_ROOM && mox_file_peek(path, text, sizeof text))
            *least = mox_min_i64(*least, number(text));
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* "200000 100000": microseconds of every so many; "max 100000": all of them. */
static int64_t read_quota(const char *text)
{
    long long quota, period;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return INT64_MAX;
    return quota / period + (quota % period != 0);
}

static int64_t read_bytes(const char *text)
{
    long long bytes;
    return sscanf(text, "%lld", &bytes) == 1 && bytes > 0 ? bytes : INT64_MAX;
}

int mox_machine_quota(const char *root)
{
    int64_t processors = INT64_MAX;
    tightest(root, "cpu.max", read_quota, &processors);
    return processors > MOX_MACHINE_IDS ? 0 : (int)processors;
}

/* ---- memory ---- */

void mox_machine_nodes(const char *root, mox_id_set *out)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    *out = (mox_id_set){0};
    (void)snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    if (mox_file_peek(path, text, sizeof text)) (void)mox_id_set_parse(out, text);
}

/* "KEY:   300 kB" in bytes; -1 when it is not there. */
static int64_t kib_of(const char *text, const char *key)
{
    const char *line = strstr(text, key);
    long long kib;
    int64_t bytes;
    if (!line || sscanf(line + strlen(key), "%lld", &kib) != 1 || kib < 0 || !mox_mul_i64(kib, 1024, &bytes)) return -1;
    return bytes;
}

int64_t mox_machine_memory(const char *root)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t bytes = mox_file_peek(path, text, sizeof text) ? kib_of(text, "MemAvailable:") : -1;
    if (bytes < 0) bytes = INT64_MAX;
    tightest(root, "memory.max", read_bytes, &bytes);
    return bytes;
}

void mox_machine_mapped(const char *root, int64_t *bytes, int64_t *huge_bytes)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    *bytes = *huge_bytes = 0;
    (void)snprintf(path, sizeof path, "%s/proc/self/smaps_rollup", root);
    if (!mox_file_peek(path, text, sizeof text)) return;
    const int64_t all = kib_of(text, "\nRss:"), own = kib_of(text, "\nAnonymous:");
    const int64_t huge = kib_of(text, "\nFilePmdMapped:");
    if (all < 0 || own < 0 || own > all) return;
    *bytes = all - own;
    *huge_bytes = mox_min_i64(mox_max_i64(huge, 0), *bytes);
}

/* ---- this machine ---- */

int mox_machine_cpus(int *cpus, int max, int *n)
{
    mox_id_set allowed = {0};
    *n = 0;
    if (sched_getaffinity(0, sizeof allowed, (cpu_set_t *)allowed.words) == 0) *n = mox_id_set_count(&allowed);
    if (*n == 0) { /* a mask that is wider than ours, or none: take them as they are counted */
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        *n = online < 1 ? 1 : (int)mox_min_i64(online, MOX_MACHINE_IDS);
        for (int cpu = 0; cpu < *n; cpu++) add(&allowed, cpu);
    }
    *n = (int)mox_min_i64(*n, max);
    return mox_machine_cores("", &allowed, cpus, max);
}

int mox_machine_threads(void)
{
    int n;
    const int cores = mox_machine_cpus(NULL, 0, &n), quota = mox_machine_quota("");
    return quota > 0 && quota < cores ? quota : cores;
}
