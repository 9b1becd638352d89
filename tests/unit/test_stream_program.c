/* tests/unit/test_stream_program.c -- the program with streamed experts on a disk that breaks:
 * one sentence that names the file, exit code 3 while the model is opened and 5 once it runs,
 * and the next run is unharmed. */
#include "base/file.h"
#include "program.h"

#include <errno.h>
#include <stdatomic.h>

#define RUN "run", "-m", SOURCE_ROOT "/models/demo", "--raw", "-p", "Once there was", "-n", "12", "--temp", "0", "-q"
static const char *const mapped[] = {RUN, NULL};
static const char *const streamed[] = {RUN, "--expert-slots", "9", "--readers", "8", NULL}; /* without a probe of the disk */

typedef struct disk {
    atomic_int count;
    int fail_from; /* 0: never */
} disk;

static int on_io(void *user, const char *path, const char *what)
{
    disk *d = user;
    const size_t n = strlen(path);
    if (strcmp(what, "read") != 0 || n < 12 || strcmp(path + n - 12, ".safetensors") != 0) return 0;
    const int count = atomic_fetch_add(&d->count, 1) + 1;
    return d->fail_from && count >= d->fail_from ? EIO : 0;
}

static void a_broken_disk_is_told(void **state)
{
    (void)state;
    const outcome want = moxie(mapped);
    assert_int_equal(want.code, 0);
    disk whole = {0};
    mox_io_set_hook(on_io, &whole);
    const outcome all = moxie(streamed);
    assert_int_equal(all.code, 0);
    assert_string_equal(all.out, want.out);
    const int total = atomic_load(&whole.count);
    int n_running = 0, n_begun = 0; /* failures after opening, and after the reply had begun */
    for (int at = 1; at <= total; at += 1 + total / 15) {
        disk d = {.fail_from = at};
        mox_io_set_hook(on_io, &d);
        const outcome o = moxie(streamed);
        mox_io_set_hook(NULL, NULL);
        assert_true(o.code == 5 || (o.code == 3 && n_running == 0));
        assert_non_null(strstr(o.err, "models/demo/model.safetensors"));
        assert_ptr_equal(strchr(o.err, '\n'), o.err + strlen(o.err) - 1); /* one line */
        n_running += o.code == 5;
        n_begun += o.out[0] != '\0';
    }
    assert_true(n_begun > 0 && n_running > 10);
    mox_io_set_hook(NULL, NULL);
    const outcome again = moxie(streamed);
    assert_int_equal(again.code, 0);
    assert_string_equal(again.out, want.out);
}

#undef main
int main(void)
{
    if (setenv("XDG_CACHE_HOME", "", 1) != 0 || setenv("HOME", "", 1) != 0) return 1; /* nothing is kept between runs */
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_broken_disk_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
