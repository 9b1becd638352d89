/* app/server/answer.h -- one request on its way through the scheduler, and the events that
 * become its answer.
 *
 * An API (mox_api) reads a request into a mox_ask and writes events in its vendor's shapes:
 * as a stream's pieces, or collected and written whole.  Everything in between is here and the
 * same for all: prompts, choices, cancelling, counting, errors before and after the headers.
 *
 * An answer belongs to its call and lives as long; while requests of it are with the
 * scheduler it keeps the call.  Its lock is held while an API's functions run. */
#ifndef MOX_APP_SERVER_ANSWER_H
#define MOX_APP_SERVER_ANSWER_H

#include "app/server/ask.h"
#include "app/server/server.h"

#include <pthread.h>

typedef struct mox_answer mox_answer;

typedef struct mox_choice {
    mox_answer *answer;
    int index, prompt;    /* prompt: which of the ask's */
    uint64_t id;          /* the scheduler's; 0: not with it */
    bool open;            /* its last event has not come */
    mox_put json;         /* for the API: what it keeps of the choice */
    mox_put pending;      /* text that waits for its token's logprob */
    mox_buffer records;   /* mox_logprob: 1 + n_logprobs for each token, the chosen one first */
    int64_t n_records;    /* of them n_text are of text that was told; what the others are is not known yet */
    int64_t n_text, n_shown;
    int64_t n_ahead;      /* bytes of these n_text beyond the text that was told; below 0: text without a record yet */
    bool text_came, other_came; /* with the token that comes next */
    int64_t n_characters; /* for the API: of the text before the first record that was not shown */
    bool in_thinking, in_call; /* so it was with the last part */
    int block, n_blocks;  /* for the API: what it is writing, and how many it has begun */
    int32_t call;         /* the tool call that is being written */
    int64_t n_events;     /* for the API: what it has sent */
    mox_stop stop;
    int64_t n_prompt, n_reused, n_reply, n_thinking;
    double queue_s, prefill_s, decode_s, last_token;
} mox_choice;

/* What the Responses API says back as it was sent; borrowed from the call's body, and empty where nothing was. */
typedef struct mox_echo {
    mox_json_span instructions, tools, tool_choice, format, verbosity, effort, summary;
} mox_echo;

/* Any function but read, done and end may be NULL. */
typedef struct mox_api {
    unsigned fields; /* API_... */
    mox_vendor vendor;
    const char *ping; /* of its streams */
    mox_status (*read)(mox_answer *a, const mox_fields *f, mox_err *err);
    void (*begin)(mox_answer *a);                                     /* streams */
    void (*progress)(mox_answer *a, mox_choice *c, const mox_event *e); /* streams */
    /* streams: the logprob of a token of the prompt was recorded, where the prompt is echoed */
    void (*prompt)(mox_answer *a, mox_choice *c, int32_t token);
    void (*part)(mox_answer *a, mox_choice *c, const mox_event *e);   /* streams */
    void (*token)(mox_answer *a, mox_choice *c);                      /* streams: one of text was recorded */
    void (*done)(mox_answer *a, mox_choice *c, const mox_event *e);   /* of a choice that went well */
    void (*end)(mox_answer *a);                          /* all choices went well; fills a->out */
    void (*broken)(mox_answer *a, const mox_problem *p); /* streams: the last thing that is sent */
} mox_api;

struct mox_answer {
    mox_server *server;
    mox_http_call *call;
    const mox_api *api;
    mox_ask ask;
    mox_asked asked;
    mox_echo echo; /* for the API */
    int64_t created; /* unix time */
    pthread_mutex_t lock;
    mox_choice choices[MOX_CHOICES];
    int n_choices, n_open;
    bool begun, gone, failed;
    mox_problem problem; /* when it failed */
    mox_put out;         /* of the running function */
    double first_token;
    char reuse[160];     /* why not more was reused */
};

void mox_answer_start(mox_server *s, mox_http_call *c, const mox_api *api);
/* Reads the request and makes its prompt, and no more; false when it has been refused.  The
 * caller answers. */
mox_answer *mox_answer_read(mox_server *s, mox_http_call *c, const mox_api *api);

/* Sends a->out as a piece of the stream. */
void mox_answer_send(mox_answer *a);
/* Sums over choices, prompts counted once. */
typedef struct mox_usage {
    int64_t prompt, reused, reply, thinking;
} mox_usage;
mox_usage mox_answer_usage(const mox_answer *a);
const char *mox_finish_word(mox_stop stop); /* OpenAI's */
/* Calls that the API should tell of. */
int32_t mox_answer_calls(const mox_answer *a, const mox_message *m);

/* choices[].logprobs.content of OpenAI from record i on, as an array's inside. */
void mox_put_logprobs(mox_put *p, const mox_answer *a, const mox_choice *c, int64_t from);
void mox_put_timings(mox_put *p, const mox_answer *a);

#endif
