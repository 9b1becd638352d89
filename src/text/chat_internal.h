/* text/chat_internal.h -- a chat from inside. */
#ifndef MOX_TEXT_CHAT_INTERNAL_H
#define MOX_TEXT_CHAT_INTERNAL_H

#include "moxie/chat.h"
#include "text/reply.h"
#include "text/template.h"
#include "base/writer.h"

struct mox_chat {
    const mox_tokenizer *tokenizer;
    char *source; /* path of the file */
    mox_template *plain, *with_tools; /* the second only where the model has one of its own for tools */
    mox_call_format format;
    bool arguments_as_text; /* the template wants tool calls' arguments as a string */
    bool typed_content;     /* it takes content in parts */
    bool null_content;      /* a message that is calls alone has null for its content */
    bool thinks;
};

/* What a template gets to see of a request: JSON in the one shape that it expects. */
typedef struct mox_chat_vars {
    mox_writer messages, kwargs;
    size_t n_messages;
    bool tools;       /* there are some */
    char *bos, *eos;  /* where kwargs has them */
    int64_t steps_max; /* of the template; 0: what it takes */
} mox_chat_vars;

/* chat_request.c: checks a request and fills a zeroed v; MOX_E_ARG names the field that is wrong. */
mox_status mox_chat_check(const mox_chat *c, const mox_chat_request *request, mox_chat_vars *v, mox_err *err);
void mox_chat_vars_deinit(mox_chat_vars *v);

/* The last thinking block that the end of a prompt opens is left open. */
bool mox_chat_opens_thinking(const char *opening, size_t n);

/* chat_said.c: puts what was sampled in the place of what was rendered. */
mox_status mox_chat_replay(const mox_chat *c, const mox_chat_request *request, const mox_text_span *written,
                           size_t n_written, mox_prompt *p, mox_err *err);

/* Renders t with the request's variables; out->generation_at and thinking are not set. */
mox_status mox_chat_apply(const mox_chat *c, const mox_template *t, const mox_chat_request *request,
                          const mox_chat_vars *v, bool generation, mox_text_span *written, mox_prompt *out, mox_err *err);

#endif
