/* A mapped file that became shorter, met by many threads at once: one sentence and one exit code. */
#include "app/cli/bus.h"
#include "app/cli/commands.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_THREADS = 8, N_TIMES = 50, N_BYTES = 1 << 16 };

typedef struct mapped {
    pthread_barrier_t all_here;
    const volatile char *bytes;
} mapped;

static void *read_it(void *arg)
{
    mapped *const m = arg;
    (void)pthread_barrier_wait(&m->all_here);
    (void)m->bytes[0];
    return NULL;
}

/* What a process says on stderr whose threads all read a file that has just lost its bytes. */
static void meet_the_end(int said)
{
    char path[] = "/tmp/moxie-bus-XXXXXX";
    mapped m;
    pthread_t threads[N_THREADS];
    const int fd = mkstemp(path);
    if (fd < 0 || unlink(path) != 0 || ftruncate(fd, N_BYTES) != 0) _exit(99);
    m.bytes = mmap(NULL, N_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
    if (m.bytes == MAP_FAILED || ftruncate(fd, 0) != 0 || dup2(said, STDERR_FILENO) < 0) _exit(99);
    if (pthread_barrier_init(&m.all_here, NULL, N_THREADS) != 0) _exit(99);
    mox_cli_bus_catch();
    for (int i = 0; i < N_THREADS; i++)
        if (pthread_create(&threads[i], NULL, read_it, &m) != 0) _exit(99);
    for (int i = 0; i < N_THREADS; i++) (void)pthread_join(threads[i], NULL);
    _exit(98); /* all of them have read what is not there */
}

static void test_one_sentence(void **state)
{
    (void)state;
    for (int time = 0; time < N_TIMES; time++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) meet_the_end(ends[1]);
        close(ends[1]);
        char said[8192] = "";
        size_t n = 0;
        for (ssize_t got; n < sizeof said - 1 && (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0;) n += (size_t)got;
        close(ends[0]);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), EXIT_IO);
        assert_int_equal(strncmp(said, "moxie: /tmp/moxie-bus-", strlen("moxie: /tmp/moxie-bus-")), 0);
        assert_ptr_equal(strchr(said, '\n'), said + n - 1);
        assert_non_null(strstr(said, "was cut short or could not be read while running"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_sentence)};
    return cmocka_run_group_tests_name("bus", tests, NULL, NULL);
}
