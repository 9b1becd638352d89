/* app/cli/synth.c -- `moxie synth`: a random checkpoint in the shape of a real model. */
#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/progress.h"
#include "app/cli/stop.h"
#include "app/cli/synth.h"
#include "base/clock.h"

mox_synth_opts mox_cli_synth_opts(const mox_cli_options *o, mox_cli_progress *progress, const char *what, int64_t bytes)
{
    mox_cli_progress_start_bytes(progress, what, bytes, o->v[OPT_QUIET].on);
    return (mox_synth_opts){.seed = (uint64_t)o->v[OPT_SYNTH_SEED].number, .router_skew = o->v[OPT_SKEW].real,
                            .cancel = mox_cli_stop_flag(), .progress = mox_cli_progress_update, .progress_user = progress};
}

int mox_cli_synth(const mox_cli_options *o)
{
    const char *name = o->words[0], *dir = o->words[1];
    mox_err err;
    int64_t bytes = 0;
    if (mox_synth_bytes(name, &bytes, &err) != MOX_OK) return mox_cli_fail_running(&err);
    mox_cli_stop_catch();
    mox_cli_progress progress;
    const mox_synth_opts opts = mox_cli_synth_opts(o, &progress, "writing", bytes);
    const double start = mox_clock_now();
    const mox_status status = mox_synth_write(name, dir, &opts, &err);
    const double seconds = mox_clock_now() - start;
    mox_cli_progress_end(&progress);
    if (mox_cli_stop_signal()) return EXIT_SIGNAL + mox_cli_stop_signal();
    if (status != MOX_OK) return mox_cli_fail_running(&err);
    if (!o->v[OPT_QUIET].on)
        mox_cli_say("%s: %.2f GB in %.1f s (%.2f GB/s)", dir, (double)bytes / 1e9, seconds, (double)bytes / 1e9 / seconds);
    return EXIT_OK;
}
