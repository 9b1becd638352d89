/* app/server/http_watch.c -- one thread that sees clients hang up and time run out.
 *
 * libmicrohttpd does not look at suspended connections, so their descriptors are in an epoll
 * set of our own while a call is handled; only hang-ups are waited for, never data.  Four
 * times a second the thread goes through all connections: those that take too long to send
 * are shut down, quiet streams get their ping, and streams that nobody reads are given up.
 *
 * Answers that cost next to nothing (/health, refusals) still take the processors away from the model
 * when somebody asks for them without end.  So a few are given at once, and the next ones in turns that
 * are some time apart: enough for everybody who wants to know, and no more of them than that.
 *
 * A descriptor is only touched under the lock while its connection is in the list, from which
 * it goes before it is closed; events carry serial numbers, so a late one finds nobody. */
#include "app/server/http_internal.h"

#include "base/clock.h"

#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { TICK_MS = 250, EVENTS = 64, LOST_AT_ONCE = 64 };
enum { EVENT_STOP, EVENT_TURN }; /* the serial numbers of connections come behind */
enum { QUICK_AT_ONCE = 8, QUICK_PER_TURN = 64, TURN_MS = 40 };
static const double first_headers_s = 10.0, next_headers_s = 85.0, body_s = 60.0, body_bytes_per_s = 16384.0,
                    full_s = 30.0;

/* ---- turns ---- */

static void set_timer(mox_http *h)
{
    const struct itimerspec once = {.it_value.tv_nsec = TURN_MS * 1000000L};
    (void)timerfd_settime(h->timer, 0, &once, NULL);
}

/* Under the lock: whether there is still an answer for this window. */
static bool is_quick(mox_http *h)
{
    const double now = mox_clock_now();
    if (now - h->window > TURN_MS * 1e-3) {
        h->window = now;
        h->n_quick = 0;
    }
    return ++h->n_quick <= QUICK_AT_ONCE;
}

bool mox_http_delay(mox_http_call *c)
{
    mox_http *h = c->http;
    if (c->late) return false;
    c->late = true;
    pthread_mutex_lock(&h->lock);
    const bool waits = !is_quick(h) && !atomic_load(&h->stopping);
    if (waits) {
        pthread_mutex_lock(&c->lock);
        c->suspended = true;
        MHD_suspend_connection(c->connection);
        pthread_mutex_unlock(&c->lock);
        mox_http_keep(c);
        if (h->last_late) h->last_late->next = c;
        else h->first_late = c;
        if (!h->last_late) set_timer(h);
        h->last_late = c;
    }
    pthread_mutex_unlock(&h->lock);
    return waits;
}

/* Takes the first n of the late ones out. */
static mox_http_call *take_late(mox_http *h, int n)
{
    pthread_mutex_lock(&h->lock);
    mox_http_call *first = h->first_late, *last = NULL;
    for (; h->first_late && n > 0; n--) {
        last = h->first_late;
        h->first_late = last->next;
    }
    if (last) last->next = NULL;
    if (!h->first_late) h->last_late = NULL;
    else set_timer(h);
    pthread_mutex_unlock(&h->lock);
    return last ? first : NULL;
}

static void give_turns(mox_http *h, int n)
{
    for (mox_http_call *c = take_late(h, n), *next; c; c = next) {
        next = c->next;
        c->next = NULL;
        pthread_mutex_lock(&c->lock);
        mox_http_wake(c);
        pthread_mutex_unlock(&c->lock);
        mox_http_release(c);
    }
}

void mox_http_end_delays(mox_http *h) { give_turns(h, INT_MAX); }

static void next_turn(mox_http *h)
{
    uint64_t times;
    if (read(h->timer, &times, sizeof times) == (ssize_t)sizeof times) give_turns(h, QUICK_PER_TURN);
}

/* ---- hang-ups ---- */

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
    if (c->streaming && !c->ended && !c->gone && c->ping && now - c->last_send >= c->ping_s &&
        c->sent == c->out.w.n) {
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
            given_up = true; /* its socket is full: nobody would look at it before idle ones are closed */
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
            if (events[i].data.u64 == EVENT_STOP) return NULL;
            if (events[i].data.u64 == EVENT_TURN) next_turn(h);
            else hung_up(h, events[i].data.u64);
        }
        if (mox_clock_now() < next) continue;
        tick(h);
        next = mox_clock_now() + TICK_MS * 1e-3;
    }
}

mox_status mox_http_watch_start(mox_http *h, mox_err *err)
{
    struct epoll_event stop = {.events = EPOLLIN, .data.u64 = EVENT_STOP},
                       turn = {.events = EPOLLIN, .data.u64 = EVENT_TURN};
    h->serial = EVENT_TURN;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (h->epoll < 0 || h->waker < 0 || h->timer < 0 ||
        epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->waker, &stop) != 0 ||
        epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->timer, &turn) != 0)
        return mox_fail(err, MOX_E_IO, "the server has no file descriptors left to watch connections with");
    h->watching = pthread_create(&h->watcher, NULL, watch, h) == 0;
    return h->watching ? MOX_OK : mox_fail(err, MOX_E_MEMORY, "the server could not start a thread");
}

void mox_http_watch_stop(mox_http *h)
{
    const uint64_t one = 1;
    if (h->watching && write(h->waker, &one, sizeof one) == (ssize_t)sizeof one)
        pthread_join(h->watcher, NULL);
    h->watching = false;
    if (h->epoll >= 0) (void)close(h->epoll);
    if (h->waker >= 0) (void)close(h->waker);
    if (h->timer >= 0) (void)close(h->timer);
}
