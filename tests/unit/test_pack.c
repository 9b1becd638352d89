/* tests/unit/test_pack.c -- packing that is interrupted, and packing and verifying when
 * memory, disks and files fail.
 *
 * The yardstick is a folder that was packed in one go: whatever happened before, running
 * again must give exactly that. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"
#include "fail_nth.h"
#include "moxie/tools.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char source[] = SOURCE_ROOT "/tests/data/models/demo-qwen3-moe";
static char scratch[64], whole[96], out[96];

/* ---- folders ---- */

static void empty_folder(const char *dir)
{
    mox_folder files;
    if (mox_folder_list(&files, dir, NULL) != MOX_OK) return;
    for (size_t i = 0; i < files.n; i++) {
        char *path = mox_path_join(dir, files.names[i]);
        unlink(path);
        mox_free(path);
    }
    mox_folder_deinit(&files);
}

static void remove_folder(const char *dir)
{
    empty_folder(dir);
    rmdir(dir);
}

static void assert_same_file(const char *name)
{
    char *a = mox_path_join(whole, name), *b = mox_path_join(out, name), *x, *y;
    size_t n, m;
    assert_int_equal(mox_file_slurp(a, 1 << 30, &x, &n, NULL), MOX_OK);
    assert_int_equal(mox_file_slurp(b, 1 << 30, &y, &m, NULL), MOX_OK);
    assert_int_equal(n, m);
    if (memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
    mox_free(x);
    mox_free(y);
    mox_free(a);
    mox_free(b);
}

static void assert_same_as_whole(void)
{
    mox_folder a, b;
    assert_int_equal(mox_folder_list(&a, whole, NULL), MOX_OK);
    assert_int_equal(mox_folder_list(&b, out, NULL), MOX_OK);
    assert_int_equal(a.n, b.n);
    assert_true(a.n > 8);
    for (size_t i = 0; i < a.n; i++) {
        assert_string_equal(a.names[i], b.names[i]);
        assert_same_file(a.names[i]);
    }
    mox_folder_deinit(&a);
    mox_folder_deinit(&b);
}

static int setup(void **state)
{
    (void)state;
    mox_err err;
    strcpy(scratch, "/tmp/moxie-pack-XXXXXX");
    if (!mkdtemp(scratch)) return -1;
    snprintf(whole, sizeof whole, "%s/whole", scratch);
    snprintf(out, sizeof out, "%s/out", scratch);
    if (mox_pack(source, whole, NULL, NULL, &err) == MOX_OK) return 0;
    fprintf(stderr, "%s\n", err.msg);
    return -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_folder(out);
    remove_folder(whole);
    return rmdir(scratch);
}

/* ---- ended at any moment ---- */

static long n_writes, end_at;

static int end_at_write(void *user, const char *path, const char *what)
{
    (void)user, (void)path;
    if (strcmp(what, "write") == 0 && ++n_writes == end_at) raise(SIGKILL);
    return 0;
}

/* Whether the child was killed, and not done before. */
static bool packs_until(long at)
{
    const pid_t child = fork();
    if (child == 0) {
        end_at = at;
        mox_io_set_hook(end_at_write, NULL);
        _exit(mox_pack(source, out, NULL, NULL, NULL) == MOX_OK ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) return true;
    assert_int_equal(WEXITSTATUS(status), 0);
    return false;
}

static void test_killed_at_any_write(void **state)
{
    (void)state;
    int n_kept_most = 0;
    long at = 1;
    for (bool killed = true; killed; at += 5) { /* files take 7 writes or more, so all moments of some come up */
        remove_folder(out);
        killed = packs_until(at);
        mox_pack_report report;
        mox_err err;
        if (mox_pack(source, out, NULL, &report, &err) != MOX_OK) fail_msg("killed at write %ld: %s", at, err.msg);
        assert_int_equal(report.was_complete, !killed);
        if (killed && report.n_kept > n_kept_most) n_kept_most = report.n_kept;
        assert_same_as_whole();
    }
    assert_true(at > 30);         /* there were that many moments */
    assert_true(n_kept_most > 8); /* and late ones did not begin anew */
}

static void test_killed_again_and_again(void **state)
{
    (void)state;
    remove_folder(out);
    long at = 8;
    while (packs_until(at)) at += 8; /* late runs go on where earlier ones were ended */
    assert_true(at > 32);
    assert_same_as_whole();
}

/* ---- what is complete stays as it is ---- */

static void test_kept_files_are_not_written(void **state)
{
    (void)state;
    remove_folder(out);
    assert_int_equal(mox_pack(source, out, NULL, NULL, NULL), MOX_OK);
    char *kept = mox_path_join(out, "model-experts-00001.safetensors"),
         *gone = mox_path_join(out, "model-experts-00003.safetensors"),
         *cut = mox_path_join(out, "model-experts-00004.safetensors");
    struct stat before, after;
    stat(kept, &before);
    unlink(gone);
    assert_int_equal(truncate(cut, 5000), 0);
    mox_pack_report report;
    assert_int_equal(mox_pack(source, out, NULL, &report, NULL), MOX_OK);
    assert_false(report.was_complete);
    assert_int_equal(report.n_kept, report.n_files - 2);
    stat(kept, &after);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_same_as_whole();
    mox_free(kept);
    mox_free(gone);
    mox_free(cut);
}

static void test_a_cancelled_run(void **state)
{
    (void)state;
    remove_folder(out);
    mox_cancel cancel = {.raised = 1};
    mox_err err;
    assert_int_equal(mox_pack(source, out, &(mox_pack_opts){.cancel = &cancel}, NULL, &err), MOX_E_CANCELLED);
    assert_int_equal(mox_pack(source, out, NULL, NULL, NULL), MOX_OK);
    assert_same_as_whole();
}

/* ---- failing calls ---- */

typedef struct write_failure {
    long at, count;
    int with;
} write_failure;

static int fail_nth_write(void *user, const char *path, const char *what)
{
    (void)path;
    write_failure *f = user;
    return strcmp(what, "write") == 0 && ++f->count == f->at ? f->with : 0;
}

/* A disk that is full or read-only from some moment on. */
static void test_failing_writes(void **state)
{
    (void)state;
    static const struct {
        int error;
        const char *word;
    } cases[] = {{ENOSPC, "No space"}, {EROFS, "Read-only"}};
    for (size_t i = 0; i < 2; i++) {
        for (long at = 1;; at += 17) {
            remove_folder(out);
            mox_err err = {0};
            write_failure f = {.at = at, .with = cases[i].error};
            mox_io_set_hook(fail_nth_write, &f);
            const mox_status status = mox_pack(source, out, NULL, NULL, &err);
            mox_io_set_hook(NULL, NULL);
            if (f.count < at) break;
            assert_int_equal(status, MOX_E_IO);
            assert_non_null(strstr(err.msg, cases[i].word));
            assert_non_null(strstr(err.msg, out));
            assert_int_equal(mox_pack(source, out, NULL, NULL, &err), MOX_OK);
            assert_same_as_whole();
        }
    }
}

static bool json_was_refused;
static void *counted_json_alloc(size_t bytes)
{
    void *p = json_alloc(bytes);
    if (!p) json_was_refused = true;
    return p;
}

/* Fails calls in turn, `step` apart: a clean error or success, and the next run mends it. */
static void sweep(bool io, long step, mox_status expected)
{
    long n_failed = 0;
    for (long at = 1;; at += step) {
        remove_folder(out);
        nth n = {.at = at};
        mox_err err = {0};
        json_was_refused = false;
        if (io) mox_io_set_hook(fail_nth_io, &n);
        else mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = mox_pack(source, out, NULL, NULL, &err);
        mox_io_set_hook(NULL, NULL);
        mox_alloc_set_hook(NULL, NULL);
        if (n.count < at) break;
        n_failed++;
        if (status == MOX_OK) continue;
        if (status != expected && !(json_was_refused && status == MOX_E_FORMAT))
            fail_msg("failing call %ld gave %d: %s", at, (int)status, err.msg);
        assert_true(err.msg[0]);
        assert_int_equal(mox_pack(source, out, NULL, NULL, &err), MOX_OK);
        assert_same_as_whole();
    }
    assert_true(n_failed > 20);
}

static void test_failing_files(void **state)
{
    (void)state;
    sweep(true, 23, MOX_E_IO);
}

static void test_failing_memory(void **state)
{
    (void)state;
    sweep(false, 499, MOX_E_MEMORY);
}

/* ---- verify ---- */

typedef struct findings {
    int n_problems, n_named;
} findings;

typedef struct read_failure {
    long at, count;
    bool ours; /* it was a file of the model that failed, not one of the system */
} read_failure;

static int fail_nth_read(void *user, const char *path, const char *what)
{
    (void)what;
    read_failure *f = user;
    if (++f->count != f->at) return 0;
    f->ours = strstr(path, whole) != NULL;
    return EIO;
}

static void count_finding(void *user, const mox_finding *f)
{
    findings *c = user;
    c->n_problems += !f->warning;
    c->n_named += f->file && strstr(f->file, ".safetensors") && strstr(f->what, "Input/output error") &&
                  strstr(f->what, "again");
}

static void test_verify_with_failing_files(void **state)
{
    (void)state;
    long n_named = 0, n_failed = 0;
    for (long at = 1;; at++) {
        read_failure n = {.at = at};
        findings c = {0};
        mox_verify_report report;
        mox_err err;
        mox_io_set_hook(fail_nth_read, &n);
        const mox_status status =
            mox_verify(whole, &(mox_verify_opts){.found = count_finding, .found_user = &c}, &report, &err);
        mox_io_set_hook(NULL, NULL);
        assert_int_equal(report.n_problems, c.n_problems);
        if (n.count < at) {
            assert_int_equal(c.n_problems, 0);
            break;
        }
        n_failed++;
        n_named += c.n_named;
        assert_int_equal(status, MOX_OK);
        assert_int_equal(c.n_problems > 0, n.ours);
    }
    assert_true(n_failed > 30 && n_named >= 14); /* opening and reading of seven files */
}

static void test_verify_with_failing_memory(void **state)
{
    (void)state;
    long n_failed = 0;
    for (long at = 1;; at += 397) {
        nth n = {.at = at};
        mox_verify_report report;
        mox_err err = {0};
        json_was_refused = false;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = mox_verify(whole, NULL, &report, &err);
        mox_alloc_set_hook(NULL, NULL);
        if (n.count < at) break;
        n_failed++;
        if (status == MOX_OK) assert_true(report.n_problems == 0 || json_was_refused);
        else assert_int_equal(status, MOX_E_MEMORY);
    }
    assert_true(n_failed > 20);
}

int main(void)
{
    json_set_alloc_funcs(counted_json_alloc, free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_any_write),  cmocka_unit_test(test_killed_again_and_again),
        cmocka_unit_test(test_kept_files_are_not_written), cmocka_unit_test(test_a_cancelled_run),
        cmocka_unit_test(test_failing_writes),         cmocka_unit_test(test_failing_files),
        cmocka_unit_test(test_failing_memory),         cmocka_unit_test(test_verify_with_failing_files),
        cmocka_unit_test(test_verify_with_failing_memory),
    };
    return cmocka_run_group_tests_name("pack", tests, setup, teardown);
}
