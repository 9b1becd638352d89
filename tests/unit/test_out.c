/* Files that appear when they are complete, written by several at once: all of one writer's bytes or of another's. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_WRITERS = 3, N_TIMES = 400, PIECES = 8, PIECE = 100 };

static char folder[] = "/tmp/moxie-out-XXXXXX";
static char path[64], temporary[80];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(path, sizeof path, "%s/file", folder);
    (void)snprintf(temporary, sizeof temporary, "%s.part", path);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    (void)unlink(temporary);
    return rmdir(folder);
}

static size_t read_whole(char *bytes, size_t room)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    const size_t n = fread(bytes, 1, room, f);
    (void)fclose(f);
    return n;
}

static void put(mox_out *o, const char *text)
{
    mox_err err;
    if (mox_out_write(o, text, strlen(text), &err) != MOX_OK) fail_msg("%s", err.msg);
}

static void the_second_writer_is_refused(void **state)
{
    (void)state;
    mox_out first, second;
    mox_err err;
    char bytes[32];
    assert_int_equal(mox_out_open(&first, path, &err), MOX_OK);
    put(&first, "of the ");
    assert_int_equal(mox_out_open(&second, path, &err), MOX_E_IO);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "another program is writing it"));
    mox_out_discard(&second); /* closed storage */
    put(&first, "first");
    assert_int_equal(mox_out_commit(&first, &err), MOX_OK);
    assert_int_equal(read_whole(bytes, sizeof bytes), 12);
    assert_memory_equal(bytes, "of the first", 12);
    assert_int_equal(mox_out_open(&second, path, &err), MOX_OK);
    put(&second, "second");
    assert_int_equal(mox_out_commit(&second, &err), MOX_OK);
    assert_int_equal(read_whole(bytes, sizeof bytes), 6);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

/* What is for the owner's eyes goes to no file that others made, and a pipe that nobody reads is not waited for. */
static void what_others_put_there_is_not_written_to(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    struct stat st;
    (void)unlink(temporary);
    (void)alarm(20);
    assert_int_equal(mkfifo(temporary, 0666), 0);
    assert_int_equal(mox_out_open(&o, path, &err), MOX_E_IO);
    assert_int_equal(mox_out_open_durable(&o, path, &err), MOX_E_IO);
    assert_non_null(strstr(err.msg, temporary));
    assert_true(stat(temporary, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(unlink(temporary), 0);
    (void)alarm(0);
    if (geteuid() != 0) return; /* only root can give files away */
    FILE *f = fopen(temporary, "wb");
    assert_true(f && fputs("theirs", f) >= 0 && fclose(f) == 0);
    assert_int_equal(chown(temporary, 12345, (gid_t)-1), 0);
    assert_int_equal(mox_out_open_durable(&o, path, &err), MOX_E_IO);
    assert_non_null(strstr(err.msg, "another user's"));
    assert_true(stat(temporary, &st) == 0 && st.st_size == 6);
    assert_int_equal(unlink(temporary), 0);
}

static void what_a_killed_program_left_is_replaced(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    char bytes[32];
    FILE *f = fopen(temporary, "wb");
    assert_non_null(f);
    assert_true(fputs("longer than what follows", f) >= 0 && fclose(f) == 0);
    assert_int_equal(mox_out_open(&o, path, &err), MOX_OK);
    put(&o, "short");
    assert_int_equal(mox_out_commit(&o, &err), MOX_OK);
    assert_int_equal(read_whole(bytes, sizeof bytes), 5);
}

static void a_pipe_stays_a_pipe(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    struct stat st;
    char bytes[32];
    (void)unlink(path); /* of the test before */
    assert_int_equal(mkfifo(path, 0600), 0);
    const int reader = open(path, O_RDWR | O_CLOEXEC); /* so that no end of it waits for another */
    assert_true(reader >= 0);
    assert_int_equal(mox_out_open(&o, path, &err), MOX_OK);
    assert_int_equal(fcntl(o.fd, F_GETFL) & O_NONBLOCK, 0); /* what a slow reader leaves in it is waited for */
    put(&o, "through");
    assert_int_equal(mox_out_commit(&o, &err), MOX_OK);
    assert_int_equal(mox_out_open(&o, path, &err), MOX_OK);
    put(&o, " and again");
    mox_out_discard(&o);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(read(reader, bytes, sizeof bytes), 17);
    assert_memory_equal(bytes, "through and again", 17);
    close(reader);
    assert_int_equal(unlink(path), 0);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

/* alarm ends a test that waits for a reader. */
static void a_pipe_without_a_reader_is_refused(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)alarm(20);
    assert_int_equal(mox_out_open(&o, path, &err), MOX_E_IO);
    (void)alarm(0);
    assert_non_null(strstr(err.msg, "nobody reads it"));
    assert_int_equal(unlink(path), 0);
}

/* Standard output that goes to a file, which is written by its name, too. */
static void our_own_output_stays_where_it_is(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    char bytes[32];
    (void)unlink(path);
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), before = dup(STDOUT_FILENO);
    assert_true(file >= 0 && before >= 0 && fflush(stdout) == 0 && dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
    ssize_t n = write(STDOUT_FILENO, "one ", 4);
    mox_status status = mox_out_open(&o, "/proc/self/fd/1", &err);
    if (status == MOX_OK) status = mox_out_write(&o, "two ", 4, &err);
    if (status == MOX_OK) status = mox_out_commit(&o, &err);
    n += write(STDOUT_FILENO, "three", 5);
    assert_int_equal(dup2(before, STDOUT_FILENO), STDOUT_FILENO); /* what fails from here on is to be seen */
    close(before);
    close(file);
    assert_int_equal(status, MOX_OK);
    assert_int_equal(n, 9);
    assert_int_equal(read_whole(bytes, sizeof bytes), 13);
    assert_memory_equal(bytes, "one two three", 13);
}

/* Links one behind another, relative ones too, to a file that is there and to one that is not. */
static void a_link_stays_a_link(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    struct stat st;
    char first[80], second[80], bytes[32];
    (void)unlink(path);
    (void)snprintf(first, sizeof first, "%s/first", folder);
    (void)snprintf(second, sizeof second, "%s/second", folder);
    assert_int_equal(symlink("second", first), 0);
    assert_int_equal(symlink(path, second), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mox_out_open(&o, first, &err), MOX_OK);
        put(&o, i == 0 ? "new" : "newer");
        assert_int_equal(mox_out_commit(&o, &err), MOX_OK);
        assert_int_equal(lstat(first, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISREG(st.st_mode));
        assert_int_equal(read_whole(bytes, sizeof bytes), i == 0 ? 3 : 5);
    }
    assert_int_equal(mox_out_open(&o, first, &err), MOX_OK);
    mox_out_discard(&o);
    assert_int_equal(read_whole(bytes, sizeof bytes), 5);
    assert_int_not_equal(access(temporary, F_OK), 0);
    assert_int_equal(unlink(first), 0);
    assert_int_equal(unlink(second), 0);
}

/* Links in a circle, which the system does not follow: neither is replaced by a file. */
static void what_cannot_be_looked_at_is_left_alone(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    struct stat st;
    char first[80], second[80];
    (void)snprintf(first, sizeof first, "%s/first", folder);
    (void)snprintf(second, sizeof second, "%s/second", folder);
    (void)unlink(path);
    assert_int_equal(symlink("second", first), 0);
    assert_int_equal(symlink("first", second), 0);
    assert_int_equal(mox_out_open(&o, first, &err), MOX_E_IO);
    assert_non_null(strstr(err.msg, first));
    assert_non_null(strstr(err.msg, strerror(ELOOP)));
    assert_int_equal(lstat(first, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(lstat(second, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(unlink(first), 0);
    assert_int_equal(unlink(second), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left there */
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void a_folder_is_refused_at_once(void **state)
{
    (void)state;
    mox_out o;
    mox_err err;
    assert_int_equal(mox_out_open(&o, folder, &err), MOX_E_IO);
    assert_non_null(strstr(err.msg, "cannot write: Is a directory"));
}

typedef struct writer {
    pthread_t thread;
    char letter;
    bool gives_up; /* every other time */
    int n_whole, n_refused, n_given_up;
    atomic_bool *go_on;
} writer;

static void *write_often(void *user)
{
    writer *w = user;
    char piece[PIECE];
    memset(piece, w->letter, sizeof piece);
    for (int time = 0; time < N_TIMES; time++) {
        mox_out o;
        mox_status status = mox_out_open(&o, path, NULL);
        w->n_refused += status != MOX_OK;
        for (int i = 0; i < PIECES && status == MOX_OK; i++) status = mox_out_write(&o, piece, sizeof piece, NULL);
        if (status == MOX_OK && w->gives_up && time % 2) {
            mox_out_discard(&o);
            w->n_given_up++;
        } else {
            w->n_whole += status == MOX_OK && mox_out_commit(&o, NULL) == MOX_OK;
        }
    }
    return NULL;
}

static void *read_often(void *user)
{
    const writer *w = user;
    uintptr_t n_mixed = 0;
    while (atomic_load(w->go_on)) {
        char bytes[PIECES * PIECE + 1];
        const size_t n = read_whole(bytes, sizeof bytes);
        bool whole = n == PIECES * PIECE;
        for (size_t i = 1; i < n; i++) whole = whole && bytes[i] == bytes[0];
        n_mixed += !whole;
    }
    return (void *)n_mixed;
}

static void no_reader_sees_a_mixture(void **state)
{
    (void)state;
    writer w[N_WRITERS];
    atomic_bool go_on = true;
    int n_whole = 0;
    writer reader = {.letter = 'a', .go_on = &go_on};
    (void)write_often(&reader); /* there is something to read */
    assert_int_equal(reader.n_whole, N_TIMES);
    assert_int_equal(pthread_create(&reader.thread, NULL, read_often, &reader), 0);
    for (int i = 0; i < N_WRITERS; i++) {
        w[i] = (writer){.letter = (char)('a' + i), .gives_up = i > 0};
        assert_int_equal(pthread_create(&w[i].thread, NULL, write_often, &w[i]), 0);
    }
    for (int i = 0; i < N_WRITERS; i++) {
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
        assert_int_equal(w[i].n_whole + w[i].n_refused + w[i].n_given_up, N_TIMES);
        n_whole += w[i].n_whole;
    }
    assert_true(n_whole > 0); /* one may be refused each time, while another that has it waits for a processor */
    void *n_mixed;
    atomic_store(&go_on, false);
    assert_int_equal(pthread_join(reader.thread, &n_mixed), 0);
    assert_int_equal((uintptr_t)n_mixed, 0);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_second_writer_is_refused),
                                       cmocka_unit_test(what_others_put_there_is_not_written_to),
                                       cmocka_unit_test(what_a_killed_program_left_is_replaced),
                                       cmocka_unit_test(a_pipe_stays_a_pipe),
                                       cmocka_unit_test(a_pipe_without_a_reader_is_refused),
                                       cmocka_unit_test(our_own_output_stays_where_it_is),
                                       cmocka_unit_test(a_link_stays_a_link),
                                       cmocka_unit_test(what_cannot_be_looked_at_is_left_alone),
                                       cmocka_unit_test(a_folder_is_refused_at_once),
                                       cmocka_unit_test(no_reader_sees_a_mixture)};
    return cmocka_run_group_tests_name("out", tests, make_folder, remove_folder);
}
