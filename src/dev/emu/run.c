/* dev/emu/run.c -- running a grid: groups one after another, the threads of a group as fibers.
 *
 * A round gives every thread that can go on its turn.  After a round nobody can: each thread
 * is done, at a barrier or at a lane operation.  Then waves whose lanes all came to the same
 * operation get its result; if there is none, and all threads came to the same barrier, they
 * pass it; otherwise they have diverged, and will never meet.
 *
 * A broken rule ends the launch where it is.  The fibers are dropped: they own nothing. */
#include "dev/emu/internal.h"

#include "base/alloc.h"
#include "tensor/dtype.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

_Thread_local mox_emu_run *mox_emu_now __attribute__((tls_model("initial-exec")));

/* The sanitizer's frames are larger.  Below the last stack is room for one more, so that what
 * overflows it hits nothing of others before it is noticed. */
#ifdef MOX_FIBER_SANITIZED
enum { STACK_BYTES = 65536 };
#else
enum { STACK_BYTES = 16384 };
#endif
enum { ALL_STACKS_BYTES = (MOX_EMU_THREADS_MAX + 1) * STACK_BYTES };
static const uint64_t canary = 0xC0FFEE5AFE57ACC5u; /* at the far end of every stack */

mox_status mox_emu_run_init(mox_emu *e, mox_err *err)
{
    e->run.shared.size = MOX_EMU_SHARED_BYTES;
    e->run.shared.data = mox_alloc_array(1, MOX_EMU_SHARED_BYTES);
    e->run.shared.base = (uintptr_t)e->run.shared.data;
    e->run.shared.cells = mox_alloc_array(MOX_EMU_SHARED_BYTES / 2, sizeof(mox_emu_cell));
    e->run.array_of = e->array_of;
    e->stacks = mox_reserve_pages(ALL_STACKS_BYTES);
    e->free_stacks = mox_alloc_array(MOX_EMU_THREADS_MAX, sizeof *e->free_stacks);
    e->threads = mox_alloc_array(MOX_EMU_THREADS_MAX, sizeof *e->threads);
    e->turn = mox_alloc_array(MOX_EMU_THREADS_MAX, sizeof *e->turn);
    if (!e->run.shared.data || !e->run.shared.cells || !e->stacks || !e->free_stacks || !e->threads || !e->turn)
        return mox_fail_memory(err, ALL_STACKS_BYTES, "the threads of the emulated device");
    mox_rng_init(&e->rng, 0);
    return MOX_OK;
}

void mox_emu_run_deinit(mox_emu *e)
{
    mox_free(e->run.shared.data);
    mox_free(e->run.shared.cells);
    if (e->stacks) mox_fiber_forget(e->stacks, ALL_STACKS_BYTES);
    mox_free_pages(e->stacks, ALL_STACKS_BYTES);
    mox_free(e->free_stacks);
    mox_free(e->threads);
    mox_free(e->turn);
}

void mox_emu_set_order(mox_emu *e, mox_emu_order order, uint64_t seed)
{
    e->order = order;
    mox_rng_init(&e->rng, seed);
}

mox_emu_fault mox_emu_last_fault(const mox_emu *e) { return e->fault; }

/* ---- faults ---- */

static const char *describe(mox_emu_fault fault)
{
    switch (fault) {
    case MOX_EMU_NO_MEMORY_THERE: return "outside every allocation and shared array";
    case MOX_EMU_MISALIGNED: return "at an address that is not a multiple of its size";
    case MOX_EMU_RACE: return "with no barrier in between";
    case MOX_EMU_RACE_OF_GROUPS: return "of another group";
    case MOX_EMU_UNDEFINED: return "of shared memory that nobody wrote";
    case MOX_EMU_SHARED_FULL: return "of more shared memory than a group has";
    case MOX_EMU_LANE: return "from a lane that does not exist";
    case MOX_EMU_EARLY: return "before gpu_previous()";
    case MOX_EMU_COPIES: return "of more quads than can be in flight, or that nobody waits for";
    case MOX_EMU_STACK: return "of more private memory than a thread has";
    default: return "";
    }
}

static const char *file_name(const char *site)
{
    const char *slash = strrchr(site, '/');
    return slash ? slash + 1 : site;
}

/* Of the thread that runs. */
static void note_fault(mox_emu *e, mox_emu_fault fault, const void *address, int32_t other, const char *doing, const char *site)
{
    char with[32] = "";
    if (fault == MOX_EMU_RACE && other == MOX_EMU_MANY) (void)snprintf(with, sizeof with, " of other threads");
    else if (fault == MOX_EMU_RACE) (void)snprintf(with, sizeof with, " of thread %d", other);
    e->fault = fault;
    (void)snprintf(e->sentence, sizeof e->sentence, "thread %d: %s%s %s (%s, address %p)", e->run.thread, doing, with,
                   describe(fault), file_name(site), address);
}

_Noreturn void mox_emu_fail(mox_emu_fault fault, const void *address, int32_t other, const char *doing, const char *site)
{
    mox_emu *e = (mox_emu *)mox_emu_now;
    note_fault(e, fault, address, other, doing, site);
    mox_fiber_leave(&e->threads[e->run.thread].fiber, true);
    __builtin_unreachable();
}

/* ---- what threads call ---- */

static void wait_here(mox_emu *e, mox_emu_wait kind, const char *site)
{
    mox_emu_thread *t = &e->threads[e->run.thread];
    t->wait = kind;
    t->site = site;
    mox_fiber_leave(&t->fiber, false);
}

void mox_emu_barrier(mox_emu_wait kind, const char *site) { wait_here((mox_emu *)mox_emu_now, kind, site); }

uint32_t mox_emu_lanes(mox_emu_wait kind, uint32_t bits, int32_t lane, const char *site)
{
    mox_emu *e = (mox_emu *)mox_emu_now;
    mox_emu_thread *t = &e->threads[e->run.thread];
    if (lane < 0 || lane >= MOX_EMU_LANES) mox_emu_fail(MOX_EMU_LANE, NULL, 0, "shuffle", site);
    t->bits = bits;
    t->lane = lane;
    wait_here(e, kind, site);
    return t->bits;
}

void *mox_emu_shared(const char *site, int64_t bytes)
{
    mox_emu *e = (mox_emu *)mox_emu_now;
    for (int32_t i = 0; i < e->n_arrays; i++)
        if (e->arrays[i].site == site) return e->run.shared.data + e->arrays[i].at;
    const size_t size = ((size_t)bytes + 15) / 16 * 16, at = e->shared_used;
    const size_t most = e->kernel->deep ? MOX_EMU_SHARED_DEEP : MOX_EMU_SHARED_MAX;
    if (e->n_arrays == MOX_EMU_ARRAYS_MAX || at - (size_t)e->n_arrays * MOX_EMU_ARRAY_GAP + size > most)
        mox_emu_fail(MOX_EMU_SHARED_FULL, NULL, 0, "declaration", site);
    e->arrays[e->n_arrays++] = (mox_emu_array){site, at, (size_t)bytes};
    memset(e->array_of + at / 2, e->n_arrays, ((size_t)bytes + 1) / 2);
    e->shared_used = at + size + MOX_EMU_ARRAY_GAP;
    return e->run.shared.data + at;
}

/* ---- a thread's life ---- */

static void live(void *user)
{
    mox_emu *e = user;
    mox_emu_thread *t = &e->threads[e->run.thread];
    e->kernel->start(e->params);
    if (e->run.early[e->run.thread]) mox_emu_fail(MOX_EMU_EARLY, NULL, 0, "end", e->kernel->name);
    if (t->n_copies > 0) mox_emu_fail(MOX_EMU_COPIES, t->copies[0].to, 0, "copy", e->kernel->name);
    t->wait = MOX_EMU_DONE;
    mox_fiber_leave(&t->fiber, true);
}

static unsigned char *stack_of(const mox_emu *e, int32_t stack) { return e->stacks + (size_t)(stack + 1) * STACK_BYTES; }

/* Until it waits, ends or breaks a rule.  Threads that end without waiting share a stack. */
static void give_turn(mox_emu *e, int32_t i)
{
    mox_emu_thread *t = &e->threads[i];
    if (!t->begun) {
        t->begun = true;
        t->stack = e->free_stacks[--e->n_free_stacks];
        unsigned char *stack = stack_of(e, t->stack);
        memcpy(stack, &canary, sizeof canary);
        mox_fiber_init(&t->fiber, stack, STACK_BYTES, live, e);
    }
    e->run.thread = i;
    t->wait = MOX_EMU_READY;
    mox_fiber_enter(&e->host, &t->fiber);
    if (memcmp(stack_of(e, t->stack), &canary, sizeof canary) != 0)
        note_fault(e, MOX_EMU_STACK, NULL, 0, "use", e->kernel->name);
    if (t->wait == MOX_EMU_DONE) e->free_stacks[e->n_free_stacks++] = t->stack;
}

/* ---- meeting ---- */

static bool is_lane_operation(mox_emu_wait wait) { return wait >= MOX_EMU_LANE_SUM && wait < MOX_EMU_DONE; }

static float join(mox_emu_wait kind, float a, float b) { return kind == MOX_EMU_LANE_SUM ? a + b : fmaxf(a, b); }

/* All lanes end with the same bytes: each step adds the same two numbers in both of a pair. */
static void finish_butterfly(mox_emu_thread *wave, mox_emu_wait kind)
{
    uint32_t bits[MOX_EMU_LANES];
    for (int i = 0; i < MOX_EMU_LANES; i++) bits[i] = wave[i].bits;
    for (int m = MOX_EMU_LANES / 2; m > 0; m /= 2)
        for (int i = 0; i < m; i++) bits[i] = mox_f32_bits(join(kind, mox_bits_f32(bits[i]), mox_bits_f32(bits[i + m])));
    for (int i = 0; i < MOX_EMU_LANES; i++) wave[i].bits = bits[0];
}

static void finish_max_u32(mox_emu_thread *wave)
{
    uint32_t most = 0;
    for (int i = 0; i < MOX_EMU_LANES; i++) most = wave[i].bits > most ? wave[i].bits : most;
    for (int i = 0; i < MOX_EMU_LANES; i++) wave[i].bits = most;
}

static void finish_shuffle(mox_emu_thread *wave)
{
    uint32_t bits[MOX_EMU_LANES];
    for (int i = 0; i < MOX_EMU_LANES; i++) bits[i] = wave[i].bits;
    for (int i = 0; i < MOX_EMU_LANES; i++) wave[i].bits = bits[wave[i].lane];
}

static void finish_lanes(mox_emu_thread *wave)
{
    const mox_emu_wait kind = wave[0].wait;
    if (kind == MOX_EMU_LANE_SUM || kind == MOX_EMU_LANE_MAX) finish_butterfly(wave, kind);
    if (kind == MOX_EMU_LANE_MAX_U32) finish_max_u32(wave);
    if (kind == MOX_EMU_SHUFFLE) finish_shuffle(wave);
    if (kind == MOX_EMU_ROW_SUM || kind == MOX_EMU_ROW_MAX) mox_emu_finish_row(wave, kind == MOX_EMU_ROW_SUM);
    if (kind == MOX_EMU_MMA) mox_emu_finish_mma(wave);
    if (kind == MOX_EMU_FRAGMENTS) mox_emu_finish_fragments(wave);
    for (int i = 0; i < MOX_EMU_LANES; i++) wave[i].wait = MOX_EMU_READY;
}

/* Do n threads from the first wait for the same thing at the same place? */
static bool all_alike(const mox_emu_thread *t, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (t[i].wait != t[0].wait || (t[i].wait != MOX_EMU_DONE && t[i].site != t[0].site)) return false;
    return true;
}

static const char *place(const mox_emu_thread *t) { return t->wait == MOX_EMU_DONE ? "its end" : file_name(t->site); }

static void note_divergence(mox_emu *e, const mox_emu_thread *t, int32_t n)
{
    int32_t i = 1;
    while (i < n - 1 && t[i].wait == t[0].wait && t[i].site == t[0].site) i++;
    e->fault = MOX_EMU_DIVERGED;
    (void)snprintf(e->sentence, sizeof e->sentence, "threads diverged: %d is at %s, %d at %s", (int)(t - e->threads), place(t),
                   (int)(t - e->threads) + i, place(t + i));
}

static void pass_barrier(mox_emu *e)
{
    e->run.now++;
    e->run.shared.since = e->run.now;
    if (e->threads[0].wait == MOX_EMU_BARRIER_ALL) e->run.global.since = e->run.now;
    for (int32_t i = 0; i < e->n_threads; i++) e->threads[i].wait = MOX_EMU_READY;
}

/* After a round: lets go on who can.  False when all are done or have diverged. */
static bool meet(mox_emu *e)
{
    bool some = false;
    for (int32_t i = 0; i < e->n_threads; i += MOX_EMU_LANES) {
        mox_emu_thread *wave = e->threads + i;
        bool any = false;
        for (int j = 0; j < MOX_EMU_LANES; j++) any = any || is_lane_operation(wave[j].wait);
        if (!any) continue;
        if (!all_alike(wave, MOX_EMU_LANES)) {
            note_divergence(e, wave, MOX_EMU_LANES);
            return false;
        }
        finish_lanes(wave);
        some = true;
    }
    if (some) return true;
    if (!all_alike(e->threads, e->n_threads)) {
        note_divergence(e, e->threads, e->n_threads);
        return false;
    }
    if (e->threads[0].wait == MOX_EMU_DONE) return false;
    pass_barrier(e);
    return true;
}

/* ---- groups ---- */

/* Position i of n in the order of the device; shuffled ones by a walk with an odd stride, as
 * grids are too large for a list. */
static int64_t nth(const mox_emu *e, int64_t i, int64_t n, uint64_t stride)
{
    if (e->order == MOX_EMU_FORWARD) return i;
    if (e->order == MOX_EMU_REVERSE) return n - 1 - i;
    return (int64_t)(((uint64_t)i * stride + stride / 2) % (uint64_t)n);
}

static void order_threads(mox_emu *e)
{
    for (int32_t i = 0; i < e->n_threads; i++) e->turn[i] = e->order == MOX_EMU_REVERSE ? e->n_threads - 1 - i : i;
    for (int32_t i = e->n_threads - 1; i > 0 && e->order == MOX_EMU_SHUFFLED; i--) {
        const int32_t j = (int32_t)(mox_rng_u64(&e->rng) % (uint64_t)(i + 1)), keep = e->turn[i];
        e->turn[i] = e->turn[j];
        e->turn[j] = keep;
    }
}

static void begin_group(mox_emu *e)
{
    e->run.now++;
    e->run.group_since = e->run.shared.since = e->run.global.since = e->run.now;
    memset(e->run.shared.data, 0xFF, e->shared_used);
    for (int32_t i = 0; i < e->n_threads; i++) {
        e->threads[i].begun = false;
        e->run.early[i] = e->kernel->early;
        e->threads[i].n_copies = e->threads[i].n_batches = 0;
        e->threads[i].wait = MOX_EMU_READY;
        e->free_stacks[i] = e->n_threads - 1 - i;
    }
    e->n_free_stacks = e->n_threads;
}

static void run_group(mox_emu *e)
{
    begin_group(e);
    do {
        if (e->order == MOX_EMU_SHUFFLED) order_threads(e);
        for (int32_t i = 0; i < e->n_threads; i++) {
            if (e->threads[e->turn[i]].wait != MOX_EMU_READY) continue;
            give_turn(e, e->turn[i]);
            if (e->fault != MOX_EMU_FINE) return;
        }
    } while (meet(e));
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void run_grid(mox_emu *e, const int64_t groups[3])
{
    const int64_t n = groups[0] * groups[1] * groups[2];
    uint64_t stride = (uint64_t)n / 2 + 1 + mox_rng_u64(&e->rng) % 97;
    while (gcd(stride, (uint64_t)n) != 1) stride++;
    order_threads(e);
    if (!e->was_hasty) e->run.previous_since = e->run.launch_since;
    e->was_hasty = e->kernel->hasty;
    e->run.launch_since = e->run.now + 1;
    for (int64_t i = 0; i < n && e->fault == MOX_EMU_FINE; i++) {
        const int64_t g = nth(e, i, n, stride);
        e->run.group[0] = g % groups[0];
        e->run.group[1] = g / groups[0] % groups[1];
        e->run.group[2] = g / groups[0] / groups[1];
        run_group(e);
    }
}

mox_status mox_emu_launch(mox_emu *e, const mox_emu_kernel *kernel, const int64_t groups[3], const void *params, mox_err *err)
{
    assert(!mox_emu_now && kernel->n_threads > 0 && kernel->n_threads <= MOX_EMU_THREADS_MAX);
    assert(kernel->n_threads % MOX_EMU_LANES == 0);
    e->fault = MOX_EMU_FINE;
    for (int i = 0; i < 3; i++) {
        if (groups[i] < 0 || groups[i] > (i == 0 ? INT32_MAX : 65535)) /* what CUDA allows */
            return mox_fail(err, MOX_E_DEVICE, "kernel %s: a grid of %lld x %lld x %lld groups is not possible", kernel->name,
                            (long long)groups[0], (long long)groups[1], (long long)groups[2]);
        if (groups[i] == 0) return MOX_OK;
    }
    e->kernel = kernel;
    e->params = params;
    e->n_threads = kernel->n_threads;
    e->n_arrays = 0;
    e->shared_used = 0;
    memset(e->array_of, 0, sizeof e->array_of);
    mox_emu_now = &e->run;
    run_grid(e, groups);
    mox_emu_now = NULL;
    if (e->fault == MOX_EMU_FINE) return MOX_OK;
    return mox_fail(err, MOX_E_DEVICE, "kernel %s, group (%lld, %lld, %lld): %s", kernel->name, (long long)e->run.group[0],
                    (long long)e->run.group[1], (long long)e->run.group[2], e->sentence);
}
