/* app/server/serve.c -- `moxie serve`: opens everything, waits for signals, closes everything.
 *
 * The order matters at the end: no new connections, replies under way get their time, then the
 * scheduler is stopped (which ends what is left), then HTTP.  While the model is opened signals
 * end the program as usual. */
#include "app/server/server.h"

#include "app/cli/commands.h"
#include "app/cli/memory.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/stop.h"
#include "app/server/fingerprint.h"
#include "base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CONTEXT_WANTED = 32768, CONTEXT_LEAST = 4096, WORKERS = 2 };
static const double drain_s = 30.0, goodbye_s = 2.0;

/* ---- the address --------------------------------------------------------------------------------- */

static int open_listener(mox_server *s, const mox_cli_options *o)
{
    mox_err err;
    const option_source at = o->v[OPT_UNIX_SOCKET].source; /* what a flag says replaces what the environment says */
    const option_id other = o->v[OPT_PORT].source >= at ? OPT_PORT : OPT_HOST;
    if (mox_cli_given(o, OPT_UNIX_SOCKET) && o->v[other].source >= at) {
        mox_cli_say("--unix-socket listens at a path, where --%s means nothing: give one of the two",
                    mox_cli_option_name(other));
        return EXIT_USAGE;
    }
    const mox_status status =
        mox_cli_given(o, OPT_UNIX_SOCKET)
            ? mox_listen_unix(&s->listener, o->v[OPT_UNIX_SOCKET].text, &err)
            : mox_listen_tcp(&s->listener, o->v[OPT_HOST].text, (int)o->v[OPT_PORT].number, &err);
    if (status != MOX_OK) {
        mox_cli_say("%s", err.msg);
        return EXIT_ENDPOINT;
    }
    s->auth.listener = &s->listener;
    if (s->listener.loopback || s->auth.n_keys > 0 || o->v[OPT_NO_AUTH].on) return EXIT_OK;
    mox_cli_say("--host %s lets other machines in: give them a key with --api-key, or say --no-auth",
                o->v[OPT_HOST].text);
    return EXIT_USAGE;
}

/* ---- the model ----------------------------------------------------------------------------------- */

static void name_model(mox_server *s)
{
    const char *name = s->session.reference;
    if (!name) {
        size_t n = strlen(s->session.dir);
        while (n > 1 && s->session.dir[n - 1] == '/') s->session.dir[--n] = '\0';
        const char *slash = strrchr(s->session.dir, '/');
        name = slash && slash[1] ? slash + 1 : s->session.dir;
    }
    (void)snprintf(s->model_name, sizeof s->model_name, "%s", name);
}

static int open_chat(mox_server *s, const mox_cli_options *o)
{
    mox_err err;
    const mox_chat_opts opts = {.template_file = o->v[OPT_TEMPLATE].text};
    const mox_status status =
        mox_chat_open(&s->session.chat, s->session.dir, s->session.tokenizer, &opts, &err);
    if (status == MOX_E_NOT_FOUND && !opts.template_file) {
        mox_log_note(&s->log, NULL, "the model has no chat template: only /v1/completions can be used");
        return EXIT_OK;
    }
    return status == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

/* Without -c: what the model was made for, up to a size that agents need, halved until it fits. */
static mox_status choose_context(const mox_server *s, const mox_cli_options *o, mox_context_opts *c,
                                 mox_err *err)
{
    if (c->n_ctx > 0) return MOX_OK;
    mox_plan plan;
    for (c->n_ctx = s->n_ctx_max < CONTEXT_WANTED ? s->n_ctx_max : CONTEXT_WANTED;; c->n_ctx /= 2) {
        mox_plan_opts opts = mox_cli_memory_opts(o);
        opts.context = c;
        MOX_TRY(mox_plan_make(&plan, s->session.model, &opts, err));
        if (plan.fits || c->n_ctx / 2 < CONTEXT_LEAST) return MOX_OK;
    }
}

/* The kernel level that a context with these options has; of other devices than the cpu, their name. */
static const char *isa_of(const mox_context_opts *c)
{
    mox_device_kind kind; /* which of them computed does not matter */
    int best = 0;
    if (mox_device_get_kind(c->device, &kind, NULL) == MOX_OK && !kind.is_cpu) return kind.name;
    for (int i = 0; i < mox_isa_count(); i++)
        if (mox_isa_available(i)) best = i;
    return c->isa ? c->isa : mox_isa_name(best);
}

static void warn(void *user, const char *sentence)
{
    mox_server *s = user;
    mox_log_note(&s->log, NULL, sentence);
}

static int open_scheduler(mox_server *s, const mox_cli_options *o)
{
    mox_err err;
    char key[MOX_SHA256_HEX + 1];
    mox_scheduler_opts opts = {
        .n_queue = s->n_queue = (int32_t)o->v[OPT_QUEUE].number,
        .state_dir = o->v[OPT_STATE_DIR].text,
        .model_key = key,
    };
    mox_cli_context_opts(o, 0, &opts.context);
    opts.context.prefix_bytes = o->v[OPT_PREFIX_CACHE].number;
    if (opts.state_dir && opts.context.prefix_bytes == 0) opts.context.prefix_bytes = 1; /* so that the plan counts what finds states */
    opts.context.warn = warn; /* also while it runs, where nothing may wait for standard error */
    opts.context.warn_user = s;
    opts.context.n_seqs = s->n_slots = (int32_t)o->v[OPT_PARALLEL].number;
    if (choose_context(s, o, &opts.context, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    const int code = mox_cli_memory_settle(&s->session, o, &opts.context, NULL, 0);
    if (code != EXIT_OK) return code;
    s->n_ctx = opts.context.n_ctx;
    if (opts.state_dir &&
        mox_fingerprint(s->session.dir, &opts.context, isa_of(&opts.context), key, &err) != MOX_OK)
        return mox_cli_fail_opening(&err);
    if (mox_scheduler_create(&s->scheduler, s->session.model, s->session.tokenizer, &opts, &err) != MOX_OK)
        return mox_cli_fail_opening(&err);
    return EXIT_OK;
}

static int open_model(mox_server *s, const mox_cli_options *o)
{
    int code = mox_cli_session_find(&s->session, o);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&s->session, o);
    if (code == EXIT_OK) code = mox_cli_session_open_tokenizer(&s->session);
    if (code == EXIT_OK) code = open_chat(s, o);
    if (code == EXIT_OK && !mox_cli_settings_read(&s->settings, o, s->session.model)) code = EXIT_USAGE;
    if (code != EXIT_OK) return code;
    name_model(s);
    s->created = (int64_t)time(NULL);
    mox_model_info info;
    mox_model_get_info(s->session.model, &info);
    s->n_ctx_max = info.n_ctx_max;
    mox_err err;
    if (mox_token_trie_create(&s->trie, s->session.tokenizer, &err) != MOX_OK)
        return mox_cli_fail_opening(&err);
    if (mox_quotes_create(&s->quotes, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    return open_scheduler(s, o);
}

/* ---- running ------------------------------------------------------------------------------------- */

static int start_http(mox_server *s, const mox_cli_options *o)
{
    mox_err err;
    const mox_http_opts opts = {.listener = s->listener.fd,
                                .body_max = o->v[OPT_BODY_LIMIT].number,
                                .n_workers = WORKERS,
                                .check = mox_routes_check,
                                .handle = mox_routes_handle,
                                .over = mox_routes_over,
                                .refuse = mox_routes_refuse,
                                .user = s};
    if (mox_http_start(&s->http, &opts, &err) == MOX_OK) return EXIT_OK;
    mox_cli_say("%s", err.msg);
    return EXIT_ENDPOINT;
}

static void announce(const mox_server *s)
{
    mox_cli_putf("moxie: %s at %s%s, context %lld, %d at once\n", s->model_name,
                 s->listener.unix_path ? "unix:" : "http://", s->listener.address, (long long)s->n_ctx,
                 (int)s->n_slots);
    mox_cli_put_flush();
}

/* ---- signals ------------------------------------------------------------------------------------- */

static volatile sig_atomic_t reopen_log;

static void on_hangup(int number)
{
    (void)number;
    reopen_log = 1;
    mox_cli_stop_wake();
}

/* From here on: SIGTERM and SIGINT ask first (app/cli/stop.h, where a second one ends the
 * program), SIGHUP is for the log. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGHUP, &action, NULL);
    mox_cli_stop_catch();
}

static void sleep_until_signal(int timeout_ms)
{
    struct pollfd waker = {.fd = mox_cli_stop_waker(), .events = POLLIN};
    if (poll(&waker, 1, timeout_ms) == 1) mox_cli_stop_woken();
}

static void drain(mox_server *s)
{
    const double end = mox_clock_now() + drain_s;
    atomic_store(&s->draining, true);
    mox_listener_leave(&s->listener);
    mox_http_quiesce(s->http);
    mox_log_note(&s->log, NULL, "stopping: replies under way may finish");
    while (mox_clock_now() < end) {
        if (mox_scheduler_drain(s->scheduler, 0.0) && mox_http_busy(s->http) == 0) return;
        sleep_until_signal(50);
    }
    mox_log_note(&s->log, NULL, "time is up: what is left is cut off");
}

static void tell_lost(mox_server *s)
{
    char note[MOX_HTTP_PROBLEM + 100];
    (void)snprintf(note, sizeof note,
                   "the device has failed, and answers nothing until the server is started again: %s", s->lost_why);
    mox_log_note(&s->log, NULL, note);
}

/* Returns the exit code. */
static int wait_for_the_end(mox_server *s)
{
    while (!mox_cli_stop_signal() && !atomic_load(&s->lost)) {
        sleep_until_signal(60000);
        if (!reopen_log) continue;
        reopen_log = 0;
        mox_log_reopen(&s->log);
    }
    const bool lost = atomic_load(&s->lost);
    if (lost) tell_lost(s);
    drain(s);
    return lost ? EXIT_RUNTIME : EXIT_OK;
}

static int run(mox_server *s, const mox_cli_options *o)
{
    int code = open_listener(s, o);
    if (code == EXIT_OK) code = open_model(s, o);
    if (code == EXIT_OK) {
        catch_signals();
        code = start_http(s, o);
    }
    if (code == EXIT_OK) {
        announce(s);
        code = wait_for_the_end(s);
    } else if (s->listener.fd >= 0) {
        mox_listener_leave(&s->listener);
        (void)close(s->listener.fd);
    }
    mox_scheduler_stop(s->scheduler);
    if (s->http) (void)mox_http_wait(s->http, goodbye_s);
    mox_http_stop(&s->http);
    mox_scheduler_destroy(
        &s->scheduler); /* as long as there are connections, somebody may ask it something */
    mox_token_trie_destroy(&s->trie);
    mox_quotes_destroy(&s->quotes);
    return code;
}

int mox_cli_serve(const mox_cli_options *o)
{
    static mox_server s; /* large, and one to a process */
    mox_err err;
    s = (mox_server){.listener = {.fd = -1}};
    if (mox_log_open(&s.log, o->v[OPT_LOG_FILE].text, o->v[OPT_LOG_JSON].on, o->v[OPT_QUIET].on, &err) !=
        MOX_OK) {
        mox_cli_say("%s", err.msg);
        return EXIT_USAGE;
    }
    mox_metrics_init(&s.metrics);
    int code = mox_auth_init(&s.auth, o);
    if (code == EXIT_OK) code = run(&s, o);
    mox_listener_forget(&s.listener);
    mox_auth_deinit(&s.auth);
    mox_cli_session_close(&s.session);
    mox_metrics_deinit(&s.metrics);
    mox_log_close(&s.log);
    return code;
}
