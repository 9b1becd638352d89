/* tools/pack.c -- writes a packed model: file after file, each complete or not there.
 *
 * Invariants
 *   I1  a file has its name only when it is complete, and is in the manifest only then:
 *       a run that goes on trusts what the manifest lists and the disk has in that size.
 *   I2  the manifest is the first thing in the folder; a folder that holds anything and no
 *       manifest of the same source is not touched.
 *   I3  config.json comes last, and `complete` after the result was opened and compared.
 *
 * Memory: one buffer of some experts.  Reads follow the source in runs: of stacks, the
 * same part of all experts in the buffer is read in one go, which is sequential there. */
#include "tools/pack.h"

#include "base/alloc.h"
#include "base/cancel.h"
#include "base/file.h"
#include "base/size.h"
#include "tools/manifest.h"

#define XXH_STATIC_LINKING_ONLY
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { BUFFER = 32 << 20 };

typedef struct packing {
    const mox_pack_plan *plan;
    const char *out; /* folder */
    const mox_pack_opts *opts;
    mox_manifest done;
    mox_packed_file *file; /* of the step at hand, the last of done */
    mox_out to;            /* closed while nothing is written, only summed */
    unsigned char *buffer;
    int64_t room; /* bytes of it: at least one expert */
    mox_writer header;
    int64_t n_bytes; /* for progress */
    mox_pack_report *report;
    mox_err *err;
} packing;

static mox_status made(packing *k, int64_t bytes)
{
    k->n_bytes += bytes;
    if (k->opts->progress) k->opts->progress(k->opts->progress_user, k->n_bytes, k->plan->bytes);
    return mox_cancelled(k->opts->cancel) ? mox_fail(k->err, MOX_E_CANCELLED, "cancelled") : MOX_OK;
}

static mox_status write_out(packing *k, const void *bytes, int64_t n)
{
    if (k->to.fd < 0) return MOX_OK;
    k->report->bytes_written += n;
    return mox_out_write(&k->to, bytes, (size_t)n, k->err);
}

/* ---- pieces ---- */

/* One piece of the source through the buffer. */
static mox_status stream_piece(packing *k, const mox_file *from, int64_t offset, int64_t bytes, const char *name)
{
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int64_t at = 0; at < bytes;) {
        const int64_t n = mox_min_i64(bytes - at, k->room);
        MOX_TRY(mox_file_read_at(from, offset + at, k->buffer, (size_t)n, k->err));
        (void)XXH3_64bits_update(&sum, k->buffer, (size_t)n);
        MOX_TRY(write_out(k, k->buffer, n));
        MOX_TRY(made(k, n));
        at += n;
    }
    return mox_manifest_add_piece(k->file, name, bytes, XXH3_64bits_digest(&sum), k->err);
}

static mox_status write_header(packing *k, const mox_pack_step *s)
{
    MOX_TRY(mox_pack_header(k->plan, s, &k->header, k->err));
    const char *bytes = mox_writer_text(&k->header);
    MOX_TRY(write_out(k, bytes, (int64_t)k->header.n));
    return mox_manifest_add_piece(k->file, "header", (int64_t)k->header.n, XXH3_64bits(bytes, k->header.n), k->err);
}

/* ---- the three kinds of files ---- */

static mox_status write_dense(packing *k, const mox_pack_step *s)
{
    MOX_TRY(write_header(k, s));
    for (int64_t i = s->first; i < s->first + s->n; i++) {
        const mox_tensor_info *t = k->plan->dense[i];
        MOX_TRY(stream_piece(k, &k->plan->model->tensors.files[t->extent.file], t->extent.offset, t->extent.bytes, t->name));
    }
    return MOX_OK;
}

/* Experts [first, end) of a layer into the buffer, one behind the other. */
static mox_status read_experts(packing *k, const mox_expert_weights *x, int64_t first, int64_t end)
{
    for (int i = 0; i < MOX_PACK_PARTS; i++) {
        int64_t at = 0;
        for (int64_t e = first; e < end; e++) {
            mox_pack_part parts[MOX_PACK_PARTS];
            int64_t bytes;
            const int n = mox_pack_parts(&x[e], parts, &bytes);
            unsigned char *expert = k->buffer + at;
            at += bytes;
            if (i == 0) { /* what the parts leave is padding */
                const int64_t used = parts[n - 1].to + parts[n - 1].from.bytes;
                memset(expert + used, 0, (size_t)(bytes - used));
            }
            if (i >= n) continue;
            const mox_extent *from = &parts[i].from;
            MOX_TRY(mox_file_read_at(&k->plan->model->tensors.files[from->file], from->offset, expert + parts[i].to,
                                     (size_t)from->bytes, k->err));
        }
    }
    return MOX_OK;
}

static mox_status write_experts(packing *k, const mox_pack_step *s)
{
    const mox_expert_weights *x = k->plan->model->layers[s->first].experts;
    const int64_t n_experts = k->plan->model->n_experts;
    MOX_TRY(write_header(k, s));
    for (int64_t first = 0, end = 0; first < n_experts; first = end) {
        mox_pack_part parts[MOX_PACK_PARTS];
        int64_t used = 0, bytes;
        for (; end < n_experts; end++) {
            (void)mox_pack_parts(&x[end], parts, &bytes);
            if (bytes > k->room - used) break;
            used += bytes;
        }
        MOX_TRY(read_experts(k, x, first, end));
        int64_t at = 0;
        for (int64_t e = first; e < end; e++, at += bytes) {
            char name[MOX_NAME_BYTES];
            mox_pack_expert_name(k->plan, s->first, e, name);
            (void)mox_pack_parts(&x[e], parts, &bytes);
            MOX_TRY(mox_manifest_add_piece(k->file, name, bytes, XXH3_64bits(k->buffer + at, (size_t)bytes), k->err));
            k->report->n_experts++;
        }
        MOX_TRY(write_out(k, k->buffer, used));
        MOX_TRY(made(k, used));
    }
    return MOX_OK;
}

/* The pieces of a file of the source that is taken as it is. */
static mox_status stream_whole(packing *k, const mox_pack_step *s, const mox_file *from)
{
    const mox_pack_plan *p = k->plan;
    const int64_t n = p->model->tensors.n_tensors;
    int64_t i = 0;
    while (s->first >= 0 && i < n && p->place[i]->extent.file != s->first) i++;
    if (s->first < 0 || i == n) return stream_piece(k, from, 0, from->size, "file");
    MOX_TRY(stream_piece(k, from, 0, p->place[i]->extent.offset, "header"));
    for (; i < n && p->place[i]->extent.file == s->first; i++)
        MOX_TRY(stream_piece(k, from, p->place[i]->extent.offset, p->place[i]->extent.bytes, p->place[i]->name));
    return MOX_OK;
}

static mox_status check_room(packing *k, int64_t bytes)
{
    const int64_t room = mox_dir_free_bytes(k->out);
    if (room < 0 || bytes <= room) return MOX_OK;
    return mox_fail(k->err, MOX_E_FULL,
                    "%s: %.1f GB are still to be written but only %.1f GB are free; make room and run it again", k->out,
                    (double)bytes / 1e9, (double)room / 1e9);
}

static mox_status take_whole(packing *k, const mox_pack_step *s, const char *path)
{
    char *source = mox_path_join(k->plan->dir, s->from);
    if (!source) return mox_fail_memory(k->err, strlen(k->plan->dir) + sizeof s->from, "a file name");
    mox_file from = MOX_FILE_CLOSED;
    mox_status status = mox_file_open(&from, source, k->err);
    if (status == MOX_OK && mox_path_link(source, path)) {
        k->report->n_linked++;
    } else if (status == MOX_OK) {
        status = check_room(k, s->bytes);
        if (status == MOX_OK) status = mox_out_open(&k->to, path, k->err);
    }
    if (status == MOX_OK) status = stream_whole(k, s, &from);
    mox_file_close(&from);
    mox_free(source);
    return status;
}

/* ---- steps ---- */

static mox_status make_file(packing *k, const mox_pack_step *s, const char *path)
{
    mox_status status;
    if (s->kind == MOX_PACK_WHOLE) {
        status = take_whole(k, s, path);
    } else {
        status = mox_out_open(&k->to, path, k->err);
        if (status == MOX_OK) status = s->kind == MOX_PACK_DENSE ? write_dense(k, s) : write_experts(k, s);
    }
    if (status == MOX_OK && k->to.fd >= 0) return mox_out_commit(&k->to, k->err);
    mox_out_discard(&k->to);
    return status;
}

/* Whether an earlier run finished this file; then its entry changes places with the new one. */
static bool keep_file(packing *k, mox_manifest *earlier, const mox_pack_step *s, const char *path)
{
    mox_packed_file *had = mox_manifest_find(earlier, s->name);
    int64_t bytes, modified;
    if (!had || !mox_path_stat(path, &bytes, &modified) || bytes != had->bytes) return false;
    const mox_packed_file fresh = *k->file;
    *k->file = *had;
    *had = fresh;
    k->report->n_kept++;
    k->n_bytes += s->bytes;
    return true;
}

static mox_status run_step(packing *k, mox_manifest *earlier, const mox_pack_step *s)
{
    char *path = mox_path_join(k->out, s->name);
    if (!path) return mox_fail_memory(k->err, strlen(k->out) + sizeof s->name, "a file name");
    mox_status status = mox_manifest_add_file(&k->done, s->name, &k->file, k->err);
    if (status == MOX_OK && !keep_file(k, earlier, s, path)) {
        status = make_file(k, s, path);
        if (status == MOX_OK) status = mox_manifest_write(&k->done, k->out, k->err);
    }
    mox_free(path);
    return status;
}

/* I3: the same model came out. */
static mox_status check_result(const packing *k)
{
    mox_model *packed = NULL;
    MOX_TRY(mox_model_open(&packed, k->out, NULL, k->err));
    const mox_inspection *a = &k->plan->model->report, *b = &packed->report;
    const bool same = a->params_total == b->params_total && a->params_active == b->params_active &&
                      a->bytes_total == b->bytes_total && a->bytes_experts == b->bytes_experts;
    mox_model_close(&packed);
    if (same) return MOX_OK;
    return mox_fail(k->err, MOX_E_FORMAT, "%s: the packed model is not the one in %s; did that change meanwhile?", k->out,
                    k->plan->dir);
}

static mox_status run_steps(packing *k, mox_manifest *earlier)
{
    const mox_pack_plan *p = k->plan;
    int64_t to_write = 0;
    for (int64_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind != MOX_PACK_WHOLE && !mox_manifest_find(earlier, p->steps[i].name)) to_write += p->steps[i].bytes;
    MOX_TRY(check_room(k, to_write));
    for (int64_t i = 0; i < p->n_steps; i++) MOX_TRY(run_step(k, earlier, &p->steps[i]));
    k->report->n_files = (int32_t)p->n_steps;
    k->report->bytes = p->bytes;
    k->report->was_complete = earlier->complete && k->report->n_kept == k->report->n_files;
    if (k->report->was_complete) return MOX_OK;
    MOX_TRY(check_result(k));
    k->done.complete = true;
    return mox_manifest_write(&k->done, k->out, k->err);
}

/* ---- where it goes ---- */

/* A run that was ended while it wrote its first manifest leaves a part of it; one that still writes it is left alone. */
static mox_status remove_rest(const char *out, mox_err *err)
{
    char rest[sizeof "moxie.pack.json.part"];
    (void)snprintf(rest, sizeof rest, "%s.part", mox_manifest_name);
    char *part = mox_path_join(out, rest), *whole = mox_path_join(out, mox_manifest_name);
    mox_status status = part && whole ? MOX_OK : mox_fail_memory(err, strlen(out) + sizeof rest, "a file name");
    if (status == MOX_OK && mox_path_exists(part) > 0) {
        mox_out o;
        status = mox_out_open(&o, whole, err);
        mox_out_discard(&o);
    }
    mox_free(part);
    mox_free(whole);
    return status;
}

/* I2.  Fills *earlier with what an earlier run left. */
static mox_status take_folder(const mox_pack_plan *p, const char *out, mox_manifest *earlier, mox_err *err)
{
    mox_status status = mox_manifest_read(earlier, out, err);
    if (status == MOX_OK && earlier->source != p->source) {
        mox_manifest_deinit(earlier);
        return mox_fail(err, MOX_E_ARG,
                        "%s: holds a packed model that was not made from %s as it is now; name a new folder", out, p->dir);
    }
    if (status != MOX_E_NOT_FOUND) return status;
    status = remove_rest(out, err);
    return status == MOX_OK ? mox_dir_make_empty(out, err) : status;
}

/* Writing below the source would change what is read. */
static mox_status check_apart(const char *dir, const char *out, mox_err *err)
{
    char *a = mox_path_real(dir), *b = mox_path_real(out);
    mox_status status = MOX_OK;
    const size_t n = a ? strlen(a) : 0;
    if (a && b && strncmp(a, b, n) == 0 && (b[n] == '\0' || b[n] == '/'))
        status = mox_fail(err, MOX_E_ARG, "%s: lies in the model folder %s; name a folder elsewhere", out, dir);
    mox_free(a);
    mox_free(b);
    return status;
}

static mox_status check_not_packed(const char *dir, mox_err *err)
{
    char *path = mox_path_join(dir, mox_manifest_name);
    if (!path) return mox_fail_memory(err, strlen(dir) + 32, "a file name");
    const int there = mox_path_exists(path);
    mox_free(path);
    if (!there) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "%s: is a packed model already (it has %s); use it as it is", dir, mox_manifest_name);
}

static mox_status pack_model(const mox_model *m, const char *dir, const char *out, const mox_pack_opts *opts,
                             mox_pack_report *report, mox_err *err)
{
    mox_pack_plan plan;
    mox_manifest earlier = {0};
    MOX_TRY(mox_pack_plan_init(&plan, m, dir, err));
    packing k = {.plan = &plan, .out = out, .opts = opts, .to = MOX_OUT_CLOSED, .report = report, .err = err};
    mox_status status = take_folder(&plan, out, &earlier, err);
    if (status == MOX_OK) {
        k.done.source = plan.source;
        k.room = mox_max_i64(mox_min_i64(BUFFER, plan.bytes), plan.expert_bytes_max);
        k.buffer = mox_alloc((size_t)k.room);
        if (!k.buffer) status = mox_fail_memory(err, (size_t)k.room, "a buffer for experts");
    }
    if (status == MOX_OK && earlier.n_files == 0) status = mox_manifest_write(&k.done, out, err);
    if (status == MOX_OK) status = run_steps(&k, &earlier);
    mox_free(k.buffer);
    mox_writer_deinit(&k.header);
    mox_manifest_deinit(&k.done);
    mox_manifest_deinit(&earlier);
    mox_pack_plan_deinit(&plan);
    return status;
}

mox_status mox_pack(const char *dir, const char *out, const mox_pack_opts *opts, mox_pack_report *report, mox_err *err)
{
    const mox_pack_opts defaults = {0};
    mox_pack_report unused;
    if (!opts) opts = &defaults;
    if (!report) report = &unused;
    *report = (mox_pack_report){0};
    MOX_TRY(check_apart(dir, out, err));
    MOX_TRY(check_not_packed(dir, err));
    mox_model *m = NULL;
    MOX_TRY(mox_model_open(&m, dir, &(mox_model_opts){.warn = opts->warn, .warn_user = opts->warn_user}, err));
    const mox_status status = pack_model(m, dir, out, opts, report, err);
    mox_model_close(&m);
    return status;
}
