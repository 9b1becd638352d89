/* tests/unit/test_machine.c -- what the process may use: lists of processors, cores,
 * quotas and memory of made-up machines, and that this one is counted at all. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/machine.h"
#include "base/numa.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "made_up_machine.h"

/* ---- lists ---- */

static void lists_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int ids[6], n;
    } good[] = {
        {"0", {0}, 1},
        {"0-1\n", {0, 1}, 2},
        {"3,1", {1, 3}, 2},
        {"0-1,8,62-64\n", {0, 1, 8, 62, 63, 64}, 6},
        {"5-5,5", {5}, 1},
        {"4095", {4095}, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        mox_id_set s;
        if (!mox_id_set_parse(&s, good[i].text)) fail_msg("'%s' is a list", good[i].text);
        assert_int_equal(mox_id_set_count(&s), good[i].n);
        for (int j = 0; j < good[i].n; j++) assert_true(mox_id_set_has(&s, good[i].ids[j]));
    }
}

static void what_is_no_list_is_empty(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "\n", ",", "1,", ",1", "1-", "-1", "3-1", "1 2", "0x3", "1\n2", "4096", "0-4096",
                                      "99999999999999999999", "one", "1,2,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mox_id_set s;
        if (mox_id_set_parse(&s, bad[i])) fail_msg("'%s' is no list", bad[i]);
        assert_int_equal(mox_id_set_count(&s), 0);
    }
    assert_false(mox_id_set_has(&(mox_id_set){0}, -1));
    assert_false(mox_id_set_has(&(mox_id_set){0}, MOX_MACHINE_IDS));
}

/* ---- made-up machines ---- */

static int cores_of(const char *allowed, int *cpus, int max)
{
    mox_id_set s;
    assert_true(mox_id_set_parse(&s, allowed));
    return mox_machine_cores(root, &s, cpus, max);
}

static void put_siblings(int cpu, const char *list)
{
    char name[128];
    (void)snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(name, list);
}

static void siblings_count_once(void **state)
{
    (void)state;
    /* Four cores; those of 0 and 1 share with 4 and 5, 2 and 3 do not say. */
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 8; j += 4) put_siblings(i + j, i ? "1,5\n" : "0,4\n");
    int cpus[8] = {0};
    assert_int_equal(cores_of("0-5", cpus, 8), 4);
    static const int order[] = {0, 1, 2, 3, 4, 5}; /* a processor of each core, then the others */
    assert_memory_equal(cpus, order, sizeof order);
    assert_int_equal(cores_of("0,4", cpus, 8), 1);
    assert_int_equal(cores_of("4,5", cpus, 8), 2);
    assert_int_equal(cores_of("1,4-5", cpus, 8), 2);
    static const int mixed[] = {1, 4, 5};
    assert_memory_equal(cpus, mixed, sizeof mixed);
    assert_int_equal(cores_of("0-5", NULL, 0), 4);
    /* Siblings that are offline or not allowed, and nonsense. */
    put_siblings(0, "0\n");
    put_siblings(1, "7\n");
    assert_int_equal(cores_of("0-1", cpus, 8), 2);
}

static void quotas_are_rounded_up(void **state)
{
    (void)state;
    assert_int_equal(mox_machine_quota(root), 0); /* nobody says anything */
    put("/proc/self/cgroup", "1:cpu:/old\n0::/a/b\n");
    assert_int_equal(mox_machine_quota(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(mox_machine_quota(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "350000 100000\n");
    assert_int_equal(mox_machine_quota(root), 4);
    put("/sys/fs/cgroup/a/cpu.max", "200000 100000\n"); /* the group above is tighter */
    assert_int_equal(mox_machine_quota(root), 2);
    put("/sys/fs/cgroup/cpu.max", "5000 100000\n");
    assert_int_equal(mox_machine_quota(root), 1);
    static const char *const nonsense[] = {"", "max", "-5 100", "100 0", "9 words", "99999999999999999999 1"};
    put("/proc/self/cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        put("/sys/fs/cgroup/cpu.max", nonsense[i]);
        assert_int_equal(mox_machine_quota(root), 0);
    }
}

static void nodes_are_listed(void **state)
{
    (void)state;
    mox_id_set nodes;
    mox_machine_nodes(root, &nodes); /* a machine that reports none */
    assert_int_equal(mox_id_set_count(&nodes), 0);
    put("/sys/devices/system/node/online", "0-1,3\n");
    mox_machine_nodes(root, &nodes);
    assert_int_equal(mox_id_set_count(&nodes), 3);
    assert_true(mox_id_set_has(&nodes, 3));
    put("/sys/devices/system/node/online", "all\n");
    mox_machine_nodes(root, &nodes);
    assert_int_equal(mox_id_set_count(&nodes), 0);
}

static void memory_is_what_is_left(void **state)
{
    (void)state;
    assert_true(mox_machine_memory(root) == INT64_MAX);
    put("/proc/meminfo", "MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:    300 kB\n");
    assert_true(mox_machine_memory(root) == 300 * 1024);
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/memory.max", "max\n");
    assert_true(mox_machine_memory(root) == 300 * 1024);
    put("/sys/fs/cgroup/g/memory.max", "4096\n");
    assert_true(mox_machine_memory(root) == 4096);
}

/* Of a limit, what is used goes off, but file pages that could be dropped do not. */
static void groups_leave_what_they_do_not_need(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemTotal:  900000 kB\nMemAvailable:    300000 kB\n");
    put("/proc/self/cgroup", "4:memory:/old/box\n1:cpu,cpuacct:/\n0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "100000\n");
    put("/sys/fs/cgroup/a/b/memory.current", "70000\n");
    assert_true(mox_machine_memory(root) == 30000);
    put("/sys/fs/cgroup/a/b/memory.stat", "anon 20000\nfile 50000\ninactive_file 30000\nactive_file 5000\n");
    assert_true(mox_machine_memory(root) == 65000);
    put("/sys/fs/cgroup/a/memory.max", "40000\n"); /* the group above is tighter */
    put("/sys/fs/cgroup/a/memory.current", "90000\n");
    assert_true(mox_machine_memory(root) == 0);
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    assert_true(mox_machine_memory(root) == 65000);
    /* version 1, beside it */
    put("/sys/fs/cgroup/memory/old/box/memory.limit_in_bytes", "50000\n");
    put("/sys/fs/cgroup/memory/old/box/memory.usage_in_bytes", "45000\n");
    assert_true(mox_machine_memory(root) == 5000);
    put("/sys/fs/cgroup/memory/old/box/memory.stat",
        "cache 1\ninactive_file 7\ntotal_cache 9000\ntotal_inactive_file 8000\ntotal_active_file 2000\n");
    assert_true(mox_machine_memory(root) == 15000);
    put("/sys/fs/cgroup/memory/old/box/memory.limit_in_bytes", "9223372036854771712\n"); /* how version 1 says none */
    assert_true(mox_machine_memory(root) == 65000);
    /* a container that sees its own group as the root, under the path of the host */
    put("/proc/self/cgroup", "4:memory:/host/path/not/here\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "12345\n");
    assert_true(mox_machine_memory(root) == 12345);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "much\n");
    assert_true(mox_machine_memory(root) == 300000 * 1024);
}

static void own_memory_is_counted(void **state)
{
    (void)state;
    assert_true(mox_machine_own(root) == 0);
    put("/proc/self/statm", "9000 700 200 1 0 1 0\n");
    assert_true(mox_machine_own(root) == 500 * sysconf(_SC_PAGESIZE));
    put("/proc/self/statm", "9000 200 700\n");
    assert_true(mox_machine_own(root) == 0);
    assert_true(mox_machine_own("") > 0);
}

/* What a group or a machine says of how long somebody waited for memory. */
static void waits_for_memory_are_read(void **state)
{
    (void)state;
    int64_t us[MOX_MACHINE_STALLS];
    assert_int_equal(mox_machine_stalls(root, us), 0);
    put("/proc/pressure/memory", "some avg10=0.12 avg60=0.05 avg300=0.01 total=252429\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n");
    assert_int_equal(mox_machine_stalls(root, us), 1);
    assert_int_equal(us[0], 252429);
    put("/proc/self/cgroup", "4:memory:/x\n0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=31\nfull total=1\n");
    put("/sys/fs/cgroup/a/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=32\n");
    assert_int_equal(mox_machine_stalls(root, us), 3);
    assert_true(us[0] == 31 && us[1] == 32 && us[2] == 252429);
    put("/sys/fs/cgroup/unified/a/memory.pressure", "some total=33\n"); /* both versions mounted */
    assert_int_equal(mox_machine_stalls(root, us), 2);
    assert_true(us[0] == 33 && us[1] == 252429);
    static const char *const nonsense[] = {"", "some", "some total=", "some total=x", "some total=-3", "full total=8\n",
                                           "some avg10=1\nfull total=5\n", "total=9", "99"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        put("/proc/pressure/memory", nonsense[i]);
        assert_int_equal(mox_machine_stalls(root, us), 1);
    }
}

static void mapped_pages_are_counted(void **state)
{
    (void)state;
    int64_t bytes = 1, huge = 1;
    mox_machine_mapped(root, &bytes, &huge);
    assert_true(bytes == 0 && huge == 0);
    put("/proc/self/smaps_rollup", "5573-7ffe ---p 0 00:00 0 [rollup]\nRss:   5000 kB\nPss:  70 kB\nAnonymous:  904 kB\n"
                                   "AnonHugePages:  0 kB\nFilePmdMapped:   2048 kB\n");
    mox_machine_mapped(root, &bytes, &huge);
    assert_true(bytes == 4096 * 1024 && huge == 2048 * 1024);
    put("/proc/self/smaps_rollup", "5573-7ffe ---p 0 00:00 0 [rollup]\nRss:   5 kB\nAnonymous:  6 kB\n");
    mox_machine_mapped(root, &bytes, &huge);
    assert_true(bytes == 0 && huge == 0);
    mox_machine_mapped("", &bytes, &huge);
    assert_in_range(huge, 0, bytes);
}

/* ---- memory nodes ---- */

static void pages_are_dealt_out(void **state)
{
    (void)state;
    enum { BYTES = 4 << 20, FOR_ADDRESS = 2, INTERLEAVE = 3 };
    mox_id_set nodes;
    mox_machine_nodes("", &nodes);
    if (mox_id_set_count(&nodes) == 0) skip(); /* a kernel without memory nodes */
    unsigned char *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    int policy = -1;
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, NULL, 0ul, p, (unsigned long)FOR_ADDRESS), 0);
    assert_int_not_equal(policy, INTERLEAVE);
    /* Nodes that are not there are refused, and the memory stays as it was. */
    mox_id_set absent = {0};
    absent.words[MOX_MACHINE_IDS / MOX_ID_BITS - 1] = 1;
    assert_false(mox_numa_interleave_over(p, BYTES, &absent));
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, NULL, 0ul, p, (unsigned long)FOR_ADDRESS), 0);
    assert_int_not_equal(policy, INTERLEAVE);
    assert_true(mox_numa_interleave_over(p, BYTES, &nodes));
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, NULL, 0ul, p, (unsigned long)FOR_ADDRESS), 0);
    assert_int_equal(policy, INTERLEAVE);
    memset(p, 1, BYTES);
    assert_int_equal(munmap(p, BYTES), 0);
    /* Large memory is dealt out exactly when there are several nodes. */
    p = mox_alloc_pages(BYTES);
    assert_non_null(p);
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, NULL, 0ul, p, (unsigned long)FOR_ADDRESS), 0);
    if (mox_id_set_count(&nodes) == 1) assert_int_not_equal(policy, INTERLEAVE);
    mox_free_pages(p, BYTES);
}

/* ---- this machine ---- */

static int refuse_all(void *user, const char *path, const char *what)
{
    (void)user, (void)path, (void)what;
    return EIO;
}

static void this_machine_has_a_core(void **state)
{
    (void)state;
    int cpus[MOX_MACHINE_IDS], n;
    const int cores = mox_machine_cpus(cpus, MOX_MACHINE_IDS, &n);
    assert_in_range(cores, 1, n);
    assert_in_range(mox_machine_threads(), 1, cores);
    assert_true(mox_machine_memory("") > 0);
    mox_io_set_hook(refuse_all, NULL); /* a system without these files */
    assert_int_equal(mox_machine_cpus(cpus, MOX_MACHINE_IDS, &n), n);
    assert_int_equal(mox_machine_threads(), n);
    mox_io_set_hook(NULL, NULL);
}

static void a_mask_of_one_is_one_thread(void **state)
{
    (void)state;
    cpu_set_t before, one;
    int cpus[MOX_MACHINE_IDS], n;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    (void)mox_machine_cpus(cpus, MOX_MACHINE_IDS, &n);
    CPU_ZERO(&one);
    CPU_SET((size_t)cpus[n - 1], &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(mox_machine_threads(), 1);
    int only;
    assert_int_equal(mox_machine_cpus(&only, 1, &n), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_true(CPU_ISSET((size_t)only, &one));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(what_is_no_list_is_empty),
        cmocka_unit_test_setup_teardown(siblings_count_once, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(quotas_are_rounded_up, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(nodes_are_listed, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(memory_is_what_is_left, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(groups_leave_what_they_do_not_need, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(own_memory_is_counted, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(waits_for_memory_are_read, new_machine, remove_machine),
        cmocka_unit_test_setup_teardown(mapped_pages_are_counted, new_machine, remove_machine),
        cmocka_unit_test(pages_are_dealt_out),
        cmocka_unit_test(this_machine_has_a_core),
        cmocka_unit_test(a_mask_of_one_is_one_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
