/* base/file.c -- POSIX files behind mox_file. */
#include "base/file.h"

#include "base/alloc.h"
#include "base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static mox_io_hook *io_hook;
static void *io_hook_user;

void mox_io_set_hook(mox_io_hook *hook, void *user)
{
    io_hook = hook;
    io_hook_user = user;
}

/* The errno that a test wants to see here, or 0. */
static int injected(const char *path, const char *what)
{
    return io_hook ? io_hook(io_hook_user, path, what) : 0;
}

mox_status mox_file_open(mox_file *f, const char *path, mox_err *err)
{
    *f = MOX_FILE_CLOSED;
    int failure = injected(path, "open");
    if (!failure) {
        f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not block */
        if (f->fd < 0) failure = errno;
    }
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
    f->size = (int64_t)st.st_size;
    f->path = mox_strdup(path);
    if (!f->path) {
        mox_file_close(f);
        return mox_fail_memory(err, strlen(path) + 1, "a file name");
    }
    return MOX_OK;
}

void mox_file_close(mox_file *f)
{
    if (f->map) munmap(f->map, (size_t)f->size);
    if (f->fd >= 0) close(f->fd);
    mox_free(f->path);
    *f = MOX_FILE_CLOSED;
}

mox_status mox_file_read_at(const mox_file *f, int64_t offset, void *dst, size_t bytes, mox_err *err)
{
    if (offset < 0 || offset > f->size || bytes > (uint64_t)(f->size - offset))
        return mox_fail(err, MOX_E_FORMAT, "%s: needs bytes %lld to %llu but the file has %lld (incomplete download?)",
                        f->path, (long long)offset, (unsigned long long)offset + bytes, (long long)f->size);
    char *at = dst;
    while (bytes > 0) {
        const int failure = injected(f->path, "read");
        ssize_t n = -1;
        if (failure) errno = failure;
        else n = pread(f->fd, at, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return mox_fail(err, MOX_E_IO, "%s: read error at byte %lld: %s", f->path, (long long)offset, strerror(errno));
        if (n == 0)
            return mox_fail(err, MOX_E_IO, "%s: ends at byte %lld, shorter than when it was opened", f->path, (long long)offset);
        at += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return MOX_OK;
}

mox_status mox_file_map(mox_file *f, mox_err *err)
{
    if (f->map || f->size == 0) return MOX_OK;
    int failure = injected(f->path, "map");
    void *map = MAP_FAILED;
    if (!failure) {
        map = mmap(NULL, (size_t)f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (map == MAP_FAILED) failure = errno;
    }
    if (failure) return mox_fail(err, MOX_E_IO, "%s: cannot map: %s", f->path, strerror(failure));
    f->map = map;
    return MOX_OK;
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
