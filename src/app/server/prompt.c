/* app/server/prompt.c -- messages to a prompt's tokens (ask.h).
 *
 * Beyond what mox_chat_render does: a trailing assistant message is the beginning of the reply,
 * and a template that refuses system messages in the midst of a conversation gets them as
 * marked text of the user.  What the model itself said lately stands in the prompt as it said it
 * (quotes.h). */
#include "app/server/ask.h"

#include "app/server/server.h"
#include "app/server/structure.h"
#include "base/alloc.h"
#include "base/json_fields.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- content ------------------------------------------------------------------------------------- */

typedef struct part_join {
    mox_put *out;
    const char *what;
    bool any;
} part_join;

static mox_status put_string_of(mox_json_span value, const char *what, mox_put *out, mox_err *err)
{
    char *text = NULL;
    size_t n = 0;
    MOX_TRY(mox_json_get_string(value, what, &text, &n, err));
    mox_put_raw(out, text ? text : "", n);
    mox_free(text);
    return MOX_OK;
}

static mox_status join_part(void *user, mox_json_span part, mox_err *err)
{
    static const char *const names[] = {"type", "text"};
    part_join *j = user;
    mox_json_span v[2] = {{0}, part};
    if (!mox_span_is_string(part)) {
        if (!mox_span_is_object(part))
            return mox_fail(err, MOX_E_ARG, "%s has a part that is no object", j->what);
        MOX_TRY(mox_json_fields(part, j->what, names, 2, v, err));
        if (!mox_span_is(v[0], "text") && !mox_span_is(v[0], "input_text") &&
            !mox_span_is(v[0], "output_text"))
            return mox_fail(err, MOX_E_ARG, "%s has a part of type %.*s; this model takes text only", j->what,
                            (int)(v[0].n < 60 ? v[0].n : 60), v[0].text ? v[0].text : "");
        if (!mox_span_is_string(v[1]))
            return mox_fail(err, MOX_E_ARG, "%s has a text part without its text", j->what);
    }
    if (j->any) mox_put_raw(j->out, "\n", 1);
    j->any = true;
    return put_string_of(v[1], j->what, j->out, err);
}

mox_status mox_content_text(mox_json_span content, const char *what, mox_put *out, mox_err *err)
{
    part_join j = {out, what, false};
    if (mox_json_is_null(content)) return MOX_OK;
    if (mox_span_is_string(content)) return put_string_of(content, what, out, err);
    if (!mox_span_is_array(content))
        return mox_fail(err, MOX_E_ARG, "%s must be a string or an array of parts", what);
    return mox_json_each(content, what, join_part, &j, err);
}

/* ---- the list of messages ------------------------------------------------------------------------ */

typedef struct message_ref {
    mox_json_text text; /* borrowed from the array */
    bool assistant, system, developer; /* a developer is another name of the system */
} message_ref;

typedef struct message_list {
    mox_buffer refs; /* message_ref */
    size_t n;
} message_list;

static mox_status add_message(void *user, const char *role, mox_json_text message, mox_err *err)
{
    message_list *l = user;
    MOX_TRY(mox_buffer_reserve(&l->refs, l->n + 1, sizeof(message_ref), "messages", err));
    ((message_ref *)l->refs.data)[l->n++] =
        (message_ref){.text = message,
                      .assistant = strcmp(role, "assistant") == 0,
                      .system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0,
                      .developer = strcmp(role, "developer") == 0};
    return MOX_OK;
}

/* The text of the message at a place of the request's list. */
static mox_status put_content(mox_json_span content, size_t at, mox_put *out, mox_err *err)
{
    char what[48];
    (void)snprintf(what, sizeof what, "messages[%zu].content", at);
    return mox_content_text(content, what, out, err);
}

static mox_json_span as_span(mox_json_text t) { return (mox_json_span){"messages", t.text, t.n, 0}; }

/* A system message anew: under that name or in the user's words, with what note adds. */
static mox_status write_system(mox_json_text message, size_t at, bool as_user, const mox_put *note, mox_put *out,
                               mox_err *err)
{
    static const char *const names[] = {"content"};
    mox_json_span content;
    mox_put text = {0};
    if (as_user) mox_put_raw(&text, "<system>\n", 9);
    mox_status status = mox_json_fields(as_span(message), "a message", names, 1, &content, err);
    if (status == MOX_OK) status = put_content(content, at, &text, err);
    if (as_user) mox_put_raw(&text, "\n</system>", 10);
    if (note) mox_putf(&text, "\n\n%s", mox_writer_text(&note->w));
    mox_putf(out, "{\"role\":\"%s\",\"content\":", as_user ? "user" : "system");
    mox_put_json(out, mox_writer_text(&text.w), text.w.n);
    mox_putf(out, "}");
    if (text.failed) out->failed = true;
    mox_put_deinit(&text);
    return status;
}

/* Whether there will be a message before the first one. */
static bool adds_note(const mox_ask *a, const message_list *l)
{
    return a->form == MOX_FORM_SCHEMA &&
           !((const message_ref *)l->refs.data)[0].system; /* mox_structure_put_note */
}

/* messages[0, n) again, with system messages behind others in the user's words. */
static mox_status write_list(const message_list *l, size_t n, bool rewrite, const mox_put *note, mox_put *out,
                             mox_err *err)
{
    const message_ref *refs = l->refs.data;
    bool begun = false; /* something that is no system message has come */
    mox_putf(out, "[");
    if (note->w.n > 0 && !refs[0].system) { /* adds_note */
        mox_putf(out, "{\"role\":\"system\",\"content\":");
        mox_put_json(out, mox_writer_text(&note->w), note->w.n);
        mox_putf(out, "},");
    }
    for (size_t i = 0; i < n; i++) {
        if (i > 0) mox_putf(out, ",");
        begun = begun || !refs[i].system;
        const bool as_user = rewrite && refs[i].system && begun,
                   noted = i == 0 && refs[0].system && note->w.n > 0;
        if (as_user || noted || refs[i].developer)
            MOX_TRY(write_system(refs[i].text, i, as_user, noted ? note : NULL, out, err));
        else mox_put_raw(out, refs[i].text.text, refs[i].text.n);
    }
    mox_putf(out, "]");
    return mox_put_ok(out) && mox_put_ok(note) ? MOX_OK : mox_fail_memory(err, out->w.n, "messages");
}

static mox_status write_messages(const mox_ask *a, const message_list *l, size_t n, bool rewrite,
                                 mox_put *out, mox_err *err)
{
    mox_put note = {0};
    mox_structure_put_note(a, &note);
    const mox_status status = write_list(l, n, rewrite, &note, out, err);
    mox_put_deinit(&note);
    return status;
}

static bool has_late_system(const message_list *l)
{
    const message_ref *refs = l->refs.data;
    bool begun = false;
    for (size_t i = 0; i < l->n; i++) {
        if (refs[i].system && begun) return true;
        begun = begun || !refs[i].system;
    }
    return false;
}

/* ---- what the model said ------------------------------------------------------------------------- */

typedef struct quoted {
    const mox_quote **quotes; /* [n], held */
    mox_said *said;           /* [n] */
    size_t n;
} quoted;

static void release_quoted(quoted *q, const mox_server *s)
{
    for (size_t i = 0; i < q->n; i++) mox_quotes_release(s->quotes, q->quotes[i]);
    mox_free(q->quotes);
    mox_free(q->said);
}

static mox_status take_first(void *user, mox_json_span value, mox_err *err)
{
    mox_json_span *first = user;
    (void)err;
    if (!first->text) *first = value;
    return MOX_OK;
}

/* The text of a message and, JSON's quotes included, the id of its first call. */
static mox_status read_said(mox_json_text message, mox_put *text, mox_json_span *id, mox_err *err)
{
    static const char *const names[] = {"content", "tool_calls"}, *const inner[] = {"id"};
    mox_json_span v[2], call = {0};
    MOX_TRY(mox_json_fields(as_span(message), "a message", names, 2, v, err));
    MOX_TRY(mox_content_text(v[0], "content", text, err));
    if (mox_span_is_array(v[1])) MOX_TRY(mox_json_each(v[1], "tool_calls", take_first, &call, err));
    return mox_span_is_object(call) ? mox_json_fields(call, "tool_calls", inner, 1, id, err) : MOX_OK;
}

static const mox_quote *find_quote(const mox_server *s, mox_json_text message)
{
    mox_put text = {0};
    mox_json_span id = {0};
    const mox_quote *found = NULL;
    /* What is wrong with a message is found, and told, when it is rendered. */
    const bool readable = read_said(message, &text, &id, NULL) == MOX_OK && mox_put_ok(&text);
    const bool called = mox_span_is_string(id);
    if (readable)
        found = mox_quotes_find(s->quotes, mox_writer_text(&text.w), text.w.n, called ? id.text + 1 : "",
                                called ? id.n - 2 : 0);
    mox_put_deinit(&text);
    return found;
}

/* shift: of the messages in the list that is rendered. */
static mox_status find_quoted(const mox_server *s, const message_list *l, size_t shift, quoted *out,
                              mox_err *err)
{
    const message_ref *refs = l->refs.data;
    out->quotes = mox_alloc_array(l->n, sizeof *out->quotes);
    out->said = mox_alloc_array(l->n, sizeof *out->said);
    if (!out->quotes || !out->said) return mox_fail_memory(err, l->n * sizeof *out->said, "messages");
    for (size_t i = 0; i < l->n; i++) {
        const mox_quote *found = refs[i].assistant ? find_quote(s, refs[i].text) : NULL;
        if (!found) continue;
        out->said[out->n] = found->said;
        out->said[out->n].message = (int64_t)(i + shift);
        out->quotes[out->n++] = found;
    }
    return MOX_OK;
}

/* ---- rendering ----------------------------------------------------------------------------------- */

/* What the library calls kwargs has a longer name in requests. */
static void name_kwargs(mox_err *err)
{
    const mox_err e = *err;
    if (strncmp(e.msg, "kwargs", 6) == 0) (void)mox_fail(err, e.status, "chat_template_%.450s", e.msg);
}

/* Nobody outside knows of the note that stands before the request's messages. */
static void name_place(size_t shift, mox_err *err)
{
    const mox_err e = *err;
    size_t at;
    int n = 0;
    if (shift > 0 && sscanf(e.msg, "messages[%zu]%n", &at, &n) == 1 && n > 0 && at >= shift)
        (void)mox_fail(err, e.status, "messages[%zu]%.450s", at - shift, e.msg + n);
}

/* What the API calls messages; what is wrong with a single one of them it has told before. */
static void name_messages(const char *field, mox_err *err)
{
    static const char name[] = "messages";
    const mox_err e = *err;
    if (field && strncmp(e.msg, name, sizeof name - 1) == 0)
        (void)mox_fail(err, e.status, "%s%.450s", field, e.msg + sizeof name - 1);
}

typedef struct rendering {
    const mox_ask *ask;
    const mox_server *server;
    const message_list *list;
    quoted quoted;
    size_t n;     /* messages of the list that are rendered */
    size_t shift; /* of them, by a note before the first */
    bool begun;   /* the one behind them is the beginning of the reply */
} rendering;

static mox_status render_once(const rendering *r, bool rewrite, mox_prompt *out, mox_err *err)
{
    const mox_ask *a = r->ask;
    mox_put messages = {0};
    const time_t now = time(NULL);
    struct tm local;
    mox_status status = write_messages(a, r->list, r->n, rewrite, &messages, err);
    if (status == MOX_OK) {
        const mox_chat_request request = {
            .messages = {mox_writer_text(&messages.w), messages.w.n},
            .tools = {a->tools.w.n ? mox_writer_text(&a->tools.w) : NULL, a->tools.w.n},
            .kwargs = {a->kwargs.w.n ? mox_writer_text(&a->kwargs.w) : NULL, a->kwargs.w.n},
            .think = r->begun ? MOX_THINK_OFF : a->think, /* what was begun is no thought */
            .no_generation_prompt = a->no_generation_prompt && !r->begun,
            .said = r->quoted.said,
            .n_said = r->quoted.n,
            .unix_time_s = now,
            .utc_offset_s = localtime_r(&now, &local) ? (int32_t)local.tm_gmtoff : 0,
        };
        status = mox_chat_render(r->server->session.chat, &request, out, err);
        if (status != MOX_OK) {
            name_kwargs(err);
            name_place(r->shift, err);
        }
    }
    mox_put_deinit(&messages);
    return status;
}

/* The prompt goes on with the text that the client began the reply with. */
static mox_status append_beginning(mox_prompt *p, const char *text, size_t n, mox_err *err)
{
    if (n == 0) return MOX_OK;
    char *longer = mox_realloc_array(p->text, p->n + n + 1, 1);
    if (longer) p->text = longer;
    mox_text_span *spans = longer ? mox_realloc_array(p->plain, p->n_plain + 1, sizeof *spans) : NULL;
    if (!spans) return mox_fail_memory(err, p->n + n, "a prompt");
    p->plain = spans;
    memcpy(p->text + p->n, text, n);
    spans[p->n_plain++] = (mox_text_span){p->n, p->n + n};
    p->n += n;
    p->text[p->n] = '\0';
    return MOX_OK;
}

/* The text of a last message that is the beginning of the reply. */
static mox_status read_beginning(const mox_ask *a, const message_list *l, mox_put *out, bool *begun,
                                 mox_err *err)
{
    static const char *const names[] = {"content", "tool_calls", "reasoning_content"};
    const message_ref *refs = l->refs.data;
    const bool assistant = l->n > 0 && refs[l->n - 1].assistant;
    mox_json_span v[3];
    if (a->final_is_begun && !assistant)
        return mox_fail(err, MOX_E_ARG,
                        "continue_final_message is true, but the last message is not the assistant's");
    *begun = assistant && !a->final_is_whole;
    if (!*begun) return MOX_OK;
    if (l->n == 1)
        return mox_fail(err, MOX_E_ARG,
                        "messages has an assistant message alone; there is nothing to answer");
    if (refs[l->n - 2].assistant)
        return mox_fail(err, MOX_E_ARG,
                        "messages ends in two assistant messages; only the last can be continued");
    MOX_TRY(mox_json_fields(as_span(refs[l->n - 1].text), "a message", names, 3, v, err));
    if (mox_span_is_array(v[1]) && v[1].n > 2)
        return mox_fail(err, MOX_E_ARG, "messages ends in tool calls; their results must follow");
    if (!a->only_counted && !mox_json_is_null(v[2]) && !mox_span_is(v[2], "")) /* no template says how thoughts go on as a reply */
        return mox_fail(err, MOX_E_ARG,
                        "messages ends in an assistant message with thoughts (reasoning_content, or a block or item of "
                        "them), of which only the text can be continued; leave them out");
    return put_content(v[0], l->n - 1, out, err);
}

static mox_status render(rendering *r, mox_asked *out, mox_err *err)
{
    mox_put beginning = {0};
    mox_status status = read_beginning(r->ask, r->list, &beginning, &r->begun, err);
    r->n = r->list->n - (r->begun ? 1 : 0);
    if (status == MOX_OK) status = render_once(r, false, &out->prompt, err);
    if (status == MOX_E_REFUSED && has_late_system(r->list)) {
        out->rewritten = true;
        status = render_once(r, true, &out->prompt, err);
    }
    if (status == MOX_OK)
        status = append_beginning(&out->prompt, mox_writer_text(&beginning.w), beginning.w.n, err);
    mox_put_deinit(&beginning);
    return status;
}

/* With the ids of the last reply that is quoted, as far as they still spell the prompt. */
static mox_status encode(const rendering *r, mox_asked *out, mox_err *err)
{
    const mox_quote *last = r->quoted.n > 0 ? r->quoted.quotes[r->quoted.n - 1] : NULL;
    out->thinking = out->prompt.thinking;
    return mox_prompt_encode(r->server->session.tokenizer, &out->prompt, last ? last->ids : NULL,
                             last ? last->n_ids : 0, &out->tokens, &out->n_before, err);
}

mox_status mox_ask_render(const mox_ask *a, const mox_server *s, mox_asked *out, mox_err *err)
{
    message_list l = {0};
    rendering r = {.ask = a, .server = s, .list = &l};
    const mox_json_text messages = {mox_writer_text(&a->messages.w), a->messages.w.n};
    mox_status status;
    if (!s->session.chat)
        status = mox_fail(err, MOX_E_ARG, "messages: this model has no chat template; use /v1/completions, or start the "
                                          "server with --template");
    else status = mox_messages_each("messages", messages, add_message, &l, err);
    if (status == MOX_OK && l.n == 0)
        status = mox_fail(err, MOX_E_ARG, "messages is empty: there is nothing to answer");
    if (status == MOX_OK) {
        r.shift = adds_note(a, &l) ? 1 : 0;
        status = find_quoted(s, &l, r.shift, &r.quoted, err);
    }
    if (status == MOX_OK) status = render(&r, out, err);
    if (status == MOX_OK) status = encode(&r, out, err);
    else name_messages(a->messages_field, err);
    release_quoted(&r.quoted, s);
    mox_buffer_deinit(&l.refs);
    return status;
}

void mox_asked_deinit(mox_asked *p)
{
    mox_tokens_free(&p->tokens);
    mox_prompt_free(&p->prompt);
}
