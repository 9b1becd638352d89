/* moxie/grammar.h -- replies that keep to a form: a JSON schema, a grammar, tool calls.
 *
 * Three objects.  A `mox_grammar` is the form, compiled.  A `mox_token_trie` has the tokens
 * of a vocabulary in the order of their bytes, and is made once for each tokenizer.  Both are
 * immutable and may be shared by threads.  A `mox_constraint` is how far one reply has come;
 * it says which tokens may follow, and belongs to one thread at a time.
 *
 * A turn (moxie/chat.h) does all of this by itself when its options name a grammar.  What is
 * supported of JSON Schema and of grammars is in docs/structured-output.md.  See moxie.h for
 * errors and ownership. */
#ifndef MOXIE_GRAMMAR_H
#define MOXIE_GRAMMAR_H

#include "moxie/chat.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the form -------------------------------------------------------------- */

typedef struct mox_grammar mox_grammar;

/* Of all of these: MOX_E_ARG says what is wrong with the form, and where; MOX_E_FORMAT that it
 * is no JSON; MOX_E_LIMIT that it is too large.  On failure *out is NULL. */

typedef struct mox_schema_opts {
    bool lenient;      /* drop what cannot be held, with a warning, instead of refusing it */
    mox_warn_fn *warn; /* NULL: warnings are dropped */
    void *warn_user;
} mox_schema_opts;

/* JSON that a schema describes.  opts may be NULL. */
MOX_API mox_status mox_grammar_create_schema(mox_grammar **out, mox_json_text schema, const mox_schema_opts *opts,
                                             mox_err *err);
/* Any JSON object. */
MOX_API mox_status mox_grammar_create_object(mox_grammar **out, mox_err *err);
/* GBNF: the rule `root` is the reply.  Errors name line and column. */
MOX_API mox_status mox_grammar_create_gbnf(mox_grammar **out, const char *text, size_t n, mox_err *err);

typedef struct mox_calls_opts {
    const char *format;      /* of mox_chat_info's call_format */
    mox_json_text tools;     /* of the request */
    const char *name;        /* the one tool to call; NULL: any of them */
    bool parallel;           /* several calls may follow each other */
    mox_json_text or_schema; /* instead of calls the reply may be JSON that this describes; empty: not */
    bool or_object;          /* the same with any JSON object */
    mox_warn_fn *warn;       /* NULL: warnings are dropped */
    void *warn_user;
} mox_calls_opts;

/* A reply that is a call of a tool, with arguments that its schema describes, or else what or_schema
 * or or_object allows.  Schemas of tools are read leniently, or_schema is not. */
MOX_API mox_status mox_grammar_create_calls(mox_grammar **out, const mox_calls_opts *opts, mox_err *err);
MOX_API void mox_grammar_destroy(mox_grammar **g);

/* ---- the vocabulary -------------------------------------------------------- */

typedef struct mox_token_trie mox_token_trie;

MOX_API mox_status mox_token_trie_create(mox_token_trie **out, const mox_tokenizer *t, mox_err *err);
MOX_API void mox_token_trie_destroy(mox_token_trie **trie);

/* ---- one reply ------------------------------------------------------------- */

typedef struct mox_constraint mox_constraint;

/* Grammar and trie must outlive it.  end_ids are the tokens that end a reply.  All memory is
 * taken here. */
MOX_API mox_status mox_constraint_create(mox_constraint **out, const mox_grammar *g, const mox_token_trie *trie,
                                         const int32_t *end_ids, int32_t n_end_ids, mox_err *err);
MOX_API void mox_constraint_destroy(mox_constraint **c);

/* From the beginning.  after_thinking: up to two line breaks may come first. */
MOX_API mox_status mox_constraint_begin(mox_constraint *c, bool after_thinking, mox_err *err);

/* Of the next four: MOX_E_LIMIT when the grammar can be read in too many ways at once. */

/* Whether this token may come next. */
MOX_API mox_status mox_constraint_allows(mox_constraint *c, int32_t token, bool *out, mox_err *err);
/* It came.  MOX_E_ARG when it may not; the constraint is as it was then. */
MOX_API mox_status mox_constraint_accept(mox_constraint *c, int32_t token, mox_err *err);
/* The same for text without regard to tokens. */
MOX_API mox_status mox_constraint_accept_bytes(mox_constraint *c, const char *bytes, size_t n, mox_err *err);
/* mask[i] is 1 when token i may come next, else 0, for i < n.  MOX_E_STATE: none may, a dead
 * end of the grammar. */
MOX_API mox_status mox_constraint_mask(mox_constraint *c, unsigned char *mask, int64_t n, mox_err *err);

/* The reply may end here; it must, because nothing can follow. */
MOX_API bool mox_constraint_may_end(const mox_constraint *c);
MOX_API bool mox_constraint_must_end(const mox_constraint *c);

#ifdef __cplusplus
}
#endif
#endif
