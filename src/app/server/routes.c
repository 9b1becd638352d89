/* app/server/routes.c -- which path leads where, and what every request goes through: origin,
 * key, type of the body, and at its end one line of the log.
 *
 * Queries are ignored, which is what clients that append some count on. */
#include "app/server/answer.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void handle_embeddings(mox_server *s, mox_http_call *c)
{
    (void)s;
    const mox_problem p =
        mox_problem_make(501, "not_supported", "embeddings are not supported by this server");
    mox_problem_answer(&p, MOX_VENDOR_OPENAI, c);
}

/* Some clients ask so whether anybody is there. */
static void handle_hello(mox_server *s, mox_http_call *c)
{
    (void)s;
    mox_http_answer_static(c, 200, "application/json", "{}", 2);
}

#define OPENAI MOX_VENDOR_OPENAI
#define ANTHROPIC MOX_VENDOR_ANTHROPIC

static const mox_route routes[] = {
    {"GET", "/health", mox_handle_health, .vendor = OPENAI, .open = true, .here = true},
    {"GET", "/v1/health", mox_handle_health, .vendor = OPENAI, .open = true, .here = true},
    {"GET", "/api/hello", handle_hello, .vendor = ANTHROPIC, .open = true, .here = true},
    {"POST", "/v1/chat/completions", mox_handle_chat, .vendor = OPENAI},
    {"POST", "/chat/completions", mox_handle_chat, .vendor = OPENAI},
    {"POST", "/v1/completions", mox_handle_completions, .vendor = OPENAI},
    {"POST", "/completions", mox_handle_completions, .vendor = OPENAI},
    {"POST", "/v1/responses", mox_handle_responses, .vendor = OPENAI},
    {"POST", "/responses", mox_handle_responses, .vendor = OPENAI},
    {"POST", "/v1/messages", mox_handle_messages, .vendor = ANTHROPIC},
    {"POST", "/v1/messages/count_tokens", mox_handle_count_tokens, .vendor = ANTHROPIC},
    {"POST", "/v1/embeddings", handle_embeddings, .vendor = OPENAI},
    {"POST", "/embeddings", handle_embeddings, .vendor = OPENAI},
    {"GET", "/v1/models", mox_handle_models, .vendor = OPENAI, .here = true},
    {"GET", "/models", mox_handle_models, .vendor = OPENAI, .here = true},
    {"GET", "/v1/models/*", mox_handle_model, .vendor = OPENAI, .here = true},
    {"GET", "/props", mox_handle_props, .vendor = OPENAI, .here = true},
    {"GET", "/slots", mox_handle_slots, .vendor = OPENAI, .here = true},
    {"GET", "/metrics", mox_handle_metrics, .vendor = OPENAI, .here = true},
    {"POST", "/tokenize", mox_handle_tokenize, .vendor = OPENAI},
    {"POST", "/detokenize", mox_handle_detokenize, .vendor = OPENAI},
    {"POST", "/apply-template", mox_handle_apply_template, .vendor = OPENAI},
};

/* Of every file of the page. */
static const mox_route page = {"GET", "/", mox_handle_page, .vendor = OPENAI, .open = true, .here = true};

static bool path_matches(const char *pattern, const char *path)
{
    const size_t n = strlen(pattern);
    if (pattern[n - 1] != '*') return strcmp(pattern, path) == 0;
    return strncmp(pattern, path, n - 1) == 0 && path[n - 1] != '\0';
}

/* HEAD is GET whose body stays here. *any: the path is served, if by other methods. */
static const mox_route *find_route(const char *method, const char *path, const mox_route **any)
{
    if (strcmp(method, "HEAD") == 0) method = "GET";
    *any = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!path_matches(routes[i].path, path)) continue;
        *any = &routes[i];
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
    }
    if (!mox_page_has(path)) return NULL;
    *any = &page;
    return strcmp(method, "GET") == 0 ? &page : NULL;
}

/* Whose shape errors have, also at paths of an API that are not served; any is find_route's. */
static mox_vendor vendor_of(const mox_route *any, const char *path)
{
    static const char messages[] = "/v1/messages/";
    if (any) return any->vendor;
    return strncmp(path, messages, sizeof messages - 1) == 0 ? ANTHROPIC : OPENAI;
}

static mox_http_where refuse(mox_http_call *c, const mox_problem *p, mox_vendor vendor)
{
    mox_problem_answer(p, vendor, c);
    return MOX_HTTP_ANSWERED;
}

/* The question of a browser before it asks from another origin. */
static mox_http_where answer_preflight(mox_http_call *c)
{
    mox_http_set_header(c, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    mox_http_set_header(
        c, "Access-Control-Allow-Headers",
        "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta, "
        "Anthropic-Dangerous-Direct-Browser-Access, X-Stainless-Arch, X-Stainless-Lang, X-Stainless-Os, "
        "X-Stainless-Package-Version, X-Stainless-Retry-Count, X-Stainless-Runtime, "
        "X-Stainless-Runtime-Version, X-Stainless-Timeout");
    mox_http_set_header(c, "Access-Control-Max-Age", "600");
    mox_http_answer_static(c, 204, NULL, "", 0);
    return MOX_HTTP_ANSWERED;
}

static bool check_type(mox_http_call *c, mox_problem *p)
{
    int n_types, n_codings;
    const char *type = mox_http_header(c, "Content-Type", &n_types),
               *coding = mox_http_header(c, "Content-Encoding", &n_codings);
    *p = mox_problem_make(
        415, NULL, "the body must be JSON, with Content-Type: application/json and no Content-Encoding");
    if (n_types > 1 || n_codings > 1 || (coding && strcasecmp(coding, "identity") != 0)) return false;
    if (!type) return true;
    const size_t n = strcspn(type, "; \t");
    return n == 16 && strncasecmp(type, "application/json", n) == 0;
}

mox_http_where mox_routes_check(void *server, mox_http_call *c)
{
    mox_server *s = server;
    mox_problem p;
    const char *method = mox_http_method(c);
    const mox_route *any, *r = find_route(method, mox_http_path(c), &any);
    const mox_vendor vendor = vendor_of(any, mox_http_path(c));
    mox_http_set_header(c, "X-Content-Type-Options", "nosniff");
    if (vendor == ANTHROPIC) mox_http_set_header(c, "request-id", mox_http_id(c));
    if (!mox_auth_check_origin(&s->auth, c, &p)) return refuse(c, &p, vendor);
    if (strcmp(method, "OPTIONS") == 0) return answer_preflight(c);
    if (!r) {
        p = any ? mox_problem_make(405, NULL, "%.20s is not a method of this path; it takes %s", method,
                                   any->method)
                : mox_problem_make(404, NULL, "there is nothing at %.200s", mox_http_path(c));
        if (any)
            mox_http_set_header(c, "Allow",
                                strcmp(any->method, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
        return refuse(c, &p, vendor);
    }
    if (!r->open && !mox_auth_check_key(&s->auth, c, &p)) return refuse(c, &p, vendor);
    if (strcmp(r->method, "POST") == 0 && !check_type(c, &p)) return refuse(c, &p, vendor);
    if (strcmp(r->method, "POST") == 0 && atomic_load(&s->draining)) {
        p = mox_problem_make(503, NULL, "the server is stopping");
        return refuse(c, &p, vendor);
    }
    mox_http_set_route(c, r);
    return r->here ? MOX_HTTP_INLINE : MOX_HTTP_WORKER;
}

void mox_routes_handle(void *server, mox_http_call *c)
{
    const mox_route *r = mox_http_route(c);
    r->handle(server, c);
}

void mox_routes_refuse(void *server, mox_http_call *c, int status, const char *sentence)
{
    (void)server;
    const mox_route *any;
    (void)find_route(mox_http_method(c), mox_http_path(c), &any);
    const mox_problem p = mox_problem_make(status, NULL, "%s", sentence);
    mox_problem_answer(&p, vendor_of(any, mox_http_path(c)), c);
}

static void describe_reply(const mox_answer *a, bool gone, mox_log_entry *e)
{
    const mox_usage u = mox_answer_usage(a);
    const mox_choice *first = &a->choices[0];
    if (a->n_choices == 0) return; /* it was refused, or only counted */
    e->n_prompt = u.prompt;
    e->n_reused = u.reused;
    e->n_reply = u.reply;
    e->queue_s = first->queue_s;
    e->prefill_s = first->prefill_s;
    e->decode_s = first->decode_s;
    e->first_token_s = a->first_token > 0.0 ? a->first_token - mox_http_started(a->call) : 0.0;
    e->reuse = a->reuse;
    e->asked_for = a->ask.model[0] && strcmp(a->ask.model, a->server->model_name) != 0 ? a->ask.model : NULL;
    e->finish = gone        ? "cancelled"
                : a->failed ? (a->problem.status == 429 ? NULL : "error")
                            : mox_finish_word(first->stop);
}

void mox_routes_over(void *server, mox_http_call *c)
{
    mox_server *s = server;
    const bool gone = mox_http_gone(c);
    const mox_answer *a = mox_http_attached(c);
    mox_log_entry e = {.id = mox_http_id(c),
                       .method = mox_http_method(c),
                       .path = mox_http_path(c),
                       .status = mox_http_status(c),
                       .problem = gone ? NULL : mox_http_problem(c), /* nobody heard of it */
                       .seconds = mox_clock_now() - mox_http_started(c)};
    if (a) describe_reply(a, gone, &e);
    mox_metrics_count(&s->metrics, e.status, e.finish);
    if (e.finish) mox_metrics_observe(&s->metrics, MOX_TIME_REQUEST, e.seconds);
    const mox_route *r = mox_http_route(c);
    if (r && r->here && e.status == 200) return; /* probes and scrapers would fill the log */
    mox_log_request(&s->log, &e);
}
