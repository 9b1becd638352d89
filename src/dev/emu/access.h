/* dev/emu/access.h -- what a running kernel sees of the emulator: who it is, and the door
 * that each of its accesses passes.
 *
 * Every 16 bits of global and shared memory have a cell that remembers their last store and
 * their last loads: when, and by which thread.  Time is counted in barriers.  Two accesses of
 * different threads, one of them a store, with no barrier between them that orders this
 * memory, are a race, whatever order the threads happened to run in.  So a missing barrier
 * is found even where it does no harm today.
 *
 * Global addresses are not addresses of the process: host code that follows one faults at once,
 * and so does a kernel that is handed memory of the host.
 *
 * I1  an access returns only when it is aligned, inside one live allocation (or one shared
 *     array), and races with no other access of this launch. */
#ifndef MOX_DEV_EMU_ACCESS_H
#define MOX_DEV_EMU_ACCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MOX_EMU_SHARED_MAX = 32768,   /* bytes of a group, */
    MOX_EMU_SHARED_DEEP = 49152,  /* and of one of a deep kernel */
    MOX_EMU_ARRAYS_MAX = 32,      /* shared arrays of a kernel */
    MOX_EMU_ARRAY_GAP = 64,       /* unused bytes behind each: what runs over an array does not meet the next */
    MOX_EMU_SHARED_BYTES = MOX_EMU_SHARED_DEEP + MOX_EMU_ARRAYS_MAX * MOX_EMU_ARRAY_GAP,
    MOX_EMU_PAGE = 4096,        /* allocations begin at multiples of it */
    MOX_EMU_THREADS_MAX = 1024,
    MOX_EMU_LANES = 32,
    MOX_EMU_MANY = 0xFFFF       /* as a thread: more than one */
};

typedef struct mox_emu_kernel {
    const char *name;
    void (*start)(const void *params); /* as one thread */
    size_t params_bytes;
    int32_t n_threads;
    bool early; /* begins before the launch in front of it has ended */
    bool hasty; /* and so the one behind it may begin before both have */
    bool deep;  /* GPU_DEEP */
} mox_emu_kernel;

/* time << 16 | thread; 0: never. */
typedef struct mox_emu_cell {
    uint64_t stored, loaded;
} mox_emu_cell;

/* Stores and loads at `since` or later are not ordered yet for other threads of the group. */
typedef struct mox_emu_space {
    uintptr_t base; /* address of byte 0, as kernels see it */
    size_t size;
    unsigned char *data;
    mox_emu_cell *cells; /* [size / 2] */
    uint64_t since;
} mox_emu_space;

typedef struct mox_emu_run {
    int64_t group[3];
    int32_t thread;
    uint64_t now, group_since, launch_since;
    uint64_t previous_since;          /* the first launch that may still run beside this one began then */
    bool early[MOX_EMU_THREADS_MAX];  /* has not waited for it yet */
    mox_emu_space global, shared;
    const uint16_t *page_bytes; /* [pages of global]: bytes of the page that are allocated */
    const uint8_t *array_of;    /* [MOX_EMU_SHARED_BYTES / 2]: shared array, counted from 1; 0 = none */
} mox_emu_run;

/* The launch that this thread of the process is in. */
extern _Thread_local mox_emu_run *mox_emu_now __attribute__((tls_model("initial-exec")));

/* Ways to break the rules of the language. */
typedef enum mox_emu_fault {
    MOX_EMU_FINE = 0,
    MOX_EMU_NO_MEMORY_THERE, /* outside every allocation or shared array */
    MOX_EMU_MISALIGNED,
    MOX_EMU_RACE,            /* with another thread of the group */
    MOX_EMU_RACE_OF_GROUPS,
    MOX_EMU_UNDEFINED,       /* shared memory that nobody wrote */
    MOX_EMU_DIVERGED,        /* some threads at a barrier or lane operation, others elsewhere */
    MOX_EMU_LANE,            /* a shuffle from a lane that does not exist */
    MOX_EMU_SHARED_FULL,
    MOX_EMU_EARLY,           /* what the launch before may not have done yet, or may still need */
    MOX_EMU_COPIES,          /* more copies in flight than a thread can have, or some at its end */
    MOX_EMU_STACK            /* private variables of a thread overflowed its stack */
} mox_emu_fault;

/* dev/emu/run.c: ends the launch. */
_Noreturn void mox_emu_fail(mox_emu_fault fault, const void *address, int32_t other, const char *doing, const char *site);

typedef enum mox_emu_wait {
    MOX_EMU_READY = 0,
    MOX_EMU_BARRIER,
    MOX_EMU_BARRIER_ALL,
    MOX_EMU_LANE_SUM,
    MOX_EMU_LANE_MAX,
    MOX_EMU_LANE_MAX_U32,
    MOX_EMU_SHUFFLE,
    MOX_EMU_WAVE, /* nothing but all lanes being there */
    MOX_EMU_ROW_SUM,
    MOX_EMU_ROW_MAX,
    MOX_EMU_MMA,
    MOX_EMU_FRAGMENTS,
    MOX_EMU_DONE
} mox_emu_wait;

/* dev/emu/run.c: suspend the thread until the group, or its wave, is there as well. */
void mox_emu_barrier(mox_emu_wait kind, const char *site);
uint32_t mox_emu_lanes(mox_emu_wait kind, uint32_t bits, int32_t lane, const char *site);
static inline void mox_emu_wave(const char *site) { (void)mox_emu_lanes(MOX_EMU_WAVE, 0, 0, site); }
/* The array that this line declares. */
void *mox_emu_shared(const char *site, int64_t bytes);

/* ---- accesses ---- */

static inline int32_t mox_emu_thread_of(uint64_t stamp) { return (int32_t)(stamp & 0xFFFF); }

/* Did somebody else do this, with no barrier since? */
static inline void mox_emu_conflict(const mox_emu_run *r, const mox_emu_space *s, uint64_t stamp, const void *p,
                                    const char *doing, const char *site)
{
    const uint64_t time = stamp >> 16;
    if (time < r->launch_since || (time < r->group_since && s == &r->shared)) return;
    if (time < r->group_since) mox_emu_fail(MOX_EMU_RACE_OF_GROUPS, p, mox_emu_thread_of(stamp), doing, site);
    if (time >= s->since && mox_emu_thread_of(stamp) != r->thread)
        mox_emu_fail(MOX_EMU_RACE, p, mox_emu_thread_of(stamp), doing, site);
}

/* A thread that has not waited for the launch before may not see what that one stores. */
static inline void mox_emu_no_early(const mox_emu_run *r, const mox_emu_space *s, size_t at, size_t size, bool store,
                                    const void *p, const char *site)
{
    if (store) mox_emu_fail(MOX_EMU_EARLY, p, 0, "store", site);
    for (const mox_emu_cell *c = s->cells + at / 2, *end = s->cells + (at + size + 1) / 2; c < end; c++)
        if (c->stored != 0 && c->stored >> 16 >= r->previous_since) mox_emu_fail(MOX_EMU_EARLY, p, 0, "load", site);
}

/* Where the bytes at a checked offset of a space are; notes the access in the cells. */
static inline void *mox_emu_note(mox_emu_run *r, mox_emu_space *s, size_t at, size_t size, bool store, const void *p,
                                 const char *site)
{
    const uint64_t me = r->now << 16 | (uint64_t)r->thread;
    if (r->early[r->thread] && s == &r->global) mox_emu_no_early(r, s, at, size, store, p, site);
    for (mox_emu_cell *c = s->cells + at / 2, *end = s->cells + (at + size + 1) / 2; c < end; c++) {
        if (s == &r->shared && c->stored >> 16 < r->group_since && !store)
            mox_emu_fail(MOX_EMU_UNDEFINED, p, 0, "load", site);
        mox_emu_conflict(r, s, c->stored, p, store ? "store after a store" : "load after a store", site);
        if (store) {
            mox_emu_conflict(r, s, c->loaded, p, "store after a load", site);
            c->stored = me;
        } else if (s == &r->global && c->loaded >> 16 >= r->launch_since && c->loaded >> 16 < r->group_since) {
            continue; /* another group's load: a store of this one must still meet it */
        } else if (c->loaded >> 16 >= s->since && mox_emu_thread_of(c->loaded) != r->thread) {
            c->loaded = r->now << 16 | MOX_EMU_MANY;
        } else {
            c->loaded = me;
        }
    }
    return s->data + at;
}

/* Are these bytes of global memory allocated? */
static inline bool mox_emu_allocated(const mox_emu_run *r, size_t at, size_t size)
{
    const size_t in_page = at % MOX_EMU_PAGE;
    if (in_page + size <= MOX_EMU_PAGE) return in_page + size <= r->page_bytes[at / MOX_EMU_PAGE];
    for (size_t i = at; i < at + size; i++)
        if (i >= r->global.size || i % MOX_EMU_PAGE >= r->page_bytes[i / MOX_EMU_PAGE]) return false;
    return true;
}

static inline void *mox_emu_access(const void *p, size_t size, bool store, const char *site)
{
    mox_emu_run *r = mox_emu_now;
    const size_t grain = size < 8 || size == 16 ? size : 8; /* quads, and structs that are aligned as their pointers */
    const size_t global = (uintptr_t)p - r->global.base, shared = (uintptr_t)p - r->shared.base;
    const char *doing = store ? "store" : "load";
    if (global < r->global.size) {
        if (global % grain != 0) mox_emu_fail(MOX_EMU_MISALIGNED, p, 0, doing, site);
        if (!mox_emu_allocated(r, global, size)) mox_emu_fail(MOX_EMU_NO_MEMORY_THERE, p, 0, doing, site);
        return mox_emu_note(r, &r->global, global, size, store, p, site);
    }
    if (shared >= r->shared.size || shared + size > r->shared.size || r->array_of[shared / 2] == 0 ||
        r->array_of[(shared + size - 1) / 2] != r->array_of[shared / 2])
        mox_emu_fail(MOX_EMU_NO_MEMORY_THERE, p, 0, doing, site);
    if (shared % grain != 0) mox_emu_fail(MOX_EMU_MISALIGNED, p, 0, doing, site);
    return mox_emu_note(r, &r->shared, shared, size, store, p, site);
}

static inline const void *mox_emu_read(const void *p, size_t size, const char *site)
{
    return mox_emu_access(p, size, false, site);
}
static inline void *mox_emu_write(const void *p, size_t size, const char *site)
{
    return mox_emu_access(p, size, true, site);
}

/* Bytes at any address of global memory; that nobody writes them is for the caller to know. */
static inline const void *mox_emu_read_any(const void *p, size_t size, const char *site)
{
    const mox_emu_run *r = mox_emu_now;
    const size_t at = (uintptr_t)p - r->global.base;
    if (at >= r->global.size || !mox_emu_allocated(r, at, size)) mox_emu_fail(MOX_EMU_NO_MEMORY_THERE, p, 0, "load", site);
    if (r->early[r->thread]) mox_emu_no_early(r, &r->global, at, size, false, p, site);
    return r->global.data + at;
}
/* The same at a multiple of their size. */
static inline const void *mox_emu_read_weights(const void *p, size_t size, const char *site)
{
    if ((uintptr_t)p % size != 0) mox_emu_fail(MOX_EMU_MISALIGNED, p, 0, "load", site);
    return mox_emu_read_any(p, size, site);
}

static inline void mox_emu_previous(void) { mox_emu_now->early[mox_emu_now->thread] = false; }

#endif
