/* base/folder.h -- folders and the names in them: what lies there, what a link leads
 * to, and second names for files.  Contents go through base/file.h. */
#ifndef MOX_BASE_FOLDER_H
#define MOX_BASE_FOLDER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mox_folder {
    char **names; /* sorted */
    size_t n;
} mox_folder;

/* Everything in the folder but "." and "..". */
mox_status mox_folder_list(mox_folder *out, const char *path, mox_err *err);
void mox_folder_deinit(mox_folder *f);

/* The path without links, owned by the caller (mox_free); NULL when nothing is there.
 * Of a path that is yet to be made, only the last component may be missing. */
char *mox_path_real(const char *path);

/* Size and time of the last change of a regular file, links followed; false when there
 * is none. */
bool mox_path_stat(const char *path, int64_t *bytes, int64_t *modified_ns);

/* A second name for a file, in place of a file of that name; false where the file
 * system cannot, and then `to` does not exist. */
bool mox_path_link(const char *from, const char *to);

#endif
