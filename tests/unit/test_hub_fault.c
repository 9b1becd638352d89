/* tests/unit/test_hub_fault.c -- looking into the Hugging Face cache while memory runs
 * out: every allocation fails once.  What is found is right, or nothing is: running out of
 * memory never makes it another model.  Leaks are found by the sanitizer build. */
#undef main /* the program's own is called program_main */
#include "app/cli/hub.h"
#include "base/file.h"
#include "fail_nth.h"
#include "moxie/tools.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MANY = 10000 };

static char root[] = "/tmp/moxie-hub-fault-XXXXXX";

static const char *below(const char *path)
{
    static char whole[512];
    (void)snprintf(whole, sizeof whole, "%s/%s", root, path);
    return whole;
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(below(path), "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

#define REPOSITORY "models--org--name"

static const char *const folders[] = {REPOSITORY,
                                      REPOSITORY "/refs",
                                      REPOSITORY "/blobs",
                                      REPOSITORY "/snapshots",
                                      REPOSITORY "/snapshots/aaaa",
                                      REPOSITORY "/snapshots/bbbb",
                                      "models--org--other"};
static const char *const files[][2] = {
    {REPOSITORY "/refs/main", "bbbb"},
    {REPOSITORY "/blobs/x.incomplete", ""},
    {REPOSITORY "/snapshots/bbbb/config.json", "{\"model_type\": \"qwen3\"}"},
    {REPOSITORY "/snapshots/bbbb/model.safetensors.index.json",
     "{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}"},
    {REPOSITORY "/snapshots/bbbb/1.safetensors", ""},
};

static int make_cache(void **state)
{
    (void)state;
    if (!mkdtemp(root)) return -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (mkdir(below(folders[i]), 0700) != 0) return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) write_file(files[i][0], files[i][1]);
    json_set_alloc_funcs(json_alloc, mox_free);
    return 0;
}

static int remove_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) (void)unlink(below(files[i][0]));
    for (size_t i = sizeof folders / sizeof *folders; i-- > 0;) (void)rmdir(below(folders[i]));
    return rmdir(root);
}

/* Calls the action with every allocation failing in turn, until none is left to fail. */
static void sweep(mox_status (*action)(mox_err *err), mox_status expected)
{
    for (long at = 1; at < MANY; at++) {
        nth n = {.at = at};
        mox_err err = {0};
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = action(&err);
        mox_alloc_set_hook(NULL, NULL);
        if (n.count < at) {
            assert_int_equal(status, expected);
            assert_true(at > 3);
            return;
        }
        /* the JSON library calls a failed allocation a syntax error */
        assert_true(status == MOX_E_MEMORY || status == expected || status == MOX_E_FORMAT);
        assert_true(status == MOX_OK || err.msg[0] != '\0');
    }
    fail();
}

static mox_status find(const char *reference, const char *commit, mox_err *err)
{
    const mox_hub_env env = {.hf_hub_cache = root};
    char *folder = NULL;
    const mox_status status = mox_hub_find(&env, reference, &folder, err);
    assert_true((folder != NULL) == (status == MOX_OK));
    if (folder) assert_string_equal(strrchr(folder, '/') + 1, commit);
    mox_free(folder);
    return status;
}

static mox_status find_main(mox_err *err) { return find("org/name", "bbbb", err); }
static mox_status find_prefix(mox_err *err) { return find("org/name@a", "aaaa", err); }
static mox_status find_empty(mox_err *err) { return find("org/other", NULL, err); }
static mox_status find_unknown(mox_err *err) { return find("org/nane", NULL, err); }
static mox_status find_half(mox_err *err) { return find("nane", NULL, err); }

static mox_status scan(mox_err *err)
{
    mox_hub_list l;
    const mox_status status = mox_hub_scan(root, &l, err);
    assert_int_equal(l.n, status == MOX_OK ? 3 : 0);
    if (status == MOX_OK) {
        assert_string_equal(l.entries[0].reference, "org/name");
        assert_string_equal(l.entries[0].commit, "bbbb");
        assert_string_equal(l.entries[1].reference, "org/name@aaaa");
        assert_non_null(l.entries[2].problem);
    }
    mox_hub_list_free(&l);
    return status;
}

static mox_status glance(mox_err *err)
{
    mox_glance g;
    char folder[512];
    (void)snprintf(folder, sizeof folder, "%s", below(REPOSITORY "/snapshots/bbbb"));
    const mox_status status = mox_model_glance(folder, &g, err);
    if (status == MOX_E_NOT_FOUND) {
        assert_string_equal(g.family, "qwen3");
        assert_non_null(strstr(err->msg, "1 of 2 weight files are missing: 2.safetensors"));
    }
    return status;
}

static void test_finding(void **state)
{
    (void)state;
    sweep(find_main, MOX_OK);
    sweep(find_prefix, MOX_OK);
    sweep(find_empty, MOX_E_NOT_FOUND);
    sweep(find_unknown, MOX_E_NOT_FOUND);
    sweep(find_half, MOX_E_NOT_FOUND);
}

static void test_listing(void **state)
{
    (void)state;
    sweep(scan, MOX_OK);
    sweep(glance, MOX_E_NOT_FOUND);
}

static void test_unfinished(void **state)
{
    (void)state;
    char folder[512];
    (void)snprintf(folder, sizeof folder, "%s", below(REPOSITORY "/snapshots/bbbb"));
    for (long at = 1; at < 100; at++) {
        nth n = {.at = at};
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_hub_rest rest = mox_hub_unfinished(folder);
        mox_alloc_set_hook(NULL, NULL);
        assert_int_equal(rest.n_dangling, 0);
        if (n.count < at) {
            assert_int_equal(rest.n_partial, 1);
            return;
        }
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_finding), cmocka_unit_test(test_listing),
                                       cmocka_unit_test(test_unfinished)};
    return cmocka_run_group_tests(tests, make_cache, remove_cache);
}
