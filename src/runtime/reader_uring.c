/* runtime/reader_uring.c -- the reader's engine for io_uring: one thread that keeps up to
 * `depth` reads under way.
 *
 * The thread sleeps in one place only, waiting for completions.  So that new jobs reach it
 * there, a read of an event counter is always under way, too, and waking writes to the
 * counter.  Reads through the page cache would be copied by this thread while it submits
 * them; they are handed to the kernel's own threads.
 *
 * I1  when the thread sleeps without having counted itself idle, all places are taken, so a
 *     completion comes without being asked for.
 * I2  the thread ends when nothing is under way, not even the read of the counter, so the
 *     kernel writes to no memory of ours afterwards. */
#include "runtime/reader_internal.h"

#include "base/alloc.h"
#include "base/size.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { WAKE = -1 }; /* user data of the read of the counter; others are places */

typedef struct place {
    mox_read_piece piece;
    int said; /* by the hook of base/file.h about the read under way */
} place;

typedef struct uring {
    struct io_uring ring;
    pthread_t thread;
    int counter; /* event counter */
    uint64_t count;
    bool listening; /* the read of the counter is under way */
    place *places; /* [depth] */
    int *unused;   /* [depth], of which n_unused are places without a piece */
    int n_unused;
} uring;

/* Never without an entry: the ring has one for every place and for the counter. */
static struct io_uring_sqe *prepare_read(uring *u, int fd, void *dst, size_t bytes, int64_t offset, int64_t user)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    io_uring_prep_read(sqe, fd, dst, (unsigned)bytes, (uint64_t)offset);
    io_uring_sqe_set_data64(sqe, (uint64_t)user);
    return sqe;
}

static void listen_for_wake(uring *u)
{
    (void)prepare_read(u, u->counter, &u->count, sizeof u->count, 0, WAKE);
    u->listening = true;
}

static void finish(mox_reader *r, uring *u, int i)
{
    u->unused[u->n_unused++] = i;
    pthread_mutex_lock(&r->lock);
    mox_reader_finish(r, &u->places[i].piece);
    pthread_mutex_unlock(&r->lock);
}

/* Asks the kernel for what the piece still misses, or finishes it when there is no need to. */
static void begin(mox_reader *r, uring *u, int i)
{
    mox_read_piece *p = &u->places[i].piece;
    int64_t n;
    do {
        const size_t bytes = (size_t)(p->stop - p->from);
        if (p->file->fd < 0) n = mox_file_read_some(p->file, p->from, p->dst, bytes); /* memory of our own */
        else {
            const int said = u->places[i].said = mox_io_injected(p->file->path, "read");
            if (said <= 0) {
                struct io_uring_sqe *sqe = prepare_read(u, p->file->fd, p->dst, bytes, p->from, i);
                if (!p->direct) io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
                return;
            }
            n = -said;
        }
    } while (!mox_read_piece_advance(p, n));
    finish(r, u, i);
}

/* Begins pieces until there are none or all places are taken.  False: it is time to end. */
static bool fill(mox_reader *r, uring *u)
{
    pthread_mutex_lock(&r->lock);
    r->n_idle = 0;
    while (!r->stop && u->n_unused > 0) {
        const int i = u->unused[u->n_unused - 1];
        if (!mox_reader_take(r, &u->places[i].piece)) {
            r->n_idle = 1; /* I1 */
            break;
        }
        u->n_unused--;
        pthread_mutex_unlock(&r->lock);
        begin(r, u, i); /* the hook may take its time */
        pthread_mutex_lock(&r->lock);
    }
    const bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    if (!u->listening && !stop) listen_for_wake(u);
    return !stop || u->listening || u->n_unused < r->depth; /* I2 */
}

static void completed(mox_reader *r, uring *u, int64_t user, int64_t n)
{
    if (user == WAKE) {
        u->listening = false;
        return;
    }
    place *at = &u->places[user];
    if (at->said < 0) n = mox_min_i64(n, -(int64_t)at->said);
    if (mox_read_piece_advance(&at->piece, n)) finish(r, u, (int)user);
    else begin(r, u, (int)user);
}

static void *work(void *user)
{
    mox_reader *r = user;
    uring *u = r->state;
    while (fill(r, u)) {
        const int n = io_uring_submit_and_wait(&u->ring, 1);
        /* Out of memory or of room for completions: both pass. */
        if (n < 0 && n != -EINTR) (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
            const int64_t who = (int64_t)io_uring_cqe_get_data64(cqe), result = cqe->res;
            io_uring_cqe_seen(&u->ring, cqe);
            completed(r, u, who, result);
        }
    }
    return NULL;
}

static void uring_wake(mox_reader *r) { (void)eventfd_write(((uring *)r->state)->counter, 1); }

static void release(uring *u)
{
    if (u->counter >= 0) close(u->counter);
    mox_free(u->places);
    mox_free(u->unused);
    mox_free(u);
}

static void uring_stop(mox_reader *r)
{
    uring *u = r->state;
    uring_wake(r);
    pthread_join(u->thread, NULL);
    io_uring_queue_exit(&u->ring);
    release(u);
}

static mox_status uring_start(mox_reader *r, mox_err *err)
{
    uring *u = mox_alloc_array(1, sizeof *u);
    if (!u) return mox_fail_memory(err, sizeof *u, "a ring");
    u->counter = eventfd(0, EFD_CLOEXEC);
    u->places = mox_alloc_array((size_t)r->depth, sizeof *u->places);
    u->unused = mox_alloc_array((size_t)r->depth, sizeof *u->unused);
    int failure = u->counter < 0 ? errno : !u->places || !u->unused ? ENOMEM : 0;
    if (!failure) failure = mox_io_injected("io_uring", "open");
    if (!failure) failure = -io_uring_queue_init((unsigned)r->depth + 1, &u->ring, 0);
    if (failure) {
        release(u);
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s", strerror(failure));
    }
    while (u->n_unused < r->depth) {
        u->unused[u->n_unused] = u->n_unused;
        u->n_unused++;
    }
    r->state = u;
    failure = pthread_create(&u->thread, NULL, work, r);
    if (failure) {
        io_uring_queue_exit(&u->ring);
        release(u);
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s", strerror(failure));
    }
    return MOX_OK;
}

const mox_read_engine mox_read_engine_uring = {uring_start, uring_wake, uring_stop};
