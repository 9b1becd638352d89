/* app/cli/memory.c -- see memory.h.
 *
 * Everything is decided before anything large is allocated: what does not fit is refused
 * with one sentence.  What the plan changed of what was asked for (smaller batches, streamed
 * experts) is said. */
#include "app/cli/memory.h"

#include "app/cli/commands.h"
#include "app/cli/disk.h"
#include "app/cli/message.h"
#include "app/cli/progress.h"
#include "base/alloc.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

const char *mox_cli_size(int64_t bytes, char out[MOX_CLI_SIZE])
{
    const int64_t mega = 1 << 20, giga = 1 << 30;
    if (bytes < giga) {
        (void)snprintf(out, MOX_CLI_SIZE, "%lldM", (long long)mox_ceil_div(bytes, mega));
    } else {
        const int64_t whole = bytes / giga, hundredths = mox_ceil_div(bytes % giga * 100, giga);
        (void)snprintf(out, MOX_CLI_SIZE, "%lld.%02lldG", (long long)(whole + hundredths / 100), (long long)(hundredths % 100));
    }
    return out;
}

mox_plan_opts mox_cli_memory_opts(const mox_cli_options *o)
{
    static const char *const names[] = {[MOX_EXPERTS_AUTO] = "auto", [MOX_EXPERTS_RESIDENT] = "resident",
                                        [MOX_EXPERTS_STREAM] = "stream", [MOX_EXPERTS_MMAP] = "mmap"};
    mox_plan_opts opts = {.ram_bytes = mox_cli_given(o, OPT_RAM) ? o->v[OPT_RAM].number : 0,
                          .vram_bytes = mox_cli_given(o, OPT_VRAM) ? o->v[OPT_VRAM].number : 0,
                          .n_slots = mox_cli_given(o, OPT_EXPERT_SLOTS) ? o->v[OPT_EXPERT_SLOTS].number : 0};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(o->v[OPT_EXPERTS].text, names[i]) == 0) opts.experts = (mox_experts)i;
    return opts;
}

static bool check_vram(const char *device)
{
    mox_err err;
    mox_device_kind kind;
    if (mox_device_get_kind(device, &kind, &err) != MOX_OK) mox_cli_say("%s", err.msg);
    else if (!kind.has_memory) mox_cli_say("--vram is for a GPU with memory of its own, and goes with --device cuda");
    else return true;
    return false;
}

bool mox_cli_memory_check(const mox_cli_options *o, const mox_plan_opts *p)
{
    if (p->vram_bytes > 0 && !check_vram(o->v[OPT_DEVICE].text)) return false;
    if (o->v[OPT_CPU_EXPERTS].on && p->vram_bytes == 0) {
        mox_cli_say("--cpu-experts is for experts that do not fit the memory of a GPU, and goes with --vram");
        return false;
    }
    const bool stream = p->experts == MOX_EXPERTS_STREAM || p->n_slots > 0;
    if (p->n_slots > 0 && p->experts != MOX_EXPERTS_STREAM && p->experts != MOX_EXPERTS_AUTO) {
        mox_cli_say("--expert-slots goes with --experts stream, not %s", o->v[OPT_EXPERTS].text);
        return false;
    }
    if (stream && strcmp(o->v[OPT_WEIGHTS].text, "copy") == 0) {
        mox_cli_say("--weights copy keeps all experts in memory, so --experts stream has nothing to read");
        return false;
    }
    return true;
}

int mox_cli_memory_refuse(const mox_plan *p, const mox_cli_options *o)
{
    char least[MOX_CLI_SIZE], budget[MOX_CLI_SIZE];
    if (p->device.least_budget > p->device.budget) {
        mox_cli_say("--vram %s is too small for this model with a context of %lld tokens: it needs at least --vram %s", o->v[OPT_VRAM].text,
                    (long long)p->n_ctx, mox_cli_size(p->device.least_budget, least));
        return EXIT_FULL;
    }
    mox_cli_size(p->least_budget, least);
    mox_cli_size(p->budget, budget);
    if (mox_cli_given(o, OPT_RAM))
        mox_cli_say("--ram %s is too small for this model with a context of %lld tokens: it needs at least --ram %s",
                    o->v[OPT_RAM].text, (long long)p->n_ctx, least);
    else
        mox_cli_say("this model with a context of %lld tokens needs at least --ram %s, but 80 %% of the available memory are %s",
                    (long long)p->n_ctx, least, budget);
    return EXIT_FULL;
}

static void say_changes(const mox_plan *p, const mox_cli_options *o)
{
    char a[MOX_CLI_SIZE];
    if (o->v[OPT_QUIET].on) return;
    if (mox_cli_given(o, OPT_RAM) && p->budget > p->available)
        mox_cli_say("warning: --ram %s is more than the %s of memory that are available", o->v[OPT_RAM].text,
                    mox_cli_size(p->available, a));
    if (p->n_batch < p->n_batch_wanted)
        mox_cli_say("prompts are read %lld tokens at a time instead of %lld, for want of memory", (long long)p->n_batch,
                    (long long)p->n_batch_wanted);
    if (p->device.n_slots > 0)
        mox_cli_say("experts come and go on the GPU%s: memory there for %lld of %lld", p->device.n > 1 ? "s" : "", (long long)p->device.n_slots,
                    (long long)p->n_experts);
    if (p->experts == MOX_EXPERTS_STREAM && strcmp(o->v[OPT_EXPERTS].text, "stream") != 0 && p->n_slots < p->n_experts)
        mox_cli_say("experts are streamed: memory for %lld of %lld", (long long)p->n_slots, (long long)p->n_experts);
}

static int load_dense(mox_cli_session *s, const mox_cli_options *o)
{
    mox_err err;
    mox_inspection report;
    mox_model_inspect(s->model, &report);
    mox_cli_progress progress;
    mox_cli_progress_start(&progress, "loading", report.bytes_total - report.bytes_experts, o->v[OPT_QUIET].on);
    progress.unit = "GB";
    progress.rate_unit = "GB/s";
    progress.per_unit = 1e9;
    const mox_status status = mox_model_load_dense(s->model, mox_cli_progress_update, &progress, &err);
    mox_cli_progress_end(&progress);
    return status == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

static void complete(mox_context_opts *c, int64_t share, const mox_plan *p, const mox_disk_speed *reads)
{
    if (!c) return;
    c->device_bytes = share < INT64_MAX ? share : 0; /* and 0 where there is no such device */
    c->n_batch = (int32_t)p->n_batch;
    c->expert_bytes = p->n_slots * p->slot_bytes;
    c->n_readers = reads->n_at_once;
    c->uring = reads->uring;
    c->read_bytes = reads->piece_bytes;
}

/* How experts are read: as was asked for, else as this disk is read best. */
static mox_disk_speed choose_reads(const mox_cli_session *s, const mox_cli_options *o, const mox_plan *p)
{
    mox_disk_speed way = {0};
    if (mox_cli_given(o, OPT_READERS)) way.n_at_once = (int32_t)o->v[OPT_READERS].number;
    else if (p->experts == MOX_EXPERTS_STREAM && s->dir) (void)mox_cli_disk_speed(s->model, s->dir, p->experts_bytes, &way);
    return way;
}

int mox_cli_memory_plan(const mox_cli_session *s, const mox_cli_options *o, const mox_context_opts *first,
                        const mox_context_opts *second, int64_t extra_bytes, mox_plan *out)
{
    mox_err err;
    mox_plan_opts opts = mox_cli_memory_opts(o);
    if (!mox_cli_memory_check(o, &opts)) return EXIT_USAGE;
    opts.context = first;
    opts.second = second;
    opts.extra_bytes = extra_bytes;
    mox_alloc_trim(); /* files of text were read to open the tokenizer */
    return mox_plan_make(out, s->model, &opts, &err) == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

int mox_cli_memory_follow(mox_cli_session *s, const mox_cli_options *o, const mox_plan *p, mox_context_opts *first,
                          mox_context_opts *second)
{
    if (!p->fits) return mox_cli_memory_refuse(p, o);
    say_changes(p, o);
    const mox_disk_speed reads = choose_reads(s, o, p);
    complete(first, p->device.shares[0], p, &reads);
    complete(second, p->device.shares[1], p, &reads);
    return p->experts == MOX_EXPERTS_STREAM ? load_dense(s, o) : EXIT_OK;
}

int mox_cli_memory_settle(mox_cli_session *s, const mox_cli_options *o, mox_context_opts *first, mox_context_opts *second,
                          int64_t extra_bytes)
{
    mox_plan plan;
    const int code = mox_cli_memory_plan(s, o, first, second, extra_bytes, &plan);
    return code == EXIT_OK ? mox_cli_memory_follow(s, o, &plan, first, second) : code;
}
