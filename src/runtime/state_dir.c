/* runtime/state_dir.c -- the index of kept files, loading and saving them; see state_dir.h.
 *
 * The index knows a file by the hashes of its path, page by page; its tokens are compared when
 * it is loaded. */
#include "runtime/state_dir.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/ending.h"
#include "base/folder.h"
#include "base/size.h"
#include "runtime/state_writer.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { STATES_PER_FILE = 4 };
#define SUFFIX ".state"
#define DEFAULT_BYTES (INT64_C(8) << 30)
#define CLOSING_S 10.0

/* What becomes of a file while a job is written: it is removed before, or when the new one is there. */
typedef enum fate { STAYS, GIVES_WAY, REPLACED } fate;

typedef struct entry {
    char *path;
    fate fate;
    int64_t bytes, modified;
    int64_t n_tokens, n_full; /* 0: not one of ours, or damaged */
    uint64_t *hashes; /* [n_full + 1]: of the path to the end of each full page, and to the end of all */
} entry;

struct mox_state_dir {
    mox_context *c;
    char *dir, *key;
    mox_state_shape shape;
    int lock;
    bool ours; /* the folder; until then lock and index are the writer's, which waits for it */
    int64_t max_bytes;
    mox_warn_fn *warn;
    void *warn_user;
    entry *entries;
    size_t n_entries;
    mox_state_writer writer;
    bool writing, ended; /* the job; ended: it is not in the index yet */
    bool holding;        /* references to what the job looks at */
    mox_status job_status;
    mox_err job_err;
    bool complained; /* about files that could not be written, and none could since */
    mox_state_job job;
};

static void warn(const mox_state_dir *d, const char *sentence)
{
    if (d->warn) d->warn(d->warn_user, sentence);
}

static void warn_ignored(const mox_state_dir *d, const mox_err *err)
{
    char text[sizeof err->msg + 32];
    (void)snprintf(text, sizeof text, "%s; it is ignored", err->msg);
    warn(d, text);
}

/* ---- the index ---- */

static void free_entry(entry *e)
{
    mox_free(e->path);
    mox_free(e->hashes);
}

/* Takes over path, also on failure. */
static mox_status add_entry(mox_state_dir *d, char *path, const int32_t *tokens, int64_t n, mox_err *err)
{
    entry e = {.path = path, .n_tokens = n, .n_full = n / MOX_PAGE_LEN};
    entry *grown = mox_realloc_array(d->entries, d->n_entries + 1, sizeof *grown);
    if (grown) d->entries = grown;
    e.hashes = mox_alloc_array((size_t)e.n_full + 1, sizeof *e.hashes);
    if (!grown || !e.hashes) {
        free_entry(&e);
        return mox_fail_memory(err, (d->n_entries + 1) * sizeof e, "the list of kept states");
    }
    uint64_t hash = 0;
    for (int64_t i = 0; i <= e.n_full; i++) {
        const int64_t at = i * MOX_PAGE_LEN;
        if (n > at) hash = mox_tree_path(hash, tokens + at, mox_min_i64(n - at, MOX_PAGE_LEN));
        e.hashes[i] = hash;
    }
    (void)mox_path_stat(path, &e.bytes, &e.modified);
    d->entries[d->n_entries++] = e;
    return MOX_OK;
}

static void forget(mox_state_dir *d, size_t i)
{
    free_entry(&d->entries[i]);
    d->entries[i] = d->entries[--d->n_entries];
}

/* Chooses the files that give way to one of so many bytes; returns how many. */
static size_t make_room(mox_state_dir *d, int64_t bytes)
{
    for (size_t n = 0;; n++) {
        int64_t total = bytes;
        entry *oldest = NULL;
        for (size_t i = 0; i < d->n_entries; i++) {
            entry *e = &d->entries[i];
            if (e->fate == GIVES_WAY) continue;
            total = mox_plus_i64(total, e->bytes);
            if (!oldest || e->modified < oldest->modified) oldest = e;
        }
        if (total <= d->max_bytes || !oldest) return n;
        oldest->fate = GIVES_WAY;
    }
}

/* Full pages that tokens have in common with the file. */
static int64_t pages_in_common(const entry *e, const int32_t *tokens, int64_t n)
{
    uint64_t hash = 0;
    int64_t i = 0;
    for (; i < e->n_full && (i + 1) * MOX_PAGE_LEN <= n; i++) {
        hash = mox_tree_path(hash, tokens + i * MOX_PAGE_LEN, MOX_PAGE_LEN);
        if (hash != e->hashes[i]) break;
    }
    return i;
}

/* All of the file's tokens are among the first of tokens. */
static bool is_beginning(const entry *e, const int32_t *tokens, int64_t n)
{
    if (e->n_tokens == 0 || e->n_tokens > n || pages_in_common(e, tokens, n) < e->n_full) return false;
    const int64_t at = e->n_full * MOX_PAGE_LEN, rest = e->n_tokens - at;
    const uint64_t before = e->n_full > 0 ? e->hashes[e->n_full - 1] : 0;
    return rest == 0 || mox_tree_path(before, tokens + at, rest) == e->hashes[e->n_full];
}

/* A file of the folder, whose path is taken over. */
static mox_status index_file(mox_state_dir *d, char *path, int64_t *n_foreign, mox_err *err)
{
    mox_file file;
    mox_state_file f = {.file = MOX_FILE_CLOSED};
    mox_err why;
    mox_status status = mox_file_open_own(&file, path, &why);
    if (status != MOX_OK) {
        mox_free(path);
        if (status == MOX_E_MEMORY) return mox_fail(err, status, "%s", why.msg);
        warn_ignored(d, &why);
        return MOX_OK;
    }
    status = mox_state_file_parse(&f, file, &d->shape, &why);
    if (status == MOX_E_MEMORY) {
        mox_free(path);
        return mox_fail(err, status, "%s", why.msg);
    }
    if (status == MOX_E_UNSUPPORTED) ++*n_foreign;
    else if (status != MOX_OK) warn_ignored(d, &why);
    status = add_entry(d, path, f.tokens, f.n_tokens, err);
    mox_state_file_close(&f);
    return status;
}

static mox_status scan(mox_state_dir *d, mox_err *err)
{
    mox_folder folder;
    int64_t n_foreign = 0;
    MOX_TRY(mox_folder_list(&folder, d->dir, err));
    mox_status status = MOX_OK;
    for (size_t i = 0; i < folder.n && status == MOX_OK; i++) {
        const bool left_over = mox_ends_with(folder.names[i], SUFFIX ".part");
        if (!left_over && !mox_ends_with(folder.names[i], SUFFIX)) continue;
        char *path = mox_path_join(d->dir, folder.names[i]);
        if (!path) {
            status = mox_fail_memory(err, strlen(d->dir), "a file name");
        } else if (left_over) { /* of a process that was killed */
            mox_path_remove(path);
            mox_free(path);
        } else {
            status = index_file(d, path, &n_foreign, err);
        }
    }
    mox_folder_deinit(&folder);
    if (n_foreign > 0) {
        char text[480];
        (void)snprintf(
            text, sizeof text,
            "%s: ignoring %lld files that are of another model, template, kind of cache or version", d->dir,
            (long long)n_foreign);
        warn(d, text);
    }
    return status;
}

/* ---- life ---- */

static void leave_folder(mox_state_dir *d)
{
    while (d->n_entries > 0) forget(d, d->n_entries - 1);
    mox_lock_release(&d->lock);
}

static void free_dir(mox_state_dir *d)
{
    leave_folder(d);
    mox_free(d->entries);
    mox_free(d->dir);
    mox_free(d->key);
    mox_free(d);
}

static mox_status take_lock(mox_state_dir *d, mox_err *err)
{
    char *path = mox_path_join(d->dir, "lock");
    if (!path) return mox_fail_memory(err, strlen(d->dir), "a file name");
    const mox_status status = mox_lock_take(&d->lock, path, err);
    mox_free(path);
    return status;
}

/* Of the folder, which is locked. */
static mox_status make_index(mox_state_dir *d, mox_err *err)
{
    MOX_TRY(scan(d, err));
    (void)make_room(d, 0);
    for (size_t i = d->n_entries; i-- > 0;) {
        if (d->entries[i].fate == STAYS) continue;
        mox_path_remove(d->entries[i].path);
        forget(d, i);
    }
    return MOX_OK;
}

static void warn_unused(const mox_state_dir *d, const mox_err *why, const char *until)
{
    char text[sizeof why->msg + 64];
    (void)snprintf(text, sizeof text, "%s; states are neither read nor kept there%s", why->msg, until);
    warn(d, text);
}

/* On the writer's thread.  Whatever made it fail, the next try may go well: there may be no descriptor just now. */
static bool take_over(void *user)
{
    mox_state_dir *d = user;
    mox_err err;
    char text[480];
    if (take_lock(d, &err) != MOX_OK) return false;
    if (make_index(d, &err) != MOX_OK) {
        if (!d->complained) warn_unused(d, &err, " yet");
        d->complained = true;
        leave_folder(d);
        return false;
    }
    d->complained = false;
    (void)snprintf(text, sizeof text,
                   "%s: nobody else holds it any more; states are read and kept there from now on", d->dir);
    warn(d, text);
    return true;
}

static bool is_ours(mox_state_dir *d)
{
    if (!d->ours) d->ours = mox_state_writer_ready(&d->writer);
    return d->ours;
}

static mox_status open_dir(mox_state_dir *d, const mox_prefix_opts *o, mox_err *err)
{
    d->dir = mox_strdup(o->state_dir);
    d->key = mox_strdup(o->model_key);
    if (!d->dir || !d->key) return mox_fail_memory(err, strlen(o->state_dir), "a file name");
    d->shape = mox_state_shape_of(d->c, d->key);
    MOX_TRY(mox_dir_make_private(d->dir, err));
    const mox_status locked = take_lock(d, err);
    if (locked != MOX_OK && locked != MOX_E_STATE) return locked;
    if (locked == MOX_OK) MOX_TRY(make_index(d, err));
    else warn_unused(d, err, " until it lets go");
    return mox_state_writer_start(&d->writer, d->c, d->shape, locked == MOX_OK ? NULL : take_over, d, err);
}

mox_status mox_state_dir_open(mox_state_dir **out, mox_context *c, const mox_prefix_opts *o, mox_err *err)
{
    *out = NULL;
    if (!o->model_key || o->state_dir_bytes < 0)
        return mox_fail(err, MOX_E_ARG, "states on disk need a model_key, and a limit that is not negative");
    mox_state_dir *d = mox_alloc_array(1, sizeof *d);
    if (!d) return mox_fail_memory(err, sizeof *d, "states on disk");
    mox_err why;
    *d = (mox_state_dir){.c = c,
                         .lock = -1,
                         .max_bytes = o->state_dir_bytes ? o->state_dir_bytes : DEFAULT_BYTES,
                         .warn = o->warn,
                         .warn_user = o->warn_user};
    const mox_status status = open_dir(d, o, &why);
    if (status == MOX_OK) {
        *out = d;
        return MOX_OK;
    }
    const bool fatal = status == MOX_E_MEMORY;
    if (!fatal) warn_unused(d, &why, "");
    free_dir(d);
    return fatal ? mox_fail(err, status, "%s", why.msg) : MOX_OK;
}

/* ---- saving ---- */

static void let_go(mox_state_dir *d)
{
    const mox_state_job *job = &d->job;
    for (int64_t i = 0; i < job->n_pages; i++) mox_share_drop(d->c, MOX_SHARE_PAGES, job->pages[i]);
    for (int64_t i = 0; i < job->n_states; i++) mox_share_drop(d->c, MOX_SHARE_STATES, job->states[i]);
    d->holding = false;
}

/* Waits for the writer for at most so many seconds; true when it has nothing to do. */
static bool collect(mox_state_dir *d, double seconds)
{
    if (!d->writing) return true;
    if (!mox_state_writer_ended(&d->writer, seconds, &d->job_status, &d->job_err)) return false;
    if (d->holding) let_go(d);
    d->writing = false;
    d->ended = true;
    return true;
}

/* Files that a job was to remove are not there any more, or stay when it failed. */
static void settle(mox_state_dir *d, bool written)
{
    for (size_t i = d->n_entries; i-- > 0;) {
        if (d->entries[i].fate == GIVES_WAY || (d->entries[i].fate == REPLACED && written)) forget(d, i);
        else d->entries[i].fate = STAYS;
    }
}

/* The file that was written is in the index. */
static void enter_job(mox_state_dir *d)
{
    char *path = mox_strdup(d->job.path);
    mox_err err;
    if (path) /* or it is found at the next start */
        (void)add_entry(d, path, d->job.tokens, d->job.n_tokens, &err);
    if (d->complained) warn(d, "states are kept across restarts again");
    d->complained = false;
}

static void conclude(mox_state_dir *d, mox_tree *t)
{
    if (!d->ended) return;
    d->ended = false;
    settle(d, d->job_status == MOX_OK);
    if (d->job_status == MOX_OK) {
        enter_job(d);
    } else if (d->job_status == MOX_E_CANCELLED) { /* what is left of it is written another time */
        mox_tree_unmark(t, d->job.tokens, d->job.n_tokens, d->job.first_new);
    } else if (!d->complained) {
        char text[sizeof d->job_err.msg + 64];
        (void)snprintf(text, sizeof text, "%s; states may not be kept across restarts", d->job_err.msg);
        warn(d, text);
        d->complained = true;
    }
    mox_state_job_deinit(&d->job);
}

/* The last states of the path, which come in falling order. */
static int64_t list_states(const mox_tree *t, int32_t leaf, int32_t states[STATES_PER_FILE],
                           int64_t positions[STATES_PER_FILE])
{
    int64_t n = 0;
    for (int32_t node = leaf; node != MOX_NONE; node = mox_tree_parent(t, node)) {
        int32_t state = MOX_NONE;
        while (n < STATES_PER_FILE && mox_tree_next_state(t, node, &state, &positions[n]))
            states[n++] = state;
    }
    return n;
}

/* The name of a file: of model, template and tokens. */
static char *name_file(const mox_state_dir *d, const mox_state_job *job)
{
    const uint64_t key = XXH3_64bits(d->key, strlen(d->key));
    const XXH128_hash_t hash =
        XXH3_128bits_withSeed(job->tokens, (size_t)job->n_tokens * sizeof *job->tokens, key);
    char name[64];
    (void)snprintf(name, sizeof name, "%016llx%016llx" SUFFIX, (unsigned long long)hash.high64,
                   (unsigned long long)hash.low64);
    return mox_path_join(d->dir, name);
}

/* Lists the files that the job removes: older ones until there is room for it, and those of its beginnings.  Their
 * names are borrowed: the index stays as it is as long as a job is under way. */
static bool list_old(mox_state_dir *d, mox_state_job *job, int64_t bytes)
{
    size_t at[] = {[GIVES_WAY] = 0, [REPLACED] = 0};
    for (size_t i = 0; i < d->n_entries; i++) {
        entry *e = &d->entries[i];
        if (strcmp(e->path, job->path) == 0 || is_beginning(e, job->tokens, job->n_tokens)) e->fate = REPLACED;
    }
    job->n_first = make_room(d, bytes);
    job->old = mox_alloc_array(d->n_entries, sizeof *job->old);
    if (!job->old) {
        for (size_t i = 0; i < d->n_entries; i++) d->entries[i].fate = STAYS;
        return false;
    }
    at[REPLACED] = job->n_first;
    for (size_t i = 0; i < d->n_entries; i++) {
        entry *e = &d->entries[i];
        if (e->fate == GIVES_WAY) e->n_full = e->n_tokens = 0; /* not to be loaded any more */
        else if (e->fate == STAYS || strcmp(e->path, job->path) == 0) continue;
        job->old[at[e->fate]++] = e->path;
    }
    job->n_after = at[REPLACED] - job->n_first;
    return true;
}

/* The path to the leaf, with references to all of it. */
static bool make_job(mox_state_dir *d, mox_tree *t, int32_t leaf)
{
    int32_t states[STATES_PER_FILE];
    int64_t positions[STATES_PER_FILE];
    const int64_t n_states = list_states(t, leaf, states, positions);
    mox_state_job *job = &d->job;
    if (mox_state_job_init(job, mox_tree_end(t, leaf), n_states, NULL) != MOX_OK) return false;
    int64_t page = job->n_pages;
    for (int32_t node = leaf; node != MOX_NONE; node = mox_tree_parent(t, node)) {
        int64_t n;
        const int32_t *tokens = mox_tree_tokens(t, node, &n);
        job->pages[--page] = node;
        if (!mox_tree_marked(t, node)) job->first_new = page;
        memcpy(job->tokens + page * MOX_PAGE_LEN, tokens, (size_t)n * sizeof *tokens);
    }
    for (int64_t i = 0; i < n_states; i++) {
        job->states[i] = states[n_states - 1 - i];
        job->positions[i] = positions[n_states - 1 - i];
    }
    job->path = name_file(d, job);
    const int64_t bytes = mox_state_job_bytes(job, &d->shape);
    if (!job->path || bytes < 0 || bytes > d->max_bytes || !list_old(d, job, bytes)) {
        mox_state_job_deinit(job);
        return false;
    }
    for (int64_t i = 0; i < job->n_pages; i++) mox_share_hold(d->c, MOX_SHARE_PAGES, job->pages[i]);
    for (int64_t i = 0; i < job->n_states; i++) mox_share_hold(d->c, MOX_SHARE_STATES, job->states[i]);
    d->holding = true;
    return true;
}

bool mox_state_dir_tend(mox_state_dir *d, mox_tree *t)
{
    if (is_ours(d)) {
        if (!collect(d, 0)) return true;
        conclude(d, t);
    }
    const int32_t leaf = mox_tree_unmarked(t, MOX_STATE_MIN_TOKENS);
    if (leaf == MOX_NONE) return false;
    if (!d->ours) return true;
    const bool made = make_job(d, t, leaf);
    for (int32_t i = leaf; i != MOX_NONE; i = mox_tree_parent(t, i))
        mox_tree_mark(t, i); /* the file has them all */
    if (!made) return true;
    d->writing = true;
    mox_state_writer_begin(&d->writer, &d->job);
    return true;
}

bool mox_state_dir_let_go(mox_state_dir *d)
{
    if (!d->holding) return false;
    mox_state_writer_shut(&d->writer);
    let_go(d);
    return true;
}

static void write_rest(mox_state_dir *d, mox_tree *t)
{
    const double until = mox_clock_now() + CLOSING_S;
    for (double left = CLOSING_S; left > 0 && collect(d, left); left = until - mox_clock_now()) {
        (void)mox_state_dir_tend(d, t);
        if (!d->writing && mox_tree_unmarked(t, MOX_STATE_MIN_TOKENS) == MOX_NONE) break;
    }
}

void mox_state_dir_close(mox_state_dir **dir, mox_tree *t)
{
    mox_state_dir *d = *dir;
    if (!d) return;
    if (is_ours(d)) write_rest(d, t);
    (void)mox_state_dir_let_go(d);
    (void)collect(d, -1);
    conclude(d, t);
    mox_state_writer_stop(&d->writer);
    free_dir(d);
    *dir = NULL;
}

/* ---- loading ---- */

/* What of a file is to be loaded. */
typedef struct plan {
    mox_state_file *f;
    int64_t at;            /* a sequence will go on here */
    int64_t first, n;      /* pages */
    int64_t state;         /* or MOX_NONE */
    int32_t *pages, saved; /* where they went; MOX_NONE: not yet */
} plan;

static int64_t tokens_in_common(const mox_state_file *f, const int32_t *tokens, int64_t n)
{
    int64_t i = 0;
    while (i < n && i < f->n_tokens && tokens[i] == f->tokens[i]) i++;
    return i;
}

/* How far a sequence gets with the file. */
static void measure(const mox_state_dir *d, const int32_t *tokens, int64_t limit, plan *p)
{
    const int64_t same = tokens_in_common(p->f, tokens, limit);
    p->state = MOX_NONE;
    p->at = d->shape.state_bytes > 0 ? 0 : same;
    for (int64_t i = 0; i < p->f->n_states && p->f->positions[i] <= same; i++) {
        p->at = p->f->positions[i];
        p->state = i;
    }
}

/* Reads everything, or leaves what it got for the caller to drop. */
static mox_status read_all(mox_state_dir *d, plan *p, mox_err *err)
{
    for (int64_t i = p->first; i < p->n; i++) {
        p->pages[i] = mox_share_take(d->c, MOX_SHARE_PAGES);
        if (p->pages[i] == MOX_NONE) return mox_fail(err, MOX_E_FULL, "no page is free");
        MOX_TRY(mox_state_file_read_page(p->f, i, d->c, p->pages[i], err));
    }
    if (p->state == MOX_NONE) return MOX_OK;
    p->saved = mox_share_take(d->c, MOX_SHARE_STATES);
    if (p->saved == MOX_NONE) return mox_fail(err, MOX_E_FULL, "no state is free");
    return mox_state_file_read_state(p->f, p->state, d->c, p->saved, err);
}

/* What was read, and is right as a whole, goes to the tree behind the node. */
static void plant(mox_tree *t, const plan *p, int32_t node)
{
    for (int64_t i = p->first; i < p->n; i++) {
        const int64_t at = i * MOX_PAGE_LEN, n = mox_min_i64(p->f->n_tokens - at, MOX_PAGE_LEN);
        const int32_t next = mox_tree_add(t, node, p->pages[i], p->f->tokens + at, n);
        if (next == MOX_NONE) return;
        node = next;
        if (node == p->pages[i]) mox_tree_mark(t, node);
    }
    if (p->saved != MOX_NONE) mox_tree_add_state(t, node, p->at, p->saved);
}

static mox_status load(mox_state_dir *d, mox_tree *t, plan *p, const mox_tree_match *m, mox_err *err)
{
    const int64_t known = m->full == MOX_NONE ? 0 : mox_tree_end(t, m->full) / MOX_PAGE_LEN;
    int32_t node = m->full;
    p->n = mox_ceil_div(p->at, MOX_PAGE_LEN);
    p->first = mox_min_i64(known, p->n);
    for (int64_t i = known; i > p->n; i--)
        node = mox_tree_parent(t, node); /* a state for pages that are there */
    p->saved = MOX_NONE;
    p->pages = mox_alloc_array((size_t)p->n, sizeof *p->pages);
    if (!p->pages) return mox_fail_memory(err, (size_t)p->n * sizeof *p->pages, "a list of pages");
    for (int64_t i = 0; i < p->n; i++) p->pages[i] = MOX_NONE;
    mox_tree_touch(t, node); /* what makes room for the rest is older, ... */
    for (int32_t i = node; i != MOX_NONE; i = mox_tree_parent(t, i))
        mox_share_hold(d->c, MOX_SHARE_PAGES, i); /* ... or is being written */
    const mox_status status = read_all(d, p, err);
    if (status == MOX_OK) plant(t, p, node);
    for (int32_t i = node; i != MOX_NONE; i = mox_tree_parent(t, i)) mox_share_drop(d->c, MOX_SHARE_PAGES, i);
    for (int64_t i = p->first; i < p->n; i++)
        if (p->pages[i] != MOX_NONE) mox_share_drop(d->c, MOX_SHARE_PAGES, p->pages[i]);
    if (p->saved != MOX_NONE) mox_share_drop(d->c, MOX_SHARE_STATES, p->saved);
    mox_free(p->pages);
    return status;
}

bool mox_state_dir_load(mox_state_dir *d, mox_tree *t, const int32_t *tokens, int64_t n, int64_t limit,
                        const mox_tree_match *m)
{
    if (!is_ours(d)) return false;
    int64_t most = m->at / MOX_PAGE_LEN;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < d->n_entries; i++) {
        const int64_t same = pages_in_common(&d->entries[i], tokens, n);
        if (same > most ||
            (best != SIZE_MAX && same == most && d->entries[i].modified > d->entries[best].modified)) {
            most = same;
            best = i;
        }
    }
    if (best == SIZE_MAX) return false;
    mox_state_file f;
    mox_err err;
    bool loaded = false;
    entry *e = &d->entries[best];
    mox_status status = mox_state_file_open(&f, e->path, &d->shape, &err);
    if (status == MOX_OK) {
        plan p = {.f = &f};
        measure(d, tokens, limit, &p);
        if (p.at > m->at) {
            status = load(d, t, &p, m, &err);
            loaded = status == MOX_OK;
        }
    }
    if (loaded) {
        mox_path_touch(e->path);
        (void)mox_path_stat(e->path, &e->bytes, &e->modified);
    } else if (status == MOX_E_NOT_FOUND && e->fate == REPLACED) {
        e->n_full = e->n_tokens = 0; /* the writer is about to say that it is done */
    } else if (status != MOX_OK && status != MOX_E_MEMORY && status != MOX_E_FULL) {
        warn_ignored(d, &err);
        if (status != MOX_E_IO) e->n_full = e->n_tokens = 0; /* not again */
    }
    mox_state_file_close(&f);
    return loaded;
}
