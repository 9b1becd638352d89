/* text/reply_internal.h -- what the parts of the reply parser share.
 *
 * reply.c walks through the text and finds what may begin a call.  From there a scan
 * (mox_scan) goes on, whose step is the grammar of one format: it moves over the text
 * and says whether more is needed, or this is a whole call, or it is none.
 *
 * Rules that every step keeps, and that make every cut of the text equal:
 *   S1  pos only grows, so a text is scanned once however it is cut.
 *   S2  a decision is made when the text that is there settles it, whatever follows.
 *       Until then the answer is MORE and the next step looks again from pos; what it
 *       looks at again is shorter than the longest tag.
 *   S3  pos is behind the first byte of the call when a step says BROKEN: text before
 *       pos is no call, text from pos on is looked at as if nothing had been. */
#ifndef MOX_TEXT_REPLY_INTERNAL_H
#define MOX_TEXT_REPLY_INTERNAL_H

#include "base/buffer.h"
#include "text/json_follow.h"
#include "text/region.h"
#include "text/reply.h"

/* ---- the tools (reply_tools.c) --------------------------------------------- */

enum { /* what a parameter may be; 0: anything */
    MOX_TYPE_STRING = 1,
    MOX_TYPE_INTEGER = 2,
    MOX_TYPE_NUMBER = 4,
    MOX_TYPE_BOOLEAN = 8,
    MOX_TYPE_OBJECT = 16,
    MOX_TYPE_ARRAY = 32,
    MOX_TYPE_NULL = 64
};

typedef struct mox_reply_param {
    const char *name;
    size_t n_name;
    unsigned types;
} mox_reply_param;

typedef struct mox_reply_tool {
    const char *name;
    size_t n_name;
    size_t first_param, n_params;
} mox_reply_tool;

typedef struct mox_reply_tools { /* zeroed: none */
    mox_buffer tools, params;
    size_t n_tools, n_params;
    mox_region strings;
} mox_reply_tools;

/* json is an array of tools, of the OpenAI API or bare functions.  What is odd in a
 * schema leaves a parameter without a type; MOX_E_FORMAT when it is not such an array. */
mox_status mox_reply_tools_init(mox_reply_tools *t, mox_json_text json, mox_err *err);
void mox_reply_tools_deinit(mox_reply_tools *t);
const mox_reply_tool *mox_reply_tools_find(const mox_reply_tools *t, const char *name, size_t n);
/* tool may be NULL. */
unsigned mox_reply_tools_types(const mox_reply_tools *t, const mox_reply_tool *tool, const char *param, size_t n);

/* ---- a scan (reply_scan.c) ------------------------------------------------- */

enum { MOX_REPLY_NAME_MAX = 256, MOX_REPLY_ARGS_MAX = 256, MOX_REPLY_CALLS_MAX = 1024 };

typedef enum mox_match { MOX_MATCH_NO, MOX_MATCH_PART, MOX_MATCH_YES } mox_match;

typedef struct mox_seen { /* the text as far as it may be looked at */
    const char *text;
    size_t n;
    bool ended;    /* no more comes */
    bool complete; /* and that is where the model ended */
} mox_seen;

static inline bool mox_is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Whether marker is at text[at]; MOX_MATCH_PART: more text will tell. */
mox_match mox_seen_match(const mox_seen *in, size_t at, const char *marker);

typedef enum mox_scan_result {
    MOX_SCAN_MORE,   /* text is needed */
    MOX_SCAN_BROKEN, /* this is no call */
    MOX_SCAN_WHOLE,  /* this is a call: found_* */
    MOX_SCAN_ON      /* inside a step: a piece is done, go on with what follows */
} mox_scan_result;

typedef struct mox_span {
    size_t begin, end;
} mox_span;

typedef struct mox_reply_arg {
    mox_span key, value;
} mox_reply_arg;

typedef struct mox_scan {
    mox_seen in;
    size_t pos;
    const mox_reply_tools *tools;
    int state;    /* the format's own; 0 at the start of a call */
    size_t from;  /* where what is being read began */
    bool bare;    /* the call began without its own marker */
    mox_span name, key, value;
    mox_json_follow json;
    mox_buffer args; /* mox_reply_arg [n_args] */
    size_t n_args;
    mox_buffer name_copy, work; /* what found_* may point into */
    /* The call when it is whole; valid until the next step. */
    const char *found_name, *found_id, *found_arguments; /* found_id NULL: the format has none */
    size_t n_found_name, n_found_id, n_found_arguments;
} mox_scan;

enum { MOX_TAG_NONE = -1, MOX_TAG_MORE = -2, MOX_TAG_END = -3 };

/* Skips blanks and takes the tag that follows: its index in tags, which end with NULL, or
 * one of the above; END: nothing but blanks is left, and no more comes.  A tag that begins
 * like another one stands before it. */
int mox_scan_tag(mox_scan *s, const char *const *tags);
/* The same where only this tag can come: ON, MORE or BROKEN. */
mox_scan_result mox_scan_expect(mox_scan *s, const char *tag);
/* Takes a word without blanks and markup, after blanks, into *out: ON, MORE or BROKEN. */
mox_scan_result mox_scan_word(mox_scan *s, mox_span *out);
/* Takes a JSON object, or a string, after blanks, into s->value. */
mox_scan_result mox_scan_json(mox_scan *s);
/* Goes on to the first of tags and takes it; *at is where it begins.  MORE: it is not there. */
int mox_scan_seek(mox_scan *s, const char *const *tags, size_t *at);
/* Takes everything up to close into *out, without line breaks and markup, and close. */
mox_scan_result mox_scan_key(mox_scan *s, const char *close, mox_span *out);

/* ---- arguments (reply_args.c) ---------------------------------------------- */

/* The JSON text value as the arguments of a call: an object as it is spelled, or the
 * object that a string holds, or nothing ({}).  *ok: it is one of these. */
mox_status mox_scan_take_arguments(mox_scan *s, mox_json_span value, bool *ok, mox_err *err);

/* Adds s->value under s->key.  *ok: false when there are too many, or the key was there before. */
mox_status mox_scan_add_arg(mox_scan *s, bool *ok, mox_err *err);
/* Makes the arguments of what was added, with the types of the tool s->name.  untyped_json:
 * a parameter without a type is JSON if it can be, else it is a string in any case. */
mox_status mox_scan_compose_args(mox_scan *s, bool untyped_json, mox_err *err);

/* ---- formats ---------------------------------------------------------------- */

typedef mox_status mox_scan_step(mox_scan *s, mox_scan_result *out, mox_err *err);

typedef enum mox_call_gap { /* blanks between text and a call */
    MOX_GAP_TEXT,    /* are text */
    MOX_GAP_NEWLINE, /* are text but for the last line break */
    MOX_GAP_NOTHING  /* are nothing */
} mox_call_gap;

typedef struct mox_call_grammar {
    const char *opens[3];  /* what may begin a call; up to the first NULL */
    const char *closes[4]; /* what is eaten behind one, each once and in this order */
    mox_call_gap gap;      /* what the family's template does with them */
    mox_scan_step *step;
} mox_call_grammar;

extern const mox_call_grammar mox_grammar_hermes, mox_grammar_qwen_xml, mox_grammar_deepseek_v3,
    mox_grammar_deepseek_v31, mox_grammar_glm, mox_grammar_kimi;

#endif
