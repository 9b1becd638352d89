/* tools/manifest.c -- reading, writing and growing moxie.pack.json, see manifest.h.
 *
 * Refuses: file names that lead out of the folder, pieces that do not cover their file. */
#include "tools/manifest.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/size.h"
#include "base/writer.h"
#include "format/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char mox_manifest_name[] = "moxie.pack.json";

static void drop_last_file(mox_manifest *m)
{
    mox_packed_file *f = &m->files[--m->n_files];
    for (size_t i = 0; i < f->n_pieces; i++) mox_free(f->pieces[i].name);
    mox_free(f->pieces);
    mox_free(f->name);
}

void mox_manifest_deinit(mox_manifest *m)
{
    while (m->n_files > 0) drop_last_file(m);
    mox_free(m->files);
    *m = (mox_manifest){0};
}

mox_packed_file *mox_manifest_find(const mox_manifest *m, const char *file)
{
    for (size_t i = 0; i < m->n_files; i++)
        if (strcmp(m->files[i].name, file) == 0) return &m->files[i];
    return NULL;
}

mox_status mox_manifest_add_file(mox_manifest *m, const char *name, mox_packed_file **out, mox_err *err)
{
    mox_packed_file *grown = mox_realloc_array(m->files, m->n_files + 1, sizeof *grown);
    if (!grown) return mox_fail_memory(err, (m->n_files + 1) * sizeof *grown, "the list of files");
    m->files = grown;
    grown[m->n_files] = (mox_packed_file){.name = mox_strdup(name)};
    if (!grown[m->n_files].name) return mox_fail_memory(err, strlen(name) + 1, "a file name");
    *out = &grown[m->n_files++];
    return MOX_OK;
}

mox_status mox_manifest_add_piece(mox_packed_file *f, const char *name, int64_t bytes, uint64_t sum, mox_err *err)
{
    if (f->n_pieces == f->capacity) {
        const size_t capacity = f->capacity ? 2 * f->capacity : 16;
        mox_piece *grown = mox_realloc_array(f->pieces, capacity, sizeof *grown);
        if (!grown) return mox_fail_memory(err, capacity * sizeof *grown, "the list of checksums");
        f->pieces = grown;
        f->capacity = capacity;
    }
    char *copy = mox_strdup(name);
    if (!copy) return mox_fail_memory(err, strlen(name) + 1, "a name");
    f->pieces[f->n_pieces++] = (mox_piece){.name = copy, .offset = f->bytes, .bytes = bytes, .sum = sum};
    f->bytes += bytes;
    return MOX_OK;
}

/* ---- writing ---- */

static mox_status write_piece(mox_writer *w, const mox_piece *p, mox_err *err)
{
    char rest[96];
    MOX_TRY(mox_write_text(w, "[", err));
    MOX_TRY(mox_write_json(w, p->name, strlen(p->name), err));
    (void)snprintf(rest, sizeof rest, ", %" PRId64 ", %" PRId64 ", \"%016" PRIx64 "\"]", p->offset, p->bytes, p->sum);
    return mox_write_text(w, rest, err);
}

static mox_status write_file(mox_writer *w, const mox_packed_file *f, mox_err *err)
{
    char rest[64];
    MOX_TRY(mox_write_json(w, f->name, strlen(f->name), err));
    (void)snprintf(rest, sizeof rest, ": {\"bytes\": %" PRId64 ", \"pieces\": [", f->bytes);
    MOX_TRY(mox_write_text(w, rest, err));
    for (size_t i = 0; i < f->n_pieces; i++) {
        MOX_TRY(mox_write_text(w, i ? ",\n    " : "\n    ", err));
        MOX_TRY(write_piece(w, &f->pieces[i], err));
    }
    return mox_write_text(w, "]}", err);
}

static mox_status write_all(mox_writer *w, const mox_manifest *m, mox_err *err)
{
    char head[128];
    (void)snprintf(head, sizeof head, "{\"moxie_pack\": 1, \"complete\": %s, \"source\": \"%016" PRIx64 "\", \"files\": {",
                   m->complete ? "true" : "false", m->source);
    MOX_TRY(mox_write_text(w, head, err));
    for (size_t i = 0; i < m->n_files; i++) {
        MOX_TRY(mox_write_text(w, i ? ",\n  " : "\n  ", err));
        MOX_TRY(write_file(w, &m->files[i], err));
    }
    return mox_write_text(w, "}}\n", err);
}

mox_status mox_manifest_write(const mox_manifest *m, const char *dir, mox_err *err)
{
    mox_writer w = {0};
    mox_out out = MOX_OUT_CLOSED;
    char *path = mox_path_join(dir, mox_manifest_name);
    if (!path) return mox_fail_memory(err, strlen(dir) + sizeof mox_manifest_name, "a file name");
    mox_status status = write_all(&w, m, err);
    if (status == MOX_OK) status = mox_out_open(&out, path, err);
    if (status == MOX_OK) status = mox_out_write(&out, mox_writer_text(&w), w.n, err);
    if (status == MOX_OK) status = mox_out_commit(&out, err);
    mox_writer_deinit(&w);
    mox_free(path);
    return status;
}

/* ---- reading ---- */

static bool read_sum(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    return sscanf(text, "%16" SCNx64, out) == 1;
}

static mox_status fail_file(const char *label, const char *name, mox_err *err)
{
    char words[MOX_SHORT_BYTES];
    return mox_fail(err, MOX_E_FORMAT, "%s: what it says of \"%s\" is damaged; pack the model again", label,
                    mox_short(name, words));
}

static mox_status read_file(mox_manifest *m, const char *label, const char *name, const json_t *entry, mox_err *err)
{
    const json_t *pieces = json_object_get(entry, "pieces"), *bytes = json_object_get(entry, "bytes");
    mox_packed_file *f;
    if (!name[0] || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || !json_is_integer(bytes) ||
        !json_is_array(pieces))
        return fail_file(label, name, err);
    MOX_TRY(mox_manifest_add_file(m, name, &f, err));
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *p = json_array_get(pieces, i), *of = json_array_get(p, 0), *at = json_array_get(p, 1),
                     *length = json_array_get(p, 2);
        uint64_t sum;
        int64_t end;
        if (!json_is_string(of) || !json_is_integer(at) || !json_is_integer(length) || !read_sum(json_array_get(p, 3), &sum) ||
            json_integer_value(at) != f->bytes || json_integer_value(length) < 0 ||
            !mox_add_i64(f->bytes, json_integer_value(length), &end))
            return fail_file(label, name, err);
        MOX_TRY(mox_manifest_add_piece(f, json_string_value(of), json_integer_value(length), sum, err));
    }
    return f->bytes == json_integer_value(bytes) ? MOX_OK : fail_file(label, name, err);
}

static mox_status read_root(mox_manifest *m, const char *label, const json_t *root, mox_err *err)
{
    const json_t *complete = json_object_get(root, "complete");
    json_t *files = json_object_get(root, "files");
    const json_int_t version = json_integer_value(json_object_get(root, "moxie_pack"));
    if (version != 1)
        return mox_fail(err, MOX_E_FORMAT, "%s: moxie_pack is %lld, this version reads 1", label, (long long)version);
    if (!json_is_boolean(complete) || !json_is_object(files) || !read_sum(json_object_get(root, "source"), &m->source))
        return mox_fail(err, MOX_E_FORMAT, "%s: complete, source or files is missing; pack the model again", label);
    m->complete = json_is_true(complete);
    const char *name;
    json_t *entry;
    json_object_foreach(files, name, entry) MOX_TRY(read_file(m, label, name, entry, err));
    return MOX_OK;
}

mox_status mox_manifest_read(mox_manifest *out, const char *dir, mox_err *err)
{
    *out = (mox_manifest){0};
    char *text = NULL, *path = mox_path_join(dir, mox_manifest_name);
    size_t n;
    if (!path) return mox_fail_memory(err, strlen(dir) + sizeof mox_manifest_name, "a file name");
    mox_status status = mox_file_slurp(path, MOX_JSON_MAX_BYTES, &text, &n, err);
    json_t *root = NULL;
    if (status == MOX_OK) status = mox_json_load(&root, path, text, n, err);
    if (status == MOX_OK) status = read_root(out, path, root, err);
    if (status != MOX_OK) mox_manifest_deinit(out);
    json_decref(root);
    mox_free(text);
    mox_free(path);
    return status;
}
