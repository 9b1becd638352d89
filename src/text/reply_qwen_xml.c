/* text/reply_qwen_xml.c -- tool calls of Qwen3-Coder and Qwen3.5:
 *
 *   <tool_call>
 *   <function=N>
 *   <parameter=P>
 *   V
 *   </parameter>
 *   </function>
 *   </tool_call>
 *
 * V is any text; one line break at either end of it is not part of it.  It may hold
 * </parameter> itself: only one that is followed by the next parameter or an end counts.
 *
 * Forgiven: <tool_call> missing before a function that is declared; </function> or
 * </tool_call> missing; </parameter> missing before both of these. */
#include "text/reply_internal.h"

#include <string.h>

enum { OPEN, FUNCTION, NAME, BODY, PARAMETER, VALUE, VALUE_CLOSED, FUNCTION_CLOSED };

#define CALL_OPEN "<tool_call>"
#define CALL_CLOSE "</tool_call>"
#define FUNCTION_OPEN "<function="
#define FUNCTION_CLOSE "</function>"

enum { NEXT_PARAMETER, NEXT_FUNCTION_CLOSE, NEXT_CALL_CLOSE };
static const char *const nexts[] = {"<parameter=", FUNCTION_CLOSE, CALL_CLOSE, NULL};

/* Behind the head or a value: tag is one of nexts, or why there is none. */
static mox_status go_on(mox_scan *s, int tag, mox_scan_result *out, mox_err *err)
{
    if (tag == NEXT_CALL_CLOSE) s->pos -= strlen(CALL_CLOSE); /* is eaten behind the call */
    *out = tag == MOX_TAG_MORE ? MOX_SCAN_MORE : tag == NEXT_PARAMETER ? MOX_SCAN_ON : MOX_SCAN_BROKEN;
    s->state = tag == NEXT_PARAMETER ? PARAMETER : s->state;
    if (tag != NEXT_FUNCTION_CLOSE && tag != NEXT_CALL_CLOSE && (tag != MOX_TAG_END || !s->in.complete)) return MOX_OK;
    *out = MOX_SCAN_WHOLE;
    return mox_scan_compose_args(s, false, err);
}

/* Looks for what may end the value, and leaves it in s->value. */
static mox_scan_result find_value_end(mox_scan *s)
{
    static const char *const closes[] = {"</parameter>", FUNCTION_CLOSE, NULL};
    size_t end;
    const int tag = mox_scan_seek(s, closes, &end);
    if (tag < 0) return MOX_SCAN_MORE;
    const char *text = s->in.text;
    s->value = (mox_span){s->from, end};
    if (s->value.begin < end && text[s->value.begin] == '\n') s->value.begin++;
    if (s->value.begin < end && text[end - 1] == '\n') s->value.end--;
    s->state = tag == 0 ? VALUE_CLOSED : FUNCTION_CLOSED;
    return MOX_SCAN_ON;
}

/* Whether that was the end of the value. */
static mox_status end_value(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    static const char *const call_closes[] = {CALL_CLOSE, NULL};
    const bool function_closed = s->state == FUNCTION_CLOSED;
    int tag = mox_scan_tag(s, function_closed ? call_closes : nexts);
    *out = tag == MOX_TAG_MORE ? MOX_SCAN_MORE : MOX_SCAN_ON;
    if (tag == MOX_TAG_NONE) s->state = VALUE;
    if (tag == MOX_TAG_MORE || tag == MOX_TAG_NONE) return MOX_OK;
    bool ok;
    MOX_TRY(mox_scan_add_arg(s, &ok, err));
    *out = MOX_SCAN_BROKEN;
    if (function_closed && tag >= 0) tag = NEXT_CALL_CLOSE;
    return ok ? go_on(s, tag, out, err) : MOX_OK;
}

static mox_scan_result read_name(mox_scan *s)
{
    const mox_scan_result result = mox_scan_key(s, ">", &s->name);
    if (result != MOX_SCAN_ON || !s->bare) return result;
    const mox_reply_tool *tool =
        mox_reply_tools_find(s->tools, s->in.text + s->name.begin, s->name.end - s->name.begin);
    return tool ? MOX_SCAN_ON : MOX_SCAN_BROKEN;
}

static mox_status step(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    do {
        switch (s->state) {
        case OPEN: /* the opening marker is there: this one, or the next */
            s->bare = mox_scan_expect(s, CALL_OPEN) != MOX_SCAN_ON;
            s->state = FUNCTION;
            *out = MOX_SCAN_ON;
            break;
        case FUNCTION:
            *out = mox_scan_expect(s, FUNCTION_OPEN);
            if (*out == MOX_SCAN_ON) s->state = NAME;
            break;
        case NAME:
            *out = read_name(s);
            if (*out == MOX_SCAN_ON) s->state = BODY;
            break;
        case BODY: MOX_TRY(go_on(s, mox_scan_tag(s, nexts), out, err)); break;
        case PARAMETER:
            *out = mox_scan_key(s, ">", &s->key);
            if (*out == MOX_SCAN_ON) s->state = VALUE;
            break;
        case VALUE: *out = find_value_end(s); break;
        default: MOX_TRY(end_value(s, out, err));
        }
    } while (*out == MOX_SCAN_ON);
    return MOX_OK;
}

const mox_call_grammar mox_grammar_qwen_xml = {
    .opens = {CALL_OPEN, FUNCTION_OPEN}, .closes = {CALL_CLOSE}, .gap = MOX_GAP_NOTHING, .step = step};
