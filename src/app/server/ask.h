/* app/server/ask.h -- what a client wants, whichever API it speaks.
 *
 * Each API's reader turns its fields into a mox_ask: messages and tools in OpenAI's shapes
 * (which is what templates are written for), or plain prompts, and how the reply is to be made.
 * Sampling that the request does not mention is the server's, and else the model's own. */
#ifndef MOX_APP_SERVER_ASK_H
#define MOX_APP_SERVER_ASK_H

#include "app/server/fields.h"
#include "app/server/put.h"

#include "base/buffer.h"
#include "moxie/grammar.h"

struct mox_server;

enum { MOX_CHOICES = 8, MOX_ASK_STOPS = 16 };

/* The form that a reply must have. */
typedef enum mox_form {
    MOX_FORM_FREE = 0,
    MOX_FORM_OBJECT,
    MOX_FORM_SCHEMA,
    MOX_FORM_GRAMMAR,
    MOX_FORM_CALL
} mox_form;

typedef struct mox_ask {
    /* what; spans are borrowed from the call's body */
    mox_put messages, tools; /* JSON arrays; empty: not there */
    const char *messages_field; /* what the API calls them; NULL: messages */
    mox_put kwargs;          /* a JSON object, without what think says; empty: not there */
    mox_tokens prompts[MOX_CHOICES]; /* instead of messages */
    int n_prompts;
    mox_think think;
    const char *think_field; /* of the request, that settled it; NULL: none did */
    int64_t think_budget; /* -1: none */
    bool no_generation_prompt;
    bool final_is_whole, final_is_begun; /* a last message of the assistant, where the request says it */
    bool only_counted;                   /* there will be no reply, so nothing is continued */
    mox_form form;
    const char *form_field; /* that asked for it */
    mox_json_span schema;   /* or a string with a grammar */
    mox_grammar *grammar;   /* made of it */
    bool or_calls;          /* the reply may be calls of tools instead */
    char *call_name;      /* of MOX_FORM_CALL: the one tool to call, or NULL */
    /* how */
    mox_sampler_opts sampling;
    mox_buffer bias; /* mox_logit_bias: what sampling points to */
    bool fixed_seed;
    int64_t max_tokens; /* -1: what the context holds */
    char *stops[MOX_ASK_STOPS];
    int n_stops;
    int n;          /* choices for each prompt */
    int n_logprobs; /* -1: none */
    bool no_reuse, single_call, echo, ignore_end;
    /* the answer's form */
    bool stream, usage, progress;
    char model[96]; /* as asked for */
} mox_ask;

void mox_ask_deinit(mox_ask *a);

/* The fields that APIs have in common. */
mox_status mox_ask_read_common(mox_ask *a, const struct mox_server *s, const mox_fields *f, mox_err *err);
/* Thinking as reasoning_effort, reasoning.effort, thinking.type and a template's variables put it.  What
 * a request says itself counts, and else the server's options; two words of a request that contradict
 * each other are refused. */
mox_status mox_ask_read_effort(mox_ask *a, mox_json_span effort, const char *what, mox_err *err);
mox_status mox_ask_read_thinking(mox_ask *a, mox_json_span thinking, mox_err *err);
/* chat_template_kwargs. */
mox_status mox_ask_read_kwargs(mox_ask *a, mox_json_span kwargs, mox_err *err);

typedef struct mox_asked { /* the prompt of messages; zero-initialise */
    mox_tokens tokens;
    int64_t n_before;
    bool thinking;    /* it ends inside an open thinking block */
    bool rewritten;   /* system messages had to become the user's */
    mox_prompt prompt;
} mox_asked;

/* Messages to tokens.  A trailing assistant message is continued, unless final_is_whole; system messages in the midst
 * of a conversation become marked text of the user where the template refuses them. */
mox_status mox_ask_render(const mox_ask *a, const struct mox_server *s, mox_asked *out, mox_err *err);
void mox_asked_deinit(mox_asked *p);

/* ---- text in content ---- */

/* Appends the text of content: a string, or an array of parts of which only text is taken; what
 * names it in errors.  null and absent are empty. */
mox_status mox_content_text(mox_json_span content, const char *what, mox_put *out, mox_err *err);

#endif
