/* base/alloc.c -- heap memory with a hook for fault injection, and a count of it. */
#include "base/alloc.h"

#include "base/numa.h"
#include "base/size.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 1 << 21, PAGE = 4096 };

static mox_alloc_hook *alloc_hook;
static void *alloc_hook_user;

void mox_alloc_set_hook(mox_alloc_hook *hook, void *user)
{
    alloc_hook = hook;
    alloc_hook_user = user;
}

static int allowed(size_t bytes) { return !alloc_hook || alloc_hook(alloc_hook_user, bytes); }

/* ---- what is in use ---- */

enum { BLOCK_HEAD = 16 }; /* what the allocator keeps in front of a block, with its rounding */
static _Atomic int64_t live;

static int64_t size_of(void *p) { return p ? (int64_t)malloc_usable_size(p) + BLOCK_HEAD : 0; }

static void *counted(void *p)
{
    atomic_fetch_add_explicit(&live, size_of(p), memory_order_relaxed);
    return p;
}

int64_t mox_alloc_live(void) { return atomic_load_explicit(&live, memory_order_relaxed); }

void mox_alloc_trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

/* ---- the heap ---- */

void *mox_alloc(size_t bytes)
{
    if (bytes == 0) bytes = 1;
    return allowed(bytes) ? counted(malloc(bytes)) : NULL;
}

void *mox_alloc_array(size_t n, size_t size)
{
    size_t bytes;
    if (!mox_mul_size(n, size, &bytes)) return NULL;
    if (bytes == 0) bytes = 1;
    return allowed(bytes) ? counted(calloc(1, bytes)) : NULL;
}

void *mox_realloc_array(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!mox_mul_size(n, size, &bytes)) return NULL;
    if (bytes == 0) bytes = 1;
    if (!allowed(bytes)) return NULL;
    const int64_t before = size_of(p);
    void *moved = realloc(p, bytes);
    if (moved) atomic_fetch_add_explicit(&live, size_of(moved) - before, memory_order_relaxed);
    return moved;
}

void mox_free(void *p)
{
    atomic_fetch_sub_explicit(&live, size_of(p), memory_order_relaxed);
    free(p);
}

char *mox_strndup(const char *s, size_t n)
{
    char *copy = mox_alloc(n + 1);
    if (copy) {
        memcpy(copy, s, n);
        copy[n] = '\0';
    }
    return copy;
}

char *mox_strdup(const char *s) { return mox_strndup(s, strlen(s)); }

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Anonymous memory that begins where a huge page can. */
static void *map_pages(size_t bytes, int flags)
{
    if (bytes > SIZE_MAX / 2 || !allowed(bytes)) return NULL;
    const size_t want = whole_pages(bytes), room = want + HUGE_PAGE;
    char *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE; /* goes back, like what lies behind */
    if (before > 0) (void)munmap(p, before);
    if (room - before > want) (void)munmap(p + before + want, room - before - want);
    mox_numa_interleave(p + before, want);
    return p + before;
}

void *mox_alloc_pages(size_t bytes)
{
    if (bytes < HUGE_PAGE) return mox_alloc_array(1, bytes); /* no huge page to win */
    void *p = map_pages(bytes, 0);
    if (p) mox_want_huge_pages(p, whole_pages(bytes));
    return p;
}

void *mox_reserve_pages(size_t bytes)
{
    if (bytes < HUGE_PAGE) return mox_alloc_array(1, bytes);
    void *p = map_pages(bytes, MAP_NORESERVE);
#ifdef MADV_NOHUGEPAGE
    if (p) (void)madvise(p, whole_pages(bytes), MADV_NOHUGEPAGE); /* a touched page is one page */
#endif
    return p;
}

void mox_want_huge_pages(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t begin = ((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = ((uintptr_t)p + bytes) / PAGE * PAGE;
    if (end > begin) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* small pages work too */
#else
    (void)p, (void)bytes;
#endif
}

void mox_drop_pages(void *p, size_t bytes)
{
    const uintptr_t begin = ((uintptr_t)p + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = ((uintptr_t)p + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (end > begin) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void mox_free_pages(void *p, size_t bytes)
{
    if (bytes < HUGE_PAGE) mox_free(p);
    else if (p) (void)munmap(p, whole_pages(bytes));
}
