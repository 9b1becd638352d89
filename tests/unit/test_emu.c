/* tests/unit/test_emu.c -- the emulated GPU: does it run what is right, in every order, and
 * does it catch what is wrong?
 *
 * The wrong kernels break one rule of the language each, the way real ones did: leaving before
 * a barrier that the others wait at, overwriting what others still read, trusting a barrier
 * with memory that it does not order.  Each has a twin with the fault taken out, which must pass. */
#define MOX_GPU_EMU 1
#include "dev/emu/emu.h"
#include "dev/emu/fiber.h"

#include "base/alloc.h"
#include "dev/gpu/group.h"
#include "fail_nth.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMORY = 8 << 20 };

static mox_emu *device;
static mox_err err;

static int open_device(void **state)
{
    (void)state;
    return mox_emu_create(&device, MEMORY, &err) == MOX_OK ? 0 : 1;
}
static int close_device(void **state)
{
    (void)state;
    mox_emu_destroy(&device);
    return 0;
}

static void ok(mox_status status)
{
    if (status != MOX_OK) print_error("%s\n", err.msg);
    assert_int_equal(status, MOX_OK);
}

static void *on_device(int64_t bytes)
{
    void *p;
    ok(mox_emu_alloc(device, bytes, &p, &err));
    return p;
}

static const struct {
    const char *name;
    mox_emu_order order;
    uint64_t seed;
} orders[] = {{"forward", MOX_EMU_FORWARD, 0}, {"reverse", MOX_EMU_REVERSE, 0}, {"shuffled", MOX_EMU_SHUFFLED, 1},
              {"shuffled again", MOX_EMU_SHUFFLED, 77}};
enum { N_ORDERS = sizeof orders / sizeof *orders };

/* One launch per order; each must end with this fault. */
static void expect(const mox_emu_kernel *kernel, int64_t groups, const void *params, mox_emu_fault fault)
{
    for (int i = 0; i < N_ORDERS; i++) {
        mox_emu_set_order(device, orders[i].order, orders[i].seed);
        const mox_status status = mox_emu_launch(device, kernel, (const int64_t[3]){groups, 1, 1}, params, &err);
        if (mox_emu_last_fault(device) != fault)
            print_error("%s, %s: fault %d instead of %d; %s\n", kernel->name, orders[i].name, (int)mox_emu_last_fault(device),
                        (int)fault, status == MOX_OK ? "it passed" : err.msg);
        assert_int_equal(mox_emu_last_fault(device), fault);
        assert_int_equal(status, fault == MOX_EMU_FINE ? MOX_OK : MOX_E_DEVICE);
        if (fault != MOX_EMU_FINE) assert_non_null(strstr(err.msg, kernel->name));
    }
}

/* ---- kernels for the tests ---- */

typedef struct mox_gpu_plain {
    GPU_GLOBAL(f32) *x; /* [groups * 64] */
    GPU_GLOBAL(f32) *y;
    int64_t n, fault; /* fault: break the rule */
} mox_gpu_plain;
#define SAME(name) typedef mox_gpu_plain mox_gpu_##name

/* y of a group: its elements in reverse, each plus the sum of all and the largest. */
SAME(turn_round);
GPU_KERNEL(turn_round, 64)
{
    GPU_SHARED_ARRAY(f32, tile, 64);
    GPU_SHARED_ARRAY(f32, scratch, 2);
    const int32_t thread = gpu_thread();
    const int64_t at = gpu_group_x() * 64;
    const float v = gpu_load(p->x, at + thread);
    gpu_store(tile, thread, 0.0f);
    gpu_barrier();
    gpu_store(tile, thread, v);
    if (p->fault == 0) gpu_barrier(); /* else zeros are read, or numbers: both are there */
    const float other = gpu_load(tile, 63 - thread);
    const float sum = group_sum(v, scratch, thread, 64), max = group_max(v, scratch, thread, 64);
    gpu_store(p->y, at + thread, other + sum + max);
}

/* Only a shuffle: y = x of the next lane. */
SAME(next_lane);
GPU_KERNEL(next_lane, 64)
{
    const int32_t thread = gpu_thread(), lane = thread % GPU_LANES;
    const int64_t at = gpu_group_x() * 64 + thread;
    gpu_store(p->y, at, gpu_shuffle(gpu_load(p->x, at), p->fault != 0 ? lane + 1 : (lane + 1) % GPU_LANES));
}

static void fill(void *p, float *host, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) host[i] = (float)((uint64_t)i * 37 % 101 + seed) / 8;
    ok(mox_emu_upload(device, p, host, n * 4, &err));
}

static void test_runs(void **state)
{
    (void)state;
    enum { GROUPS = 5, N = GROUPS * 64 };
    float x[N], y[N], first[N];
    mox_gpu_plain p = {.x = on_device(sizeof x), .y = on_device(sizeof y), .n = N};
    fill(p.x, x, N, 3);
    for (int i = 0; i < N_ORDERS; i++) {
        mox_emu_set_order(device, orders[i].order, orders[i].seed);
        ok(mox_emu_launch(device, &mox_emu_kernel_turn_round, (const int64_t[3]){GROUPS, 1, 1}, &p, &err));
        ok(mox_emu_download(device, y, p.y, sizeof y, &err));
        if (i == 0) memcpy(first, y, sizeof y);
        assert_memory_equal(y, first, sizeof y); /* no order can be told from the bytes */
    }
    for (int g = 0; g < GROUPS; g++) {
        float sum = 0, max = 0;
        for (int j = 0; j < 64; j++) {
            sum += x[g * 64 + j]; /* eighths: exact in any order */
            if (x[g * 64 + j] > max) max = x[g * 64 + j];
        }
        for (int j = 0; j < 64; j++) assert_float_equal(y[g * 64 + j], x[g * 64 + 63 - j] + sum + max, 0);
    }
    expect(&mox_emu_kernel_next_lane, GROUPS, &p, MOX_EMU_FINE);
    ok(mox_emu_download(device, y, p.y, sizeof y, &err));
    for (int i = 0; i < N; i++) assert_float_equal(y[i], x[i / 32 * 32 + (i + 1) % 32], 0);
    p.fault = 1;
    expect(&mox_emu_kernel_next_lane, GROUPS, &p, MOX_EMU_LANE);
    expect(&mox_emu_kernel_turn_round, GROUPS, &p, MOX_EMU_RACE);
    mox_emu_free(device, p.x);
    mox_emu_free(device, p.y);
}

/* The grid's three axes arrive, and every group runs once. */
typedef struct mox_gpu_count {
    GPU_GLOBAL(i32) *seen;
    int64_t x, y;
} mox_gpu_count;
GPU_KERNEL(count, 32)
{
    const int64_t at = (gpu_group_z() * p->y + gpu_group_y()) * p->x + gpu_group_x();
    if (gpu_thread() == 31) gpu_store(p->seen, at, gpu_load(p->seen, at) + 1);
}

static void test_grid(void **state)
{
    (void)state;
    enum { X = 6, Y = 4, Z = 5, N = X * Y * Z };
    int32_t seen[N] = {0};
    const mox_gpu_count p = {.seen = on_device(sizeof seen), .x = X, .y = Y};
    ok(mox_emu_upload(device, p.seen, seen, sizeof seen, &err));
    for (int i = 0; i < N_ORDERS; i++) {
        mox_emu_set_order(device, orders[i].order, orders[i].seed);
        ok(mox_emu_launch(device, &mox_emu_kernel_count, (const int64_t[3]){X, Y, Z}, &p, &err));
    }
    ok(mox_emu_launch(device, &mox_emu_kernel_count, (const int64_t[3]){X, 0, Z}, &p, &err)); /* nothing to do */
    ok(mox_emu_download(device, seen, p.seen, sizeof seen, &err));
    for (int i = 0; i < N; i++) assert_int_equal(seen[i], N_ORDERS);
    assert_int_equal(mox_emu_launch(device, &mox_emu_kernel_count, (const int64_t[3]){1, 65536, 1}, &p, &err), MOX_E_DEVICE);
    mox_emu_free(device, p.seen);
}

/* ---- planted: barriers ---- */

/* A product whose rows are 8 to a group and whose x is loaded by all.  The fault returns for rows
 * beyond the end before the load and the barrier: x is left with holes and the others wait. */
typedef struct mox_gpu_early_return {
    const GPU_GLOBAL(f32) *w; /* [rows, 256] */
    const GPU_GLOBAL(f32) *x;
    GPU_GLOBAL(f32) *y;
    int64_t rows, fault;
} mox_gpu_early_return;
GPU_KERNEL(early_return, 256)
{
    GPU_SHARED_ARRAY(f32, x, 256);
    const int32_t thread = gpu_thread(), lane = thread % GPU_LANES;
    const int64_t row = gpu_group_x() * 8 + thread / GPU_LANES;
    if (p->fault != 0 && row >= p->rows) return;
    gpu_store(x, thread, gpu_load(p->x, thread));
    gpu_barrier();
    if (row >= p->rows) return;
    float sum = 0.0f;
    for (int32_t i = lane; i < 256; i += GPU_LANES) sum += gpu_load(p->w, row * 256 + i) * gpu_load(x, i);
    sum = gpu_lane_sum(sum);
    if (lane == 0) gpu_store(p->y, row, sum);
}

static void test_return_before_barrier(void **state)
{
    (void)state;
    enum { ROWS = 13 };
    float w[ROWS * 256], x[256], y[ROWS];
    mox_gpu_early_return p = {.w = on_device(sizeof w), .x = on_device(sizeof x), .y = on_device(sizeof y), .rows = ROWS};
    fill((void *)(uintptr_t)p.w, w, ROWS * 256, 1);
    fill((void *)(uintptr_t)p.x, x, 256, 2);
    expect(&mox_emu_kernel_early_return, 2, &p, MOX_EMU_FINE);
    ok(mox_emu_download(device, y, p.y, sizeof y, &err));
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < 256; i++) sum += (double)w[r * 256 + i] * (double)x[i];
        assert_float_equal(y[r], (float)sum, 1e-5f * (float)sum);
    }
    p.fault = 1;
    expect(&mox_emu_kernel_early_return, 2, &p, MOX_EMU_DIVERGED);
    p.rows = 8; /* where it does no harm: nobody returns early */
    expect(&mox_emu_kernel_early_return, 1, &p, MOX_EMU_FINE);
    mox_emu_free(device, (void *)(uintptr_t)p.w);
    mox_emu_free(device, (void *)(uintptr_t)p.x);
    mox_emu_free(device, p.y);
}

/* Softmax of 128 numbers: scratch[0] is the maximum, which all waves read, and then the sum,
 * which wave 0 writes.  The fault leaves out the barrier between. */
SAME(softmax_reuse);
GPU_KERNEL(softmax_reuse, 128)
{
    GPU_SHARED_ARRAY(f32, scratch, 4);
    const int32_t thread = gpu_thread(), lane = thread % GPU_LANES, wave = thread / GPU_LANES;
    const float v = gpu_load(p->x, thread), wave_max = gpu_lane_max(v);
    if (lane == 0) gpu_store(scratch, wave, wave_max);
    gpu_barrier();
    const float of_four = gpu_lane_max(wave == 0 && lane < 4 ? gpu_load(scratch, lane) : -GPU_INFINITY);
    gpu_barrier();
    if (thread == 0) gpu_store(scratch, 0, of_four);
    gpu_barrier();
    const float e = gpu_exp(v - gpu_load(scratch, 0)), wave_sum = gpu_lane_sum(e);
    if (p->fault == 0) gpu_barrier();
    if (lane == 0) gpu_store(scratch, wave, wave_sum);
    gpu_barrier();
    float sum = 0.0f;
    for (int32_t i = 0; i < 4; i++) sum += gpu_load(scratch, i);
    gpu_store(p->y, thread, e / sum);
}

static void test_reuse_without_barrier(void **state)
{
    (void)state;
    float x[128], y[128];
    mox_gpu_plain p = {.x = on_device(sizeof x), .y = on_device(sizeof y), .n = 128};
    fill(p.x, x, 128, 0);
    expect(&mox_emu_kernel_softmax_reuse, 1, &p, MOX_EMU_FINE);
    ok(mox_emu_download(device, y, p.y, sizeof y, &err));
    float sum = 0;
    for (int i = 0; i < 128; i++) sum += y[i];
    assert_float_equal(sum, 1, 1e-5);
    p.fault = 1;
    expect(&mox_emu_kernel_softmax_reuse, 1, &p, MOX_EMU_RACE);
    assert_non_null(strstr(err.msg, "store after a load"));
    mox_emu_free(device, p.x);
    mox_emu_free(device, p.y);
}

/* A state in device memory, chunk after chunk: each thread writes its element and reads its
 * neighbour's in the next chunk.  The fault's barrier orders shared memory only. */
SAME(state_chunks);
GPU_KERNEL(state_chunks, 64)
{
    const int32_t thread = gpu_thread();
    for (int64_t chunk = 0; chunk < p->n; chunk++) {
        const float v = gpu_load(p->x, (thread + 1) % 64);
        if (p->fault != 0) gpu_barrier();
        else gpu_barrier_all();
        gpu_store(p->x, thread, v);
        if (p->fault != 0) gpu_barrier();
        else gpu_barrier_all();
    }
}

static void test_barrier_of_the_wrong_memory(void **state)
{
    (void)state;
    float x[64], y[64];
    mox_gpu_plain p = {.x = on_device(sizeof x), .n = 3};
    fill(p.x, x, 64, 0);
    ok(mox_emu_launch(device, &mox_emu_kernel_state_chunks, (const int64_t[3]){1, 1, 1}, &p, &err));
    ok(mox_emu_download(device, y, p.x, sizeof y, &err));
    for (int i = 0; i < 64; i++) assert_float_equal(y[i], x[(i + 3) % 64], 0);
    p.fault = 1;
    expect(&mox_emu_kernel_state_chunks, 1, &p, MOX_EMU_RACE);
    mox_emu_free(device, p.x);
}

/* Barriers in two branches; a lane operation that part of a wave does not reach. */
SAME(two_barriers);
GPU_KERNEL(two_barriers, 64)
{
    if (gpu_thread() < 32) gpu_barrier();
    else gpu_barrier();
    gpu_store(p->y, gpu_thread(), 1.0f);
}
SAME(half_a_wave);
GPU_KERNEL(half_a_wave, 64)
{
    float sum = 0.0f;
    if (gpu_thread() < p->n) sum = gpu_lane_sum(1.0f);
    gpu_store(p->y, gpu_thread(), sum);
}

static void test_divergence(void **state)
{
    (void)state;
    mox_gpu_plain p = {.y = on_device(64 * 4), .n = 32};
    expect(&mox_emu_kernel_two_barriers, 1, &p, MOX_EMU_DIVERGED);
    expect(&mox_emu_kernel_half_a_wave, 1, &p, MOX_EMU_FINE); /* a whole wave may stay away */
    p.n = 16;
    expect(&mox_emu_kernel_half_a_wave, 1, &p, MOX_EMU_DIVERGED);
    mox_emu_free(device, p.y);
}

/* ---- planted: memory ---- */

SAME(reads_at);
GPU_KERNEL(reads_at, 32)
{
    if (gpu_thread() == 7) gpu_store(p->y, 0, gpu_load(p->x, p->n));
}
SAME(writes_at);
GPU_KERNEL(writes_at, 32)
{
    if (gpu_thread() == 7) gpu_store(p->y, p->n, 1.0f);
}
SAME(bytes_at);
GPU_KERNEL(bytes_at, 32)
{
    if (gpu_thread() == 7) gpu_store(p->y, 0, gpu_bits_f32(gpu_bytes_u32(GPU_CAST(u8, p->x), p->n)));
}

static void test_out_of_range(void **state)
{
    (void)state;
    enum { N = 1030 }; /* more than a page, and not a whole one */
    float x[N], y;
    mox_gpu_plain p = {.x = on_device(sizeof x), .y = on_device(N * 4)};
    fill(p.x, x, N, 0);
    const struct {
        int64_t at;
        mox_emu_fault fault;
    } cases[] = {{0, MOX_EMU_FINE}, {N - 1, MOX_EMU_FINE}, {N, MOX_EMU_NO_MEMORY_THERE}, {-1, MOX_EMU_NO_MEMORY_THERE},
                 {2 * N, MOX_EMU_NO_MEMORY_THERE}, {1 << 30, MOX_EMU_NO_MEMORY_THERE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        p.n = cases[i].at;
        expect(&mox_emu_kernel_reads_at, 1, &p, cases[i].fault);
        expect(&mox_emu_kernel_writes_at, 1, &p, cases[i].fault);
    }
    /* Bytes at any address: across the border of pages, to the last one, and no further. */
    for (int64_t at = 4090; at < 4100; at++) {
        p.n = at;
        expect(&mox_emu_kernel_bytes_at, 1, &p, MOX_EMU_FINE);
        ok(mox_emu_download(device, &y, p.y, 4, &err));
        assert_memory_equal(&y, (const char *)x + at, 4);
    }
    for (int64_t over = 0; over < 4; over++) {
        p.n = N * 4 - 4 + over;
        expect(&mox_emu_kernel_bytes_at, 1, &p, over == 0 ? MOX_EMU_FINE : MOX_EMU_NO_MEMORY_THERE);
    }
    p.n = 0;
    const mox_gpu_plain host = {.x = (GPU_GLOBAL(f32) *)(void *)x, .y = p.y}; /* forgot to upload */
    expect(&mox_emu_kernel_reads_at, 1, &host, MOX_EMU_NO_MEMORY_THERE);
    mox_gpu_plain odd = p;
    odd.x = (GPU_GLOBAL(f32) *)((char *)p.x + 2);
    expect(&mox_emu_kernel_reads_at, 1, &odd, MOX_EMU_MISALIGNED);
    void *freed = p.x;
    mox_emu_free(device, freed);
    expect(&mox_emu_kernel_reads_at, 1, &p, MOX_EMU_NO_MEMORY_THERE);
    mox_emu_free(device, p.y);
}

/* Shared memory: undefined at first, in every group anew; each array ends where it ends. */
SAME(shared_use);
GPU_KERNEL(shared_use, 32)
{
    GPU_SHARED_ARRAY(f32, first, 32);
    GPU_SHARED_ARRAY(f32, second, 32);
    const int32_t thread = gpu_thread();
    if (p->fault == 0 || gpu_group_x() == 0) gpu_store(first, thread, 1.0f);
    gpu_store(second, thread, 2.0f);
    gpu_barrier();
    gpu_store(p->y, gpu_group_x() * 32 + thread, gpu_load(first, p->n + thread) + gpu_load(second, thread));
}
SAME(shared_much);
GPU_KERNEL(shared_much, 32)
{
    GPU_SHARED_ARRAY(f32, most_of_it, 8000);
    GPU_SHARED_ARRAY(f32, rest, 192);
    gpu_store(most_of_it, gpu_thread(), 0.0f);
    gpu_store(rest, gpu_thread(), 0.0f);
    if (p->fault != 0) {
        GPU_SHARED_ARRAY(f32, more, 1);
        gpu_store(more, 0, 0.0f);
    }
}

static void test_shared(void **state)
{
    (void)state;
    mox_gpu_plain p = {.y = on_device(4 * 64)};
    expect(&mox_emu_kernel_shared_use, 2, &p, MOX_EMU_FINE);
    p.fault = 1;
    expect(&mox_emu_kernel_shared_use, 2, &p, MOX_EMU_UNDEFINED);
    expect(&mox_emu_kernel_shared_much, 1, &p, MOX_EMU_SHARED_FULL);
    p.fault = 0;
    expect(&mox_emu_kernel_shared_much, 1, &p, MOX_EMU_FINE);
    p.n = 1;
    expect(&mox_emu_kernel_shared_use, 2, &p, MOX_EMU_NO_MEMORY_THERE);
    mox_emu_free(device, p.y);
}

/* Groups that write the same word, or one that another reads; bytes of one thread's own are fine. */
SAME(groups_meet);
GPU_KERNEL(groups_meet, 32)
{
    const int64_t me = gpu_group_x();
    if (gpu_thread() != 0) return;
    if (p->fault == 1) gpu_store(p->y, 0, (float)me);
    if (p->fault == 2 && me == 0) gpu_store(p->y, 0, 1.0f);
    if (p->fault == 2 && me == 1) gpu_store(p->y, 1, gpu_load(p->y, 0));
    if (p->fault == 3) gpu_store(p->y, 0, gpu_load(p->y, 0) + 1.0f);
    if (p->fault == 0) gpu_store(p->y, me, gpu_load(p->x, 0));
}

static void test_groups(void **state)
{
    (void)state;
    mox_gpu_plain p = {.x = on_device(4), .y = on_device(4 * 64)};
    expect(&mox_emu_kernel_groups_meet, 3, &p, MOX_EMU_FINE);
    for (p.fault = 1; p.fault <= 3; p.fault++) expect(&mox_emu_kernel_groups_meet, 2, &p, MOX_EMU_RACE_OF_GROUPS);
    mox_emu_free(device, p.x);
    mox_emu_free(device, p.y);
}

/* 16-bit words of neighbours are not a race; a 32-bit word over them is. */
SAME(halves);
GPU_KERNEL(halves, 32)
{
    GPU_GLOBAL(u16) *words = (GPU_GLOBAL(u16) *)(void *)p->y;
    gpu_store(words, gpu_thread(), (uint16_t)gpu_thread());
    if (p->fault != 0 && gpu_thread() == 0) gpu_store(p->y, 0, 0.0f);
}

static void test_sizes_of_accesses(void **state)
{
    (void)state;
    uint16_t words[32];
    mox_gpu_plain p = {.y = on_device(sizeof words)};
    expect(&mox_emu_kernel_halves, 1, &p, MOX_EMU_FINE);
    ok(mox_emu_download(device, words, p.y, sizeof words, &err));
    for (int i = 0; i < 32; i++) assert_int_equal(words[i], i);
    p.fault = 1;
    expect(&mox_emu_kernel_halves, 1, &p, MOX_EMU_RACE);
    mox_emu_free(device, p.y);
}

/* A thread that runs out of its stack. */
SAME(deep);
GPU_KERNEL(deep, 32)
{
    volatile float much[5000]; /* more than a stack, less than two */
    for (int64_t i = 0; i < (int64_t)(sizeof much / sizeof *much); i++) much[i] = 0.0f;
    gpu_store(p->y, gpu_thread(), much[3]);
}

/* ---- the device's memory ---- */

static void test_memory(void **state)
{
    (void)state;
    assert_int_equal(mox_emu_used(device), 0);
    void *a = on_device(1), *b = on_device(5000), *c = on_device(0);
    assert_int_equal(mox_emu_used(device), 4 * MOX_EMU_PAGE);
    char bytes[5000], back[5000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)i;
    ok(mox_emu_upload(device, b, bytes, sizeof bytes, &err));
    ok(mox_emu_download(device, back, b, sizeof back, &err));
    assert_memory_equal(bytes, back, sizeof bytes);
    assert_int_equal(mox_emu_upload(device, b, bytes, 5001, &err), MOX_E_DEVICE);
    assert_int_equal(mox_emu_download(device, back, (char *)b + 1, 5000, &err), MOX_E_DEVICE);
    assert_int_equal(mox_emu_download(device, back, bytes, 1, &err), MOX_E_DEVICE);
    void *most;
    assert_int_equal(mox_emu_alloc(device, MEMORY, &most, &err), MOX_E_MEMORY); /* not beside the others */
    assert_null(most);
    mox_emu_free(device, b);
    void *again = on_device(4000);
    assert_true((uintptr_t)a < (uintptr_t)again && (uintptr_t)again < (uintptr_t)c); /* the hole is used */
    mox_emu_free(device, a);
    mox_emu_free(device, again);
    mox_emu_free(device, c);
    ok(mox_emu_alloc(device, MEMORY - MOX_EMU_PAGE, &most, &err));
    mox_emu_free(device, most);
    assert_int_equal(mox_emu_used(device), 0);
}

/* Host code that follows an address of the device does not get far. */
static void test_host_cannot_follow(void **state)
{
    (void)state;
    const volatile float *p = on_device(64);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(0);
        _exit(p[0] > 0 ? 0 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    mox_emu_free(device, (void *)(uintptr_t)p);
}

/* Addresses of one device mean nothing to another. */
static void test_two_devices(void **state)
{
    (void)state;
    mox_emu *other;
    ok(mox_emu_create(&other, 1 << 20, &err));
    mox_gpu_plain p = {.x = on_device(4), .y = on_device(4)};
    assert_int_equal(mox_emu_launch(other, &mox_emu_kernel_reads_at, (const int64_t[3]){1, 1, 1}, &p, &err), MOX_E_DEVICE);
    assert_int_equal(mox_emu_last_fault(other), MOX_EMU_NO_MEMORY_THERE);
    float v;
    assert_int_equal(mox_emu_download(other, &v, p.x, 4, &err), MOX_E_DEVICE);
    mox_emu_destroy(&other);
    mox_emu_free(device, p.x);
    mox_emu_free(device, p.y);
}

static void test_stack(void **state)
{
    (void)state;
    mox_gpu_plain p = {.y = on_device(4 * 32)};
#ifdef MOX_FIBER_SANITIZED /* has larger stacks */
    expect(&mox_emu_kernel_deep, 1, &p, MOX_EMU_FINE);
#else
    expect(&mox_emu_kernel_deep, 1, &p, MOX_EMU_STACK);
#endif
    mox_emu_free(device, p.y);
}

/* ---- launches that begin early ---- */

SAME(makes);
GPU_KERNEL(makes, 32) { gpu_store(p->x, gpu_thread(), 1.0f); }

SAME(waits);
GPU_KERNEL_EARLY(waits, 32)
{
    (void)p;
    gpu_previous();
}
SAME(hurries);
GPU_KERNEL_HASTY(hurries, 32)
{
    (void)p;
    gpu_previous();
}

/* Faults: 0 none, 1 loads too early, 2 stores too early, 3 never waits. */
SAME(uses);
GPU_KERNEL_EARLY(uses, 32)
{
    const int32_t thread = gpu_thread();
    float v = p->fault == 1 ? gpu_load(p->x, thread) : 0.0f;
    if (p->fault == 2) gpu_store(p->y, thread, v);
    if (p->fault != 3) gpu_previous();
    if (p->fault == 0) v = gpu_load(p->x, thread);
    if (p->fault != 3) gpu_store(p->y, thread, v);
}

/* What the last of these launches ends with; `between` is launched in front of it, or something is uploaded. */
static mox_emu_fault after(const mox_emu_kernel *const *between, int n, bool upload, const mox_gpu_plain *p)
{
    const int64_t one[3] = {1, 1, 1};
    float zero = 0;
    ok(mox_emu_launch(device, &mox_emu_kernel_makes, one, p, &err));
    for (int i = 0; i < n; i++) ok(mox_emu_launch(device, between[i], one, p, &err));
    if (upload) ok(mox_emu_upload(device, p->y, &zero, sizeof zero, &err));
    (void)mox_emu_launch(device, &mox_emu_kernel_uses, one, p, &err);
    return mox_emu_last_fault(device);
}

static void test_early(void **state)
{
    (void)state;
    static const mox_emu_kernel *const waits[] = {&mox_emu_kernel_waits}, *const hurries[] = {&mox_emu_kernel_hurries, &mox_emu_kernel_hurries},
                                *const mixed[] = {&mox_emu_kernel_waits, &mox_emu_kernel_hurries};
    mox_gpu_plain p = {.x = on_device(128), .y = on_device(128)};
    assert_int_equal(after(NULL, 0, false, &p), MOX_EMU_FINE);
    assert_int_equal(after(hurries, 2, false, &p), MOX_EMU_FINE);
    p.fault = 1;
    assert_int_equal(after(NULL, 0, false, &p), MOX_EMU_EARLY);
    assert_int_equal(after(waits, 1, false, &p), MOX_EMU_FINE); /* who waits has let it end */
    assert_int_equal(after(hurries, 1, false, &p), MOX_EMU_EARLY);
    assert_int_equal(after(hurries, 2, false, &p), MOX_EMU_EARLY);
    assert_int_equal(after(mixed, 2, false, &p), MOX_EMU_FINE);
    assert_int_equal(after(hurries, 1, true, &p), MOX_EMU_FINE);
    for (p.fault = 2; p.fault <= 3; p.fault++) assert_int_equal(after(waits, 1, false, &p), MOX_EMU_EARLY);
}

/* Every allocation of create failing in turn leaves nothing behind. */
static void test_no_memory(void **state)
{
    (void)state;
    const int64_t live = mox_alloc_live();
    mox_emu *e;
    int n_failed = 0;
    for (nth n = {.at = 1};; n.at++, n_failed++) {
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = mox_emu_create(&e, 1 << 16, &err);
        mox_alloc_set_hook(NULL, NULL);
        if (status == MOX_OK) break;
        assert_int_equal(status, MOX_E_MEMORY);
        assert_null(e);
        assert_int_equal(mox_alloc_live(), live);
    }
    assert_true(n_failed > 8);
    mox_emu_destroy(&e);
    assert_int_equal(mox_alloc_live(), live);
    assert_int_equal(mox_emu_create(&e, 0, &err), MOX_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_return_before_barrier),
        cmocka_unit_test(test_reuse_without_barrier),
        cmocka_unit_test(test_barrier_of_the_wrong_memory),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_sizes_of_accesses),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_host_cannot_follow),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
