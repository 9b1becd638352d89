/* tests/unit/test_emu_tiles.c -- tiles and copies on the emulated GPU: do they mean what the
 * language says, and is it noticed when a kernel breaks its rules?
 *
 * Wrong kernels have their twins in the same source: fault = 0. */
#define MOX_GPU_EMU 1
#include "dev/emu/emu.h"

#include "base/rng.h"
#include "dev/gpu/gpu.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE = 16, WIDTH = 64, ROWS = 32, ALL = ROWS * WIDTH };

static mox_emu *device;
static mox_err err;
static mox_rng rng;

static int open_device(void **state)
{
    (void)state;
    mox_rng_init(&rng, 5);
    return mox_emu_create(&device, 8 << 20, &err) == MOX_OK ? 0 : 1;
}
static int close_device(void **state)
{
    (void)state;
    mox_emu_destroy(&device);
    return 0;
}

static void *on_device(const void *from, int64_t bytes)
{
    void *p;
    assert_int_equal(mox_emu_alloc(device, bytes, &p, &err), MOX_OK);
    if (from) assert_int_equal(mox_emu_upload(device, p, from, bytes, &err), MOX_OK);
    return p;
}

/* One launch of one group per order of threads; each must end with this fault. */
static void expect(const mox_emu_kernel *kernel, const void *params, mox_emu_fault fault)
{
    for (int order = 0; order < 3; order++) {
        mox_emu_set_order(device, (mox_emu_order)order, 7);
        const mox_status status = mox_emu_launch(device, kernel, (const int64_t[3]){1, 1, 1}, params, &err);
        if (mox_emu_last_fault(device) != fault) print_error("%s: %s\n", kernel->name, status == MOX_OK ? "it passed" : err.msg);
        assert_int_equal(mox_emu_last_fault(device), fault);
    }
}

/* ---- products ---- */

enum { NO_FAULT = 0, NO_BARRIER, LANE_MISSING, LAYOUT_BY_HEART, ADDRESS_BY_HEART };
typedef struct mox_gpu_product {
    const GPU_GLOBAL(u16) *a; /* [ROWS, WIDTH] */
    const GPU_GLOBAL(u16) *b;
    GPU_GLOBAL(f32) *y; /* [16, 16] */
    GPU_GLOBAL(f32) *sum;
    GPU_GLOBAL(f32) *max;
    int64_t row, col, across, fault;
} mox_gpu_product;

/* y = A B + A B, rows of y summed and their largest; a second product with y rounded. */
GPU_KERNEL(product, 32)
{
    GPU_SHARED_ARRAY(u16, a, ALL);
    GPU_SHARED_ARRAY(u16, b, ALL);
    const int32_t lane = gpu_thread(), row = (int32_t)p->row, col = (int32_t)p->col;
    for (int32_t i = lane; i < ALL; i += GPU_LANES) {
        const int32_t at = p->fault == ADDRESS_BY_HEART ? i : gpu_tile_at(i / WIDTH, i % WIDTH, WIDTH);
        gpu_store(a, at, gpu_load(p->a, i));
        gpu_store(b, at, gpu_load(p->b, i));
    }
    if (p->fault != NO_BARRIER) gpu_barrier();
    gpu_tile_c c = gpu_tile_zero();
    const gpu_tile_a ta = gpu_tile_load_a(a, row, col, WIDTH, lane);
    const gpu_tile_b tb = p->across ? gpu_tile_load_b_across(b, row, col, WIDTH, lane) : gpu_tile_load_b(b, row, col, WIDTH, lane);
    if (p->fault != LANE_MISSING || lane != 9) gpu_tile_mma(&c, ta, tb);
    gpu_tile_mma(&c, ta, tb);
    GPU_UNROLL
    for (int32_t i = 0; i < 8; i++) {
        const int32_t r = p->fault == LAYOUT_BY_HEART ? (lane >> 2) + (i & 2) * 4 : gpu_tile_row(lane, i);
        const int32_t k = p->fault == LAYOUT_BY_HEART ? (lane & 3) * 2 + (i & 1) + (i & 4) * 2 : gpu_tile_col(lane, i);
        gpu_store(p->y, r * SIDE + k, gpu_tile_get(c, i));
    }
    const gpu_tile_a rounded = gpu_tile_a_of(c);
    gpu_tile_c again = gpu_tile_zero();
    gpu_tile_mma(&again, rounded, tb);
    GPU_UNROLL
    for (int32_t h = 0; h < 2; h++) {
        float sum = 0.0f, max = -GPU_INFINITY;
        GPU_UNROLL
        for (int32_t i = 0; i < 4; i++) {
            const int32_t e = (i & 1) | h * 2 | (i & 2) * 2;
            sum += gpu_tile_get(again, e);
            max = gpu_max(max, gpu_tile_get(again, e));
        }
        sum = gpu_tile_row_sum(sum, lane);
        max = gpu_tile_row_max(max, lane);
        if (gpu_tile_col(lane, 2 * h) == 0) {
            gpu_store(p->sum, gpu_tile_row(lane, 2 * h), sum);
            gpu_store(p->max, gpu_tile_row(lane, 2 * h), max);
        }
    }
}

typedef struct products {
    double y[SIDE][SIDE], sum[SIDE], max[SIDE];
} products;

static products want_of(const uint16_t *a, const uint16_t *b, int64_t row, int64_t col, bool across)
{
    products w = {.sum = {0}};
    double tb[SIDE][SIDE];
    for (int k = 0; k < SIDE; k++)
        for (int j = 0; j < SIDE; j++)
            tb[k][j] = (double)mox_f16_to_f32(b[(row + (across ? k : j)) * WIDTH + col + (across ? j : k)]);
    for (int i = 0; i < SIDE * SIDE; i++)
        for (int k = 0; k < SIDE; k++)
            w.y[i / SIDE][i % SIDE] += 2 * (double)mox_f16_to_f32(a[(row + i / SIDE) * WIDTH + col + k]) * tb[k][i % SIDE];
    for (int r = 0; r < SIDE; r++) {
        w.max[r] = -1e30;
        for (int j = 0; j < SIDE; j++) {
            double v = 0;
            for (int k = 0; k < SIDE; k++) v += (double)mox_f16_to_f32(mox_f32_to_f16((float)w.y[r][k])) * tb[k][j];
            w.sum[r] += v;
            w.max[r] = fmax(w.max[r], v);
        }
    }
    return w;
}

static bool product_right(mox_gpu_product p, const uint16_t *a, const uint16_t *b)
{
    float y[SIDE * SIDE], sum[SIDE], max[SIDE];
    const products w = want_of(a, b, p.row, p.col, p.across != 0);
    p.y = on_device(NULL, sizeof y);
    p.sum = on_device(NULL, sizeof sum);
    p.max = on_device(NULL, sizeof max);
    expect(&mox_emu_kernel_product, &p, MOX_EMU_FINE);
    assert_int_equal(mox_emu_download(device, y, p.y, sizeof y, &err), MOX_OK);
    assert_int_equal(mox_emu_download(device, sum, p.sum, sizeof sum, &err), MOX_OK);
    assert_int_equal(mox_emu_download(device, max, p.max, sizeof max, &err), MOX_OK);
    bool right = true;
    for (int i = 0; i < SIDE * SIDE; i++) right = right && fabs((double)y[i] - w.y[i / SIDE][i % SIDE]) <= 1e-6;
    for (int i = 0; i < SIDE; i++) right = right && fabs((double)sum[i] - w.sum[i]) <= 1e-5 && fabs((double)max[i] - w.max[i]) <= 1e-5;
    return right;
}

static void test_product(void **state)
{
    (void)state;
    uint16_t a[ALL], b[ALL];
    for (int i = 0; i < ALL; i++) {
        a[i] = mox_f32_to_f16((float)mox_rng_unit(&rng) - 0.5f);
        b[i] = mox_f32_to_f16((float)mox_rng_unit(&rng) - 0.5f);
    }
    mox_gpu_product p = {.a = on_device(a, sizeof a), .b = on_device(b, sizeof b)};
    for (int i = 0; i < 8; i++) {
        p.row = i % 2 * 16;
        p.col = i / 2 % 2 * 48;
        p.across = i / 4;
        p.fault = NO_FAULT;
        assert_true(product_right(p, a, b));
        p.fault = LAYOUT_BY_HEART;
        assert_false(product_right(p, a, b));
        p.fault = ADDRESS_BY_HEART;
        assert_false(product_right(p, a, b));
    }
    p.y = on_device(NULL, SIDE * SIDE * 4);
    p.fault = NO_BARRIER;
    expect(&mox_emu_kernel_product, &p, MOX_EMU_RACE);
    p.fault = LANE_MISSING;
    expect(&mox_emu_kernel_product, &p, MOX_EMU_DIVERGED);
}

/* ---- copies ---- */

enum { NO_WAIT = 1, WAITS_FOR_TOO_FEW, NOT_ORDERED, OVERWRITES, ODD_SOURCE, TOO_MANY };
typedef struct mox_gpu_late {
    const GPU_GLOBAL(u16) *x; /* [2, 64, 8] */
    GPU_GLOBAL(u16) *y;       /* [2, 64, 8] */
    int64_t fault;
} mox_gpu_late;

/* y = x with the threads' quads turned round, in two batches; of the second, odd ones are zeros. */
GPU_KERNEL(late, 64)
{
    GPU_SHARED_ARRAY(u16, first, 64 * 8);
    GPU_SHARED_ARRAY(u16, second, 64 * 8);
    const int32_t thread = gpu_thread(), other = 63 - thread;
    for (int32_t i = 0; i < 8; i++) gpu_store(first, thread * 8 + i, (uint16_t)0);
    gpu_barrier();
    if (p->fault == OVERWRITES) gpu_store(first, other * 8, (uint16_t)0); /* of who copies there */
    gpu_copy_quad(first, thread * 8, p->x, thread * 8 + (p->fault == ODD_SOURCE ? 2 : 0), true);
    gpu_copy_commit();
    for (int32_t i = 0; i < (p->fault == TOO_MANY ? 100 : 1); i++) gpu_copy_quad(second, thread * 8, p->x, (64 + thread) * 8, thread % 2 == 0);
    gpu_copy_commit();
    if (p->fault != NO_WAIT) gpu_copy_wait(1);
    if (p->fault != NOT_ORDERED) gpu_barrier();
    gpu_store_quad(p->y, thread * 8, gpu_load_quad(first, other * 8));
    if (p->fault != WAITS_FOR_TOO_FEW && p->fault != NO_WAIT) gpu_copy_wait(0);
    gpu_barrier();
    gpu_store_quad(p->y, (64 + thread) * 8, gpu_load_quad(second, other * 8));
    gpu_copy_wait(0);
}

static void test_copies(void **state)
{
    (void)state;
    uint16_t x[2 * 64 * 8], y[2 * 64 * 8], want[2 * 64 * 8];
    for (int i = 0; i < 2 * 64 * 8; i++) x[i] = (uint16_t)(mox_rng_u64(&rng) & 0x7FFF);
    for (int i = 0; i < 2 * 64 * 8; i++) {
        const int other = 63 - i / 8 % 64;
        want[i] = i >= 512 && other % 2 == 1 ? 0 : x[i / 512 * 512 + other * 8 + i % 8];
    }
    mox_gpu_late p = {.x = on_device(x, sizeof x), .y = on_device(NULL, sizeof y)};
    expect(&mox_emu_kernel_late, &p, MOX_EMU_FINE);
    assert_int_equal(mox_emu_download(device, y, p.y, sizeof y, &err), MOX_OK);
    assert_memory_equal(y, want, sizeof y);
    for (p.fault = NO_WAIT; p.fault <= WAITS_FOR_TOO_FEW; p.fault++) { /* what is in flight is poisoned */
        mox_emu_set_order(device, MOX_EMU_FORWARD, 0);
        const mox_status status = mox_emu_launch(device, &mox_emu_kernel_late, (const int64_t[3]){1, 1, 1}, &p, &err);
        if (status != MOX_OK) continue; /* or it is a race with the wait of another thread */
        assert_int_equal(mox_emu_download(device, y, p.y, sizeof y, &err), MOX_OK);
        assert_memory_not_equal(y, want, sizeof y);
    }
    p.fault = NOT_ORDERED;
    expect(&mox_emu_kernel_late, &p, MOX_EMU_RACE);
    p.fault = OVERWRITES;
    expect(&mox_emu_kernel_late, &p, MOX_EMU_RACE);
    p.fault = ODD_SOURCE;
    expect(&mox_emu_kernel_late, &p, MOX_EMU_MISALIGNED);
    p.fault = TOO_MANY;
    expect(&mox_emu_kernel_late, &p, MOX_EMU_COPIES);
}

typedef mox_gpu_late mox_gpu_forgotten;
GPU_KERNEL(forgotten, 32)
{
    GPU_SHARED_ARRAY(u16, tile, 32 * 8);
    gpu_copy_quad(tile, gpu_thread() * 8, p->x, gpu_thread() * 8, true);
    gpu_copy_commit();
    if (p->fault == 0) gpu_copy_wait(0);
}

static void test_forgotten_copies(void **state)
{
    (void)state;
    mox_gpu_forgotten p = {.x = on_device(NULL, 512)};
    expect(&mox_emu_kernel_forgotten, &p, MOX_EMU_FINE);
    p.fault = 1;
    expect(&mox_emu_kernel_forgotten, &p, MOX_EMU_COPIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_product), cmocka_unit_test(test_copies), cmocka_unit_test(test_forgotten_copies)};
    return cmocka_run_group_tests(tests, open_device, close_device);
}
