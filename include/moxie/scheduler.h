/* moxie/scheduler.h -- many replies at once: requests queue, share steps and share prefixes.
 *
 * A `mox_scheduler` owns a context and a thread that runs its steps.  A request is a prompt's
 * ids and the settings of a turn (moxie/chat.h); what becomes of it is told by events.
 * Prefill is cut into chunks that run beside the tokens of other requests, so that replies
 * under way keep their pace.  What a request leaves behind (attention pages, recurrent
 * states) stays for requests that begin alike, as long as memory allows.
 *
 * Threads: every function may be called from any thread.  Events come from the scheduler's
 * thread, which waits for them: a callback must be short, must not block and must not call
 * mox_scheduler_destroy.  See moxie.h for errors and ownership. */
#ifndef MOXIE_SCHEDULER_H
#define MOXIE_SCHEDULER_H

#include "moxie/chat.h"
#include "moxie/tools.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mox_scheduler mox_scheduler;

typedef struct mox_scheduler_opts {
    mox_context_opts context; /* n_seqs: requests that run at once; n_batch: tokens of a step;
                               * prefix_bytes: for what finished requests leave behind */
    int32_t n_queue;          /* requests that may wait; 0 = 32 */
    const char *state_dir;    /* where states of long prompts are kept across restarts; NULL: nowhere.  Plans count what finds
                               * them only with prefix_bytes, of which 1 is enough for that.  Where another process has
                               * the folder, context.warn hears of it, and, on another thread, when it has let go */
    int64_t state_dir_bytes;  /* at most this much there; 0 = 8 GiB */
    const char *model_key;    /* what tells this model and template from others in state_dir */
} mox_scheduler_opts;

/* Model and tokenizer must outlive it.  All memory is reserved here.  On failure *out is NULL. */
MOX_API mox_status mox_scheduler_create(mox_scheduler **out, const mox_model *m, const mox_tokenizer *t,
                                        const mox_scheduler_opts *opts, mox_err *err);
/* Cancels what is left, and returns when every request has had its last event.  What is called
 * afterwards finds a scheduler without requests that takes none.  NULL-safe; once, and not from
 * an event. */
MOX_API void mox_scheduler_stop(mox_scheduler *s);
/* The same, and frees it. */
MOX_API void mox_scheduler_destroy(mox_scheduler **s);
/* No new requests; returns true when the last one is done, false when it takes longer. */
MOX_API bool mox_scheduler_drain(mox_scheduler *s, double timeout_s);

/* ---- requests -------------------------------------------------------------- */

typedef enum mox_event_kind {
    MOX_EVENT_START = 0, /* it left the queue: n_prompt, n_reused, reuse */
    MOX_EVENT_PROMPT,    /* a token of the prompt, but the first, for prompt_logprobs: token, top; in order */
    MOX_EVENT_PREFILL,   /* progress: n_done of n_prompt */
    MOX_EVENT_PART,      /* part, call, text, n, turn */
    MOX_EVENT_TOKEN,     /* a token was chosen: token, top, stop, turn; after the parts that it completed */
    MOX_EVENT_DONE       /* the last one: status, err, stop, turn, times */
} mox_event_kind;

typedef struct mox_logprob {
    int32_t token;
    float logprob; /* of the model's own distribution, before any filter or temperature; 0 where
                    * nobody asked */
} mox_logprob;

typedef struct mox_event { /* everything is borrowed for the call */
    mox_event_kind kind;
    int64_t n_prompt, n_reused, n_done;
    const char *reuse; /* one sentence: why not more was reused */
    mox_part part;
    int32_t call;
    const char *text;
    size_t n;
    mox_logprob token;
    const mox_logprob *top; /* the likeliest, in order */
    int32_t n_top;
    mox_status status;
    const mox_err *err;
    mox_stop stop;          /* of a token: why it is the last one, as the one that ends a reply */
    const mox_turn *turn;   /* the reply, as far as it came */
    double queue_s, prefill_s, decode_s;
} mox_event;
typedef void mox_event_fn(void *user, const mox_event *e);

typedef struct mox_request_opts {
    const int32_t *prompt; /* copied */
    int64_t n_prompt;
    int64_t n_before;      /* mox_prompt_encode's: where the next turn's prompt may leave this one */
    const mox_chat *chat;  /* must outlive the request; NULL: the reply is plain text */
    mox_turn_opts turn;    /* borrowed for the call; its on_part is not used */
    int32_t n_logprobs;    /* -1: no logprobs; else this many of the likeliest beside each token, at most 20 */
    bool prompt_logprobs;  /* also of the prompt's tokens, all of which are computed for that; with n_logprobs */
    bool no_reuse;         /* neither take nor leave a prefix */
    uint64_t after;        /* an earlier request with the same prompt, or 0: waits until that one's prompt is
                            * computed, and computes of its own what cannot be shared */
    mox_event_fn *on_event;
    void *user;
} mox_request_opts;

/* *id names the request from then on; ids are never used again.
 * MOX_E_FULL    the queue is full: try again later
 * MOX_E_ARG     a setting is wrong: err names the field
 * MOX_E_LIMIT   the prompt leaves no room for a reply in the context: err has the counts
 * MOX_E_STATE   the scheduler drains
 * On failure there are no events.  A reply that would not fit the context ends with
 * MOX_STOP_LENGTH where the context does. */
MOX_API mox_status mox_scheduler_submit(mox_scheduler *s, const mox_request_opts *request, uint64_t *id, mox_err *err);
/* It ends with MOX_STOP_CANCELLED and what it has so far: within a layer's time when nobody else
 * is in the step, else with the step, which is short then.  One that waits frees its place in the
 * queue at once.  Unknown ids and finished requests are left alone. */
MOX_API void mox_scheduler_cancel(mox_scheduler *s, uint64_t id);

/* ---- how it goes ----------------------------------------------------------- */

typedef struct mox_scheduler_stats { /* since the beginning, but for what is marked "now" */
    int32_t n_running, n_waiting, n_slots; /* now */
    int64_t n_finished, n_failed, n_cancelled, n_refused;
    int64_t prompt_tokens, reused_tokens, reply_tokens;
    int64_t cancelled_tokens; /* computed in vain: in the step that saw a request cancelled */
    int64_t steps, step_tokens;
    double prefill_s, decode_s; /* of steps with and without prompt tokens */
    int64_t prefix_bytes, prefix_bytes_max; /* now */
    int64_t n_prefixes;                     /* now */
    int64_t context_bytes;
    mox_expert_stats experts;
} mox_scheduler_stats;
MOX_API void mox_scheduler_get_stats(mox_scheduler *s, mox_scheduler_stats *out);

typedef struct mox_slot_info { /* a running request, now */
    uint64_t id; /* 0: the slot is free */
    int64_t n_prompt, n_reused, n_prefilled, n_reply;
} mox_slot_info;
/* Fills out[0, n) and says how many slots there are. */
MOX_API int32_t mox_scheduler_get_slots(mox_scheduler *s, mox_slot_info *out, int32_t n);

#ifdef __cplusplus
}
#endif
#endif
