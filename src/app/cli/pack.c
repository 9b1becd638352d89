/* app/cli/pack.c -- `moxie pack`: a copy of a model with each expert in one piece. */
#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/progress.h"
#include "app/cli/session.h"
#include "app/cli/stop.h"
#include "base/clock.h"
#include "moxie/tools.h"

/* The size of the model is known only to the library. */
static void on_progress(void *user, int64_t n_done, int64_t n_total)
{
    mox_cli_progress *p = user;
    p->total = n_total;
    mox_cli_progress_update(p, n_done, n_total);
}

static void warn(void *user, const char *sentence)
{
    const mox_cli_options *o = user;
    if (!o->v[OPT_QUIET].on) mox_cli_say("warning: %s", sentence);
}

static void say_result(const char *dir, const mox_pack_report *r, double seconds)
{
    if (r->was_complete) {
        mox_cli_say("%s: packed already, nothing to do", dir);
        return;
    }
    mox_cli_say("%s: %d file%s, %.2f GB, of which %.2f GB written in %.1f s (%.2f GB/s); %d linked, %d kept from "
                "an earlier run",
                dir, (int)r->n_files, mox_cli_s(r->n_files), (double)r->bytes / 1e9, (double)r->bytes_written / 1e9,
                seconds,
                (double)r->bytes_written / 1e9 / seconds, (int)r->n_linked, (int)r->n_kept);
}

static int pack(const mox_cli_options *o, const char *from, const char *to)
{
    mox_err err;
    mox_pack_report report;
    mox_cli_progress progress;
    mox_cli_stop_catch();
    mox_cli_progress_start_bytes(&progress, "packing", 0, o->v[OPT_QUIET].on);
    const mox_pack_opts opts = {.cancel = mox_cli_stop_flag(), .progress = on_progress, .progress_user = &progress,
                                .warn = warn, .warn_user = (void *)(uintptr_t)o};
    const double start = mox_clock_now();
    const mox_status status = mox_pack(from, to, &opts, &report, &err);
    const double seconds = mox_clock_now() - start;
    mox_cli_progress_end(&progress);
    if (mox_cli_stop_signal()) return EXIT_SIGNAL + mox_cli_stop_signal();
    if (status != MOX_OK) return mox_cli_fail_running(&err);
    if (!o->v[OPT_QUIET].on) say_result(to, &report, seconds);
    return EXIT_OK;
}

int mox_cli_pack(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    mox_cli_options named = *o; /* the first word is what -m is elsewhere */
    named.v[OPT_MODEL].text = o->words[0];
    int code = mox_cli_session_find(&s, &named);
    if (code == EXIT_OK) code = pack(o, s.dir, o->words[1]);
    mox_cli_session_close(&s);
    return code;
}
