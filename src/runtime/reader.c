/* runtime/reader.c -- see reader.h: the queues, and the engine of threads.
 *
 * A range is cut into pieces when they begin and not before, so that a job costs the queue
 * one link however long it is, and all threads work on the oldest urgent job first: whoever
 * waits for an expert waits for all of it.
 *
 * Direct reads want whole pages.  A piece is rounded out to them, which the contract about
 * the caller's memory allows; the last page of a file is short, and that is no failure as
 * long as the range itself is whole. */
#include "runtime/reader_internal.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/size.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IDLE, QUEUED, BEGUN, DONE }; /* states of a job */
enum { MAX_THREADS = 256, MAX_DEPTH = 1024, DEFAULT_THREADS = 8, DEFAULT_DEPTH = 32, DEFAULT_PIECE = 1 << 20 };
enum { RETRIES = 3 };

static int64_t round_down(int64_t n) { return n - n % MOX_READ_ALIGN; }
static int64_t round_up(int64_t n) { return round_down(n + MOX_READ_ALIGN - 1); }

/* ---- lists ---- */

static void append(mox_read_list *l, mox_read_job *job)
{
    job->next = NULL;
    if (l->tail) l->tail->next = job;
    else l->head = job;
    l->tail = job;
}

static void cut_out(mox_read_list *l, mox_read_job *job)
{
    mox_read_job *before = NULL;
    for (mox_read_job *j = l->head; j != job; j = j->next) before = j;
    if (before) before->next = job->next;
    else l->head = job->next;
    if (l->tail == job) l->tail = before;
}

static mox_read_list *list_of(mox_reader *r, const mox_read_job *job)
{
    return job->parked ? &r->parked : job->ahead ? &r->ahead : &r->urgent;
}

/* ---- pieces ---- */

static int32_t count_pieces(const mox_reader *r, const mox_read_range *range)
{
    if (range->bytes == 0) return 0;
    return (int32_t)mox_ceil_div(range->offset + range->bytes - round_down(range->offset), r->piece_bytes);
}

static void skip_empty(mox_read_job *job)
{
    while (job->i_range < job->n_ranges && job->ranges[job->i_range].bytes == 0) job->i_range++;
}

static void cut_piece(const mox_reader *r, const mox_read_job *job, int32_t n_pieces, mox_read_piece *out)
{
    const mox_read_range *range = &job->ranges[job->i_range];
    const bool direct = r->direct[range->file].fd >= 0;
    const int64_t begin = round_down(range->offset), end = range->offset + range->bytes;
    const int64_t step = round_up(mox_ceil_div(end - begin, n_pieces));
    int64_t from = begin + job->i_piece * step;
    const int64_t to = mox_min_i64(from + step, end);
    if (!direct) from = mox_max_i64(from, range->offset);
    *out = (mox_read_piece){.file = direct ? &r->direct[range->file] : &r->files[range->file],
                            .direct = direct,
                            .from = from,
                            .end = to,
                            .stop = direct ? round_up(to) : to,
                            .dst = range->dst + (from - range->offset)};
}

bool mox_reader_take(mox_reader *r, mox_read_piece *out)
{
    mox_read_list *list = r->urgent.head ? &r->urgent : &r->ahead;
    mox_read_job *job = list->head;
    r->called = false; /* I3 */
    if (!job) return false;
    const int32_t n_pieces = count_pieces(r, &job->ranges[job->i_range]);
    cut_piece(r, job, n_pieces, out);
    out->job = job;
    job->n_begun++;
    if (++job->i_piece == n_pieces) {
        job->i_piece = 0;
        job->i_range++;
        skip_empty(job);
        if (job->i_range == job->n_ranges) {
            cut_out(list, job);
            job->state = BEGUN; /* I1 */
        }
    }
    if (r->n_under_way++ == 0) r->busy_since = mox_clock_now();
    return true;
}

bool mox_reader_call(mox_reader *r)
{
    if (r->called || r->n_idle == 0 || (!r->urgent.head && !r->ahead.head)) return false;
    r->n_idle--;      /* I2 */
    r->called = true; /* I3 */
    return true;
}

bool mox_read_piece_advance(mox_read_piece *p, int64_t n)
{
    p->n_reads++;
    if (n == -EINTR) return false;
    if (n < 0) {
        p->failure = (int)-n;
        return ++p->n_failed > RETRIES;
    }
    p->n_bytes += n;
    p->failure = 0;
    if (p->from + n >= p->end) return true;
    const int64_t step = p->direct ? round_down(n) : n; /* the next read begins on a page again */
    p->from += step;
    p->dst += step;
    if (step > 0) return false;
    const int64_t size = mox_file_size_now(p->file);
    p->failure = size >= 0 && size < p->end ? MOX_READ_CUT_SHORT : MOX_READ_TOO_LITTLE;
    return p->failure == MOX_READ_CUT_SHORT || ++p->n_failed > RETRIES;
}

/* ---- jobs ---- */

static void complete(mox_reader *r, mox_read_job *job)
{
    job->state = DONE;
    job->done_s = mox_clock_now();
    append(&r->done, job);
    pthread_cond_signal(&r->done_cond);
}

static void describe_failure(mox_read_job *job, const mox_read_piece *p)
{
    const char *path = p->file->path;
    if (p->failure == MOX_READ_CUT_SHORT) {
        job->status = mox_fail(&job->err, MOX_E_IO,
                               "%s: was cut short while running: byte %lld is behind its end; restore the file", path,
                               (long long)p->end - 1);
        return;
    }
    const char *why =
        p->failure == MOX_READ_TOO_LITTLE ? "fewer bytes came than the file has" : strerror(p->failure);
    job->status = mox_fail(&job->err, MOX_E_IO, "%s: read error at byte %lld, %d times: %s", path, (long long)p->from,
                           p->n_failed, why);
}

void mox_reader_finish(mox_reader *r, const mox_read_piece *p)
{
    mox_read_job *job = p->job;
    job->n_done++;
    r->stats.reads += p->n_reads;
    r->stats.bytes += p->n_bytes;
    if (--r->n_under_way == 0) r->stats.busy_s += mox_clock_now() - r->busy_since;
    if (p->failure && job->status == MOX_OK) {
        describe_failure(job, p);
        if (job->state == QUEUED) { /* the rest of it is of no use any more */
            cut_out(list_of(r, job), job);
            job->state = BEGUN; /* I1 */
        }
    }
    if (job->state == BEGUN && job->n_done == job->n_begun) complete(r, job);
}

/* Pieces of the job, or -1 when it cannot be right, which its err then says. */
static int64_t check_job(const mox_reader *r, mox_read_job *job)
{
    int64_t n_pieces = 0;
    for (int32_t i = 0; i < job->n_ranges; i++) {
        const mox_read_range *range = &job->ranges[i];
        const bool file = range->file >= 0 && range->file < r->n_files;
        if (!file || range->offset < 0 || range->bytes < 0 || range->offset > r->files[range->file].size ||
            range->bytes > r->files[range->file].size - range->offset) {
            job->status = mox_fail(&job->err, MOX_E_ARG, "range %d: %lld bytes at %lld are not in file %d%s%s", (int)i,
                                   (long long)range->bytes, (long long)range->offset, (int)range->file,
                                   file ? ": " : "", file ? r->files[range->file].path : "");
            return -1;
        }
        if (((uintptr_t)range->dst - (uint64_t)range->offset) % MOX_READ_ALIGN != 0) {
            job->status = mox_fail(&job->err, MOX_E_ARG,
                                   "range %d: its memory and offset %lld differ within a page of %d bytes", (int)i,
                                   (long long)range->offset, MOX_READ_ALIGN);
            return -1;
        }
        n_pieces += count_pieces(r, range);
    }
    return n_pieces;
}

void mox_reader_submit(mox_reader *r, mox_read_job *job)
{
    job->status = MOX_OK;
    job->err = (mox_err){0};
    job->n_begun = job->n_done = job->i_range = job->i_piece = 0;
    job->parked = false;
    const int64_t n_pieces = check_job(r, job);
    pthread_mutex_lock(&r->lock);
    r->n_outstanding++;
    if (n_pieces <= 0) complete(r, job);
    else {
        skip_empty(job);
        job->state = QUEUED; /* I1 */
        append(list_of(r, job), job);
    }
    const bool call = mox_reader_call(r);
    pthread_mutex_unlock(&r->lock);
    if (call) r->engine->wake(r);
}

/* Of a job that waits, to another list unless it is there; a thread wakes up for it: parked jobs are no reason to be awake. */
static void move(mox_reader *r, mox_read_job *job, bool ahead)
{
    pthread_mutex_lock(&r->lock);
    if (job->state == QUEUED && (job->parked || job->ahead != ahead)) {
        cut_out(list_of(r, job), job);
        append(ahead ? &r->ahead : &r->urgent, job);
    }
    job->ahead = ahead;
    job->parked = false;
    const bool call = mox_reader_call(r);
    pthread_mutex_unlock(&r->lock);
    if (call) r->engine->wake(r);
}

void mox_reader_hurry(mox_reader *r, mox_read_job *job) { move(r, job, false); }
void mox_reader_unpark(mox_reader *r, mox_read_job *job) { move(r, job, job->ahead); }

void mox_reader_park(mox_reader *r)
{
    pthread_mutex_lock(&r->lock);
    mox_read_list all = r->ahead;
    r->ahead = (mox_read_list){0};
    for (mox_read_job *job; (job = all.head);) {
        cut_out(&all, job);
        job->parked = job->n_begun == 0;
        append(list_of(r, job), job);
    }
    pthread_mutex_unlock(&r->lock);
}

bool mox_reader_withdraw(mox_reader *r, mox_read_job *job)
{
    pthread_mutex_lock(&r->lock);
    const bool ours = job->state == QUEUED && job->n_begun == 0;
    if (ours) {
        cut_out(list_of(r, job), job);
        job->state = IDLE;
        if (--r->n_outstanding == 0) pthread_cond_broadcast(&r->done_cond);
    }
    pthread_mutex_unlock(&r->lock);
    return ours;
}

mox_read_job *mox_reader_wait(mox_reader *r, double timeout_s)
{
    const struct timespec deadline = mox_clock_at(mox_clock_now() + fmin(fmax(timeout_s, 0.0), 1e8));
    pthread_mutex_lock(&r->lock);
    int failure = timeout_s > 0.0 ? 0 : ETIMEDOUT;
    while (!r->done.head && r->n_outstanding > 0 && failure != ETIMEDOUT)
        failure = pthread_cond_timedwait(&r->done_cond, &r->lock, &deadline);
    mox_read_job *job = r->done.head;
    if (job) {
        cut_out(&r->done, job);
        job->state = IDLE;
        if (--r->n_outstanding == 0) pthread_cond_broadcast(&r->done_cond);
    }
    pthread_mutex_unlock(&r->lock);
    return job;
}

void mox_reader_get_stats(mox_reader *r, mox_reader_stats *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    if (r->n_under_way > 0) out->busy_s += mox_clock_now() - r->busy_since;
    pthread_mutex_unlock(&r->lock);
}

/* ---- threads ---- */

typedef struct threads {
    pthread_cond_t work;
    int n;
    pthread_t ids[MAX_THREADS];
} threads;

static void threads_wake(mox_reader *r) { pthread_cond_signal(&((threads *)r->state)->work); }

static void *work(void *user)
{
    mox_reader *r = user;
    threads *t = r->state;
    mox_read_piece p;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!mox_reader_take(r, &p)) {
            r->n_idle++; /* I2 */
            pthread_cond_wait(&t->work, &r->lock);
            continue;
        }
        const bool call = mox_reader_call(r);
        pthread_mutex_unlock(&r->lock);
        if (call) threads_wake(r);
        int64_t n;
        do n = mox_file_read_some(p.file, p.from, p.dst, (size_t)(p.stop - p.from));
        while (!mox_read_piece_advance(&p, n));
        pthread_mutex_lock(&r->lock);
        mox_reader_finish(r, &p);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void threads_stop(mox_reader *r)
{
    threads *t = r->state;
    pthread_cond_broadcast(&t->work);
    for (int i = 0; i < t->n; i++) pthread_join(t->ids[i], NULL);
    pthread_cond_destroy(&t->work);
    mox_free(t);
}

static mox_status threads_start(mox_reader *r, mox_err *err)
{
    threads *t = mox_alloc_array(1, sizeof *t);
    if (!t) return mox_fail_memory(err, sizeof *t, "the threads that read");
    pthread_cond_init(&t->work, NULL);
    r->state = t;
    int failure = 0;
    while (t->n < r->n_threads && (failure = pthread_create(&t->ids[t->n], NULL, work, r)) == 0) t->n++;
    if (t->n > 0) return MOX_OK; /* fewer than asked for read as well */
    threads_stop(r);
    return mox_fail(err, MOX_E_MEMORY, "no thread for reading can be started: %s", strerror(failure));
}

static const mox_read_engine engine_threads = {threads_start, threads_wake, threads_stop};

/* ---- life ---- */

static mox_status open_direct(mox_reader *r, const mox_reader_opts *opts, mox_err *err)
{
    mox_err why;
    for (int32_t i = 0; i < r->n_files; i++) {
        if (r->files[i].fd < 0) continue; /* memory of our own */
        const mox_status status =
            opts->buffered ? MOX_E_UNSUPPORTED : mox_file_open_direct(&r->direct[i], &r->files[i], &why);
        if (status == MOX_E_MEMORY) return mox_fail(err, status, "%s", why.msg);
        if (status == MOX_OK || r->n_buffered++ > 0 || opts->buffered || !opts->warn) continue;
        char sentence[sizeof why.msg + 64];
        (void)snprintf(sentence, sizeof sentence, "%s; the system's cache of files will compete for memory", why.msg);
        opts->warn(opts->warn_user, sentence);
    }
    return MOX_OK;
}

static mox_status start_engine(mox_reader *r, const mox_reader_opts *opts, mox_err *err)
{
    if (opts->uring) {
        mox_err why = {.msg = "this build has none"};
#ifdef MOX_HAVE_URING
        r->engine = &mox_read_engine_uring;
        if (r->engine->start(r, &why) == MOX_OK) {
            r->stats.uring = true;
            return MOX_OK;
        }
#endif
        char sentence[sizeof why.msg + 64];
        (void)snprintf(sentence, sizeof sentence, "io_uring: %s; reading with threads instead", why.msg);
        if (opts->warn) opts->warn(opts->warn_user, sentence);
    }
    r->engine = &engine_threads;
    const mox_status status = r->engine->start(r, err);
    if (status != MOX_OK) r->engine = NULL;
    return status;
}

static mox_status check_opts(const mox_reader_opts *o, mox_err *err)
{
    if (o->n_threads < 0 || o->n_threads > MAX_THREADS)
        return mox_fail(err, MOX_E_ARG, "reading threads: %d is not between 0 and %d", o->n_threads, MAX_THREADS);
    if (o->depth < 0 || o->depth > MAX_DEPTH)
        return mox_fail(err, MOX_E_ARG, "reads under way: %d is not between 0 and %d", o->depth, MAX_DEPTH);
    if (o->piece_bytes < 0 || o->piece_bytes > INT32_MAX)
        return mox_fail(err, MOX_E_ARG, "bytes of a read: %lld is not between 0 and 2 GiB", (long long)o->piece_bytes);
    return MOX_OK;
}

mox_status mox_reader_open(mox_reader **out, const mox_file *files, int32_t n_files, const mox_reader_opts *opts,
                           mox_err *err)
{
    static const mox_reader_opts defaults;
    *out = NULL;
    if (!opts) opts = &defaults;
    MOX_TRY(check_opts(opts, err));
    mox_reader *r = mox_alloc_array(1, sizeof *r);
    if (!r) return mox_fail_memory(err, sizeof *r, "a reader of files");
    r->files = files;
    r->n_threads = opts->n_threads ? opts->n_threads : DEFAULT_THREADS;
    r->depth = opts->depth ? opts->depth : DEFAULT_DEPTH;
    r->piece_bytes = opts->piece_bytes ? mox_max_i64(round_down(opts->piece_bytes), MOX_READ_ALIGN) : DEFAULT_PIECE;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->done_cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    mox_status status = MOX_OK;
    r->direct = mox_alloc_array((size_t)n_files, sizeof *r->direct);
    if (!r->direct) status = mox_fail_memory(err, (size_t)n_files * sizeof *r->direct, "descriptors");
    else
        for (r->n_files = 0; r->n_files < n_files; r->n_files++) r->direct[r->n_files] = MOX_FILE_CLOSED;
    if (status == MOX_OK) status = open_direct(r, opts, err);
    r->stats.n_buffered = r->n_buffered;
    if (status == MOX_OK) status = start_engine(r, opts, err);
    if (status == MOX_OK) *out = r;
    else mox_reader_close(&r);
    return status;
}

static void cancel_all(mox_read_list *l)
{
    for (mox_read_job *job; (job = l->head);) {
        cut_out(l, job);
        job->state = BEGUN; /* I1: parts of it may be under way */
        if (job->status == MOX_OK)
            job->status = mox_fail(&job->err, MOX_E_CANCELLED, "the reader was closed before this was read");
    }
}

void mox_reader_close(mox_reader **reader)
{
    mox_reader *r = *reader;
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    cancel_all(&r->urgent);
    cancel_all(&r->ahead);
    cancel_all(&r->parked);
    pthread_mutex_unlock(&r->lock);
    if (r->engine) r->engine->stop(r);
    for (int32_t i = 0; i < r->n_files; i++) mox_file_close(&r->direct[i]);
    mox_free(r->direct);
    pthread_cond_destroy(&r->done_cond);
    pthread_mutex_destroy(&r->lock);
    mox_free(r);
    *reader = NULL;
}
