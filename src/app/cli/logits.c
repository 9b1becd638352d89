/* app/cli/logits.c -- `moxie logits`: token ids in, raw logits out.
 *
 * Rows are written as the model hands them out, so the [T, V] result is never in
 * memory.  A file appears under its name only when it is complete. */
#include "app/cli/commands.h"
#include "app/cli/input.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/session.h"
#include "app/cli/stop.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/size.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they lie in memory");

typedef struct sink {
    bool to_stdout;
    mox_out out;
    size_t row_bytes;
    mox_status status; /* of the writes to out */
    mox_err err;
} sink;

static int sink_open(sink *k, const char *path, int64_t n_vocab)
{
    *k = (sink){.to_stdout = strcmp(path, "-") == 0, .out = MOX_OUT_CLOSED,
                .row_bytes = (size_t)n_vocab * sizeof(float)};
    if (k->to_stdout || mox_out_open(&k->out, path, &k->err) == MOX_OK) return EXIT_OK;
    return mox_cli_fail_running(&k->err);
}

static bool sink_failed(const sink *k) { return k->status != MOX_OK || mox_cli_output_failed(); }

static void on_row(void *user, int32_t segment, int64_t row, const float *logits)
{
    sink *k = user;
    (void)segment;
    (void)row;
    if (k->to_stdout) mox_cli_put((const char *)logits, k->row_bytes);
    else if (k->status == MOX_OK) k->status = mox_out_write(&k->out, logits, k->row_bytes, &k->err);
    if (sink_failed(k)) mox_cancel_raise(mox_cli_stop_flag()); /* nobody will read the rest */
}

/* Ends the file: under its name when all went well, gone otherwise. */
static int sink_close(sink *k, int code)
{
    if (code == EXIT_OK && k->status == MOX_OK && !k->to_stdout) k->status = mox_out_commit(&k->out, &k->err);
    mox_out_discard(&k->out);
    return k->status == MOX_OK || code > EXIT_SIGNAL ? code : mox_cli_fail_running(&k->err);
}

static int check_ids(const mox_cli_ids *ids, const char *path, int64_t n_vocab)
{
    for (int64_t i = 0; i < ids->n; i++) {
        if (ids->ids[i] < n_vocab) continue;
        mox_cli_say("%s: token %lld is %d, but the vocabulary ends at %lld", path, (long long)i, (int)ids->ids[i],
                    (long long)n_vocab - 1);
        return EXIT_USAGE;
    }
    if (ids->n > 0) return EXIT_OK;
    mox_cli_say("%s: no token ids in it", path);
    return EXIT_USAGE;
}

static int compute(const mox_cli_session *s, const mox_cli_options *o, const mox_cli_ids *ids, sink *k)
{
    const int64_t chunk = o->v[OPT_STEP].on ? 1 : mox_cli_given(o, OPT_CHUNK) ? o->v[OPT_CHUNK].number : ids->n;
    mox_cli_progress progress;
    mox_cli_progress_start(&progress, "logits", ids->n, o->v[OPT_QUIET].on);
    const mox_step_opts opts = {.cancel = mox_cli_stop_flag(), .progress = mox_cli_progress_update,
                                .progress_user = &progress, .on_logits = on_row, .on_logits_user = k};
    mox_err err;
    mox_status status = MOX_OK;
    for (int64_t at = 0; at < ids->n && status == MOX_OK; at += chunk) {
        const mox_segment segment = {.seq = s->seq, .tokens = ids->ids + at, .n = mox_min_i64(chunk, ids->n - at),
                                     .want = MOX_WANT_ALL};
        progress.before = at;
        status = mox_step(s->context, &segment, 1, &opts, &err);
    }
    mox_cli_progress_end(&progress);
    if (mox_cli_stop_signal()) return EXIT_SIGNAL + mox_cli_stop_signal();
    if (status == MOX_OK) return EXIT_OK;
    return sink_failed(k) ? EXIT_IO : mox_cli_fail_running(&err);
}

static int check_options(const mox_cli_options *o)
{
    if (!o->v[OPT_TOKENS].text || !o->v[OPT_OUT].text) {
        mox_cli_say("logits needs --tokens FILE and --out FILE");
        return EXIT_USAGE;
    }
    if (o->v[OPT_STEP].on && mox_cli_given(o, OPT_CHUNK)) {
        mox_cli_say("--step is --chunk 1: give one of the two");
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

int mox_cli_logits(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    mox_cli_text text = {0};
    mox_cli_ids ids = {0};
    mox_model_info info = {0};
    const char *path = o->v[OPT_TOKENS].text;
    int code = check_options(o);
    if (code == EXIT_OK) code = mox_cli_session_find(&s, o);
    if (code == EXIT_OK) code = mox_cli_read_file(path, &text);
    if (code == EXIT_OK) code = mox_cli_parse_ids(&text, path, &ids);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&s, o);
    if (code == EXIT_OK) {
        mox_model_get_info(s.model, &info);
        code = check_ids(&ids, path, info.n_vocab);
    }
    if (code == EXIT_OK) code = mox_cli_session_open_context(&s, o, ids.n);
    if (code == EXIT_OK && ids.n > mox_context_n_ctx(s.context)) {
        mox_cli_say("%s: %lld tokens do not fit in a context of %lld; use -c %lld", path, (long long)ids.n,
                    (long long)mox_context_n_ctx(s.context), (long long)ids.n);
        code = EXIT_FULL;
    }
    if (code == EXIT_OK) {
        sink k;
        code = sink_open(&k, o->v[OPT_OUT].text, info.n_vocab);
        if (code == EXIT_OK) code = compute(&s, o, &ids, &k);
        code = sink_close(&k, code);
    }
    mox_free(ids.ids);
    mox_free(text.bytes);
    return mox_cli_session_end(&s, code);
}
