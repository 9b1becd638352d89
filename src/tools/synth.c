/* tools/synth.c -- synthetic checkpoints on disk, and in memory as opened models. */
#include "tools/synth.h"

#include "base/alloc.h"
#include "base/cancel.h"
#include "base/file.h"
#include "base/size.h"
#include "model/model.h"

#include <string.h>
#include <unistd.h>

enum { BUFFER = 32 << 20 };
static const int64_t largest_file = 5000000000;
static const char index_name[] = "model.safetensors.index.json", generation_name[] = "generation_config.json",
                  config_name[] = "config.json";

mox_status mox_synth_bytes(const char *name, int64_t *out, mox_err *err)
{
    mox_synth_spec s;
    mox_synth_plan p;
    MOX_TRY(mox_synth_parse(&s, name, err));
    MOX_TRY(mox_synth_plan_init(&p, &s, largest_file, err));
    *out = p.bytes;
    mox_synth_plan_deinit(&p);
    return MOX_OK;
}

/* ---- progress ---- */

typedef struct making {
    const mox_synth_plan *plan;
    const mox_synth_opts *opts;
    mox_pool *pool;
    int64_t done;
    mox_err *err;
} making;

static mox_status made(making *m, int64_t bytes)
{
    m->done += bytes;
    if (m->opts->progress) m->opts->progress(m->opts->progress_user, m->done, m->plan->bytes);
    if (mox_cancelled(m->opts->cancel)) return mox_fail(m->err, MOX_E_CANCELLED, "cancelled");
    return MOX_OK;
}

/* ---- on disk ---- */

typedef struct writer {
    making *m;
    mox_out out;
    unsigned char *buffer;
    int64_t n; /* bytes that wait in it */
} writer;

static mox_status flush(writer *w)
{
    const int64_t n = w->n;
    w->n = 0;
    if (n == 0) return MOX_OK;
    MOX_TRY(mox_out_write(&w->out, w->buffer, (size_t)n, w->m->err));
    return made(w->m, n);
}

static mox_status write_tensor(writer *w, const mox_synth_tensor *t)
{
    for (int64_t at = 0; at < t->bytes;) {
        int64_t n = mox_min_i64(t->bytes - at, BUFFER - w->n);
        if (at + n < t->bytes) n = n / MOX_SYNTH_BLOCK * MOX_SYNTH_BLOCK; /* the rest begins with a block */
        if (n == 0) {
            MOX_TRY(flush(w));
            continue;
        }
        mox_synth_fill(t, w->m->pool, at, w->buffer + w->n, n);
        w->n += n;
        at += n;
    }
    return MOX_OK;
}

static mox_status write_text(const char *dir, const char *name, const char *bytes, size_t n, mox_err *err)
{
    mox_out out = MOX_OUT_CLOSED;
    char *path = mox_path_join(dir, name);
    if (!path) return mox_fail_memory(err, strlen(dir) + strlen(name) + 2, "a file name");
    mox_status status = mox_out_open(&out, path, err);
    if (status == MOX_OK) status = mox_out_write(&out, bytes, n, err);
    if (status == MOX_OK) status = mox_out_commit(&out, err);
    mox_free(path);
    return status;
}

static mox_status write_file(writer *w, const char *dir, int32_t file)
{
    const mox_synth_plan *p = w->m->plan;
    char name[64];
    mox_synth_file_name(name, file, p->n_files);
    char *path = mox_path_join(dir, name);
    if (!path) return mox_fail_memory(w->m->err, strlen(dir) + sizeof name, "a file name");
    mox_status status = mox_out_open(&w->out, path, w->m->err);
    mox_free(path);
    MOX_TRY(status);
    const mox_synth_file *f = &p->files[file];
    status = mox_out_write(&w->out, f->header, (size_t)f->header_bytes, w->m->err);
    for (int64_t i = 0; i < p->n_tensors && status == MOX_OK; i++)
        if (p->tensors[i].file == file) status = write_tensor(w, &p->tensors[i]);
    if (status == MOX_OK) status = flush(w);
    if (status == MOX_OK) return mox_out_commit(&w->out, w->m->err);
    mox_out_discard(&w->out);
    return status;
}

static void remove_file(const char *dir, const char *name)
{
    char *path = mox_path_join(dir, name);
    if (path) mox_path_remove(path);
    mox_free(path);
}

/* A failed checkpoint leaves nothing: its files are useless without each other. */
static void remove_files(const mox_synth_plan *p, const char *dir)
{
    for (int32_t i = 0; i < p->n_files; i++) {
        char name[64];
        mox_synth_file_name(name, i, p->n_files);
        remove_file(dir, name);
    }
    remove_file(dir, index_name);
    remove_file(dir, generation_name);
    remove_file(dir, config_name);
}

static mox_status write_plan(const mox_synth_plan *p, const char *dir, const mox_synth_opts *opts, mox_err *err)
{
    MOX_TRY(mox_dir_make_empty(dir, err));
    const int64_t room = mox_dir_free_bytes(dir);
    if (room >= 0 && p->bytes > room)
        return mox_fail(err, MOX_E_FULL, "%s: the checkpoint has %.1f GB but only %.1f GB are free; shorten it with NAME:layers=N",
                        dir, (double)p->bytes / 1e9, (double)room / 1e9);
    making m = {.plan = p, .opts = opts, .err = err};
    writer w = {.m = &m, .out = MOX_OUT_CLOSED, .buffer = mox_alloc(BUFFER)};
    mox_status status = w.buffer ? mox_pool_create(&m.pool, &(mox_pool_opts){.n_threads = opts->n_threads}, err)
                                 : mox_fail_memory(err, BUFFER, "a buffer");
    for (int32_t i = 0; i < p->n_files && status == MOX_OK; i++) status = write_file(&w, dir, i);
    if (status == MOX_OK) status = write_text(dir, index_name, p->index, strlen(p->index), err);
    if (status == MOX_OK) status = write_text(dir, generation_name, p->generation, strlen(p->generation), err);
    if (status == MOX_OK) status = write_text(dir, config_name, p->config, strlen(p->config), err);
    if (status != MOX_OK) remove_files(p, dir);
    mox_pool_destroy(&m.pool);
    mox_free(w.buffer);
    return status;
}

mox_status mox_synth_write_spec(const mox_synth_spec *s, const char *dir, const mox_synth_opts *opts, mox_err *err)
{
    mox_synth_plan p;
    MOX_TRY(mox_synth_plan_init(&p, s, largest_file, err));
    const mox_status status = write_plan(&p, dir, opts, err);
    mox_synth_plan_deinit(&p);
    return status;
}

/* ---- in memory ---- */

static const char label[] = "synthetic model";

/* Systems promise more memory than there is and end programs that believe them. */
static mox_status check_memory(const mox_synth_plan *p, mox_err *err)
{
    const double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (have <= 0.0 || (double)p->bytes <= have) return MOX_OK;
    return mox_fail(err, MOX_E_FULL, "%s has %.1f GB but the machine has %.1f GB of memory; shorten it with NAME:layers=N",
                    p->spec.name, (double)p->bytes / 1e9, have / 1e9);
}

static mox_status make_image(making *m, mox_file *out)
{
    const mox_synth_plan *p = m->plan;
    MOX_TRY(mox_file_memory(out, label, p->files[0].bytes, m->err));
    unsigned char *image = out->map;
    memcpy(image, p->files[0].header, (size_t)p->files[0].header_bytes);
    mox_status status = MOX_OK;
    for (int64_t i = 0; i < p->n_tensors && status == MOX_OK; i++) {
        const mox_synth_tensor *t = &p->tensors[i];
        mox_synth_fill(t, m->pool, 0, image + t->offset, t->bytes);
        status = made(m, t->bytes);
    }
    if (status != MOX_OK) mox_file_close(out);
    return status;
}

/* Takes the files over. */
static mox_status open_files(mox_model **out, const mox_synth_plan *p, mox_file *files, mox_err *err)
{
    mox_tensors tensors;
    mox_config config = {0};
    mox_generation_config generation;
    MOX_TRY(mox_tensors_adopt(&tensors, files, p->n_files, err));
    mox_status status = mox_config_parse(&config, label, p->config, strlen(p->config), err);
    if (status == MOX_OK)
        status = mox_generation_parse(&generation, &config, label, p->generation, strlen(p->generation), err);
    if (status == MOX_OK) return mox_model_open_parts(out, &config, &generation, &tensors, NULL, err);
    mox_config_close(&config);
    mox_tensors_close(&tensors);
    return status;
}

mox_status mox_synth_open_spec(mox_model **out, const mox_synth_spec *s, const mox_synth_opts *opts, mox_err *err)
{
    *out = NULL;
    mox_synth_plan p;
    MOX_TRY(mox_synth_plan_init(&p, s, INT64_MAX, err));
    making m = {.plan = &p, .opts = opts, .err = err};
    mox_file image = MOX_FILE_CLOSED;
    mox_status status = check_memory(&p, err);
    if (status == MOX_OK) status = mox_pool_create(&m.pool, &(mox_pool_opts){.n_threads = opts->n_threads}, err);
    if (status == MOX_OK) status = make_image(&m, &image);
    mox_pool_destroy(&m.pool);
    if (status == MOX_OK) status = open_files(out, &p, &image, err);
    mox_synth_plan_deinit(&p);
    return status;
}

/* ---- as a shape ---- */

/* The files of the checkpoint on disk, of which only the headers are there. */
static mox_status make_shapes(const mox_synth_plan *p, mox_file *files, mox_err *err)
{
    for (int32_t i = 0; i < p->n_files; i++) {
        MOX_TRY(mox_file_reserve(&files[i], label, p->files[i].bytes, err));
        memcpy(files[i].map, p->files[i].header, (size_t)p->files[i].header_bytes);
    }
    return MOX_OK;
}

mox_status mox_synth_open_shape_spec(mox_model **out, const mox_synth_spec *s, mox_err *err)
{
    *out = NULL;
    mox_synth_plan p;
    MOX_TRY(mox_synth_plan_init(&p, s, largest_file, err));
    mox_file *files = mox_alloc_array((size_t)p.n_files, sizeof *files);
    mox_status status = files ? MOX_OK : mox_fail_memory(err, (size_t)p.n_files * sizeof *files, "the list of files");
    for (int32_t i = 0; files && i < p.n_files; i++) files[i] = MOX_FILE_CLOSED;
    if (status == MOX_OK) status = make_shapes(&p, files, err);
    if (status == MOX_OK) status = open_files(out, &p, files, err);
    for (int32_t i = 0; files && i < p.n_files; i++) mox_file_close(&files[i]);
    mox_free(files);
    mox_synth_plan_deinit(&p);
    if (status == MOX_OK) (*out)->shape_only = true;
    return status;
}

/* ---- the public functions ---- */

static mox_status read_request(mox_synth_spec *s, const char *name, const mox_synth_opts *opts, mox_err *err)
{
    MOX_TRY(mox_synth_parse(s, name, err));
    if (!(opts->router_skew >= 0.0 && opts->router_skew <= 8.0))
        return mox_fail(err, MOX_E_ARG, "router skew: %g is not between 0 and 8", opts->router_skew);
    s->seed = opts->seed;
    s->skew = opts->router_skew;
    return MOX_OK;
}

mox_status mox_synth_write(const char *name, const char *dir, const mox_synth_opts *opts, mox_err *err)
{
    const mox_synth_opts defaults = {0};
    if (!opts) opts = &defaults;
    mox_synth_spec s;
    MOX_TRY(read_request(&s, name, opts, err));
    return mox_synth_write_spec(&s, dir, opts, err);
}

mox_status mox_model_open_synthetic(mox_model **out, const char *name, const mox_synth_opts *opts, mox_err *err)
{
    const mox_synth_opts defaults = {0};
    if (!opts) opts = &defaults;
    *out = NULL;
    mox_synth_spec s;
    MOX_TRY(read_request(&s, name, opts, err));
    return mox_synth_open_spec(out, &s, opts, err);
}

mox_status mox_model_open_shape(mox_model **out, const char *name, mox_err *err)
{
    *out = NULL;
    mox_synth_spec s;
    MOX_TRY(mox_synth_parse(&s, name, err));
    return mox_synth_open_shape_spec(out, &s, err);
}
