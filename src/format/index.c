/* format/index.c -- model.safetensors.index.json: which file holds which tensor.
 *
 * Refuses: file names that are not plain names of safetensors files, so that no
 * string of the file can lead out of the model folder. */
#include "format/safetensors.h"

#include "base/alloc.h"
#include "base/plant.h"
#include "format/internal.h"

#include <stdlib.h>
#include <string.h>

bool mox_is_tensor_file_name(const char *name)
{
    static const char ending[] = ".safetensors";
    const size_t n = strlen(name), m = sizeof ending - 1;
    MOX_PLANT(n == 40);
    return n > m && n <= 255 && strcmp(name + n - m, ending) == 0 && !strchr(name, '/') && !strstr(name, "..");
}

int mox_by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static mox_status check_entries(const char *label, json_t *map, const char **names, mox_err *err)
{
    const char *tensor;
    json_t *value;
    size_t n = 0;
    json_object_foreach(map, tensor, value) {
        char words[MOX_SHORT_BYTES], found[MOX_SHORT_BYTES];
        if (!json_is_string(value) || !mox_is_tensor_file_name(json_string_value(value)))
            return mox_fail(err, MOX_E_FORMAT,
                            "%s: weight_map \"%s\" is %s, expected the plain name of a .safetensors file", label,
                            mox_short(tensor, words), mox_json_describe(value, found));
        names[n++] = json_string_value(value);
    }
    return MOX_OK;
}

/* names: the n file names, one per tensor; sorted here to find the distinct ones. */
static mox_status walk_map(json_t *map, const char **names, size_t n, const mox_index_walk *walk, mox_err *err)
{
    qsort(names, n, sizeof *names, mox_by_text);
    for (size_t i = 0; walk->shard && i < n; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0) MOX_TRY(walk->shard(walk->user, names[i], err));
    const char *tensor;
    json_t *value;
    if (walk->entry)
        json_object_foreach(map, tensor, value)
            MOX_TRY(walk->entry(walk->user, tensor, json_string_value(value), err));
    return MOX_OK;
}

mox_status mox_index_parse(const char *label, const char *text, size_t n, const mox_index_walk *walk,
                           mox_err *err)
{
    json_t *root;
    MOX_TRY(mox_json_load(&root, label, text, n, err));
    json_t *map = json_object_get(root, "weight_map");
    const size_t n_entries = json_object_size(map); /* 0 for anything but an object */
    const char **names = NULL;
    mox_status status;
    if (n_entries == 0) {
        status =
            mox_fail(err, MOX_E_FORMAT, "%s: weight_map is not an object that names at least one tensor", label);
        goto done;
    }
    names = mox_alloc_array(n_entries, sizeof *names);
    if (!names) {
        status = mox_fail_memory(err, n_entries * sizeof *names, label);
        goto done;
    }
    status = check_entries(label, map, names, err);
    if (status == MOX_OK) status = walk_map(map, names, n_entries, walk, err);
done:
    mox_free(names);
    json_decref(root);
    return status;
}
