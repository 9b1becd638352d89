/* app/server/http.h -- HTTP/1.1 as the rest of the server sees it, over libmicrohttpd.
 *
 * A connection carries calls one after the other.  A call goes through two functions of the
 * owner: `check` when its headers are there, which may answer at once, and `handle` when its
 * body is whole, on the network thread or on a worker.  The answer may be given then or later,
 * from any thread: whole, or as a stream of pieces.
 *
 * Nobody ever waits for a client.  What a stream's reader does not take piles up; when it is
 * over MOX_HTTP_OUT_MAX for 30 seconds, or twice as much, the client counts as gone.  So does one that
 * hangs up: that is watched for from the moment that a call is handled, because libmicrohttpd
 * does not look at connections that it was told to leave alone.
 *
 * Owns:     the listening socket, its threads (network, watcher, workers), all calls.
 * Refuses:  messages that could be read in two ways (RFC 9112, section 6): both or neither of
 *           Content-Length and Transfer-Encoding with a body, either of them twice, folded or
 *           odd header names, targets that are no path; always by closing the connection.
 * Limits:   bytes of headers and bodies, connections in all and per address, 10 s for the
 *           headers of a first request, 75 s between requests, a least rate for bodies.
 * Calls are counted: `check` and `handle` may use theirs, who wants it longer keeps it. */
#ifndef MOX_APP_SERVER_HTTP_H
#define MOX_APP_SERVER_HTTP_H

#include "app/server/put.h"

#include <stdint.h>

enum { MOX_HTTP_OUT_MAX = 1 << 20, MOX_HTTP_ID = 24, MOX_HTTP_HEADERS = 12, MOX_HTTP_PROBLEM = 512 };

typedef struct mox_http mox_http;
typedef struct mox_http_call mox_http_call;

typedef enum mox_http_where { MOX_HTTP_ANSWERED, MOX_HTTP_INLINE, MOX_HTTP_WORKER } mox_http_where;

typedef struct mox_http_opts {
    int listener;      /* bound, and taken over (listen.h) */
    int64_t body_max;  /* bytes */
    int n_workers;
    /* On the network thread.  MOX_HTTP_ANSWERED: it has been refused.  Must be short. */
    mox_http_where (*check)(void *user, mox_http_call *c);
    void (*handle)(void *user, mox_http_call *c);
    /* The call is over and nobody has it any more; c is good during the function. */
    void (*over)(void *user, mox_http_call *c);
    /* A refusal of http's own, for check's sake of one shape of errors: fills body. */
    void (*refuse)(void *user, mox_http_call *c, int status, const char *sentence);
    void *user;
} mox_http_opts;

mox_status mox_http_start(mox_http **out, const mox_http_opts *opts, mox_err *err);
/* No new connections, and each there is ends with its next answer. */
void mox_http_quiesce(mox_http *h);
/* Waits until no call is under way; false when it takes longer. */
bool mox_http_wait(mox_http *h, double timeout_s);
/* Hangs up on everybody.  Nobody may answer calls any more. */
void mox_http_stop(mox_http **h);
/* Calls under way now. */
int mox_http_busy(mox_http *h);

/* ---- what was asked: good as long as the call ---- */

const char *mox_http_id(const mox_http_call *c); /* unique; letters and digits */
const char *mox_http_method(const mox_http_call *c);
const char *mox_http_path(const mox_http_call *c); /* as it was sent, without the query */
/* NULL when it is not there, or when it is there more than once (*n > 1; n may be NULL).  In check only. */
const char *mox_http_header(mox_http_call *c, const char *name, int *n);
const char *mox_http_body(const mox_http_call *c, size_t *n);
double mox_http_started(const mox_http_call *c); /* mox_clock_now() when its headers were there */

/* A pointer of the owner's, and two functions: the client is gone (once, from any thread, while
 * the call is still there); the call is. */
void mox_http_attach(mox_http_call *c, void *user, void (*gone)(void *user), void (*release)(void *user));
void *mox_http_attached(const mox_http_call *c);
const void *mox_http_route(const mox_http_call *c); /* what check has found out */
void mox_http_set_route(mox_http_call *c, const void *route);

void mox_http_keep(mox_http_call *c);
void mox_http_release(mox_http_call *c);

/* ---- the answer ---- */

/* Before the answer; name must live on, value is copied. */
void mox_http_set_header(mox_http_call *c, const char *name, const char *value);
/* The whole answer, once; takes the body over.  A body that failed for want of memory becomes a
 * bare 500, and so does any answer that lost one of its headers. */
void mox_http_answer(mox_http_call *c, int status, const char *type, mox_put *body);
/* The same with bytes that live on. */
void mox_http_answer_static(mox_http_call *c, int status, const char *type, const char *bytes, size_t n);
/* A stream: begin once, send, end.  ping is sent whenever nothing else was for ping_s seconds;
 * it must live on. */
void mox_http_stream(mox_http_call *c, int status, const char *type, const char *ping, double ping_s);
void mox_http_send(mox_http_call *c, const char *bytes, size_t n);
/* whole false: the connection is closed so that the client sees that something is missing. */
void mox_http_end(mox_http_call *c, bool whole);

int mox_http_status(const mox_http_call *c); /* of the answer; 0 when there was none */
/* Why it failed, for the log: copied, and the first one stays.  "" when nobody said why. */
void mox_http_set_problem(mox_http_call *c, const char *sentence);
const char *mox_http_problem(const mox_http_call *c); /* when it is over */
bool mox_http_gone(mox_http_call *c);        /* the client is */

#endif
