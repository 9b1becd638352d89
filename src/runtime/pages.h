/* runtime/pages.h -- attention pages and saved recurrent states, handed out by number and
 * counted by reference.
 *
 * Sequences and kept prefixes (runtime/prefix.h) hold them; what nobody holds is free.
 * Whatever several hold is only read: who wants to write takes a copy first, or has the others
 * let go of it (I2).
 *
 * I1  there is a share of pages and states for every sequence, and sequences hold no more
 *     than their shares.  So when a sequence asks for one and none is free, others hold
 *     some, which they give up when `reclaim` asks.
 * I2  a sequence that needs a copy of its last page may hold its share already.  When there is none for
 *     it, each sequence holds a whole share, and no page is held by two.  So whoever else holds that
 *     page is no sequence, and lets it go when `forget` asks: then no copy is needed. */
#ifndef MOX_RUNTIME_PAGES_H
#define MOX_RUNTIME_PAGES_H

#include "moxie.h"

#include <stddef.h>
#include <stdint.h>

enum { MOX_NONE = -1 };

typedef struct mox_section mox_section; /* context.h */

typedef enum mox_share_kind { MOX_SHARE_PAGES, MOX_SHARE_STATES, MOX_N_SHARES } mox_share_kind;

typedef struct mox_share {
    int32_t *refs; /* [n] */
    int32_t *free; /* a stack */
    int64_t n, n_free;
} mox_share;

/* Gives up one thing of the kind, or lets it go as soon as nobody else holds it; false when
 * there is nothing left to give up.  It may be called inside a step. */
typedef bool mox_reclaim_fn(void *user, mox_share_kind kind);
/* Lets go of this page, which others hold, too.  It may be called inside a step. */
typedef void mox_forget_fn(void *user, int32_t page);

/* All n are free; low numbers come first.  The arrays are there. */
void mox_share_init(mox_share *s, int64_t n);
/* One for the caller, or MOX_NONE. */
int32_t mox_share_take(mox_context *c, mox_share_kind kind);
void mox_share_hold(mox_context *c, mox_share_kind kind, int32_t i);
void mox_share_drop(mox_context *c, mox_share_kind kind, int32_t i);

/* A page's bytes, of all layers; they lie in 2 * n_layers parts, some of which may be empty.
 * Each is memory of the device that has the layer. */
int64_t mox_page_bytes(const mox_context *c);
void *mox_page_part(const mox_context *c, int32_t page, int64_t part, size_t *bytes);
void mox_page_copy(mox_context *c, int32_t to, int32_t from);

/* Recurrent states are numbered: those in use come first, one for each sequence, then the saved ones.
 * A state's bytes lie in one piece on each device of the context, some of which may be empty. */
int64_t mox_state_saved(const mox_context *c, int32_t i);
size_t mox_state_bytes(const mox_context *c); /* on all devices */
float *mox_state_piece(const mox_section *p, int64_t state, size_t *bytes);
void mox_state_zero(const mox_context *c, int64_t state);
void mox_state_copy(const mox_context *c, int64_t to, int64_t from);

#endif
