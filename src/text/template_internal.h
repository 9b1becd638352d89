/* text/template_internal.h -- a parsed template, and what runs it.
 *
 * The lexer cuts the text into tokens, the parser makes nodes of them, and the
 * interpreter (template_eval.c for expressions, template_exec.c for statements)
 * walks the nodes.  Variables live in frames, one per scope, found by the number of
 * their name. */
#ifndef MOX_TEXT_TEMPLATE_INTERNAL_H
#define MOX_TEXT_TEMPLATE_INTERNAL_H

#include "text/template_value.h"

/* ---- tokens ----------------------------------------------------------------------- */

typedef enum mox_ttoken_type {
    MOX_TT_DATA,
    MOX_TT_PRINT_BEGIN,
    MOX_TT_PRINT_END,
    MOX_TT_BLOCK_BEGIN,
    MOX_TT_BLOCK_END,
    MOX_TT_NAME,
    MOX_TT_STRING, /* with its quotes and escapes */
    MOX_TT_INTEGER,
    MOX_TT_FLOAT,
    MOX_TT_OPERATOR,
    MOX_TT_END
} mox_ttoken_type;

/* Operators are numbered by their spelling: one character, or two. */
#define MOX_OP2(a, b) ((a) << 8 | (b))

typedef struct mox_ttoken {
    mox_ttoken_type type;
    uint32_t at; /* byte of the text */
    int op;
    const char *p;
    size_t n;
} mox_ttoken;

typedef struct mox_ttokens {
    mox_ttoken *token; /* the last one is MOX_TT_END */
    size_t n, capacity;
} mox_ttokens;

/* The text with all line ends as \n and without the last one, and its tokens. */
mox_status mox_template_lex(mox_template *t, mox_region *region, mox_ttokens *out, mox_err *err);

/* ---- nodes -------------------------------------------------------------------------- */

typedef enum mox_tnode_kind {
    /* expressions */
    MOX_TN_CONST,   /* value */
    MOX_TN_NAME,    /* name */
    MOX_TN_LIST,    /* list */
    MOX_TN_TUPLE,   /* list; also a target */
    MOX_TN_DICT,    /* list: key, value, key, value ... */
    MOX_TN_ATTR,    /* a . value */
    MOX_TN_ITEM,    /* a [ b ] */
    MOX_TN_SLICE,   /* list of three, each may be NULL; only as b of an item */
    MOX_TN_CALL,    /* a ( args ) */
    MOX_TN_FILTER,  /* a | fn ( args ), or its value's text when fn is unknown */
    MOX_TN_TEST,    /* a is fn ( args ) */
    MOX_TN_NOT,     /* a */
    MOX_TN_NEGATE,  /* a */
    MOX_TN_PLUS,    /* a */
    MOX_TN_BINARY,  /* list and ops between them, from the left */
    MOX_TN_CONCAT,  /* list */
    MOX_TN_COMPARE, /* list and ops between them, all must hold */
    MOX_TN_AND,     /* list */
    MOX_TN_OR,      /* list */
    MOX_TN_CHOICE,  /* a if b else c; c may be NULL */
    MOX_TN_MEMBER,  /* name . value: only as a target */
    /* statements, linked by next */
    MOX_TN_TEXT,         /* value */
    MOX_TN_PRINT,        /* a */
    MOX_TN_IF,           /* if a: body b, else c; an elif is an if as c */
    MOX_TN_FOR,          /* for a in b if test: body, else c */
    MOX_TN_SET,          /* a = b */
    MOX_TN_SET_BLOCK,    /* a = body through the filters b, innermost operand NULL */
    MOX_TN_MACRO,        /* name, params, body */
    MOX_TN_CALL_BLOCK,   /* call b with a macro made of params and body */
    MOX_TN_FILTER_BLOCK, /* body through the filters b */
    MOX_TN_WITH,         /* list: target, value, target, value ...; body */
    MOX_TN_SCOPE,        /* body with variables of its own: generation */
    MOX_TN_BREAK,
    MOX_TN_CONTINUE
} mox_tnode_kind;

enum { MOX_OP_IN = 256, MOX_OP_NOT_IN = 257 };

typedef struct mox_tnode_args {
    mox_tnode **pos;
    size_t n_pos;
    const mox_ts **kw_name;
    mox_tnode **kw;
    size_t n_kw;
} mox_tnode_args;

/* Names that a scope assigns first and reads later, and that no scope around it
 * mentions: they are undefined until then, even if there is such a variable. */
typedef struct mox_tscope mox_tscope;
struct mox_tscope {
    mox_tscope *parent;
    int32_t *name; /* all that it mentions itself */
    bool *stored;  /* the first mention is an unconditional assignment */
    size_t n, capacity;
    int32_t *hidden;
    size_t n_hidden;
    mox_tscope *next; /* of all scopes of the template */
};

typedef struct mox_tparams { /* of a macro */
    int32_t *name;
    mox_tnode **otherwise; /* NULL: none */
    size_t n;
    bool caller, kwargs, varargs; /* the body uses them */
} mox_tparams;

struct mox_tnode {
    mox_tnode_kind kind;
    uint32_t at;
    int32_t name;
    mox_tnode *a, *b, *c, *test, *body, *next;
    mox_tnode **list;
    size_t n;
    const int *ops;
    const mox_tnode_args *args;
    const mox_tfn *fn;
    const mox_tparams *params;
    const mox_tscope *scope, *test_scope, *else_scope;
    mox_tv value;
};

/* Names with numbers known beforehand. */
enum { MOX_NAME_LOOP, MOX_NAME_CALLER, MOX_NAME_KWARGS, MOX_NAME_VARARGS };

typedef struct mox_tname {
    const char *p;
    size_t n;
    const mox_tfn *global;
} mox_tname;

struct mox_template {
    const char *name; /* borrowed */
    char *text;
    size_t n;
    mox_region region; /* of everything below */
    mox_tname *names;
    size_t n_names, names_capacity;
    mox_tnode *body;
    mox_tscope *scope;
};

mox_status mox_template_parse(mox_template *t, const mox_ttokens *tokens, mox_err *err);
/* MOX_E_FORMAT with the place in front of the words. */
mox_status mox_template_fail(const mox_template *t, uint32_t at, mox_err *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The number of a name, or -1. */
int32_t mox_template_name(const mox_template *t, const char *p, size_t n);

/* ---- running -------------------------------------------------------------------------- */

typedef struct mox_tframe mox_tframe;
struct mox_tframe {
    mox_tframe *parent;
    int32_t *name;
    mox_tv *value; /* MOX_TV_ABSENT: hidden and not yet assigned */
    size_t n, capacity;
};

struct mox_tmacro {
    const mox_tnode *node;
    mox_tframe *frame; /* where it was defined */
    const mox_ts *name;
};

struct mox_tloop {
    mox_titer items;
    const mox_tnode *node; /* the for */
    mox_tframe *frame;     /* around the loop */
    mox_tframe *test_frame;
    mox_tv before, current, after; /* MOX_TV_ABSENT: none, or not looked at */
    int64_t index0;
    int64_t length; /* -1: not counted */
    bool filtered;
    mox_tv changed; /* what changed() saw last */
};

typedef enum mox_tflow { MOX_FLOW_NEXT, MOX_FLOW_BREAK, MOX_FLOW_CONTINUE } mox_tflow;

struct mox_render {
    const mox_template *t;
    mox_region region;
    mox_template_opts opts;
    int64_t steps_left;
    int32_t depth_left;
    uint32_t at; /* what is being evaluated */
    mox_tframe *frame;
    mox_tv *context; /* variables of the caller by name; MOX_TV_ABSENT: none */
    mox_tb *out;
    const mox_tb *prompt; /* the outermost of them */
    mox_err *err;
};

mox_status mox_eval(mox_render *r, const mox_tnode *e, mox_tv *out);
mox_status mox_eval_truth(mox_render *r, const mox_tnode *e, bool *out);
mox_status mox_eval_args(mox_render *r, const mox_tnode_args *args, const mox_tv *caller, mox_targs *out);
/* Filters around a text: the innermost operand of the nodes is NULL. */
mox_status mox_eval_filters(mox_render *r, const mox_tnode *filters, const mox_tv *text, mox_tv *out);
mox_status mox_exec(mox_render *r, const mox_tnode *first, mox_tflow *flow);

mox_status mox_frame_push(mox_render *r, const mox_tscope *scope, mox_tframe **out);
void mox_frame_pop(mox_render *r);
mox_status mox_frame_set(mox_render *r, mox_tframe *f, int32_t name, const mox_tv *v);
mox_status mox_frame_hide(mox_render *r, mox_tframe *f, const mox_tscope *scope);
mox_status mox_frame_get(mox_render *r, int32_t name, mox_tv *out);
/* Assigns to a name, a member of a namespace, or the parts of a tuple. */
mox_status mox_assign(mox_render *r, const mox_tnode *target, mox_tframe *f, const mox_tv *v);

mox_status mox_loop_next(mox_render *r, mox_tloop *loop, mox_tv *out, bool *more);

#endif
