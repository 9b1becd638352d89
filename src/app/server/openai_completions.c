/* app/server/openai_completions.c -- /v1/completions: text that is continued as it is. */
#include "app/server/answer.h"

#include "app/server/structure.h"
#include "base/alloc.h"
#include "base/json_fields.h"
#include "base/utf8.h"

#include <math.h>

/* ---- the request --------------------------------------------------------------------------------- */

/* The marks around what is before and behind the text that is wanted, in models that know such. */
static const char *const middles[][3] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
};

typedef struct prompt_reader {
    mox_answer *answer;
    mox_tokens *ids; /* of the prompt that is read */
    const mox_json_span *suffix; /* NULL: none */
    int32_t marks[3];            /* of middles, for it */
} prompt_reader;

static mox_status append_id(mox_tokens *ids, int32_t id, mox_err *err)
{
    mox_buffer b = {ids->ids, (size_t)ids->capacity};
    MOX_TRY(mox_buffer_reserve(&b, (size_t)ids->n + 1, sizeof id, "a prompt", err));
    *ids = (mox_tokens){b.data, ids->n, (int64_t)b.capacity};
    ids->ids[ids->n++] = id;
    return MOX_OK;
}

static mox_status add_id(void *user, mox_json_span value, mox_err *err)
{
    prompt_reader *r = user;
    const mox_json_token t = {.type = MOX_JSON_NUMBER, .text = value.text, .n = value.n};
    int64_t id;
    if (!mox_json_token_int(&t, &id) || id < 0 ||
        id >= mox_tokenizer_size(r->answer->server->session.tokenizer))
        return mox_fail(err, MOX_E_ARG, "prompt has a number that is no token of this model");
    return append_id(r->ids, (int32_t)id, err);
}

static mox_status add_text(const prompt_reader *r, mox_json_span value, const char *what, mox_err *err)
{
    char *text = NULL;
    size_t n = 0;
    MOX_TRY(mox_json_get_string(value, what, &text, &n, err));
    const mox_status status =
        mox_tokenizer_encode(r->answer->server->session.tokenizer, text, n, MOX_ENCODE_SPECIAL, r->ids, err);
    mox_free(text);
    return status;
}

static mox_status add_content(prompt_reader *r, mox_json_span value, mox_err *err)
{
    if (mox_span_is_string(value)) return add_text(r, value, "prompt", err);
    if (mox_span_is_array(value)) return mox_json_each(value, "prompt", add_id, r, err);
    return mox_fail(err, MOX_E_ARG, "prompt must be a string, a list of tokens, or an array of those");
}

/* A prompt: a string or a list of tokens. */
static mox_status add_prompt(void *user, mox_json_span value, mox_err *err)
{
    prompt_reader *r = user;
    mox_ask *a = &r->answer->ask;
    if ((a->n_prompts + 1) * a->n > MOX_CHOICES)
        return mox_fail(err, MOX_E_ARG, "prompt: prompts times n may be %d at most", MOX_CHOICES);
    r->ids = &a->prompts[a->n_prompts++];
    if (mox_span_is_string(value) && mox_cli_session_begin(&r->answer->server->session, r->ids) != 0)
        return mox_fail_memory(err, sizeof *r->ids->ids, "a prompt");
    const int64_t n_begin = r->ids->n;
    if (r->suffix) MOX_TRY(append_id(r->ids, r->marks[0], err));
    const int64_t at = r->ids->n;
    MOX_TRY(add_content(r, value, err));
    mox_cli_drop_second_bos(r->ids, n_begin, at);
    if (!r->suffix) return MOX_OK;
    MOX_TRY(append_id(r->ids, r->marks[1], err));
    MOX_TRY(add_text(r, *r->suffix, "suffix", err));
    return append_id(r->ids, r->marks[2], err);
}

static mox_status read_suffix(prompt_reader *r, const mox_field_value *suffix, mox_err *err)
{
    if (!suffix->given || mox_span_is(suffix->raw, "")) return MOX_OK;
    for (size_t i = 0; i < sizeof middles / sizeof *middles; i++) {
        int n = 0;
        for (int k = 0; k < 3; k++) {
            r->marks[k] = mox_tokenizer_added_id(r->answer->server->session.tokenizer, middles[i][k]);
            n += r->marks[k] >= 0;
        }
        if (n < 3) continue;
        r->suffix = &suffix->raw;
        return MOX_OK;
    }
    return mox_fail(err, MOX_E_ARG,
                    "suffix cannot be used: this model has no tokens for text with a gap in its middle");
}

/* Whether an array's first element is a number. */
static bool is_list_of_ids(mox_json_span array)
{
    size_t i = 1;
    while (i < array.n &&
           (array.text[i] == ' ' || array.text[i] == '\n' || array.text[i] == '\t' || array.text[i] == '\r'))
        i++;
    return i < array.n && ((array.text[i] >= '0' && array.text[i] <= '9') || array.text[i] == '-');
}

static mox_status read_completion(mox_answer *answer, const mox_fields *f, mox_err *err)
{
    mox_ask *a = &answer->ask;
    prompt_reader r = {.answer = answer};
    const mox_field_value *prompt = &f->v[FIELD_PROMPT], *logprobs = &f->v[FIELD_LOGPROBS];
    if (!prompt->given) return mox_fail(err, MOX_E_ARG, "prompt is missing");
    if (f->v[FIELD_BEST_OF].given && f->v[FIELD_BEST_OF].number != a->n)
        return mox_fail(err, MOX_E_ARG, "best_of is not supported, unless it is the same as n");
    a->echo = mox_field_on(f, FIELD_ECHO, false);
    if (!f->v[FIELD_MAX_TOKENS].given && a->max_tokens < 0) a->max_tokens = 16; /* as the API has it */
    if (logprobs->given && (logprobs->type == IS_INT || logprobs->on))
        a->n_logprobs = logprobs->type == IS_INT ? (int)logprobs->number : 0;
    if (f->v[FIELD_N_PROBS].given && f->v[FIELD_N_PROBS].number > 0)
        a->n_logprobs = (int)f->v[FIELD_N_PROBS].number;
    MOX_TRY(mox_structure_read_openai(a, f, err));
    MOX_TRY(read_suffix(&r, &f->v[FIELD_SUFFIX], err));
    if (prompt->type == IS_STRING || is_list_of_ids(prompt->raw)) return add_prompt(&r, prompt->raw, err);
    MOX_TRY(mox_json_each(prompt->raw, "prompt", add_prompt, &r, err));
    return a->n_prompts > 0 ? MOX_OK
                            : mox_fail(err, MOX_E_ARG, "prompt is empty: there is nothing to continue");
}

/* ---- the answer ---------------------------------------------------------------------------------- */

static void put_head(mox_put *p, const mox_answer *a)
{
    mox_putf(p, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":",
             mox_http_id(a->call), (long long)a->created);
    mox_put_string(p, a->server->model_name);
    mox_putf(p, ",\"system_fingerprint\":\"moxie-%s\",\"choices\":[", mox_version());
}

static void put_token_text(mox_put *p, const mox_answer *a, int32_t id)
{
    size_t n = 0;
    const char *bytes = mox_tokenizer_bytes(a->server->session.tokenizer, id, &n);
    mox_put_json(p, bytes ? bytes : "", n);
}

/* Characters that begin in the bytes. */
static int64_t count_characters(const char *bytes, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

/* {tokens, token_logprobs, top_logprobs, text_offset} of records that were not shown yet. */
static void put_logprobs(mox_put *p, const mox_answer *a, mox_choice *c)
{
    const size_t stride = 1 + (size_t)a->ask.n_logprobs;
    const mox_logprob *all = c->records.data;
    const int64_t from = c->n_shown;
    mox_putf(p, "{\"tokens\":[");
    for (int64_t i = from; i < c->n_text; i++) {
        if (i > from) mox_putf(p, ",");
        put_token_text(p, a, all[(size_t)i * stride].token);
    }
    mox_putf(p, "],\"token_logprobs\":[");
    for (int64_t i = from; i < c->n_text; i++) {
        if (i > from) mox_putf(p, ",");
        mox_put_real(p, (double)all[(size_t)i * stride].logprob);
    }
    mox_putf(p, "],\"top_logprobs\":[");
    for (int64_t i = from; i < c->n_text; i++) {
        const mox_logprob *r = &all[(size_t)i * stride];
        const bool none = isnan(r->logprob); /* the first token, or what a broken model says of one */
        mox_putf(p, "%s%s", i > from ? "," : "", none ? "null" : "{");
        for (size_t k = 1; !none && k < stride && r[k].token >= 0; k++) {
            if (k > 1) mox_putf(p, ",");
            put_token_text(p, a, r[k].token);
            mox_putf(p, ":");
            mox_put_real(p, (double)r[k].logprob);
        }
        if (!none) mox_putf(p, "}");
    }
    mox_putf(p, "],\"text_offset\":[");
    for (int64_t i = from; i < c->n_text; i++) {
        size_t n = 0;
        const char *bytes =
            mox_tokenizer_bytes(a->server->session.tokenizer, all[(size_t)i * stride].token, &n);
        mox_putf(p, "%s%lld", i > from ? "," : "", (long long)c->n_characters);
        c->n_characters += count_characters(bytes, n);
    }
    mox_putf(p, "]}");
}

static void put_choice(mox_put *p, mox_answer *a, mox_choice *c, const char *text, size_t n,
                       const char *finish)
{
    mox_putf(p, "{\"index\":%d,\"text\":", c->index);
    mox_put_json(p, text, n);
    mox_putf(p, ",\"logprobs\":");
    if (a->ask.n_logprobs >= 0) put_logprobs(p, a, c);
    else mox_putf(p, "null");
    c->n_shown = c->n_text;
    mox_putf(p, ",\"finish_reason\":");
    mox_put_string(p, finish);
    mox_putf(p, "}");
}

static void put_piece(mox_answer *a, mox_choice *c, const char *text, size_t n, const char *finish)
{
    mox_putf(&a->out, "data: ");
    put_head(&a->out, a);
    put_choice(&a->out, a, c, text, n, finish);
    mox_putf(&a->out, "]}\n\n");
}

static void put_prompt(mox_put *p, const mox_answer *a, const mox_choice *c)
{
    const mox_tokens *ids = &a->ask.prompts[c->prompt];
    for (int64_t i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *bytes = mox_tokenizer_bytes(a->server->session.tokenizer, ids->ids[i], &n);
        if (bytes) mox_put_raw(p, bytes, n);
    }
}

/* With logprobs the prompt goes out as it is computed. */
static void begin(mox_answer *a)
{
    for (int i = 0; a->ask.echo && a->ask.n_logprobs < 0 && i < a->n_choices; i++) {
        mox_put text = {0};
        put_prompt(&text, a, &a->choices[i]);
        put_piece(a, &a->choices[i], mox_writer_text(&text.w), text.w.n, NULL);
        mox_put_deinit(&text);
    }
}

static void flush(mox_answer *a, mox_choice *c)
{
    put_piece(a, c, mox_writer_text(&c->pending.w), c->pending.w.n, NULL);
    if (c->pending.failed) a->out.failed = true;
    mox_put_clear(&c->pending);
}

static void prompt(mox_answer *a, mox_choice *c, int32_t token)
{
    size_t n = 0;
    const char *bytes = mox_tokenizer_bytes(a->server->session.tokenizer, token, &n);
    if (bytes) mox_put_raw(&c->pending, bytes, n);
    const unsigned char *text = (const unsigned char *)mox_writer_text(&c->pending.w);
    const size_t n_cut = c->pending.w.n - mox_utf8_valid_prefix(text, c->pending.w.n);
    if (n_cut > 0 && n_cut < 4) return; /* a character, of 4 bytes at most, goes out whole */
    flush(a, c);
    mox_answer_send(a);
}

static void part(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (e->part != MOX_PART_TEXT) return;
    mox_put_raw(&c->pending, e->text, e->n);
    if (a->ask.n_logprobs < 0) flush(a, c);
}

static void token(mox_answer *a, mox_choice *c)
{
    flush(a, c);
    mox_answer_send(a);
}

static void done(mox_answer *a, mox_choice *c, const mox_event *e)
{
    if (a->ask.stream) {
        put_piece(a, c, mox_writer_text(&c->pending.w), c->pending.w.n, mox_finish_word(e->stop));
        if (c->pending.failed) a->out.failed = true;
        return;
    }
    mox_message m;
    mox_put text = {0};
    mox_turn_get_message(e->turn, &m);
    if (a->ask.echo) put_prompt(&text, a, c);
    mox_put_raw(&text, m.text, m.n_text);
    put_choice(&c->json, a, c, mox_writer_text(&text.w), text.w.n, mox_finish_word(e->stop));
    if (text.failed) c->json.failed = true;
    mox_put_deinit(&text);
}

static void put_end(mox_put *p, const mox_answer *a)
{
    const mox_usage u = mox_answer_usage(a);
    mox_putf(p, "],\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                "\"prompt_tokens_details\":{\"cached_tokens\":%lld}},",
             (long long)u.prompt, (long long)u.reply, (long long)(u.prompt + u.reply), (long long)u.reused);
    mox_put_timings(p, a);
    mox_putf(p, "}");
}

static void end(mox_answer *a)
{
    mox_put *p = &a->out;
    if (!a->ask.stream) {
        put_head(p, a);
        for (int i = 0; i < a->n_choices; i++) {
            if (i > 0) mox_putf(p, ",");
            mox_put_raw(p, mox_writer_text(&a->choices[i].json.w), a->choices[i].json.w.n);
            if (a->choices[i].json.failed) p->failed = true;
            mox_put_deinit(&a->choices[i].json); /* with logprobs of a prompt it may be large */
        }
        put_end(p, a);
        return;
    }
    if (a->ask.usage) {
        mox_putf(p, "data: ");
        put_head(p, a);
        put_end(p, a);
        mox_putf(p, "\n\n");
    }
    mox_putf(p, "data: [DONE]\n\n");
}

static void broken(mox_answer *a, const mox_problem *problem)
{
    mox_putf(&a->out, "data: ");
    mox_problem_put(problem, MOX_VENDOR_OPENAI, mox_http_id(a->call), &a->out);
    mox_putf(&a->out, "\n\n");
}

void mox_handle_completions(mox_server *s, mox_http_call *c)
{
    static const mox_api api = {.fields = API_TEXT,
                                .vendor = MOX_VENDOR_OPENAI,
                                .ping = ":\n\n",
                                .read = read_completion,
                                .begin = begin,
                                .prompt = prompt,
                                .part = part,
                                .token = token,
                                .done = done,
                                .end = end,
                                .broken = broken};
    mox_answer_start(s, c, &api);
}
