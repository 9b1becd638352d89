/* text/template_json.c -- JSON to values: key order is kept, numbers become what
 * Python's json module makes of them. */
#include "base/json_reader.h"
#include "text/template_value.h"

#include <stdlib.h>
#include <string.h>

mox_status mox_tv_number(mox_render *r, const char *text, size_t n, mox_tv *out)
{
    const mox_json_token token = {MOX_JSON_NUMBER, text, n};
    int64_t value;
    void *copy;
    if (mox_json_token_int(&token, &value)) {
        *out = mox_tv_int(value);
        return MOX_OK;
    }
    MOX_TRY(mox_render_take(r, n + 1, 1, &copy)); /* terminated */
    memcpy(copy, text, n);
    ((char *)copy)[n] = '\0';
    if (memchr(text, '.', n) || memchr(text, 'e', n) || memchr(text, 'E', n)) {
        *out = mox_tv_float(strtod(copy, NULL));
    } else {
        *out = (mox_tv){.type = MOX_TV_BIG, .u.big = copy};
    }
    return MOX_OK;
}

static mox_status scalar(mox_render *r, const mox_json_token *token, bool user, mox_tv *out)
{
    const mox_ts *s;
    switch (token->type) {
    case MOX_JSON_NULL: *out = mox_tv_none; return MOX_OK;
    case MOX_JSON_NUMBER: return mox_tv_number(r, token->text, token->n, out);
    case MOX_JSON_STRING:
    case MOX_JSON_KEY:
        MOX_TRY(mox_ts_make(r, token->text, token->n, user, &s));
        *out = mox_tv_string(s);
        return MOX_OK;
    default: *out = mox_tv_bool(token->type == MOX_JSON_TRUE); return MOX_OK;
    }
}

/* A key that comes twice is refused: other readers may have looked at the other one. */
static mox_status add_field(mox_render *r, const mox_json_reader *in, mox_tdict *d, const mox_tv *key, const mox_tv *v, mox_err *err)
{
    const size_t n = d->n;
    MOX_TRY(mox_tdict_set(r, d, key, v));
    if (d->n > n) return MOX_OK;
    const mox_ts *s = key->u.s;
    return mox_fail(err, MOX_E_ARG, "%s: the key \"%.*s\" comes twice in an object", in->in.name, s->n > 100 ? 100 : (int)s->n, s->p);
}

static mox_status build(mox_render *r, mox_json_reader *in, bool user, mox_tv *out, mox_err *err)
{
    mox_tv open[MOX_JSON_DEPTH_MAX], key[MOX_JSON_DEPTH_MAX], v;
    mox_json_token token;
    int depth = 0;
    do {
        MOX_TRY(mox_json_next(in, &token, err));
        switch (token.type) {
        case MOX_JSON_KEY: MOX_TRY(scalar(r, &token, user, &key[depth - 1])); continue;
        case MOX_JSON_OBJECT:
        case MOX_JSON_ARRAY:
            MOX_TRY(token.type == MOX_JSON_OBJECT ? mox_tv_dict(r, &open[depth])
                                                  : mox_tv_list(r, MOX_TV_LIST, 4, &open[depth]));
            depth++;
            continue;
        case MOX_JSON_OBJECT_END:
        case MOX_JSON_ARRAY_END: v = open[--depth]; break;
        default: MOX_TRY(scalar(r, &token, user, &v));
        }
        if (depth == 0) {
            *out = v;
        } else if (open[depth - 1].type == MOX_TV_DICT) {
            MOX_TRY(add_field(r, in, open[depth - 1].u.dict, &key[depth - 1], &v, err));
        } else {
            MOX_TRY(mox_tlist_push(r, open[depth - 1].u.list, &v));
        }
    } while (depth > 0);
    return mox_json_next(in, &token, err); /* nothing may follow */
}

mox_status mox_tv_from_json(mox_render *r, const char *name, const char *text, size_t n, bool user, mox_tv *out,
                            mox_err *err)
{
    mox_json_reader in;
    mox_json_reader_init(&in, (mox_json_span){name, text, n, 0});
    const mox_status status = build(r, &in, user, out, err);
    mox_json_reader_deinit(&in);
    return status;
}
