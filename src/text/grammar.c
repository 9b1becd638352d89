/* text/grammar.c -- grammars of JSON, from the outside. */
#include "text/grammar.h"

mox_status mox_grammar_create_schema(mox_grammar **out, mox_json_text schema, const mox_schema_opts *opts, mox_err *err)
{
    mox_gb b;
    mox_gb_init(&b, MOX_GRAMMAR_JSON_DEPTH, err);
    mox_gschema *s = mox_gschema_read(&b, "schema", schema, opts);
    return mox_gb_finish(&b, mox_gschema_emit(s, b.returns), out);
}

mox_status mox_grammar_create_object(mox_grammar **out, mox_err *err)
{
    mox_gb b;
    mox_gb_init(&b, MOX_GRAMMAR_JSON_DEPTH, err);
    return mox_gb_finish(&b, mox_gb_json_object(&b, b.returns), out);
}
