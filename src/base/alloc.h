/* base/alloc.h -- the one door to heap memory.
 *
 * All library allocations pass here, so that a test can count them and fail the
 * N-th one.  Sizes are checked for overflow; a failed call returns NULL. */
#ifndef MOX_BASE_ALLOC_H
#define MOX_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

void *mox_alloc(size_t bytes);                       /* uninitialised; 0 bytes is legal */
void *mox_alloc_array(size_t n, size_t size);        /* zeroed; NULL when n * size wraps */
void *mox_realloc_array(void *p, size_t n, size_t size);
void mox_free(void *p);
char *mox_strdup(const char *s);
char *mox_strndup(const char *s, size_t n);

/* Large memory, zeroed, on huge pages where the system has them and dealt out to all
 * memory nodes; give it back with the same size.  NULL when there is none. */
void *mox_alloc_pages(size_t bytes);
void mox_free_pages(void *p, size_t bytes); /* NULL is fine */

/* The same, but large memory is promised by nobody: it counts when it is touched, so that
 * addresses may stand for far more than the machine has. */
void *mox_reserve_pages(size_t bytes);
/* Huge pages, where the system has them, for those that lie wholly in [p, p + bytes): a wish. */
void mox_want_huge_pages(void *p, size_t bytes);

/* Gives what lies on huge pages wholly in [p, p + bytes), a part of memory from
 * mox_alloc_pages, back to the system: it reads as zero, and counts again when it is touched. */
void mox_drop_pages(void *p, size_t bytes);

/* Bytes of the heap that are in use now: what passed here and has not been freed, with
 * what the allocator puts around it.  Large memory is not counted. */
int64_t mox_alloc_live(void);

/* Gives what is free of the heap back to the system, as far as it can. */
void mox_alloc_trim(void);

/* For tests: called before each allocation; returning 0 makes it fail.  NULL
 * removes it.  Process-wide; set it while no other thread allocates. */
typedef int mox_alloc_hook(void *user, size_t bytes);
void mox_alloc_set_hook(mox_alloc_hook *hook, void *user);

#endif
