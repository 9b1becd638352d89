/* text/template_value.h -- what a template computes with.
 *
 * Values are Python's, as far as templates can see them.  All of it lives in the
 * region of a render (constants: of the template) and is never freed alone.
 *
 * I1  every string is well-formed UTF-8.
 * I2  failing ends the render: nobody catches an error, so counters and half-built
 *     values may be left as they are.
 */
#ifndef MOX_TEXT_TEMPLATE_VALUE_H
#define MOX_TEXT_TEMPLATE_VALUE_H

#include "text/region.h"
#include "text/template.h"

enum { MOX_TV_ARGS_MAX = 4 };

typedef enum mox_tv_type {
    MOX_TV_ABSENT, /* no value at all: an argument that was not given */
    MOX_TV_UNDEFINED,
    MOX_TV_NONE,
    MOX_TV_BOOL,
    MOX_TV_INT,
    MOX_TV_BIG, /* an integer beyond 64 bits, as its digits */
    MOX_TV_FLOAT,
    MOX_TV_STRING,
    MOX_TV_LIST,
    MOX_TV_TUPLE,
    MOX_TV_DICT,
    MOX_TV_RANGE,
    MOX_TV_VIEW,     /* keys(), values() or items() of a dict */
    MOX_TV_ITERATOR, /* what Python has a generator for: can be gone through once */
    MOX_TV_NAMESPACE,
    MOX_TV_LOOP,
    MOX_TV_MACRO,
    MOX_TV_FUNCTION,
    MOX_TV_METHOD
} mox_tv_type;

typedef struct mox_render mox_render;
typedef struct mox_tv mox_tv;
typedef struct mox_tnode mox_tnode;

/* ---- strings ------------------------------------------------------------------ */

typedef struct mox_ts_run { /* bytes up to end, from the end of the run before */
    size_t end;
    bool user;
} mox_ts_run;

/* Bytes that know where they are from.  A part of a string shares its bytes and runs. */
typedef struct mox_ts {
    const char *p;
    size_t n;
    const mox_ts_run *runs; /* NULL: all bytes are as `user` says */
    size_t n_runs;
    size_t at; /* where p is in what the runs describe */
    bool user;
    bool markup; /* went through `safe`: adding to it escapes, as in Jinja */
} mox_ts;

typedef struct mox_tb { /* a string being built; zero is empty */
    char *p;
    size_t n, capacity;
    mox_ts_run *runs;
    size_t n_runs, runs_capacity;
    bool markup;
} mox_tb;

/* ---- values ------------------------------------------------------------------- */

typedef struct mox_tlist {
    mox_tv *item;
    size_t n, capacity;
} mox_tlist;

typedef struct mox_tdict { /* in the order of insertion */
    mox_tv *key, *value;
    size_t n, capacity;
    uint32_t *index; /* open addressing: position + 1, or 0; NULL while small */
    size_t n_index;
    size_t message; /* its place in the variable `messages`, from 1 on; 0: it is no message */
} mox_tdict;

typedef struct mox_trange {
    int64_t start, stop, step, n;
} mox_trange;

typedef struct mox_tundefined mox_tundefined;
typedef struct mox_tmethod mox_tmethod;
typedef struct mox_tloop mox_tloop;
typedef struct mox_tmacro mox_tmacro;
typedef struct mox_tfn mox_tfn;

enum { MOX_VIEW_KEYS, MOX_VIEW_VALUES, MOX_VIEW_ITEMS };

struct mox_tv {
    uint8_t type;
    uint8_t view; /* MOX_VIEW_* */
    union {
        bool b;
        int64_t i;
        double f;
        const char *big; /* terminated; '-' and digits without leading zeros */
        const mox_ts *s;
        mox_tlist *list; /* also of tuples */
        mox_tdict *dict; /* also of views and namespaces */
        const mox_trange *range;
        struct mox_titer *iter;
        const mox_tundefined *undefined;
        const mox_tmethod *method;
        mox_tloop *loop;
        const mox_tmacro *macro;
        const mox_tfn *function;
    } u;
};

struct mox_tundefined {
    const char *hint;    /* what to say when it is used; NULL: made from the rest */
    uint8_t object_type; /* whose attribute it would be; MOX_TV_ABSENT: a variable */
    mox_tv name;
};

/* Goes through anything that can be gone through.  `value` is live: a list that
 * grows meanwhile is followed. */
typedef struct mox_titer {
    mox_tv value;
    size_t i; /* items, or bytes of a string, that are behind */
} mox_titer;

/* ---- functions: filters, tests, methods, globals --------------------------------- */

typedef struct mox_targs { /* as written */
    const mox_tv *pos;
    size_t n_pos;
    const mox_ts *const *kw_name;
    const mox_tv *kw;
    size_t n_kw;
} mox_targs;

typedef struct mox_tcall { /* as bound to the parameters of a function */
    mox_tv self;
    mox_tv arg[MOX_TV_ARGS_MAX]; /* MOX_TV_ABSENT where none was given */
    const mox_targs *raw;
    int code;
} mox_tcall;

typedef mox_status mox_tfn_call(mox_render *r, const mox_tcall *c, mox_tv *out);

struct mox_tfn {
    const char *name;
    mox_tfn_call *call;
    const char *params; /* names separated by blanks, the required ones first; "*" takes what comes */
    int n_required;
    int code; /* for functions that differ in little */
};

struct mox_tmethod {
    mox_tv self;
    const mox_tfn *fn;
};

/* ---- template_string.c ------------------------------------------------------------ */

mox_tv mox_tv_string(const mox_ts *s);
mox_status mox_tv_text(mox_render *r, const char *text, mox_tv *out); /* a literal: trusted, not copied */
mox_status mox_ts_make(mox_render *r, const char *p, size_t n, bool user, const mox_ts **out);
/* Bytes [begin, end) of s. */
mox_status mox_ts_part(mox_render *r, const mox_ts *s, size_t begin, size_t end, mox_tv *out);
/* The end of the stretch of one origin that byte i < s->n is in. */
size_t mox_ts_stretch(const mox_ts *s, size_t i, bool *user);
size_t mox_ts_length(const mox_ts *s); /* in characters */
/* The byte where character i begins; s->n behind the last. */
size_t mox_ts_offset(const mox_ts *s, size_t i);
bool mox_ts_is(const mox_ts *s, const char *text);
bool mox_ts_equal(const mox_ts *a, const mox_ts *b);
/* First byte of needle in s at or behind from; SIZE_MAX when it is not there. */
size_t mox_ts_find(const mox_ts *s, const mox_ts *needle, size_t from);

mox_status mox_tb_bytes(mox_render *r, mox_tb *b, const char *p, size_t n, bool user);
mox_status mox_tb_text(mox_render *r, mox_tb *b, const char *text); /* trusted */
mox_status mox_tb_part(mox_render *r, mox_tb *b, const mox_ts *s, size_t begin, size_t end);
mox_status mox_tb_string(mox_render *r, mox_tb *b, const mox_ts *s);
mox_status mox_tb_repeat(mox_render *r, mox_tb *b, const char *text, int64_t times);
mox_status mox_tb_done(mox_render *r, mox_tb *b, mox_tv *out);
/* s with & < > " ' as HTML entities. */
mox_status mox_tb_escaped(mox_render *r, mox_tb *b, const mox_ts *s);

/* ---- template_value.c -------------------------------------------------------------- */

extern const mox_tv mox_tv_none;
mox_tv mox_tv_bool(bool b);
mox_tv mox_tv_int(int64_t i);
mox_tv mox_tv_float(double f);
bool mox_tv_is_number(const mox_tv *v);             /* bool, int, big or float */
bool mox_tv_get_int(const mox_tv *v, int64_t *out); /* of a bool or an int */
double mox_tv_double(const mox_tv *number);
const char *mox_tv_type_name(const mox_tv *v);

mox_status mox_tv_undefined(mox_render *r, const char *hint, mox_tv *out);
/* What an object of a type does not have; MOX_TV_ABSENT: a variable that nobody set. */
mox_status mox_tv_missing(mox_render *r, mox_tv_type object_type, const mox_tv *name, mox_tv *out);
/* The error of using an undefined value. */
mox_status mox_tv_fail_undefined(mox_render *r, const mox_tv *v);

mox_status mox_tv_list(mox_render *r, mox_tv_type type, size_t capacity, mox_tv *out);
mox_status mox_tlist_push(mox_render *r, mox_tlist *l, const mox_tv *v);
mox_status mox_tv_pair(mox_render *r, const mox_tv *a, const mox_tv *b, mox_tv *out); /* a tuple */
mox_status mox_tv_iterator(mox_render *r, const mox_tv *list, mox_tv *out);

mox_status mox_tv_dict(mox_render *r, mox_tv *out);
mox_status mox_tdict_set(mox_render *r, mox_tdict *d, const mox_tv *key, const mox_tv *value);
/* *at is the position of key, or d->n.  A key that cannot be one is not there. */
mox_status mox_tdict_find(mox_render *r, const mox_tdict *d, const mox_tv *key, size_t *at);

bool mox_tv_hashable(const mox_tv *v);
/* Pays for a pass over the bytes of a string or the digits of an integer beyond 64 bits; all else is small. */
mox_status mox_tv_pay(mox_render *r, const mox_tv *v);

mox_status mox_tv_truth(mox_render *r, const mox_tv *v, bool *out);
mox_status mox_tv_equal(mox_render *r, const mox_tv *a, const mox_tv *b, bool *out);
mox_status mox_tv_order(mox_render *r, const mox_tv *a, const mox_tv *b, const char *op, int *out); /* 2: unordered */
mox_status mox_tv_contains(mox_render *r, const mox_tv *container, const mox_tv *v, bool *out);
/* len(); false when there is none. */
bool mox_tv_length(const mox_tv *v, size_t *out);

bool mox_tv_iterable(const mox_tv *v);
mox_status mox_titer_init(mox_render *r, const mox_tv *v, mox_titer *it);
mox_status mox_titer_next(mox_render *r, mox_titer *it, mox_tv *out, bool *more);
mox_status mox_tv_to_list(mox_render *r, const mox_tv *v, mox_tv *out); /* a new list */

/* ---- template_print.c --------------------------------------------------------------- */

mox_status mox_tb_str(mox_render *r, mox_tb *b, const mox_tv *v);  /* str() */
mox_status mox_tb_repr(mox_render *r, mox_tb *b, const mox_tv *v); /* repr() */
mox_status mox_tv_str(mox_render *r, const mox_tv *v, const mox_ts **out);
enum { MOX_FLOAT_TEXT = 32 };
mox_status mox_float_repr(mox_render *r, double f, char out[MOX_FLOAT_TEXT]);

typedef struct mox_tjson { /* how json.dumps is asked to write */
    const mox_ts *indent;  /* NULL: on one line */
    const mox_ts *item_separator, *key_separator;
    bool ascii, sort_keys;
} mox_tjson;
mox_status mox_tb_json(mox_render *r, mox_tb *b, const mox_tv *v, const mox_tjson *how);

/* template_sequence.c: the positions of key[0, n) in sorted order; equal ones stay in theirs. */
mox_status mox_sorted(mox_render *r, const mox_tv *key, size_t n, bool reverse, const size_t **out);

/* ---- template_json.c: JSON to values ---------------------------------------------- */

mox_status mox_tv_from_json(mox_render *r, const char *name, const char *text, size_t n, bool user, mox_tv *out,
                            mox_err *err);
/* A number as JSON and Jinja spell it, digits only. */
mox_status mox_tv_number(mox_render *r, const char *text, size_t n, mox_tv *out);

/* ---- template_ops.c ------------------------------------------------------------------ */

mox_status mox_tv_binary(mox_render *r, int op, const mox_tv *a, const mox_tv *b, mox_tv *out);
mox_status mox_tv_negate(mox_render *r, const mox_tv *v, mox_tv *out);
mox_status mox_tv_attr(mox_render *r, const mox_tv *object, const mox_ts *name, mox_tv *out);
mox_status mox_tv_item(mox_render *r, const mox_tv *object, const mox_tv *key, mox_tv *out);
mox_status mox_tv_slice(mox_render *r, const mox_tv *v, const mox_tv bound[3], mox_tv *out);

/* ---- functions ------------------------------------------------------------------------- */

const mox_tfn *mox_filter_find(const char *name, size_t n);
const mox_tfn *mox_sequence_filter_find(const char *name, size_t n); /* a part of mox_filter_find */
const mox_tfn *mox_test_find(const char *name, size_t n);
const mox_tfn *mox_global_find(const char *name, size_t n);
const mox_tfn *mox_string_method_find(const char *name, size_t n);
const mox_tfn *mox_container_method_find(mox_tv_type type, const char *name, size_t n);
const mox_tfn *mox_fn_find(const mox_tfn *table, size_t n_table, const char *name, size_t n);

/* Calls a filter, test, method or global with arguments as written. */
mox_status mox_fn_apply(mox_render *r, const mox_tfn *fn, const mox_tv *self, const mox_targs *args, mox_tv *out);
/* Calls any value that can be called. */
mox_status mox_tv_call(mox_render *r, const mox_tv *callee, const mox_targs *args, mox_tv *out);
mox_status mox_macro_call(mox_render *r, const mox_tmacro *m, const mox_targs *args, mox_tv *out); /* template_exec.c */
mox_status mox_loop_attr(mox_render *r, mox_tloop *loop, const mox_ts *name, mox_tv *out);         /* template_loop.c */

/* Arguments by their types, with a default where nothing was given. */
mox_status mox_arg_string(mox_render *r, const mox_tv *arg, const char *what, const mox_ts **out);
mox_status mox_arg_int(mox_render *r, const mox_tv *arg, int64_t otherwise, const char *what, int64_t *out);
mox_status mox_arg_truth(mox_render *r, const mox_tv *arg, bool otherwise, bool *out);

/* template_case.c */
enum { MOX_CASE_UPPER, MOX_CASE_LOWER, MOX_CASE_CAPITALIZE, MOX_CASE_TITLE, MOX_CASE_SWAP };
mox_status mox_ts_case(mox_render *r, const mox_ts *s, int how, mox_tv *out);
bool mox_char_is_space(uint32_t cp);
bool mox_char_is_printable(uint32_t cp);
bool mox_char_is_word(uint32_t cp); /* \w of Python */
enum { MOX_IS_ALNUM, MOX_IS_ALPHA, MOX_IS_DIGIT, MOX_IS_LOWER, MOX_IS_SPACE, MOX_IS_UPPER };
bool mox_ts_all(const mox_ts *s, int what); /* str.isalnum() and so on */

/* template_format.c */
mox_status mox_format_percent(mox_render *r, const mox_ts *format, const mox_tv *values, mox_tv *out);
mox_status mox_format_braces(mox_render *r, const mox_ts *format, const mox_targs *args, mox_tv *out);
mox_status mox_format_time(mox_render *r, const mox_ts *format, mox_tv *out);

/* ---- the render ---------------------------------------------------------------------------- */

/* Memory of the render. */
mox_status mox_render_take(mox_render *r, size_t n, size_t size, void **out);
mox_status mox_render_grow(mox_render *r, void **piece, size_t old, size_t n, size_t size);
/* Counts work; fails when the limit is reached. */
mox_status mox_render_step(mox_render *r);
mox_status mox_render_bytes(mox_render *r, size_t bytes);
/* Around everything that calls itself. */
mox_status mox_render_enter(mox_render *r);
void mox_render_leave(mox_render *r);
/* Fails with the place of what is being evaluated in front. */
mox_status mox_render_fail(mox_render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t mox_render_output_max(const mox_render *r);
mox_status mox_render_too_long(mox_render *r);
mox_status mox_render_refuse(mox_render *r, const mox_ts *message);
void mox_render_time(const mox_render *r, int64_t *unix_time_s, int32_t *utc_offset_s);

#endif
