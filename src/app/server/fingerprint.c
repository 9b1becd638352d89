/* app/server/fingerprint.c -- see fingerprint.h. */
#include "app/server/fingerprint.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CONFIG = 1 << 26, SAMPLES = 16, SAMPLE_BYTES = 4096 };

static void add_text(mox_sha256 *s, const char *text) { mox_sha256_add(s, text, strlen(text) + 1); }

/* Weights that were trained on differ all over, so a few places of a file tell it from another. */
static mox_status add_samples(mox_sha256 *s, const char *path, mox_err *err)
{
    mox_file f = MOX_FILE_CLOSED;
    unsigned char bytes[SAMPLE_BYTES];
    mox_status status = mox_file_open(&f, path, err);
    for (int64_t i = 0; i < SAMPLES && status == MOX_OK; i++) {
        const int64_t at = f.size / SAMPLES * i, left = f.size - at;
        const size_t n = left < SAMPLE_BYTES ? (size_t)left : SAMPLE_BYTES;
        status = mox_file_read_at(&f, at, bytes, n, err);
        if (status == MOX_OK) mox_sha256_add(s, bytes, n);
    }
    mox_file_close(&f);
    return status;
}

static mox_status add_file(mox_sha256 *s, const char *dir, const char *name, mox_err *err)
{
    int64_t about[2] = {0};
    char *path = mox_path_join(dir, name);
    if (!path) return mox_fail_memory(err, strlen(dir) + strlen(name) + 2, "a path");
    add_text(s, name);
    (void)mox_path_stat(path, &about[0], &about[1]); /* zeros where there is none: opening says so */
    mox_sha256_add(s, about, sizeof about);
    const mox_status status = add_samples(s, path, err);
    mox_free(path);
    return status;
}

static mox_status add_config(mox_sha256 *s, const char *dir, mox_err *err)
{
    char *path = mox_path_join(dir, "config.json"), *text = NULL;
    size_t n = 0;
    if (!path) return mox_fail_memory(err, strlen(dir) + 16, "a path");
    const mox_status status = mox_file_slurp(path, MOST_CONFIG, &text, &n, err);
    if (status == MOX_OK) mox_sha256_add(s, text, n);
    mox_free(text);
    mox_free(path);
    return status;
}

mox_status mox_fingerprint(const char *dir, const mox_context_opts *opts, const char *isa,
                           char out[MOX_SHA256_HEX + 1], mox_err *err)
{
    mox_sha256 s;
    mox_folder folder;
    char how[128];
    (void)snprintf(how, sizeof how, "moxie %s, kernels %s%s%s%s", mox_version(), isa,
                   opts->exact ? ", exact" : "", opts->fast ? ", fast" : "",
                   opts->deterministic ? ", deterministic" : "");
    mox_sha256_init(&s);
    add_text(&s, how);
    MOX_TRY(add_config(&s, dir, err));
    MOX_TRY(mox_folder_list(&folder, dir, err));
    mox_status status = MOX_OK;
    for (size_t i = 0; i < folder.n && status == MOX_OK; i++) {
        const size_t n = strlen(folder.names[i]);
        static const char ending[] = ".safetensors";
        const bool weights =
            n >= sizeof ending - 1 && strcmp(folder.names[i] + n - (sizeof ending - 1), ending) == 0;
        if (weights) status = add_file(&s, dir, folder.names[i], err);
    }
    mox_folder_deinit(&folder);
    mox_sha256_end(&s, out);
    return status;
}
