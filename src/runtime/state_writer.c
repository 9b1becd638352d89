/* runtime/state_writer.c -- see state_writer.h. */
#include "runtime/state_writer.h"

#include "base/clock.h"
#include "base/err.h"

#include <string.h>

static const double retry_s = 0.25;

/* Under the mutex, which nobody waits for while it tries. */
static void get_ready(mox_state_writer *w)
{
    while (!w->quit && !w->ready) {
        (void)pthread_mutex_unlock(&w->mutex);
        const bool taken = w->take(w->take_user);
        (void)pthread_mutex_lock(&w->mutex);
        w->ready = taken;
        const struct timespec until = mox_clock_at(mox_clock_now() + retry_s);
        while (!taken && !w->quit && pthread_cond_timedwait(&w->changed, &w->mutex, &until) == 0) {}
    }
}

/* What gives way is gone before the new file needs its room, and what that replaces only when it is there. */
static mox_status do_job(mox_state_writer *w, mox_err *err)
{
    const mox_state_job *job = w->job;
    for (size_t i = 0; i < job->n_first; i++) mox_path_remove(job->old[i]);
    MOX_TRY(mox_state_job_write(job, w->c, &w->shape, &w->gate, err));
    for (size_t i = 0; i < job->n_after; i++) mox_path_remove(job->old[job->n_first + i]);
    return MOX_OK;
}

static void *work(void *user)
{
    mox_state_writer *w = user;
    (void)pthread_mutex_lock(&w->mutex);
    get_ready(w);
    for (;;) {
        while (!w->quit && (!w->job || w->written)) (void)pthread_cond_wait(&w->changed, &w->mutex);
        if (w->quit) break;
        (void)pthread_mutex_unlock(&w->mutex);
        mox_err err = {0};
        const mox_status status = do_job(w, &err);
        (void)pthread_mutex_lock(&w->mutex);
        w->status = status;
        w->err = err;
        w->written = true;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->mutex);
    return NULL;
}

mox_status mox_state_writer_start(mox_state_writer *w, const mox_context *c, mox_state_shape shape,
                                  mox_state_take_fn *take, void *take_user, mox_err *err)
{
    pthread_condattr_t attr;
    *w = (mox_state_writer){.c = c, .shape = shape, .take = take, .take_user = take_user, .ready = !take};
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_mutex_init(&w->gate.lock, NULL);
    const int failure = pthread_create(&w->thread, NULL, work, w);
    if (failure == 0) return MOX_OK;
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_mutex_destroy(&w->gate.lock);
    return mox_fail(err, MOX_E_MEMORY, "cannot start a thread that writes states: %s", strerror(failure));
}

void mox_state_writer_stop(mox_state_writer *w)
{
    mox_state_writer_shut(w);
    (void)pthread_mutex_lock(&w->mutex);
    w->quit = true;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->mutex);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->changed);
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_mutex_destroy(&w->gate.lock);
}

bool mox_state_writer_ready(mox_state_writer *w)
{
    (void)pthread_mutex_lock(&w->mutex);
    const bool ready = w->ready;
    (void)pthread_mutex_unlock(&w->mutex);
    return ready;
}

void mox_state_writer_begin(mox_state_writer *w, const mox_state_job *job)
{
    (void)pthread_mutex_lock(&w->mutex);
    w->job = job;
    w->written = false;
    w->gate.shut = false; /* nobody looks at it before the thread has the job */
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->mutex);
}

bool mox_state_writer_ended(mox_state_writer *w, double seconds, mox_status *status, mox_err *err)
{
    const struct timespec until = mox_clock_at(mox_clock_now() + (seconds > 0 ? seconds : 0));
    (void)pthread_mutex_lock(&w->mutex);
    int late = 0;
    while (w->job && !w->written && seconds != 0 && late == 0)
        late = seconds < 0 ? pthread_cond_wait(&w->changed, &w->mutex)
                           : pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    const bool ended = w->job && w->written;
    if (ended) {
        w->job = NULL;
        *status = w->status;
        *err = w->err;
    }
    (void)pthread_mutex_unlock(&w->mutex);
    return ended;
}

void mox_state_writer_shut(mox_state_writer *w)
{
    (void)pthread_mutex_lock(&w->gate.lock);
    w->gate.shut = true;
    (void)pthread_mutex_unlock(&w->gate.lock);
}
