/* tests/unit/scheduler_kit.h -- listening to requests, and what a request says without a scheduler.
 *
 * A `listener` is one request's ear: it checks the order of events as they come and keeps what
 * they said.  `solo` computes the same reply with a context of its own, step by step. */
#ifndef TESTS_SCHEDULER_KIT_H
#define TESTS_SCHEDULER_KIT_H

#include "moxie/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

enum { REPLY_MAX = 512, TOP = 20, TEXT_MAX = 8192, PROMPT_MAX = 4096 };

typedef struct listener {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    mox_scheduler *scheduler;
    uint64_t id;
    /* what to do */
    int64_t cancel_at;        /* cancel when so many tokens have come; -1: never */
    int64_t cancel_at_prompt; /* or when so much of the prompt is done; -1: never */
    bool hold;                /* stay in the START event until it is false */
    /* what came */
    bool started, done;
    int64_t n_prompt, n_reused, n_prefilled, n_tokens, n_events;
    int32_t tokens[REPLY_MAX];
    mox_logprob logprobs[REPLY_MAX][1 + TOP];
    mox_logprob prompt_logprobs[REPLY_MAX];
    int64_t n_prompt_tokens; /* that had one */
    char text[TEXT_MAX];
    size_t n_text;
    mox_status status;
    mox_stop stop;
    char sentence[480];
    bool wrong; /* an event came that must not */
} listener;

static inline void listener_init(listener *l)
{
    memset(l, 0, sizeof *l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->cancel_at = l->cancel_at_prompt = -1;
}

static inline void listener_deinit(listener *l)
{
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
}

static inline void hear_token(listener *l, const mox_event *e)
{
    l->wrong |= l->n_prefilled != l->n_prompt || l->n_tokens == REPLY_MAX;
    if (l->n_tokens == REPLY_MAX) return;
    l->tokens[l->n_tokens] = e->token.token;
    l->logprobs[l->n_tokens][0] = e->token;
    for (int32_t i = 0; i < e->n_top; i++) l->logprobs[l->n_tokens][1 + i] = e->top[i];
    l->n_tokens++;
}

static inline void hear_prompt(listener *l, const mox_event *e)
{
    l->wrong |= !l->started || l->n_tokens > 0;
    if (l->n_prompt_tokens < REPLY_MAX) l->prompt_logprobs[l->n_prompt_tokens] = e->token;
    l->n_prompt_tokens++;
}

static inline void hear_event(listener *l, const mox_event *e)
{
    switch (e->kind) {
    case MOX_EVENT_START:
        l->wrong |= l->n_events > 0;
        l->started = true;
        l->n_prompt = e->n_prompt;
        l->n_prefilled = l->n_reused = e->n_reused;
        l->wrong |= !e->reuse || e->n_reused >= e->n_prompt;
        break;
    case MOX_EVENT_PROMPT: hear_prompt(l, e); break;
    case MOX_EVENT_PREFILL:
        l->wrong |= !l->started || e->n_done <= l->n_prefilled || e->n_done > l->n_prompt;
        l->n_prefilled = e->n_done;
        break;
    case MOX_EVENT_PART:
        l->wrong |= e->part != MOX_PART_TEXT || l->n_text + e->n >= sizeof l->text;
        if (l->wrong) break;
        memcpy(l->text + l->n_text, e->text, e->n);
        l->n_text += e->n;
        break;
    case MOX_EVENT_TOKEN: hear_token(l, e); break;
    case MOX_EVENT_DONE:
        l->done = true;
        l->status = e->status;
        l->stop = e->stop;
        l->wrong |= !e->turn || (e->status == MOX_OK) != (e->err == NULL) || e->queue_s < 0 || e->prefill_s < 0 || e->decode_s < 0;
        if (e->err) memcpy(l->sentence, e->err->msg, sizeof l->sentence);
        break;
    }
    l->n_events++;
}

static inline void hear(void *user, const mox_event *e)
{
    listener *l = user;
    pthread_mutex_lock(&l->lock);
    l->wrong |= l->done;
    hear_event(l, e);
    const bool cancel = (l->cancel_at >= 0 && l->n_tokens >= l->cancel_at) ||
                        (l->cancel_at_prompt >= 0 && l->started && l->n_prefilled >= l->cancel_at_prompt);
    pthread_cond_broadcast(&l->changed);
    while (l->hold) pthread_cond_wait(&l->changed, &l->lock);
    const uint64_t id = l->id;
    mox_scheduler *s = cancel && !l->done ? l->scheduler : NULL;
    pthread_mutex_unlock(&l->lock); /* after the last event the listener may be gone */
    if (s) mox_scheduler_cancel(s, id);
}

static inline void wait_done(listener *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->done) pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static inline void wait_started(listener *l)
{
    pthread_mutex_lock(&l->lock);
    while (!l->started) pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static inline void let_go(listener *l)
{
    pthread_mutex_lock(&l->lock);
    l->hold = false;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* What a request asks for; everything else follows from these. */
typedef struct wish {
    int64_t n_prompt, max_tokens;
    int32_t word; /* prompts differ */
    bool no_reuse, prompt_logprobs;
    float temperature;
    uint64_t after; /* whose prompt it shares */
} wish;

static inline void fill_prompt(const wish *w, int32_t *prompt)
{
    for (int64_t i = 0; i < w->n_prompt; i++) prompt[i] = (int32_t)((i * 7919 + w->word * 104729LL + 13) % 1900);
}

static inline mox_turn_opts turn_of(const wish *w)
{
    return (mox_turn_opts){.sampling = {.temperature = w->temperature, .seed = (uint64_t)w->word}, .max_tokens = w->max_tokens,
                           .think_budget = -1};
}

static inline mox_status submit(mox_scheduler *s, const wish *w, listener *l, mox_err *err)
{
    int32_t prompt[PROMPT_MAX];
    fill_prompt(w, prompt);
    const mox_request_opts r = {.prompt = prompt, .n_prompt = w->n_prompt, .n_before = w->n_prompt / 2, .turn = turn_of(w),
                                .n_logprobs = TOP, .prompt_logprobs = w->prompt_logprobs, .no_reuse = w->no_reuse, .after = w->after,
                                .on_event = hear, .user = l};
    uint64_t id;
    pthread_mutex_lock(&l->lock); /* no event sees the id too early */
    l->scheduler = s;
    const mox_status status = mox_scheduler_submit(s, &r, &id, err);
    l->id = id;
    pthread_mutex_unlock(&l->lock);
    return status;
}

/* The same without a scheduler: the prompt in one step, then token by token. */
static inline void solo(const mox_model *m, const mox_tokenizer *t, mox_context_opts opts, const wish *w, listener *out)
{
    mox_context *c;
    mox_seq *s;
    mox_turn *turn;
    mox_err err;
    int32_t prompt[PROMPT_MAX], token = 0;
    const mox_turn_opts turn_opts = turn_of(w);
    opts.n_seqs = 1;
    opts.deterministic = true;
    fill_prompt(w, prompt);
    if (mox_context_create(&c, m, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    assert_int_equal(mox_seq_create(&s, c, &err), MOX_OK);
    assert_int_equal(mox_turn_create(&turn, m, t, NULL, &turn_opts, &err), MOX_OK);
    for (int64_t i = 0; i < w->n_prompt; i++) mox_turn_accept(turn, prompt[i]);
    listener_init(out);
    mox_segment g = {.seq = s, .tokens = prompt, .n = w->n_prompt, .want = MOX_WANT_LAST};
    while (out->stop == MOX_STOP_NOT) {
        if (mox_step(c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
        assert_int_equal(mox_turn_next(turn, mox_logits_row(c, 0), &token, &out->stop, &err), MOX_OK);
        out->tokens[out->n_tokens++] = token;
        g = (mox_segment){.seq = s, .tokens = &token, .n = 1, .want = MOX_WANT_LAST};
    }
    mox_message message;
    mox_turn_get_message(turn, &message);
    memcpy(out->text, message.text, message.n_text);
    out->n_text = message.n_text;
    mox_turn_destroy(&turn);
    mox_seq_destroy(&s);
    mox_context_destroy(&c);
}

#endif
