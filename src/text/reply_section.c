/* text/reply_section.c -- tool calls of the families that put them into a section with
 * special tokens around each: a head, and then JSON.
 *
 *   Kimi K2        BEGIN functions.N:0 SEP {...} END
 *   DeepSeek V3.1  BEGIN N SEP {...} END
 *   DeepSeek V3    BEGIN function SEP N, a line break, {...} in a block fenced as json, END
 *
 * Kimi's head is the id of the call, which the model wants to see again; the name is in
 * it.  Forgiven: a call outside of a section, a missing fence, `functions.` or number,
 * arguments in a string, missing ends. */
#include "text/reply_internal.h"

#include <string.h>

enum { SECTION, BEGIN, HEAD, SEP, NAME, FENCE, ARGUMENTS };

typedef struct section_tags {
    const char *section, *begin, *sep;
    bool name_behind_sep; /* the head is the kind of tool, and the JSON is fenced */
    bool head_is_id;
} section_tags;

/* functions.N:0 is N; what looks otherwise is a name as it is. */
static void take_name(mox_scan *s, bool is_id)
{
    static const char prefix[] = "functions.";
    const char *head = s->in.text + s->name.begin;
    const size_t n = s->name.end - s->name.begin;
    s->found_name = head;
    s->n_found_name = n;
    if (!is_id) return;
    s->found_id = head;
    s->n_found_id = n;
    const size_t begin = n > strlen(prefix) && memcmp(head, prefix, strlen(prefix)) == 0 ? strlen(prefix) : 0;
    size_t end = n;
    while (end > begin && head[end - 1] >= '0' && head[end - 1] <= '9') end--;
    const bool numbered = end < n && end > begin + 1 && head[end - 1] == ':';
    s->found_name = head + begin;
    s->n_found_name = (numbered ? end - 1 : n) - begin;
}

static mox_status take_call(mox_scan *s, bool is_id, mox_scan_result *out, mox_err *err)
{
    bool ok;
    const mox_json_span value = {.text = s->in.text + s->value.begin, .n = s->value.end - s->value.begin};
    take_name(s, is_id);
    MOX_TRY(mox_scan_take_arguments(s, value, &ok, err));
    *out = ok ? MOX_SCAN_WHOLE : MOX_SCAN_BROKEN;
    return MOX_OK;
}

static mox_scan_result skip_fence(mox_scan *s)
{
    static const char *const fences[] = {"```json", "```", NULL};
    if (mox_scan_tag(s, fences) == MOX_TAG_MORE) return MOX_SCAN_MORE;
    s->from = s->pos;
    return MOX_SCAN_ON;
}

static mox_status step(mox_scan *s, const section_tags *tags, mox_scan_result *out, mox_err *err)
{
    do {
        switch (s->state) {
        case SECTION: /* the opening marker is there: this one, or the next */
            mox_scan_expect(s, tags->section);
            *out = MOX_SCAN_ON;
            break;
        case BEGIN: *out = mox_scan_expect(s, tags->begin); break;
        case HEAD: *out = tags->name_behind_sep ? mox_scan_expect(s, "function") : mox_scan_word(s, &s->name); break;
        case SEP: *out = mox_scan_expect(s, tags->sep); break;
        case NAME: *out = tags->name_behind_sep ? mox_scan_word(s, &s->name) : MOX_SCAN_ON; break;
        case FENCE: *out = tags->name_behind_sep ? skip_fence(s) : MOX_SCAN_ON; break;
        default: *out = mox_scan_json(s); break;
        }
        if (*out != MOX_SCAN_ON) return MOX_OK;
    } while (s->state++ < ARGUMENTS);
    return take_call(s, tags->head_is_id, out, err);
}

/* ---- the families ----------------------------------------------------------- */

#define DEEPSEEK_SECTION "<｜tool▁calls▁begin｜>"
#define DEEPSEEK_BEGIN "<｜tool▁call▁begin｜>"
#define DEEPSEEK_SEP "<｜tool▁sep｜>"
#define DEEPSEEK_END "<｜tool▁call▁end｜>"
#define DEEPSEEK_SECTION_END "<｜tool▁calls▁end｜>"
#define KIMI_SECTION "<|tool_calls_section_begin|>"
#define KIMI_BEGIN "<|tool_call_begin|>"

static mox_status step_v3(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    static const section_tags tags = {.section = DEEPSEEK_SECTION, .begin = DEEPSEEK_BEGIN,
        .sep = DEEPSEEK_SEP, .name_behind_sep = true};
    return step(s, &tags, out, err);
}

static mox_status step_v31(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    static const section_tags tags = {.section = DEEPSEEK_SECTION, .begin = DEEPSEEK_BEGIN, .sep = DEEPSEEK_SEP};
    return step(s, &tags, out, err);
}

static mox_status step_kimi(mox_scan *s, mox_scan_result *out, mox_err *err)
{
    static const section_tags tags = {.section = KIMI_SECTION, .begin = KIMI_BEGIN,
        .sep = "<|tool_call_argument_begin|>", .head_is_id = true};
    return step(s, &tags, out, err);
}

const mox_call_grammar mox_grammar_deepseek_v3 = {.opens = {DEEPSEEK_SECTION, DEEPSEEK_BEGIN},
    .closes = {"```", DEEPSEEK_END, DEEPSEEK_SECTION_END}, .gap = MOX_GAP_TEXT, .step = step_v3};

const mox_call_grammar mox_grammar_deepseek_v31 = {.opens = {DEEPSEEK_SECTION, DEEPSEEK_BEGIN},
    .closes = {DEEPSEEK_END, DEEPSEEK_SECTION_END}, .gap = MOX_GAP_TEXT, .step = step_v31};

const mox_call_grammar mox_grammar_kimi = {.opens = {KIMI_SECTION, KIMI_BEGIN},
    .closes = {"<|tool_call_end|>", "<|tool_calls_section_end|>"}, .gap = MOX_GAP_TEXT, .step = step_kimi};
