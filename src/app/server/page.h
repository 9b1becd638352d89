/* app/server/page.h -- the files of the web chat, which the build puts into the program. */
#ifndef MOX_APP_SERVER_PAGE_H
#define MOX_APP_SERVER_PAGE_H

#include <stddef.h>

typedef struct mox_page_file {
    const char *path, *type;
    const unsigned char *bytes;
    size_t n;
} mox_page_file;

extern const mox_page_file mox_page_files[]; /* ended by a NULL path */
extern const char mox_page_policy[];         /* Content-Security-Policy */

#endif
