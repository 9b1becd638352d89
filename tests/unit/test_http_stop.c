/* tests/unit/test_http_stop.c -- HTTP is stopped at moments that chance hardly ever brings: no call is forgotten.
 *
 * The network's thread is held where it takes the lock of the workers' queue, until they have left (the linker has
 * its calls come by here). */
#include "app/server/http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

uint64_t mox_cli_random(void);
uint64_t mox_cli_random(void) { return 7; } /* ids of requests */

enum { WORKERS = 2, PATIENCE_MS = 20000 };

static atomic_int n_begun, n_over, n_held, n_joined;
static _Atomic(mox_http *) http;
static atomic_bool hold;
static _Thread_local bool is_network;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static bool wait_for(const atomic_int *count, int n)
{
    for (int i = 0; i < PATIENCE_MS && atomic_load(count) < n; i++) (void)usleep(1000);
    return atomic_load(count) >= n;
}

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    if (is_network && atomic_load(&hold) && m == &atomic_load(&http)->queue_lock) {
        atomic_fetch_add(&n_held, 1);
        (void)wait_for(&n_joined, WORKERS);
    }
    return __real_pthread_mutex_lock(m);
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    const int failure = __real_pthread_join(thread, result);
    atomic_fetch_add(&n_joined, 1);
    return failure;
}

/* ---- the owner -------------------------------------------------------------------------------------------- */

static mox_http_where check(void *user, mox_http_call *c)
{
    (void)user;
    (void)c;
    is_network = true;
    atomic_fetch_add(&n_begun, 1);
    return MOX_HTTP_WORKER;
}

/* The answer would come later. */
static void handle(void *user, mox_http_call *c)
{
    (void)user;
    (void)c;
    atomic_fetch_add(&n_held, 1);
}

static void over(void *user, mox_http_call *c)
{
    (void)user;
    (void)c;
    atomic_fetch_add(&n_over, 1);
}

static void refuse(void *user, mox_http_call *c, int status, const char *sentence)
{
    (void)user;
    mox_http_answer_static(c, status, "text/plain", sentence, strlen(sentence));
}

static mox_http *start(void)
{
    mox_http *h;
    mox_err err;
    (void)unlink(address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0) abort();
    const mox_http_opts opts = {.listener = fd, .body_max = 4096, .n_workers = WORKERS, .check = check,
                                .handle = handle, .over = over, .refuse = refuse};
    if (mox_http_start(&h, &opts, &err) != MOX_OK) abort();
    atomic_store(&http, h);
    return h;
}

/* A request whose body ends. */
static int ask(void)
{
    static const char request[] = "POST /work HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody";
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        send(fd, request, sizeof request - 1, MSG_NOSIGNAL) != (ssize_t)sizeof request - 1)
        abort();
    return fd;
}

static int check_stop(const char *what, bool held, bool doomed)
{
    atomic_store(&n_begun, 0);
    atomic_store(&n_over, 0);
    atomic_store(&n_held, 0);
    atomic_store(&n_joined, 0);
    atomic_store(&hold, held);
    mox_http *h = start();
    const int fd = ask();
    const bool there = wait_for(&n_held, 1);
    if (doomed) {
        (void)pthread_mutex_lock(&h->lock);
        h->conns->doomed = true;
        (void)pthread_mutex_unlock(&h->lock);
    }
    mox_http_stop(&h);
    (void)close(fd);
    const bool right = there && atomic_load(&n_begun) == 1 && atomic_load(&n_over) == 1;
    if (!right) fprintf(stderr, "%s: %d calls begun, %d over\n", what, atomic_load(&n_begun), atomic_load(&n_over));
    return !right;
}

int main(void)
{
    int n_bad = 0;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "/tmp/moxie-http-stop-%ld", (long)getpid());
    n_bad += check_stop("a call that waits for its answer", false, false);
    n_bad += check_stop("a body that ends when the workers have left", true, false);
    n_bad += check_stop("a call whose body came so late that the watcher hangs up just now", false, true);
    (void)unlink(address.sun_path);
    printf("%d passed, %d failed, 0 skipped\n", 3 - n_bad, n_bad);
    return n_bad > 0;
}
