/* text/grammar_schema.h -- a JSON schema from inside.
 *
 * A schema is read into a tree (grammar_json_tree.c) whose nodes are used by their address.
 * What a value must be is a list of such nodes, all of which hold: a property that several
 * parts of an allOf speak of has several.  grammar_schema.c folds a list into one shape,
 * grammar_schema_emit.c makes nodes of the grammar of it. */
#ifndef MOX_TEXT_GRAMMAR_SCHEMA_H
#define MOX_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar.h"
#include "base/json_reader.h"

typedef struct mox_gjson {
    mox_json_type type; /* of a value; MOX_JSON_OBJECT and MOX_JSON_ARRAY have children */
    const char *key, *text;
    size_t n_key, n;
    struct mox_gjson *parent, *first, *last, *next;
} mox_gjson;

mox_gjson *mox_gjson_read(mox_gb *b, mox_json_span text);
const mox_gjson *mox_gjson_member(const mox_gjson *object, const char *key, size_t n); /* or NULL */
/* The value in its one spelling, terminated; NULL after a failure. */
const char *mox_gjson_text(mox_gb *b, const mox_gjson *value, size_t *n);
/* Where it stands, as a JSON pointer; cut at the front when it is too long. */
enum { MOX_GPATH = 160 };
const char *mox_gjson_path(const mox_gjson *value, char out[MOX_GPATH]);

static inline const mox_gjson *mox_gjson_get(const mox_gjson *object, const char *key)
{
    return mox_gjson_member(object, key, __builtin_strlen(key));
}

typedef struct mox_glink { /* a list of schemas, all of which hold */
    const mox_gjson *schema;
    struct mox_glink *next;
} mox_glink;

enum {
    MOX_GT_NULL = 1,
    MOX_GT_BOOLEAN = 2,
    MOX_GT_WHOLE = 4,
    MOX_GT_BROKEN = 8, /* numbers that are not whole */
    MOX_GT_STRING = 16,
    MOX_GT_ARRAY = 32,
    MOX_GT_OBJECT = 64,
    MOX_GT_NUMBER = MOX_GT_WHOLE | MOX_GT_BROKEN,
    MOX_GT_ALL = 127
};

typedef struct mox_gproperty {
    mox_gparam param;
    mox_glink *schemas;
    bool never; /* it must not be there */
    struct mox_gproperty *next;
} mox_gproperty;

enum { MOX_GCHOICES_MAX = 16 };

typedef struct mox_gshape {
    unsigned types, hints;      /* what it may be; what its keywords are about */
    bool never;
    mox_glink *values;          /* enum and const, all of which must have it */
    mox_glink *patterns;        /* pattern and format */
    uint32_t min_length, max_length;
    mox_gbound low, high;
    mox_glink *objects;         /* schemas with properties, additionalProperties or required */
    uint32_t min_properties, max_properties;
    const mox_gjson *min_properties_at, *max_properties_at;
    mox_gproperty *properties, *last_property;
    bool has_properties, extra_given, closed;
    mox_glink *extra;           /* of properties that have no name */
    mox_glink *arrays;          /* schemas with items or prefixItems */
    uint32_t min_items, max_items;
    const mox_gjson *group;     /* the first anyOf or oneOf that no choice was made for */
    uint32_t n_groups;          /* those before it */
} mox_gshape;

typedef struct mox_grule {
    mox_glink *schemas;
    uint32_t rule;
    struct mox_grule *next;
} mox_grule;

struct mox_gschema {
    mox_gb *b;
    const char *name;
    const mox_gjson *root;
    mox_schema_opts opts;
    mox_grule *rules, *pending_last, *pending;
    uint32_t n_expanded;
    const mox_dfa *tagged; /* what may stand in a tag, while a tagged value is made */
};

/* Adds a schema to a list unless it is there already. */
void mox_glink_add(mox_gb *b, mox_glink **list, const mox_gjson *schema);
/* Folds the list into *out; choices[i] is which alternative of the i-th group counts. */
void mox_gshape_fold(mox_gschema *s, const mox_glink *schemas, const uint32_t *choices, uint32_t n_choices,
                     mox_gshape *out);
/* Something of a schema cannot be held: refuses it, or warns.  The sentence continues
 * "`keyword` at PATH"; true: go on without it. */
bool mox_gschema_refuse(mox_gschema *s, const mox_gjson *at, mox_status status, const char *why);
/* What a $ref means; NULL after a failure or when it was dropped. */
const mox_gjson *mox_gschema_resolve(mox_gschema *s, const mox_gjson *ref);
/* The keyword says nothing about values. */
bool mox_gschema_is_remark(const mox_gjson *member);
/* The pattern of a format, "" for one that means nothing here, NULL for one that is not known. */
const char *mox_gschema_format(const char *name, size_t n);

#endif
