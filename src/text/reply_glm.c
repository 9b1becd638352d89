/* text/reply_glm.c -- tool calls of GLM-4.x:
 *
 *   <tool_call>N
 *   <arg_key>K</arg_key>
 *   <arg_value>V</arg_value>
 *   </tool_call>
 *
 * V is any text, blanks included: strings as they are, everything else as JSON.  It may
 * hold </arg_value> itself: only one that is followed by the next key or the end counts.
 *
 * Forgiven: a missing </tool_call>, if something came behind the name or the name is
 * declared; other blanks, or none, between the tags. */
#include "text/reply_internal.h"

#include <string.h>

enum { OPEN, NAME, BODY, KEY, KEY_CLOSED, VALUE, VALUE_CLOSED };

#define CALL_OPEN "<tool_call>"
#define CALL_CLOSE "</tool_call>"

enum { NEXT_KEY, NEXT_CALL_CLOSE };
static const char *const nexts[] = {"<arg_key>", CALL_CLOSE, NULL};

/* Behind the name or a value: tag is one of nexts, or why there is none. */
static mox_status go_on(mox_scan *s, int tag, mox_scan_result *out, mox_err *err)
{
    const char *name = s->in.text + s->name.begin;
    bool whole = tag == NEXT_CALL_CLOSE;
    if (whole) s->pos -= strlen(CALL_CLOSE); /* is eaten behind the call */
    if (tag == MOX_TAG_END && s->in.complete) {
        whole = s->n_args > 0 || mox_reply_tools_find(s->tools, name, s->name.end - s->name.begin);
    }
    if (tag == NEXT_KEY) s->state = KEY;
    *out = tag == MOX_TAG_MORE ? MOX_SCAN_MORE : tag == NEXT_KEY ? MOX_SCAN_ON : MOX_SCAN_BROKEN;
    if (!whole) return MOX_OK;
    *out = MOX_SCAN_WHOLE;
    return mox_scan_compose_args(s, true, err);
}

static mox_scan_result find_value_end(mox_scan *s)
{
    static const char *const closes[] = {"</arg_value>", NULL};
    size_t end;
    if (mox_scan_seek(s, closes, &end) < 0) return MOX_SCAN_MORE;
    s->value = (mox_span){s->from, end};
    s->state = VALUE_CLOSED;
    return MOX_SCAN_ON;
}

/* Whether that was the end of the value. */
static mox_status end_value(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    const int tag = mox_scan_tag(s, nexts);
    *out = tag == MOX_TAG_MORE ? MOX_SCAN_MORE : MOX_SCAN_ON;
    if (tag == MOX_TAG_NONE) s->state = VALUE;
    if (tag == MOX_TAG_MORE || tag == MOX_TAG_NONE) return MOX_OK;
    bool ok;
    MOX_TRY(mox_scan_add_arg(s, &ok, err));
    *out = MOX_SCAN_BROKEN;
    return ok ? go_on(s, tag, out, err) : MOX_OK;
}

static mox_status step(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    do {
        switch (s->state) {
        case OPEN:
            *out = mox_scan_expect(s, CALL_OPEN);
            s->state = NAME;
            break;
        case NAME:
            *out = mox_scan_word(s, &s->name);
            if (*out == MOX_SCAN_ON) s->state = BODY;
            break;
        case BODY: MOX_TRY(go_on(s, mox_scan_tag(s, nexts), out, err)); break;
        case KEY:
            *out = mox_scan_key(s, "</arg_key>", &s->key);
            if (*out == MOX_SCAN_ON) s->state = KEY_CLOSED;
            break;
        case KEY_CLOSED:
            *out = mox_scan_expect(s, "<arg_value>");
            if (*out == MOX_SCAN_ON) s->state = VALUE;
            break;
        case VALUE: *out = find_value_end(s); break;
        default: MOX_TRY(end_value(s, out, err));
        }
    } while (*out == MOX_SCAN_ON);
    return MOX_OK;
}

const mox_call_grammar mox_grammar_glm = {
    .opens = {CALL_OPEN}, .closes = {CALL_CLOSE}, .gap = MOX_GAP_NOTHING, .step = step};
