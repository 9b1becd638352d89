/* app/server/http_internal.h -- what http.c (calls and libmicrohttpd) and http_watch.c
 * (time and hang-ups) share.
 *
 * Locks: mox_http.lock guards the list of connections and what the watcher reads of them;
 * mox_http_call.lock guards a call's answer and its pointer to the connection.  The first may
 * be held when the second is taken, never the other way round; neither is held while a
 * function of the owner runs. */
#ifndef MOX_APP_SERVER_HTTP_INTERNAL_H
#define MOX_APP_SERVER_HTTP_INTERNAL_H

#include "app/server/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

typedef enum conn_state {
    CONN_IDLE,  /* waits for a request's headers */
    CONN_BODY,  /* for its body */
    CONN_BUSY,  /* the call is handled */
} conn_state;

typedef struct mox_http_conn {
    struct mox_http_conn *next, *before;
    uint64_t serial;
    int fd;
    conn_state state;
    bool first;     /* nothing has been asked yet */
    double since;   /* of the state */
    int64_t body_bytes;
    mox_http_call *call; /* while CONN_BUSY; counted */
    bool doomed;    /* hung up by us */
} mox_http_conn;

struct mox_http {
    mox_http_opts opts;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    pthread_cond_t idle; /* n_busy became 0 */
    mox_http_conn *conns;
    uint64_t serial;
    int n_busy;
    atomic_bool quiet; /* connections end with their next answer */
    int old_listener;  /* at which nobody is heard any more, or -1: threads of the daemon may still look at it */
    atomic_bool stopping;
    atomic_llong body_bytes; /* that all calls hold */

    mox_http_call *first_late, *last_late; /* calls that wait for their turn, by next; counted */
    double window;                         /* of quick answers: since when */
    int n_quick;                           /* in it */

    pthread_t watcher;
    bool watching;
    int epoll, waker, timer; /* descriptors */

    pthread_mutex_t queue_lock;
    pthread_cond_t queue_filled;
    mox_http_call *first, *last; /* for workers */
    pthread_t *workers;
    int n_workers;
    bool queue_closed;
};

struct mox_http_call {
    mox_http *http;
    atomic_int refs;
    mox_http_call *next; /* in the queue of the workers, or among the late */
    char id[MOX_HTTP_ID];
    char *method, *path;
    const void *route;
    double started;
    mox_put body;
    int64_t discarded;
    bool refused; /* answered before its body came, which is read and dropped */
    bool close;   /* the connection does not go on */
    bool http_1_0;
    bool here;    /* handled on the network thread */
    bool late;    /* it had to wait for its turn */

    void *user;
    void (*on_gone)(void *user), (*on_release)(void *user);

    pthread_mutex_t lock;
    struct MHD_Connection *connection; /* NULL when it is over */
    mox_http_conn *conn;
    bool suspended, answered, gone, gone_told;
    int status;
    char problem[MOX_HTTP_PROBLEM];
    const char *type;
    struct {
        const char *name;
        char *value;
    } headers[MOX_HTTP_HEADERS];
    int n_headers;
    bool header_lost; /* for want of memory or room */
    mox_put out;
    const char *fixed; /* instead of out */
    size_t n_fixed;
    bool streaming, ended, whole;
    size_t sent; /* of out, a stream's */
    double last_send, full_since;
    const char *ping;
    double ping_s;
};

mox_status mox_http_watch_start(mox_http *h, mox_err *err);
void mox_http_watch_stop(mox_http *h);
/* From now on the connection of the call is watched; and no longer. */
void mox_http_watch(mox_http *h, mox_http_call *c);
void mox_http_unwatch(mox_http *h, mox_http_conn *conn);

/* On the network thread, before a quick answer: true when there were so many of late that this one waits
 * for its turn; it is asked for again then, once. */
bool mox_http_delay(mox_http_call *c);
/* All that wait have their turn.  With h->stopping set nobody waits any more. */
void mox_http_end_delays(mox_http *h);

/* The client is gone, or as good as: the call is let go of, and its owner told. */
void mox_http_lose(mox_http_call *c);
/* With c->lock held: has the network thread look at the connection again. */
void mox_http_wake(mox_http_call *c);

#endif
