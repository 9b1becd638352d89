/* tests/unit/test_http_fault.c -- HTTP while memory runs out: every allocation fails in turn, on whatever thread.
 *
 * The real thing listens at a socket of the file system.  What comes back is what always comes, to the byte, or nothing, or
 * says that memory ran out; of a stream it may be the beginning, and where its chunks part is left to the clock.  The
 * connection is closed soon, no call is forgotten, and the next request is answered as ever. */
#include "app/server/http.h"

#include "base/alloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

uint64_t mox_cli_random(void);
uint64_t mox_cli_random(void) { return 7; } /* ids of requests */

enum { BODY_MAX = 4096, ROOM = 1 << 18, PATIENCE_S = 10, PIECES = 40 };

typedef struct trouble {
    atomic_long count; /* several threads allocate */
    long at;
} trouble;

static int fail_alloc(void *user, size_t bytes)
{
    (void)bytes;
    trouble *t = user;
    return atomic_fetch_add(&t->count, 1) + 1 != t->at;
}

/* ---- the owner -------------------------------------------------------------------------------------------- */

static atomic_int n_begun, n_over, n_attached, n_released;
static mox_http *http;
static struct sockaddr_un address = {.sun_family = AF_UNIX};

static mox_http_where check(void *user, mox_http_call *c)
{
    (void)user;
    atomic_fetch_add(&n_begun, 1);
    mox_http_set_route(c, c);
    mox_http_set_header(c, "X-Important", "Do not leave this out.");
    switch (mox_http_path(c)[1]) {
    case 'n': mox_http_answer_static(c, 404, "text/plain", "no", 2); return MOX_HTTP_ANSWERED;
    case 'i': return MOX_HTTP_INLINE;
    default: return MOX_HTTP_WORKER;
    }
}

static void on_gone(void *user) { (void)user; }
static void on_release(void *user)
{
    (void)user;
    atomic_fetch_add(&n_released, 1);
}

static void handle(void *user, mox_http_call *c)
{
    (void)user;
    size_t n;
    const char *body = mox_http_body(c, &n);
    atomic_fetch_add(&n_attached, 1);
    mox_http_attach(c, &n_over, on_gone, on_release);
    if (mox_http_path(c)[1] == 's') {
        mox_http_stream(c, 200, "text/plain", ":\n", 15);
        for (int i = 0; i < PIECES; i++) mox_http_send(c, body, n);
        mox_http_end(c, true);
        return;
    }
    mox_put out = {0};
    mox_put_json(&out, body, n);
    mox_http_answer(c, 200, "text/plain", &out);
}

static void over(void *user, mox_http_call *c)
{
    (void)user;
    if (mox_http_route(c)) atomic_fetch_add(&n_over, 1);
}

static void refuse(void *user, mox_http_call *c, int status, const char *sentence)
{
    (void)user;
    mox_http_answer_static(c, status, "text/plain", sentence, strlen(sentence));
}

static mox_status start(mox_err *err)
{
    (void)unlink(address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 16) != 0) abort();
    const mox_http_opts opts = {.listener = fd, .body_max = BODY_MAX, .n_workers = 1, .check = check, .handle = handle,
                                .over = over, .refuse = refuse};
    const mox_status status = mox_http_start(&http, &opts, err);
    if (status != MOX_OK) (void)close(fd);
    return status;
}

/* ---- the client --------------------------------------------------------------------------------------------- */

#define HEAD " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
#define HUNDRED "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
static const struct {
    const char *request;
    bool streams;
} cases[] = {
    {"GET /inline" HEAD "\r\n", false},
    {"POST /work" HEAD "Content-Length: 300\r\n\r\n" HUNDRED HUNDRED HUNDRED, false},
    {"POST /work" HEAD "Transfer-Encoding: chunked\r\n\r\n64\r\n" HUNDRED "\r\n64\r\n" HUNDRED "\r\n0\r\n\r\n", false},
    {"POST /stream" HEAD "Content-Length: 100\r\n\r\n" HUNDRED, true},
    {"POST /no" HEAD "Content-Length: 100\r\n\r\n" HUNDRED, false},
    {"POST /work" HEAD "Content-Length: 5000\r\n\r\n" HUNDRED, false},
    {"GET /inline" HEAD "Host: again\r\n\r\n", false},
};

/* Dates differ from one answer to the next. */
static void forget_date(char *text)
{
    char *at = strstr(text, "\r\nDate: ");
    if (at) memset(at + 8, '-', strcspn(at + 8, "\r"));
}

/* A stream's chunks end wherever its pieces happened to be when the server looked: what they hold is put together, and
 * "." behind it says that the last one came. */
static void join_chunks(char *text)
{
    char *to = strstr(text, "\r\n\r\n");
    if (!to || !strstr(text, "\r\nTransfer-Encoding: chunked")) return;
    const char *const end = text + strlen(text);
    const char *at = to += 4;
    while (at < end) {
        char *data;
        const unsigned long n = strtoul(at, &data, 16);
        if (data == at || strncmp(data, "\r\n", 2) != 0) break;
        if (n == 0) {
            if (strcmp(data, "\r\n\r\n") == 0) *to++ = '.';
            break;
        }
        data += 2;
        const size_t there = (size_t)(end - data), k = n < there ? n : there;
        memmove(to, data, k);
        to += k;
        at = data + k + (there - k < 2 ? there - k : 2);
    }
    *to = '\0';
}

/* Everything that comes back until the connection is closed; false when it is not. */
static bool ask(const char *request, char *out)
{
    size_t n = 0;
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) abort();
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)send(fd, request, strlen(request), MSG_NOSIGNAL);
    ssize_t k;
    while ((k = recv(fd, out + n, ROOM - 1 - n, 0)) > 0) n += (size_t)k;
    out[n] = '\0';
    forget_date(out);
    join_chunks(out);
    const bool closed = k == 0 || errno == ECONNRESET;
    (void)close(fd);
    for (int i = 0; i < PATIENCE_S * 1000 && (mox_http_busy(http) > 0 || atomic_load(&n_over) != atomic_load(&n_begun)); i++)
        (void)usleep(1000);
    return closed && mox_http_busy(http) == 0 && atomic_load(&n_over) == atomic_load(&n_begun);
}

static bool is_fair(const char *answer, const char *usual, bool streams)
{
    if (!*answer || strcmp(answer, usual) == 0) return true;
    if (strncmp(answer, "HTTP/1.1 500 ", 13) == 0) return strstr(answer, "out of memory") != NULL;
    return streams && strncmp(answer, usual, strlen(answer)) == 0;
}

static int check_case(size_t i)
{
    static char usual[ROOM], answer[ROOM];
    trouble t = {.at = 0};
    int n_bad = 0;
    if (!ask(cases[i].request, usual) || strncmp(usual, "HTTP/1.1 ", 9) != 0) {
        fprintf(stderr, "case %zu: %s\n", i, usual);
        return 1;
    }
    for (t.at = 1;; t.at++) {
        atomic_store(&t.count, 0);
        mox_alloc_set_hook(fail_alloc, &t);
        const bool closed = ask(cases[i].request, answer);
        mox_alloc_set_hook(NULL, NULL);
        if ((!closed || !is_fair(answer, usual, cases[i].streams)) && n_bad++ < 5)
            fprintf(stderr, "case %zu, allocation %ld: %s%s\n", i, t.at, closed ? "" : "it was not ended: ", answer);
        if (atomic_load(&t.count) < t.at) break;
        if ((!ask(cases[i].request, answer) || strcmp(answer, usual) != 0) && n_bad++ < 5)
            fprintf(stderr, "case %zu, after allocation %ld: %s\n", i, t.at, answer);
    }
    printf("case %zu: %ld allocations\n", i, t.at - 1);
    return n_bad + (t.at < 3);
}

/* Starting it: a server, or a sentence. */
static int check_start(void)
{
    trouble t = {.at = 0};
    mox_err err;
    int n_bad = 0;
    for (t.at = 1;; t.at++) {
        atomic_store(&t.count, 0);
        mox_alloc_set_hook(fail_alloc, &t);
        const mox_status status = start(&err);
        mox_alloc_set_hook(NULL, NULL);
        if (status == MOX_OK ? http == NULL : http != NULL || status != MOX_E_MEMORY || !err.msg[0]) n_bad++;
        mox_http_stop(&http);
        if (atomic_load(&t.count) < t.at) return n_bad + (t.at < 3);
    }
}

int main(void)
{
    enum { N = sizeof cases / sizeof *cases };
    int n_bad = 0;
    mox_err err;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "/tmp/moxie-http-fault-%ld", (long)getpid());
    n_bad += check_start() > 0;
    if (start(&err) != MOX_OK) abort();
    for (size_t i = 0; i < N; i++) n_bad += check_case(i) > 0;
    mox_http_quiesce(http);
    mox_http_stop(&http);
    (void)unlink(address.sun_path);
    n_bad += atomic_load(&n_attached) == 0 || atomic_load(&n_attached) != atomic_load(&n_released);
    printf("%d passed, %d failed, 0 skipped\n", N + 2 - n_bad, n_bad);
    return n_bad > 0;
}
