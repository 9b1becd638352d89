/* text/template_tests.c -- what stands behind `is`. */
#include "text/template_internal.h"

#include <string.h>

enum {
    DEFINED,
    UNDEFINED,
    NONE,
    BOOLEAN,
    FALSE,
    TRUE,
    INTEGER,
    FLOAT,
    NUMBER,
    STRING,
    MAPPING,
    ITERABLE,
    SEQUENCE,
    CALLABLE,
    ESCAPED
};

static bool is(const mox_tv *v, int what)
{
    const bool undefined = v->type == MOX_TV_UNDEFINED;
    switch (what) {
    case DEFINED: return !undefined;
    case UNDEFINED: return undefined;
    case NONE: return v->type == MOX_TV_NONE;
    case BOOLEAN: return v->type == MOX_TV_BOOL;
    case FALSE: return v->type == MOX_TV_BOOL && !v->u.b;
    case TRUE: return v->type == MOX_TV_BOOL && v->u.b;
    case INTEGER: return v->type == MOX_TV_INT || v->type == MOX_TV_BIG;
    case FLOAT: return v->type == MOX_TV_FLOAT;
    case NUMBER: return mox_tv_is_number(v);
    case STRING: return v->type == MOX_TV_STRING;
    case MAPPING: return v->type == MOX_TV_DICT;
    case ITERABLE: return mox_tv_iterable(v) || v->type == MOX_TV_LOOP;
    case SEQUENCE: return undefined || (v->type >= MOX_TV_STRING && v->type <= MOX_TV_RANGE);
    case CALLABLE: return undefined || v->type >= MOX_TV_LOOP;
    default: return v->type == MOX_TV_STRING && v->u.s->markup; /* ESCAPED */
    }
}

static mox_status test_kind(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    (void)r;
    *out = mox_tv_bool(is(&c->self, c->code));
    return MOX_OK;
}

/* even, odd and divisibleby, by what the remainder is compared with. */
static mox_status test_remainder(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_tv two = mox_tv_int(2), wanted = mox_tv_int(c->code == 1);
    const mox_tv *by = c->code == 2 ? &c->arg[0] : &two;
    mox_tv rest;
    bool equal;
    MOX_TRY(mox_tv_binary(r, '%', &c->self, by, &rest));
    MOX_TRY(mox_tv_equal(r, &rest, &wanted, &equal));
    *out = mox_tv_bool(equal);
    return MOX_OK;
}

static mox_status test_case(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s;
    MOX_TRY(mox_tv_str(r, &c->self, &s));
    MOX_TRY(mox_render_bytes(r, s->n));
    *out = mox_tv_bool(mox_ts_all(s, c->code));
    return MOX_OK;
}

static mox_status test_equal(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool equal;
    MOX_TRY(mox_tv_equal(r, &c->self, &c->arg[0], &equal));
    *out = mox_tv_bool(equal == (c->code == 0));
    return MOX_OK;
}

static mox_status test_order(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    static const char *const names[] = {"<", "<=", ">", ">="};
    int order;
    MOX_TRY(mox_tv_order(r, &c->self, &c->arg[0], names[c->code], &order));
    const bool holds[] = {order < 0, order <= 0, order == 1, order == 0 || order == 1};
    *out = mox_tv_bool(order != 2 && holds[c->code]);
    return MOX_OK;
}

static mox_status test_in(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool in;
    MOX_TRY(mox_tv_contains(r, &c->arg[0], &c->self, &in));
    *out = mox_tv_bool(in);
    return MOX_OK;
}

/* One object: small things are their value, others where they are. */
static mox_status test_sameas(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    bool same = c->self.type == c->arg[0].type;
    if (same && c->self.type >= MOX_TV_LIST) {
        same = c->self.u.list == c->arg[0].u.list;
    } else if (same) {
        MOX_TRY(mox_tv_equal(r, &c->self, &c->arg[0], &same));
    }
    *out = mox_tv_bool(same);
    return MOX_OK;
}

static mox_status test_exists(mox_render *r, const mox_tcall *c, mox_tv *out)
{
    const mox_ts *s;
    MOX_TRY(mox_arg_string(r, &c->self, "the name of a filter or test", &s));
    *out = mox_tv_bool((c->code ? mox_test_find(s->p, s->n) : mox_filter_find(s->p, s->n)) != NULL);
    return MOX_OK;
}

const mox_tfn *mox_fn_find(const mox_tfn *table, size_t n_table, const char *name, size_t n)
{
    for (size_t i = 0; i < n_table; i++) {
        if (strlen(table[i].name) == n && memcmp(table[i].name, name, n) == 0) return &table[i];
    }
    return NULL;
}

const mox_tfn *mox_test_find(const char *name, size_t n)
{
    static const mox_tfn tests[] = {
        {"defined", test_kind, "", 0, DEFINED},    {"undefined", test_kind, "", 0, UNDEFINED},
        {"none", test_kind, "", 0, NONE},          {"boolean", test_kind, "", 0, BOOLEAN},
        {"false", test_kind, "", 0, FALSE},        {"true", test_kind, "", 0, TRUE},
        {"integer", test_kind, "", 0, INTEGER},    {"float", test_kind, "", 0, FLOAT},
        {"number", test_kind, "", 0, NUMBER},      {"string", test_kind, "", 0, STRING},
        {"mapping", test_kind, "", 0, MAPPING},    {"iterable", test_kind, "", 0, ITERABLE},
        {"sequence", test_kind, "", 0, SEQUENCE},  {"callable", test_kind, "", 0, CALLABLE},
        {"escaped", test_kind, "", 0, ESCAPED},    {"even", test_remainder, "", 0, 0},
        {"odd", test_remainder, "", 0, 1},         {"divisibleby", test_remainder, "num", 1, 2},
        {"lower", test_case, "", 0, MOX_IS_LOWER}, {"upper", test_case, "", 0, MOX_IS_UPPER},
        {"eq", test_equal, "other", 1, 0},         {"equalto", test_equal, "other", 1, 0},
        {"==", test_equal, "other", 1, 0},         {"ne", test_equal, "other", 1, 1},
        {"!=", test_equal, "other", 1, 1},         {"lt", test_order, "other", 1, 0},
        {"lessthan", test_order, "other", 1, 0},   {"<", test_order, "other", 1, 0},
        {"le", test_order, "other", 1, 1},         {"<=", test_order, "other", 1, 1},
        {"gt", test_order, "other", 1, 2},         {"greaterthan", test_order, "other", 1, 2},
        {">", test_order, "other", 1, 2},          {"ge", test_order, "other", 1, 3},
        {">=", test_order, "other", 1, 3},         {"in", test_in, "seq", 1, 0},
        {"sameas", test_sameas, "other", 1, 0},    {"filter", test_exists, "", 0, 0},
        {"test", test_exists, "", 0, 1},
    };
    return mox_fn_find(tests, sizeof tests / sizeof *tests, name, n);
}
