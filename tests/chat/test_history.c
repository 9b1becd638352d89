/* The history file: what others add while it is read, or shortened, stays. */
#include "app/cli/history.h"
#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/moxie-history-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/history", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

typedef struct last_entry {
    int n;
    char text[64];
} last_entry;

static void note(void *user, const char *text, size_t n)
{
    last_entry *last = user;
    last->n++;
    (void)snprintf(last->text, sizeof last->text, "%.*s", (int)n, text);
}

/* What another chat adds when this one has found out how long the file is. */
static int add_meanwhile(void *user, const char *file, const char *what)
{
    int *times = user;
    if (strcmp(file, path) == 0 && strcmp(what, "read") == 0 && (*times)++ == 0)
        mox_cli_history_add(path, "from another chat", strlen("from another chat"));
    return 0;
}

static void what_is_added_while_it_is_read_stays(void **state)
{
    (void)state;
    last_entry last = {0};
    int times = 0;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 3 * MOX_CLI_HISTORY_ENTRIES; i++) fprintf(f, "entry %d\n", i);
    assert_int_equal(fclose(f), 0);
    mox_io_set_hook(add_meanwhile, &times);
    mox_cli_history_load(path, note, &last);
    mox_io_set_hook(NULL, NULL);
    assert_int_equal(last.n, MOX_CLI_HISTORY_ENTRIES);
    assert_string_equal(last.text, "entry 2999");
    last = (last_entry){0};
    mox_cli_history_load(path, note, &last);
    assert_int_equal(last.n, MOX_CLI_HISTORY_ENTRIES);
    assert_string_equal(last.text, "from another chat");
}

static void what_follows_a_line_that_was_cut_off_is_whole(void **state)
{
    (void)state;
    last_entry last = {0};
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("one\ncut o", f) >= 0 && fclose(f) == 0);
    mox_cli_history_add(path, "two", 3);
    mox_cli_history_add(path, "three\nlines", 11);
    mox_cli_history_load(path, note, &last);
    assert_int_equal(last.n, 4); /* what is left of the cut one is one of its own */
    assert_string_equal(last.text, "three\nlines");
    assert_int_equal(unlink(path), 0);
    mox_cli_history_add(path, "first", 5);
    last = (last_entry){0};
    mox_cli_history_load(path, note, &last);
    assert_int_equal(last.n, 1);
    assert_string_equal(last.text, "first");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_added_while_it_is_read_stays),
        cmocka_unit_test(what_follows_a_line_that_was_cut_off_is_whole),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
