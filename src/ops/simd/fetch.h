/* ops/simd/fetch.h -- asking for weights before they are read.
 *
 * What a core can have on its way from memory is limited, and how much of it some processors ask for by themselves depends
 * on how many pages they see being read: while a kernel computes, one stream gets two thirds of what eight get
 * (bench/results/cpu.md).  So a block of FETCH_BLOCK bytes is asked for in eight stripes side by side. */
#ifndef MOX_OPS_SIMD_FETCH_H
#define MOX_OPS_SIMD_FETCH_H

#include "ops/simd/inline.h"

enum { LINE = 64, STRIPES = 8, FETCH_BLOCK = 32768 };

/* A stretch of memory, in the order in which its lines are asked for, and then the beginning of another. */
typedef struct fetching {
    const uint8_t *line;           /* the next one, */
    int64_t stripe, left;          /* bytes to that of the next stripe, and lines until it is the first stripe's turn */
    const uint8_t *first, *behind; /* the block: of the first stripe the line that is next, and where that stripe ends */
    const uint8_t *end;            /* of the stretch */
    const uint8_t *then;           /* the beginning of the other one, or NULL */
} fetching;

/* Some lines behind the end of the stretch may be asked for, which does no harm. */
static inline void fetch_block(fetching *f, const uint8_t *at)
{
    int64_t bytes = f->end - at;
    if (bytes <= 0 && f->then) { /* where that one ends is for its own reader */
        at = f->then;
        f->then = NULL;
        f->end = at + FETCH_BLOCK;
        bytes = FETCH_BLOCK;
    }
    if (bytes > FETCH_BLOCK) bytes = FETCH_BLOCK;
    const int64_t lines = bytes > 0 ? (bytes + STRIPES * LINE - 1) / (STRIPES * LINE) : 0;
    f->stripe = lines * LINE;
    f->line = f->first = at;
    f->behind = at + f->stripe;
    f->left = STRIPES;
}

/* Of [at, end), which may be empty, and of the first FETCH_BLOCK bytes of `then`: whoever reads those begins behind them. */
static inline fetching fetch_behind(const uint8_t *at, const uint8_t *end, const uint8_t *then)
{
    fetching f = {.end = end, .then = then};
    fetch_block(&f, at);
    return f;
}

/* The next lines of all stripes come after those that were asked for.  At the end: the line behind it, again and again. */
static inline void fetch_turn(fetching *f)
{
    f->left = STRIPES;
    if (f->stripe == 0) return;
    f->first += LINE;
    if (f->first >= f->behind) fetch_block(f, f->first + (STRIPES - 1) * f->stripe);
    else f->line = f->first;
}

ALWAYS_INLINE void fetch_line(fetching *f)
{
    prefetch_second(f->line);
    f->line += f->stripe;
    if (--f->left == 0) fetch_turn(f);
}

#endif
