/* format/config_rope.c -- rotary position settings, in either of the two styles.
 *
 *   old   rope_theta and partial_rotary_factor beside the other keys, scaling in
 *         rope_scaling (null or an object with "type")
 *   new   everything in rope_parameters, with "rope_type"
 *
 * A value in the object wins over the one beside it.  A file that has both
 * objects must give them the same type: there is no telling which one is meant. */
#include "format/internal.h"

#include <string.h>

/* Bounds that no real model comes near; they keep later arithmetic finite. */
static const double theta_min = 1e-3, theta_max = 1e15, factor_max = 1e6;
static const int64_t positions_max = INT64_C(1) << 40;

/* The object's "rope_type" or "type", "default" when it has neither. */
static mox_status rope_type(const mox_json_object *o, const char **out, mox_err *err)
{
    *out = "default";
    MOX_TRY(mox_json_string(o, "type", out, err));
    return mox_json_string(o, "rope_type", out, err);
}

/* The object that holds the settings; .object is NULL when there is none. */
static mox_status find_settings(const mox_json_object *text, mox_json_object *out, mox_err *err)
{
    static const struct {
        const char *key, *prefix, *nested_prefix;
    } places[] = {{"rope_parameters", "rope_parameters.", "text_config.rope_parameters."},
                  {"rope_scaling", "rope_scaling.", "text_config.rope_scaling."}};
    *out = (mox_json_object){.label = text->label};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const json_t *object = mox_json_get(text, places[i].key);
        if (!object) continue;
        if (!json_is_object(object)) return mox_json_fail_type(text, places[i].key, "an object", err);
        const mox_json_object here = {.label = text->label,
                                      .prefix = text->prefix[0] ? places[i].nested_prefix : places[i].prefix,
                                      .object = object};
        if (!out->object) {
            *out = here;
            continue;
        }
        const char *first, *second;
        MOX_TRY(rope_type(out, &first, err));
        MOX_TRY(rope_type(&here, &second, err));
        if (strcmp(first, second) != 0) {
            char a[MOX_SHORT_BYTES], b[MOX_SHORT_BYTES];
            return mox_fail(err, MOX_E_FORMAT,
                            "%s: rope_parameters says \"%s\" and rope_scaling says \"%s\"; remove one",
                            text->label, mox_short(first, a), mox_short(second, b));
        }
    }
    return MOX_OK;
}

static mox_status read_yarn(const mox_json_object *o, const mox_json_object *text, mox_rope_config *r,
                            mox_err *err)
{
    MOX_TRY(mox_json_require(o, "factor", err));
    MOX_TRY(mox_json_real(o, "factor", 1, factor_max, &r->factor, err));
    r->beta_fast = 32;
    r->beta_slow = 1;
    MOX_TRY(mox_json_real(o, "beta_fast", 1e-3, factor_max, &r->beta_fast, err));
    MOX_TRY(mox_json_real(o, "beta_slow", 1e-3, factor_max, &r->beta_slow, err));
    if (r->beta_fast < r->beta_slow)
        return mox_fail(err, MOX_E_FORMAT, "%s: %sbeta_fast is %g, expected at least beta_slow, which is %g",
                        o->label, o->prefix, r->beta_fast, r->beta_slow);
    MOX_TRY(mox_json_real(o, "mscale", 0, factor_max, &r->mscale, err));
    MOX_TRY(mox_json_real(o, "mscale_all_dim", 0, factor_max, &r->mscale_all_dim, err));
    MOX_TRY(mox_json_real(o, "attention_factor", 0, factor_max, &r->attention_factor, err));
    r->truncate = true;
    MOX_TRY(mox_json_bool(o, "truncate", &r->truncate, err));
    int64_t *positions = &r->original_max_position_embeddings;
    MOX_TRY(mox_json_int(text, "max_position_embeddings", 1, positions_max, positions, err));
    MOX_TRY(mox_json_int(o, "original_max_position_embeddings", 1, positions_max, positions, err));
    return *positions > 0 ? MOX_OK : mox_json_require(o, "original_max_position_embeddings", err);
}

mox_status mox_config_read_rope(mox_config *c, mox_err *err)
{
    mox_rope_config *r = &c->rope;
    *r = (mox_rope_config){.theta = 10000};
    const mox_json_object text = mox_config_text_object(c);
    mox_json_object o;
    MOX_TRY(find_settings(&text, &o, err));
    MOX_TRY(mox_json_real(&text, "rope_theta", theta_min, theta_max, &r->theta, err));
    MOX_TRY(mox_json_real(&text, "partial_rotary_factor", 1e-3, 1, &r->partial_rotary_factor, err));
    if (!o.object) return MOX_OK;
    MOX_TRY(mox_json_real(&o, "rope_theta", theta_min, theta_max, &r->theta, err));
    MOX_TRY(mox_json_real(&o, "partial_rotary_factor", 1e-3, 1, &r->partial_rotary_factor, err));
    const char *type;
    MOX_TRY(rope_type(&o, &type, err));
    if (strcmp(type, "default") == 0) return MOX_OK;
    if (strcmp(type, "yarn") == 0) {
        r->kind = MOX_ROPE_YARN;
        return read_yarn(&o, &text, r, err);
    }
    char words[MOX_SHORT_BYTES];
    return mox_fail(err, MOX_E_UNSUPPORTED,
                    "%s: %srope_type is \"%s\", this version supports default and yarn only", o.label, o.prefix,
                    mox_short(type, words));
}
