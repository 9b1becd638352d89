/* base/file.h -- reading files, with a hook for fault injection.
 *
 * A mox_file is a descriptor that stays open, its size at open time, and, once
 * asked for, a read-only mapping.  Reads are positioned, retried on EINTR and
 * complete or an error: there are no short reads. */
#ifndef MOX_BASE_FILE_H
#define MOX_BASE_FILE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mox_file {
    int fd; /* -1 when closed */
    int64_t size;
    char *path; /* owned */
    void *map;  /* whole file, or NULL */
} mox_file;

#define MOX_FILE_CLOSED ((mox_file){.fd = -1})

/* A missing file is MOX_E_NOT_FOUND, a folder or device MOX_E_FORMAT. */
mox_status mox_file_open(mox_file *f, const char *path, mox_err *err);
void mox_file_close(mox_file *f); /* closed or zero-path storage is fine */
mox_status mox_file_read_at(const mox_file *f, int64_t offset, void *dst, size_t bytes, mox_err *err);
mox_status mox_file_map(mox_file *f, mox_err *err); /* idempotent; empty files have no map */

/* A whole small file as a NUL-terminated buffer that the caller frees with
 * mox_free.  Files over max_bytes are refused before anything is allocated. */
mox_status mox_file_slurp(const char *path, int64_t max_bytes, char **out, size_t *n_bytes, mox_err *err);

/* dir + "/" + name, owned by the caller (mox_free); NULL when out of memory. */
char *mox_path_join(const char *dir, const char *name);
int mox_path_exists(const char *path);

/* For tests: called before each open, read and map; a non-zero errno value
 * makes it fail with that.  Process-wide. */
typedef int mox_io_hook(void *user, const char *path, const char *what);
void mox_io_set_hook(mox_io_hook *hook, void *user);

#endif
