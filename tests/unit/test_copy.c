/* tests/unit/test_copy.c -- weights that are copied while steps run: the results have the
 * same bytes before, meanwhile and afterwards, and whatever goes wrong with the copy.
 *
 * Also built with the thread sanitizer. */
#include "runtime/context.h"

#include "base/alloc.h"
#include "moxie/tools.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const model_dirs[] = {SOURCE_ROOT "/models/demo", SOURCE_ROOT "/tests/data/models/demo-qwen3",
                                         SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                         SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
enum { N_MODELS = sizeof model_dirs / sizeof *model_dirs, V = 2048, PROMPT = 24 };

static mox_model *open_model(const char *dir, mox_weights weights)
{
    mox_model *m;
    mox_err err;
    if (mox_model_open(&m, dir, &(mox_model_opts){.weights = weights}, &err) != MOX_OK) fail_msg("%s", err.msg);
    return m;
}

static mox_context *new_context(const mox_model *m)
{
    mox_context *c;
    mox_err err;
    if (mox_context_create(&c, m, &(mox_context_opts){.n_ctx = 64, .n_threads = 2}, &err) != MOX_OK) fail_msg("%s", err.msg);
    return c;
}

/* Last logits of a prompt in a fresh sequence. */
static void compute(mox_context *c, float out[V])
{
    mox_seq *s;
    mox_err err;
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 7919 + 13) % 1900;
    if (mox_seq_create(&s, c, &err) != MOX_OK) fail_msg("%s", err.msg);
    const mox_segment g = {.seq = s, .tokens = prompt, .n = PROMPT, .want = MOX_WANT_LAST};
    if (mox_step(c, &g, 1, NULL, &err) != MOX_OK) fail_msg("%s", err.msg);
    memcpy(out, mox_logits_row(c, 0), V * sizeof *out);
    mox_seq_destroy(&s);
}

static void compute_mapped(const char *dir, float out[V])
{
    mox_model *m = open_model(dir, MOX_WEIGHTS_MAP);
    mox_context *c = new_context(m);
    compute(c, out);
    mox_context_destroy(&c);
    mox_model_close(&m);
}

/* Reads of weights by the copying thread: slow, so that steps meet the copy half done, held up
 * while closed, and failing from the fail_at-th on. */
typedef struct disk {
    atomic_int n_reads;
    int fail_at; /* 0: never */
    atomic_bool closed;
    pthread_t opener; /* reads headers, closed or not */
} disk;

static int slow_disk(void *user, const char *path, const char *what)
{
    disk *d = user;
    const size_t n = strlen(path);
    if (strcmp(what, "read") != 0 || n < 12 || strcmp(path + n - 12, ".safetensors") != 0) return 0;
    const int count = atomic_fetch_add(&d->n_reads, 1) + 1;
    (void)usleep(10000);
    while (atomic_load(&d->closed) && !pthread_equal(pthread_self(), d->opener)) (void)usleep(1000);
    return d->fail_at && count >= d->fail_at ? EIO : 0;
}

static bool in_mapping(const mox_model *m, const void *p)
{
    for (int32_t i = 0; i < m->tensors.n_files; i++) {
        const mox_file *f = &m->tensors.files[i];
        if ((const char *)p >= (const char *)f->map && (const char *)p < (const char *)f->map + f->size) return true;
    }
    return false;
}

static void steps_do_not_notice(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        float want[V], got[V];
        compute_mapped(model_dirs[i], want);
        disk d = {.closed = true, .opener = pthread_self()};
        mox_io_set_hook(slow_disk, &d);
        mox_model *m = open_model(model_dirs[i], MOX_WEIGHTS_COPY);
        mox_context *c = new_context(m);
        mox_weight_residency r;
        int n_meanwhile = 0;
        for (;; n_meanwhile++) {
            mox_model_get_residency(m, &r);
            compute(c, got);
            assert_memory_equal(got, want, sizeof want);
            atomic_store(&d.closed, false); /* one step at least has met it */
            if (!r.copying) break; /* the step just now was the first after the copy */
        }
        mox_io_set_hook(NULL, NULL);
        assert_true(n_meanwhile > 0);
        assert_true(r.bytes > 0 && r.bytes_copied == r.bytes);
        assert_false(in_mapping(m, mox_residency_mat(&m->residency, &m->embed).w));
        assert_false(in_mapping(m, mox_residency_vec(&m->residency, &m->final_norm).data));
        for (int32_t f = 0; f < m->tensors.n_files; f++) { /* all of every file, byte by byte */
            const mox_file *file = &m->tensors.files[f];
            assert_int_equal(memcmp(mox_copy_at(m->residency.copy, f, 0, file->size), file->map, (size_t)file->size), 0);
            assert_null(mox_copy_at(m->residency.copy, f, 1, file->size));
        }
        mox_context_destroy(&c);
        mox_model_close(&m);
    }
}

static void maps_are_not_copied(void **state)
{
    (void)state;
    mox_model *m = open_model(model_dirs[0], MOX_WEIGHTS_MAP);
    mox_weight_residency r;
    mox_model_get_residency(m, &r);
    assert_true(r.bytes > 0 && r.bytes_copied == 0 && !r.copying);
    assert_true(in_mapping(m, mox_residency_mat(&m->residency, &m->embed).w));
    mox_model_close(&m);
}

static void a_failing_disk_leaves_the_mapping(void **state)
{
    (void)state;
    float want[V], got[V];
    compute_mapped(model_dirs[0], want);
    disk d = {0};
    mox_io_set_hook(slow_disk, &d);
    mox_model *m = open_model(model_dirs[0], MOX_WEIGHTS_MAP); /* how many reads opening takes */
    mox_model_close(&m);
    for (int good = 0; good < 2; good++) {
        disk bad = {.fail_at = atomic_load(&d.n_reads) + 1 + good};
        mox_io_set_hook(slow_disk, &bad);
        m = open_model(model_dirs[0], MOX_WEIGHTS_COPY);
        mox_context *c = new_context(m);
        mox_weight_residency r = {.copying = true};
        while (r.copying) {
            mox_model_get_residency(m, &r);
            compute(c, got);
            assert_memory_equal(got, want, sizeof want);
        }
        assert_true(good ? r.bytes_copied > 0 && r.bytes_copied < r.bytes : r.bytes_copied == 0);
        mox_io_set_hook(NULL, NULL);
        mox_context_destroy(&c);
        mox_model_close(&m);
    }
}

static void closing_does_not_wait_for_the_copy(void **state)
{
    (void)state;
    disk d = {0};
    mox_io_set_hook(slow_disk, &d);
    for (int i = 0; i < 4; i++) {
        mox_model *m = open_model(model_dirs[3], MOX_WEIGHTS_COPY);
        mox_model_close(&m);
        assert_null(m);
    }
    mox_io_set_hook(NULL, NULL);
}

static int refuse_large(void *user, size_t bytes)
{
    (void)user;
    return bytes < 4 << 20;
}

static void no_memory_is_said(void **state)
{
    (void)state;
    mox_model *m;
    mox_err err;
    mox_alloc_set_hook(refuse_large, NULL);
    const mox_status status = mox_model_open(&m, model_dirs[0], &(mox_model_opts){.weights = MOX_WEIGHTS_COPY}, &err);
    mox_alloc_set_hook(NULL, NULL);
    assert_int_equal(status, MOX_E_MEMORY);
    assert_null(m);
    assert_non_null(strstr(err.msg, "copy of the weights"));
}

static void a_copy_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    mox_copy *c;
    mox_err err;
    mox_file huge = {.fd = 0, .size = INT64_MAX / 2}; /* only its size is looked at */
    assert_int_equal(mox_copy_start(&c, &huge, 1, &err), MOX_E_FULL);
    assert_null(c);
    assert_non_null(strstr(err.msg, "map them instead"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_do_not_notice),
        cmocka_unit_test(maps_are_not_copied),
        cmocka_unit_test(a_failing_disk_leaves_the_mapping),
        cmocka_unit_test(closing_does_not_wait_for_the_copy),
        cmocka_unit_test(no_memory_is_said),
        cmocka_unit_test(a_copy_that_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
