/* base/folder.c -- POSIX folders, see folder.h. */
#include "base/folder.h"

#include "base/alloc.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static mox_status add_name(mox_folder *f, const char *name, mox_err *err)
{
    char **grown = mox_realloc_array(f->names, f->n + 1, sizeof *grown);
    if (!grown) return mox_fail_memory(err, (f->n + 1) * sizeof *grown, "the list of files");
    f->names = grown;
    grown[f->n] = mox_strdup(name);
    if (!grown[f->n]) return mox_fail_memory(err, strlen(name) + 1, "a file name");
    f->n++;
    return MOX_OK;
}

mox_status mox_folder_list(mox_folder *out, const char *path, mox_err *err)
{
    *out = (mox_folder){0};
    DIR *d = opendir(path);
    if (!d)
        return mox_fail(err, errno == ENOENT || errno == ENOTDIR ? MOX_E_NOT_FOUND : MOX_E_IO,
                        "%s: cannot open the folder: %s", path, strerror(errno));
    const struct dirent *entry;
    mox_status status = MOX_OK;
    while (status == MOX_OK && (entry = readdir(d)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = add_name(out, entry->d_name, err);
    closedir(d);
    if (status != MOX_OK) mox_folder_deinit(out);
    else if (out->n > 0) qsort(out->names, out->n, sizeof *out->names, by_text);
    return status;
}

void mox_folder_deinit(mox_folder *f)
{
    for (size_t i = 0; i < f->n; i++) mox_free(f->names[i]);
    mox_free(f->names);
    *f = (mox_folder){0};
}

char *mox_path_real(const char *path)
{
    char real[PATH_MAX];
    if (realpath(path, real)) return mox_strdup(real);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t last = n; /* where the last component begins */
    while (last > 0 && path[last - 1] != '/') last--;
    char *parent = last > 0 ? mox_strndup(path, last) : mox_strdup(".");
    char *name = mox_strndup(path + last, n - last);
    char *joined = parent && name && realpath(parent, real) ? mox_path_join(real, name) : NULL;
    mox_free(parent);
    mox_free(name);
    return joined;
}

bool mox_path_stat(const char *path, int64_t *bytes, int64_t *modified_ns)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    *bytes = (int64_t)st.st_size;
    *modified_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return true;
}

bool mox_path_link(const char *from, const char *to)
{
    (void)unlink(to);
    return linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0;
}
