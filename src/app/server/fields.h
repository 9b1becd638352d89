/* app/server/fields.h -- the one table of fields that requests may have: for each the APIs
 * that know it, its type and its range.
 *
 * Fields that an API does not know are ignored, as clients expect; one that it knows and that
 * is of another type or out of range is refused with its name.  null is the same as absent.
 * A body is refused as a whole when it is no JSON, when any object in it names a key twice, or
 * when it is nested deeper than 64. */
#ifndef MOX_APP_SERVER_FIELDS_H
#define MOX_APP_SERVER_FIELDS_H

#include "base/json_reader.h"

enum { /* APIs */
    API_CHAT = 1 << 0,
    API_TEXT = 1 << 1, /* /v1/completions */
    API_RESPONSES = 1 << 2,
    API_MESSAGES = 1 << 3,
    API_TOKENIZE = 1 << 4,
    API_DETOKENIZE = 1 << 5,
    API_OPENAI = API_CHAT | API_TEXT,
    API_REPLIES = API_OPENAI | API_RESPONSES | API_MESSAGES,
};

enum { /* types */
    IS_BOOL = 1 << 0,
    IS_INT = 1 << 1,
    IS_REAL = 1 << 2, /* whole numbers, too */
    IS_STRING = 1 << 3,
    IS_ARRAY = 1 << 4,
    IS_OBJECT = 1 << 5,
};

/* X(id, name, APIs, types, lowest, highest number) */
#define MOX_FIELD_LIST(X)                                                                        \
    X(MODEL, "model", API_REPLIES, IS_STRING, 0, 0)                                              \
    X(MESSAGES, "messages", API_CHAT | API_MESSAGES, IS_ARRAY, 0, 0)                             \
    X(SYSTEM, "system", API_MESSAGES, IS_STRING | IS_ARRAY, 0, 0)                                \
    X(PROMPT, "prompt", API_TEXT, IS_STRING | IS_ARRAY, 0, 0)                                    \
    X(INPUT, "input", API_RESPONSES, IS_STRING | IS_ARRAY, 0, 0)                                 \
    X(INSTRUCTIONS, "instructions", API_RESPONSES, IS_STRING, 0, 0)                              \
    X(PREVIOUS, "previous_response_id", API_RESPONSES, IS_STRING, 0, 0)                          \
    X(CONVERSATION, "conversation", API_RESPONSES, IS_STRING | IS_OBJECT, 0, 0)                  \
    X(BACKGROUND, "background", API_RESPONSES, IS_BOOL, 0, 0)                                    \
    X(STREAM, "stream", API_REPLIES, IS_BOOL, 0, 0)                                              \
    X(STREAM_OPTIONS, "stream_options", API_OPENAI | API_RESPONSES, IS_OBJECT, 0, 0)             \
    X(MAX_TOKENS, "max_tokens", API_OPENAI | API_MESSAGES, IS_INT, 1, 2147483647)                \
    X(MAX_COMPLETION_TOKENS, "max_completion_tokens", API_CHAT, IS_INT, 1, 2147483647)           \
    X(MAX_OUTPUT_TOKENS, "max_output_tokens", API_RESPONSES, IS_INT, 1, 2147483647)              \
    X(TEMPERATURE, "temperature", API_REPLIES, IS_REAL, 0, 100)                                  \
    X(TOP_P, "top_p", API_REPLIES, IS_REAL, 0, 1)                                                \
    X(TOP_K, "top_k", API_REPLIES, IS_INT, 0, 1000000000)                                        \
    X(MIN_P, "min_p", API_REPLIES, IS_REAL, 0, 1)                                                \
    X(REPEAT_PENALTY, "repeat_penalty", API_OPENAI, IS_REAL, 0.1, 10)                            \
    X(REPETITION_PENALTY, "repetition_penalty", API_OPENAI, IS_REAL, 0.1, 10)                    \
    X(PRESENCE_PENALTY, "presence_penalty", API_REPLIES, IS_REAL, -100, 100)                     \
    X(FREQUENCY_PENALTY, "frequency_penalty", API_REPLIES, IS_REAL, -100, 100)                   \
    X(SEED, "seed", API_REPLIES, IS_INT, -1, 9007199254740992.0)                                 \
    X(STOP, "stop", API_OPENAI, IS_STRING | IS_ARRAY, 0, 0)                                      \
    X(STOP_SEQUENCES, "stop_sequences", API_MESSAGES, IS_ARRAY, 0, 0)                            \
    X(N, "n", API_OPENAI, IS_INT, 1, 8)                                                          \
    X(BEST_OF, "best_of", API_TEXT, IS_INT, 1, 8)                                                \
    X(ECHO, "echo", API_TEXT, IS_BOOL, 0, 0)                                                     \
    X(SUFFIX, "suffix", API_TEXT, IS_STRING, 0, 0)                                               \
    X(LOGIT_BIAS, "logit_bias", API_OPENAI, IS_OBJECT | IS_ARRAY, 0, 0)                          \
    X(LOGPROBS, "logprobs", API_OPENAI, IS_BOOL | IS_INT, 0, 20)                                 \
    X(TOP_LOGPROBS, "top_logprobs", API_CHAT | API_RESPONSES, IS_INT, 0, 20)                     \
    X(N_PROBS, "n_probs", API_OPENAI, IS_INT, 0, 20)                                             \
    X(RESPONSE_FORMAT, "response_format", API_OPENAI, IS_OBJECT, 0, 0)                           \
    X(JSON_SCHEMA, "json_schema", API_OPENAI, IS_OBJECT, 0, 0)                                   \
    X(GRAMMAR, "grammar", API_OPENAI, IS_STRING, 0, 0)                                           \
    X(TEXT, "text", API_RESPONSES, IS_OBJECT, 0, 0)                                              \
    X(OUTPUT_CONFIG, "output_config", API_MESSAGES, IS_OBJECT, 0, 0)                             \
    X(TOOLS, "tools", API_CHAT | API_RESPONSES | API_MESSAGES, IS_ARRAY, 0, 0)                   \
    X(TOOL_CHOICE, "tool_choice", API_CHAT | API_RESPONSES | API_MESSAGES, IS_STRING | IS_OBJECT, 0, 0) \
    X(PARALLEL_TOOL_CALLS, "parallel_tool_calls", API_CHAT | API_RESPONSES, IS_BOOL, 0, 0)       \
    X(REASONING_EFFORT, "reasoning_effort", API_CHAT, IS_STRING, 0, 0)                           \
    X(REASONING, "reasoning", API_RESPONSES | API_CHAT, IS_OBJECT, 0, 0)                         \
    X(THINKING, "thinking", API_MESSAGES | API_CHAT, IS_OBJECT, 0, 0)                            \
    X(ENABLE_THINKING, "enable_thinking", API_CHAT, IS_BOOL, 0, 0)                               \
    X(THINKING_BUDGET, "thinking_budget_tokens", API_CHAT, IS_INT, 0, 1000000000)                \
    X(REASONING_BUDGET, "reasoning_budget_tokens", API_CHAT, IS_INT, 0, 1000000000)              \
    X(TEMPLATE_KWARGS, "chat_template_kwargs", API_CHAT, IS_OBJECT, 0, 0)                        \
    X(GENERATION_PROMPT, "add_generation_prompt", API_CHAT, IS_BOOL, 0, 0)                       \
    X(CONTINUE_FINAL, "continue_final_message", API_CHAT, IS_BOOL, 0, 0)                         \
    X(CACHE_PROMPT, "cache_prompt", API_OPENAI, IS_BOOL, 0, 0)                                   \
    X(IGNORE_EOS, "ignore_eos", API_OPENAI, IS_BOOL, 0, 0)                                       \
    X(RETURN_PROGRESS, "return_progress", API_CHAT, IS_BOOL, 0, 0)                               \
    X(CONTENT, "content", API_TOKENIZE, IS_STRING, 0, 0)                                         \
    X(ADD_SPECIAL, "add_special", API_TOKENIZE, IS_BOOL, 0, 0)                                   \
    X(PARSE_SPECIAL, "parse_special", API_TOKENIZE, IS_BOOL, 0, 0)                               \
    X(WITH_PIECES, "with_pieces", API_TOKENIZE, IS_BOOL, 0, 0)                                   \
    X(TOKENS, "tokens", API_DETOKENIZE, IS_ARRAY, 0, 0)

typedef enum mox_field_id {
#define MOX_FIELD_ENUM(id, name, apis, types, low, high) FIELD_##id,
    MOX_FIELD_LIST(MOX_FIELD_ENUM)
#undef MOX_FIELD_ENUM
    N_FIELDS
} mox_field_id;

typedef struct mox_field_value {
    bool given;
    int type;          /* one of IS_..., of what was given */
    bool on;           /* IS_BOOL */
    int64_t number;    /* IS_INT */
    double real;       /* numbers */
    mox_json_span raw; /* borrowed from the body */
} mox_field_value;

typedef struct mox_fields {
    mox_field_value v[N_FIELDS];
} mox_fields;

/* api is one of them.  MOX_E_ARG with a sentence that begins with the field, MOX_E_FORMAT when the
 * body is no JSON. */
mox_status mox_fields_read(mox_fields *out, unsigned api, const char *body, size_t n, mox_err *err);
bool mox_field_known(const char *name);

static inline bool mox_field_on(const mox_fields *f, mox_field_id id, bool otherwise)
{
    return f->v[id].given ? f->v[id].on : otherwise;
}

/* ---- values inside of fields ---- */

static inline bool mox_span_is_string(mox_json_span v) { return v.text && v.text[0] == '"'; }
static inline bool mox_span_is_object(mox_json_span v) { return v.text && v.text[0] == '{'; }
static inline bool mox_span_is_array(mox_json_span v) { return v.text && v.text[0] == '['; }
/* Whether a span is the string `word`, spelled without escapes. */
bool mox_span_is(mox_json_span v, const char *word);

#endif
