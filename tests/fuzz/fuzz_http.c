/* tests/fuzz/fuzz_http.c -- any bytes on a connection to the server's HTTP.
 *
 * The real thing listens at a socket of the file system; an input is sent, its end is said, and everything
 * that comes back is read.  GET and POST lead to an owner that answers at once, on a worker, or with a stream, by
 * path.  What must hold: the connection is closed soon, what comes back is nothing or begins with a status line,
 * no call is forgotten, and no body is longer than the limit. */
#include "app/server/http.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
uint64_t mox_cli_random(void);

enum { BODY_MAX = 256, PATIENCE_S = 4 };

/* Says which one was not kept, because what threads do is not always done again. */
#define promise(kept) ((kept) ? (void)0 : broken_promise(#kept))

static void broken_promise(const char *which)
{
    fprintf(stderr, "not kept: %s (%s)\n", which, strerror(errno));
    abort();
}

static atomic_int n_begun, n_over; /* calls: no more are over than have begun, and in the end as many */
static mox_http *http;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

uint64_t mox_cli_random(void) { return 7; }

static mox_http_where check(void *user, mox_http_call *c)
{
    (void)user;
    int n;
    const char *path = mox_http_path(c), *coding = mox_http_header(c, "Content-Encoding", &n);
    promise(path[0] == '/' && (coding == NULL || n == 1));
    atomic_fetch_add(&n_begun, 1);
    mox_http_set_route(c, c);
    mox_http_set_header(c, "X-Path", strlen(path) < 20 ? "short" : "long");
    if (path[1] != 'n') return path[1] == 'w' || path[1] == 's' ? MOX_HTTP_WORKER : MOX_HTTP_INLINE;
    mox_http_answer_static(c, 404, "text/plain", "no", 2);
    return MOX_HTTP_ANSWERED;
}

static void on_gone(void *user) { promise(user == &n_over); }

static void handle(void *user, mox_http_call *c)
{
    (void)user;
    mox_http_attach(c, &n_over, on_gone, on_gone);
    mox_put out = {0};
    size_t n;
    const char *body = mox_http_body(c, &n);
    promise(n <= BODY_MAX);
    mox_put_json(&out, body, n);
    if (mox_http_path(c)[1] == 's') {
        mox_http_stream(c, 200, "text/plain", ":\n", 15);
        mox_http_send(c, mox_writer_text(&out.w), out.w.n);
        mox_http_end(c, true);
        mox_put_deinit(&out);
    } else {
        mox_http_answer(c, 200, "text/plain", &out);
    }
}

static void over(void *user, mox_http_call *c)
{
    (void)user;
    promise(mox_http_id(c)[0] && *mox_http_method(c) && mox_http_started(c) > 0.0);
    promise(!mox_http_attached(c) || mox_http_status(c) || mox_http_gone(c));
    atomic_fetch_add(&n_over, 1);
}

static void refuse(void *user, mox_http_call *c, int status, const char *sentence)
{
    (void)user;
    promise(status >= 400 && *sentence);
    if (!mox_http_route(c)) atomic_fetch_add(&n_begun, 1);
    mox_http_set_route(c, c);
    mox_http_answer_static(c, status, "text/plain", sentence, strlen(sentence));
}

/* When the process ends: nobody may be left. */
static void stop(void)
{
    mox_http_quiesce(http);
    promise(mox_http_wait(http, 3.0) && mox_http_busy(http) == 0);
    mox_http_stop(&http);
    (void)unlink(address.sun_path);
}

static void start(void)
{
    mox_err err;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "/tmp/moxie-fuzz-http-%ld", (long)getpid());
    (void)unlink(address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    promise(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0);
    const mox_http_opts opts = {.listener = fd, .body_max = BODY_MAX, .n_workers = 1, .check = check, .handle = handle,
                                .over = over, .refuse = refuse};
    promise(mox_http_start(&http, &opts, &err) == MOX_OK && atexit(stop) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char out[1 << 14];
    size_t n = 0;
    if (!http) start();
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    promise(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    promise(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0);
    for (size_t sent = 0; sent < size;) {
        const ssize_t k = send(fd, data + sent, size - sent, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break; /* it has heard enough */
        sent += (size_t)k;
    }
    (void)shutdown(fd, SHUT_WR);
    for (ssize_t k = 1; k > 0; n += k > 0 ? (size_t)k : 0) {
        if (n == sizeof out) n = sizeof out / 2; /* only the beginning matters */
        do k = recv(fd, out + n, sizeof out - n, 0);
        while (k < 0 && errno == EINTR); /* the fuzzer has a clock of its own */
        promise(k >= 0 || errno == ECONNRESET);
    }
    (void)close(fd);
    for (int i = 0; i < PATIENCE_S * 1000 && atomic_load(&n_over) != atomic_load(&n_begun); i++) usleep(1000);
    promise(atomic_load(&n_over) == atomic_load(&n_begun));
    promise(n == 0 || (n > 12 && memcmp(out, "HTTP/1.1 ", 9) == 0) || memcmp(out, "HTTP/1.0 ", 9) == 0);
    return 0;
}
