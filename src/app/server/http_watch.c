/* app/server/http_watch.c -- one thread that sees clients hang up and time run out.
 *
 * libmicrohttpd does not look at suspended connections, so their descriptors are in an epoll
 * set of our own while a call is handled; only hang-ups are waited for, never data.  Four
 * times a second the thread goes through all connections: those that take too long to send
 * are shut down, quiet streams get their ping, and streams that nobody reads are given up.
 *
 * A descriptor is only touched under the lock while its connection is in the list, from which
 * it goes before it is closed; events carry serial numbers, so a late one finds nobody. */
#include "app/server/http_internal.h"

#include "base/clock.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TICK_MS = 250, EVENTS = 64, LOST_AT_ONCE = 64 };
static const double first_headers_s = 10.0, next_headers_s = 85.0, body_s = 60.0, body_bytes_per_s = 16384.0, full_s = 30.0;

void mox_http_watch(mox_http *h, mox_http_call *c)
{
    pthread_mutex_lock(&h->lock);
    mox_http_conn *conn = c->conn;
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = conn->serial};
    conn->state = CONN_BUSY;
    conn->since = mox_clock_now();
    conn->call = c;
    mox_http_keep(c);
    (void)epoll_ctl(h->epoll, EPOLL_CTL_ADD, conn->fd, &e);
    pthread_mutex_unlock(&h->lock);
}

void mox_http_unwatch(mox_http *h, mox_http_conn *conn)
{
    pthread_mutex_lock(&h->lock);
    mox_http_call *c = conn->call;
    conn->call = NULL;
    if (c) (void)epoll_ctl(h->epoll, EPOLL_CTL_DEL, conn->fd, NULL);
    pthread_mutex_unlock(&h->lock);
    mox_http_release(c);
}

static void hung_up(mox_http *h, uint64_t serial)
{
    mox_http_call *c = NULL;
    pthread_mutex_lock(&h->lock);
    for (mox_http_conn *conn = h->conns; conn; conn = conn->next)
        if (conn->serial == serial) c = conn->call;
    if (c) mox_http_keep(c);
    pthread_mutex_unlock(&h->lock);
    if (!c) return;
    mox_http_lose(c);
    mox_http_release(c);
}

/* Whether the stream's reader has to be given up, or was and its owner does not know yet. */
static bool look_at_stream(mox_http_call *c, double now)
{
    pthread_mutex_lock(&c->lock);
    const bool lost = (c->gone && !c->gone_told) || (c->full_since > 0.0 && now - c->full_since > full_s);
    if (c->streaming && !c->ended && !c->gone && c->ping && now - c->last_send >= c->ping_s && c->sent == c->out.w.n) {
        mox_put_raw(&c->out, c->ping, strlen(c->ping));
        c->last_send = now;
        mox_http_wake(c);
    }
    pthread_mutex_unlock(&c->lock);
    return lost;
}

static bool is_late(const mox_http_conn *conn, double now)
{
    const double waited = now - conn->since;
    switch (conn->state) {
    case CONN_IDLE: return waited > (conn->first ? first_headers_s : next_headers_s);
    case CONN_BODY: return waited > body_s + (double)conn->body_bytes / body_bytes_per_s;
    case CONN_BUSY: return false;
    }
    return false;
}

static void tick(mox_http *h)
{
    mox_http_call *lost[LOST_AT_ONCE];
    int n = 0;
    const double now = mox_clock_now();
    pthread_mutex_lock(&h->lock);
    for (mox_http_conn *conn = h->conns; conn; conn = conn->next) {
        bool given_up = false;
        if (conn->call && look_at_stream(conn->call, now) && n < LOST_AT_ONCE) {
            lost[n++] = conn->call;
            mox_http_keep(conn->call);
            given_up = true; /* its socket is full: nobody would look at it again before the time for idle ones is over */
        }
        if (conn->doomed || !(given_up || is_late(conn, now))) continue;
        conn->doomed = true;
        (void)shutdown(conn->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < n; i++) {
        mox_http_lose(lost[i]);
        mox_http_release(lost[i]);
    }
}

static void *watch(void *user)
{
    mox_http *h = user;
    struct epoll_event events[EVENTS];
    double next = mox_clock_now();
    for (;;) {
        const int n = epoll_wait(h->epoll, events, EVENTS, TICK_MS);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 0) return NULL; /* the waker */
            hung_up(h, events[i].data.u64);
        }
        if (mox_clock_now() < next) continue;
        tick(h);
        next = mox_clock_now() + TICK_MS * 1e-3;
    }
}

mox_status mox_http_watch_start(mox_http *h, mox_err *err)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0};
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->epoll < 0 || h->waker < 0 || epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->waker, &e) != 0)
        return mox_fail(err, MOX_E_IO, "the server has no file descriptors left to watch connections with");
    h->watching = pthread_create(&h->watcher, NULL, watch, h) == 0;
    return h->watching ? MOX_OK : mox_fail(err, MOX_E_MEMORY, "the server could not start a thread");
}

void mox_http_watch_stop(mox_http *h)
{
    const uint64_t one = 1;
    if (h->watching && write(h->waker, &one, sizeof one) == (ssize_t)sizeof one) pthread_join(h->watcher, NULL);
    h->watching = false;
    if (h->epoll >= 0) (void)close(h->epoll);
    if (h->waker >= 0) (void)close(h->waker);
}
