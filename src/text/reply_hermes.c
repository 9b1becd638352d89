/* text/reply_hermes.c -- tool calls of Qwen3 and others after Hermes:
 *
 *   <tool_call>
 *   {"name": "N", "arguments": {...}}
 *   </tool_call>
 *
 * Forgiven: `parameters` for `arguments`, arguments in a string or not there at all, a
 * missing closing tag.  Other fields are refused, because a call has no place for them. */
#include "text/reply_internal.h"

#include <string.h>

#define CALL_OPEN "<tool_call>"

static mox_status take_name(mox_scan *s, const mox_json_token *token, bool *ok, mox_err *err)
{
    *ok = token->type == MOX_JSON_STRING && token->n > 0 && !memchr(token->text, '\0', token->n);
    if (!*ok) return MOX_OK;
    MOX_TRY(mox_buffer_reserve(&s->name_copy, token->n, 1, "a tool call's name", err));
    memcpy(s->name_copy.data, token->text, token->n);
    s->found_name = s->name_copy.data;
    s->n_found_name = token->n;
    return MOX_OK;
}

/* The value is an object with a name and arguments and nothing else. */
static mox_status take_fields(mox_scan *s, mox_json_reader *r, bool *ok, mox_err *err)
{
    mox_json_token token;
    mox_json_span arguments = {0};
    MOX_TRY(mox_json_next(r, &token, err));
    *ok = token.type == MOX_JSON_OBJECT;
    while (*ok) {
        MOX_TRY(mox_json_next(r, &token, err));
        if (token.type == MOX_JSON_OBJECT_END) break;
        if (mox_json_token_is(&token, "name")) {
            *ok = !s->found_name;
            MOX_TRY(mox_json_next(r, &token, err));
            if (*ok) MOX_TRY(take_name(s, &token, ok, err));
        } else if (mox_json_token_is(&token, "arguments") || mox_json_token_is(&token, "parameters")) {
            *ok = !arguments.text;
            MOX_TRY(mox_json_skip(r, &arguments, err));
        } else {
            *ok = false;
        }
    }
    *ok = *ok && s->found_name;
    return *ok ? mox_scan_take_arguments(s, arguments, ok, err) : MOX_OK;
}

static mox_status step(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    if (s->state == 0) {
        mox_scan_expect(s, CALL_OPEN); /* it is there, or this would be no scan */
        s->state = 1;
    }
    *out = mox_scan_json(s);
    if (*out != MOX_SCAN_ON) return MOX_OK;
    mox_json_reader r;
    bool ok = false;
    mox_err local = {0};
    const mox_json_span value = {"a tool call", s->in.text + s->value.begin, s->value.end - s->value.begin, 0};
    s->found_name = NULL;
    mox_json_reader_init(&r, value);
    const mox_status status = take_fields(s, &r, &ok, &local);
    mox_json_reader_deinit(&r);
    if (status != MOX_OK && status != MOX_E_FORMAT) {
        if (err) *err = local;
        return status;
    }
    *out = status == MOX_OK && ok ? MOX_SCAN_WHOLE : MOX_SCAN_BROKEN;
    return MOX_OK;
}

const mox_call_grammar mox_grammar_hermes = {
    .opens = {CALL_OPEN}, .closes = {"</tool_call>"}, .gap = MOX_GAP_NEWLINE, .step = step};
