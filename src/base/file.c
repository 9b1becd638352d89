/* base/file.c -- POSIX files behind mox_file and mox_out. */
#include "base/file.h"

#include "base/alloc.h"
#include "base/size.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/vfs.h>
#endif
#include <stdio.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Reads may be under way in other threads while a test sets it. */
static mox_io_hook *_Atomic io_hook;
static void *_Atomic io_hook_user;

void mox_io_set_hook(mox_io_hook *hook, void *user)
{
    if (hook) atomic_store(&io_hook_user, user);
    atomic_store(&io_hook, hook);
}

int mox_io_injected(const char *path, const char *what)
{
    mox_io_hook *hook = atomic_load(&io_hook);
    return hook ? hook(atomic_load(&io_hook_user), path, what) : 0;
}

static mox_status open_file(mox_file *f, const char *path, bool own, mox_err *err)
{
    *f = MOX_FILE_CLOSED;
    int failure = mox_io_injected(path, "open");
    if (!failure) {
        f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (own ? O_NOFOLLOW : 0)); /* a pipe without a writer must not block */
        if (f->fd < 0) failure = errno;
    }
    if (own && failure == ELOOP) return mox_fail(err, MOX_E_FORMAT, "%s: a symbolic link, which is not followed here", path);
    if (failure)
        return mox_fail(err, failure == ENOENT || failure == ENOTDIR ? MOX_E_NOT_FOUND : MOX_E_IO,
                        "%s: cannot open: %s", path, strerror(failure));
    struct stat st;
    if (fstat(f->fd, &st) != 0) {
        failure = errno;
        mox_file_close(f);
        return mox_fail(err, MOX_E_IO, "%s: cannot read its size: %s", path, strerror(failure));
    }
    if (!S_ISREG(st.st_mode)) {
        mox_file_close(f);
        return mox_fail(err, MOX_E_FORMAT, "%s: not a regular file", path);
    }
    if (own && st.st_uid != geteuid()) {
        mox_file_close(f);
        return mox_fail(err, MOX_E_FORMAT, "%s: belongs to another user", path);
    }
    (void)fcntl(f->fd, F_SETFL, 0); /* only the open must not block */
    f->size = (int64_t)st.st_size;
    f->path = mox_strdup(path);
    if (!f->path) {
        mox_file_close(f);
        return mox_fail_memory(err, strlen(path) + 1, "a file name");
    }
    return MOX_OK;
}

mox_status mox_file_open(mox_file *f, const char *path, mox_err *err) { return open_file(f, path, false, err); }
mox_status mox_file_open_own(mox_file *f, const char *path, mox_err *err) { return open_file(f, path, true, err); }

static void drop_map(mox_file *f)
{
    if (f->map && f->own) mox_free_pages(f->map, (size_t)f->size);
    else if (f->map) munmap(f->map, (size_t)f->size);
    f->map = NULL;
}

void mox_file_close(mox_file *f)
{
    drop_map(f);
    if (f->fd >= 0) close(f->fd);
    mox_free(f->path);
    *f = MOX_FILE_CLOSED;
}

int64_t mox_file_read_some(const mox_file *f, int64_t offset, void *dst, size_t bytes)
{
    if (f->fd < 0) {
        const int64_t n = mox_min_i64((int64_t)bytes, mox_max_i64(f->size - offset, 0));
        if (n > 0) memcpy(dst, (const char *)f->map + offset, (size_t)n);
        return n;
    }
    const int said = mox_io_injected(f->path, "read");
    if (said > 0) return -said;
    const ssize_t n = pread(f->fd, dst, bytes, (off_t)offset);
    if (n < 0) return -errno;
    return said < 0 ? mox_min_i64(n, -(int64_t)said) : n;
}

mox_status mox_file_read_at(const mox_file *f, int64_t offset, void *dst, size_t bytes, mox_err *err)
{
    if (offset < 0 || offset > f->size || bytes > (uint64_t)(f->size - offset))
        return mox_fail(err, MOX_E_FORMAT, "%s: needs bytes %lld to %llu but the file has %lld (incomplete download?)",
                        f->path, (long long)offset, (unsigned long long)offset + bytes, (long long)f->size);
    for (char *at = dst; bytes > 0;) {
        const int64_t n = mox_file_read_some(f, offset, at, bytes);
        if (n == -EINTR) continue;
        if (n < 0)
            return mox_fail(err, MOX_E_IO, "%s: read error at byte %lld: %s", f->path, (long long)offset, strerror((int)-n));
        if (n == 0)
            return mox_fail(err, MOX_E_IO, "%s: ends at byte %lld, shorter than when it was opened", f->path, (long long)offset);
        at += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return MOX_OK;
}

int64_t mox_file_size_now(const mox_file *f)
{
    struct stat st;
    if (f->fd < 0) return f->size;
    return fstat(f->fd, &st) == 0 ? (int64_t)st.st_size : -1;
}

#if defined(O_DIRECT) && defined(__linux__)
/* Newer kernels open such files for direct reads and read them as ever. */
static bool is_in_memory(int fd)
{
    struct statfs st;
    return fstatfs(fd, &st) == 0 && (st.f_type == TMPFS_MAGIC || st.f_type == RAMFS_MAGIC);
}

/* A descriptor for direct reads of the file that f is, or -errno. */
static int open_direct(const mox_file *f)
{
    _Alignas(4096) char page[4096];
    struct stat now, then;
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    if (fd < 0) return -errno;
    int failure = 0;
    if (fstat(fd, &now) != 0 || fstat(f->fd, &then) != 0) failure = errno;
    else if (now.st_dev != then.st_dev || now.st_ino != then.st_ino) failure = ESTALE;
    else if (is_in_memory(fd)) failure = EOPNOTSUPP;
    /* Some file systems refuse only when it comes to reading. */
    else if (pread(fd, page, sizeof page, 0) < 0 && errno == EINVAL) failure = EINVAL;
    if (failure) {
        close(fd);
        return -failure;
    }
    (void)fcntl(fd, F_SETFL, O_DIRECT); /* only the open must not block */
    return fd;
}
#else
static int open_direct(const mox_file *f)
{
    (void)f;
    return -EOPNOTSUPP;
}
#endif

mox_status mox_file_open_direct(mox_file *out, const mox_file *f, mox_err *err)
{
    *out = MOX_FILE_CLOSED;
    const int failure = f->fd < 0 ? EOPNOTSUPP : mox_io_injected(f->path, "direct");
    const int fd = failure ? -failure : open_direct(f);
    if (fd < 0)
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: cannot be read around the page cache: %s", f->path, strerror(-fd));
    out->fd = fd;
    out->size = f->size;
    out->path = mox_strdup(f->path);
    if (!out->path) {
        mox_file_close(out);
        return mox_fail_memory(err, strlen(f->path) + 1, "a file name");
    }
    return MOX_OK;
}

mox_status mox_file_map(mox_file *f, mox_err *err)
{
    if (f->map || f->size == 0) return MOX_OK;
    int failure = mox_io_injected(f->path, "map");
    void *map = MAP_FAILED;
    if (!failure) {
        map = mmap(NULL, (size_t)f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (map == MAP_FAILED) failure = errno;
    }
    if (failure) return mox_fail(err, MOX_E_IO, "%s: cannot map: %s", f->path, strerror(failure));
    f->map = map;
    return MOX_OK;
}

void mox_file_want_huge_pages(const mox_file *f)
{
#ifdef MADV_HUGEPAGE
    if (f->map && !f->own) (void)madvise(f->map, (size_t)f->size, MADV_HUGEPAGE);
#endif
}

void mox_file_unmap_pages(const mox_file *f)
{
    if (f->map && !f->own) (void)madvise(f->map, (size_t)f->size, MADV_DONTNEED);
}

void mox_file_forget(const mox_file *f)
{
    if (f->fd >= 0) (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
}

void mox_file_map_memory(mox_file *f, void *memory)
{
    drop_map(f);
    f->map = memory;
    f->own = true;
}

static mox_status use_memory(mox_file *f, const char *label, int64_t bytes, void *(*get)(size_t), mox_err *err)
{
    *f = MOX_FILE_CLOSED;
    f->path = mox_strdup(label);
    if (!f->path) return mox_fail_memory(err, strlen(label) + 1, "a file name");
    f->map = get((size_t)bytes);
    if (!f->map) {
        mox_file_close(f);
        return mox_fail_memory(err, (size_t)bytes, label);
    }
    f->size = bytes;
    f->own = true;
    return MOX_OK;
}

mox_status mox_file_memory(mox_file *f, const char *label, int64_t bytes, mox_err *err)
{
    return use_memory(f, label, bytes, mox_alloc_pages, err);
}

mox_status mox_file_reserve(mox_file *f, const char *label, int64_t bytes, mox_err *err)
{
    return use_memory(f, label, bytes, mox_reserve_pages, err);
}

mox_status mox_file_slurp(const char *path, int64_t max_bytes, char **out, size_t *n_bytes, mox_err *err)
{
    *out = NULL;
    mox_file f;
    MOX_TRY(mox_file_open(&f, path, err));
    mox_status status = MOX_OK;
    char *text = NULL;
    if (f.size > max_bytes) {
        status = mox_fail(err, MOX_E_FORMAT, "%s: %lld bytes is over the limit of %lld for such a file", path,
                          (long long)f.size, (long long)max_bytes);
        goto done;
    }
    text = mox_alloc((size_t)f.size + 1);
    if (!text) {
        status = mox_fail_memory(err, (size_t)f.size + 1, path);
        goto done;
    }
    status = mox_file_read_at(&f, 0, text, (size_t)f.size, err);
    if (status != MOX_OK) goto done;
    text[f.size] = '\0';
    *out = text;
    *n_bytes = (size_t)f.size;
    text = NULL;
done:
    mox_free(text);
    mox_file_close(&f);
    return status;
}

bool mox_file_peek(const char *path, char *out, size_t room)
{
    const int fd = mox_io_injected(path, "open") ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    size_t n = 0;
    ssize_t m = 1;
    while (m > 0 && n < room - 1) {
        m = mox_io_injected(path, "read") ? -1 : read(fd, out + n, room - 1 - n);
        if (m > 0) n += (size_t)m;
    }
    out[n] = '\0';
    close(fd);
    return m >= 0;
}

char *mox_path_join(const char *dir, const char *name)
{
    const size_t n = strlen(dir), m = strlen(name);
    const int slash = n > 0 && dir[n - 1] != '/';
    char *path = mox_alloc(n + (size_t)slash + m + 1);
    if (!path) return NULL;
    memcpy(path, dir, n);
    if (slash) path[n] = '/';
    memcpy(path + n + slash, name, m + 1);
    return path;
}

int mox_path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool mox_path_device(const char *path, uint64_t *out)
{
    struct stat st;
    if (stat(path, &st) != 0) return false;
    *out = (uint64_t)st.st_dev;
    return true;
}

/* ---- writing ---- */

static mox_status fail_write(mox_out *o, int failure, mox_err *err)
{
    char after[40] = "";
    if (o->written > 0) (void)snprintf(after, sizeof after, " after %lld bytes", (long long)o->written);
    const mox_status status = mox_fail(err, MOX_E_IO, "%s: cannot write%s: %s", o->path, after, strerror(failure));
    mox_out_discard(o);
    return status;
}

int mox_lock_open(const char *path, int flags, mode_t mode, bool wait)
{
    for (int tries = 0; tries < 1000; tries++) {
        struct stat ours, named;
        const int fd = open(path, flags | O_CLOEXEC, mode);
        if (fd < 0) return -errno;
        int failure = 0;
        while (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0 && (failure = errno) == EINTR) {}
        if (failure != EWOULDBLOCK) failure = fstat(fd, &ours) == 0 ? 0 : errno;
        if (!failure && stat(path, &named) == 0 && named.st_dev == ours.st_dev && named.st_ino == ours.st_ino) return fd;
        close(fd);
        if (failure) return -failure; /* else who held it has replaced it meanwhile */
    }
    return -EWOULDBLOCK;
}

/* The file that nobody else writes, empty; a negative errno: there is none, EWOULDBLOCK: somebody writes it, ENXIO: what
 * is there is no file, or, where it must be our own, another user's. */
static int open_alone(const char *path, bool own)
{
    struct stat st;
    const int flags = O_WRONLY | O_CREAT | O_NONBLOCK; /* a pipe without a reader must not block */
    const int fd = mox_lock_open(path, flags | (own ? O_NOFOLLOW : 0), own ? 0600 : 0666, false);
    if (fd < 0) return fd;
    int failure = fstat(fd, &st) == 0 ? 0 : errno;
    if (!failure && (!S_ISREG(st.st_mode) || (own && st.st_uid != geteuid()))) failure = ENXIO;
    if (!failure && ftruncate(fd, 0) != 0) failure = errno;
    if (!failure) return fd;
    close(fd);
    return -failure;
}

/* Which of the program's own outputs goes to the file of that name (/dev/stdout is one); -1: none. */
static int output_to(const struct stat *file)
{
    struct stat st;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &st) == 0 && st.st_dev == file->st_dev && st.st_ino == file->st_ino) return fd;
    return -1;
}

/* What a file would take the place of is written as it is: devices, pipes and what we write to anyway; a folder, too, which
 * the system refuses at once, and so is what cannot be looked at.  False: path is none of these.  *fd may be a negative
 * errno, EWOULDBLOCK where nobody reads the pipe, which must not be waited for. */
static bool open_in_place(const char *path, int *fd)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno == ENOENT) return false;
        *fd = -errno; /* a link that the system does not follow, say: then neither do we */
        return true;
    }
    const int ours = output_to(&st);
    if (ours < 0 && S_ISREG(st.st_mode)) return false;
    *fd = ours >= 0 ? fcntl(ours, F_DUPFD_CLOEXEC, 0) /* behind what was written there */
                    : open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) *fd = errno == ENXIO && S_ISFIFO(st.st_mode) ? -EWOULDBLOCK : -errno;
    else if (ours < 0) (void)fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) & ~O_NONBLOCK);
    return true;
}

/* The file itself, which may not be there yet, where path is a link to it: renaming would replace the link.  NULL when
 * out of memory. */
static char *follow_links(const char *path)
{
    enum { MOST = 40 }; /* as the system follows */
    char *at = mox_strdup(path), target[4096];
    for (int i = 0; at && i < MOST; i++) {
        const ssize_t n = readlink(at, target, sizeof target);
        if (n <= 0 || (size_t)n == sizeof target) break; /* no link */
        target[n] = '\0';
        char *slash = strrchr(at, '/'), *next = NULL;
        if (target[0] == '/' || !slash) {
            next = mox_strdup(target);
        } else {
            slash[1] = '\0';
            next = mox_path_join(at, target);
        }
        mox_free(at);
        at = next;
    }
    return at;
}

static mox_status fail_open(mox_out *o, int failure, bool in_place, mox_err *err)
{
    if (failure != EWOULDBLOCK && (in_place || failure != ENXIO)) return fail_write(o, failure, err);
    const char *why = failure == ENXIO ? ".part: not a regular file, or another user's; remove it"
                      : in_place       ? ": nobody reads it; start its reader first"
                                       : ": another program is writing it; try again when that is done";
    const mox_status status = mox_fail(err, MOX_E_IO, "%s%s", o->path, why);
    mox_out_discard(o);
    return status;
}

static mox_status open_out(mox_out *o, const char *name, bool durable, mox_err *err)
{
    *o = MOX_OUT_CLOSED;
    o->durable = durable;
    int failure = mox_io_injected(name, "write"), fd = -1;
    const bool in_place = !failure && !durable && open_in_place(name, &fd);
    if (fd >= 0) o->fd = fd;
    o->path = durable || in_place ? mox_strdup(name) : follow_links(name);
    const size_t room = strlen(o->path ? o->path : name) + sizeof ".part";
    char *part = o->path ? mox_alloc(room) : NULL;
    if (!part) {
        mox_out_discard(o);
        return mox_fail_memory(err, room, "a file name");
    }
    (void)snprintf(part, room, "%s.part", o->path);
    if (!failure && !in_place) fd = open_alone(part, durable);
    if (!failure && fd < 0) failure = -fd;
    if (!failure) o->fd = fd;
    if (!failure && !in_place) o->temporary = part;
    else mox_free(part); /* there is none, or it is not ours to remove */
    return failure ? fail_open(o, failure, in_place, err) : MOX_OK;
}

mox_status mox_out_open(mox_out *o, const char *path, mox_err *err) { return open_out(o, path, false, err); }
mox_status mox_out_open_durable(mox_out *o, const char *path, mox_err *err) { return open_out(o, path, true, err); }

mox_status mox_out_write(mox_out *o, const void *bytes, size_t n, mox_err *err)
{
    for (const char *at = bytes; n > 0;) {
        const int failure = mox_io_injected(o->path, "write");
        ssize_t m = -1;
        if (failure) errno = failure;
        else m = write(o->fd, at, n);
        if (m < 0 && errno == EINTR) continue;
        if (m <= 0) return fail_write(o, m < 0 ? errno : EIO, err);
        at += m;
        n -= (size_t)m;
        o->written += m;
    }
    return MOX_OK;
}

/* The name of a file that is on the disk is there, too, when its folder is. */
static void sync_folder_of(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    if (slash && (size_t)(slash - path) >= sizeof folder) return;
    (void)snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    const int fd = open(folder[0] ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    (void)fsync(fd);
    close(fd);
}

mox_status mox_out_commit(mox_out *o, mox_err *err)
{
    int failure = mox_io_injected(o->path, "write");
    if (!failure && o->durable) {
        failure = mox_io_injected(o->path, "sync");
        if (!failure && fsync(o->fd) != 0) failure = errno;
    }
    if (!failure) {
        const int again = dup(o->fd); /* some systems report a full disk when a file is closed; ours stays locked until it has its name */
        if ((again >= 0 && close(again) != 0) || (o->temporary && rename(o->temporary, o->path) != 0)) failure = errno;
    }
    if (failure) return fail_write(o, failure, err);
    close(o->fd);
    if (o->durable) sync_folder_of(o->path);
    mox_free(o->path);
    mox_free(o->temporary);
    *o = MOX_OUT_CLOSED;
    return MOX_OK;
}

void mox_out_discard(mox_out *o)
{
    if (o->temporary && o->path) (void)unlink(o->temporary); /* while it is locked: then it may be another program's */
    if (o->fd >= 0) close(o->fd);
    mox_free(o->path);
    mox_free(o->temporary);
    *o = MOX_OUT_CLOSED;
}

void mox_path_remove(const char *path)
{
    if (!mox_io_injected(path, "remove")) (void)unlink(path);
}

void mox_path_touch(const char *path) { (void)utimensat(AT_FDCWD, path, NULL, 0); }

mox_status mox_lock_take(int *fd, const char *path, mox_err *err)
{
    *fd = -1;
    int failure = mox_io_injected(path, "lock");
    if (!failure) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) != 0) failure = errno;
    }
    if (!failure) return MOX_OK;
    mox_lock_release(fd);
    return mox_fail(err, failure == EWOULDBLOCK ? MOX_E_STATE : MOX_E_IO, "%s: cannot be locked: %s", path,
                    failure == EWOULDBLOCK ? "another process holds it" : strerror(failure));
}

void mox_lock_release(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

mox_status mox_dir_make_private(const char *path, mox_err *err)
{
    struct stat st;
    if (mkdir(path, 0700) == 0) return MOX_OK;
    if (errno != EEXIST) return mox_fail(err, MOX_E_IO, "%s: cannot make the folder: %s", path, strerror(errno));
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return MOX_OK;
    return mox_fail(err, MOX_E_IO, "%s: not a folder", path);
}

mox_status mox_dir_make_empty(const char *path, mox_err *err)
{
    if (mkdir(path, 0777) == 0) return MOX_OK;
    if (errno != EEXIST) return mox_fail(err, MOX_E_IO, "%s: cannot make the folder: %s", path, strerror(errno));
    DIR *d = opendir(path);
    if (!d) return mox_fail(err, MOX_E_IO, "%s: cannot open the folder: %s", path, strerror(errno));
    const struct dirent *entry;
    do entry = readdir(d);
    while (entry && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
    const mox_status status =
        entry ? mox_fail(err, MOX_E_ARG, "%s: not empty (it holds %.200s); name a new folder", path, entry->d_name) : MOX_OK;
    closedir(d);
    return status;
}

int64_t mox_dir_free_bytes(const char *path)
{
    struct statvfs st;
    int64_t bytes;
    if (statvfs(path, &st) != 0 || !mox_mul_i64((int64_t)st.f_bavail, (int64_t)st.f_frsize, &bytes)) return -1;
    return bytes;
}
