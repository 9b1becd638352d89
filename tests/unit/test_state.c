/* tests/unit/test_state.c -- prefixes on disk: across restarts, in damaged and foreign files, with
 * failing disks and memory, and when the process is killed while it writes.
 *
 * Whatever lies in the folder, a prompt gives the numbers of a run that computed everything. */
#include "state_kit.h"

#include "fail_nth.h"
#include "runtime/state_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* ---- restarts ---- */

static void test_a_restart_loses_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        place at;
        char path[300];
        struct stat st;
        new_place(&at);
        choose_tokens(models[i]);
        live(models[i], opts_of(&at), 0, 2);
        assert_int_equal(found(models[i], opts_of(&at), 0), TURN);
        assert_int_equal(found(models[i], opts_of(&at), 1), TURN);
        assert_int_equal(found(models[i], opts_of(&at), 2), 0);
        assert_int_equal(at.n_warnings, 0);
        assert_int_equal(list_files(&at, path, sizeof path), 2);
        assert_true(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
        assert_true(stat(at.dir, &st) == 0 && (st.st_mode & 0777) == 0700);
    }
}

static void test_a_longer_path_replaces_its_beginnings(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    place at;
    char path[300];
    new_place(&at);
    choose_tokens(m);
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c);
    for (int64_t n = 260; n <= TURN; n += 20) {
        const int64_t begin = adopt(p, s, tokens[0], n);
        (void)step(s, tokens[0] + begin, n - begin);
        mox_prefix_keep(p, s);
        mox_prefix_destroy(&p); /* writes */
        assert_int_equal(list_files(&at, path, sizeof path), 1);
        p = new_prefix(c, opts_of(&at));
    }
    assert_int_equal(adopt(p, s, tokens[0], TURN + NEXT), TURN);
    mox_seq_reset(s);
    assert_int_equal(adopt(p, s, tokens[0], 279), 0); /* no state before: a recurrent model starts again */
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
    assert_int_equal(at.n_warnings, 0);
}

/* A place with the one file that a turn leaves. */
static void test_the_folder_has_a_limit(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    place at;
    char path[300];
    new_place_with_file(&at, m, path, sizeof path);
    mox_prefix_opts opts = opts_of(&at);
    opts.state_dir_bytes = bytes_in(&at) * 5 / 2; /* two files */
    live(m, opts, 1, 1);
    assert_int_equal(found(m, opts, 0), TURN); /* the second has not been used since */
    live(m, opts, 2, 1);
    assert_int_equal(list_files(&at, path, sizeof path), 2);
    assert_true(bytes_in(&at) <= opts.state_dir_bytes);
    assert_int_equal(found(m, opts, 1), 0);
    assert_int_equal(found(m, opts, 0), TURN);
    opts.state_dir_bytes = 1000; /* none */
    assert_int_equal(found(m, opts, 0), 0);
    live(m, opts, 3, 1);
    assert_int_equal(list_files(&at, path, sizeof path), 0);
    assert_int_equal(at.n_warnings, 0);
}

/* Files with holes may be as large as can be counted, each, and their sum larger; they give way like others. */
static void test_the_limit_holds_for_files_of_any_size(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    static const char shm[] = "/dev/shm/moxie-states-XXXXXX";
    place at = {0};
    char path[300];
    memcpy(at.dir, shm, sizeof shm);
    if (!mkdtemp(at.dir)) skip();
    choose_tokens(m);
    live(m, opts_of(&at), 0, 1);
    bool large = true;
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%d.state", at.dir, i);
        const int fd = open(path, O_WRONLY | O_CREAT, 0600);
        large &= fd >= 0 && ftruncate(fd, INT64_C(7) << 60) == 0 &&
                 futimens(fd, (const struct timespec[2]){{.tv_sec = i + 1}, {.tv_sec = i + 1}}) == 0;
        (void)close(fd);
    }
    if (large) {
        assert_int_equal(found(m, opts_of(&at), 0), TURN);
        assert_int_equal(at.n_warnings, 2); /* damaged */
        assert_int_equal(list_files(&at, path, sizeof path), 1);
    }
    (void)snprintf(path, sizeof path, "rm -rf '%s'", at.dir);
    assert_int_equal(system(path), 0);
    if (!large) skip(); /* this file system has no such files */
}

/* ---- damage ---- */

static void put_byte(const char *path, int64_t at, int flip)
{
    FILE *f = fopen(path, "r+b");
    assert_true(f && fseek(f, (long)at, at < 0 ? SEEK_END : SEEK_SET) == 0);
    const int c = fgetc(f);
    assert_true(fseek(f, -1, SEEK_CUR) == 0 && fputc(c ^ flip, f) != EOF && fclose(f) == 0);
}

/* Sets the i-th number of the header and makes its checksum right again. */
static void put_header(const char *path, int i, uint64_t value)
{
    uint64_t header[15];
    FILE *f = fopen(path, "r+b");
    assert_true(f && fread(header, sizeof header, 1, f) == 1);
    header[i] = value;
    header[14] = XXH3_64bits(header, 14 * sizeof *header);
    assert_true(fseek(f, 0, SEEK_SET) == 0 && fwrite(header, sizeof header, 1, f) == 1 && fclose(f) == 0);
}

static void cut(const char *path, int64_t by)
{
    struct stat st;
    assert_true(stat(path, &st) == 0 && truncate(path, by < 0 ? st.st_size - by : mox_max_i64(st.st_size - by, 0)) == 0);
}

typedef enum { FLIP, CUT, HEADER } how;
static const struct {
    how how;
    int64_t at; /* FLIP: byte, negative from the end; CUT: bytes less; HEADER: number */
    uint64_t value;
} damages[] = {
    {FLIP, 0, 1},           {FLIP, 8, 1},          {FLIP, 33, 1},         {FLIP, 50, 128},       {FLIP, 112, 1},   {FLIP, 121, 1},
    {FLIP, 150, 4},         {FLIP, 3000, 1},       {FLIP, 90000, 16},     {FLIP, -33, 1},        {FLIP, -1, 64},   {FLIP, -100, 1},
    {CUT, 1, 0},            {CUT, 8, 0},           {CUT, 1 << 20, 0},     {CUT, INT64_C(1) << 40, 0}, {CUT, -1, 0}, {CUT, -4096, 0},
    {HEADER, 2, 2},         {HEADER, 1, 5},        {HEADER, 3, UINT64_MAX}, {HEADER, 4, UINT64_MAX}, {HEADER, 5, UINT64_MAX},
    {HEADER, 5, 0},         {HEADER, 5, 1},        {HEADER, 6, UINT64_MAX}, {HEADER, 6, 1000},   {HEADER, 7, 999}, {HEADER, 8, 0},
    {HEADER, 8, 1},         {HEADER, 9, UINT64_MAX}, {HEADER, 9, UINT64_MAX / 10}, {HEADER, 10, UINT64_MAX}, {HEADER, 11, 77},
    {HEADER, 12, 77},       {HEADER, 13, 0},
};

static void test_damaged_files_are_ignored(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    place at;
    char path[300], command[700];
    new_place_with_file(&at, m, path, sizeof path);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        (void)snprintf(command, sizeof command, "cp '%s' '%s/whole'", path, at.dir);
        assert_int_equal(system(command), 0);
        if (damages[i].how == FLIP) put_byte(path, damages[i].at, (int)damages[i].value);
        else if (damages[i].how == CUT) cut(path, damages[i].at);
        else put_header(path, (int)damages[i].at, damages[i].value);
        at.n_warnings = 0;
        const int64_t n = found(m, opts_of(&at), 0);
        if (n != 0 || at.n_warnings != 1) fail_msg("damage %d: found %d, %d warnings: %s", (int)i, (int)n, at.n_warnings, at.warning);
        /* What was computed instead has been written over it, or beside it. */
        (void)snprintf(command, sizeof command, "rm '%s'/*.state && mv '%s/whole' '%s'", at.dir, at.dir, path);
        assert_int_equal(system(command), 0);
    }
    at.n_warnings = 0;
    assert_int_equal(found(m, opts_of(&at), 0), TURN);
    assert_int_equal(at.n_warnings, 0);
}

static void test_foreign_files_are_ignored(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    place at;
    char path[300], command[1000];
    new_place_with_file(&at, m, path, sizeof path);
    mox_prefix_opts other = opts_of(&at);
    other.model_key = "model and templatf"; /* of the same length */
    assert_int_equal(found(m, other, 0), 0);
    assert_int_equal(at.n_warnings, 1);
    assert_non_null(strstr(at.warning, "another model"));
    (void)snprintf(command, sizeof command, "mv '%s' '%s/elsewhere' && rm -f '%s'/*.state && ln -s '%s/elsewhere' '%s'", path, scratch,
                   at.dir, scratch, path);
    assert_int_equal(system(command), 0);
    at.n_warnings = 0;
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c);
    assert_int_equal(adopt(p, s, tokens[0], TURN + NEXT), 0);
    assert_int_equal(at.n_warnings, 1);
    assert_non_null(strstr(at.warning, "symbolic link"));
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
    (void)snprintf(command, sizeof command, "mv '%s/elsewhere' '%s' && mkdir '%s/folder.state' && mkfifo '%s/pipe.state'", scratch, path,
                   at.dir, at.dir);
    assert_int_equal(system(command), 0);
    at.n_warnings = 0;
    assert_int_equal(found(m, opts_of(&at), 0), TURN);
    assert_int_equal(at.n_warnings, 2);
    if (geteuid() != 0) return; /* only root can give files away */
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    at.n_warnings = 0;
    assert_int_equal(found(m, opts_of(&at), 0), 0);
    assert_int_equal(at.n_warnings, 3);
}

/* ---- failing disks and memory ---- */

static int fail_io(void *user, const char *path, const char *what)
{
    (void)what;
    trouble *t = user;
    return strstr(path, "/states-") && atomic_fetch_add(&t->count, 1) + 1 == t->at ? ENOSPC : 0;
}

/* Creates, adopts, keeps and destroys; answers whether it could be created. */
static bool try_to_live(mox_context *c, place *at)
{
    mox_prefix *p;
    mox_err err;
    const mox_prefix_opts opts = opts_of(at);
    const mox_status status = mox_prefix_create(&p, c, &opts, &err);
    assert_true(status == MOX_OK || (!p && err.msg[0]));
    if (status != MOX_OK) return false;
    mox_seq *s = new_seq(c);
    for (int i = 0; i < 2; i++) {
        const int64_t n = adopt(p, s, tokens[i], TURN);
        assert_true(n == 0 || n >= 256);
        if (n < TURN - 1) (void)step(s, tokens[i] + n, TURN - n);
        mox_prefix_keep(p, s);
    }
    mox_seq_destroy(&s);
    mox_prefix_destroy(&p);
    for (int k = 0; k < MOX_N_SHARES; k++) assert_int_equal(c->shares[k].n_free, c->shares[k].n);
    return true;
}

static void sweep(bool io)
{
    const mox_model *m = models[HYBRID];
    place at, good;
    char command[300];
    new_place(&at);
    new_place(&good);
    choose_tokens(m);
    live(m, opts_of(&good), 0, 1);
    mox_context *c = new_context(m, context_opts);
    bool done = false;
    for (long n = 1; !done; n += n < 40 ? 1 : 7) {
        trouble t = {.at = n};
        (void)snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", at.dir, good.dir, at.dir);
        assert_int_equal(system(command), 0);
        if (io) mox_io_set_hook(fail_io, &t);
        else mox_alloc_set_hook(fail_alloc, &t);
        (void)try_to_live(c, &at);
        mox_io_set_hook(NULL, NULL);
        mox_alloc_set_hook(NULL, NULL);
        done = atomic_load(&t.count) < n;
        at.n_warnings = 0;
        assert_true(try_to_live(c, &at)); /* and nothing that it left behind is wrong */
        if (at.n_warnings) fail_msg("after failure %ld: %s", n, at.warning);
    }
    mox_context_destroy(&c);
}

static void test_failing_file_accesses_lose_no_more_than_time(void **state) { (void)state, sweep(true); }
static void test_failing_allocations_lose_no_more_than_time(void **state) { (void)state, sweep(false); }

/* ---- steps do not wait for the disk ---- */

static int slow_writes(void *user, const char *path, const char *what)
{
    (void)path;
    if (strcmp(what, "write") == 0) {
        atomic_fetch_add((atomic_long *)user, 1);
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return 0;
}

static void test_running_sequences_take_pages_back_from_the_writer(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    place at;
    char path[300];
    new_place(&at);
    choose_tokens(m);
    mox_context_opts opts = context_opts;
    opts.n_seqs = 1; /* what is being written is all that there is */
    opts.n_ctx = TURN + NEXT;
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c);
    atomic_long n_writes = 0;
    mox_io_set_hook(slow_writes, &n_writes);
    (void)step(s, tokens[0], TURN);
    mox_prefix_keep(p, s);
    while (atomic_load(&n_writes) < 3) (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int i = 0; i < 4; i++) mox_seq_checkpoint(s);
    (void)step(s, tokens[1], TURN + NEXT); /* needs every page */
    mox_io_set_hook(NULL, NULL);
    mox_prefix_destroy(&p); /* the writer has noticed by then */
    mox_context_destroy(&c);
    assert_int_equal(list_files(&at, path, sizeof path), 0);
    assert_int_equal(at.n_warnings, 0);
}

typedef struct stuck_disk {
    const char *what; /* that gets stuck */
    atomic_int n_stuck;
    atomic_bool over, waited; /* waited: nobody was there to end it */
} stuck_disk;

static int get_stuck(void *user, const char *path, const char *what)
{
    (void)path;
    stuck_disk *d = user;
    if (strcmp(what, d->what) != 0) return 0;
    atomic_fetch_add(&d->n_stuck, 1);
    for (int i = 0; !atomic_load(&d->over) && i < MINUTE_MS; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (!atomic_load(&d->over)) atomic_store(&d->waited, true);
    return 0;
}

static void wait_until_stuck(const stuck_disk *d)
{
    for (int i = 0; atomic_load(&d->n_stuck) == 0; i++) {
        if (i == MINUTE_MS) fail_msg("nobody came to a \"%s\"", d->what);
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* A step that needs pages which are being written, while the disk does nothing at all. */
static void step_beside(const char *what, int64_t n_next, place *at)
{
    const mox_model *m = models[DENSE];
    stuck_disk disk = {.what = what};
    new_place(at);
    choose_tokens(m);
    mox_context_opts opts = context_opts;
    opts.n_seqs = 1; /* what is being written is all that there is */
    opts.n_ctx = TURN + NEXT;
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, opts_of(at));
    mox_seq *s = new_seq(c);
    (void)step(s, tokens[0], TURN);
    mox_io_set_hook(get_stuck, &disk);
    mox_prefix_keep(p, s);
    wait_until_stuck(&disk);
    (void)step(s, tokens[1], n_next);
    atomic_store(&disk.over, true);
    mox_prefix_keep(p, s);
    mox_prefix_destroy(&p); /* waits for what is under way, and writes the rest */
    mox_io_set_hook(NULL, NULL);
    mox_context_destroy(&c);
    assert_false(atomic_load(&disk.waited));
    assert_int_equal(at->n_warnings, 0);
}

static void test_steps_do_not_wait_for_a_disk_that_is_stuck(void **state)
{
    (void)state;
    place at;
    step_beside("write", TURN + NEXT, &at);
    assert_int_equal(found(models[DENSE], opts_of(&at), 0), 0);
    assert_int_equal(found(models[DENSE], opts_of(&at), 1), TURN + NEXT - 1);
    step_beside("sync", TURN + NEXT, &at); /* all of it had been read: the file is whole */
    assert_int_equal(found(models[DENSE], opts_of(&at), 0), TURN);
}

static void test_what_was_given_up_is_written_later(void **state)
{
    (void)state;
    place at;
    step_beside("write", 30, &at); /* takes the last page back */
    assert_int_equal(found(models[DENSE], opts_of(&at), 0), 256);
}

/* Files that give way, and those that a longer one replaces, while the disk takes its time to remove them. */
static void test_steps_do_not_wait_for_removals(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    for (int replace = 0; replace < 2; replace++) {
        stuck_disk disk = {.what = "remove"};
        place at;
        char path[300];
        new_place_with_file(&at, m, path, sizeof path);
        mox_prefix_opts opts = opts_of(&at);
        if (!replace) opts.state_dir_bytes = bytes_in(&at) * 3 / 2; /* one file */
        mox_context *c = new_context(m, context_opts);
        mox_prefix *p = new_prefix(c, opts);
        mox_seq *s = new_seq(c);
        const int32_t *now = tokens[replace ? 0 : 1];
        (void)step(s, now, TURN + NEXT);
        mox_io_set_hook(get_stuck, &disk);
        mox_prefix_keep(p, s);
        wait_until_stuck(&disk);
        (void)step(s, tokens[2], TURN);
        mox_prefix_keep(p, s); /* has to wait until the other is written */
        atomic_store(&disk.over, true);
        mox_prefix_destroy(&p);
        mox_io_set_hook(NULL, NULL);
        mox_context_destroy(&c);
        assert_false(atomic_load(&disk.waited));
        assert_int_equal(list_files(&at, path, sizeof path), replace ? 2 : 1);
        assert_int_equal(found(m, opts_of(&at), 2), TURN);
        assert_int_equal(found(m, opts_of(&at), 0), replace ? TURN + NEXT - 1 : 0);
        assert_int_equal(at.n_warnings, 0);
    }
}

typedef struct full_disk {
    atomic_bool full;
    atomic_int n_tried; /* files that were begun in vain, or written to their end */
} full_disk;

static int may_be_full(void *user, const char *path, const char *what)
{
    (void)path;
    full_disk *d = user;
    const bool fails = atomic_load(&d->full) && strcmp(what, "write") == 0;
    if (fails || strcmp(what, "sync") == 0) atomic_fetch_add(&d->n_tried, 1);
    return fails ? ENOSPC : 0;
}

/* A full disk is told of once, and so is its end; then it is news again. */
static void test_a_full_disk_is_told_of_until_it_has_room(void **state)
{
    (void)state;
    static const struct {
        bool full;
        int n_warnings; /* so far */
        const char *says;
    } turns[] = {{true, 1, "No space left"}, {true, 1, "No space left"}, {false, 2, "again"},
                 {false, 2, "again"},        {true, 3, "No space left"}};
    enum { N = sizeof turns / sizeof *turns };
    const mox_model *m = models[DENSE];
    place at;
    full_disk disk = {0};
    new_place(&at);
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c);
    mox_io_set_hook(may_be_full, &disk);
    for (int i = 0; i < N; i++) {
        int32_t prompt[TURN];
        make_tokens(m, (uint64_t)(50 + i), prompt, TURN);
        atomic_store(&disk.full, turns[i].full);
        (void)step(s, prompt, TURN);
        for (int k = 0; k < MINUTE_MS; k++) {
            if (atomic_load(&disk.n_tried) > i && at.n_warnings >= turns[i].n_warnings) break;
            mox_prefix_keep(p, s); /* also looks whether the writer has ended */
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        assert_int_equal(atomic_load(&disk.n_tried), i + 1);
        assert_int_equal(at.n_warnings, turns[i].n_warnings);
        assert_non_null(strstr(at.warning, turns[i].says));
    }
    mox_prefix_destroy(&p);
    mox_io_set_hook(NULL, NULL);
    mox_context_destroy(&c);
    assert_int_equal(at.n_warnings, 3);
}

/* What a file would replace is only removed when the file is there. */
static void test_a_failed_write_replaces_nothing(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    place at;
    char path[300];
    full_disk disk = {.full = true};
    new_place_with_file(&at, m, path, sizeof path);
    mox_context *c = new_context(m, context_opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c);
    (void)step(s, tokens[0], TURN + NEXT);
    mox_io_set_hook(may_be_full, &disk);
    mox_prefix_keep(p, s);
    mox_prefix_destroy(&p);
    mox_io_set_hook(NULL, NULL);
    mox_context_destroy(&c);
    assert_int_equal(atomic_load(&disk.n_tried), 1);
    assert_int_equal(at.n_warnings, 1);
    assert_int_equal(list_files(&at, path, sizeof path), 1);
    assert_int_equal(found(m, opts_of(&at), 0), TURN);
}

/* ---- files that are read while memory is short ---- */

static void assert_goes_on_right(const mox_model *m, mox_seq *s, int which)
{
    static float want[MAX_VOCAB];
    const int64_t at = mox_seq_length(s);
    fresh_logits(m, context_opts, tokens[which], at, TURN + NEXT, want);
    assert_same(m, step(s, tokens[which] + at, TURN + NEXT - at), want);
}

/* Pages of the match itself made room for a file that turned out to be damaged. */
static void test_a_failed_load_does_not_leave_a_match_that_is_gone(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    place at;
    char path[300];
    new_place(&at);
    choose_tokens(m);
    live(m, opts_of(&at), 0, 1);
    assert_int_equal(list_files(&at, path, sizeof path), 1);
    put_byte(path, -1000, 1); /* in the last page */
    mox_context_opts opts = context_opts;
    opts.n_seqs = 1;
    opts.n_ctx = TURN + NEXT;
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c);
    assert_int_equal(c->shares[MOX_SHARE_PAGES].n, 5);
    (void)step(s, tokens[0], 100);
    mox_prefix_keep(p, s);
    assert_int_equal(adopt(p, s, tokens[0], TURN + NEXT), MOX_PAGE_LEN); /* the page that was filled in part is gone */
    assert_int_equal(at.n_warnings, 1);
    assert_goes_on_right(m, s, 0);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
}

/* The beginning that a file goes on from is the only thing that nobody else holds. */
static void test_a_path_that_is_extended_from_a_file_stays(void **state)
{
    (void)state;
    const mox_model *m = models[DENSE];
    stuck_disk disk = {.what = "write"};
    place at;
    new_place(&at);
    choose_tokens(m);
    live(m, opts_of(&at), 0, 1);
    mox_context_opts opts = context_opts;
    opts.n_ctx = TURN + NEXT;
    mox_context *c = new_context(m, opts);
    mox_prefix *p = new_prefix(c, opts_of(&at));
    mox_seq *s = new_seq(c), *other = new_seq(c);
    (void)step(s, tokens[0], MOX_PAGE_LEN);
    mox_prefix_keep(p, s);
    (void)step(other, tokens[2], 2 * MOX_PAGE_LEN);
    (void)step(s, tokens[1], TURN);
    mox_io_set_hook(get_stuck, &disk);
    mox_prefix_keep(p, s); /* is being written from now on */
    wait_until_stuck(&disk);
    assert_int_equal(c->shares[MOX_SHARE_PAGES].n_free, 2);
    assert_int_equal(adopt(p, s, tokens[0], TURN + NEXT), TURN);
    atomic_store(&disk.over, true);
    mox_io_set_hook(NULL, NULL);
    assert_goes_on_right(m, s, 0);
    mox_prefix_destroy(&p);
    mox_context_destroy(&c);
    assert_false(atomic_load(&disk.waited));
}

/* ---- kill -9 ---- */

/* Files go, so that there is always something to write. */
static void empty_folder(const place *at)
{
    mox_folder f;
    if (mox_folder_list(&f, at->dir, NULL) != MOX_OK) _exit(1);
    for (size_t i = 0; i < f.n; i++) {
        char *path = mox_path_join(at->dir, f.names[i]);
        if (strcmp(f.names[i], "lock") != 0) mox_path_remove(path);
        mox_free(path);
    }
    mox_folder_deinit(&f);
}

/* Keeps and writes until it is killed; tells `ready` when the first file is under way, or when it is whole, and
 * leaves it there then. */
static void write_for_ever(const mox_model *m, place *at, int ready, bool whole)
{
    mox_context *c = new_context(m, context_opts);
    for (int k = 0;; k++) {
        mox_prefix *p = new_prefix(c, opts_of(at));
        mox_seq *s = new_seq(c);
        const int64_t n = adopt(p, s, tokens[k % 4], TURN);
        (void)step(s, tokens[k % 4] + n, TURN - n);
        mox_prefix_keep(p, s);
        if (k == 0 && !whole && write(ready, "x", 1) != 1) _exit(1);
        mox_seq_destroy(&s);
        mox_prefix_destroy(&p); /* writes what is left */
        if (k == 0 && whole && write(ready, "x", 1) != 1) _exit(1);
        if (k % 4 == 3 && !whole) empty_folder(at);
    }
}

static void test_killed_writers_leave_nothing_that_is_used(void **state)
{
    (void)state;
    const mox_model *m = models[HYBRID];
    place at;
    mox_rng rng;
    mox_rng_init(&rng, 5);
    new_place(&at);
    choose_tokens(m);
    for (int i = 0; i < 50; i++) {
        const bool whole = i == 0;
        int ready[2], status;
        char x;
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork(); /* there are no other threads now */
        assert_true(child >= 0);
        if (child == 0) write_for_ever(m, &at, ready[1], whole);
        assert_int_equal(read(ready[0], &x, 1), 1);
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)(mox_rng_unit(&rng) * 30e6)}, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_true(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        (void)close(ready[0]);
        (void)close(ready[1]);
        const int64_t n = found(m, opts_of(&at), i % 4);
        if (whole) assert_int_equal(n, TURN);
        if (at.n_warnings) fail_msg("after kill %d: %s", i, at.warning);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_restart_loses_nothing, take_hooks_out),
        cmocka_unit_test_teardown(test_a_longer_path_replaces_its_beginnings, take_hooks_out),
        cmocka_unit_test_teardown(test_the_folder_has_a_limit, take_hooks_out),
        cmocka_unit_test_teardown(test_the_limit_holds_for_files_of_any_size, take_hooks_out),
        cmocka_unit_test_teardown(test_damaged_files_are_ignored, take_hooks_out),
        cmocka_unit_test_teardown(test_foreign_files_are_ignored, take_hooks_out),
        cmocka_unit_test_teardown(test_failing_file_accesses_lose_no_more_than_time, take_hooks_out),
        cmocka_unit_test_teardown(test_failing_allocations_lose_no_more_than_time, take_hooks_out),
        cmocka_unit_test_teardown(test_running_sequences_take_pages_back_from_the_writer, take_hooks_out),
        cmocka_unit_test_teardown(test_steps_do_not_wait_for_a_disk_that_is_stuck, take_hooks_out),
        cmocka_unit_test_teardown(test_what_was_given_up_is_written_later, take_hooks_out),
        cmocka_unit_test_teardown(test_steps_do_not_wait_for_removals, take_hooks_out),
        cmocka_unit_test_teardown(test_a_full_disk_is_told_of_until_it_has_room, take_hooks_out),
        cmocka_unit_test_teardown(test_a_failed_write_replaces_nothing, take_hooks_out),
        cmocka_unit_test_teardown(test_a_failed_load_does_not_leave_a_match_that_is_gone, take_hooks_out),
        cmocka_unit_test_teardown(test_a_path_that_is_extended_from_a_file_stays, take_hooks_out),
        cmocka_unit_test_teardown(test_killed_writers_leave_nothing_that_is_used, take_hooks_out),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
