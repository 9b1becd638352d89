/* text/grammar.h -- a compiled grammar, and how one is built.
 *
 * A grammar is a program over bytes: nodes that take a byte or a character, and nodes that
 * only lead on (split, call, return, repeat).  Rules are called with a stack, so it is a
 * pushdown automaton; it is walked in all its possible ways at once (grammar_run.c).  What
 * would make programs large is a node of its own: a string with a pattern and a length, the
 * blanks of JSON, a counted repetition.
 *
 * Programs are emitted from back to front: every function takes the node that follows and
 * returns the one that comes first.  A builder that has failed keeps its first error and
 * emits nothing more, so only loops and the end have to look.
 *
 * Invariants of a finished grammar
 *   I1  height[node] is how many containers deep the shallowest way from it to the end of its
 *       rule goes, or MOX_GRAMMAR_NEVER.  A state whose depth and height together pass
 *       depth_max is never entered; so from every state that is entered there is a way to
 *       the end, and a dead end can only come from a vocabulary.
 *   I2  no rule reaches itself without taking a byte. */
#ifndef MOX_TEXT_GRAMMAR_H
#define MOX_TEXT_GRAMMAR_H

#include "base/buffer.h"
#include "moxie/grammar.h"
#include "text/grammar_dfa.h"
#include "text/region.h"

typedef enum mox_gop {
    MOX_G_FAIL = 0,
    MOX_G_BYTE,   /* a: the byte */
    MOX_G_SET,    /* a: index of sets */
    MOX_G_CHAR,   /* a: index of ranges; one character of UTF-8 */
    MOX_G_STRING, /* a: index of strings; characters, and leads on where they may end */
    MOX_G_WS,     /* nothing, one space, or a line break with up to 20 blanks */
    MOX_G_SPLIT,  /* a: where its targets begin, their number first */
    MOX_G_CALL,   /* a: rule */
    MOX_G_RETURN,
    MOX_G_REPEAT, /* a: index of repeats; its body ends in MOX_G_RETURN */
    MOX_G_END
} mox_gop;

enum {
    MOX_GRAMMAR_NEVER = 0xFFFF,
    MOX_GRAMMAR_NODES_MAX = 1 << 18,
    MOX_GRAMMAR_RULES_MAX = 1 << 12,
    MOX_GRAMMAR_BYTES_MAX = 64 << 20,  /* of memory, while it is built */
    MOX_GRAMMAR_TEXT_MAX = 1 << 20,    /* bytes of a schema or a grammar */
    MOX_GRAMMAR_REPEAT_MAX = 100000,   /* the largest count of a repetition */
    MOX_GRAMMAR_JSON_DEPTH = 62,       /* containers inside each other; our own reader takes 64 */
    MOX_GRAMMAR_CALL_DEPTH = 256       /* calls inside each other, of GBNF */
};
#define MOX_GRAMMAR_NO_MAX UINT32_MAX

typedef struct mox_gnode {
    uint8_t op;
    uint8_t nest;  /* containers that are open here, counted from the beginning of the rule */
    uint8_t mark;  /* a special token may begin here */
    uint16_t height;
    uint32_t a;
    uint32_t next;
} mox_gnode;

typedef struct mox_grange { /* characters [from, to] */
    uint32_t from, to;
} mox_grange;

typedef struct mox_granges {
    const mox_grange *v; /* in order, apart, without surrogates */
    uint32_t n;
} mox_granges;

typedef struct mox_gset {
    uint64_t bits[4];
} mox_gset;

typedef struct mox_gstring {
    const mox_dfa *dfa; /* NULL: any characters */
    uint32_t min, max;  /* characters */
    bool raw;           /* plain text; otherwise the inside of a JSON string */
    const uint64_t *reach; /* [states, max + 1] bits: an end is possible; NULL: mox_dfa's longest will do */
} mox_gstring;

typedef struct mox_grepeat {
    uint32_t body, min, max;
} mox_grepeat;

struct mox_grammar {
    mox_buffer nodes, targets, sets, ranges, strings, repeats, rules; /* rules: first nodes */
    uint32_t n_nodes, n_targets, n_sets, n_ranges, n_strings, n_repeats, n_rules;
    uint32_t start, start_after_thinking;
    uint32_t depth_max;
    mox_region memory;
};

static inline const mox_gnode *mox_gnode_at(const mox_grammar *g, uint32_t i)
{
    return (const mox_gnode *)g->nodes.data + i;
}

/* ---- building -------------------------------------------------------------- */

typedef struct mox_gb {
    mox_grammar *g;
    mox_status status; /* the first failure */
    mox_err *err;
    uint8_t nest;
    uint32_t returns;  /* the one MOX_G_RETURN */
    uint32_t any_value, any_object, any_array; /* rules, or MOX_GRAMMAR_NO_MAX */
    uint32_t bad_rule; /* that begins with itself, or MOX_GRAMMAR_NO_MAX */
    mox_dfa_budget work;
} mox_gb;

/* On failure *b can only be given to mox_gb_finish, which cleans up. */
void mox_gb_init(mox_gb *b, uint32_t depth_max, mox_err *err);
/* Checks and measures what was built, from the node `root` on, and hands it over. */
mox_status mox_gb_finish(mox_gb *b, uint32_t root, mox_grammar **out);

void *mox_gb_take(mox_gb *b, size_t bytes); /* zeroed; NULL after a failure */
/* Fails when the budget of work is spent. */
void mox_gb_check_work(mox_gb *b);
uint32_t mox_gb_fail(mox_gb *b, mox_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

uint32_t mox_gb_byte(mox_gb *b, unsigned char byte, uint32_t next);
uint32_t mox_gb_text(mox_gb *b, const char *text, size_t n, uint32_t next);
uint32_t mox_gb_word(mox_gb *b, const char *text, uint32_t next);
/* Text that a model may write as one special token. */
uint32_t mox_gb_marker(mox_gb *b, const char *text, uint32_t next);
uint32_t mox_gb_set(mox_gb *b, const char *bytes, uint32_t next); /* pairs of first and last: "09af" */
uint32_t mox_gb_char(mox_gb *b, mox_granges ranges, uint32_t next);
uint32_t mox_gb_string(mox_gb *b, const mox_gstring *s, uint32_t next);
uint32_t mox_gb_ws(mox_gb *b, uint32_t next);
uint32_t mox_gb_split(mox_gb *b, const uint32_t *targets, uint32_t n);
uint32_t mox_gb_either(mox_gb *b, uint32_t one, uint32_t other);
uint32_t mox_gb_repeat(mox_gb *b, uint32_t body, uint32_t min, uint32_t max, uint32_t next);
uint32_t mox_gb_rule(mox_gb *b); /* a new one; its beginning comes with mox_gb_define */
void mox_gb_define(mox_gb *b, uint32_t rule, uint32_t start);
uint32_t mox_gb_call(mox_gb *b, uint32_t rule, uint32_t next);

/* One of n texts, which are sorted here and share beginnings. */
typedef struct mox_gtext {
    const char *text;
    size_t n;
} mox_gtext;
uint32_t mox_gb_texts(mox_gb *b, mox_gtext *texts, size_t n, uint32_t next);

/* ---- JSON (grammar_json.c) ------------------------------------------------- */

uint32_t mox_gb_json_string(mox_gb *b, const mox_dfa *dfa, uint32_t min, uint32_t max, uint32_t next);
/* The string itself: its one spelling, in quotes. */
uint32_t mox_gb_json_literal(mox_gb *b, const char *text, size_t n, uint32_t next);
uint32_t mox_gb_json_value(mox_gb *b, uint32_t next);  /* any */
uint32_t mox_gb_json_object(mox_gb *b, uint32_t next); /* any */
uint32_t mox_gb_json_array(mox_gb *b, uint32_t next);  /* any */
uint32_t mox_gb_json_bool(mox_gb *b, uint32_t next);

/* ---- numbers (grammar_number.c) -------------------------------------------- */

typedef struct mox_gbound {
    bool set, exclusive, negative;
    const char *digits; /* values 0 to 9, without leading zeros of the whole part */
    uint32_t n_whole, n_all; /* all: with the fraction, which has no trailing zeros */
} mox_gbound;

/* Reads a JSON number.  false: it has too many digits. */
bool mox_gbound_read(mox_gb *b, const char *text, size_t n, mox_gbound *out);
/* < 0, 0, > 0 as x is less than, equal to or more than y. */
int mox_gbound_compare(const mox_gbound *x, const mox_gbound *y);
uint32_t mox_gb_number(mox_gb *b, bool whole, const mox_gbound *low, const mox_gbound *high, uint32_t next);

/* ---- schemas (grammar_schema.c) -------------------------------------------- */

typedef struct mox_gschema mox_gschema;

/* schema is read now and used later; name stands for it in errors. */
mox_gschema *mox_gschema_read(mox_gb *b, const char *name, mox_json_text schema, const mox_schema_opts *opts);
/* The value that it describes. */
uint32_t mox_gschema_emit(mox_gschema *s, uint32_t next);

typedef struct mox_gparam { /* a property of an object's schema, for formats with tagged values */
    const char *name;
    size_t n;
    bool required;
    struct mox_gparam *next;
} mox_gparam;
/* The properties in order. */
const mox_gparam *mox_gschema_params(mox_gschema *s);
/* A parameter's value as tagged text: strings as they are, up to one of the words, others as JSON. */
uint32_t mox_gschema_emit_tagged(mox_gschema *s, const mox_gparam *p, const char *const *words, size_t n_words,
                                 uint32_t next);

#endif
