/* app/server/log.h -- one line for each request: when, which, what came of it.
 *
 * Text of key=value pairs, or JSON objects.  Prompts, replies and keys are never in it.
 *
 * Nobody waits for the log: where a pipe or a terminal does not take a line at once, the line is dropped
 * and counted, and the next one that is taken comes behind a line with the count. */
#ifndef MOX_APP_SERVER_LOG_H
#define MOX_APP_SERVER_LOG_H

#include "app/server/put.h"

#include <pthread.h>

typedef struct mox_log {
    pthread_mutex_t lock;
    const char *path; /* borrowed; NULL: standard error */
    int fd;
    bool json, quiet;
    int64_t n_lost, n_told; /* lines that were dropped; of them those that a line told of */
    bool torn;              /* the last line that was written is a half */
} mox_log;

typedef struct mox_log_entry {
    const char *id, *method, *path, *finish; /* finish NULL: it made no reply */
    int status;
    double seconds;
    const char *asked_for, *reuse; /* another model; why not more was reused; may be NULL */
    const char *problem;           /* why it failed, where that is not the client's doing; may be NULL */
    int64_t n_prompt, n_reused, n_reply;
    double queue_s, prefill_s, decode_s, first_token_s;
} mox_log_entry;

mox_status mox_log_open(mox_log *l, const char *path, bool json, bool quiet, mox_err *err);
/* The file anew under its name, for those who rotate logs. */
void mox_log_reopen(mox_log *l);
void mox_log_close(mox_log *l);

void mox_log_request(mox_log *l, const mox_log_entry *e);
int64_t mox_log_lost(mox_log *l); /* lines, so far */
/* A sentence about the server, or about a request (id may be NULL). */
void mox_log_note(mox_log *l, const char *id, const char *sentence);

#endif
