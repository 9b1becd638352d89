/* text/reply.h -- a reply's text as it streams in, taken apart into thinking, text and
 * tool calls.
 *
 * The text is what the model wrote, markers and special tokens included, in pieces of
 * any size.  Three promises, whatever the model writes:
 *   R1  every cut of the text gives the same parts, joined, and the same message.
 *   R2  the arguments of every call are the text of a JSON object.
 *   R3  nothing is lost: what is no call in the end comes out as what it stands in, text
 *       or thinking.  Only markers and the blanks named below disappear.
 *
 * Text and thinking come out at once, except for what may begin a marker and for blanks
 * that a marker may follow.  A call is held back until it is whole and comes out in one
 * piece then: once its name is out it cannot become text again, so R2 and R3 leave
 * nothing else.  A JSON call is whole when its object closes, a tagged one at its closing
 * tag.  What follows a broken call is looked at from the byte on that broke it.
 *
 * Thinking is open from the start (opts.thinking), or opened by <think> as the first thing
 * in the reply, blanks before it aside; later <think> is text.  It ends at </think>, at the
 * end, or at a call: a call that is whole inside of it.  Line breaks right after <think> and
 * on both sides of </think> are part of neither side, because templates write them anew.
 *
 * Blanks that stand alone before the first call, between calls or behind the last one are
 * dropped.  Of blanks between text and a call it depends on the template: Qwen3 (hermes) adds
 * one line break, so one is dropped; qwen-xml and glm trim, so all are; DeepSeek and Kimi
 * write the text as it is, so none.
 *
 * Forgiven: a missing section or closing marker; the opening one, too, in qwen-xml before a
 * declared function; more blanks; arguments as a JSON string, called `parameters`, or left
 * out.  Names that are not declared pass through.  Tagged values get their types from the
 * tools' schemas (reply_args.c).  A parameter that comes twice makes no call.
 *
 * Time and memory are linear in the text; at most 1024 calls, what follows is text.
 *
 * Owns: the text it has seen.  Not for several threads at a time. */
#ifndef MOX_TEXT_REPLY_H
#define MOX_TEXT_REPLY_H

#include "base/err.h"
#include "moxie/chat.h"

/* X(name, how it is called) */
#define MOX_CALL_FORMATS(X)                                                     \
    X(MOX_CALLS_UNKNOWN, "none")                                                \
    X(MOX_CALLS_HERMES, "hermes")            /* Qwen3: JSON in <tool_call> */   \
    X(MOX_CALLS_QWEN_XML, "qwen-xml")        /* Qwen3-Coder, Qwen3.5 */         \
    X(MOX_CALLS_DEEPSEEK_V3, "deepseek-v3")  /* JSON in a fenced block */       \
    X(MOX_CALLS_DEEPSEEK_V31, "deepseek-v3.1")                                  \
    X(MOX_CALLS_GLM, "glm")                  /* <arg_key>, <arg_value> */       \
    X(MOX_CALLS_KIMI, "kimi-k2")

typedef enum mox_call_format {
#define MOX_CALL_FORMAT_ENUM(name, text) name,
    MOX_CALL_FORMATS(MOX_CALL_FORMAT_ENUM)
#undef MOX_CALL_FORMAT_ENUM
} mox_call_format;

typedef struct mox_reply mox_reply;

typedef struct mox_reply_opts {
    mox_call_format format;
    bool thinking;       /* the prompt has opened a thinking block */
    mox_json_text tools; /* names and parameter types of what may be called; may be absent */
    uint64_t id_seed;    /* makes the ids of calls unique beyond this reply, where the model gives none */
    mox_part_fn *on_part; /* may be NULL */
    void *on_part_user;
} mox_reply_opts;

/* opts is borrowed for the call.  MOX_E_FORMAT: tools is no array of tools. */
mox_status mox_reply_create(mox_reply **out, const mox_reply_opts *opts, mox_err *err);
void mox_reply_destroy(mox_reply **r);

/* text is whole characters.  After a failure but for MOX_E_ARG the reply can only be looked
 * at and destroyed. */
mox_status mox_reply_push(mox_reply *r, const char *text, size_t n, mox_err *err);
/* No more text comes.  complete: the model ended by itself, so a missing closing tag is
 * forgiven; otherwise it was cut off, and a call that is not whole stays text. */
mox_status mox_reply_finish(mox_reply *r, bool complete, mox_err *err);

/* The text of a special token is one that the format, or thinking, is written in. */
bool mox_reply_is_marker(mox_call_format format, const char *text, size_t n);

/* Inside an open thinking block, also where it may turn out to end in a call. */
bool mox_reply_has_open_thinking(const mox_reply *r);
/* Inside an open thinking block, and not in what may be a call. */
bool mox_reply_is_thinking(const mox_reply *r);
/* What there is so far; borrowed until the next push. */
void mox_reply_get_message(const mox_reply *r, mox_message *out);

#endif
