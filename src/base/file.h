/* base/file.h -- reading and writing files, with a hook for fault injection.
 *
 * A mox_file is a descriptor that stays open, its size at open time, and, once
 * asked for, a read-only mapping.  Reads are positioned, retried on EINTR and
 * complete or an error: there are no short reads.  A mox_file may also be memory of
 * our own that stands for a file: then it has no descriptor and its mapping may be
 * written until it is handed on.
 *
 * A mox_out is a file being written, by one program at a time: it appears under its name
 * when it is complete, and what was written is removed when it is not.  A device, a pipe or
 * what the program writes to anyway is written as it is, and a link stays: what it leads to is written. */
#ifndef MOX_BASE_FILE_H
#define MOX_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct mox_file {
    int fd; /* -1 when closed */
    int64_t size;
    char *path; /* owned */
    void *map;  /* whole file, or NULL */
    bool own;   /* map is memory of our own (mox_free_pages) */
} mox_file;

#define MOX_FILE_CLOSED ((mox_file){.fd = -1})

/* A missing file is MOX_E_NOT_FOUND, a folder or device MOX_E_FORMAT. */
mox_status mox_file_open(mox_file *f, const char *path, mox_err *err);
/* The same for a file that must be our own: a link and another owner's file are MOX_E_FORMAT. */
mox_status mox_file_open_own(mox_file *f, const char *path, mox_err *err);
void mox_file_close(mox_file *f); /* closed or zero-path storage is fine */
mox_status mox_file_read_at(const mox_file *f, int64_t offset, void *dst, size_t bytes, mox_err *err);
/* One read of what the system gives at once: bytes, 0 at the end of the file, or -errno. */
int64_t mox_file_read_some(const mox_file *f, int64_t offset, void *dst, size_t bytes);
int64_t mox_file_size_now(const mox_file *f); /* -1 when the system does not say */
/* A second descriptor of the same file that reads around the page cache: offsets, lengths and
 * addresses are multiples of 4096 there.  MOX_E_UNSUPPORTED when the file system refuses that
 * or has its files in memory anyway, or when the name has become another file's. */
mox_status mox_file_open_direct(mox_file *out, const mox_file *f, mox_err *err);
mox_status mox_file_map(mox_file *f, mox_err *err); /* idempotent; empty files have no map */

/* Of a mapping, wishes both: that the page cache holds it in huge pages when it reads it,
 * for files that fit in memory as a whole; that its pages leave the process until they
 * are read again. */
void mox_file_want_huge_pages(const mox_file *f);
void mox_file_unmap_pages(const mox_file *f);

/* Wishes that the page cache drops what it has of the file, as far as nobody maps it. */
void mox_file_forget(const mox_file *f);

/* In place of the mapping from now on: memory of mox_reserve_pages(size) that the caller has
 * filled with what of the file will be needed.  f owns it. */
void mox_file_map_memory(mox_file *f, void *memory);

/* Zeroed memory (on huge pages) as a file; label is its path in sentences. */
mox_status mox_file_memory(mox_file *f, const char *label, int64_t bytes, mox_err *err);

/* The same with memory that counts when it is touched (mox_reserve_pages), for files of
 * which hardly anything will be. */
mox_status mox_file_reserve(mox_file *f, const char *label, int64_t bytes, mox_err *err);

/* A whole small file as a NUL-terminated buffer that the caller frees with
 * mox_free.  Files over max_bytes are refused before anything is allocated. */
mox_status mox_file_slurp(const char *path, int64_t max_bytes, char **out, size_t *n_bytes, mox_err *err);

/* What a file of the system (/proc, /sys) says now: those have no size.  Text of at
 * most room - 1 bytes, NUL-terminated; false when it cannot be read. */
bool mox_file_peek(const char *path, char *out, size_t room);

/* dir + "/" + name, owned by the caller (mox_free); NULL when out of memory. */
char *mox_path_join(const char *dir, const char *name);
int mox_path_exists(const char *path);
/* The number of the device that a path is on; false when there is no such path. */
bool mox_path_device(const char *path, uint64_t *out);

typedef struct mox_out {
    int fd;           /* -1 when closed */
    char *path;       /* of the file itself; owned */
    char *temporary;  /* its name until it is complete; owned; NULL: written as it is */
    int64_t written;
    bool durable;
} mox_out;

#define MOX_OUT_CLOSED ((mox_out){.fd = -1})

mox_status mox_out_open(mox_out *o, const char *path, mox_err *err);
/* For the owner's eyes only, and a link is replaced; whatever happens to the machine, there is all of it or nothing. */
mox_status mox_out_open_durable(mox_out *o, const char *path, mox_err *err);
mox_status mox_out_write(mox_out *o, const void *bytes, size_t n, mox_err *err);
/* Ends it: under its name, or, on failure, gone. */
mox_status mox_out_commit(mox_out *o, mox_err *err);
void mox_out_discard(mox_out *o); /* closed storage is fine */
void mox_path_remove(const char *path); /* a file that may not be there */

void mox_path_touch(const char *path);  /* its time of change is now, if it can be */

/* A file that only one process can hold, made if it is not there; closing *fd lets go.
 * MOX_E_STATE when another holds it. */
mox_status mox_lock_take(int *fd, const char *path, mox_err *err);
void mox_lock_release(int *fd); /* -1 is fine */
/* The file of that name, opened with flags and held: whoever replaces it under its name holds it, too.  A negative
 * errno when there is none, EWOULDBLOCK when another process holds it and wait is false.  Where the file system has no
 * locks we must trust that nobody does. */
int mox_lock_open(const char *path, int flags, mode_t mode, bool wait);

/* Makes the folder, for its owner alone, unless it is there. */
mox_status mox_dir_make_private(const char *path, mox_err *err);
/* Makes the folder unless it is there; MOX_E_ARG when it holds anything. */
mox_status mox_dir_make_empty(const char *path, mox_err *err);
/* Bytes that may still be written below path, or -1 when the system does not say. */
int64_t mox_dir_free_bytes(const char *path);

/* For tests: called before each "open", "direct" (open), "read", "map", "write", "sync",
 * "remove" and "lock"; a positive errno value makes it fail with that, and -n makes a read bring no more than n bytes.
 * Process-wide. */
typedef int mox_io_hook(void *user, const char *path, const char *what);
void mox_io_set_hook(mox_io_hook *hook, void *user);
/* What the hook says; for reads that others make with the descriptor of a mox_file. */
int mox_io_injected(const char *path, const char *what);

#endif
