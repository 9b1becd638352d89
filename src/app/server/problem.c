/* app/server/problem.c -- see problem.h. */
#include "app/server/problem.h"

#include "app/server/fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *openai, *anthropic;
} types[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {405, "invalid_request_error", "invalid_request_error"},
    {411, "invalid_request_error", "invalid_request_error"},
    {413, "invalid_request_error", "request_too_large"},
    {415, "invalid_request_error", "invalid_request_error"},
    {429, "rate_limit_error", "rate_limit_error"},
    {431, "invalid_request_error", "invalid_request_error"},
    {501, "not_supported_error", "not_found_error"},
    {503, "unavailable_error", "overloaded_error"},
    {500, "server_error", "api_error"}, /* and whatever else */
};

mox_problem mox_problem_make(int status, const char *code, const char *format, ...)
{
    mox_problem p = {.status = status, .code = code};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(p.message, sizeof p.message, format, args);
    va_end(args);
    return p;
}

/* Sentences about a field begin with it. */
static void find_param(mox_problem *p)
{
    const size_t n = strspn(p->message, "abcdefghijklmnopqrstuvwxyz_0123456789");
    if (n == 0 || n >= sizeof p->param) return;
    char name[sizeof p->param] = "";
    memcpy(name, p->message, n);
    if (mox_field_known(name)) memcpy(p->param, name, sizeof name);
}

mox_problem mox_problem_of(const mox_err *err)
{
    static const struct {
        mox_status status;
        int http;
        const char *code;
    } map[] = {
        {MOX_E_ARG, 400, NULL},      {MOX_E_FORMAT, 400, NULL},      {MOX_E_REFUSED, 400, NULL},
        {MOX_E_LIMIT, 400, NULL},    {MOX_E_UNSUPPORTED, 400, NULL}, {MOX_E_FULL, 429, "queue_full"},
        {MOX_E_STATE, 503, NULL},    {MOX_E_MEMORY, 503, NULL},
    };
    mox_problem p = mox_problem_make(500, NULL, "%s", err->msg);
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (map[i].status == err->status) {
            p.status = map[i].http;
            p.code = map[i].code;
        }
    if (p.status == 400) find_param(&p);
    return p;
}

static const char *type_of(const mox_problem *p, mox_vendor vendor)
{
    size_t i = 0;
    while (i + 1 < sizeof types / sizeof *types && types[i].status != p->status) i++;
    return vendor == MOX_VENDOR_ANTHROPIC ? types[i].anthropic : types[i].openai;
}

void mox_problem_put(const mox_problem *p, mox_vendor vendor, const char *request_id, mox_put *out)
{
    const char *type = type_of(p, vendor);
    if (vendor == MOX_VENDOR_ANTHROPIC) {
        mox_putf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
        mox_put_string(out, p->message);
        mox_putf(out, "},\"request_id\":\"req_%s\"}", request_id);
        return;
    }
    mox_putf(out, "{\"error\":{\"message\":");
    mox_put_string(out, p->message);
    mox_putf(out, ",\"type\":\"%s\",\"param\":", type);
    mox_put_string(out, p->param[0] ? p->param : NULL);
    mox_putf(out, ",\"code\":");
    mox_put_string(out, p->code);
    if (p->n_ctx > 0)
        mox_putf(out, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)p->n_prompt,
                 (long long)p->n_ctx);
    mox_putf(out, "}}");
}

void mox_problem_log(const mox_problem *p, mox_http_call *c)
{
    if (p->status >= 500) mox_http_set_problem(c, p->message);
}

void mox_problem_answer(const mox_problem *p, mox_vendor vendor, mox_http_call *c)
{
    mox_put body = {0};
    mox_problem_put(p, vendor, mox_http_id(c), &body);
    mox_problem_log(p, c);
    if (p->status == 401) mox_http_set_header(c, "WWW-Authenticate", "Bearer");
    if (p->status == 429) mox_http_set_header(c, "Retry-After", "5");
    if (p->status == 503) mox_http_set_header(c, "Retry-After", "10");
    mox_http_answer(c, p->status, "application/json", &body);
}
