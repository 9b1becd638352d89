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

/* The groups of the process in a hierarchy, its own one first, as folders. */
typedef struct group_walk {
    char mount[PATH_ROOM / 2], group[PATH_ROOM / 2], path[PATH_ROOM];
    bool last;
} group_walk;

/* The path in a line "4:memory:/a/b" of a hierarchy with the controller, or, for "", of
 * version 2; NULL when it is another line. */
static const char *group_of_line(const char *line, const char *controller)
{
    const char *first = strchr(line, ':'), *second = first ? strchr(first + 1, ':') : NULL;
    const char *end = line + strcspn(line, "\n");
    if (!second || second >= end || second[1] != '/') return NULL;
    const size_t n = strlen(controller);
    if (n == 0) return first + 1 == second ? second + 1 : NULL;
    for (const char *word = first + 1; word < second; word += strcspn(word, ",:") + 1)
        if (strcspn(word, ",:") == n && strncmp(word, controller, n) == 0) return second + 1;
    return NULL;
}

static bool walk_begin(group_walk *w, const char *root, const char *controller)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!mox_file_peek(path, text, sizeof text)) return false;
    const char *group = NULL;
    for (const char *line = text; line && *line && !group; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        group = group_of_line(line, controller);
    if (!group) return false;
    *w = (group_walk){.last = false};
    (void)snprintf(path, sizeof path, "%s/sys/fs/cgroup/unified", root); /* where both versions are mounted */
    const char *folder = *controller == '\0' && mox_path_exists(path) ? "unified" : controller;
    (void)snprintf(w->mount, sizeof w->mount, "%s/sys/fs/cgroup%s%s", root, *folder ? "/" : "", folder);
    (void)snprintf(w->group, sizeof w->group, "%.*s", (int)strcspn(group, "\n"), group);
    return true;
}

/* The next folder, or false.  Inside a container the path may be one of the host's, and
 * what is mounted is the group itself: folders that are not there are passed over. */
static bool walk_next(group_walk *w)
{
    if (w->last) return false;
    (void)snprintf(w->path, sizeof w->path, "%s%s", w->mount, w->group);
    char *slash = strrchr(w->group, '/');
    if (slash) *slash = '\0';
    else w->last = true;
    return true;
}

static bool peek_in(const char *folder, const char *file, char text[TEXT_ROOM])
{
    char path[PATH_ROOM + 64];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    return mox_file_peek(path, text, TEXT_ROOM);
}

/* "200000 100000": microseconds of every so many; "max 100000": all of them. */
static int64_t read_quota(const char *text)
{
    long long quota, period;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return INT64_MAX;
    return quota / period + (quota % period != 0);
}

int mox_machine_quota(const char *root)
{
    int64_t processors = INT64_MAX;
    group_walk w;
    char text[TEXT_ROOM];
    for (bool more = walk_begin(&w, root, "") && walk_next(&w); more; more = walk_next(&w))
        if (peek_in(w.path, "cpu.max", text)) processors = mox_min_i64(processors, read_quota(text));
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

/* What the two versions call the same things. */
typedef struct memory_files {
    const char *controller, *limit, *usage, *inactive, *active;
} memory_files;

static const memory_files versions[] = {
    {"", "memory.max", "memory.current", "\ninactive_file ", "\nactive_file "},
    {"memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "\ntotal_inactive_file ", "\ntotal_active_file "},
};
enum { N_VERSIONS = sizeof versions / sizeof *versions };

/* A number of a file of the group, or -1. */
static int64_t group_number(const char *folder, const char *file)
{
    char text[TEXT_ROOM];
    long long bytes;
    return peek_in(folder, file, text) && sscanf(text, "%lld", &bytes) == 1 && bytes >= 0 ? bytes : -1;
}

/* Bytes that the group has left below its limit; INT64_MAX without one. */
static int64_t group_room(const char *folder, const memory_files *v)
{
    char text[TEXT_ROOM];
    const int64_t most = group_number(folder, v->limit);
    if (most <= 0) return INT64_MAX;
    int64_t used = mox_max_i64(group_number(folder, v->usage), 0);
    const char *const droppable[] = {v->inactive, v->active};
    const bool told = peek_in(folder, "memory.stat", text);
    for (int i = 0; i < 2; i++) {
        long long bytes;
        const char *line = told ? strstr(text, droppable[i]) : NULL;
        if (line && sscanf(line + strlen(droppable[i]), "%lld", &bytes) == 1 && bytes > 0) used -= mox_min_i64(used, bytes);
    }
    return mox_max_i64(most - used, 0);
}

int64_t mox_machine_memory(const char *root)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    (void)snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t left = mox_file_peek(path, text, sizeof text) ? kib_of(text, "MemAvailable:") : -1;
    if (left < 0) left = INT64_MAX;
    for (int i = 0; i < N_VERSIONS; i++) {
        group_walk w;
        for (bool more = walk_begin(&w, root, versions[i].controller) && walk_next(&w); more; more = walk_next(&w))
            left = mox_min_i64(left, group_room(w.path, &versions[i]));
    }
    return left;
}

int64_t mox_machine_own(const char *root)
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    long long all, resident, shared;
    int64_t bytes;
    (void)snprintf(path, sizeof path, "%s/proc/self/statm", root);
    if (!mox_file_peek(path, text, sizeof text) || sscanf(text, "%lld %lld %lld", &all, &resident, &shared) != 3) return 0;
    return shared >= 0 && resident >= shared && mox_mul_i64(resident - shared, sysconf(_SC_PAGESIZE), &bytes) ? bytes : 0;
}

/* "some avg10=0.12 avg60=0.05 avg300=0.01 total=252429": the total of that line, or -1. */
static int64_t stalled_us(const char *text)
{
    const char *some = strncmp(text, "some ", 5) == 0 ? strstr(text, " total=") : NULL;
    long long us;
    return some && some < text + strcspn(text, "\n") && sscanf(some, " total=%lld", &us) == 1 && us >= 0 ? us : -1;
}

int mox_machine_stalls(const char *root, int64_t out[MOX_MACHINE_STALLS])
{
    char path[PATH_ROOM], text[TEXT_ROOM];
    int n = 0;
    group_walk w;
    for (bool more = walk_begin(&w, root, "") && walk_next(&w); more && n < MOX_MACHINE_STALLS - 1; more = walk_next(&w))
        if (peek_in(w.path, "memory.pressure", text) && (out[n] = stalled_us(text)) >= 0) n++;
    (void)snprintf(path, sizeof path, "%s/proc/pressure/memory", root);
    if (mox_file_peek(path, text, sizeof text) && (out[n] = stalled_us(text)) >= 0) n++;
    return n;
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
