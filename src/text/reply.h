/* text/reply.h -- a reply's text as it streams in, taken apart into thinking, text and
 * tool calls.
 *
 * The text is what the model wrote, markers and special tokens included, in pieces of
 * any size: every cut of it gives the same parts, joined.  What may still become a
 * marker is held back.  Parsers forgive what models get wrong (a missing opening or
 * closing tag, blanks, arguments as a string) and what is no call in the end comes out
 * as text: nothing that a model wrote is lost.
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
    uint64_t id_seed;         /* goes into the ids of calls */
    mox_json_text tools;      /* names and parameter types of what may be called; may be absent */
    mox_part_fn *on_part; /* may be NULL */
    void *on_part_user;
} mox_reply_opts;

mox_status mox_reply_create(mox_reply **out, const mox_reply_opts *opts, mox_err *err);
void mox_reply_destroy(mox_reply **r);

/* text is whole characters. */
mox_status mox_reply_push(mox_reply *r, const char *text, size_t n, mox_err *err);
/* No more text comes.  complete: the model ended by itself, so a missing closing tag is
 * forgiven; otherwise it was cut off, and a call that is not whole stays text. */
mox_status mox_reply_finish(mox_reply *r, bool complete, mox_err *err);

/* The text of a special token is one that the format, or thinking, is written in. */
bool mox_reply_is_marker(mox_call_format format, const char *text, size_t n);

bool mox_reply_is_thinking(const mox_reply *r); /* inside an open thinking block */
void mox_reply_get_message(const mox_reply *r, mox_message *out);

#endif
