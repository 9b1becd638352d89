/* tools/verify.c -- reads every byte of a model and says what is wrong with it.
 *
 * Each file is read once, from front to back; whatever has an opinion on the bytes gets
 * them as they pass: the SHA-256 that names the file, the checksums of moxie.pack.json, and
 * the numbers of the tensors.  A model that cannot be opened is a finding, and its files
 * are still compared with their checksums.
 *
 * Memory: one buffer. */
#include "base/alloc.h"
#include "base/cancel.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/sha256.h"
#include "base/size.h"
#include "model/model.h"
#include "moxie/text.h"
#include "tools/manifest.h"
#include "tools/place.h"
#include "tools/verify.h"

#define XXH_STATIC_LINKING_ONLY
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { BUFFER = 8 << 20, SUSPICIOUS_ZEROS = 4096 /* bytes: a page that was never written */ };

/* A file that is to be read, and what is known of it. */
typedef struct target {
    char *name, *path;
    int64_t bytes;
    int32_t file;                  /* index among the tensor files of the model, or -1 */
    const mox_packed_file *packed; /* or NULL */
    char sha[MOX_SHA256_HEX + 1];  /* "" when its name is none */
} target;

typedef struct verifying {
    const char *dir;
    const mox_verify_opts *opts;
    mox_verify_report *report;
    mox_model *model; /* NULL when it cannot be opened */
    mox_manifest manifest;
    const mox_tensor_info **place; /* [n_tensors of the model] by file and offset */
    target *targets;
    size_t n_targets;
    int64_t bytes, done;
    uint8_t *buffer;
    mox_err *err;
} verifying;

/* ---- findings ---- */

static void find_out(verifying *v, bool warning, const char *file, const char *tensor, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void find_out(verifying *v, bool warning, const char *file, const char *tensor, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (warning) v->report->n_warnings++;
    else v->report->n_problems++;
    const mox_finding f = {.warning = warning, .file = file, .tensor = tensor, .what = what};
    if (v->opts->found) v->opts->found(v->opts->found_user, &f);
}

static void on_warning(void *user, const char *sentence) { find_out(user, true, NULL, NULL, "%s", sentence); }

/* ---- one file ---- */

typedef struct reading {
    verifying *v;
    const target *t;
    const mox_tensor_info *const *tensors; /* of this file, by place; [n_tensors] */
    int64_t n_tensors, i_tensor;
    mox_number_scan scan; /* of tensors[i_tensor], once its first byte has passed */
    size_t i_piece;
    XXH3_state_t piece;
    mox_sha256 sha;
    int64_t nonzero_end; /* behind the last byte that is not zero */
} reading;

static void judge_numbers(reading *r, const mox_tensor_info *t)
{
    const mox_number_scan *s = &r->scan;
    if (s->n_odd > 0)
        find_out(r->v, false, r->t->name, t->name,
                 "%lld of its %lld numbers are not finite, number %lld first; download the file again, or use another "
                 "conversion of the model", (long long)s->n_odd, (long long)s->n_elements, (long long)s->first_odd);
    if (s->n_zero > 0 && s->n_members == 1)
        find_out(r->v, true, r->t->name, t->name,
                 "the scales are all zero, so is the matrix; if the download was interrupted, repeat it");
    else if (s->n_zero > 0)
        find_out(r->v, true, r->t->name, t->name,
                 "the scales of %lld of its %lld experts are all zero, expert %lld first; if the download was interrupted, "
                 "repeat it", (long long)s->n_zero, (long long)s->n_members, (long long)s->first_zero);
    r->v->report->n_tensors += s->dtype != MOX_DT_NONE;
}

/* The bytes [at, at + n) to the tensors that they belong to. */
static void pass_to_tensors(reading *r, int64_t at, int64_t n)
{
    const int64_t end = at + n;
    while (r->i_tensor < r->n_tensors && at < end) {
        const mox_tensor_info *t = r->tensors[r->i_tensor];
        const mox_extent *e = &t->extent;
        if (e->bytes == 0 || e->offset >= end) {
            if (e->bytes > 0) return;
            r->i_tensor++;
            continue;
        }
        const int64_t from = mox_max_i64(at, e->offset), to = mox_min_i64(end, e->offset + e->bytes);
        if (from == e->offset) mox_number_scan_begin(&r->scan, t);
        mox_number_scan_add(&r->scan, r->v->buffer + (from - (end - n)), to - from);
        at = to;
        if (to < e->offset + e->bytes) return;
        judge_numbers(r, t);
        r->i_tensor++;
    }
}

static void pass_to_pieces(reading *r, int64_t at, int64_t n)
{
    const mox_packed_file *f = r->t->packed;
    const int64_t begin = at, end = at + n;
    while (f && r->i_piece < f->n_pieces && at < end) {
        const mox_piece *p = &f->pieces[r->i_piece];
        const int64_t to = mox_min_i64(end, p->offset + p->bytes);
        if (at == p->offset) (void)XXH3_64bits_reset(&r->piece);
        (void)XXH3_64bits_update(&r->piece, r->v->buffer + (at - begin), (size_t)(to - at));
        at = to;
        if (to < p->offset + p->bytes) return;
        r->v->report->n_checksums++;
        if (XXH3_64bits_digest(&r->piece) != p->sum)
            find_out(r->v, false, r->t->name, p->name, "it is not what was packed (checksum in %s); pack the model again",
                     mox_manifest_name);
        r->i_piece++;
    }
}

/* The tensor that byte `at` belongs to, or NULL. */
static const mox_tensor_info *tensor_at(const reading *r, int64_t at)
{
    for (int64_t i = 0; i < r->n_tensors; i++) {
        const mox_extent *e = &r->tensors[i]->extent;
        if (at >= e->offset && at < e->offset + e->bytes) return r->tensors[i];
    }
    return NULL;
}

/* Bytes to read at `at`: such that no element is cut. */
static int64_t chunk_at(const reading *r, int64_t at, int64_t size)
{
    const int64_t n = mox_min_i64(BUFFER, size - at);
    if (at + n == size) return n;
    const mox_tensor_info *t = tensor_at(r, at + n);
    return t ? n - (at + n - t->extent.offset) % mox_dtype_bytes(t->dtype) : n;
}

static void judge_end(reading *r)
{
    const target *t = r->t;
    if (t->sha[0]) {
        char found[MOX_SHA256_HEX + 1];
        mox_sha256_end(&r->sha, found);
        r->v->report->n_checksums++;
        if (strcmp(found, t->sha) != 0)
            find_out(r->v, false, t->name, NULL, "its SHA-256 is %s, not that of its name in the cache (%s); remove it and "
                     "download it again", found, t->sha);
    }
    int64_t n = r->n_tensors;
    while (n > 0 && strncmp(r->tensors[n - 1]->name, MOX_BIND_PADDING, sizeof MOX_BIND_PADDING - 1) == 0) n--;
    const int64_t end = n > 0 ? r->tensors[n - 1]->extent.offset + r->tensors[n - 1]->extent.bytes : 0;
    if (t->sha[0] || t->packed || end - r->nonzero_end < SUSPICIOUS_ZEROS) return;
    const mox_tensor_info *first = tensor_at(r, r->nonzero_end);
    find_out(r->v, true, t->name, first ? first->name : NULL,
             "from here on the file is zero (%lld bytes); if the download was interrupted, repeat it",
             (long long)(end - r->nonzero_end));
}

static mox_status progress(verifying *v, int64_t bytes)
{
    v->done += bytes;
    if (v->opts->progress) v->opts->progress(v->opts->progress_user, v->done, v->bytes);
    return mox_cancelled(v->opts->cancel) ? mox_fail(v->err, MOX_E_CANCELLED, "cancelled") : MOX_OK;
}

static mox_status read_through(reading *r, const mox_file *f)
{
    verifying *v = r->v;
    for (int64_t at = 0; at < f->size;) {
        const int64_t n = chunk_at(r, at, f->size);
        mox_err err;
        if (mox_file_read_at(f, at, v->buffer, (size_t)n, &err) != MOX_OK) {
            const mox_tensor_info *t = tensor_at(r, at);
            find_out(v, false, r->t->name, t ? t->name : NULL, "%s; what follows was not looked at; copy or download the file "
                     "again", err.msg);
            return progress(v, f->size - at);
        }
        if (r->t->sha[0]) mox_sha256_add(&r->sha, v->buffer, (size_t)n);
        pass_to_pieces(r, at, n);
        pass_to_tensors(r, at, n);
        for (int64_t i = n; i > 0 && r->nonzero_end <= at; i--)
            if (v->buffer[i - 1]) r->nonzero_end = at + i;
        v->report->bytes += n;
        at += n;
        MOX_TRY(progress(v, n));
    }
    judge_end(r);
    return MOX_OK;
}

static mox_status check_target(verifying *v, const target *t)
{
    mox_file f = MOX_FILE_CLOSED;
    mox_err err;
    const mox_status opened = mox_file_open(&f, t->path, &err);
    if (opened != MOX_OK) {
        if (opened == MOX_E_MEMORY) return mox_fail(v->err, opened, "%s", err.msg);
        find_out(v, false, t->name, NULL, "%s; copy or download it again", err.msg);
        return MOX_OK;
    }
    v->report->n_files++;
    reading r = {.v = v, .t = t};
    mox_sha256_init(&r.sha);
    if (t->file >= 0) {
        const int64_t all = v->model->tensors.n_tensors;
        int64_t first = 0;
        while (first < all && v->place[first]->extent.file != t->file) first++;
        r.tensors = v->place + first;
        while (first + r.n_tensors < all && r.tensors[r.n_tensors]->extent.file == t->file) r.n_tensors++;
    }
    if (t->packed && t->packed->bytes != f.size)
        find_out(v, false, t->name, NULL, "it has %lld bytes, but %s says %lld; pack the model again", (long long)f.size,
                 mox_manifest_name, (long long)t->packed->bytes);
    const mox_status status = read_through(&r, &f);
    mox_file_close(&f);
    return status;
}

/* ---- which files ---- */

/* The SHA-256 that a file of the Hugging Face cache is named by: its links lead to blobs. */
static void sha_of_link(const char *path, char out[MOX_SHA256_HEX + 1])
{
    char *real = mox_path_real(path);
    const char *slash = real ? strrchr(real, '/') : NULL;
    out[0] = '\0';
    if (slash && strlen(slash + 1) == MOX_SHA256_HEX && strspn(slash + 1, "0123456789abcdef") == MOX_SHA256_HEX)
        memcpy(out, slash + 1, MOX_SHA256_HEX + 1);
    mox_free(real);
}

static int32_t tensor_file(const verifying *v, const char *name)
{
    for (int32_t i = 0; v->model && i < v->model->tensors.n_files; i++) {
        const char *path = v->model->tensors.files[i].path, *slash = strrchr(path, '/');
        if (strcmp(slash ? slash + 1 : path, name) == 0) return i;
    }
    return -1;
}

static mox_status add_target(verifying *v, const char *name)
{
    target t = {.name = mox_strdup(name), .path = mox_path_join(v->dir, name), .file = tensor_file(v, name),
                .packed = mox_manifest_find(&v->manifest, name)};
    target *grown = mox_realloc_array(v->targets, v->n_targets + 1, sizeof *grown);
    if (grown) v->targets = grown;
    int64_t modified;
    const bool there = t.name && t.path && grown;
    if (there) sha_of_link(t.path, t.sha);
    if (there && (t.file >= 0 || t.packed || t.sha[0]) && mox_path_stat(t.path, &t.bytes, &modified)) {
        v->bytes += t.bytes;
        v->targets[v->n_targets++] = t;
        return MOX_OK;
    }
    mox_free(t.name);
    mox_free(t.path);
    return there ? MOX_OK : mox_fail_memory(v->err, sizeof t, "the list of files");
}

static mox_status choose_targets(verifying *v)
{
    mox_folder files;
    MOX_TRY(mox_folder_list(&files, v->dir, v->err));
    mox_status status = MOX_OK;
    for (size_t i = 0; i < files.n && status == MOX_OK; i++) status = add_target(v, files.names[i]);
    mox_folder_deinit(&files);
    for (size_t i = 0; i < v->manifest.n_files && status == MOX_OK; i++) {
        size_t j = 0;
        while (j < v->n_targets && strcmp(v->targets[j].name, v->manifest.files[i].name) != 0) j++;
        if (j == v->n_targets)
            find_out(v, false, v->manifest.files[i].name, NULL, "it is missing, but %s lists it; pack the model again",
                     mox_manifest_name);
    }
    return status;
}

/* ---- the whole ---- */

/* A failure to open something is a finding, unless it is about memory. */
static mox_status opened(verifying *v, mox_status status, const char *file, const mox_err *err)
{
    if (status == MOX_OK) return MOX_OK;
    if (status == MOX_E_MEMORY) return mox_fail(v->err, status, "%s", err->msg);
    find_out(v, false, file, NULL, "%s", err->msg);
    return MOX_OK;
}

static mox_status open_all(verifying *v)
{
    mox_err err = {0};
    mox_status status = mox_manifest_read(&v->manifest, v->dir, &err);
    if (status != MOX_E_NOT_FOUND) MOX_TRY(opened(v, status, mox_manifest_name, &err));
    if (status == MOX_OK && !v->manifest.complete)
        find_out(v, false, mox_manifest_name, NULL, "packing was not finished; run `moxie pack` again");
    status = mox_model_open(&v->model, v->dir, &(mox_model_opts){.warn = on_warning, .warn_user = v}, &err);
    MOX_TRY(opened(v, status, NULL, &err));
    mox_tokenizer *tokenizer = NULL;
    status = mox_tokenizer_open(&tokenizer, v->dir, &err);
    mox_tokenizer_close(&tokenizer);
    if (status != MOX_E_NOT_FOUND) MOX_TRY(opened(v, status, NULL, &err));
    if (!v->model) return MOX_OK;
    const mox_tensors *t = &v->model->tensors;
    v->place = mox_tensors_by_place(t);
    return v->place ? MOX_OK : mox_fail_memory(v->err, (size_t)t->n_tensors * sizeof *v->place, "the list of tensors");
}

mox_status mox_verify(const char *dir, const mox_verify_opts *opts, mox_verify_report *report, mox_err *err)
{
    const mox_verify_opts defaults = {0};
    *report = (mox_verify_report){0};
    verifying v = {.dir = dir, .opts = opts ? opts : &defaults, .report = report, .err = err, .buffer = mox_alloc(BUFFER)};
    mox_status status = v.buffer ? open_all(&v) : mox_fail_memory(err, BUFFER, "a buffer");
    if (status == MOX_OK) status = choose_targets(&v);
    for (size_t i = 0; i < v.n_targets && status == MOX_OK; i++) status = check_target(&v, &v.targets[i]);
    for (size_t i = 0; i < v.n_targets; i++) {
        mox_free(v.targets[i].name);
        mox_free(v.targets[i].path);
    }
    mox_free(v.targets);
    mox_free(v.place);
    mox_free(v.buffer);
    mox_manifest_deinit(&v.manifest);
    mox_model_close(&v.model);
    return status;
}
