/* test_fetch.c -- which lines are asked for, and that each is asked for once (ops/simd/fetch.h). */
#include "ops/simd/fetch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { LARGEST = 5 * FETCH_BLOCK, BEHIND = STRIPES * LINE, N_LINES = (LARGEST + BEHIND) / LINE };

/* Nothing is read there: only addresses are counted. */
static const uint8_t memory[LARGEST + BEHIND + FETCH_BLOCK];
static const uint8_t *const other = memory + LARGEST + BEHIND;

static int asked[N_LINES], asked_other[FETCH_BLOCK / LINE];

/* Counts the next line; whether it is one of the stretch, or just behind it. */
static bool ask(fetching *f)
{
    const int64_t at = (f->line - memory) / LINE, there = (f->line - other) / LINE;
    const bool own = at < N_LINES;
    assert_in_range(there, own ? -N_LINES : 0, own ? -1 : FETCH_BLOCK / LINE - 1);
    if (own) asked[at]++;
    else asked_other[there]++;
    fetch_line(f);
    return own;
}

static void check_stretch(int64_t begin, int64_t bytes, bool and_then)
{
    const uint8_t *at = memory + begin * LINE;
    const int64_t n = (bytes + LINE - 1) / LINE, n_other = FETCH_BLOCK / LINE;
    memset(asked, 0, sizeof asked);
    memset(asked_other, 0, sizeof asked_other);
    fetching f = fetch_behind(at, at + bytes, and_then ? other : NULL);
    int64_t n_asked = 0;
    if (n > 0)
        while (n_asked < n + STRIPES && ask(&f)) n_asked++;
    for (int64_t i = 0; i < N_LINES; i++)
        if (i >= begin && i < begin + n) assert_int_equal(asked[i], 1);
        else assert_true(asked[i] == 0 || (i >= begin + n && i < begin + n + STRIPES));
    if (and_then) { /* the first that is not of the stretch has been counted already */
        for (int64_t i = 0; i < N_LINES; i++) assert_true(asked[i] <= 1);
        for (int64_t i = n > 0 ? 1 : 0; i < n_other; i++) assert_false(ask(&f));
        for (int64_t i = 0; i < n_other; i++) assert_int_equal(asked_other[i], 1);
    }
    for (int i = 0; i < 2 * STRIPES; i++) fetch_line(&f); /* what is left of the last turn */
    for (int i = 0; i < 100; i++) {
        const uint8_t *last = f.line;
        fetch_line(&f);
        assert_ptr_equal(f.line, last); /* there is no more */
    }
}

static void each_line_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 64, 100, 512, 513, 5000, FETCH_BLOCK - 1, FETCH_BLOCK, FETCH_BLOCK + 1,
                                    FETCH_BLOCK + 4096, 2 * FETCH_BLOCK, 4 * FETCH_BLOCK + 777};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t begin = 0; begin < 3; begin++)
            for (int then = 0; then < 2; then++) check_stretch(begin, sizes[i], then);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_line_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
