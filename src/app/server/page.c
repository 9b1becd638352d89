/* app/server/page.c -- the web chat: files that are part of the program, under a policy that
 * lets them load nothing from elsewhere. */
#include "app/server/page.h"

#include "app/server/server.h"

#include <string.h>

/* Of a build without the web chat. */
static const char bare[] = "<!doctype html><title>moxie</title>\n<p>moxie is running; its API is at /v1.\n";

static const mox_page_file *find(const char *path)
{
    for (const mox_page_file *f = mox_page_files; f->path; f++)
        if (strcmp(f->path, path) == 0) return f;
    return NULL;
}

bool mox_page_has(const char *path) { return strcmp(path, "/") == 0 || find(path); }

void mox_handle_page(mox_server *s, mox_http_call *c)
{
    (void)s;
    const mox_page_file *f = find(mox_http_path(c));
    mox_http_set_header(c, "Content-Security-Policy", mox_page_policy);
    mox_http_set_header(c, "Referrer-Policy", "no-referrer");
    mox_http_set_header(c, "Cache-Control", "no-cache");
    if (f) mox_http_answer_static(c, 200, f->type, (const char *)f->bytes, f->n);
    else mox_http_answer_static(c, 200, "text/html; charset=utf-8", bare, sizeof bare - 1);
}
