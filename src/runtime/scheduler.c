/* runtime/scheduler.c -- requests come in, and are looked at from outside.
 *
 * Everything that can be wrong with a request is found here, before it is accepted: a bad one
 * must never reach a step, which it would share with others.
 *
 * Owns: the context, its sequences, the thread, all requests.   Borrows: model and tokenizer. */
#include "runtime/scheduler_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/size.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { QUEUE_DEFAULT = 32, QUEUE_MAX = 1 << 16 };

/* ---- lists ---------------------------------------------------------------------------------- */

void mox_request_append(mox_request_list *l, mox_request *r)
{
    r->next = NULL;
    if (l->tail) l->tail->next = r;
    else l->head = r;
    l->tail = r;
    l->n++;
}

mox_request *mox_request_take_first(mox_request_list *l)
{
    mox_request *r = l->head;
    if (!r) return NULL;
    l->head = r->next;
    if (!l->head) l->tail = NULL;
    l->n--;
    return r;
}

/* The request with that id, taken out; NULL when there is none. */
static mox_request *take_by_id(mox_request_list *l, uint64_t id)
{
    mox_request *before = NULL, *r = l->head;
    while (r && r->id != id) {
        before = r;
        r = r->next;
    }
    if (!r) return NULL;
    if (before) before->next = r->next;
    else l->head = r->next;
    if (l->tail == r) l->tail = before;
    l->n--;
    return r;
}

void mox_request_destroy(mox_request *r)
{
    if (!r) return;
    mox_turn_destroy(&r->turn);
    mox_free(r->prompt);
    mox_free(r);
}

/* ---- life ------------------------------------------------------------------------------------- */

static mox_status reserve(mox_scheduler *s, const mox_scheduler_opts *o, mox_err *err)
{
    mox_model_info info;
    mox_model_get_info(s->model, &info);
    MOX_TRY(mox_context_create(&s->context, s->model, &o->context, err));
    if (o->context.prefix_bytes > 0 || o->state_dir)
        MOX_TRY(mox_prefix_create(&s->prefix, s->context,
                                  &(mox_prefix_opts){.state_dir = o->state_dir, .state_dir_bytes = o->state_dir_bytes,
                                                     .model_key = o->model_key, .warn = o->context.warn, .warn_user = o->context.warn_user},
                                  err));
    s->n_vocab = info.n_vocab;
    s->recurrent = info.recurrent;
    s->n_ctx = s->context->n_ctx;
    s->n_batch = s->context->n_batch;
    s->n_slots = (int32_t)s->context->n_seqs;
    s->n_queue = o->n_queue ? o->n_queue : QUEUE_DEFAULT;
    const size_t n = (size_t)s->n_slots;
    s->slots = mox_alloc_array(n, sizeof *s->slots);
    s->items = mox_alloc_array(n, sizeof *s->items);
    s->segments = mox_alloc_array(n, sizeof *s->segments);
    s->members = mox_alloc_array(n, sizeof *s->members);
    s->owners = mox_alloc_array(n, sizeof *s->owners);
    if (!s->slots || !s->items || !s->segments || !s->members || !s->owners)
        return mox_fail_memory(err, n * (sizeof *s->slots + sizeof *s->items + sizeof *s->segments), "the scheduler");
    for (int32_t i = 0; i < s->n_slots; i++) MOX_TRY(mox_seq_create(&s->slots[i].seq, s->context, err));
    MOX_TRY(mox_sampler_space_create(&s->space, s->n_vocab, err));
    mox_pace_init(&s->pace, s->n_batch);
    s->stats.n_slots = s->n_slots;
    s->stats.context_bytes = mox_context_bytes(s->context);
    return MOX_OK;
}

static void init_conditions(mox_scheduler *s)
{
    pthread_condattr_t monotonic;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->work, &monotonic);
    pthread_cond_init(&s->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

mox_status mox_scheduler_create(mox_scheduler **out, const mox_model *m, const mox_tokenizer *t,
                                const mox_scheduler_opts *opts, mox_err *err)
{
    *out = NULL;
    const mox_scheduler_opts defaults = {0};
    if (!opts) opts = &defaults;
    if (opts->n_queue < 0 || opts->n_queue > QUEUE_MAX)
        return mox_fail(err, MOX_E_ARG, "n_queue must be between 0 and %d, not %d", QUEUE_MAX, (int)opts->n_queue);
    mox_scheduler *s = mox_alloc_array(1, sizeof *s);
    if (!s) return mox_fail_memory(err, sizeof *s, "the scheduler");
    s->model = m;
    s->tokenizer = t;
    init_conditions(s);
    mox_status status = reserve(s, opts, err);
    if (status == MOX_OK) {
        const int failure = pthread_create(&s->thread, NULL, mox_scheduler_run, s);
        s->started = failure == 0;
        if (failure) status = mox_fail(err, MOX_E_MEMORY, "the scheduler's thread could not be started: %s", strerror(failure));
    }
    if (status != MOX_OK) mox_scheduler_destroy(&s);
    *out = s;
    return status;
}

/* Under the lock: nobody wants the request any more. */
static void give_up(mox_scheduler *s, mox_request *r)
{
    if (r->cancelled) return;
    r->cancelled = true;
    if (r->slot && r->slot->in_step && --s->n_wanted == 0) mox_cancel_raise(&s->cancel);
}

void mox_scheduler_stop(mox_scheduler *s)
{
    if (!s || !s->started) return;
    pthread_mutex_lock(&s->lock);
    s->draining = s->stopping = true;
    for (int32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].request) give_up(s, s->slots[i].request);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    s->started = false;
}

void mox_scheduler_destroy(mox_scheduler **scheduler)
{
    mox_scheduler *s = *scheduler;
    if (!s) return;
    mox_scheduler_stop(s);
    for (int32_t i = 0; s->slots && i < s->n_slots; i++) mox_seq_destroy(&s->slots[i].seq);
    mox_prefix_destroy(&s->prefix);
    mox_context_destroy(&s->context);
    mox_sampler_space_destroy(&s->space);
    mox_free(s->slots);
    mox_free(s->items);
    mox_free(s->segments);
    mox_free(s->members);
    mox_free(s->owners);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    mox_free(s);
    *scheduler = NULL;
}

bool mox_scheduler_drain(mox_scheduler *s, double timeout_s)
{
    const struct timespec deadline = mox_clock_at(mox_clock_now() + fmin(fmax(timeout_s, 0), 1e9));
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    int failure = 0;
    while (s->n_live > 0 && failure == 0) failure = pthread_cond_timedwait(&s->idle, &s->lock, &deadline);
    const bool done = s->n_live == 0;
    pthread_mutex_unlock(&s->lock);
    return done;
}

/* ---- requests ----------------------------------------------------------------------------------- */

static mox_status check_request(const mox_scheduler *s, const mox_request_opts *o, mox_err *err)
{
    if (!o->on_event) return mox_fail(err, MOX_E_ARG, "on_event is NULL: nobody would hear the reply");
    if (o->n_prompt < 1 || !o->prompt) return mox_fail(err, MOX_E_ARG, "prompt: it has no token, and a reply needs one to follow");
    if (o->n_prompt >= s->n_ctx)
        return mox_fail(err, MOX_E_LIMIT, "the prompt has %lld tokens, and a context of %lld has room for %lld at most and a reply; shorten it",
                        (long long)o->n_prompt, (long long)s->n_ctx, (long long)s->n_ctx - 1);
    for (int64_t i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= s->n_vocab)
            return mox_fail(err, MOX_E_ARG, "prompt: token %lld is %d, outside the vocabulary of %lld", (long long)i, (int)o->prompt[i],
                            (long long)s->n_vocab);
    if (o->n_before < 0 || o->n_before > o->n_prompt)
        return mox_fail(err, MOX_E_ARG, "n_before must be between 0 and the %lld tokens of the prompt, not %lld", (long long)o->n_prompt,
                        (long long)o->n_before);
    if (o->n_logprobs < -1 || o->n_logprobs > MOX_LOGPROBS_MAX)
        return mox_fail(err, MOX_E_ARG, "n_logprobs must be between -1 and %d, not %d", MOX_LOGPROBS_MAX, (int)o->n_logprobs);
    if (o->turn.max_tokens < 0)
        return mox_fail(err, MOX_E_ARG, "max_tokens must not be negative, as %lld is", (long long)o->turn.max_tokens);
    return MOX_OK;
}

static void tell_part(void *user, mox_part part, int32_t call, const char *text, size_t n)
{
    const mox_request *r = user;
    r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_PART, .part = part, .call = call, .text = text, .n = n, .turn = r->turn});
}

static mox_status make_request(mox_scheduler *s, const mox_request_opts *o, mox_request **out, mox_err *err)
{
    mox_request *r = *out = mox_alloc_array(1, sizeof *r);
    if (!r) return mox_fail_memory(err, sizeof *r, "a request");
    r->prompt = mox_alloc_array((size_t)o->n_prompt, sizeof *r->prompt);
    if (!r->prompt) return mox_fail_memory(err, (size_t)o->n_prompt * sizeof *r->prompt, "a prompt");
    memcpy(r->prompt, o->prompt, (size_t)o->n_prompt * sizeof *r->prompt);
    r->n_prompt = o->n_prompt;
    r->n_before = o->n_before;
    r->n_logprobs = o->n_logprobs;
    r->prompt_logprobs = o->prompt_logprobs && o->n_logprobs >= 0;
    r->no_reuse = o->no_reuse;
    r->after = o->no_reuse || r->prompt_logprobs ? 0 : o->after;
    r->on_event = o->on_event;
    r->user = o->user;
    mox_turn_opts turn = o->turn;
    turn.max_tokens = mox_min_i64(turn.max_tokens, s->n_ctx - o->n_prompt); /* it ends as any that is too long */
    turn.on_part = tell_part;
    turn.on_part_user = r;
    MOX_TRY(mox_turn_create_in(&r->turn, s->model, s->tokenizer, o->chat, &turn, s->space, err));
    for (int64_t i = 0; i < r->n_prompt; i++) mox_turn_accept(r->turn, r->prompt[i]);
    return MOX_OK;
}

/* Under the lock. */
static mox_status check_room(const mox_scheduler *s, mox_err *err)
{
    if (s->draining) return mox_fail(err, MOX_E_STATE, "no requests are taken any more: the scheduler ends");
    if (s->n_busy + s->waiting.n < s->n_slots + s->n_queue) return MOX_OK;
    return mox_fail(err, MOX_E_FULL, "%d requests run and %d wait, which is all that there is room for; try again later",
                    (int)s->n_slots, (int)s->n_queue);
}

/* Under the lock: it would wait for itself, or for one that may wait for it. */
static mox_status check_after(const mox_scheduler *s, const mox_request_opts *o, mox_err *err)
{
    if (o->after <= s->last_id) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "after: there is no request %llu yet, and a prompt is shared with an earlier one",
                    (unsigned long long)o->after);
}

/* What depends on other requests. */
static mox_status check_others(mox_scheduler *s, const mox_request_opts *o, mox_err *err)
{
    pthread_mutex_lock(&s->lock);
    mox_status status = check_after(s, o, err);
    if (status == MOX_OK) status = check_room(s, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static mox_status enter(mox_scheduler *s, mox_request *r, uint64_t *id, mox_err *err)
{
    pthread_mutex_lock(&s->lock);
    const mox_status status = check_room(s, err); /* again: others have come meanwhile */
    if (status == MOX_OK) {
        r->id = *id = ++s->last_id;
        r->submitted_at = mox_clock_now();
        mox_request_append(&s->waiting, r);
        s->n_live++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

mox_status mox_scheduler_submit(mox_scheduler *s, const mox_request_opts *request, uint64_t *id, mox_err *err)
{
    mox_request *r = NULL;
    *id = 0;
    mox_status status = check_request(s, request, err);
    if (status == MOX_OK) status = check_others(s, request, err); /* before memory is taken */
    if (status == MOX_OK) status = make_request(s, request, &r, err);
    if (status == MOX_OK) status = enter(s, r, id, err);
    if (status == MOX_OK) return MOX_OK;
    mox_request_destroy(r);
    pthread_mutex_lock(&s->lock);
    s->stats.n_refused++;
    pthread_mutex_unlock(&s->lock);
    return status;
}

void mox_scheduler_cancel(mox_scheduler *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    mox_request *r = take_by_id(&s->waiting, id);
    if (r) mox_request_append(&s->dropped, r);
    for (int32_t i = 0; !r && i < s->n_slots; i++)
        if (s->slots[i].request && s->slots[i].request->id == id) r = s->slots[i].request;
    if (r) {
        give_up(s, r);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- how it goes ---------------------------------------------------------------------------------- */

void mox_scheduler_get_stats(mox_scheduler *s, mox_scheduler_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->n_waiting = s->waiting.n;
    out->n_running = s->n_busy;
    pthread_mutex_unlock(&s->lock);
}

int32_t mox_scheduler_get_slots(mox_scheduler *s, mox_slot_info *out, int32_t n)
{
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < n && i < s->n_slots; i++) out[i] = s->slots[i].info;
    pthread_mutex_unlock(&s->lock);
    return s->n_slots;
}
