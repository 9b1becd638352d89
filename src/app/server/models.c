/* app/server/models.c -- what is served, and looking into it: /v1/models, /props, /slots, /health,
 * /tokenize, /detokenize. */
#include "app/server/fields.h"
#include "app/server/server.h"

#include "base/alloc.h"
#include "base/json_fields.h"

#include <stdio.h>
#include <string.h>

/* ---- the model ----------------------------------------------------------------------------------- */

static void put_model(mox_put *p, const mox_server *s)
{
    mox_inspection r;
    mox_model_inspect(s->session.model, &r);
    mox_putf(p, "{\"id\":");
    mox_put_string(p, s->model_name);
    mox_putf(p,
             ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"moxie\",\"context_length\":%lld,"
             "\"max_model_len\":%lld,\"meta\":{\"n_ctx\":%lld,\"n_ctx_train\":%lld,\"n_vocab\":%lld,"
             "\"n_params\":%lld,\"size\":%lld,\"family\":",
             (long long)s->created, (long long)s->n_ctx, (long long)s->n_ctx, (long long)s->n_ctx,
             (long long)r.n_ctx_max, (long long)r.n_vocab, (long long)r.params_total,
             (long long)r.bytes_total);
    mox_put_string(p, r.family);
    mox_putf(p, "},\"supported_parameters\":[\"temperature\",\"top_p\",\"top_k\",\"min_p\",\"max_tokens\","
                "\"stop\",\"seed\",\"n\",\"presence_penalty\",\"frequency_penalty\",\"repetition_penalty\","
                "\"logit_bias\",\"logprobs\",\"top_logprobs\",\"response_format\"");
    if (s->session.chat) mox_putf(p, ",\"tools\",\"tool_choice\",\"reasoning_effort\"");
    mox_putf(p, "]}");
}

void mox_handle_models(mox_server *s, mox_http_call *c)
{
    mox_put p = {0};
    mox_putf(&p, "{\"object\":\"list\",\"data\":[");
    put_model(&p, s);
    mox_putf(&p, "],\"has_more\":false}");
    mox_http_answer(c, 200, "application/json", &p);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Whether an escaped path spells the name. */
static bool spells(const char *path, const char *name)
{
    for (; *path; path++, name++) {
        int c = (unsigned char)*path;
        if (c == '%') {
            const int high = hex_digit(path[1]), low = high < 0 ? -1 : hex_digit(path[2]);
            if (low < 0) return false;
            c = high * 16 + low;
            path += 2;
        }
        if (c == 0 || c != (unsigned char)*name) return false;
    }
    return *name == '\0';
}

void mox_handle_model(mox_server *s, mox_http_call *c)
{
    mox_put p = {0};
    if (!spells(mox_http_path(c) + strlen("/v1/models/"), s->model_name)) {
        const mox_problem problem =
            mox_problem_make(404, "model_not_found", "this server has one model, %s", s->model_name);
        mox_problem_answer(&problem, MOX_VENDOR_OPENAI, c);
        return;
    }
    put_model(&p, s);
    mox_http_answer(c, 200, "application/json", &p);
}

/* ---- how it goes --------------------------------------------------------------------------------- */

void mox_handle_health(mox_server *s, mox_http_call *c)
{
    static const char good[] = "{\"status\":\"ok\"}", bad[] = "{\"status\":\"stopping\"}";
    if (atomic_load(&s->draining)) mox_http_answer_static(c, 503, "application/json", bad, sizeof bad - 1);
    else mox_http_answer_static(c, 200, "application/json", good, sizeof good - 1);
}

void mox_handle_props(mox_server *s, mox_http_call *c)
{
    mox_put p = {0};
    const mox_sampler_opts *d = &s->settings.sampling;
    mox_chat_info info = {0};
    if (s->session.chat) mox_chat_get_info(s->session.chat, &info);
    mox_putf(&p, "{\"version\":\"%s\",\"model\":", mox_version());
    mox_put_string(&p, s->model_name);
    mox_putf(&p, ",\"n_ctx\":%lld,\"total_slots\":%d,\"chat_template_source\":", (long long)s->n_ctx,
             (int)s->n_slots);
    mox_put_string(&p, info.source);
    mox_putf(&p, ",\"tool_call_format\":");
    mox_put_string(&p, info.call_format);
    mox_putf(&p, ",\"thinks\":%s,\"default_generation_settings\":{\"temperature\":",
             info.thinks ? "true" : "false");
    mox_put_real(&p, (double)d->temperature);
    mox_putf(&p, ",\"top_k\":%d,\"top_p\":", (int)d->top_k);
    mox_put_real(&p, (double)d->top_p);
    mox_putf(&p, ",\"min_p\":");
    mox_put_real(&p, (double)d->min_p);
    mox_putf(&p, ",\"repeat_penalty\":");
    mox_put_real(&p, (double)d->repeat_penalty);
    mox_putf(&p, ",\"n_ctx\":%lld}}", (long long)s->n_ctx);
    mox_http_answer(c, 200, "application/json", &p);
}

void mox_handle_slots(mox_server *s, mox_http_call *c)
{
    mox_put p = {0};
    mox_slot_info *slots = mox_alloc_array((size_t)s->n_slots, sizeof *slots);
    const int32_t n = slots ? mox_scheduler_get_slots(s->scheduler, slots, s->n_slots) : 0;
    if (!slots) p.failed = true;
    mox_putf(&p, "[");
    for (int32_t i = 0; i < n && i < s->n_slots; i++)
        mox_putf(&p,
                 "%s{\"id\":%d,\"n_ctx\":%lld,\"is_processing\":%s,\"request\":%llu,\"n_prompt_tokens\":%lld,"
                 "\"n_prompt_tokens_reused\":%lld,\"n_prompt_tokens_processed\":%lld,\"n_decoded\":%lld}",
                 i > 0 ? "," : "", (int)i, (long long)s->n_ctx, slots[i].id ? "true" : "false",
                 (unsigned long long)slots[i].id, (long long)slots[i].n_prompt, (long long)slots[i].n_reused,
                 (long long)slots[i].n_prefilled, (long long)slots[i].n_reply);
    mox_putf(&p, "]");
    mox_free(slots);
    mox_http_answer(c, 200, "application/json", &p);
}

/* ---- text and tokens ----------------------------------------------------------------------------- */

static void refuse(mox_http_call *c, const mox_err *err)
{
    const mox_problem p = mox_problem_of(err);
    mox_problem_answer(&p, MOX_VENDOR_OPENAI, c);
}

static mox_status read_body(mox_http_call *c, unsigned api, mox_fields *f, mox_err *err)
{
    size_t n;
    const char *body = mox_http_body(c, &n);
    return mox_fields_read(f, api, body, n, err);
}

static void put_piece(mox_put *p, const mox_server *s, int32_t id)
{
    size_t n = 0;
    const char *bytes = mox_tokenizer_bytes(s->session.tokenizer, id, &n);
    mox_putf(p, "{\"id\":%d,\"piece\":", (int)id);
    mox_put_json(p, bytes ? bytes : "", n);
    mox_putf(p, "}");
}

static mox_status tokenize(const mox_server *s, mox_http_call *c, mox_put *p, mox_err *err)
{
    mox_fields f;
    char *text = NULL;
    size_t n = 0;
    mox_tokens tokens = {0};
    MOX_TRY(read_body(c, API_TOKENIZE, &f, err));
    if (!f.v[FIELD_CONTENT].given) return mox_fail(err, MOX_E_ARG, "content is missing");
    MOX_TRY(mox_json_get_string(f.v[FIELD_CONTENT].raw, "content", &text, &n, err));
    const unsigned flags =
        mox_field_on(&f, FIELD_PARSE_SPECIAL, true) ? MOX_ENCODE_SPECIAL : MOX_ENCODE_PLAIN;
    mox_status status = MOX_OK;
    if (mox_field_on(&f, FIELD_ADD_SPECIAL, false))
        status =
            mox_cli_session_begin(&s->session, &tokens) == 0 ? MOX_OK : mox_fail_memory(err, 4, "a token");
    const int64_t n_begin = tokens.n;
    if (status == MOX_OK) status = mox_tokenizer_encode(s->session.tokenizer, text, n, flags, &tokens, err);
    if (status == MOX_OK) mox_cli_drop_second_bos(&tokens, n_begin, n_begin);
    mox_putf(p, "{\"tokens\":[");
    for (int64_t i = 0; status == MOX_OK && i < tokens.n; i++) {
        if (i > 0) mox_putf(p, ",");
        if (mox_field_on(&f, FIELD_WITH_PIECES, false)) put_piece(p, s, tokens.ids[i]);
        else mox_putf(p, "%d", (int)tokens.ids[i]);
    }
    mox_putf(p, "]}");
    mox_tokens_free(&tokens);
    mox_free(text);
    return status;
}

void mox_handle_tokenize(mox_server *s, mox_http_call *c)
{
    mox_put p = {0};
    mox_err err;
    if (tokenize(s, c, &p, &err) == MOX_OK) {
        mox_http_answer(c, 200, "application/json", &p);
        return;
    }
    mox_put_deinit(&p);
    refuse(c, &err);
}

typedef struct detokenizer {
    const mox_server *server;
    mox_put text;
    size_t i;
} detokenizer;

static mox_status add_token(void *user, mox_json_span value, mox_err *err)
{
    detokenizer *d = user;
    const mox_json_token t = {.type = MOX_JSON_NUMBER, .text = value.text, .n = value.n};
    int64_t id = -1;
    size_t n = 0;
    if (!mox_json_token_int(&t, &id) || id < 0 || id >= mox_tokenizer_size(d->server->session.tokenizer))
        return mox_fail(err, MOX_E_ARG, "tokens[%zu] is no token of this model", d->i);
    const char *bytes = mox_tokenizer_bytes(d->server->session.tokenizer, (int32_t)id, &n);
    if (bytes) mox_put_raw(&d->text, bytes, n);
    d->i++;
    return MOX_OK;
}

void mox_handle_detokenize(mox_server *s, mox_http_call *c)
{
    mox_fields f;
    mox_err err;
    mox_put p = {0};
    detokenizer d = {.server = s};
    mox_status status = read_body(c, API_DETOKENIZE, &f, &err);
    if (status == MOX_OK && !f.v[FIELD_TOKENS].given) status = mox_fail(&err, MOX_E_ARG, "tokens is missing");
    if (status == MOX_OK) status = mox_json_each(f.v[FIELD_TOKENS].raw, "tokens", add_token, &d, &err);
    if (status == MOX_OK) {
        mox_putf(&p, "{\"content\":");
        mox_put_json(&p, mox_writer_text(&d.text.w), d.text.w.n);
        mox_putf(&p, "}");
        if (d.text.failed) p.failed = true;
        mox_http_answer(c, 200, "application/json", &p);
    } else {
        refuse(c, &err);
    }
    mox_put_deinit(&d.text);
}
