/* format/checkpoint.c -- a model folder as one directory of tensors.
 *
 * The index says which files belong to the model, and it and the files must
 * agree: a tensor that it promises and no file holds is an error, a tensor that
 * it does not list is loaded and reported (mox_tensors.unlisted). */
#include "format/safetensors.h"

#include "base/alloc.h"
#include "format/internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX_NAMES = 10 };

void mox_name_list_add(mox_name_list *l, const char *name)
{
    l->n++;
    if (l->shown == LIST_MAX_NAMES || l->n - 1 > l->shown) return;
    char words[MOX_SHORT_BYTES];
    const size_t used = strlen(l->text), room = sizeof l->text - used - sizeof " and 1000000 more";
    (void)mox_short(name, words);
    if (strlen(words) + 2 >= room) return;
    snprintf(l->text + used, room, "%s%s", used > 0 ? ", " : "", words);
    l->shown++;
}

const char *mox_name_list_end(mox_name_list *l)
{
    const size_t used = strlen(l->text);
    if (l->n > l->shown)
        snprintf(l->text + used, sizeof l->text - used, " and %lld more", (long long)(l->n - l->shown));
    return l->text;
}

/* State of a walk over the index. */
typedef struct opening {
    mox_tensors *tensors;
    const char *dir;
    unsigned char *listed; /* per tensor, once sealed */
    mox_name_list missing;
} opening;

static mox_status open_in_dir(mox_tensors *t, const char *dir, const char *name, mox_err *err)
{
    char *path = mox_path_join(dir, name);
    if (!path) return mox_fail_memory(err, strlen(dir) + strlen(name) + 2, "a file name");
    const mox_status status = mox_tensors_add_file(t, path, err);
    mox_free(path);
    return status;
}

static mox_status open_shard(void *user, const char *file_name, mox_err *err)
{
    opening *o = user;
    const mox_status status = open_in_dir(o->tensors, o->dir, file_name, err);
    if (status != MOX_E_NOT_FOUND) return status;
    char words[MOX_SHORT_BYTES];
    return mox_fail(err, MOX_E_NOT_FOUND,
                    "%s: the file %s is missing, which model.safetensors.index.json names; download it", o->dir,
                    mox_short(file_name, words));
}

static mox_status check_listed(void *user, const char *name, const char *file_name, mox_err *err)
{
    opening *o = user;
    mox_tensors *t = o->tensors;
    if (!o->listed) { /* the first entry: every shard is open now */
        MOX_TRY(mox_tensors_seal(t, err));
        o->listed = mox_alloc_array((size_t)t->n_tensors, 1);
        if (!o->listed) return mox_fail_memory(err, (size_t)t->n_tensors, "the tensor directory");
    }
    const mox_tensor_info *found = mox_tensors_find(t, name);
    if (!found || strcmp(mox_tensors_file_name(t, found->extent.file), file_name) != 0)
        mox_name_list_add(&o->missing, name);
    if (found) o->listed[found - t->tensors] = 1;
    return MOX_OK;
}

static mox_status note_unlisted(opening *o, mox_err *err)
{
    mox_tensors *t = o->tensors;
    mox_name_list extra = {0};
    for (int64_t i = 0; i < t->n_tensors; i++)
        if (!o->listed[i]) mox_name_list_add(&extra, t->tensors[i].name);
    if (extra.n == 0) return MOX_OK;
    mox_err note;
    (void)mox_fail(&note, MOX_OK,
                   "%s: model.safetensors.index.json does not list %lld tensors that its files hold: %s", o->dir,
                   (long long)extra.n, mox_name_list_end(&extra));
    t->unlisted = mox_strdup(note.msg);
    return t->unlisted ? MOX_OK : mox_fail_memory(err, sizeof note.msg, "a warning");
}

static mox_status open_by_index(mox_tensors *out, const char *dir, const char *index, mox_err *err)
{
    char *text;
    size_t n;
    MOX_TRY(mox_file_slurp(index, MOX_JSON_MAX_BYTES, &text, &n, err));
    opening o = {.tensors = out, .dir = dir};
    const mox_index_walk walk = {.shard = open_shard, .entry = check_listed, .user = &o};
    mox_status status = mox_index_parse(index, text, n, &walk, err);
    if (status == MOX_OK && o.missing.n > 0)
        status = mox_fail(err, MOX_E_FORMAT, "%s: %lld tensors are not in the files it names for them: %s", index,
                          (long long)o.missing.n, mox_name_list_end(&o.missing));
    if (status == MOX_OK) status = note_unlisted(&o, err);
    mox_free(o.listed);
    mox_free(text);
    return status;
}

/* Appends every model*.safetensors of d to the list that the caller frees. */
static mox_status list_shards(DIR *d, char ***names, size_t *n, mox_err *err)
{
    const struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        if (strncmp(entry->d_name, "model", 5) != 0 || !mox_is_tensor_file_name(entry->d_name)) continue;
        char **grown = mox_realloc_array(*names, *n + 1, sizeof *grown);
        if (!grown) return mox_fail_memory(err, (*n + 1) * sizeof *grown, "the list of files");
        *names = grown;
        char *name = mox_strdup(entry->d_name);
        if (!name) return mox_fail_memory(err, strlen(entry->d_name) + 1, "a file name");
        grown[(*n)++] = name;
    }
    if (*n > 0) qsort(*names, *n, sizeof **names, mox_by_text);
    return MOX_OK;
}

/* The weight files of a folder without an index; the caller frees them. */
static mox_status list_dir(const char *dir, char ***names, size_t *n, mox_err *err)
{
    *names = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (!d)
        return mox_fail(err, errno == ENOENT || errno == ENOTDIR ? MOX_E_NOT_FOUND : MOX_E_IO,
                        "%s: cannot open the model folder: %s", dir, strerror(errno));
    const mox_status status = list_shards(d, names, n, err);
    closedir(d);
    if (status != MOX_OK || *n > 0) return status;
    return mox_fail(err, MOX_E_NOT_FOUND,
                    "%s: no weights here: expected model.safetensors, or model.safetensors.index.json with its files",
                    dir);
}

static void free_names(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) mox_free(names[i]);
    mox_free(names);
}

static mox_status open_by_listing(mox_tensors *out, const char *dir, mox_err *err)
{
    char **names;
    size_t n;
    mox_status status = list_dir(dir, &names, &n, err);
    for (size_t i = 0; i < n && status == MOX_OK; i++) status = open_in_dir(out, dir, names[i], err);
    free_names(names, n);
    return status == MOX_OK ? mox_tensors_seal(out, err) : status;
}

/* How a folder says which files are its weights. */
typedef struct folder {
    char *index, *single; /* paths, whether or not there is such a file */
} folder;

static mox_status folder_init(folder *f, const char *dir, mox_err *err)
{
    f->index = mox_path_join(dir, "model.safetensors.index.json");
    f->single = mox_path_join(dir, "model.safetensors");
    return f->index && f->single ? MOX_OK : mox_fail_memory(err, strlen(dir) + 32, "a file name");
}

static void folder_deinit(folder *f)
{
    mox_free(f->index);
    mox_free(f->single);
}

mox_status mox_tensors_open(mox_tensors *out, const char *dir, mox_err *err)
{
    *out = (mox_tensors){0};
    folder f;
    mox_status status = folder_init(&f, dir, err);
    if (status == MOX_OK) {
        if (mox_path_exists(f.index)) status = open_by_index(out, dir, f.index, err);
        else if (mox_path_exists(f.single)) status = mox_tensors_open_file(out, f.single, err);
        else status = open_by_listing(out, dir, err);
    }
    if (status != MOX_OK) mox_tensors_close(out);
    folder_deinit(&f);
    return status;
}

/* ---- which files are there ------------------------------------------------- */

typedef struct looking {
    const char *dir;
    int64_t n_files;
    mox_name_list missing;
} looking;

static mox_status look_for(void *user, const char *file_name, mox_err *err)
{
    looking *l = user;
    char *path = mox_path_join(l->dir, file_name);
    if (!path) return mox_fail_memory(err, strlen(l->dir) + strlen(file_name) + 2, "a file name");
    l->n_files++;
    if (!mox_path_exists(path)) mox_name_list_add(&l->missing, file_name);
    mox_free(path);
    return MOX_OK;
}

static mox_status look_by_index(looking *l, const char *index, mox_err *err)
{
    char *text;
    size_t n;
    MOX_TRY(mox_file_slurp(index, MOX_JSON_MAX_BYTES, &text, &n, err));
    const mox_index_walk walk = {.shard = look_for, .user = l};
    const mox_status status = mox_index_parse(index, text, n, &walk, err);
    mox_free(text);
    return status;
}

static mox_status look_by_listing(looking *l, mox_err *err)
{
    char **names;
    size_t n;
    mox_status status = list_dir(l->dir, &names, &n, err);
    for (size_t i = 0; i < n && status == MOX_OK; i++) status = look_for(l, names[i], err);
    free_names(names, n);
    return status;
}

mox_status mox_tensors_present(const char *dir, mox_err *err)
{
    looking l = {.dir = dir};
    folder f;
    mox_status status = folder_init(&f, dir, err);
    if (status == MOX_OK) {
        if (mox_path_exists(f.index)) status = look_by_index(&l, f.index, err);
        else if (!mox_path_exists(f.single)) status = look_by_listing(&l, err);
    }
    folder_deinit(&f);
    if (status != MOX_OK || l.missing.n == 0) return status;
    return mox_fail(err, MOX_E_NOT_FOUND, "%s: %lld of %lld weight files are missing: %s", dir,
                    (long long)l.missing.n, (long long)l.n_files, mox_name_list_end(&l.missing));
}
