/* app/cli/verify.c -- `moxie verify`: what is wrong with a model, a line for each finding. */
#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/progress.h"
#include "app/cli/session.h"
#include "app/cli/stop.h"
#include "moxie/tools.h"

#include <string.h>

typedef struct showing {
    mox_cli_progress progress;
    bool json;
    int64_t n; /* findings so far */
} showing;

static void on_progress(void *user, int64_t n_done, int64_t n_total)
{
    showing *s = user;
    s->progress.total = n_total;
    mox_cli_progress_update(&s->progress, n_done, n_total);
}

static void json_field(const char *name, const char *text)
{
    mox_cli_putf(", \"%s\": ", name);
    if (text) mox_cli_put_json(text, strlen(text));
    else mox_cli_putf("null");
}

static void on_finding(void *user, const mox_finding *f)
{
    showing *s = user;
    const char *kind = f->warning ? "warning" : "problem";
    mox_cli_progress_end(&s->progress);
    if (s->json) {
        mox_cli_putf("%s{\"kind\": \"%s\"", s->n++ ? ", " : "", kind);
        json_field("file", f->file);
        json_field("tensor", f->tensor);
        json_field("what", f->what);
        mox_cli_putf("}");
        return;
    }
    char line[2048]; /* names of files and tensors have 255 and 512 bytes at most */
    (void)snprintf(line, sizeof line, "%s: %s%s%s%s%s", kind, f->file ? f->file : "", f->file ? ": " : "",
                   f->tensor ? f->tensor : "", f->tensor ? ": " : "", f->what);
    mox_cli_make_harmless(line);
    mox_cli_putf("%s\n", line);
    mox_cli_put_flush();
}

/* complete: all of the model was looked at.  The object is whole also when it was not. */
static void print_end(const showing *s, const mox_verify_report *r, bool complete)
{
    if (s->json) {
        mox_cli_putf("], \"ok\": %s, \"n_problems\": %lld, \"n_warnings\": %lld, \"n_files\": %lld, \"bytes\": %lld, "
                     "\"n_tensors\": %lld, \"n_checksums\": %lld}\n",
                     r->n_problems ? "false" : complete ? "true" : "null", (long long)r->n_problems, (long long)r->n_warnings,
                     (long long)r->n_files, (long long)r->bytes, (long long)r->n_tensors, (long long)r->n_checksums);
        return;
    }
    if (!complete) return;
    if (r->n_problems || r->n_warnings)
        mox_cli_putf("%lld problem%s, %lld warning%s: ", (long long)r->n_problems, mox_cli_s(r->n_problems),
                     (long long)r->n_warnings, mox_cli_s(r->n_warnings));
    else mox_cli_putf("nothing wrong: ");
    mox_cli_putf("%lld file%s, %.3f GB, numbers of %lld tensor%s, ", (long long)r->n_files, mox_cli_s(r->n_files),
                 (double)r->bytes / 1e9, (long long)r->n_tensors, mox_cli_s(r->n_tensors));
    if (r->n_checksums) mox_cli_putf("%lld checksum%s\n", (long long)r->n_checksums, mox_cli_s(r->n_checksums));
    else mox_cli_putf("no checksums to compare with\n");
}

int mox_cli_verify(const mox_cli_options *o)
{
    mox_cli_session session = {0};
    int code = mox_cli_session_find(&session, o);
    if (code != EXIT_OK) return code;
    mox_err err;
    mox_verify_report report;
    showing s = {.json = o->v[OPT_JSON].on};
    mox_cli_stop_catch();
    mox_cli_progress_start_bytes(&s.progress, "verifying", 0, o->v[OPT_QUIET].on);
    const mox_verify_opts opts = {.cancel = mox_cli_stop_flag(), .progress = on_progress, .progress_user = &s,
                                  .found = on_finding, .found_user = &s};
    if (s.json) mox_cli_putf("{\"findings\": [");
    const mox_status status = mox_verify(session.dir, &opts, &report, &err);
    mox_cli_progress_end(&s.progress);
    print_end(&s, &report, status == MOX_OK);
    if (mox_cli_stop_signal()) code = EXIT_SIGNAL + mox_cli_stop_signal();
    else if (status != MOX_OK) code = mox_cli_fail_running(&err);
    else code = report.n_problems ? EXIT_MODEL : EXIT_OK;
    mox_cli_session_close(&session);
    return code;
}
