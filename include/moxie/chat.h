/* moxie/chat.h -- conversations: messages to a prompt, and a reply's tokens to a message.
 *
 * Four steps.  A `mox_chat` is a model's chat template and what it says about thinking
 * and tools.  mox_chat_render makes a prompt of messages; mox_prompt_encode makes token
 * ids of it.  A `mox_turn` chooses the reply's tokens one by one and takes them apart
 * into thinking, text and tool calls as they come; it computes nothing, so a caller may
 * run many turns in one step.  The finished turn is a message again, ready for the next
 * prompt.  See moxie.h for errors and ownership.
 *
 * Messages, tools and settings are JSON in the shapes of the OpenAI API, because that is
 * what templates are written for.  Key order and the spelling of numbers survive. */
#ifndef MOXIE_CHAT_H
#define MOXIE_CHAT_H

#include "moxie.h"
#include "moxie/text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the template ---------------------------------------------------------- */

/* Immutable once open, and may be shared by threads. */
typedef struct mox_chat mox_chat;

typedef struct mox_chat_opts {
    const char *template_file; /* instead of the model's own; NULL: the model's */
} mox_chat_opts;

/* Reads the chat template of the model in dir: chat_template.jinja, else
 * chat_template.json, else the one in tokenizer_config.json (of a list of named ones
 * "default", and "tool_use" where there are tools).  The tokenizer must outlive the chat.
 * opts may be NULL.  MOX_E_NOT_FOUND when the model has no template. */
MOX_API mox_status mox_chat_open(mox_chat **out, const char *dir, const mox_tokenizer *tokenizer,
                                 const mox_chat_opts *opts, mox_err *err);
MOX_API void mox_chat_close(mox_chat **c);

typedef struct mox_chat_info {
    const char *source;      /* the file that the template is from; lives as long as the chat */
    const char *call_format; /* how this model writes tool calls, or NULL: not known */
    bool thinks;             /* the template can switch thinking on or off, or opens it itself */
} mox_chat_info;
MOX_API void mox_chat_get_info(const mox_chat *c, mox_chat_info *out);

/* ---- the prompt ------------------------------------------------------------ */

typedef enum mox_think { MOX_THINK_DEFAULT = 0, MOX_THINK_ON, MOX_THINK_OFF } mox_think;

typedef struct mox_json_text { /* JSON text; n bytes, text NULL: not there */
    const char *text;
    size_t n;
} mox_json_text;

/* A text with the parts in which special tokens are text. */
typedef struct mox_marked_text {
    const char *text;
    size_t n;
    const mox_text_span *plain; /* in order */
    size_t n_plain;
} mox_marked_text;

/* What was sampled for a message of the conversation, byte for byte: it stands in the
 * prompt again instead of what the template would write for that message, wherever both
 * mean the same. */
typedef struct mox_said {
    int64_t message;      /* its index in messages */
    const char *opening;  /* the end of the prompt that it was sampled from, */
    size_t n_opening;     /*   from that prompt's generation_at on */
    mox_marked_text text; /* see mox_turn_get_said */
} mox_said;

typedef struct mox_chat_request {
    mox_json_text messages; /* an array */
    mox_json_text tools;    /* an array; empty counts as not there */
    mox_json_text kwargs;   /* an object: more variables for the template */
    mox_think think;
    bool no_generation_prompt; /* end after the last message */
    const mox_said *said;      /* in order of message; may be NULL */
    size_t n_said;
    int64_t unix_time_s;  /* what templates take for the present */
    int32_t utc_offset_s;
} mox_chat_request;

/* Takes a JSON text of messages apart, which is an array or an object with one as "messages":
 * calls each with a message's role and its text, as it is written there.  MOX_E_ARG when it is
 * something else, MOX_E_FORMAT when it is no JSON; name is where it is from, for the sentence. */
typedef mox_status mox_message_fn(void *user, const char *role, mox_json_text message, mox_err *err);
MOX_API mox_status mox_messages_each(const char *name, mox_json_text messages, mox_message_fn *each, void *user, mox_err *err);

typedef struct mox_prompt { /* zero-initialise; release with mox_prompt_free */
    char *text;             /* terminated */
    size_t n;
    mox_text_span *plain;   /* bytes from messages, in which special tokens are text */
    size_t n_plain;
    size_t generation_at;   /* where the part that only the last prompt has begins */
    bool thinking;          /* the prompt ends inside an open thinking block */
} mox_prompt;

/* MOX_E_ARG      the request is wrong: err names the field
 * MOX_E_REFUSED  the template refuses this conversation: err has its words
 * MOX_E_FORMAT   the template failed: err names its file, line and column
 * MOX_E_LIMIT    the template takes too long or writes too much */
MOX_API mox_status mox_chat_render(const mox_chat *c, const mox_chat_request *request, mox_prompt *out, mox_err *err);
MOX_API void mox_prompt_free(mox_prompt *p);

/* Appends the prompt's ids to out.  known[0, n_known) are ids of an earlier prompt and of
 * what was sampled behind it: as far as their text is this prompt's, they are taken over
 * as they are, because a model need not have sampled the ids that an encoder would choose.
 * *n_before is how many ids stand before generation_at; may be NULL. */
MOX_API mox_status mox_prompt_encode(const mox_tokenizer *t, const mox_prompt *p, const int32_t *known,
                                     int64_t n_known, mox_tokens *out, int64_t *n_before, mox_err *err);

/* ---- the reply ------------------------------------------------------------- */

typedef enum mox_part {
    MOX_PART_TEXT = 0,
    MOX_PART_THINKING,
    MOX_PART_CALL_NAME,     /* whole; begins a tool call */
    MOX_PART_CALL_ARGUMENTS /* a piece of the JSON text of its arguments */
} mox_part;

/* Called with the parts of a reply as they are certain; never with part of a character.
 * call counts tool calls from 0 and is -1 for the others. */
typedef void mox_part_fn(void *user, mox_part part, int32_t call, const char *text, size_t n);

typedef struct mox_call { /* borrowed from the turn */
    const char *id;       /* unique; the model's own where its format has one */
    const char *name;
    const char *arguments; /* JSON text of an object */
} mox_call;

typedef struct mox_message { /* borrowed from the turn */
    const char *text, *thinking;
    size_t n_text, n_thinking;
    const mox_call *calls;
    int32_t n_calls;
} mox_message;

typedef enum mox_stop {
    MOX_STOP_NOT = 0, /* the turn goes on */
    MOX_STOP_END,     /* the model ended its reply */
    MOX_STOP_STRING,  /* a stop string came up */
    MOX_STOP_CALLS,   /* the model ended its reply with tool calls */
    MOX_STOP_LENGTH,  /* the limit of tokens */
    MOX_STOP_CANCELLED
} mox_stop;

typedef struct mox_turn mox_turn;

typedef struct mox_turn_opts {
    mox_sampler_opts sampling;
    int64_t max_tokens;    /* of the reply; the caller sees to it that the context has room */
    int64_t think_budget;  /* tokens of thinking, after which it is closed; -1: no limit */
    bool thinking;         /* of the prompt */
    mox_json_text tools;   /* of the request */
    uint64_t call_seed;    /* makes the ids of tool calls unlike those of other replies */
    const char *const *stops; /* stop strings: the text ends before the first of them */
    int32_t n_stops;
    mox_part_fn *on_part;  /* may be NULL */
    void *on_part_user;
    const struct mox_grammar *grammar;  /* what the reply keeps to, once thinking is over; NULL: nothing */
    const struct mox_token_trie *trie;  /* of the tokenizer, for the grammar; see moxie/grammar.h */
    bool ignore_end;       /* no token that would end the reply is chosen; not together with a grammar */
} mox_turn_opts;

/* chat may be NULL: the reply is plain text then.  Model, tokenizer, chat, grammar and trie must
 * outlive the turn; everything else in opts is borrowed for the call. */
MOX_API mox_status mox_turn_create(mox_turn **out, const mox_model *m, const mox_tokenizer *t, const mox_chat *chat,
                                   const mox_turn_opts *opts, mox_err *err);
MOX_API void mox_turn_destroy(mox_turn **turn);

/* Tell the turn about the prompt's tokens, for the penalties. */
MOX_API void mox_turn_accept(mox_turn *turn, int32_t token);

/* Chooses the next token from logits [n_vocab].  While *stop is MOX_STOP_NOT the caller
 * feeds *token and calls again.  A reply that its grammar has brought to an end stops without
 * a token that ends it.  MOX_E_STATE: a dead end of the grammar. */
MOX_API mox_status mox_turn_next(mox_turn *turn, const float *logits, int32_t *token, mox_stop *stop, mox_err *err);

/* Ends a turn that is still going on: what was held back comes out. */
MOX_API mox_status mox_turn_end(mox_turn *turn, mox_stop why, mox_err *err);

/* What there is so far; all of it once the turn has stopped. */
MOX_API void mox_turn_get_message(const mox_turn *turn, mox_message *out);
/* Every id that was chosen, the one that ended the reply included. */
MOX_API const int32_t *mox_turn_tokens(const mox_turn *turn, int64_t *n);
/* The bytes of those ids but for the ending one, for a mox_said; borrowed from the turn. */
MOX_API void mox_turn_get_said(const mox_turn *turn, mox_marked_text *out);
/* How many of them were spent on thinking. */
MOX_API int64_t mox_turn_thinking_tokens(const mox_turn *turn);
/* Whether a token's bytes are of the reply as its parts tell it, or of the marks around those: they are not where it
 * is a special token that neither thinking nor tool calls are written in. */
MOX_API bool mox_turn_reads(const mox_turn *turn, int32_t token);
/* The stop string that came up, borrowed from the turn; NULL: none did. */
MOX_API const char *mox_turn_stop_string(const mox_turn *turn);
/* The message as a JSON object for the next request's messages.  The caller frees it with
 * mox_text_free. */
MOX_API mox_status mox_turn_message_json(const mox_turn *turn, char **out, mox_err *err);
MOX_API void mox_text_free(char **text);

#ifdef __cplusplus
}
#endif
#endif
