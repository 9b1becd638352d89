/* app/server/http.c -- calls: from libmicrohttpd's callbacks to whole requests, and answers back.
 *
 * The network thread is libmicrohttpd's one thread.  It must never wait, so a call whose
 * handling takes long is suspended and given to a worker; its answer resumes it.
 *
 * I1  a connection is resumed exactly once for each time that it was suspended, under the
 *     call's lock, and never after it is over (suspended is cleared then).
 * I2  libmicrohttpd takes an answer before a body only by closing the connection; so bodies of
 *     refused calls are read and dropped where they are of a reasonable size. */
#include "app/server/http_internal.h"

#include "app/cli/settings.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/plant.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    HEADERS_MAX = 32 << 10,
    POOL_BYTES = 64 << 10, /* of a connection, for headers and for what is read at once */
    IDLE_S = 75,
    CONNECTIONS = 1024,
    PER_ADDRESS = 512,
    SPARE_FILES = 40, /* descriptors for everything but connections */
    COMPACT = 64 << 10,
    BODIES_MAX = 8, /* of the largest size, that all calls together may hold */
};

/* ---- life --------------------------------------------------------------------------------------- */

void mox_http_keep(mox_http_call *c) { atomic_fetch_add(&c->refs, 1); }

void mox_http_release(mox_http_call *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1) return;
    c->http->opts.over(c->http->opts.user, c);
    if (c->on_release) c->on_release(c->user);
    for (int i = 0; i < c->n_headers; i++) mox_free(c->headers[i].value);
    atomic_fetch_sub(&c->http->body_bytes, (long long)c->body.w.n);
    mox_put_deinit(&c->body);
    mox_put_deinit(&c->out);
    mox_free(c->method);
    mox_free(c->path);
    pthread_mutex_destroy(&c->lock);
    mox_free(c);
}

static mox_http_call *create_call(mox_http *h, struct MHD_Connection *connection, const char *method,
                                  const char *path, const char *version)
{
    mox_http_call *c = mox_alloc_array(1, sizeof *c);
    if (!c) return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    *c = (mox_http_call){.http = h, .connection = connection, .conn = info ? info->socket_context : NULL,
                         .started = mox_clock_now(), .method = mox_strdup(method), .path = mox_strdup(path),
                         .http_1_0 = strcmp(version, "HTTP/1.0") == 0, .refs = 1};
    pthread_mutex_init(&c->lock, NULL);
    (void)snprintf(c->id, sizeof c->id, "%016llx", (unsigned long long)mox_cli_random());
    if (!c->method || !c->path || !c->conn) {
        mox_free(c->method);
        mox_free(c->path);
        pthread_mutex_destroy(&c->lock);
        mox_free(c);
        return NULL;
    }
    pthread_mutex_lock(&h->lock);
    h->n_busy++;
    pthread_mutex_unlock(&h->lock);
    return c;
}

const char *mox_http_id(const mox_http_call *c) { return c->id; }
const char *mox_http_method(const mox_http_call *c) { return c->method; }
const char *mox_http_path(const mox_http_call *c) { return c->path; }
double mox_http_started(const mox_http_call *c) { return c->started; }
int mox_http_status(const mox_http_call *c) { return c->status; }
const char *mox_http_problem(const mox_http_call *c) { return c->problem; }
void *mox_http_attached(const mox_http_call *c) { return c->user; }
const void *mox_http_route(const mox_http_call *c) { return c->route; }
void mox_http_set_route(mox_http_call *c, const void *route) { c->route = route; }

const char *mox_http_body(const mox_http_call *c, size_t *n)
{
    *n = c->body.w.n;
    return mox_writer_text(&c->body.w);
}

bool mox_http_gone(mox_http_call *c)
{
    pthread_mutex_lock(&c->lock);
    const bool gone = c->gone;
    pthread_mutex_unlock(&c->lock);
    return gone;
}

/* ---- gone ---------------------------------------------------------------------------------------- */

void mox_http_wake(mox_http_call *c)
{
    if (!c->suspended || !c->connection) return;
    c->suspended = false; /* I1 */
    MHD_resume_connection(c->connection);
}

static void tell_gone(mox_http_call *c)
{
    pthread_mutex_lock(&c->lock);
    void (*tell)(void *) = c->gone && !c->gone_told ? c->on_gone : NULL;
    if (tell) c->gone_told = true;
    pthread_mutex_unlock(&c->lock);
    if (tell) tell(c->user);
}

/* Everything has been handed to the network: a client that hangs up now has what it wanted. */
static bool is_delivered(const mox_http_call *c)
{
    return c->streaming ? c->ended && c->sent == c->out.w.n : c->answered;
}

void mox_http_lose(mox_http_call *c)
{
    pthread_mutex_lock(&c->lock);
    if (!is_delivered(c)) c->gone = true;
    mox_http_wake(c);
    pthread_mutex_unlock(&c->lock);
    tell_gone(c);
}

void mox_http_attach(mox_http_call *c, void *user, void (*gone)(void *user), void (*release)(void *user))
{
    pthread_mutex_lock(&c->lock);
    c->user = user;
    c->on_gone = gone;
    c->on_release = release;
    pthread_mutex_unlock(&c->lock);
    tell_gone(c);
}

/* ---- answers ------------------------------------------------------------------------------------- */

void mox_http_set_header(mox_http_call *c, const char *name, const char *value)
{
    char *copy = c->n_headers < MOX_HTTP_HEADERS ? mox_strdup(value) : NULL;
    if (!copy) {
        c->header_lost = true;
        return;
    }
    c->headers[c->n_headers].name = name;
    c->headers[c->n_headers++].value = copy;
}

static const char sorry[] = "out of memory\n";

/* With c->lock held. */
static void keep_problem(mox_http_call *c, const char *sentence)
{
    if (!c->problem[0]) (void)snprintf(c->problem, sizeof c->problem, "%s", sentence);
}

void mox_http_set_problem(mox_http_call *c, const char *sentence)
{
    pthread_mutex_lock(&c->lock);
    keep_problem(c, sentence);
    pthread_mutex_unlock(&c->lock);
}

/* An answer without one of its headers could be read as another one (a page without its policy), so there is none: the
 * apology has no header of the owner's, and a stream's client is let go of. */
static void answer(mox_http_call *c, int status, const char *type, mox_put *body, const char *fixed, size_t n)
{
    pthread_mutex_lock(&c->lock);
    if (!c->answered) {
        const bool whole = !c->header_lost;
        c->answered = true;
        c->status = whole ? status : 500;
        c->type = whole ? type : "text/plain";
        c->fixed = whole ? fixed : sorry;
        c->n_fixed = whole ? n : sizeof sorry - 1;
        if (c->fixed == sorry) keep_problem(c, "out of memory for the answer");
        if (body && whole) {
            c->out = *body;
            *body = (mox_put){0};
        }
        if (!whole && c->streaming) c->gone = true; /* the watcher tells the owner */
        mox_http_wake(c);
    }
    pthread_mutex_unlock(&c->lock);
    if (body) mox_put_deinit(body);
}

void mox_http_answer(mox_http_call *c, int status, const char *type, mox_put *body)
{
    if (mox_put_ok(body)) answer(c, status, type, body, NULL, 0);
    else answer(c, 500, "text/plain", NULL, sorry, sizeof sorry - 1);
    mox_put_deinit(body);
}

void mox_http_answer_static(mox_http_call *c, int status, const char *type, const char *bytes, size_t n)
{
    answer(c, status, type, NULL, bytes, n);
}

void mox_http_stream(mox_http_call *c, int status, const char *type, const char *ping, double ping_s)
{
    mox_http_set_header(c, "Cache-Control", "no-cache");
    mox_http_set_header(c, "X-Accel-Buffering", "no"); /* nginx would keep the pieces back */
    pthread_mutex_lock(&c->lock);
    c->streaming = true;
    c->ping = ping;
    c->ping_s = ping_s;
    c->last_send = mox_clock_now();
    pthread_mutex_unlock(&c->lock);
    answer(c, status, type, NULL, NULL, 0);
}

void mox_http_send(mox_http_call *c, const char *bytes, size_t n)
{
    pthread_mutex_lock(&c->lock);
    if (!c->gone && !c->ended) {
        if (c->sent > COMPACT && c->sent > c->out.w.n / 2) {
            char *p = c->out.w.bytes.data;
            memmove(p, p + c->sent, c->out.w.n - c->sent);
            c->out.w.n -= c->sent;
            c->sent = 0;
        }
        mox_put_raw(&c->out, bytes, n);
        c->last_send = mox_clock_now();
        const size_t waiting = c->out.w.n - c->sent;
        if (waiting > MOX_HTTP_OUT_MAX && c->full_since == 0.0) c->full_since = c->last_send;
        /* The owner is told by the watcher: here it may hold the very lock that it takes to hear it. */
        if (!mox_put_ok(&c->out) || waiting > 2 * (size_t)MOX_HTTP_OUT_MAX) c->gone = true;
        mox_http_wake(c);
    }
    pthread_mutex_unlock(&c->lock);
}

void mox_http_end(mox_http_call *c, bool whole)
{
    pthread_mutex_lock(&c->lock);
    if (!c->ended) c->whole = whole;
    c->ended = true;
    mox_http_wake(c);
    pthread_mutex_unlock(&c->lock);
}

static ssize_t read_stream(void *cls, uint64_t at, char *buffer, size_t room)
{
    (void)at;
    mox_http_call *c = cls;
    ssize_t result = 0;
    pthread_mutex_lock(&c->lock);
    size_t n = c->out.w.n - c->sent;
    if (c->gone) {
        result = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n > 0) {
        if (n > room) n = room;
        memcpy(buffer, mox_writer_text(&c->out.w) + c->sent, n);
        c->sent += n;
        if (c->sent == c->out.w.n) c->sent = c->out.w.n = 0;
        if (c->out.w.n - c->sent <= MOX_HTTP_OUT_MAX) c->full_since = 0.0;
        result = (ssize_t)n;
    } else if (c->ended) {
        result = c->whole ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
    } else {
        c->suspended = true;
        MHD_suspend_connection(c->connection);
    }
    pthread_mutex_unlock(&c->lock);
    return result;
}

static void release_reader(void *cls) { mox_http_release(cls); }
static void free_body(void *body) { mox_free(body); }

static struct MHD_Response *make_response(mox_http_call *c)
{
    if (c->streaming) {
        struct MHD_Response *r =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32 << 10, read_stream, c, release_reader);
        if (r) mox_http_keep(c);
        return r;
    }
    if (c->fixed)
        return MHD_create_response_from_buffer(c->n_fixed, (void *)(uintptr_t)c->fixed,
                                               MHD_RESPMEM_PERSISTENT);
    const size_t n = c->out.w.n;
    if (n == 0) return MHD_create_response_from_buffer(0, (void *)(uintptr_t)"", MHD_RESPMEM_PERSISTENT);
    char *bytes = mox_writer_take(&c->out.w);
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(n, bytes, free_body);
    if (!r) mox_free(bytes);
    return r;
}

/* On the network thread, when libmicrohttpd takes an answer. */
static enum MHD_Result queue_answer(mox_http_call *c, struct MHD_Connection *connection)
{
    struct MHD_Response *r = make_response(c);
    if (!r) return MHD_NO;
    enum MHD_Result ok = MHD_YES;
    if (c->type) ok &= MHD_add_response_header(r, "Content-Type", c->type);
    for (int i = 0; i < c->n_headers && !c->header_lost; i++)
        ok &= MHD_add_response_header(r, c->headers[i].name, c->headers[i].value);
    ok &= MHD_add_response_header(r, "X-Request-Id", c->id);
    if (c->close || atomic_load(&c->http->quiet)) ok &= MHD_add_response_header(r, "Connection", "close");
    if (ok == MHD_YES) ok = MHD_queue_response(connection, (unsigned)c->status, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- headers ------------------------------------------------------------------------------------- */

typedef struct header_survey {
    const char *name, *value; /* wanted, and the last that was found */
    int n;
    size_t bytes;
    bool odd;
} header_survey;

static bool is_token(const char *name)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    if (!*name) return false;
    for (const char *p = name; *p; p++)
        if (!((*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
              strchr(others, *p)))
            return false;
    return true;
}

static enum MHD_Result survey_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    header_survey *s = cls;
    s->bytes += strlen(name) + (value ? strlen(value) : 0) + 4;
    if (!is_token(name)) s->odd = true;
    for (const char *p = value; p && *p; p++)
        if ((unsigned char)*p < 0x20 && *p != '\t') s->odd = true;
    if (s->name && strcasecmp(name, s->name) == 0) {
        s->value = value ? value : "";
        s->n++;
    }
    return MHD_YES;
}

static header_survey survey(mox_http_call *c, const char *name)
{
    header_survey s = {.name = name};
    (void)MHD_get_connection_values(c->connection, MHD_HEADER_KIND, survey_header, &s);
    return s;
}

const char *mox_http_header(mox_http_call *c, const char *name, int *n)
{
    const header_survey s = survey(c, name);
    if (n) *n = s.n;
    return s.n == 1 ? s.value : NULL;
}

/* What is wrong with the message itself; NULL: nothing.  *length is that of its body, -1 when it
 * comes in chunks. */
static const char *framing_problem(mox_http_call *c, const char *version, int64_t *length, int *status)
{
    const header_survey sizes = survey(c, "Content-Length"), codings = survey(c, "Transfer-Encoding");
    *status = 400;
    *length = 0;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return "the protocol must be HTTP/1.1";
    if (sizes.bytes > HEADERS_MAX) {
        *status = 431;
        return "the headers are longer than 32768 bytes";
    }
    MOX_PLANT(sizes.n == 1 && codings.n == 0 && strlen(sizes.value) > 3 && strlen(sizes.value) < 9);
    if (sizes.odd) return "a header has a name or a value that is not allowed";
    if (c->path[0] != '/') return "the request target must be a path";
    if (sizes.n > 1 || codings.n > 1) return "Content-Length or Transfer-Encoding is there twice";
    if (sizes.n && codings.n) return "Content-Length and Transfer-Encoding exclude each other";
    if (!c->http_1_0 && survey(c, "Host").n != 1) return "there must be one Host header";
    if (codings.n) {
        *length = -1;
        return strcasecmp(codings.value, "chunked") != 0 ? "the only Transfer-Encoding is chunked"
               : c->http_1_0                             ? "HTTP/1.0 has no Transfer-Encoding"
                                                         : NULL;
    }
    if (!sizes.n) return NULL;
    if (!*sizes.value || strspn(sizes.value, "0123456789") != strlen(sizes.value))
        return "Content-Length is no number";
    *length = strlen(sizes.value) > 15 ? INT64_MAX : 0;
    for (const char *p = sizes.value; *length != INT64_MAX && *p; p++) *length = *length * 10 + (*p - '0');
    return NULL;
}

static enum MHD_Result refuse_now(mox_http_call *c, struct MHD_Connection *connection, int status,
                                  const char *sentence)
{
    if (sentence) c->http->opts.refuse(c->http->opts.user, c, status, sentence);
    c->close = true;
    return queue_answer(c, connection);
}

static void set_state(mox_http_call *c, conn_state state)
{
    pthread_mutex_lock(&c->http->lock);
    c->conn->state = state;
    c->conn->since = mox_clock_now();
    c->conn->body_bytes = 0;
    c->conn->first = false;
    pthread_mutex_unlock(&c->http->lock);
}

static enum MHD_Result take_headers(mox_http *h, struct MHD_Connection *connection, const char *path,
                                    const char *method, const char *version, void **con_cls)
{
    mox_http_call *c = create_call(h, connection, method, path, version);
    if (!c) return MHD_NO;
    *con_cls = c;
    set_state(c, CONN_BODY);
    int status;
    int64_t length;
    const char *problem = framing_problem(c, version, &length, &status);
    if (problem) return refuse_now(c, connection, status, problem);
    if (atomic_load(&h->stopping)) return refuse_now(c, connection, 503, "the server is stopping");
    const mox_http_where where = h->opts.check(h->opts.user, c);
    if (length > h->opts.body_max) {
        if (where == MOX_HTTP_ANSWERED) return refuse_now(c, connection, 0, NULL);
        return refuse_now(c, connection, 413, "the body is larger than this server takes");
    }
    const bool wants_body = strcmp(method, "POST") == 0;
    if (where != MOX_HTTP_ANSWERED && wants_body && length == 0 && survey(c, "Content-Length").n == 0)
        return refuse_now(c, connection, 411,
                          "the body's length must be given, by Content-Length or by chunks");
    if (where != MOX_HTTP_ANSWERED && !wants_body && length != 0)
        return refuse_now(c, connection, 400, "a body is only for POST");
    c->refused = where == MOX_HTTP_ANSWERED;
    c->here = where == MOX_HTTP_INLINE;
    return MHD_YES;
}

/* ---- bodies -------------------------------------------------------------------------------------- */

static enum MHD_Result take_body(mox_http_call *c, const char *bytes, size_t *n)
{
    mox_http *h = c->http;
    pthread_mutex_lock(&h->lock);
    c->conn->body_bytes += (int64_t)*n;
    pthread_mutex_unlock(&h->lock);
    const bool too_much = c->body.w.n + *n > (size_t)h->opts.body_max;
    if (!c->refused && too_much) {
        c->refused = true;
        h->opts.refuse(h->opts.user, c, 413, "the body is larger than this server takes");
    }
    if (!c->refused && atomic_load(&h->body_bytes) > BODIES_MAX * h->opts.body_max) {
        c->refused = true;
        h->opts.refuse(h->opts.user, c, 503, "too many large requests are on their way; try again later");
    }
    if (c->refused) c->discarded += (int64_t)*n;
    else if (mox_write(&c->body.w, bytes, *n, NULL) != MOX_OK) return MHD_NO;
    else atomic_fetch_add(&h->body_bytes, (long long)*n);
    *n = 0;
    return c->discarded > 4 * h->opts.body_max ? MHD_NO : MHD_YES;
}

/* False: the workers leave, and nobody would take it. */
static bool push_work(mox_http *h, mox_http_call *c)
{
    pthread_mutex_lock(&h->queue_lock);
    const bool open = !h->queue_closed;
    if (open) {
        mox_http_keep(c);
        if (h->last) h->last->next = c;
        else h->first = c;
        h->last = c;
        pthread_cond_signal(&h->queue_filled);
    }
    pthread_mutex_unlock(&h->queue_lock);
    return open;
}

static enum MHD_Result begin_handling(mox_http_call *c, struct MHD_Connection *connection)
{
    mox_http *h = c->http;
    if (c->here) {
        if (mox_http_delay(c)) return MHD_YES;
        h->opts.handle(h->opts.user, c);
        return queue_answer(c, connection);
    }
    if (atomic_load(&h->stopping)) return refuse_now(c, connection, 503, "the server is stopping");
    pthread_mutex_lock(&c->lock);
    c->suspended = true;
    MHD_suspend_connection(connection);
    pthread_mutex_unlock(&c->lock);
    mox_http_watch(h, c);
    if (!push_work(h, c)) mox_http_lose(c); /* whoever stops may have looked for calls before it was there */
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *upload, size_t *n,
                                  void **con_cls)
{
    mox_http_call *c = *con_cls;
    if (!c) return take_headers(cls, connection, path, method, version, con_cls);
    if (*n > 0) return take_body(c, upload, n);
    pthread_mutex_lock(&c->lock);
    const bool answered = c->answered, gone = c->gone;
    pthread_mutex_unlock(&c->lock);
    if (gone) return MHD_NO;
    if (c->refused && mox_http_delay(c)) return MHD_YES;
    if (answered) return queue_answer(c, connection);
    return begin_handling(c, connection);
}

/* ---- the end of calls and connections ------------------------------------------------------------ */

static void on_completed(void *cls, struct MHD_Connection *connection, void **con_cls,
                         enum MHD_RequestTerminationCode why)
{
    (void)connection;
    mox_http *h = cls;
    mox_http_call *c = *con_cls;
    *con_cls = NULL;
    if (!c) return;
    mox_http_conn *conn = c->conn;
    mox_http_unwatch(h, conn);
    pthread_mutex_lock(&c->lock);
    c->connection = NULL;
    c->conn = NULL;
    c->suspended = false;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK && !(c->streaming && is_delivered(c))) c->gone = true;
    pthread_mutex_unlock(&c->lock);
    tell_gone(c);
    pthread_mutex_lock(&h->lock);
    conn->state = CONN_IDLE;
    conn->since = mox_clock_now();
    if (--h->n_busy == 0) pthread_cond_broadcast(&h->idle);
    pthread_mutex_unlock(&h->lock);
    mox_http_release(c);
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    mox_http *h = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        mox_http_conn *conn = mox_alloc_array(1, sizeof *conn);
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = conn;
        if (!conn) return;
        pthread_mutex_lock(&h->lock);
        *conn = (mox_http_conn){.next = h->conns,
                                .serial = ++h->serial,
                                .fd = info ? info->connect_fd : -1,
                                .first = true,
                                .since = mox_clock_now()};
        if (h->conns) h->conns->before = conn;
        h->conns = conn;
        pthread_mutex_unlock(&h->lock);
        return;
    }
    mox_http_conn *conn = *context;
    if (!conn) return;
    pthread_mutex_lock(&h->lock);
    if (conn->next) conn->next->before = conn->before;
    if (conn->before) conn->before->next = conn->next;
    else h->conns = conn->next;
    pthread_mutex_unlock(&h->lock);
    mox_free(conn);
}

/* Paths stay as they were sent: none that is served has anything to decode but model names. */
static size_t leave_escapes(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls;
    (void)connection;
    return strlen(text);
}

/* ---- workers ------------------------------------------------------------------------------------- */

static void *work(void *user)
{
    mox_http *h = user;
    for (;;) {
        pthread_mutex_lock(&h->queue_lock);
        while (!h->first && !h->queue_closed) pthread_cond_wait(&h->queue_filled, &h->queue_lock);
        mox_http_call *c = h->first;
        if (c) h->first = c->next;
        if (!h->first) h->last = NULL;
        pthread_mutex_unlock(&h->queue_lock);
        if (!c) return NULL;
        c->next = NULL;
        if (!mox_http_gone(c)) h->opts.handle(h->opts.user, c);
        mox_http_release(c);
    }
}

static void stop_workers(mox_http *h)
{
    pthread_mutex_lock(&h->queue_lock);
    h->queue_closed = true;
    pthread_cond_broadcast(&h->queue_filled);
    pthread_mutex_unlock(&h->queue_lock);
    for (int i = 0; i < h->n_workers; i++) pthread_join(h->workers[i], NULL);
    h->n_workers = 0;
}

static mox_status start_workers(mox_http *h, mox_err *err)
{
    h->workers = mox_alloc_array((size_t)h->opts.n_workers, sizeof *h->workers);
    if (!h->workers) return mox_fail_memory(err, sizeof *h->workers, "threads of the server");
    for (; h->n_workers < h->opts.n_workers; h->n_workers++)
        if (pthread_create(&h->workers[h->n_workers], NULL, work, h) != 0) break;
    return h->n_workers > 0 ? MOX_OK : mox_fail(err, MOX_E_MEMORY, "the server could not start a thread");
}

/* ---- the server ---------------------------------------------------------------------------------- */

static unsigned connection_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= CONNECTIONS + SPARE_FILES)
        return CONNECTIONS;
    return files.rlim_cur > SPARE_FILES + 4 ? (unsigned)files.rlim_cur - SPARE_FILES : 4;
}

static mox_status start_daemon(mox_http *h, mox_err *err)
{
    const unsigned limit = connection_limit();
    /* poll, because its edge-triggered epoll overlooks a hang-up that comes together with data */
    h->daemon = MHD_start_daemon(
        MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, h,
        MHD_OPTION_LISTEN_SOCKET, h->opts.listener, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
        MHD_OPTION_CONNECTION_LIMIT, limit, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
        (unsigned)(limit < PER_ADDRESS ? limit : PER_ADDRESS), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_S, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
        MHD_OPTION_END);
    return h->daemon ? MOX_OK : mox_fail(err, MOX_E_IO, "the HTTP server could not be started");
}

mox_status mox_http_start(mox_http **out, const mox_http_opts *opts, mox_err *err)
{
    *out = NULL;
    mox_http *h = mox_alloc_array(1, sizeof *h);
    if (!h) return mox_fail_memory(err, sizeof *h, "the server");
    h->opts = *opts;
    h->epoll = h->waker = h->timer = h->old_listener = -1;
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->queue_lock, NULL);
    pthread_cond_init(&h->queue_filled, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    mox_status status = mox_http_watch_start(h, err);
    if (status == MOX_OK) status = start_workers(h, err);
    if (status == MOX_OK) status = start_daemon(h, err);
    if (status != MOX_OK) mox_http_stop(&h);
    *out = h;
    return status;
}

void mox_http_quiesce(mox_http *h)
{
    atomic_store(&h->quiet, true);
    const MHD_socket listener = MHD_quiesce_daemon(h->daemon);
    if (listener == MHD_INVALID_SOCKET) return;
    (void)shutdown(listener, SHUT_RDWR);
    for (int late; (late = accept(listener, NULL, NULL)) >= 0;) (void)close(late); /* those at a path still wait in line */
    h->old_listener = listener;
}

int mox_http_busy(mox_http *h)
{
    pthread_mutex_lock(&h->lock);
    const int n = h->n_busy;
    pthread_mutex_unlock(&h->lock);
    return n;
}

bool mox_http_wait(mox_http *h, double timeout_s)
{
    const struct timespec until = mox_clock_at(mox_clock_now() + timeout_s);
    pthread_mutex_lock(&h->lock);
    int code = 0;
    while (h->n_busy > 0 && code == 0) code = pthread_cond_timedwait(&h->idle, &h->lock, &until);
    const bool idle = h->n_busy == 0;
    pthread_mutex_unlock(&h->lock);
    return idle;
}

/* Suspended connections must go on before libmicrohttpd can be stopped, also those that the watcher hangs up just now.
 * The newest come first in the list. */
static void lose_everybody(mox_http *h)
{
    for (uint64_t before = UINT64_MAX;;) {
        mox_http_call *c = NULL;
        pthread_mutex_lock(&h->lock);
        for (mox_http_conn *conn = h->conns; conn && !c; conn = conn->next)
            if (conn->call && conn->serial < before) {
                before = conn->serial;
                c = conn->call;
                mox_http_keep(c);
            }
        pthread_mutex_unlock(&h->lock);
        if (!c) return;
        mox_http_lose(c);
        mox_http_release(c);
    }
}

void mox_http_stop(mox_http **http)
{
    mox_http *h = *http;
    if (!h) return;
    atomic_store(&h->stopping, true);
    stop_workers(h);
    mox_http_end_delays(h);
    lose_everybody(h);
    if (h->daemon) MHD_stop_daemon(h->daemon);
    if (h->old_listener >= 0) (void)close(h->old_listener);
    mox_http_watch_stop(h);
    mox_free(h->workers);
    pthread_cond_destroy(&h->idle);
    pthread_cond_destroy(&h->queue_filled);
    pthread_mutex_destroy(&h->queue_lock);
    pthread_mutex_destroy(&h->lock);
    mox_free(h);
    *http = NULL;
}
