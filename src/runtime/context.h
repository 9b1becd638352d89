/* runtime/context.h -- what a running model works with: caches, recurrent states,
 * activations, threads.  Sequences live in it.
 *
 * Owns:    all memory of a run.      Borrows: the model (immutable, shared).
 * Threads: one step at a time; a cancel flag may be raised from anywhere.
 * Memory:  everything is reserved in create; a step allocates nothing.
 *
 * Attention caches are pages of PAGE_LEN positions (runtime/pages.h); a page id means the
 * same page in every layer.  Recurrent state cannot be cut back, so it is saved: at
 * positions on the grid of GRID when a batch ends there, and when the caller asks.
 *
 * Invariants
 *   I1  positions [0, length) of a sequence are in its pages and its state.
 *   I2  a failed or cancelled step leaves length where it was, or, with recurrent
 *       layers, at the last checkpoint before it; position 0 is always one.
 *   I3  checkpoints of a sequence ascend and are never beyond its length, except
 *       while a step runs. */
#ifndef MOX_RUNTIME_CONTEXT_H
#define MOX_RUNTIME_CONTEXT_H

#include "model/model.h"
#include "runtime/device_sizes.h"
#include "runtime/expert_store.h"
#include "runtime/expert_tier.h"
#include "runtime/pages.h"

enum { MOX_PAGE_LEN = 64, MOX_GRID = 64, MOX_HEAD_ROWS_MAX = 64 };

typedef struct mox_checkpoint {
    int64_t at;    /* tokens */
    int32_t state; /* of the share of states */
    bool asked;    /* by the caller: prompts are likely to part here */
} mox_checkpoint;

struct mox_seq {
    mox_context *context;
    bool in_use;
    int64_t length;
    int64_t pending;  /* tokens that the running step has added so far */
    bool touched;     /* the running step has begun to change the recurrent state */
    int32_t *tokens;  /* [n_ctx]; those of length count, and of pending while a step runs */
    int32_t *pages;   /* [pages_per_seq]; full ones may be shared, and the last until it is written to */
    int64_t n_pages;
    int64_t state;    /* number of its recurrent state: pages.h */
    mox_checkpoint *checkpoints; /* [n_checkpoints], ascending; each holds its state */
    int64_t n_saved;
};

/* A device of a context, and what lies there: layers [first, end) with their caches and states; the
 * embedding is with the first layer, the head with the last.  There is one, unless layers are spread
 * over several GPUs. */
typedef struct mox_section {
    mox_dev *dev;
    int32_t first, end;
    mox_arena arena;
    unsigned char *cache_memory;
    float *states;         /* [n_seqs + saved ones][state_floats] */
    int64_t cache_bytes, state_bytes;
    int64_t state_at, state_floats; /* of a sequence's recurrent state: where this part of it begins, how much it is */

    /* of a device with memory of its own (device.c) */
    mox_residency residency;
    mox_place *places;     /* [residency.n_places] */
    void *weights, *activations;
    int64_t weight_bytes;
    int64_t n_slots;       /* for routed experts that come and go; -1: they stay */
    mox_expert_tier tier;  /* above the store, when there are slots */
} mox_section;

/* Whether the last layer of a section guesses what the first of the next will ask for; its device then has that one's router, too. */
static inline bool mox_section_guesses_on(const mox_model *m, const mox_section *p)
{
    return p->n_slots > 0 && mox_device_guesses_on(m, p->end);
}

struct mox_context {
    const mox_model *model;
    mox_section sections[MOX_SECTIONS_MAX]; /* in the order of their layers */
    int n_sections;
    mox_precision precision;
    bool deterministic;
    mox_dtype kv_type;
    int64_t n_ctx, n_batch, n_seqs, n_checkpoints, pages_per_seq;
    int64_t bytes;
    bool planning; /* counts what it would reserve: no device, no large memory */
    size_t step_bytes;

    int64_t cache_bytes, state_bytes; /* of all sections */
    mox_layer_caches *caches; /* [n_layers] */
    mox_share shares[MOX_N_SHARES];
    mox_reclaim_fn *reclaim;  /* NULL: only sequences hold pages and states */
    mox_forget_fn *forget;    /* NULL where reclaim is */
    void *reclaim_user;       /* of both */

    mox_seq *seqs; /* [n_seqs] */
    int32_t *page_tables, *timelines;
    mox_checkpoint *checkpoints;
    mox_expert_store experts;
    mox_expert_host host; /* computes what the devices lack; zeroed: there is none */
    mox_context_load load;
    int64_t device_left; /* of the budget of the first device's memory; INT64_MAX where there is none */
    float *fetched;        /* [head_rows, V], logits of a device; NULL: the host sees them where they are */
    bool logits_pinned;    /* last_logits, by the device that makes them */
    float *logits_seen;    /* where that device may write them; NULL: nowhere */

    /* of the running step */
    bool stepping;
    int32_t *tokens, *pos; /* [n_batch] */
    mox_span *spans;       /* [n_seqs] */
    int32_t *span_segment; /* [n_seqs] */
    float **recurrent;     /* [n_seqs] */

    mox_work work; /* of all steps; experts are counted by the store */
    float *last_logits; /* [n_seqs, V] */
    bool *has_logits;   /* [n_seqs] */
};

/* Rows that the head is computed of at once: one of each sequence, and of a prompt some. */
static inline int64_t mox_head_rows(const mox_context *c)
{
    return c->n_seqs < 16 ? 16 : c->n_seqs < MOX_HEAD_ROWS_MAX ? c->n_seqs : MOX_HEAD_ROWS_MAX;
}

/* runtime/context.c: elements of the given type per position of a layer's first (0) or second (1) cache. */
int64_t mox_cache_elements(const mox_model *m, int64_t layer, mox_dtype type, int which);

/* runtime/device.c.  NULL: the device has no memory of its own. */
const mox_device_costs *mox_device_find_costs(const char *device);
bool mox_device_is_cpu(const char *device); /* NULL is */

/* What create with these options would reserve, by the code that does. */
typedef struct mox_context_sizes {
    int64_t cache_bytes; /* attention caches, recurrent states and their checkpoints */
    int64_t state_bytes; /* of these: states and checkpoints */
    int64_t step_bytes;  /* activations */
    int64_t small_bytes; /* everything else: timelines, page tables, logits */
    int64_t n_ctx, n_batch, n_seqs;
    mox_spread stay, come; /* on devices with memory of their own, where experts stay, and where they come and go; zeroed: there is none */
} mox_context_sizes;
mox_status mox_context_measure(const mox_model *model, const mox_context_opts *opts, mox_context_sizes *out, mox_err *err);

/* For measure: of a context that is being planned (runtime/device.c). */
mox_status mox_device_measure(const mox_context *c, const mox_context_opts *o, mox_context_sizes *out, mox_err *err);

/* For create: opens the devices that the options name and divides the layers between them (runtime/device.c);
 * later brings all that they need to them, and gives that back (runtime/device_fill.c). */
int64_t mox_device_room(mox_dev *d); /* bytes that could still be allocated */
mox_dev_sizes mox_device_batch(const mox_context *c, bool come); /* the largest; come: of experts that do */
mox_status mox_context_open_devices(mox_context *c, const mox_context_opts *o, mox_err *err);
mox_status mox_context_fill_devices(mox_context *c, const mox_context_opts *o, mox_err *err);
void mox_context_close_devices(mox_context *c);
/* The section that has a layer. */
const mox_section *mox_context_section_of(const mox_context *c, int64_t layer);

/* runtime/sequence.c, for the step: */
mox_status mox_seq_reserve(mox_seq *s, int64_t n_positions, mox_err *err); /* pages for them */
void mox_seq_save(mox_seq *s, int64_t at, bool asked); /* a checkpoint of the state as it is */
void mox_seq_rollback(mox_seq *s);         /* after a failed step: I2, I3 */

/* runtime/work.c, for the step: counts a batch that has run, or rows of the head. */
void mox_work_batch(mox_context *c, int64_t n, int64_t n_spans);
void mox_work_head(mox_context *c, int64_t n_rows);
/* What one token takes at the beginning of a context, experts' bytes left out. */
void mox_work_token(const mox_model *m, int64_t *bytes, int64_t *macs, int64_t *head_macs);

/* runtime/step.c, for create: bytes of activations that the largest step takes. */
mox_status mox_step_measure(const mox_context *c, size_t *bytes, mox_err *err);

#endif
