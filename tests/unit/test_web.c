/* test_web.c -- the embedded web chat: it is whole, and asks for nothing that is not in it. */
#include "app/server/web/web.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_find(void **state)
{
    (void)state;
    const mox_web_file *page = mox_web_file_find("/");
    assert_non_null(page);
    assert_string_equal(page->type, "text/html; charset=utf-8");
    assert_memory_equal(page->bytes, "<!doctype html>", 15);
    assert_non_null(mox_web_file_find("/chat.js"));
    assert_null(mox_web_file_find("/index.html"));
    assert_null(mox_web_file_find("/policy.txt"));
    assert_null(mox_web_file_find("/../chat.js"));
    assert_null(mox_web_file_find(""));
}

static void test_bytes_are_those_of_the_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < mox_web_n_files; i++) {
        const mox_web_file *file = &mox_web_files[i];
        char path[512];
        snprintf(path, sizeof path, "%s/src/app/server/web%s", SOURCE_ROOT, strcmp(file->path, "/") ? file->path : "/index.html");
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        unsigned char *bytes = malloc(file->n_bytes + 1);
        assert_non_null(bytes);
        assert_int_equal(fread(bytes, 1, file->n_bytes + 1, f), file->n_bytes);
        assert_memory_equal(bytes, file->bytes, file->n_bytes);
        free(bytes);
        fclose(f);
    }
}

/* Every occurrence of `mark` in a file is followed by the path of another one, up to a quote. */
static size_t check_references(const mox_web_file *file, const char *mark, const char *prefix)
{
    size_t n = 0;
    const char *at = (const char *)file->bytes;
    const char *end = at + file->n_bytes;
    while ((at = memmem(at, (size_t)(end - at), mark, strlen(mark))) != NULL) {
        at += strlen(mark);
        char path[128];
        size_t length = strcspn(at, "\"'");
        assert_in_range(length, 1, sizeof path - 2);
        snprintf(path, sizeof path, "%s%.*s", prefix, (int)length, at);
        if (path[0] == '#') continue; /* a place on the page */
        if (!mox_web_file_find(path)) fail_msg("%s refers to %s, which is not embedded", file->path, path);
        n++;
    }
    return n;
}

static void test_references_are_embedded(void **state)
{
    (void)state;
    const mox_web_file *page = mox_web_file_find("/");
    assert_true(check_references(page, "href=\"", "") >= 3);
    assert_true(check_references(page, "src=\"", "") >= 3);
    size_t n_imports = 0;
    for (size_t i = 0; i < mox_web_n_files; i++) {
        if (strstr(mox_web_files[i].path, ".js")) n_imports += check_references(&mox_web_files[i], " from '.", "");
    }
    assert_true(n_imports >= 10);
}

static void test_policy(void **state)
{
    (void)state;
    assert_non_null(strstr(mox_web_policy, "default-src 'none'"));
    assert_non_null(strstr(mox_web_policy, "frame-ancestors 'none'"));
    assert_null(strstr(mox_web_policy, "unsafe"));
    for (const char *c = mox_web_policy; *c; c++) assert_true(isprint((unsigned char)*c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_bytes_are_those_of_the_files),
        cmocka_unit_test(test_references_are_embedded),
        cmocka_unit_test(test_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
