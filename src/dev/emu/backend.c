/* dev/emu/backend.c -- see backend.h.  Nothing is queued: every call has taken place when it
 * returns.  What went wrong is kept and told at sync, as a real device would do it. */
#include "dev/emu/backend.h"

#include "base/alloc.h"
#include "base/size.h"
#include "dev/dev.h"
#include "dev/emu/kernels.h"
#include "dev/gpu/device.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

enum { RANGES = 256, PENDING = 64 };

/* What is pinned is so for all devices, as a driver has it. */
static struct {
    pthread_mutex_t lock;
    int n;
    struct pinned_range {
        uint8_t *p;
        int64_t bytes;
        const mox_gpu_backend *by;
        void *shown; /* to launches of that one; NULL: it is not */
    } ranges[RANGES];
} pinned = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Copies of bring take place as late as they may: whoever forgets to wait for one sees what was there before.
 * And they are remembered until somebody waits for them: what they read must not have changed. */
typedef struct later_copy {
    void *to;
    const void *from;
    int64_t bytes;
    uint64_t sum; /* of what was there when bring was called */
} later_copy;

typedef struct emu_backend {
    mox_gpu_backend backend; /* first */
    mox_emu *emu;
    int64_t bytes;
    mox_err wrong; /* the first thing that went wrong */
    bool launched;                              /* since the host last saw what launches write to its memory */
    later_copy pending[PENDING], made[PENDING]; /* made: the last ones of n_made */
    int n_pending;
    int64_t n_made;
} emu_backend;

/* Where an error goes to; NULL when there is one already: nothing takes place any more. */
static mox_err *may_go_on(emu_backend *b) { return b->wrong.status == MOX_OK ? &b->wrong : NULL; }

static mox_status emu_alloc(mox_gpu_backend *backend, int64_t bytes, void **out, mox_err *err)
{
    return mox_emu_alloc(((emu_backend *)backend)->emu, bytes, out, err);
}

static void emu_free(mox_gpu_backend *backend, void *p) { mox_emu_free(((emu_backend *)backend)->emu, p); }

static void emu_memory(mox_gpu_backend *backend, int64_t *total, int64_t *left)
{
    const emu_backend *b = (emu_backend *)backend;
    *total = b->bytes;
    *left = b->bytes - mox_emu_used(b->emu);
}

static void emu_upload(mox_gpu_backend *backend, void *to, const void *from, int64_t bytes)
{
    emu_backend *b = (emu_backend *)backend;
    mox_err *err = may_go_on(b);
    if (err) (void)mox_emu_upload(b->emu, to, from, bytes, err);
}

static void emu_copy(mox_gpu_backend *backend, void *to, const void *from, int64_t bytes)
{
    emu_backend *b = (emu_backend *)backend;
    mox_err *err = may_go_on(b);
    if (err) (void)mox_emu_copy(b->emu, to, from, bytes, err);
}

static void emu_copy_from(mox_gpu_backend *backend, void *to, mox_gpu_backend *other, const void *from, int64_t bytes)
{
    emu_backend *b = (emu_backend *)backend, *source = (emu_backend *)other;
    unsigned char piece[4096]; /* a step allocates nothing */
    mox_err *err = may_go_on(b);
    if (err && source->wrong.status != MOX_OK) *err = source->wrong;
    for (int64_t at = 0; err && err->status == MOX_OK && at < bytes; at += (int64_t)sizeof piece) {
        const int64_t n = mox_min_i64(bytes - at, (int64_t)sizeof piece);
        if (mox_emu_download(source->emu, piece, (const unsigned char *)from + at, n, err) == MOX_OK)
            (void)mox_emu_upload(b->emu, (unsigned char *)to + at, piece, n, err);
    }
}

static void emu_zero(mox_gpu_backend *backend, void *to, int64_t bytes)
{
    emu_backend *b = (emu_backend *)backend;
    mox_err *err = may_go_on(b);
    if (err) (void)mox_emu_zero(b->emu, to, bytes, err);
}

static void emu_launch(mox_gpu_backend *backend, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t params_bytes)
{
    emu_backend *b = (emu_backend *)backend;
    const mox_emu_kernel *k = mox_emu_find(kernel);
    assert(k->params_bytes == params_bytes);
    (void)params_bytes;
    mox_err *err = may_go_on(b);
    if (!b->launched) mox_emu_exchange(b->emu, false);
    b->launched = true;
    if (err) (void)mox_emu_launch(b->emu, k, groups, params, err);
}

/* What is shown to launches is late: the host sees what they wrote when it waits for them. */
static void wait(emu_backend *b)
{
    if (b->launched) mox_emu_exchange(b->emu, true);
    b->launched = false;
}

static mox_status emu_sync(mox_gpu_backend *backend, mox_err *err)
{
    emu_backend *b = (emu_backend *)backend;
    wait(b);
    return b->wrong.status == MOX_OK ? MOX_OK : mox_fail(err, b->wrong.status, "%s", b->wrong.msg);
}

static mox_status emu_download(mox_gpu_backend *backend, void *to, const void *from, int64_t bytes, mox_err *err)
{
    emu_backend *b = (emu_backend *)backend;
    mox_err *wrong = may_go_on(b);
    wait(b);
    if (wrong) (void)mox_emu_download(b->emu, to, from, bytes, wrong);
    return emu_sync(backend, err);
}

/* ---- copies beside launches ---- */

static mox_status emu_pin(mox_gpu_backend *backend, void *p, int64_t bytes, mox_err *err)
{
    uint8_t *begin = p;
    mox_status status = MOX_OK;
    (void)pthread_mutex_lock(&pinned.lock);
    if (pinned.n == RANGES) status = mox_fail(err, MOX_E_FULL, "the emulated device: no more than %d ranges can be pinned", RANGES);
    for (int i = 0; i < pinned.n && status == MOX_OK; i++)
        if (begin < pinned.ranges[i].p + pinned.ranges[i].bytes && pinned.ranges[i].p < begin + bytes)
            status = mox_fail(err, MOX_E_ARG, "the emulated device: this memory is pinned already");
    if (status == MOX_OK) pinned.ranges[pinned.n++] = (struct pinned_range){.p = begin, .bytes = bytes, .by = backend};
    (void)pthread_mutex_unlock(&pinned.lock);
    return status;
}

static bool is_pinned(const uint8_t *p, int64_t bytes)
{
    bool is = false;
    (void)pthread_mutex_lock(&pinned.lock);
    for (int i = 0; i < pinned.n; i++) {
        const struct pinned_range *r = &pinned.ranges[i];
        is = is || (p >= r->p && p + bytes <= r->p + r->bytes);
    }
    (void)pthread_mutex_unlock(&pinned.lock);
    return is;
}

static void *emu_seen(mox_gpu_backend *backend, void *p)
{
    void *shown = NULL;
    (void)pthread_mutex_lock(&pinned.lock);
    for (int i = 0; i < pinned.n; i++) {
        struct pinned_range *r = &pinned.ranges[i];
        if (r->p != p || r->by != backend) continue;
        if (!r->shown) (void)mox_emu_show(((emu_backend *)backend)->emu, p, r->bytes, &r->shown, NULL);
        shown = r->shown;
    }
    (void)pthread_mutex_unlock(&pinned.lock);
    return shown;
}

static uint64_t sum_of(const void *from, int64_t bytes)
{
    uint64_t sum = 0, word;
    for (int64_t at = 0; at + (int64_t)sizeof word <= bytes; at += (int64_t)sizeof word) {
        memcpy(&word, (const uint8_t *)from + at, sizeof word);
        sum = (sum + word) * 0x9E3779B97F4A7C15u;
    }
    return sum;
}

/* Of those that nobody has waited for. */
static void check_made(emu_backend *b)
{
    for (int64_t i = b->n_made > PENDING ? b->n_made - PENDING : 0; i < b->n_made; i++) {
        const later_copy *c = &b->made[i % PENDING];
        if (sum_of(c->from, c->bytes) != c->sum && may_go_on(b))
            (void)mox_fail(&b->wrong, MOX_E_DEVICE, "the emulated device: memory was written to before a copy from it had ended");
    }
}

static void emu_use_brought(mox_gpu_backend *backend)
{
    emu_backend *b = (emu_backend *)backend;
    check_made(b);
    for (int i = 0; i < b->n_pending; i++) {
        emu_upload(backend, b->pending[i].to, b->pending[i].from, b->pending[i].bytes);
        b->made[b->n_made++ % PENDING] = b->pending[i];
    }
    b->n_pending = 0;
}

static void emu_bring(mox_gpu_backend *backend, void *to, const void *from, int64_t bytes)
{
    emu_backend *b = (emu_backend *)backend;
    if (!is_pinned(from, bytes) && may_go_on(b))
        (void)mox_fail(&b->wrong, MOX_E_DEVICE, "the emulated device: a copy from memory that is not pinned");
    if (b->n_pending == PENDING) emu_use_brought(backend);
    b->pending[b->n_pending++] = (later_copy){to, from, bytes, sum_of(from, bytes)};
}

/* Launches have taken place already. */
static void emu_bring_next(mox_gpu_backend *backend) { (void)backend; }

static mox_status emu_await_brought(mox_gpu_backend *backend, mox_err *err)
{
    emu_use_brought(backend);
    check_made((emu_backend *)backend);
    ((emu_backend *)backend)->n_made = 0;
    return emu_sync(backend, err);
}

static void emu_unpin(mox_gpu_backend *backend, void *p)
{
    (void)emu_await_brought(backend, NULL); /* its bytes will not be there any more */
    (void)pthread_mutex_lock(&pinned.lock);
    int i = 0;
    while (i < pinned.n && pinned.ranges[i].p != p) i++;
    assert(i < pinned.n && pinned.ranges[i].by == backend); /* else it is not what pin was told */
    mox_emu_free(((emu_backend *)backend)->emu, pinned.ranges[i].shown);
    pinned.ranges[i] = pinned.ranges[--pinned.n];
    (void)pthread_mutex_unlock(&pinned.lock);
}

static double emu_waited_s(mox_gpu_backend *backend)
{
    (void)backend;
    return 0.0;
}

static void emu_close(mox_gpu_backend *backend)
{
    emu_backend *b = (emu_backend *)backend;
    mox_emu_destroy(&b->emu);
    mox_free(b);
}

mox_emu *mox_emu_backend_device(mox_gpu_backend *b) { return ((emu_backend *)b)->emu; }

mox_status mox_emu_backend_open(mox_gpu_backend **out, int64_t bytes, mox_err *err)
{
    *out = NULL;
    emu_backend *b = mox_alloc_array(1, sizeof *b);
    if (!b) return mox_fail_memory(err, sizeof *b, "the emulated device");
    b->bytes = bytes;
    b->backend = (mox_gpu_backend){.name = "emu", .model = "emulated", .alloc = emu_alloc, .free = emu_free, .memory = emu_memory,
                                   .upload = emu_upload, .copy = emu_copy, .copy_from = emu_copy_from, .zero = emu_zero, .launch = emu_launch, .sync = emu_sync,
                                   .download = emu_download, .pin = emu_pin, .unpin = emu_unpin, .seen = emu_seen, .bring = emu_bring,
                                   .bring_next = emu_bring_next, .use_brought = emu_use_brought, .await_brought = emu_await_brought,
                                   .waited_s = emu_waited_s, .close = emu_close};
    const mox_status status = mox_emu_create(&b->emu, bytes, err);
    if (status != MOX_OK) {
        mox_free(b);
        return status;
    }
    *out = &b->backend;
    return MOX_OK;
}

mox_status mox_dev_emu_open(mox_dev **out, int64_t bytes, bool halves, mox_err *err)
{
    *out = NULL;
    mox_gpu_backend *backend;
    MOX_TRY(mox_emu_backend_open(&backend, bytes, err));
    return mox_dev_gpu_open(out, backend, halves, err);
}
