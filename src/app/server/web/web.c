/* web.c -- looks up a file of the web chat; see web.h. */
#include "app/server/web/web.h"

#include <string.h>

const mox_web_file *mox_web_file_find(const char *path)
{
    for (size_t i = 0; i < mox_web_n_files; i++) {
        if (strcmp(mox_web_files[i].path, path) == 0) return &mox_web_files[i];
    }
    return NULL;
}
