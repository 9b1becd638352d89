/* tests/fault/fault.c -- every allocation and every file access failing in turn.
 *
 * Runs a whole life (glance, open, tokenize, context, steps, sampling, close) again and
 * again, with the N-th allocation, or the N-th open, read or map, made to fail, for
 * N = 1, 2, ... until nothing fails any more.  Each life must end in a clean error or
 * in success; leaks and bad accesses are found by the sanitizer build.
 *
 * fault [--every K] DIR: fails only every K-th N (a sample for short runs). */
#include "base/alloc.h"
#include "base/file.h"
#include "moxie/text.h"
#include "moxie/tools.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan {
    long n_calls, fail_at; /* fail_at 0: never */
} plan;

/* The JSON library takes a failed allocation for a syntax error; its parser gives
 * no way to tell them apart, so such a life may end in MOX_E_FORMAT. */
static bool json_was_refused;
static void *json_alloc(size_t bytes)
{
    void *p = mox_alloc(bytes);
    if (!p) json_was_refused = true;
    return p;
}

static int on_alloc(void *user, size_t bytes)
{
    (void)bytes;
    plan *p = user;
    return ++p->n_calls != p->fail_at;
}

static int on_io(void *user, const char *path, const char *what)
{
    (void)path, (void)what;
    plan *p = user;
    return ++p->n_calls == p->fail_at ? EIO : 0;
}

/* One life.  The status is that of the first failure, with its sentence in err. */
static mox_status live(const char *dir, mox_err *err)
{
    mox_model *model = NULL;
    mox_tokenizer *tokenizer = NULL;
    mox_context *context = NULL;
    mox_sampler *sampler = NULL;
    mox_seq *seq = NULL;
    mox_tokens tokens = {0};
    mox_model_info info;
    static const char text[] = "Once there was a";
    mox_glance glance;
    mox_status status = mox_model_glance(dir, &glance, err);
    if (status == MOX_OK) status = mox_model_open(&model, dir, NULL, err);
    if (status == MOX_OK) status = mox_tokenizer_open(&tokenizer, dir, err);
    if (status == MOX_OK) status = mox_tokenizer_encode(tokenizer, text, sizeof text - 1, MOX_ENCODE_PLAIN, &tokens, err);
    if (status == MOX_OK) {
        mox_model_get_info(model, &info);
        status = mox_context_create(&context, model, &(mox_context_opts){.n_ctx = 64, .n_batch = 8}, err);
    }
    if (status == MOX_OK) status = mox_sampler_create(&sampler, info.n_vocab, &(mox_sampler_opts){.temperature = 1}, err);
    if (status == MOX_OK) status = mox_seq_create(&seq, context, err);
    for (int i = 0; status == MOX_OK && i < 2; i++) {
        const mox_segment g = {.seq = seq, .tokens = tokens.ids, .n = tokens.n, .want = MOX_WANT_LAST};
        status = mox_step(context, &g, 1, NULL, err);
        if (status == MOX_OK) status = mox_sampler_sample(sampler, mox_logits_row(context, 0), &tokens.ids[0], err);
    }
    mox_seq_destroy(&seq);
    mox_sampler_destroy(&sampler);
    mox_context_destroy(&context);
    mox_tokens_free(&tokens);
    mox_tokenizer_close(&tokenizer);
    mox_model_close(&model);
    return status;
}

/* Fails the N-th call for every N; returns how many lives went wrong. */
static int sweep(const char *what, const char *dir, long every, mox_status expected, void (*install)(plan *))
{
    plan p = {0};
    mox_err err = {0};
    install(&p);
    if (live(dir, &err) != MOX_OK) {
        fprintf(stderr, "%s: nothing was made to fail, yet: %s\n", what, err.msg);
        return 1;
    }
    const long total = p.n_calls;
    int n_bad = 0;
    for (long n = 1; n <= total; n += every) {
        p = (plan){.fail_at = n};
        err = (mox_err){0};
        json_was_refused = false;
        const mox_status status = live(dir, &err);
        /* A failure that the library may recover from (fewer threads) is success. */
        const bool good = status == MOX_OK || ((status == expected || (json_was_refused && status == MOX_E_FORMAT)) && err.msg[0]);
        if (!good && n_bad++ < 10)
            fprintf(stderr, "%s: failing call %ld gave status %d: %s\n", what, n, (int)status, err.msg);
    }
    printf("%s: %ld calls, %ld failed in turn, %d wrong\n", what, total, (total + every - 1) / every, n_bad);
    return n_bad;
}

static void install_alloc(plan *p)
{
    mox_io_set_hook(NULL, NULL);
    mox_alloc_set_hook(on_alloc, p);
}

static void install_io(plan *p)
{
    mox_alloc_set_hook(NULL, NULL);
    mox_io_set_hook(on_io, p);
}

int main(int argc, char **argv)
{
    long every = 1;
    int at = 1;
    if (argc > 2 && strcmp(argv[1], "--every") == 0) {
        every = strtol(argv[2], NULL, 10);
        at = 3;
    }
    if (at + 1 != argc || every < 1) {
        fprintf(stderr, "usage: fault [--every K] DIR\n");
        return 2;
    }
    json_set_alloc_funcs(json_alloc, mox_free);
    int n_bad = sweep("allocations", argv[at], every, MOX_E_MEMORY, install_alloc);
    n_bad += sweep("file accesses", argv[at], 1, MOX_E_IO, install_io);
    return n_bad ? 1 : 0;
}
