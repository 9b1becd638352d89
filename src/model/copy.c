/* model/copy.c -- see copy.h.
 *
 * The thread reads the files with positioned reads rather than through the mapping: a
 * file that was cut short meanwhile is then an error, after which steps go on with what
 * has been copied and the mapping. */
#include "model/copy.h"

#include "base/alloc.h"
#include "base/machine.h"
#include "base/size.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { CHUNK = 4 << 20 };

typedef struct file_copy {
    uint8_t *memory; /* NULL: left out */
    _Atomic int64_t done;
} file_copy;

struct mox_copy {
    const mox_file *files;
    int32_t n_files;
    file_copy *copies; /* [n_files] */
    pthread_t thread;
    bool started;
    atomic_bool stop, finished;
};

static mox_status copy_file(mox_copy *c, int32_t i)
{
    const mox_file *f = &c->files[i];
    file_copy *to = &c->copies[i];
    for (int64_t at = 0; at < f->size; at += CHUNK) {
        const int64_t n = mox_min_i64(CHUNK, f->size - at);
        if (atomic_load_explicit(&c->stop, memory_order_relaxed)) return MOX_E_CANCELLED;
        MOX_TRY(mox_file_read_at(f, at, to->memory + at, (size_t)n, NULL));
        atomic_store_explicit(&to->done, at + n, memory_order_release); /* I1 */
    }
    mox_file_unmap_pages(f); /* nobody needs them now; who still reads there gets them back */
    return MOX_OK;
}

static void *copy_all(void *user)
{
    mox_copy *c = user;
    mox_status status = MOX_OK;
    for (int32_t i = 0; i < c->n_files && status == MOX_OK; i++)
        if (c->copies[i].memory) status = copy_file(c, i);
    atomic_store_explicit(&c->finished, true, memory_order_release);
    return NULL;
}

static mox_status reserve(mox_copy *c, mox_err *err)
{
    int64_t total = 0;
    for (int32_t i = 0; i < c->n_files; i++)
        if (c->files[i].fd >= 0 && !mox_add_i64(total, c->files[i].size, &total)) total = INT64_MAX;
    const int64_t room = mox_machine_memory("");
    if (total > room)
        return mox_fail(err, MOX_E_FULL,
                        "a copy of the weights takes %.1f GB but %.1f GB of memory are left; map them instead",
                        (double)total / 1e9, (double)room / 1e9);
    for (int32_t i = 0; i < c->n_files; i++) {
        if (c->files[i].fd < 0 || c->files[i].size == 0) continue;
        c->copies[i].memory = mox_alloc_pages((size_t)c->files[i].size);
        if (!c->copies[i].memory) return mox_fail_memory(err, (size_t)c->files[i].size, "a copy of the weights");
    }
    return MOX_OK;
}

mox_status mox_copy_start(mox_copy **out, const mox_file *files, int32_t n_files, mox_err *err)
{
    *out = NULL;
    mox_copy *c = mox_alloc_array(1, sizeof *c);
    if (!c) return mox_fail_memory(err, sizeof *c, "a copy of the weights");
    c->files = files;
    c->n_files = n_files;
    c->copies = mox_alloc_array((size_t)n_files, sizeof *c->copies);
    mox_status status =
        c->copies ? reserve(c, err) : mox_fail_memory(err, (size_t)n_files * sizeof *c->copies, "a copy of the weights");
    if (status == MOX_OK && pthread_create(&c->thread, NULL, copy_all, c) != 0)
        status = mox_fail(err, MOX_E_MEMORY, "the system has no thread left to copy the weights");
    if (status != MOX_OK) {
        mox_copy_stop(&c);
        return status;
    }
    c->started = true;
    (void)pthread_setschedparam(c->thread, SCHED_IDLE, &(struct sched_param){0}); /* a wish */
    *out = c;
    return MOX_OK;
}

void mox_copy_stop(mox_copy **copy)
{
    mox_copy *c = *copy;
    if (!c) return;
    atomic_store_explicit(&c->stop, true, memory_order_relaxed);
    if (c->started) pthread_join(c->thread, NULL);
    for (int32_t i = 0; c->copies && i < c->n_files; i++)
        mox_free_pages(c->copies[i].memory, (size_t)c->files[i].size);
    mox_free(c->copies);
    mox_free(c);
    *copy = NULL;
}

const uint8_t *mox_copy_at(const mox_copy *c, int32_t file, int64_t offset, int64_t bytes)
{
    const file_copy *f = &c->copies[file];
    return offset + bytes <= atomic_load_explicit(&f->done, memory_order_acquire) ? f->memory + offset : NULL;
}

int64_t mox_copy_bytes(const mox_copy *c, bool *busy)
{
    *busy = !atomic_load_explicit(&c->finished, memory_order_acquire);
    int64_t bytes = 0;
    for (int32_t i = 0; i < c->n_files; i++) bytes += atomic_load_explicit(&c->copies[i].done, memory_order_relaxed);
    return bytes;
}
