/* app/server/fields.c -- see fields.h. */
#include "app/server/fields.h"

#include "base/alloc.h"
#include "base/json_fields.h"
#include "base/plant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct field {
    const char *name;
    unsigned apis;
    int types;
    double low, high;
} table[N_FIELDS] = {
#define MOX_FIELD_ENTRY(id, name, apis, types, low, high) [FIELD_##id] = {name, apis, types, low, high},
    MOX_FIELD_LIST(MOX_FIELD_ENTRY)
#undef MOX_FIELD_ENTRY
};

bool mox_field_known(const char *name)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(table[i].name, name) == 0) return true;
    return false;
}

bool mox_span_is(mox_json_span v, const char *word)
{
    const size_t n = strlen(word);
    return mox_span_is_string(v) && v.n == n + 2 && memcmp(v.text + 1, word, n) == 0;
}

/* ---- keys that come twice ------------------------------------------------------------------------ */

typedef struct key { /* a copy of a key, and where its object begins in the list */
    uint64_t hash;
    size_t at, n; /* of its bytes */
} key;

typedef struct key_list {
    mox_buffer keys; /* key */
    size_t n;
    mox_buffer bytes;
    size_t n_bytes;
    size_t begin[MOX_JSON_DEPTH_MAX + 1], begin_bytes[MOX_JSON_DEPTH_MAX + 1]; /* of the open containers */
    int depth;
} key_list;

static uint64_t hash_of(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return h;
}

static int compare_keys(const void *a, const void *b, void *bytes)
{
    const key *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return memcmp((const char *)bytes + x->at, (const char *)bytes + y->at, x->n);
}

static mox_status add_key(key_list *l, const char *text, size_t n, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(&l->keys, l->n + 1, sizeof(key), "keys of a request", err));
    MOX_TRY(mox_buffer_reserve(&l->bytes, l->n_bytes + n + 1, 1, "keys of a request", err));
    memcpy((char *)l->bytes.data + l->n_bytes, text, n);
    ((key *)l->keys.data)[l->n++] = (key){hash_of(text, n), l->n_bytes, n};
    l->n_bytes += n;
    return MOX_OK;
}

/* The object is over: sorted, two of a kind are neighbours. */
static mox_status close_object(key_list *l, mox_err *err)
{
    const size_t begin = l->begin[l->depth], n = l->n - begin;
    if (n == 0) return MOX_OK; /* there may be no list yet */
    key *keys = (key *)l->keys.data + begin;
    char *bytes = l->bytes.data;
    if (n > 1) qsort_r(keys, n, sizeof *keys, compare_keys, bytes);
    for (size_t i = 1; i < n; i++)
        if (compare_keys(&keys[i - 1], &keys[i], bytes) == 0) {
            char name[64];
            (void)snprintf(name, sizeof name, "%.*s", (int)(keys[i].n < 60 ? keys[i].n : 60),
                           bytes + keys[i].at);
            return mox_fail(err, MOX_E_ARG,
                            "the body has the key \"%s\" twice in one object; each may be there once", name);
        }
    l->n = begin;
    l->n_bytes = l->begin_bytes[l->depth];
    return MOX_OK;
}

static mox_status check_keys(mox_json_reader *r, key_list *l, mox_err *err)
{
    mox_json_token t;
    for (;;) {
        MOX_TRY(mox_json_next(r, &t, err));
        switch (t.type) {
        case MOX_JSON_OBJECT:
        case MOX_JSON_ARRAY:
            l->depth++;
            l->begin[l->depth] = l->n;
            l->begin_bytes[l->depth] = l->n_bytes;
            break;
        case MOX_JSON_KEY: MOX_TRY(add_key(l, t.text, t.n, err)); break;
        case MOX_JSON_OBJECT_END:
            MOX_TRY(close_object(l, err));
            l->depth--;
            break;
        case MOX_JSON_ARRAY_END: l->depth--; break;
        case MOX_JSON_END: return MOX_OK;
        default: break;
        }
    }
}

static mox_status check_body(mox_json_span body, mox_err *err)
{
    key_list l = {0};
    mox_json_reader r;
    mox_json_reader_init(&r, body);
    const mox_status status = check_keys(&r, &l, err);
    mox_json_reader_deinit(&r);
    mox_buffer_deinit(&l.keys);
    mox_buffer_deinit(&l.bytes);
    return status;
}

/* ---- values -------------------------------------------------------------------------------------- */

static mox_status wrong_type(const struct field *f, mox_err *err)
{
    static const char *const words[] = {"true or false", "a whole number", "a number",
                                        "a string",      "an array",       "an object"};
    char list[120] = "";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (f->types & (1 << i)) {
            const size_t n = strlen(list);
            (void)snprintf(list + n, sizeof list - n, "%s%s", n > 0 ? " or " : "", words[i]);
        }
    return mox_fail(err, MOX_E_ARG, "%s must be %s", f->name, list);
}

static mox_status read_number(const struct field *f, mox_field_value *v, mox_err *err)
{
    char text[64];
    if (v->raw.n >= sizeof text) return wrong_type(f, err);
    MOX_PLANT(v->raw.n > 22);
    memcpy(text, v->raw.text, v->raw.n);
    text[v->raw.n] = '\0';
    v->real = strtod(text, NULL);
    if (!(f->types & IS_REAL)) {
        const mox_json_token t = {.type = MOX_JSON_NUMBER, .text = text, .n = v->raw.n};
        const bool digits = strspn(text, "-0123456789") == v->raw.n;
        if (!digits) return wrong_type(f, err);
        if (!mox_json_token_int(&t, &v->number))
            v->real = (double)INFINITY; /* too large: out of every range */
    }
    v->type = f->types & IS_REAL ? IS_REAL : IS_INT;
    if (v->real >= f->low && v->real <= f->high) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "%s must be a number from %.10g to %.10g", f->name, f->low, f->high);
}

static mox_status read_value(const struct field *f, mox_field_value *v, mox_err *err)
{
    const char c = v->raw.text[0];
    if (c == 'n') return MOX_OK; /* null */
    v->given = true;
    v->on = c == 't';
    v->type = c == '"'               ? IS_STRING
              : c == '['             ? IS_ARRAY
              : c == '{'             ? IS_OBJECT
              : c == 't' || c == 'f' ? IS_BOOL
                                     : 0;
    if (v->type == 0 && (f->types & (IS_INT | IS_REAL))) return read_number(f, v, err);
    return v->type & f->types ? MOX_OK : wrong_type(f, err);
}

static mox_status read_fields(mox_fields *out, unsigned api, mox_json_reader *r, mox_err *err)
{
    mox_json_token t;
    MOX_TRY(mox_json_next(r, &t, err));
    if (t.type != MOX_JSON_OBJECT) return mox_fail(err, MOX_E_ARG, "the body must be a JSON object");
    for (;;) {
        MOX_TRY(mox_json_next(r, &t, err));
        if (t.type == MOX_JSON_OBJECT_END) return MOX_OK;
        int id = 0;
        while (id < N_FIELDS && !((table[id].apis & api) && mox_json_token_is(&t, table[id].name))) id++;
        mox_json_span raw;
        MOX_TRY(mox_json_skip(r, &raw, err));
        if (id == N_FIELDS) continue;
        raw.name = table[id].name;
        out->v[id].raw = raw;
        MOX_TRY(read_value(&table[id], &out->v[id], err));
    }
}

mox_status mox_fields_read(mox_fields *out, unsigned api, const char *body, size_t n, mox_err *err)
{
    const mox_json_span all = {"the body", body, n, 0};
    mox_json_reader r;
    *out = (mox_fields){0};
    if (n == 0) return mox_fail(err, MOX_E_ARG, "the body is empty; it must be a JSON object");
    MOX_TRY(check_body(all, err));
    mox_json_reader_init(&r, all);
    const mox_status status = read_fields(out, api, &r, err);
    mox_json_reader_deinit(&r);
    return status;
}
