/* app/server/answer.c -- see answer.h.
 *
 * Three threads meet here: a worker that reads and submits, the scheduler's that tells events,
 * and whoever sees the client leave.  A request that cannot be submitted fails the answer; the
 * last of its open choices ends it.
 *
 * I1  n_open counts choices that were or will be submitted and have not had their last event;
 *     who brings it to 0 finishes the answer and lets go of the call. */
#include "app/cli/stop.h"
#include "app/server/answer.h"

#include "app/server/structure.h"
#include "base/alloc.h"
#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const double ping_every_s = 15.0;

/* ---- life ---------------------------------------------------------------------------------------- */

static void release(void *user)
{
    mox_answer *a = user;
    for (int i = 0; i < MOX_CHOICES; i++) {
        mox_put_deinit(&a->choices[i].json);
        mox_put_deinit(&a->choices[i].pending);
        mox_buffer_deinit(&a->choices[i].records);
    }
    mox_ask_deinit(&a->ask);
    mox_asked_deinit(&a->asked);
    mox_put_deinit(&a->out);
    pthread_mutex_destroy(&a->lock);
    mox_free(a);
}

static void cancel_all(mox_answer *a)
{
    uint64_t ids[MOX_CHOICES];
    pthread_mutex_lock(&a->lock);
    a->gone = true;
    for (int i = 0; i < MOX_CHOICES; i++) ids[i] = a->choices[i].id;
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < MOX_CHOICES; i++)
        if (ids[i]) mox_scheduler_cancel(a->server->scheduler, ids[i]);
}

static void on_gone(void *user) { cancel_all(user); }

/* ---- the end ------------------------------------------------------------------------------------- */

void mox_answer_send(mox_answer *a)
{
    if (mox_put_ok(&a->out)) mox_http_send(a->call, mox_writer_text(&a->out.w), a->out.w.n);
    else {
        mox_http_set_problem(a->call, "out of memory for a piece of the stream");
        mox_http_end(a->call, false);
    }
    mox_put_clear(&a->out);
}

static void begin_stream(mox_answer *a)
{
    if (a->begun || !a->ask.stream) return;
    a->begun = true;
    mox_http_stream(a->call, 200, "text/event-stream; charset=utf-8", a->api->ping, ping_every_s);
    if (a->api->begin) a->api->begin(a);
    mox_answer_send(a);
}

/* Under the lock: the whole answer, or a stream's last pieces. */
static void finish(mox_answer *a)
{
    if (a->failed) {
        if (!a->begun) {
            mox_problem_answer(&a->problem, a->api->vendor, a->call);
            return;
        }
        mox_problem_log(&a->problem, a->call);
        if (a->api->broken) a->api->broken(a, &a->problem);
        mox_answer_send(a);
        mox_http_end(a->call, true);
        return;
    }
    begin_stream(a);
    a->api->end(a);
    if (!a->ask.stream) {
        mox_http_answer(a->call, 200, "application/json", &a->out);
        return;
    }
    mox_answer_send(a);
    mox_http_end(a->call, true);
}

/* n choices are over; whoever was the last finishes. */
static void close_choices(mox_answer *a, int n)
{
    pthread_mutex_lock(&a->lock);
    a->n_open -= n;
    const bool last = a->n_open == 0;
    if (last) finish(a);
    pthread_mutex_unlock(&a->lock);
    if (last) mox_http_release(a->call); /* a may be gone now */
}

static void fail(mox_answer *a, const mox_problem *p)
{
    pthread_mutex_lock(&a->lock);
    if (!a->failed) a->problem = *p;
    a->failed = true;
    pthread_mutex_unlock(&a->lock);
}

/* ---- events -------------------------------------------------------------------------------------- */

/* Whether the token is one that nobody reads; where a form ends a reply, its last one is text. */
static bool is_end(const mox_answer *a, const mox_event *e)
{
    mox_generation g;
    if (e->stop != MOX_STOP_END && e->stop != MOX_STOP_CALLS) return false;
    mox_model_get_generation(a->server->session.model, &g);
    return mox_is_stop(&g, a->server->session.tokenizer, e->token.token);
}

static void time_token(mox_answer *a, mox_choice *c)
{
    const double now = mox_clock_now();
    if (a->first_token == 0.0) {
        a->first_token = now;
        mox_metrics_observe(&a->server->metrics, MOX_TIME_TO_FIRST_TOKEN, now - mox_http_started(a->call));
    }
    if (c->last_token > 0.0)
        mox_metrics_observe(&a->server->metrics, MOX_TIME_BETWEEN_TOKENS, now - c->last_token);
    c->last_token = now;
}

/* ---- logprobs ------------------------------------------------------------------------------------ */

/* Whether the token is, or may turn out to be, of the reply's text. */
static bool may_be_text(const mox_answer *a, const mox_choice *c, const mox_event *e)
{
    if (is_end(a, e) || !mox_turn_reads(e->turn, e->token.token)) return false;
    return c->text_came ? !c->in_thinking && !c->in_call : !c->other_came;
}

/* The bytes of a record's token. */
static const char *record_bytes(const mox_answer *a, const mox_choice *c, int64_t record, size_t *n)
{
    const mox_logprob *all = c->records.data;
    *n = 0;
    return mox_tokenizer_bytes(a->server->session.tokenizer, all[(size_t)record * (1 + (size_t)a->ask.n_logprobs)].token, n);
}

/* As many records as the text that was told takes are of text. */
static void accept_records(const mox_answer *a, mox_choice *c)
{
    for (size_t n; c->n_ahead < 0 && c->n_text < c->n_records; c->n_text++) {
        (void)record_bytes(a, c, c->n_text, &n);
        c->n_ahead += (int64_t)n;
    }
}

static bool add_record(mox_answer *a, mox_choice *c, const mox_event *e)
{
    const size_t stride = 1 + (size_t)a->ask.n_logprobs;
    mox_err err;
    if (mox_buffer_reserve(&c->records, ((size_t)c->n_records + 1) * stride, sizeof(mox_logprob), "logprobs",
                           &err) != MOX_OK) {
        a->out.failed = true;
        return false;
    }
    mox_logprob *r = (mox_logprob *)c->records.data + (size_t)c->n_records * stride;
    r[0] = e->token;
    for (size_t i = 1; i < stride; i++)
        r[i] = (int32_t)i <= e->n_top ? e->top[i - 1] : (mox_logprob){.token = -1};
    c->n_records++;
    return true;
}

static void record_logprobs(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (!add_record(a, c, e) || !c->text_came) return;
    accept_records(a, c);
    if (c->n_ahead < 0) c->n_ahead = 0; /* broken characters are told with more bytes than they had */
    if (a->begun && a->api->token) a->api->token(a, c);
}

static bool echoes_logprobs(const mox_answer *a) { return a->ask.echo && a->ask.n_logprobs >= 0; }

static void tell_prompt(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (!add_record(a, c, e)) return;
    c->n_text = c->n_records;
    if (a->begun && a->api->prompt) a->api->prompt(a, c, e->token.token);
}

/* The prompt's first token follows nothing, so that nothing says how likely it is. */
static void tell_first(mox_answer *a, mox_choice *c)
{
    const mox_event first = {.token = {.token = a->ask.prompts[c->prompt].ids[0], .logprob = NAN}};
    tell_prompt(a, c, &first);
}

/* Whether the text could begin with the record's token: one of both is how the other begins, where the records
 * behind it are taken together.  A broken character is told as U+FFFD. */
static bool begins_with(const mox_answer *a, const mox_choice *c, int64_t record, const char *text, size_t n)
{
    static const char broken[] = "\xEF\xBF\xBD";
    for (int64_t i = record; i < c->n_records && n > 0; i++) {
        size_t length;
        const char *bytes = record_bytes(a, c, i, &length);
        if (length > n) length = n;
        if (length > 0 && memcmp(bytes, text, length) != 0)
            return n >= sizeof broken - 1 && memcmp(text, broken, sizeof broken - 1) == 0;
        text += length;
        n -= length;
    }
    return true;
}

/* Text begins: drops the records of marks and blanks before it, such as those around a thought without words. */
static void drop_marks(const mox_answer *a, mox_choice *c, const char *text, size_t n)
{
    const size_t stride = 1 + (size_t)a->ask.n_logprobs;
    mox_logprob *all = c->records.data;
    int64_t from = c->n_text;
    while (from < c->n_records && !begins_with(a, c, from, text, n)) from++;
    const int64_t n_left = c->n_records - from;
    if (n_left > 0 && from > c->n_text)
        memmove(all + (size_t)c->n_text * stride, all + (size_t)from * stride, (size_t)n_left * stride * sizeof *all);
    c->n_records = c->n_text + n_left;
}

/* A token's bytes are held back until they are known to be text, a thought, a call or a mark of those; so is its
 * record, and only those of text stay. */
static void sort_records(const mox_answer *a, mox_choice *c, const mox_event *e)
{
    const bool text = e->part == MOX_PART_TEXT;
    if (text && (c->n_text == 0 || c->in_thinking || c->in_call)) drop_marks(a, c, e->text, e->n);
    c->n_ahead = text ? c->n_ahead - (int64_t)e->n : 0;
    if (text) accept_records(a, c);
    else c->n_records = c->n_text;
    c->text_came |= text;
    c->other_came |= !text;
}

static void tell_token(mox_answer *a, mox_choice *c, const mox_event *e)
{
    time_token(a, c);
    if (a->ask.n_logprobs >= 0 && may_be_text(a, c, e)) record_logprobs(a, c, e);
    c->text_came = c->other_came = false;
}

/* ---- telling ------------------------------------------------------------------------------------- */

static void tell_part(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (a->ask.n_logprobs >= 0) sort_records(a, c, e);
    c->in_thinking = e->part == MOX_PART_THINKING;
    c->in_call = e->part == MOX_PART_CALL_NAME || e->part == MOX_PART_CALL_ARGUMENTS;
    if (!a->begun || !a->api->part || (e->call > 0 && a->ask.single_call)) return;
    a->api->part(a, c, e);
    mox_answer_send(a);
}

static void observe_done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    c->stop = e->stop;
    c->n_prompt = e->n_prompt;
    c->n_reused = e->n_reused;
    c->queue_s = e->queue_s;
    c->prefill_s = e->prefill_s;
    c->decode_s = e->decode_s;
    if (e->turn) {
        (void)mox_turn_tokens(e->turn, &c->n_reply);
        c->n_thinking = mox_turn_thinking_tokens(e->turn);
    }
    mox_metrics_observe(&a->server->metrics, MOX_TIME_QUEUED, e->queue_s);
    mox_metrics_observe(&a->server->metrics, MOX_TIME_PREFILL, e->prefill_s);
    mox_metrics_observe(&a->server->metrics, MOX_TIME_DECODE, e->decode_s);
}

/* What was asked cannot be and would fail again, or it is our fault.  The only limit that a reply meets is
 * its form's, of how many ways it can be read in. */
static mox_problem broken_reply(const mox_answer *a, const mox_event *e)
{
    mox_err err = *e->err;
    const bool form = e->status == MOX_E_LIMIT && a->ask.form_field;
    if (form) (void)mox_fail(&err, MOX_E_LIMIT, "%s: %.400s", a->ask.form_field, e->err->msg);
    mox_problem p = mox_problem_of(&err);
    if (!form && e->status != MOX_E_ARG) p.status = 500;
    return p;
}

/* Events come from one thread, so the first cause stays as it is while others read it. */
static void lose_device(mox_server *s, const mox_err *err)
{
    if (atomic_load(&s->lost)) return;
    (void)snprintf(s->lost_why, sizeof s->lost_why, "%s", err->msg);
    atomic_store(&s->lost, true);
    mox_cli_stop_wake();
}

static void tell_done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    observe_done(a, c, e);
    if (e->status == MOX_OK && a->ask.n_prompts == 0)
        mox_quotes_add(a->server->quotes, &a->asked.prompt, &a->asked.tokens, e->turn);
    if (e->status == MOX_E_DEVICE) lose_device(a->server, e->err);
    if (e->status != MOX_OK && !a->failed) {
        a->failed = true;
        a->problem = broken_reply(a, e);
    } else if (e->stop == MOX_STOP_CANCELLED && !a->failed) {
        a->failed = true; /* the client is gone, or the server's time is up */
        a->problem = mox_problem_make(503, NULL, "the reply was cut off because the server is stopping");
    }
    if (a->failed) return;
    begin_stream(a);
    a->api->done(a, c, e);
    if (a->ask.stream) mox_answer_send(a);
}

static void on_event(void *user, const mox_event *e)
{
    mox_choice *c = user;
    mox_answer *a = c->answer;
    pthread_mutex_lock(&a->lock);
    if (!a->failed) begin_stream(a);
    switch (e->kind) {
    case MOX_EVENT_START:
        c->n_prompt = e->n_prompt;
        c->n_reused = e->n_reused;
        if (e->reuse) (void)strncpy(a->reuse, e->reuse, sizeof a->reuse - 1);
        if (echoes_logprobs(a)) tell_first(a, c);
        break;
    case MOX_EVENT_PROMPT: tell_prompt(a, c, e); break;
    case MOX_EVENT_PREFILL:
        if (!a->begun || !a->ask.progress || !a->api->progress) break;
        a->api->progress(a, c, e);
        mox_answer_send(a);
        break;
    case MOX_EVENT_PART: tell_part(a, c, e); break;
    case MOX_EVENT_TOKEN: tell_token(a, c, e); break;
    case MOX_EVENT_DONE: tell_done(a, c, e); break;
    }
    const bool lost = a->failed && e->kind == MOX_EVENT_DONE;
    pthread_mutex_unlock(&a->lock);
    if (lost) cancel_all(a); /* nobody gets what the others would say */
    if (e->kind == MOX_EVENT_DONE) close_choices(a, 1);
}

/* ---- submitting ---------------------------------------------------------------------------------- */

static mox_status submit(mox_answer *a, mox_choice *c, mox_err *err)
{
    const mox_ask *ask = &a->ask;
    const bool plain = ask->n_prompts > 0;
    const mox_tokens *prompt = plain ? &ask->prompts[c->prompt] : &a->asked.tokens;
    mox_request_opts r = {
        .prompt = prompt->ids,
        .n_prompt = prompt->n,
        .n_before = plain ? prompt->n : a->asked.n_before,
        .chat = plain ? NULL : a->server->session.chat,
        .turn = {.sampling = ask->sampling,
                 .max_tokens = ask->max_tokens >= 0 ? ask->max_tokens : a->server->n_ctx,
                 .think_budget = ask->think_budget,
                 .thinking = a->asked.thinking,
                 .tools = {ask->tools.w.n ? mox_writer_text(&ask->tools.w) : NULL, ask->tools.w.n},
                 .call_seed = mox_cli_random(),
                 .stops = (const char *const *)ask->stops,
                 .n_stops = ask->n_stops,
                 .grammar = ask->grammar,
                 .trie = a->server->trie,
                 .ignore_end = ask->ignore_end},
        .n_logprobs = ask->n_logprobs,
        .prompt_logprobs = echoes_logprobs(a),
        .no_reuse = ask->no_reuse,
        .after = c->index % ask->n == 0 ? 0 : a->choices[c->index / ask->n * ask->n].id,
        .on_event = on_event,
        .user = c,
    };
    r.turn.sampling.seed = ask->fixed_seed ? ask->sampling.seed + (uint64_t)c->index : mox_cli_random();
    uint64_t id = 0;
    MOX_TRY(mox_scheduler_submit(a->server->scheduler, &r, &id, err));
    pthread_mutex_lock(&a->lock);
    c->id = id;
    const bool gone = a->gone;
    pthread_mutex_unlock(&a->lock);
    if (gone) mox_scheduler_cancel(a->server->scheduler, id);
    return MOX_OK;
}

static bool fits(mox_answer *a, const mox_tokens *prompt)
{
    const int64_t n_ctx = a->server->n_ctx;
    if (prompt->n < n_ctx && prompt->n > 0) return true;
    if (prompt->n == 0) {
        mox_err err;
        (void)mox_fail(&err, MOX_E_ARG, "prompt has no tokens, and a reply needs one to follow");
        a->problem = mox_problem_of(&err);
        return false;
    }
    /* Begins as Anthropic's sentence does: by that, agents know that they must shorten the conversation. */
    a->problem = mox_problem_make(
        400, "context_length_exceeded",
        "prompt is too long: %lld tokens > %lld maximum, as a reply needs one of the context's %lld; shorten it%s",
        (long long)prompt->n, (long long)n_ctx - 1, (long long)n_ctx,
        n_ctx < a->server->n_ctx_max ? ", or start the server with a larger -c" : "");
    a->problem.n_prompt = prompt->n;
    a->problem.n_ctx = n_ctx;
    return false;
}

static bool all_fit(mox_answer *a)
{
    if (a->ask.n_prompts == 0) return fits(a, &a->asked.tokens);
    for (int i = 0; i < a->ask.n_prompts; i++)
        if (!fits(a, &a->ask.prompts[i])) return false;
    return true;
}

/* Whether so many choices find room at least when nobody else is there: else asking again never helps. */
static bool has_room(mox_answer *a, int n_choices)
{
    const int n_room = a->server->n_slots + a->server->n_queue;
    mox_err err;
    if (n_choices <= n_room) return true;
    (void)mox_fail(&err, MOX_E_ARG,
                   "%s asks for %d replies at once, and there is room for %d (--parallel and --queue)",
                   a->ask.n > 1 ? "n" : "prompt", n_choices, n_room);
    a->problem = mox_problem_of(&err);
    return false;
}

/* ---- from the call ------------------------------------------------------------------------------- */

static mox_status read_request(mox_answer *a, mox_err *err)
{
    mox_fields *f = mox_alloc_array(1, sizeof *f);
    size_t n;
    const char *body = mox_http_body(a->call, &n);
    if (!f) return mox_fail_memory(err, sizeof *f, "a request");
    mox_status status = mox_fields_read(f, a->api->fields, body, n, err);
    if (status == MOX_OK) status = mox_ask_read_common(&a->ask, a->server, f, err);
    if (status == MOX_OK) status = a->api->read(a, f, err);
    if (status == MOX_OK) status = mox_structure_compile(&a->ask, a->server, mox_http_id(a->call), err);
    mox_free(f);
    MOX_TRY(status);
    if (!mox_put_ok(&a->ask.messages) || !mox_put_ok(&a->ask.tools))
        return mox_fail_memory(err, n, "a request");
    return a->ask.n_prompts > 0 ? MOX_OK : mox_ask_render(&a->ask, a->server, &a->asked, err);
}

mox_answer *mox_answer_read(mox_server *s, mox_http_call *c, const mox_api *api)
{
    mox_err err;
    mox_answer *a = mox_alloc_array(1, sizeof *a);
    if (!a) {
        (void)mox_fail_memory(&err, sizeof *a, "a request");
        const mox_problem p = mox_problem_of(&err);
        mox_problem_answer(&p, api->vendor, c);
        return NULL;
    }
    *a = (mox_answer){.server = s, .call = c, .api = api, .created = (int64_t)time(NULL)};
    pthread_mutex_init(&a->lock, NULL);
    mox_http_attach(c, a, on_gone, release);
    if (read_request(a, &err) == MOX_OK) {
        if (a->asked.rewritten)
            mox_log_note(&s->log, mox_http_id(c),
                         "the template refuses system messages here; they became text of the user");
        return a;
    }
    const mox_problem p = mox_problem_of(&err);
    mox_problem_answer(&p, api->vendor, c);
    return NULL;
}

void mox_answer_start(mox_server *s, mox_http_call *c, const mox_api *api)
{
    mox_answer *a = mox_answer_read(s, c, api);
    mox_err err;
    if (!a) return;
    const int n_choices = (a->ask.n_prompts > 0 ? a->ask.n_prompts : 1) * a->ask.n;
    if (!all_fit(a) || !has_room(a, n_choices)) {
        mox_problem_answer(&a->problem, api->vendor, c);
        return;
    }
    a->n_choices = a->n_open = n_choices;
    for (int i = 0; i < a->n_choices; i++)
        a->choices[i] = (mox_choice){
            .answer = a, .index = i, .prompt = i / a->ask.n, .call = -1, .in_thinking = a->asked.thinking};
    mox_http_keep(c);
    for (int i = 0; i < a->n_choices; i++) {
        if (submit(a, &a->choices[i], &err) == MOX_OK) continue;
        const mox_problem p = mox_problem_of(&err);
        fail(a, &p);
        cancel_all(a);
        close_choices(a, a->n_choices - i); /* I1: those that were never submitted */
        return;
    }
    /* From here on events may have ended everything: a is only good because the caller has the call. */
    pthread_mutex_lock(&a->lock);
    if (!a->failed && a->n_open > 0) begin_stream(a);
    pthread_mutex_unlock(&a->lock);
}

/* ---- for the APIs -------------------------------------------------------------------------------- */

mox_usage mox_answer_usage(const mox_answer *a)
{
    mox_usage u = {0};
    for (int i = 0; i < a->n_choices; i++) {
        const mox_choice *c = &a->choices[i];
        u.reply += c->n_reply;
        u.thinking += c->n_thinking;
        if (i % a->ask.n != 0) continue;
        u.prompt += c->n_prompt;
        u.reused += c->n_reused;
    }
    return u;
}

const char *mox_finish_word(mox_stop stop)
{
    switch (stop) {
    case MOX_STOP_CALLS: return "tool_calls";
    case MOX_STOP_LENGTH: return "length";
    default: return "stop";
    }
}

int32_t mox_answer_calls(const mox_answer *a, const mox_message *m)
{
    return a->ask.single_call && m->n_calls > 1 ? 1 : m->n_calls;
}

static void put_token(mox_put *p, const mox_answer *a, const mox_logprob *l)
{
    size_t n = 0;
    const char *bytes = mox_tokenizer_bytes(a->server->session.tokenizer, l->token, &n);
    mox_putf(p, "\"token\":");
    mox_put_json(p, bytes ? bytes : "", n);
    mox_putf(p, ",\"logprob\":");
    mox_put_real(p, (double)l->logprob);
    mox_putf(p, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) mox_putf(p, "%s%d", i > 0 ? "," : "", (unsigned char)bytes[i]);
    mox_putf(p, "]");
}

void mox_put_logprobs(mox_put *p, const mox_answer *a, const mox_choice *c, int64_t from)
{
    const size_t stride = 1 + (size_t)a->ask.n_logprobs;
    for (int64_t i = from; i < c->n_text; i++) {
        const mox_logprob *r = (const mox_logprob *)c->records.data + (size_t)i * stride;
        mox_putf(p, "%s{", i > from ? "," : "");
        put_token(p, a, &r[0]);
        mox_putf(p, ",\"top_logprobs\":[");
        for (size_t k = 1; k < stride && r[k].token >= 0; k++) {
            mox_putf(p, "%s{", k > 1 ? "," : "");
            put_token(p, a, &r[k]);
            mox_putf(p, "}");
        }
        mox_putf(p, "]}");
    }
}

void mox_put_timings(mox_put *p, const mox_answer *a)
{
    const mox_choice *c = &a->choices[0];
    const double prompt = (double)(c->n_prompt - c->n_reused), reply = (double)c->n_reply;
    mox_putf(p,
             "\"timings\":{\"cache_n\":%lld,\"prompt_n\":%lld,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,"
             "\"predicted_n\":%lld,\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f}",
             (long long)c->n_reused, (long long)(c->n_prompt - c->n_reused), c->prefill_s * 1e3,
             c->prefill_s > 0.0 ? prompt / c->prefill_s : 0.0, (long long)c->n_reply, c->decode_s * 1e3,
             c->decode_s > 0.0 ? reply / c->decode_s : 0.0);
}
