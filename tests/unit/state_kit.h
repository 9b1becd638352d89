/* tests/unit/state_kit.h -- folders of states, lives of servers that use them, and what fails on demand. */
#ifndef TESTS_STATE_KIT_H
#define TESTS_STATE_KIT_H

#include "prefix_kit.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/folder.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TURN = 300, NEXT = 20, MINUTE_MS = 60000 };
static const char key[] = "model and template";

typedef struct place {
    char dir[64];
    int n_warnings;
    char warning[600]; /* the last one */
} place;

static pthread_mutex_t warn_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void on_warn(void *user, const char *sentence)
{
    place *at = user;
    (void)pthread_mutex_lock(&warn_lock);
    at->n_warnings++;
    (void)snprintf(at->warning, sizeof at->warning, "%s", sentence);
    (void)pthread_mutex_unlock(&warn_lock);
}

static inline void new_place(place *at)
{
    static int n;
    *at = (place){0};
    (void)snprintf(at->dir, sizeof at->dir, "%s/states-%d", scratch, n++);
}

static inline mox_prefix_opts opts_of(place *at)
{
    return (mox_prefix_opts){.state_dir = at->dir, .model_key = key, .warn = on_warn, .warn_user = at};
}

static const mox_context_opts context_opts = {.n_ctx = 512, .n_seqs = 2, .n_batch = 256};

static int32_t tokens[4][TURN + NEXT];

static inline void choose_tokens(const mox_model *m)
{
    for (int i = 0; i < 4; i++) make_tokens(m, (uint64_t)(10 + i), tokens[i], TURN + NEXT);
}

/* A life of a server that answers `n` prompts, from `first` on. */
static inline void live(const mox_model *m, mox_prefix_opts opts, int first, int n)
{
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts);
    mox_seq *s = new_seq(c);
    for (int i = first; i < first + n; i++) {
        const int64_t at = adopt(p, s, tokens[i], TURN);
        (void)step(s, tokens[i] + at, TURN - at);
        mox_prefix_keep(p, s);
    }
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

/* How much of a prompt a new server finds.  Its logits must be right whatever that is. */
static inline int64_t found(const mox_model *m, mox_prefix_opts opts, int which)
{
    static float want[4][MAX_VOCAB];
    static const mox_model *of[4];
    if (of[which] != m) fresh_logits(m, context_opts, tokens[which], TURN, TURN + NEXT, want[which]);
    of[which] = m;
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts);
    mox_seq *s = new_seq(c);
    const int64_t at = adopt(p, s, tokens[which], TURN + NEXT);
    if (at < TURN) (void)step(s, tokens[which] + at, TURN - at);
    const float *got = step(s, tokens[which] + mox_seq_length(s), TURN + NEXT - mox_seq_length(s));
    if (at == 0 || at == TURN) assert_same(m, got, want[which]);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
    return at;
}

/* The path of a file of the folder; the number of them. */
static inline int list_files(const place *at, char *path, size_t size)
{
    mox_folder f;
    mox_err err;
    int n = 0;
    assert_int_equal(mox_folder_list(&f, at->dir, &err), MOX_OK);
    for (size_t i = 0; i < f.n; i++) {
        if (strcmp(f.names[i], "lock") == 0) continue;
        assert_null(strstr(f.names[i], ".part"));
        if (n++ == 0) (void)snprintf(path, size, "%s/%s", at->dir, f.names[i]);
    }
    mox_folder_deinit(&f);
    return n;
}

static inline int64_t bytes_in(const place *at)
{
    mox_folder f;
    mox_err err;
    int64_t sum = 0;
    assert_int_equal(mox_folder_list(&f, at->dir, &err), MOX_OK);
    for (size_t i = 0; i < f.n; i++) {
        int64_t bytes, modified;
        char *path = mox_path_join(at->dir, f.names[i]);
        assert_true(mox_path_stat(path, &bytes, &modified));
        sum += bytes;
        mox_free(path);
    }
    mox_folder_deinit(&f);
    return sum;
}

static inline void new_place_with_file(place *at, const mox_model *m, char *path, size_t n)
{
    new_place(at);
    choose_tokens(m);
    live(m, opts_of(at), 0, 1);
    assert_int_equal(list_files(at, path, n), 1);
}

typedef struct trouble {
    atomic_long count; /* the writer is a thread of its own */
    long at;
} trouble;

static inline int fail_alloc(void *user, size_t bytes)
{
    (void)bytes;
    trouble *t = user;
    return atomic_fetch_add(&t->count, 1) + 1 != t->at;
}

/* Those of a test that failed would see the next ones. */
static inline int take_hooks_out(void **state)
{
    (void)state;
    mox_io_set_hook(NULL, NULL);
    mox_alloc_set_hook(NULL, NULL);
    return 0;
}

#endif
