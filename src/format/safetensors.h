/* format/safetensors.h -- from files to a validated directory of tensors.
 *
 * Owns:     the open files and the directory.  No tensor data is read here.
 * Promises: every tensor lies inside its file, its byte range equals shape times
 *           element size, ranges neither overlap nor leave holes, names are
 *           unique over all shards.  All of it is checked before anything of a
 *           claimed size is allocated.
 * Refuses:  headers over 100 MB, names over 512 bytes, more than 8 dimensions,
 *           more than 1M tensors. */
#ifndef MOX_FORMAT_SAFETENSORS_H
#define MOX_FORMAT_SAFETENSORS_H

#include "base/err.h"
#include "base/file.h"
#include "tensor/dtype.h"

enum { MOX_MAX_DIMS = 8 };

/* A byte range of a file: where a weight is, without saying how to get at it. */
typedef struct mox_extent {
    int32_t file; /* index into mox_tensors.files */
    int64_t offset, bytes;
} mox_extent;

typedef struct mox_tensor_info {
    char *name;
    mox_dtype dtype;
    int32_t n_dims;
    int64_t shape[MOX_MAX_DIMS];
    mox_extent extent; /* offset from the start of the file */
} mox_tensor_info;

typedef struct mox_tensors {
    mox_file *files;
    int32_t n_files;
    mox_tensor_info *tensors; /* sorted by name */
    int64_t n_tensors;
    char *unlisted; /* a sentence to warn with when the files hold tensors that the
                     * index does not list, else NULL */
} mox_tensors;

/* Opens the checkpoint in dir: the shards named by model.safetensors.index.json,
 * else model.safetensors, else every model*.safetensors. */
mox_status mox_tensors_open(mox_tensors *out, const char *dir, mox_err *err);
void mox_tensors_close(mox_tensors *t); /* zeroed or half-opened storage is fine */

/* Whether the files that mox_tensors_open would open are there: MOX_E_NOT_FOUND names
 * those that are missing.  Reads the index and opens none of them. */
mox_status mox_tensors_present(const char *dir, mox_err *err);

/* Opens exactly one file (goldens, tests). */
mox_status mox_tensors_open_file(mox_tensors *out, const char *path, mox_err *err);

/* Takes over files that are already open, or memory that stands for them; they are
 * closed with out, also on failure. */
mox_status mox_tensors_adopt(mox_tensors *out, mox_file *files, int32_t n, mox_err *err);

const mox_tensor_info *mox_tensors_find(const mox_tensors *t, const char *name); /* or NULL */

/* The parser behind it: header is the JSON text of n bytes, data_bytes what
 * follows it in the file.  Appends to out with file index `file` and offsets
 * moved by data_offset, in the order of the data; label names the file in errors. */
mox_status mox_safetensors_parse(mox_tensors *out, int32_t file, const char *label, const char *header, size_t n,
                                 int64_t data_offset, int64_t data_bytes, mox_err *err);

/* model.safetensors.index.json: calls `shard` once per distinct file name, in
 * ascending order, then `entry` per tensor.  Either may be NULL.  A callback that
 * fails stops the walk.  Used by mox_tensors_open and the fuzz target. */
typedef struct mox_index_walk {
    mox_status (*shard)(void *user, const char *file_name, mox_err *err);
    mox_status (*entry)(void *user, const char *tensor, const char *file_name, mox_err *err);
    void *user;
} mox_index_walk;
mox_status mox_index_parse(const char *label, const char *text, size_t n, const mox_index_walk *walk, mox_err *err);

#endif
