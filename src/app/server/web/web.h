/* web.h -- the web chat as bytes inside of the program.
 *
 * The page is the files of this folder, as they are: tools/embed turns them into arrays when
 * the program is built, and meson.build beside this lists them.  They refer to each other by
 * path, to nothing outside, and are served with mox_web_policy as their Content-Security-Policy,
 * without a key.  All of it is constant; nothing here allocates.
 */
#ifndef MOX_APP_SERVER_WEB_H
#define MOX_APP_SERVER_WEB_H

#include <stddef.h>

typedef struct {
    const char *path; /* "/" for the page itself, else "/" and the name of the file */
    const char *type; /* for Content-Type */
    const char *etag; /* with its quotes; of the content */
    const unsigned char *bytes;
    size_t n_bytes;
} mox_web_file;

extern const mox_web_file mox_web_files[];
extern const size_t mox_web_n_files;
extern const char mox_web_policy[];

/* The file at a path without its query, or NULL. */
const mox_web_file *mox_web_file_find(const char *path);

#endif
