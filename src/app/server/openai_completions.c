/* app/server/openai_completions.c -- /v1/completions: text that is continued as it is. */
#include "app/server/answer.h"

#include "app/server/structure.h"
#include "base/alloc.h"
#include "base/json_fields.h"

/* ---- the request ------------------------------------------------------------------------------------- */

typedef struct prompt_reader {
    mox_answer *answer;
    mox_tokens *ids; /* of a prompt that is a list of tokens */
} prompt_reader;

static mox_status add_id(void *user, mox_json_span value, mox_err *err)
{
    prompt_reader *r = user;
    const mox_json_token t = {.type = MOX_JSON_NUMBER, .text = value.text, .n = value.n};
    int64_t id;
    mox_buffer b = {r->ids->ids, (size_t)r->ids->capacity};
    if (!mox_json_token_int(&t, &id) || id < 0 || id >= mox_tokenizer_size(r->answer->server->session.tokenizer))
        return mox_fail(err, MOX_E_ARG, "prompt has a number that is no token of this model");
    MOX_TRY(mox_buffer_reserve(&b, (size_t)r->ids->n + 1, sizeof *r->ids->ids, "a prompt", err));
    *r->ids = (mox_tokens){b.data, r->ids->n, (int64_t)b.capacity};
    r->ids->ids[r->ids->n++] = (int32_t)id;
    return MOX_OK;
}

static mox_status add_text(mox_answer *a, mox_json_span value, mox_tokens *out, mox_err *err)
{
    char *text = NULL;
    size_t n = 0;
    if (mox_cli_session_begin(&a->server->session, out) != 0) return mox_fail_memory(err, sizeof *out->ids, "a prompt");
    MOX_TRY(mox_json_get_string(value, "prompt", &text, &n, err));
    const mox_status status = mox_tokenizer_encode(a->server->session.tokenizer, text, n, MOX_ENCODE_SPECIAL, out, err);
    mox_free(text);
    return status;
}

/* A prompt: a string or a list of tokens. */
static mox_status add_prompt(void *user, mox_json_span value, mox_err *err)
{
    prompt_reader *r = user;
    mox_ask *a = &r->answer->ask;
    if ((a->n_prompts + 1) * a->n > MOX_CHOICES)
        return mox_fail(err, MOX_E_ARG, "prompt: prompts times n may be %d at most", MOX_CHOICES);
    r->ids = &a->prompts[a->n_prompts++];
    if (mox_span_is_string(value)) return add_text(r->answer, value, r->ids, err);
    if (mox_span_is_array(value)) return mox_json_each(value, "prompt", add_id, r, err);
    return mox_fail(err, MOX_E_ARG, "prompt must be a string, a list of tokens, or an array of those");
}

/* Whether an array's first element is a number. */
static bool is_list_of_ids(mox_json_span array)
{
    size_t i = 1;
    while (i < array.n && (array.text[i] == ' ' || array.text[i] == '\n' || array.text[i] == '\t' || array.text[i] == '\r')) i++;
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
    if (logprobs->given && (logprobs->type == IS_INT || logprobs->on)) a->n_logprobs = logprobs->type == IS_INT ? (int)logprobs->number : 0;
    if (f->v[FIELD_N_PROBS].given && f->v[FIELD_N_PROBS].number > 0) a->n_logprobs = (int)f->v[FIELD_N_PROBS].number;
    MOX_TRY(mox_structure_read_openai(a, f, err));
    if (prompt->type == IS_STRING || is_list_of_ids(prompt->raw)) return add_prompt(&r, prompt->raw, err);
    MOX_TRY(mox_json_each(prompt->raw, "prompt", add_prompt, &r, err));
    return a->n_prompts > 0 ? MOX_OK : mox_fail(err, MOX_E_ARG, "prompt is empty: there is nothing to continue");
}

/* ---- the answer ------------------------------------------------------------------------------------------ */

static void put_head(mox_put *p, const mox_answer *a)
{
    mox_putf(p, "{\"id\":\"cmpl-%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":", mox_http_id(a->call), (long long)a->created);
    mox_put_string(p, a->server->model_name);
    mox_putf(p, ",\"system_fingerprint\":\"moxie-%s\",\"choices\":[", mox_version());
}

static void put_token_text(mox_put *p, const mox_answer *a, int32_t id)
{
    size_t n = 0;
    const char *bytes = mox_tokenizer_bytes(a->server->session.tokenizer, id, &n);
    mox_put_json(p, bytes ? bytes : "", n);
}

/* {tokens, token_logprobs, top_logprobs, text_offset} of records from `from` on. */
static void put_logprobs(mox_put *p, const mox_answer *a, const mox_choice *c, int64_t from)
{
    const size_t stride = 1 + (size_t)a->ask.n_logprobs;
    const mox_logprob *all = c->records.data;
    mox_putf(p, "{\"tokens\":[");
    for (int64_t i = from; i < c->n_records; i++) {
        if (i > from) mox_putf(p, ",");
        put_token_text(p, a, all[(size_t)i * stride].token);
    }
    mox_putf(p, "],\"token_logprobs\":[");
    for (int64_t i = from; i < c->n_records; i++) {
        if (i > from) mox_putf(p, ",");
        mox_put_real(p, (double)all[(size_t)i * stride].logprob);
    }
    mox_putf(p, "],\"top_logprobs\":[");
    for (int64_t i = from; i < c->n_records; i++) {
        const mox_logprob *r = &all[(size_t)i * stride];
        mox_putf(p, "%s{", i > from ? "," : "");
        for (size_t k = 1; k < stride && r[k].token >= 0; k++) {
            if (k > 1) mox_putf(p, ",");
            put_token_text(p, a, r[k].token);
            mox_putf(p, ":");
            mox_put_real(p, (double)r[k].logprob);
        }
        mox_putf(p, "}");
    }
    mox_putf(p, "],\"text_offset\":[");
    size_t offset = 0;
    for (int64_t i = 0; a->ask.echo && i < a->ask.prompts[c->prompt].n; i++) {
        size_t n = 0;
        (void)mox_tokenizer_bytes(a->server->session.tokenizer, a->ask.prompts[c->prompt].ids[i], &n);
        offset += n;
    }
    for (int64_t i = 0; i < c->n_records; i++) {
        size_t n = 0;
        if (i >= from) mox_putf(p, "%s%zu", i > from ? "," : "", offset);
        (void)mox_tokenizer_bytes(a->server->session.tokenizer, all[(size_t)i * stride].token, &n);
        offset += n;
    }
    mox_putf(p, "]}");
}

static void put_choice(mox_put *p, mox_answer *a, mox_choice *c, const char *text, size_t n, const char *finish)
{
    mox_putf(p, "{\"index\":%d,\"text\":", c->index);
    mox_put_json(p, text, n);
    mox_putf(p, ",\"logprobs\":");
    if (a->ask.n_logprobs >= 0) put_logprobs(p, a, c, a->ask.stream ? c->n_shown : 0);
    else mox_putf(p, "null");
    c->n_shown = c->n_records;
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

static void begin(mox_answer *a)
{
    for (int i = 0; a->ask.echo && i < a->n_choices; i++) {
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
    static const mox_api api = {.fields = API_TEXT, .vendor = MOX_VENDOR_OPENAI, .ping = ":\n\n", .read = read_completion, .begin = begin,
                                .part = part, .token = token, .done = done, .end = end, .broken = broken};
    mox_answer_start(s, c, &api);
}
