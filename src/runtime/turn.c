/* runtime/turn.c -- one reply: tokens chosen one by one, taken apart as they come.
 *
 * Logits go in, a token comes out; on the way its bytes become characters, the characters
 * parts of a message (text/reply.h), and the text is held against the stop strings.  A
 * thinking block that is over its budget is closed by tokens that nobody sampled.  With a
 * grammar (hold.h) only tokens that it allows are chosen.
 *
 * Owns: the sampler, the ids and bytes of the reply.   Borrows: model, tokenizer, chat, and perhaps the space that
 * the sampler chooses in. */
#include "runtime/turn.h"

#include "base/alloc.h"
#include "base/err.h"
#include "runtime/hold.h"
#include "text/chat_internal.h"
#include "text/stops.h"

#include <math.h>
#include <string.h>

struct mox_turn {
    const mox_tokenizer *tokenizer;
    mox_generation generation;
    mox_sampler *sampler;
    mox_sampler_space *space; /* borrowed; NULL: the sampler has one of its own */
    mox_reply *reply; /* NULL: all is text */
    mox_call_format format;
    mox_stops stops;
    mox_utf8_stream stream;
    mox_part_fn *on_part;
    void *on_part_user;
    int64_t max_tokens, think_budget;

    mox_tokens tokens;
    int64_t n_thinking;
    mox_tokens forced; /* ids that close a thinking block */
    int64_t n_forced;  /* of them that were given out */
    bool forcing;
    mox_hold hold; /* the grammar's */

    mox_writer said;
    mox_buffer plain; /* mox_text_span */
    size_t n_plain;
    mox_writer text; /* what went out as text */
    int32_t n_calls; /* that went out */
    mox_stop stop;
    mox_status status; /* the first failure; the turn is over then */
    mox_err *err;      /* of the running call */
};

/* ---- making one -------------------------------------------------------------------------------- */

/* What closes a thinking block, in the layout that models are trained on. */
static mox_status prepare_closing(mox_turn *t, mox_err *err)
{
    static const char closing[] = "\n</think>\n\n";
    return mox_tokenizer_encode(t->tokenizer, closing, sizeof closing - 1, MOX_ENCODE_SPECIAL, &t->forced, err);
}

static mox_status make_sampler(mox_turn *t, int64_t n_vocab, const mox_sampler_opts *o, mox_err *err)
{
    return t->space ? mox_sampler_create_in(&t->sampler, t->space, o, err) : mox_sampler_create(&t->sampler, n_vocab, o, err);
}

/* The sampler never chooses an end where the reply is to go on without one. */
static mox_status create_sampler(mox_turn *t, int64_t n_vocab, const mox_turn_opts *o, mox_err *err)
{
    mox_sampler_opts s = o->sampling;
    const bool no_list = s.n_logit_bias < 0 || (s.n_logit_bias > 0 && !s.logit_bias); /* which the sampler refuses */
    if (!o->ignore_end || no_list) return make_sampler(t, n_vocab, &s, err);
    if (o->grammar) return mox_fail(err, MOX_E_ARG, "ignore_eos: a reply that keeps to a form must be able to end");
    int32_t n_ends = 0;
    while (mox_stop_id(&t->generation, t->tokenizer, n_ends) >= 0) n_ends++;
    mox_logit_bias *all = mox_alloc_array((size_t)s.n_logit_bias + (size_t)n_ends, sizeof *all);
    if (!all) return mox_fail_memory(err, (size_t)n_ends * sizeof *all, "a reply");
    if (s.n_logit_bias > 0) memcpy(all, s.logit_bias, (size_t)s.n_logit_bias * sizeof *all);
    for (int32_t i = 0; i < n_ends; i++) {
        const int32_t end = mox_stop_id(&t->generation, t->tokenizer, i);
        if (end < n_vocab) all[s.n_logit_bias++] = (mox_logit_bias){end, -INFINITY};
    }
    s.logit_bias = all;
    const mox_status status = make_sampler(t, n_vocab, &s, err);
    mox_free(all);
    return status;
}

static void on_reply_part(void *user, mox_part part, int32_t call, const char *text, size_t n);

static mox_status init(mox_turn *t, const mox_model *m, const mox_chat *chat, const mox_turn_opts *o, mox_err *err)
{
    mox_model_info info;
    mox_model_get_info(m, &info);
    mox_model_get_generation(m, &t->generation);
    MOX_TRY(create_sampler(t, info.n_vocab, o, err));
    MOX_TRY(mox_stops_init(&t->stops, o->stops, o->n_stops, err));
    MOX_TRY(mox_hold_init(&t->hold, o, &t->generation, t->tokenizer, info.n_vocab, chat != NULL, err));
    if (!chat) return MOX_OK;
    const mox_reply_opts reply = {.format = chat->format, .thinking = o->thinking, .id_seed = o->call_seed, .tools = o->tools,
                                  .on_part = on_reply_part, .on_part_user = t};
    t->format = chat->format;
    MOX_TRY(mox_reply_create(&t->reply, &reply, err));
    return t->think_budget >= 0 ? prepare_closing(t, err) : MOX_OK;
}

mox_status mox_turn_create(mox_turn **out, const mox_model *m, const mox_tokenizer *tokenizer, const mox_chat *chat,
                           const mox_turn_opts *opts, mox_err *err)
{
    return mox_turn_create_in(out, m, tokenizer, chat, opts, NULL, err);
}

mox_status mox_turn_create_in(mox_turn **out, const mox_model *m, const mox_tokenizer *tokenizer, const mox_chat *chat,
                              const mox_turn_opts *opts, mox_sampler_space *space, mox_err *err)
{
    *out = NULL;
    mox_turn *t = mox_alloc_array(1, sizeof *t);
    if (!t) return mox_fail_memory(err, sizeof *t, "a reply");
    t->tokenizer = tokenizer;
    t->space = space;
    t->on_part = opts->on_part;
    t->on_part_user = opts->on_part_user;
    t->max_tokens = opts->max_tokens;
    t->think_budget = opts->think_budget;
    const mox_status status = init(t, m, chat, opts, err);
    if (status != MOX_OK) mox_turn_destroy(&t);
    *out = t;
    return status;
}

void mox_turn_destroy(mox_turn **turn)
{
    mox_turn *t = *turn;
    if (!t) return;
    mox_sampler_destroy(&t->sampler);
    mox_reply_destroy(&t->reply);
    mox_stops_deinit(&t->stops);
    mox_hold_deinit(&t->hold);
    mox_tokens_free(&t->tokens);
    mox_tokens_free(&t->forced);
    mox_writer_deinit(&t->said);
    mox_buffer_deinit(&t->plain);
    mox_writer_deinit(&t->text);
    mox_free(t);
    *turn = NULL;
}

void mox_turn_accept(mox_turn *t, int32_t token) { mox_sampler_accept(t->sampler, token); }

/* ---- what comes out ------------------------------------------------------------------------------- */

static void tell(mox_turn *t, mox_part part, int32_t call, const char *text, size_t n)
{
    if (t->on_part) t->on_part(t->on_part_user, part, call, text, n);
}

static void emit_text(void *user, const char *text, size_t n)
{
    mox_turn *t = user;
    if (t->status == MOX_OK) t->status = mox_write(&t->text, text, n, t->err);
    if (t->status == MOX_OK) tell(t, MOX_PART_TEXT, -1, text, n);
}

static void on_reply_part(void *user, mox_part part, int32_t call, const char *text, size_t n)
{
    mox_turn *t = user;
    if (t->status != MOX_OK || t->stops.found) return;
    if (part == MOX_PART_TEXT) {
        const mox_status status = mox_stops_push(&t->stops, text, n, emit_text, t, t->err);
        if (t->status == MOX_OK) t->status = status; /* emit_text may have failed in between */
        return;
    }
    mox_stops_end(&t->stops, emit_text, t); /* no stop string goes over a call */
    if (t->status != MOX_OK || t->stops.found) return;
    if (part == MOX_PART_CALL_NAME) t->n_calls++;
    tell(t, part, call, text, n);
}

static void on_characters(void *user, const char *text, size_t n)
{
    mox_turn *t = user;
    if (t->status != MOX_OK) return;
    if (t->reply) {
        const mox_status status = mox_reply_push(t->reply, text, n, t->err);
        if (t->status == MOX_OK) t->status = status;
    } else {
        on_reply_part(t, MOX_PART_TEXT, -1, text, n);
    }
}

/* Special tokens are seen by the parser of a format that is written in them; nobody reads the others. */
static bool is_read(const mox_turn *t, bool special, const char *bytes, size_t n)
{
    return !special || (t->reply && mox_reply_is_marker(t->format, bytes, n));
}

bool mox_turn_reads(const mox_turn *t, int32_t id)
{
    size_t n;
    const char *bytes = mox_tokenizer_bytes(t->tokenizer, id, &n);
    return bytes && is_read(t, mox_tokenizer_is_special(t->tokenizer, id), bytes, n);
}

static mox_status take_bytes(mox_turn *t, int32_t id, mox_err *err)
{
    size_t n;
    const char *bytes = mox_tokenizer_bytes(t->tokenizer, id, &n);
    const bool special = mox_tokenizer_is_special(t->tokenizer, id);
    if (!bytes) return MOX_OK;
    if (!special) {
        MOX_TRY(mox_buffer_reserve(&t->plain, t->n_plain + 1, sizeof(mox_text_span), "a reply", err));
        mox_text_span *spans = t->plain.data;
        if (t->n_plain > 0 && spans[t->n_plain - 1].end == t->said.n) spans[t->n_plain - 1].end += n;
        else spans[t->n_plain++] = (mox_text_span){t->said.n, t->said.n + n};
    }
    MOX_TRY(mox_write(&t->said, bytes, n, err));
    if (!is_read(t, special, bytes, n)) return MOX_OK;
    t->err = err;
    mox_utf8_stream_push(&t->stream, bytes, n, on_characters, t);
    return t->status;
}

/* ---- token by token ---------------------------------------------------------------------------------- */

static mox_status append(mox_turn *t, int32_t id, mox_err *err)
{
    mox_buffer b = {t->tokens.ids, (size_t)t->tokens.capacity};
    MOX_TRY(mox_buffer_reserve(&b, (size_t)t->tokens.n + 1, sizeof id, "a reply", err));
    t->tokens.ids = b.data;
    t->tokens.capacity = (int64_t)b.capacity;
    t->tokens.ids[t->tokens.n++] = id;
    return MOX_OK;
}

static mox_status choose(mox_turn *t, const float *logits, int32_t *id, mox_err *err)
{
    const bool thinking = t->reply && mox_reply_is_thinking(t->reply);
    if (thinking && t->think_budget >= 0 && t->n_thinking >= t->think_budget) t->forcing = t->n_forced < t->forced.n;
    if (thinking) t->n_thinking++;
    if (!t->forcing) return mox_hold_choose(&t->hold, t->sampler, logits, t->tokens.n == 0, id, err);
    *id = t->forced.ids[t->n_forced++];
    t->forcing = t->n_forced < t->forced.n;
    mox_sampler_accept(t->sampler, *id);
    return MOX_OK;
}

static mox_status check_whole(const mox_turn *t, mox_err *err)
{
    return t->status == MOX_OK ? MOX_OK : mox_fail(err, t->status, "a reply that has failed cannot go on");
}

mox_status mox_turn_end(mox_turn *t, mox_stop why, mox_err *err)
{
    MOX_TRY(check_whole(t, err));
    if (t->stop != MOX_STOP_NOT) return MOX_OK;
    t->err = err;
    const bool complete = why == MOX_STOP_END;
    mox_utf8_stream_end(&t->stream, on_characters, t);
    if (t->status == MOX_OK && t->reply) {
        const mox_status status = mox_reply_finish(t->reply, complete, err);
        if (t->status == MOX_OK) t->status = status;
    }
    if (t->status == MOX_OK) mox_stops_end(&t->stops, emit_text, t);
    t->stop = t->stops.found ? MOX_STOP_STRING : complete && t->n_calls > 0 ? MOX_STOP_CALLS : why;
    return t->status;
}

static mox_status advance(mox_turn *t, const float *logits, int32_t *token, mox_err *err)
{
    bool over;
    MOX_TRY(mox_hold_look(&t->hold, t->reply && mox_reply_has_open_thinking(t->reply), &over, err));
    if (over) return mox_turn_end(t, MOX_STOP_END, err);
    if (t->tokens.n >= t->max_tokens) return mox_turn_end(t, MOX_STOP_LENGTH, err);
    MOX_TRY(choose(t, logits, token, err));
    MOX_TRY(mox_hold_accept(&t->hold, *token, err));
    MOX_TRY(append(t, *token, err));
    if (mox_is_stop(&t->generation, t->tokenizer, *token)) return mox_turn_end(t, MOX_STOP_END, err);
    MOX_TRY(take_bytes(t, *token, err));
    if (t->stops.found) return mox_turn_end(t, MOX_STOP_STRING, err);
    if (mox_hold_is_over(&t->hold)) return mox_turn_end(t, MOX_STOP_END, err);
    return t->tokens.n >= t->max_tokens ? mox_turn_end(t, MOX_STOP_LENGTH, err) : MOX_OK;
}

mox_status mox_turn_next(mox_turn *t, const float *logits, int32_t *token, mox_stop *stop, mox_err *err)
{
    mox_status status = check_whole(t, err);
    if (status == MOX_OK && t->stop == MOX_STOP_NOT) t->status = status = advance(t, logits, token, err);
    *stop = t->stop;
    return status;
}

/* ---- what there is --------------------------------------------------------------------------------------- */

void mox_turn_get_message(const mox_turn *t, mox_message *out)
{
    *out = (mox_message){.thinking = ""};
    if (t->reply) mox_reply_get_message(t->reply, out);
    out->text = mox_writer_text(&t->text); /* all of it ends before a stop string */
    out->n_text = t->text.n;
    out->n_calls = t->n_calls;
}

const int32_t *mox_turn_tokens(const mox_turn *t, int64_t *n)
{
    *n = t->tokens.n;
    return t->tokens.ids;
}

void mox_turn_get_said(const mox_turn *t, mox_marked_text *out)
{
    *out = (mox_marked_text){mox_writer_text(&t->said), t->said.n, t->plain.data, t->n_plain};
}

const char *mox_turn_stop_string(const mox_turn *t)
{
    return t->stops.found ? t->stops.strings[t->stops.which] : NULL;
}

int64_t mox_turn_thinking_tokens(const mox_turn *t) { return t->n_thinking; }

static mox_status write_call(mox_writer *w, const mox_call *call, mox_err *err)
{
    MOX_TRY(mox_write_text(w, "{\"id\": ", err));
    MOX_TRY(mox_write_json(w, call->id, strlen(call->id), err));
    MOX_TRY(mox_write_text(w, ", \"type\": \"function\", \"function\": {\"name\": ", err));
    MOX_TRY(mox_write_json(w, call->name, strlen(call->name), err));
    MOX_TRY(mox_write_text(w, ", \"arguments\": ", err));
    MOX_TRY(mox_write_json(w, call->arguments, strlen(call->arguments), err));
    return mox_write_text(w, "}}", err);
}

static mox_status write_message(mox_writer *w, const mox_message *m, mox_err *err)
{
    MOX_TRY(mox_write_text(w, "{\"role\": \"assistant\", \"content\": ", err));
    MOX_TRY(mox_write_json(w, m->text, m->n_text, err));
    if (m->n_thinking > 0) {
        MOX_TRY(mox_write_text(w, ", \"reasoning_content\": ", err));
        MOX_TRY(mox_write_json(w, m->thinking, m->n_thinking, err));
    }
    for (int32_t i = 0; i < m->n_calls; i++) {
        MOX_TRY(mox_write_text(w, i == 0 ? ", \"tool_calls\": [" : ", ", err));
        MOX_TRY(write_call(w, &m->calls[i], err));
    }
    return mox_write_text(w, m->n_calls > 0 ? "]}" : "}", err);
}

mox_status mox_turn_message_json(const mox_turn *t, char **out, mox_err *err)
{
    mox_writer w = {0};
    mox_message message;
    *out = NULL;
    mox_turn_get_message(t, &message);
    const mox_status status = write_message(&w, &message, err);
    if (status == MOX_OK) *out = mox_writer_take(&w);
    mox_writer_deinit(&w);
    return status;
}

void mox_text_free(char **text)
{
    mox_free(*text);
    *text = NULL;
}
