/* app/server/server.h -- what all parts of a running server see. */
#ifndef MOX_APP_SERVER_SERVER_H
#define MOX_APP_SERVER_SERVER_H

#include "app/cli/session.h"
#include "app/cli/settings.h"
#include "app/server/auth.h"
#include "app/server/http.h"
#include "app/server/listen.h"
#include "app/server/log.h"
#include "app/server/metrics.h"
#include "app/server/problem.h"
#include "app/server/quotes.h"

#include "moxie/grammar.h"
#include "moxie/scheduler.h"

#include <stdatomic.h>

typedef struct mox_server {
    mox_cli_session session; /* model, tokenizer, chat (NULL: the model has no template) */
    mox_cli_settings settings;
    mox_scheduler *scheduler;
    mox_token_trie *trie; /* for replies that keep to a form */
    mox_quotes *quotes;
    mox_listener listener;
    mox_http *http;
    mox_auth auth;
    mox_log log;
    mox_metrics metrics;
    char model_name[256];
    int64_t n_ctx, n_ctx_max; /* of the context; that the model was made for */
    int32_t n_slots, n_queue; /* requests that run at once, and that may wait for those */
    int64_t created; /* unix time */
    atomic_bool draining;
    atomic_bool lost; /* a device has failed for good: the server ends, and whoever started it starts it again */
    char lost_why[MOX_HTTP_PROBLEM]; /* set before lost is */
} mox_server;

typedef void mox_handler(mox_server *s, mox_http_call *c);

typedef struct mox_route {
    const char *method, *path; /* a path that ends in * stands for all that begin so */
    mox_handler *handle;
    mox_vendor vendor;
    bool open; /* needs no key */
    bool here; /* quick enough for the network thread */
} mox_route;

/* routes.c: the functions of mox_http_opts. */
mox_http_where mox_routes_check(void *server, mox_http_call *c);
void mox_routes_handle(void *server, mox_http_call *c);
void mox_routes_over(void *server, mox_http_call *c);
void mox_routes_refuse(void *server, mox_http_call *c, int status, const char *sentence);

/* The endpoints, one file for each family of them. */
mox_handler mox_handle_chat, mox_handle_completions, mox_handle_responses, mox_handle_messages,
    mox_handle_count_tokens;
mox_handler mox_handle_models, mox_handle_model, mox_handle_props, mox_handle_slots, mox_handle_tokenize,
    mox_handle_detokenize, mox_handle_apply_template, mox_handle_health;
mox_handler mox_handle_metrics, mox_handle_page;

bool mox_page_has(const char *path); /* a file of the web chat, "/" included */

#endif
