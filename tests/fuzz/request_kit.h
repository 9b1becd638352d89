/* tests/fuzz/request_kit.h -- the server's endpoints without a network and without a model, for tests that
 * ask them many things: bodies go in, and what the endpoint answered is looked at.
 *
 * HTTP, the scheduler and the session are made up here, and the endpoints are built with them (endpoint_sources).  The
 * scheduler "replies" with a text of the test's while a request is submitted:
 * thinking, text, a call, with logprobs, and an end of the kind that was asked for.
 *
 * What must hold of every answer: there is exactly one, it is JSON or a stream of events of JSON, a stream has its
 * end or is cut off where memory ran out, and what the endpoint kept is given back. */
#ifndef TESTS_REQUEST_KIT_H
#define TESTS_REQUEST_KIT_H

#include "app/cli/stop.h"
#include "app/server/answer.h"
#include "../unit/tokenizer_kit.h"

#include <jansson.h>
#include <unistd.h>

static void promise(int kept)
{
    if (!kept) abort();
}

/* The server's main loop, which is not there. */
void mox_cli_stop_wake(void) {}

/* ---- HTTP ------------------------------------------------------------------------------------------------- */

struct mox_http_call {
    int refs, n_answers, status;
    const char *body;
    size_t n_body;
    void *user;
    void (*release)(void *user);
    char *out; /* what the client would see */
    size_t n_out;
    bool streams, ended, cut;
};

const char *mox_http_id(const mox_http_call *c) { return c ? "0123456789abcdef" : NULL; }
const char *mox_http_path(const mox_http_call *c) { return c ? "/v1/models/x" : NULL; }
double mox_http_started(const mox_http_call *c) { return c ? 1.0 : 0.0; }
void *mox_http_attached(const mox_http_call *c) { return c->user; }
bool mox_http_gone(mox_http_call *c) { return c == NULL; }
void mox_http_keep(mox_http_call *c) { c->refs++; }
void mox_http_release(mox_http_call *c)
{
    promise(c->refs > 0);
    if (--c->refs == 0 && c->release) c->release(c->user);
}

const char *mox_http_body(const mox_http_call *c, size_t *n)
{
    *n = c->n_body;
    return c->body;
}

void mox_http_attach(mox_http_call *c, void *user, void (*gone)(void *user), void (*release)(void *user))
{
    promise(gone != NULL);
    c->user = user;
    c->release = release;
}

void mox_http_set_header(mox_http_call *c, const char *name, const char *value) { promise(c && *name && value); }

void mox_http_set_problem(mox_http_call *c, const char *sentence) { promise(c && *sentence); }

static void kit_append(mox_http_call *c, const char *bytes, size_t n)
{
    c->out = realloc(c->out, c->n_out + n + 1);
    promise(c->out != NULL);
    memcpy(c->out + c->n_out, bytes, n);
    c->n_out += n;
    c->out[c->n_out] = '\0';
}

void mox_http_answer_static(mox_http_call *c, int status, const char *type, const char *bytes, size_t n)
{
    promise(type != NULL);
    c->n_answers++;
    c->status = status;
    kit_append(c, bytes, n);
}

void mox_http_answer(mox_http_call *c, int status, const char *type, mox_put *body)
{
    static const char sorry[] = "\"out of memory\"";
    if (mox_put_ok(body)) mox_http_answer_static(c, status, type, mox_writer_text(&body->w), body->w.n);
    else mox_http_answer_static(c, 500, type, sorry, sizeof sorry - 1);
    mox_put_deinit(body);
}

void mox_http_stream(mox_http_call *c, int status, const char *type, const char *ping, double ping_s)
{
    promise(ping && ping_s > 0.0);
    c->streams = true;
    mox_http_answer_static(c, status, type, "", 0);
}

void mox_http_send(mox_http_call *c, const char *bytes, size_t n)
{
    promise(c->streams);
    if (n > 0 && !c->ended) kit_append(c, bytes, n);
}

void mox_http_end(mox_http_call *c, bool whole)
{
    promise(c->streams);
    if (!c->ended) c->cut = !whole;
    c->ended = true;
}

/* ---- the program and the model, as far as endpoints ask for them ------------------------------------------------- */

const char *mox_http_method(const mox_http_call *c) { return c ? "POST" : NULL; }
uint64_t mox_cli_random(void) { return 5; }
void mox_log_note(mox_log *l, const char *id, const char *sentence) { promise(l && id && *sentence); }
int64_t mox_log_lost(mox_log *l) { return l ? 7 : 0; }
void mox_model_get_generation(const mox_model *m, mox_generation *out) { *out = (mox_generation){.top_k = m ? 1 : 0}; }
void mox_model_inspect(const mox_model *m, mox_inspection *out) { *out = (mox_inspection){.n_vocab = m ? 1 : 0}; }
void mox_scheduler_get_stats(mox_scheduler *s, mox_scheduler_stats *out)
{
    *out = (mox_scheduler_stats){.n_running = s ? 1 : 0};
}

int32_t mox_scheduler_get_slots(mox_scheduler *s, mox_slot_info *out, int32_t n) { return s && out ? n : 0; }

int mox_cli_session_begin(const mox_cli_session *s, mox_tokens *out)
{
    mox_err err;
    return mox_tokenizer_encode(s->tokenizer, "<S>", 3, MOX_ENCODE_SPECIAL, out, &err) == MOX_OK ? 0 : 1;
}

/* ---- the scheduler, and the reply that it has ----------------------------------------------------------------- */

typedef enum kit_reply { KIT_STOP, KIT_LENGTH, KIT_CALLS, KIT_FULL, KIT_FAILS, KIT_REPLIES } kit_reply;

static kit_reply kit_kind;
static const char *kit_text = "";
static size_t kit_n_text;

void mox_turn_get_message(const mox_turn *turn, mox_message *out)
{
    static const mox_call calls[] = {{"call_1", "f", "{\"a\":1}"}, {"call_2", "g", "{}"}};
    *out = (mox_message){.text = kit_text, .n_text = kit_n_text, .thinking = kit_text, .n_thinking = kit_n_text,
                         .calls = calls, .n_calls = turn && kit_kind == KIT_CALLS ? 2 : 0};
}

const int32_t *mox_turn_tokens(const mox_turn *turn, int64_t *n)
{
    static const int32_t ids[3] = {1, 2, 3};
    *n = turn ? 3 : 0;
    return ids;
}

void mox_turn_get_said(const mox_turn *turn, mox_marked_text *out)
{
    *out = (mox_marked_text){.text = turn ? kit_text : "", .n = turn ? kit_n_text : 0};
}

const char *mox_turn_stop_string(const mox_turn *turn) { return turn ? "stop" : NULL; }
bool mox_turn_reads(const mox_turn *turn, int32_t token) { return turn && token < 300; }
int64_t mox_turn_thinking_tokens(const mox_turn *turn) { return turn ? 1 : 0; }
void mox_scheduler_cancel(mox_scheduler *s, uint64_t id) { promise(!s && id); }

static void kit_part(const mox_request_opts *r, const mox_turn *turn, mox_part part, int32_t call, const char *text,
                     size_t n)
{
    const mox_logprob top[3] = {{65, -0.5F}, {200, -1.5F}, {66, -3.0F}};
    const mox_event said = {.kind = MOX_EVENT_PART, .part = part, .call = call, .text = text, .n = n, .turn = turn};
    const mox_event token = {.kind = MOX_EVENT_TOKEN, .token = top[0], .top = top, .n_top = r->n_logprobs < 3 ? r->n_logprobs : 3, .turn = turn};
    r->on_event(r->user, &said);
    r->on_event(r->user, &token);
}

mox_status mox_scheduler_submit(mox_scheduler *s, const mox_request_opts *r, uint64_t *id, mox_err *err)
{
    const mox_turn *turn = (const void *)kit_text; /* nobody looks into it */
    const mox_err broken = {.status = MOX_E_IO, .msg = "the disk is broken"};
    promise(!s && r->n_prompt > 0 && r->prompt && r->turn.n_stops <= MOX_ASK_STOPS && r->n_logprobs <= 20);
    if (kit_kind == KIT_FULL) return mox_fail(err, MOX_E_FULL, "the queue is full");
    *id = 7;
    r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_START, .n_prompt = r->n_prompt, .n_reused = 1, .reuse = "because"});
    for (int64_t i = 1; r->prompt_logprobs && i < r->n_prompt; i++)
        r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_PROMPT, .token = {r->prompt[i], -0.5F}});
    r->on_event(r->user, &(mox_event){.kind = MOX_EVENT_PREFILL, .n_prompt = r->n_prompt, .n_done = r->n_prompt});
    kit_part(r, turn, MOX_PART_THINKING, -1, kit_text, kit_n_text);
    kit_part(r, turn, MOX_PART_TEXT, -1, kit_text, kit_n_text);
    for (int32_t i = 0; kit_kind == KIT_CALLS && i < 2; i++) {
        kit_part(r, turn, MOX_PART_CALL_NAME, i, i ? "g" : "f", 1);
        kit_part(r, turn, MOX_PART_CALL_ARGUMENTS, i, i ? "{}" : "{\"a\":1}", i ? 2 : 7);
    }
    static const mox_stop stops[KIT_REPLIES] = {MOX_STOP_END, MOX_STOP_LENGTH, MOX_STOP_CALLS, MOX_STOP_END, MOX_STOP_END};
    mox_event done = {.kind = MOX_EVENT_DONE, .stop = stops[kit_kind], .turn = turn, .n_prompt = r->n_prompt};
    if (kit_kind == KIT_FAILS) {
        done.status = MOX_E_IO;
        done.err = &broken;
    }
    r->on_event(r->user, &done);
    return MOX_OK;
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

static mox_handler *const kit_endpoints[] = {
    mox_handle_chat,         mox_handle_completions, mox_handle_responses,  mox_handle_messages,
    mox_handle_count_tokens, mox_handle_tokenize,    mox_handle_detokenize, mox_handle_apply_template,
};
enum { KIT_ENDPOINTS = sizeof kit_endpoints / sizeof *kit_endpoints };

static mox_server kit_server;

/* With a template that knows tools and thinking and refuses system messages behind others. */
static inline void kit_open_server(void)
{
    static const char text[] =
        "{% if tools %}<S>{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}"
        "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
        "<S>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
        "{% endfor %}<E>\n{% endfor %}"
        "{% if add_generation_prompt %}<S>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}";
    const kit k = {.added = "{\"id\":300,\"content\":\"<S>\",\"special\":true},"
                            "{\"id\":301,\"content\":\"<E>\",\"special\":true}"};
    char path[] = "/tmp/moxie-request-XXXXXX";
    mox_err err;
    mox_server *s = &kit_server;
    const int fd = mkstemp(path);
    promise(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1 && close(fd) == 0);
    promise(kit_open(&s->session.tokenizer, &k, "{\"eos_token\": \"<E>\", \"bos_token\": \"<S>\"}", NULL) == MOX_OK);
    promise(mox_chat_open(&s->session.chat, "", s->session.tokenizer, &(mox_chat_opts){.template_file = path}, &err) == MOX_OK);
    promise(mox_token_trie_create(&s->trie, s->session.tokenizer, &err) == MOX_OK && unlink(path) == 0);
    promise(mox_quotes_create(&s->quotes, &err) == MOX_OK);
    mox_metrics_init(&s->metrics);
    s->settings.sampling = (mox_sampler_opts){.temperature = 1};
    s->settings.max_tokens = s->settings.think_budget = -1;
    s->n_ctx = 1 << 16;
    s->n_slots = 2;
    s->n_queue = 32;
    (void)strcpy(s->model_name, "x");
}

static inline void kit_close_server(void)
{
    mox_metrics_deinit(&kit_server.metrics);
    mox_quotes_destroy(&kit_server.quotes);
    mox_token_trie_destroy(&kit_server.trie);
    mox_chat_close(&kit_server.session.chat);
    mox_tokenizer_close(&kit_server.session.tokenizer);
}

static inline bool kit_is_json(const char *text, size_t n)
{
    json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_decref(value);
    return value != NULL;
}

static inline void kit_check_stream(const mox_http_call *c)
{
    promise(c->ended && (c->cut || c->n_out > 2));
    for (const char *line = c->out, *end; *line; line = end + 1) {
        end = strchr(line, '\n');
        promise(end != NULL);
        const size_t n = (size_t)(end - line);
        const bool is_end = n == 12 && strncmp(line, "data: [DONE]", n) == 0, is_data = strncmp(line, "data: ", 6) == 0;
        promise(n == 0 || is_end || is_data || strncmp(line, "event: ", 7) == 0);
        if (is_data && !is_end) promise(kit_is_json(line + 6, n - 6));
    }
}

static bool kit_cut; /* the last answer was a stream that ended before its end */

/* The status of the answer, whose text, to be freed, goes to *out. */
static inline int kit_ask(int endpoint, const char *body, size_t n, char **out)
{
    mox_http_call c = {.refs = 1, .body = body, .n_body = n};
    kit_endpoints[endpoint](&kit_server, &c);
    promise(c.refs == 1);
    mox_http_release(&c);
    promise(c.n_answers == 1);
    if (c.streams) kit_check_stream(&c);
    else promise(c.n_out > 0 && kit_is_json(c.out, c.n_out));
    *out = c.out;
    kit_cut = c.cut;
    return c.status;
}

#endif
