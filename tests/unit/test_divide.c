/* tests/unit/test_divide.c -- dividing layers between devices, against trying every way. */
#include "base/rng.h"
#include "runtime/divide.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { LAYERS = 9, DEVICES = 4 };

/* Bytes of layers, what lies beside the first and the last, what every device needs, and how much each has. */
typedef struct load_list {
    const int64_t *layers, *room;
    int32_t n_layers;
    int64_t with_first, with_last, each;
    int64_t most; /* that a device can have at all; 0: any */
} load_list;

static double share_of(const void *user, int device, int32_t first, int32_t end)
{
    const load_list *l = user;
    double bytes = (double)l->each + (first == 0 ? (double)l->with_first : 0) + (end == l->n_layers ? (double)l->with_last : 0);
    for (int32_t k = first; k < end; k++) bytes += (double)l->layers[k];
    return l->most > 0 && bytes > (double)l->most ? INFINITY : bytes / (double)l->room[device];
}

/* The share of the fullest device. */
static double fullest(const load_list *l, int n, const int32_t *ends)
{
    double most = 0;
    for (int i = 0; i < n; i++) {
        const int32_t first = i > 0 ? ends[i - 1] : 0;
        assert_true(ends[i] > first);
        most = fmax(most, share_of(l, i, first, ends[i]));
    }
    assert_int_equal(ends[n - 1], l->n_layers);
    return most;
}

/* The best that any division of the layers from `device` on can do. */
static double best(const load_list *l, int n, int device, int32_t *ends)
{
    const int32_t first = device > 0 ? ends[device - 1] : 0;
    if (device == n - 1 || device == DEVICES - 1) {
        ends[device] = l->n_layers;
        return fullest(l, n, ends);
    }
    double least = INFINITY;
    for (int32_t end = first + 1; end <= l->n_layers - (n - 1 - device); end++) {
        ends[device] = end;
        least = fmin(least, best(l, n, device + 1, ends));
    }
    return least;
}

static double divide(const load_list *l, int n, int32_t *ends)
{
    double share;
    assert_int_equal(mox_divide(l->n_layers, n, share_of, l, ends, &share, NULL), MOX_OK);
    return share;
}

/* Every other time there are layers that a device cannot have, and sometimes no way at all. */
static void test_all_ways(void **state)
{
    (void)state;
    mox_rng rng;
    int n_without = 0;
    mox_rng_init(&rng, 7);
    for (int i = 0; i < 3000; i++) {
        int64_t layers[LAYERS], room[DEVICES];
        int32_t ends[DEVICES], tried[DEVICES];
        const int n = 1 + (int)(mox_rng_unit(&rng) * DEVICES);
        const int32_t n_layers = n + (int32_t)(mox_rng_unit(&rng) * (LAYERS - n + 1));
        for (int k = 0; k < n_layers; k++) layers[k] = (int64_t)(mox_rng_unit(&rng) * 1000);
        for (int k = 0; k < n; k++) room[k] = 1 + (int64_t)(mox_rng_unit(&rng) * 4000);
        const load_list load = {.layers = layers, .room = room, .n_layers = n_layers, .with_first = (int64_t)(mox_rng_unit(&rng) * 2000),
                               .with_last = (int64_t)(mox_rng_unit(&rng) * 2000), .each = (int64_t)(mox_rng_unit(&rng) * 100),
                               .most = i % 2 * 3000};
        const double share = divide(&load, n, ends);
        assert_true(share == best(&load, n, 0, tried));
        if (share < INFINITY) assert_true(share == fullest(&load, n, ends));
        n_without += share == INFINITY;
    }
    assert_true(n_without > 100 && n_without < 1400);
}

static void test_equal_devices(void **state)
{
    (void)state;
    const int64_t layers[] = {10, 10, 10, 10, 10, 10}, room[] = {1000, 1000, 1000};
    int32_t ends[3];
    assert_true(divide(&(load_list){.layers = layers, .room = room, .n_layers = 6}, 3, ends) == 20.0 / 1000);
    assert_true(ends[0] == 2 && ends[1] == 4 && ends[2] == 6);
    /* a device that is full has one layer all the same */
    const int64_t uneven[] = {1000, 1, 1000};
    assert_true(divide(&(load_list){.layers = layers, .room = uneven, .n_layers = 6, .with_last = 20}, 3, ends) == 10);
    assert_int_equal(ends[1], ends[0] + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_ways), cmocka_unit_test(test_equal_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
