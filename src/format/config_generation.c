/* format/config_generation.c -- generation_config.json: how the authors sample
 * from their model and where a turn ends.
 *
 * Stop ids are a union: published files disagree on which of them names the id
 * that really ends a turn, and stopping at each of them is always right. */
#include "format/internal.h"

#include "base/alloc.h"
#include "base/file.h"

#include <string.h>

static mox_status add_stop(mox_generation_config *g, const char *label, int64_t id, mox_err *err)
{
    if (id < 0 || id > INT32_MAX)
        return mox_fail(err, MOX_E_FORMAT, "%s: the end-of-sequence id %lld is not in 0 to %d", label,
                        (long long)id, INT32_MAX);
    for (int32_t i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] == id) return MOX_OK;
    if (g->n_stop_ids == MOX_MAX_STOP_IDS)
        return mox_fail(err, MOX_E_FORMAT, "%s: more than %d different end-of-sequence ids", label,
                        MOX_MAX_STOP_IDS);
    g->stop_ids[g->n_stop_ids++] = (int32_t)id;
    return MOX_OK;
}

/* eos_token_id: an integer or an array of them. */
static mox_status add_stops(mox_generation_config *g, const mox_json_object *o, mox_err *err)
{
    static const char key[] = "eos_token_id", expected[] = "an integer or an array of integers";
    json_t *value = mox_json_get(o, key);
    if (!value) return MOX_OK;
    if (json_is_integer(value)) return add_stop(g, o->label, json_integer_value(value), err);
    if (!json_is_array(value)) return mox_json_fail_type(o, key, expected, err);
    size_t i;
    json_t *id;
    json_array_foreach(value, i, id) {
        char words[MOX_SHORT_BYTES];
        if (!json_is_integer(id))
            return mox_fail(err, MOX_E_FORMAT, "%s: %s%s[%zu] is %s, expected an integer", o->label, o->prefix,
                            key, i, mox_json_describe(id, words));
        MOX_TRY(add_stop(g, o->label, json_integer_value(id), err));
    }
    return MOX_OK;
}

static mox_status read_sampling(mox_generation_config *g, const mox_json_object *o, mox_err *err)
{
    double temperature = 1;
    bool do_sample = false;
    MOX_TRY(mox_json_bool(o, "do_sample", &do_sample, err));
    MOX_TRY(mox_json_real(o, "temperature", 0, 100, &temperature, err));
    g->temperature = do_sample ? temperature : 0;
    MOX_TRY(mox_json_int(o, "top_k", 0, INT32_MAX, &g->top_k, err));
    MOX_TRY(mox_json_real(o, "top_p", 0, 1, &g->top_p, err));
    MOX_TRY(mox_json_real(o, "min_p", 0, 1, &g->min_p, err));
    return mox_json_real(o, "repetition_penalty", 1e-3, 100, &g->repeat_penalty, err);
}

mox_status mox_generation_parse(mox_generation_config *out, const mox_config *c, const char *label,
                                const char *text, size_t n, mox_err *err)
{
    *out = (mox_generation_config){.top_p = 1, .repeat_penalty = 1};
    if (text) {
        json_t *root;
        MOX_TRY(mox_json_load(&root, label, text, n, err));
        const mox_json_object o = {.label = label, .prefix = "", .object = root};
        mox_status status = read_sampling(out, &o, err);
        if (status == MOX_OK) status = add_stops(out, &o, err);
        json_decref(root);
        MOX_TRY(status);
    }
    const mox_json_object root = {.label = c->path, .prefix = "", .object = c->root},
                          inner = mox_config_text_object(c);
    MOX_TRY(add_stops(out, &root, err));
    return add_stops(out, &inner, err);
}

mox_status mox_generation_open(mox_generation_config *out, const mox_config *c, const char *dir, mox_err *err)
{
    char *path = mox_path_join(dir, "generation_config.json");
    if (!path) return mox_fail_memory(err, strlen(dir) + sizeof "/generation_config.json", "a file name");
    char *text = NULL;
    size_t n = 0;
    mox_status status = MOX_OK;
    if (mox_path_exists(path)) status = mox_file_slurp(path, MOX_JSON_MAX_BYTES, &text, &n, err);
    if (status == MOX_OK) status = mox_generation_parse(out, c, path, text, n, err);
    mox_free(text);
    mox_free(path);
    return status;
}
