/* tests/unit/test_disk.c -- the probe of the disk finds what a made-up disk is best at, and
 * the program measures once and then remembers, whatever happens to its file. */
#include "app/cli/disk.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "tools/disk_probe.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    SIZE = 8 << 20,
    READ = 60000,
    TIMES = 3 /* that a speed is measured, for a machine may pause in a tenth of a second */
};
static const double read_s = 0.005;

static mox_file make_file(const char *path)
{
    mox_file file;
    mox_err err;
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(ftruncate(fileno(f), SIZE), 0);
    assert_int_equal(fclose(f), 0);
    if (mox_file_open(&file, path, &err) != MOX_OK) fail_msg("%s", err.msg);
    return file;
}

static void remove_file(mox_file *f)
{
    (void)unlink(f->path);
    mox_file_close(f);
}

/* A disk that takes its time for each read and serves any number of them at once; and reads
 * of it. */
static atomic_int n_reads;
static int slow(void *user, const char *path, const char *what)
{
    (void)user, (void)path;
    if (strcmp(what, "read") != 0) return 0;
    atomic_fetch_add(&n_reads, 1);
    (void)usleep((useconds_t)(read_s * 1e6));
    return 0;
}

static mox_status probe_file(const mox_file *f, int64_t read_bytes, mox_disk_speed *out, mox_err *err)
{
    mox_disk_probe *p;
    mox_status status = mox_disk_probe_create_files(&p, f, 1, &read_bytes, 1, 16 << 20, err);
    if (status == MOX_OK) status = mox_disk_probe_best(p, out, err);
    mox_disk_probe_destroy(&p);
    return status;
}

static void parallel_disk_wants_threads(void **state)
{
    (void)state;
    mox_file f = make_file("disk-probe.bin");
    mox_disk_speed s;
    mox_err err;
    bool found = false;
    for (int time = 0; time < TIMES && !found; time++) {
        mox_io_set_hook(slow, NULL);
        const double start = mox_clock_now();
        const mox_status status = probe_file(&f, READ, &s, &err);
        const double took = mox_clock_now() - start;
        mox_io_set_hook(NULL, NULL);
        if (status != MOX_OK) fail_msg("%s", err.msg);
        /* The hook sleeps in one thread with io_uring, and in as many as there are without. */
        assert_false(s.uring);
        assert_true(s.bytes_per_s < 16 * READ / read_s * 1.02);
        assert_true(took > 1.0 && took < 30.0);
        found = s.n_at_once == 16 && s.bytes_per_s > 16 * READ / read_s * 0.3;
    }
    assert_true(found);
    remove_file(&f);
}

static void says_whose_speed_it_is(void **state)
{
    (void)state;
    char shared[64]; /* by all tests that run at the time */
    (void)snprintf(shared, sizeof shared, "/dev/shm/moxie-disk-probe-%ld.bin", (long)getpid());
    mox_file f = make_file("disk-probe.bin"), shm = make_file(shared), direct, memory;
    mox_disk_speed s;
    mox_err err;
    const bool refused = mox_file_open_direct(&direct, &f, &err) != MOX_OK;
    mox_file_close(&direct);
    assert_int_equal(probe_file(&f, 100, &s, &err), MOX_OK);
    assert_true(s.direct == !refused && s.bytes_per_s > 0.0);
    assert_int_equal(probe_file(&shm, 100 * SIZE, &s, &err), MOX_OK); /* longer than the file: as long */
    assert_true(!s.direct && s.bytes_per_s > 0.0);
    assert_int_equal(mox_file_memory(&memory, "memory", 10000, &err), MOX_OK);
    assert_int_equal(probe_file(&memory, 100, &s, &err), MOX_E_UNSUPPORTED);
    mox_file_close(&memory);
    remove_file(&shm);
    remove_file(&f);
}

static int broken(void *user, const char *path, const char *what)
{
    (void)user, (void)path;
    return strcmp(what, "read") == 0 ? EIO : 0;
}

static void broken_disk_is_an_error(void **state)
{
    (void)state;
    mox_file f = make_file("disk-probe.bin");
    mox_disk_speed s;
    mox_err err;
    mox_io_set_hook(broken, NULL);
    assert_int_equal(probe_file(&f, READ, &s, &err), MOX_E_IO);
    mox_io_set_hook(NULL, NULL);
    assert_non_null(strstr(err.msg, "disk-probe.bin"));
    remove_file(&f);
}

/* One way alone, and jobs of several ranges, as experts are. */
static void a_single_way_is_measured(void **state)
{
    (void)state;
    mox_file f = make_file("disk-probe.bin");
    const int64_t sizes[] = {40000, 5000, 5000};
    mox_disk_probe *p;
    mox_err err;
    mox_disk_speed way = {.n_at_once = 4};
    assert_int_equal(mox_disk_probe_create_files(&p, &f, 1, sizes, 3, 8 << 20, &err), MOX_OK);
    /* three reads of 50000 bytes in all, four at a time */
    const double most = 4.0 / 3.0 * 50000.0 / read_s;
    bool found = false;
    for (int time = 0; time < TIMES && !found; time++) {
        mox_io_set_hook(slow, NULL);
        const mox_status status = mox_disk_probe_try(p, &way, 0.3, &err);
        mox_io_set_hook(NULL, NULL);
        if (status != MOX_OK) fail_msg("%s", err.msg);
        assert_true(way.bytes_per_s < most * 1.1);
        assert_true(way.n_at_once == 4 && way.piece_bytes == 1 << 20 && !way.uring);
        found = way.bytes_per_s > most * 0.3;
    }
    assert_true(found);
    mox_disk_probe_destroy(&p);
    remove_file(&f);
}

/* ---- the program's file ---- */

static int count_model_reads(void *user, const char *path, const char *what)
{
    (void)user;
    if (strcmp(what, "read") == 0 && strstr(path, ".safetensors")) atomic_fetch_add(&n_reads, 1);
    return 0;
}

static bool ask(const mox_model *m, mox_disk_speed *out, bool *measured)
{
    atomic_store(&n_reads, 0);
    mox_io_set_hook(count_model_reads, NULL);
    const bool known = mox_cli_disk_speed(m, SOURCE_ROOT "/models/demo", 1 << 20, out);
    mox_io_set_hook(NULL, NULL);
    *measured = atomic_load(&n_reads) > 0;
    return known;
}

static void overwrite(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void rename_size(const char *path, const char *from, const char *to)
{
    char text[4096] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    (void)fread(text, 1, sizeof text - 1, f);
    assert_int_equal(fclose(f), 0);
    char *at = strstr(text, from);
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    overwrite(path, text);
}

static void measured_once(void **state)
{
    (void)state;
    char dir[] = "disk-XXXXXX", cache[4096], path[4200];
    mox_model *m;
    mox_err err;
    bool measured;
    assert_non_null(mkdtemp(dir));
    assert_non_null(getcwd(cache, sizeof cache - 32));
    (void)snprintf(cache + strlen(cache), 32, "/%s/new", dir);
    (void)snprintf(path, sizeof path, "%s/moxie/disk.json", cache);
    assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    if (mox_model_open(&m, SOURCE_ROOT "/models/demo", NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    mox_disk_speed first, again, other;
    assert_true(ask(m, &first, &measured) && measured);
    assert_true(ask(m, &again, &measured) && !measured);
    assert_true(again.direct == first.direct && again.uring == first.uring && again.n_at_once == first.n_at_once);
    assert_true(again.piece_bytes == first.piece_bytes && again.bytes_per_s > first.bytes_per_s - 1 &&
                again.bytes_per_s < first.bytes_per_s + 1);
    /* experts of another size are measured on their own, and both are kept */
    rename_size(path, "\"read_bytes\": 110592", "\"read_bytes\": 210592");
    assert_true(ask(m, &other, &measured) && measured);
    assert_true(ask(m, &again, &measured) && !measured);
    rename_size(path, "\"read_bytes\": 110592", "\"read_bytes\": 310592");
    rename_size(path, "\"read_bytes\": 210592", "\"read_bytes\": 110592");
    assert_true(ask(m, &again, &measured) && !measured && again.bytes_per_s > first.bytes_per_s - 1 &&
                again.bytes_per_s < first.bytes_per_s + 1);
    /* damaged: measured again, and the file is whole again */
    overwrite(path, "[\n{\"device\": 1, \"read_bytes\": 50000, \"direct\"");
    assert_true(ask(m, &again, &measured) && measured);
    assert_true(ask(m, &again, &measured) && !measured);
    /* no place for a file: measured every time */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", SOURCE_ROOT "/meson.build/none", 1), 0);
    assert_true(ask(m, &again, &measured) && measured);
    mox_model_close(&m);
    (void)snprintf(path, sizeof path, "%s/moxie", cache);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(cache), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parallel_disk_wants_threads),
        cmocka_unit_test(says_whose_speed_it_is),
        cmocka_unit_test(broken_disk_is_an_error),
        cmocka_unit_test(a_single_way_is_measured),
        cmocka_unit_test(measured_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
