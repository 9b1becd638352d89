/* app/server/problem.h -- what went wrong with a request, in the words of HTTP and of both
 * vendors.
 *
 * A sentence that the client can act on, never a trace of the inside; 5xx only for what is not
 * the client's doing, because clients send those requests again. */
#ifndef MOX_APP_SERVER_PROBLEM_H
#define MOX_APP_SERVER_PROBLEM_H

#include "app/server/http.h"

#include "moxie.h"

/* Whose shapes a route answers in. */
typedef enum mox_vendor { MOX_VENDOR_OPENAI = 0, MOX_VENDOR_ANTHROPIC } mox_vendor;

typedef struct mox_problem {
    int status;
    const char *code;        /* OpenAI's, or NULL */
    char param[64];          /* the field, or "" */
    char message[512];
    int64_t n_prompt, n_ctx; /* of a context that is too small, else 0 */
} mox_problem;

mox_problem mox_problem_make(int status, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Of a failure of the library or of a reader of requests. */
mox_problem mox_problem_of(const mox_err *err);
void mox_problem_put(const mox_problem *p, mox_vendor vendor, const char *request_id, mox_put *out);
/* For the log's line, where it is not the client's doing: other sentences can quote what was asked. */
void mox_problem_log(const mox_problem *p, mox_http_call *c);
void mox_problem_answer(const mox_problem *p, mox_vendor vendor, mox_http_call *c);

#endif
