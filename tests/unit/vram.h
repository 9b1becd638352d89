/* tests/unit/vram.h -- what tests of experts that come and go on a device share. */
#ifndef MOX_TESTS_VRAM_H
#define MOX_TESTS_VRAM_H

#include "base/cancel.h"
#include "fail_context.h"
#include "moxie/tools.h"
#include "runtime/context.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static inline void ok(mox_status status, const mox_err *err)
{
    if (status != MOX_OK) fail_msg("%s", err->msg);
}

static inline mox_model *open_model(const char *dir, bool dense_only)
{
    mox_model *m;
    mox_err err;
    ok(mox_model_open(&m, dir, NULL, &err), &err);
    if (dense_only) ok(mox_model_load_dense(m, NULL, NULL, &err), &err);
    return m;
}

static inline mox_context_opts base_opts(void) { return (mox_context_opts){.device = "emu", .n_ctx = 64, .n_batch = 24, .n_readers = 2}; }

static inline mox_device_sizes sizes_of(const mox_model *m)
{
    const mox_context_opts o = base_opts();
    mox_context_sizes s;
    mox_err err;
    ok(mox_context_measure(m, &o, &s, &err), &err);
    return s.come.parts[0].sizes;
}

/* The smallest budget of each of the devices with experts that come and go. */
static inline int64_t least_budget(const mox_model *m, const char *device)
{
    mox_context_opts o = base_opts();
    mox_context_sizes s;
    mox_err err;
    o.device = device;
    ok(mox_context_measure(m, &o, &s, &err), &err);
    return s.come.bytes;
}

static inline mox_context *new_context(const mox_model *m, const mox_context_opts *o)
{
    mox_context *c;
    mox_err err;
    ok(mox_context_create(&c, m, o, &err), &err);
    return c;
}

static inline float *new_answers(const mox_model *m, int n_steps)
{
    float *p = calloc((size_t)(n_steps * m->dims.n_vocab), sizeof *p);
    assert_non_null(p);
    return p;
}

/* Some steps of a sequence; logits [so many][vocabulary]. */
typedef mox_status steps_fn(mox_context *c, mox_seq *s, float *out, const mox_step_opts *opts, mox_err *err);

static inline float *answers_of(mox_context *c, steps_fn *steps, int n_steps)
{
    mox_seq *s;
    mox_err err;
    float *out = new_answers(c->model, n_steps);
    ok(mox_seq_create(&s, c, &err), &err);
    ok(steps(c, s, out, NULL, &err), &err);
    mox_seq_destroy(&s);
    return out;
}

static inline int64_t used_bytes(const mox_context *c, int section)
{
    int64_t total, left;
    mox_dev *d = c->sections[section].dev;
    d->apart->memory(d, &total, &left);
    return total - left;
}

/* ---- failures ---- */

static inline void check_steps_allocate_nothing(const mox_model *m, const mox_context_opts *o, steps_fn *steps, int n_steps)
{
    mox_context *c = new_context(m, o);
    mox_seq *s;
    mox_err err;
    float *got = new_answers(m, n_steps);
    ok(mox_seq_create(&s, c, &err), &err);
    nth f = {.at = -1};
    mox_alloc_set_hook(fail_nth_alloc, &f);
    const mox_status status = steps(c, s, got, NULL, &err);
    mox_alloc_set_hook(NULL, NULL);
    ok(status, &err);
    assert_int_equal(f.count, 0);
    mox_context_destroy(&c);
    free(got);
}

/* Every read from the n-th on fails. */
static inline int fail_from_nth(void *user, const char *path, const char *what)
{
    (void)path, (void)what;
    nth *n = user;
    return __atomic_add_fetch(&n->count, 1, __ATOMIC_RELAXED) >= n->at ? EIO : 0;
}

typedef struct countdown {
    mox_cancel cancel;
    long left;
} countdown;

/* Raises the flag at the n-th read: in the middle of a layer. */
static inline int cancel_at_nth(void *user, const char *path, const char *what)
{
    (void)path, (void)what;
    countdown *c = user;
    if (__atomic_sub_fetch(&c->left, 1, __ATOMIC_RELAXED) == 0) mox_cancel_raise(&c->cancel);
    return 0;
}

/* ---- bytes ---- */

/* Compares bytes on the device with those of the file. */
static inline void check_part(mox_dev *dev, const void *on_device, const mox_model *m, const mox_extent *e)
{
    mox_err err;
    uint8_t *got = malloc((size_t)e->bytes);
    assert_non_null(got);
    ok(dev->memory.download(dev, got, on_device, e->bytes, &err), &err);
    assert_memory_equal(got, (const uint8_t *)m->residency.files[e->file].map + e->offset, (size_t)e->bytes);
    free(got);
}

static inline void check_expert(mox_dev *dev, const mox_expert *x, const mox_model *m, int32_t layer)
{
    const mox_expert_weights *w = &m->layers[layer].experts[x->id];
    const mox_mat *mats[] = {&x->gate, &x->up, &x->down};
    const mox_weight *weights[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++) {
        check_part(dev, mats[i]->w, m, &weights[i]->w);
        if (weights[i]->layout.kind != MOX_MAT_AFFINE) continue;
        check_part(dev, mats[i]->scales, m, &weights[i]->scales);
        check_part(dev, mats[i]->biases, m, &weights[i]->biases);
    }
}

#endif
