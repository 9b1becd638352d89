/* app/server/auth.h -- who may ask: keys, names of the host, origins of web pages.
 *
 * Keys are compared in the same time whatever is wrong with one, and are never written
 * anywhere.  The Host header must name this machine, because a web page elsewhere can point a
 * name of its own at it (DNS rebinding).  Origins other than the server's own, localhost and
 * those of --cors-origin are refused. */
#ifndef MOX_APP_SERVER_AUTH_H
#define MOX_APP_SERVER_AUTH_H

#include "app/cli/options.h"
#include "app/server/http.h"
#include "app/server/listen.h"
#include "app/server/problem.h"

typedef struct mox_auth {
    char **keys; /* owned */
    size_t n_keys;
    const char *const *origins, *const *hosts; /* borrowed from the options */
    int n_origins, n_hosts;
    const mox_listener *listener;
} mox_auth;

/* EXIT_OK, or the exit code after saying what is wrong. */
int mox_auth_init(mox_auth *a, const mox_cli_options *o);
void mox_auth_deinit(mox_auth *a);

/* In check: whether this host may be named and this origin may ask; sets the headers that allow
 * it to.  false: *p says why not. */
bool mox_auth_check_origin(const mox_auth *a, mox_http_call *c, mox_problem *p);
bool mox_auth_check_key(const mox_auth *a, mox_http_call *c, mox_problem *p);

#endif
