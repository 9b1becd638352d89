/* runtime/scheduler_run.c -- the thread that runs the steps.
 *
 * Round after round: requests leave the queue for free slots, those that nobody wants any more
 * end, one step computes a token of every reply and some of the prompts (runtime/pace.h), and
 * what came out is told.
 *
 * A slot is a sequence, and every sequence has its share of the cache: a request that has left
 * the queue has all the memory that it can need.
 *
 * Cancelling one request must cost the others nothing, neither their time nor their state, and
 * an interrupted step would cost them both.  So a step is interrupted when nobody wants anything
 * of it any more, which takes a layer's time; otherwise it runs to its end, and it is short then:
 * a step with replies is as long as the pace of those replies allows, and one with several
 * prompts a fraction of a second. */
#include "runtime/scheduler_internal.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/size.h"

#include <stdio.h>

static const double look_s = 0.25; /* whether there is more to write */

static bool prefilled(const mox_request *r) { return r->n_done == r->n_prompt; }

/* ---- the end of a request --------------------------------------------------------------------- */

static void count_end(mox_scheduler_stats *stats, mox_status status, mox_stop stop)
{
    if (status != MOX_OK) stats->n_failed++;
    else if (stop == MOX_STOP_CANCELLED) stats->n_cancelled++;
    else stats->n_finished++;
}

static void tell_end(const mox_request *r, mox_status status, const mox_err *err, mox_stop stop)
{
    const double now = mox_clock_now(), started = r->started_at > 0 ? r->started_at : now;
    const double generating = r->prefilled_at > 0 ? r->prefilled_at : now;
    r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_DONE, .n_prompt = r->n_prompt, .n_reused = r->n_reused, .n_done = r->n_done,
                                      .status = status, .err = status == MOX_OK ? NULL : err,
                                      .stop = status == MOX_OK ? stop : MOX_STOP_NOT, .turn = r->turn,
                                      .queue_s = started - r->submitted_at, .prefill_s = generating - started,
                                      .decode_s = now - generating});
}

/* A request that has left the queue and, if it had one, its slot. */
static void end_request(mox_scheduler *s, mox_request *r, mox_status status, mox_err *err, mox_stop stop)
{
    if (status == MOX_OK) status = mox_turn_end(r->turn, stop, err); /* of one that has stopped already: nothing */
    pthread_mutex_lock(&s->lock);
    count_end(&s->stats, status, stop);
    if (r->slot) {
        r->slot->request = NULL;
        r->slot->info = (mox_slot_info){0};
        s->n_busy--;
    }
    pthread_mutex_unlock(&s->lock);
    tell_end(r, status, err, stop);
    mox_request_destroy(r);
    pthread_mutex_lock(&s->lock);
    if (--s->n_live == 0) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

/* What it has computed stays, also of a request that was cancelled: it may come again. */
static void end_running(mox_scheduler *s, mox_request *r, mox_status status, mox_err *err, mox_stop stop)
{
    if (s->prefix && !r->no_reuse) mox_prefix_keep(s->prefix, r->slot->seq);
    else mox_seq_reset(r->slot->seq);
    end_request(s, r, status, err, stop);
}

/* ---- the beginning ---------------------------------------------------------------------------- */

/* The request whose prompt r shares, while it runs. */
static const mox_request *leader_of(const mox_scheduler *s, const mox_request *r)
{
    for (int32_t i = 0; r->after > 0 && i < s->n_slots; i++)
        if (s->slots[i].request && s->slots[i].request->id == r->after) return s->slots[i].request;
    return NULL;
}

static void begin(mox_scheduler *s, mox_request *r)
{
    char why[160];
    const mox_request *leader = leader_of(s, r);
    if (s->prefix && leader && !prefilled(leader)) return; /* later */
    if (s->prefix && leader) mox_prefix_share(s->prefix, leader->slot->seq);
    r->started_at = mox_clock_now();
    if (s->prefix && !r->no_reuse && !r->prompt_logprobs)
        r->n_done = r->n_reused = mox_prefix_adopt(s->prefix, r->slot->seq, r->prompt, r->n_prompt, why, sizeof why);
    else
        (void)snprintf(why, sizeof why, "%s", !s->prefix           ? "nothing is kept"
                                              : r->prompt_logprobs ? "logprobs of the prompt are wanted"
                                                                   : "the request wants none");
    pthread_mutex_lock(&s->lock);
    r->slot->info = (mox_slot_info){.id = r->id, .n_prompt = r->n_prompt, .n_reused = r->n_reused, .n_prefilled = r->n_done};
    s->stats.prompt_tokens += r->n_prompt;
    s->stats.reused_tokens += r->n_reused;
    pthread_mutex_unlock(&s->lock);
    r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_START, .n_prompt = r->n_prompt, .n_reused = r->n_reused,
                                      .n_done = r->n_done, .reuse = why});
}

/* Under the lock: who is not wanted any more. */
static void note_cancelled(mox_scheduler *s)
{
    for (int32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i].request) s->slots[i].request->over = s->slots[i].request->cancelled;
}

/* Under the lock. */
static void count_prefixes(mox_scheduler *s)
{
    mox_prefix_stats kept;
    mox_prefix_get_stats(s->prefix, &kept);
    s->stats.prefix_bytes = kept.bytes;
    s->stats.prefix_bytes_max = kept.bytes_max;
    s->stats.n_prefixes = kept.n_prefixes;
}

static bool is_idle(const mox_scheduler *s)
{
    return !s->stopping && s->waiting.n == 0 && s->dropped.n == 0 && s->n_busy == 0;
}

/* Under the lock.  What several requests left is written one after the other, also when no other request comes. */
static void sleep_while_idle(mox_scheduler *s)
{
    bool more = s->prefix;
    while (is_idle(s)) {
        const struct timespec at = mox_clock_at(mox_clock_now() + look_s);
        if (!more) pthread_cond_wait(&s->work, &s->lock);
        else if (pthread_cond_timedwait(&s->work, &s->lock, &at) != 0 && is_idle(s)) {
            pthread_mutex_unlock(&s->lock);
            more = mox_prefix_tend(s->prefix);
            pthread_mutex_lock(&s->lock);
            count_prefixes(s);
        }
    }
}

/* Waits until there is something to do, and fills free slots; false: all is done. */
static bool wait_for_work(mox_scheduler *s, mox_request_list *dropped)
{
    pthread_mutex_lock(&s->lock);
    sleep_while_idle(s);
    while (s->stopping && s->waiting.n > 0) mox_request_append(&s->dropped, mox_request_take_first(&s->waiting));
    for (int32_t i = 0; i < s->n_slots && s->waiting.n > 0; i++) {
        if (s->slots[i].request) continue;
        mox_request *r = s->slots[i].request = mox_request_take_first(&s->waiting);
        r->slot = &s->slots[i];
        s->n_busy++;
    }
    note_cancelled(s);
    *dropped = s->dropped;
    s->dropped = (mox_request_list){0};
    const bool more = !s->stopping || s->n_live > 0;
    pthread_mutex_unlock(&s->lock);
    return more;
}

/* ---- a step ------------------------------------------------------------------------------------ */

/* Recurrent states are saved at the border of a turn and where batches end on the grid, so a
 * prompt is cut there. */
static int64_t trim(const mox_scheduler *s, const mox_request *r, int64_t take)
{
    if (!s->recurrent) return take;
    const int64_t at = r->n_done;
    if (at < r->n_before && at + take > r->n_before) take = r->n_before - at;
    const int64_t on_grid = (at + take) / MOX_GRID * MOX_GRID;
    return on_grid > at ? on_grid - at : take;
}

static mox_want wanted(const mox_request *r, const mox_pace_item *item)
{
    if (!item->generating && r->prompt_logprobs) return MOX_WANT_ALL;
    return r->n_done + item->take >= r->n_prompt ? MOX_WANT_LAST : MOX_WANT_NONE;
}

/* Of a prompt.  Each token whose logprobs are told costs the head's time as well, which the pace of replies beside it
 * does not know of; alone it takes more, but not so many that whoever comes next waits long. */
static int64_t take_of(const mox_scheduler *s, const mox_request *r, int64_t take, bool beside)
{
    if (r->prompt_logprobs) take = mox_min_i64(take, (beside ? 1 : 4) * mox_head_rows(s->context));
    return trim(s, r, take);
}

/* Lists the running requests, and what the step takes of them; returns how many run. */
static int32_t plan_step(mox_scheduler *s, int32_t *n_segments)
{
    int32_t n = 0;
    bool replies = false;
    for (int32_t i = 0; i < s->n_slots; i++) {
        mox_request *r = s->slots[i].request;
        if (!r || r->started_at == 0) continue;
        s->members[n] = r;
        replies |= prefilled(r);
        s->items[n++] = (mox_pace_item){.order = r->id, .generating = prefilled(r), .left = r->n_prompt - r->n_done, .passed = r->passed};
    }
    mox_pace_share(&s->pace, s->items, n);
    *n_segments = 0;
    for (int32_t i = 0; i < n; i++) {
        mox_request *r = s->members[i];
        mox_pace_item *item = &s->items[i];
        if (item->take == 0) continue;
        if (!item->generating) item->take = take_of(s, r, item->take, replies);
        r->segment = (*n_segments)++;
        s->owners[r->segment] = r;
        s->segments[r->segment] = (mox_segment){.seq = r->slot->seq, .tokens = item->generating ? &r->token : r->prompt + r->n_done,
                                                .n = item->take, .want = wanted(r, item)};
    }
    return n;
}

/* From here on a cancelled request may end the step. */
static void announce_step(mox_scheduler *s, int32_t n)
{
    pthread_mutex_lock(&s->lock);
    s->cancel = (mox_cancel){0};
    s->n_wanted = 0;
    for (int32_t i = 0; i < n; i++) {
        if (s->items[i].take == 0) continue;
        s->members[i]->slot->in_step = true;
        s->n_wanted += !s->members[i]->cancelled;
    }
    if (s->n_wanted == 0) mox_cancel_raise(&s->cancel);
    pthread_mutex_unlock(&s->lock);
}

static void count_step(mox_scheduler *s, int32_t n, double seconds)
{
    int64_t total = 0;
    bool prompts = false;
    mox_scheduler_stats *stats = &s->stats;
    pthread_mutex_lock(&s->lock);
    for (int32_t i = 0; i < s->n_slots; i++) s->slots[i].in_step = false;
    note_cancelled(s);
    for (int32_t i = 0; i < n; i++) {
        const int64_t take = s->items[i].take;
        total += take;
        prompts |= take > 0 && !s->items[i].generating;
        if (s->members[i]->over) stats->cancelled_tokens += take;
    }
    stats->steps++;
    stats->step_tokens += total;
    *(prompts ? &stats->prefill_s : &stats->decode_s) += seconds;
    mox_context_get_expert_stats(s->context, &stats->experts);
    if (s->prefix) count_prefixes(s);
    pthread_mutex_unlock(&s->lock);
}

static void show_progress(mox_scheduler *s, const mox_request *r, bool chosen)
{
    int64_t n_reply;
    (void)mox_turn_tokens(r->turn, &n_reply);
    pthread_mutex_lock(&s->lock);
    r->slot->info.n_prefilled = r->n_done;
    r->slot->info.n_reply = n_reply;
    s->stats.reply_tokens += chosen;
    pthread_mutex_unlock(&s->lock);
}

static void tell_token(const mox_scheduler *s, const mox_request *r, const float *logits, mox_stop stop)
{
    mox_logprob top[MOX_LOGPROBS_MAX];
    mox_event e = {.kind = MOX_EVENT_TOKEN, .token = {.token = r->token}, .top = top, .stop = stop, .turn = r->turn};
    if (r->n_logprobs >= 0) e.n_top = mox_logprobs(logits, s->n_vocab, &e.token, top, r->n_logprobs);
    r->on_event(r->user, &e);
}

/* The next token of a reply. */
static void choose(mox_scheduler *s, mox_request *r)
{
    const float *logits = mox_logits_row(s->context, r->segment);
    int64_t n_before, n_after;
    mox_stop stop = MOX_STOP_NOT;
    mox_err err;
    (void)mox_turn_tokens(r->turn, &n_before);
    const mox_status status = mox_turn_next(r->turn, logits, &r->token, &stop, &err);
    (void)mox_turn_tokens(r->turn, &n_after);
    show_progress(s, r, n_after > n_before);
    if (n_after > n_before && status == MOX_OK) tell_token(s, r, logits, stop);
    if (status != MOX_OK || stop != MOX_STOP_NOT) end_running(s, r, status, &err, stop);
}

/* A step has computed tokens of the request. */
static void take_results(mox_scheduler *s, mox_request *r, const mox_pace_item *item)
{
    r->passed = item->passed;
    if (item->take == 0) return;
    if (!item->generating) {
        r->n_done += item->take;
        if (r->n_done == r->n_before || prefilled(r)) mox_seq_checkpoint(r->slot->seq);
        if (prefilled(r)) r->prefilled_at = mox_clock_now();
        show_progress(s, r, false);
        r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_PREFILL, .n_prompt = r->n_prompt, .n_reused = r->n_reused, .n_done = r->n_done});
    }
    if (prefilled(r)) choose(s, r);
}

/* During a step: a row of logits, which in a prompt are about the token behind it.  r->n_done is as before the step. */
static void tell_prompt(void *scheduler, int32_t segment, int64_t row, const float *logits)
{
    mox_scheduler *s = scheduler;
    const mox_request *r = s->owners[segment];
    const int64_t next = r->n_done + row + 1;
    if (!r->prompt_logprobs || next >= r->n_prompt) return;
    mox_logprob top[MOX_LOGPROBS_MAX];
    mox_event e = {.kind = MOX_EVENT_PROMPT, .token = {.token = r->prompt[next]}, .top = top};
    e.n_top = mox_logprobs(logits, s->n_vocab, &e.token, top, r->n_logprobs);
    r->on_event(r->user, &e);
}

static mox_status compute(mox_scheduler *s, int32_t n_segments, mox_err *err)
{
    mox_step_opts opts = {.cancel = &s->cancel, .on_logits_user = s};
    for (int32_t i = 0; i < n_segments; i++) /* it costs copies of rows that nobody else looks at */
        if (s->segments[i].want == MOX_WANT_ALL) opts.on_logits = tell_prompt;
    return mox_step(s->context, s->segments, n_segments, &opts, err);
}

static void run_step(mox_scheduler *s)
{
    int32_t n_segments;
    mox_err err;
    const int32_t n = plan_step(s, &n_segments);
    if (n_segments == 0) return;
    announce_step(s, n);
    const double begun = mox_clock_now();
    const mox_status status = compute(s, n_segments, &err);
    const double seconds = mox_clock_now() - begun;
    count_step(s, n, seconds);
    if (status == MOX_OK) mox_pace_ran(&s->pace, s->items, n, seconds);
    for (int32_t i = 0; i < n; i++) {
        mox_request *r = s->members[i];
        mox_err own = err; /* the end of a turn has a sentence of its own */
        if (r->over) end_running(s, r, MOX_OK, &own, MOX_STOP_CANCELLED);
        else if (status == MOX_OK) take_results(s, r, &s->items[i]);
        else if (s->items[i].take > 0) end_running(s, r, status, &own, MOX_STOP_NOT);
    }
}

void *mox_scheduler_run(void *scheduler)
{
    mox_scheduler *s = scheduler;
    mox_request_list dropped;
    while (wait_for_work(s, &dropped)) {
        mox_err err;
        for (mox_request *r; (r = mox_request_take_first(&dropped));) end_request(s, r, MOX_OK, &err, MOX_STOP_CANCELLED);
        for (int32_t i = 0; i < s->n_slots; i++) {
            mox_request *r = s->slots[i].request;
            if (r && r->over) end_running(s, r, MOX_OK, &err, MOX_STOP_CANCELLED);
            else if (r && r->started_at == 0) begin(s, r);
        }
        run_step(s);
    }
    return NULL;
}
