/* text/template_parser.h -- what the two halves of the parser share.
 *
 * template_parse.c has statements, template_parse_expr.c expressions.  While they
 * go they note which names each scope mentions, in the order in which the reference
 * looks at them: see mox_tscope. */
#ifndef MOX_TEXT_TEMPLATE_PARSER_H
#define MOX_TEXT_TEMPLATE_PARSER_H

#include "text/template_internal.h"

enum { MOX_NESTING_MAX = 200 };

typedef struct mox_tparser {
    mox_template *t;
    mox_err *err;
    const mox_ttoken *now, *tag; /* the name of the innermost open tag */
    int nesting;                 /* tags and expressions that are open */
    mox_tscope *scope, *scopes;
    int branches;                 /* ifs that are open in this scope */
    int loops;                    /* fors that are open in this macro */
    int for_depth;                /* fors that are open at all */
    bool caller, kwargs, varargs; /* mentioned in the macro being parsed */
    const mox_ttoken *unknown;    /* the name of a filter or test that does not exist and will be needed */
} mox_tparser;

mox_status mox_parse_fail(mox_tparser *p, const mox_ttoken *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
mox_status mox_parse_unexpected(mox_tparser *p, const char *wanted);
mox_status mox_parse_enter(mox_tparser *p);

mox_status mox_parse_take(mox_tparser *p, size_t n, size_t size, void **out); /* zeroed */
mox_status mox_parse_node(mox_tparser *p, mox_tnode_kind kind, const mox_ttoken *at, mox_tnode **out);
/* Appends to node->list; room is doubled when n is a power of two. */
mox_status mox_parse_append(mox_tparser *p, mox_tnode *node, mox_tnode *item);
mox_status mox_parse_name(mox_tparser *p, const mox_ttoken *token, int32_t *out);
mox_status mox_parse_literal(mox_tparser *p, const char *text, size_t n, mox_tv *out); /* text is not copied */

bool mox_parse_is_word(const mox_tparser *p, const char *word);
bool mox_parse_is_op(const mox_tparser *p, int op);
bool mox_parse_skip_word(mox_tparser *p, const char *word);
bool mox_parse_skip_op(mox_tparser *p, int op);
mox_status mox_parse_expect_op(mox_tparser *p, int op);
mox_status mox_parse_expect_name(mox_tparser *p, const mox_ttoken **out);

mox_status mox_note_load(mox_tparser *p, int32_t name);
mox_status mox_note_store(mox_tparser *p, int32_t name);
mox_status mox_note_param(mox_tparser *p, int32_t name);

/* Expressions. */
enum { MOX_TUPLE_CHOICE = 1, MOX_TUPLE_PARENTHESES = 2 };
mox_status mox_parse_expression(mox_tparser *p, mox_tnode **out);
mox_status mox_parse_tuple(mox_tparser *p, int flags, mox_tnode **out);
mox_status mox_parse_filters(mox_tparser *p, mox_tnode *operand, bool bare_first, mox_tnode **out);
/* Something that can be assigned to; its names are not noted. */
mox_status mox_parse_target(mox_tparser *p, bool members, mox_tnode **out);

#endif
