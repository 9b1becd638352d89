/* runtime/scheduler_internal.h -- what the two halves of the scheduler share: the functions that
 * any thread may call (scheduler.c) and the thread that runs the steps (scheduler_run.c).
 *
 * Who may touch what
 *   I1  members of the scheduler under "shared" belong to the lock; context, sequences, pace and
 *       what a request has under "run" belong to the thread; everything else does not change.
 *   I2  a request is in one place: in the queue, among the dropped, or in a slot.  Whoever holds
 *       the lock may look at it there; only the thread frees it.
 *   I3  events are told by the thread and without the lock, so that a callback may call anything
 *       but destroy.
 *   I4  n_live counts requests that were accepted and have not had their last event. */
#ifndef MOX_RUNTIME_SCHEDULER_INTERNAL_H
#define MOX_RUNTIME_SCHEDULER_INTERNAL_H

#include "moxie/scheduler.h"
#include "runtime/context.h"
#include "runtime/logprob.h"
#include "runtime/pace.h"
#include "runtime/prefix.h"
#include "runtime/turn.h"

#include <pthread.h>

typedef struct mox_request {
    struct mox_request *next; /* in a list */
    uint64_t id;
    int32_t *prompt; /* [n_prompt] */
    int64_t n_prompt, n_before;
    mox_turn *turn;
    int32_t n_logprobs;
    bool prompt_logprobs;
    bool no_reuse;
    uint64_t after; /* id of the request whose prompt it shares, or 0 */
    mox_event_fn *on_event;
    void *user;
    double submitted_at;

    bool cancelled; /* shared */

    /* run */
    struct mox_slot *slot; /* NULL: it has none yet */
    bool over;             /* cancelled, when the thread last looked */
    double started_at, prefilled_at;
    int64_t n_reused, n_done; /* tokens of the prompt that the sequence holds */
    int64_t passed;           /* runtime/pace.h */
    int32_t token;            /* the last one chosen, to be computed next */
    int32_t segment;          /* of the step */
} mox_request;

typedef struct mox_request_list {
    mox_request *head, *tail;
    int32_t n;
} mox_request_list;
void mox_request_append(mox_request_list *l, mox_request *r);
mox_request *mox_request_take_first(mox_request_list *l); /* NULL: it is empty */
void mox_request_destroy(mox_request *r);

typedef struct mox_slot {
    mox_seq *seq;
    mox_request *request; /* shared: NULL when it is free */
    bool in_step;         /* shared: the step that runs computes something of it */
    mox_slot_info info;   /* shared */
} mox_slot;

struct mox_scheduler {
    const mox_model *model;
    const mox_tokenizer *tokenizer;
    int64_t n_vocab, n_ctx, n_batch;
    bool recurrent;
    int32_t n_slots, n_queue;

    pthread_mutex_t lock;
    pthread_cond_t work; /* for the thread: something has changed */
    pthread_cond_t idle; /* n_live has become 0 */
    pthread_t thread;
    bool started;

    /* shared */
    mox_request_list waiting;
    mox_request_list dropped; /* cancelled before they began */
    mox_slot *slots;          /* [n_slots] */
    int32_t n_busy;           /* slots that are not free */
    int32_t n_live;
    uint64_t last_id;
    bool draining, stopping;
    int32_t n_wanted;  /* of the requests in the running step: those that nobody has cancelled */
    mox_cancel cancel; /* of the step: raised when that is 0 */
    mox_scheduler_stats stats;

    /* run */
    mox_context *context;
    mox_prefix *prefix; /* NULL: nothing is kept */
    mox_sampler_space *space; /* requests that run choose their tokens one after the other */
    mox_pace pace;
    mox_pace_item *items;  /* [n_slots] */
    mox_segment *segments; /* [n_slots] */
    mox_request **members; /* [n_slots]: those that run */
    mox_request **owners;  /* [n_slots]: whose segments they are */
};

/* The thread.  scheduler is a mox_scheduler. */
void *mox_scheduler_run(void *scheduler);

#endif
