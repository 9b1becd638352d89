/* app/cli/replay.c -- `moxie replay`: a recorded run with other expert caches. */
#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "moxie/tools.h"

#include <string.h>

static const char *const policies[] = {"lfu", "lru", "2q", "belady"};
enum { N_POLICIES = sizeof policies / sizeof *policies, N_SHARES = 4 };

typedef struct replay {
    mox_trace *trace;
    mox_trace_info info;
    int64_t slots[MOX_CLI_LIST];
    int n_slots;
    bool json;
    int n_rows; /* printed */
} replay;

static double percent(int64_t part, int64_t all) { return all > 0 ? 100.0 * (double)part / (double)all : 0.0; }

/* The sizes that were asked for, else the recorded one and shares of all experts; ascending, each once. */
static void choose_slots(replay *r, const mox_cli_options *o)
{
    static const int shares[N_SHARES] = {10, 25, 50, 75};
    int64_t all[MOX_CLI_LIST];
    int n = mox_cli_list(o, OPT_SLOTS, all);
    if (n == 0) {
        if (r->info.n_slots > 0) all[n++] = r->info.n_slots;
        for (int i = 0; i < N_SHARES; i++) all[n++] = (r->info.n_all * shares[i] + 99) / 100;
    }
    for (int i = 0; i < n; i++) {
        const int64_t slots = all[i] < r->info.n_all ? all[i] : r->info.n_all;
        int at = r->n_slots;
        while (at > 0 && r->slots[at - 1] > slots) at--;
        if (at > 0 && r->slots[at - 1] == slots) continue;
        memmove(r->slots + at + 1, r->slots + at, (size_t)(r->n_slots - at) * sizeof *r->slots);
        r->slots[at] = slots;
        r->n_slots++;
    }
}

static void print_info(const replay *r)
{
    const mox_trace_info *i = &r->info;
    if (r->json) {
        mox_cli_putf("{\"layers\": %lld, \"experts\": %lld, \"active\": %lld, \"slot_bytes\": %lld, \"experts_in_all\": %lld, "
                     "\"batches\": %lld, \"requests\": %lld, \"ahead\": %lld, \"tokens\": %lld, ",
                     (long long)i->n_layers, (long long)i->n_experts, (long long)i->n_active, (long long)i->slot_bytes,
                     (long long)i->n_all, (long long)i->n_batches, (long long)i->n_requests, (long long)i->n_ahead,
                     (long long)i->n_tokens);
        return;
    }
    mox_cli_putf("trace     %lld tokens, %lld of %lld experts active in a layer, %lld experts in all of %.2f MB\n",
                 (long long)i->n_tokens, (long long)i->n_active, (long long)i->n_experts, (long long)i->n_all,
                 (double)i->slot_bytes / 1e6);
    mox_cli_putf("requests  %lld, in %lld batches; %lld experts were read ahead\n", (long long)i->n_requests,
                 (long long)i->n_batches, (long long)i->n_ahead);
}

static void print_recorded(const replay *r, bool same)
{
    const mox_trace_info *i = &r->info;
    if (r->json && i->n_slots == 0) mox_cli_putf("\"recorded\": null, ");
    else if (r->json)
        mox_cli_putf("\"recorded\": {\"policy\": \"%s\", \"slots\": %lld, \"hits\": %lld, \"misses\": %lld, \"reproduced\": %s}, ",
                     i->policy, (long long)i->n_slots, (long long)i->hits, (long long)i->misses, same ? "true" : "false");
    else if (i->n_slots == 0) mox_cli_putf("recorded  a run that streamed no experts\n");
    else
        mox_cli_putf("recorded  %s with %lld slots, %lld hits and %lld misses: %s\n", i->policy, (long long)i->n_slots,
                     (long long)i->hits, (long long)i->misses, same ? "reproduced" : "NOT reproduced");
}

static void print_row(replay *r, const mox_replay *x)
{
    const double hit = percent(x->hits, x->hits + x->misses), share = percent(x->n_slots, r->info.n_all);
    if (r->json) {
        mox_cli_putf("%s{\"policy\": \"%s\", \"slots\": %lld, \"slots_percent\": ", r->n_rows > 0 ? ", " : "", x->policy,
                     (long long)x->n_slots);
        mox_cli_put_json_real(share);
        mox_cli_putf(", \"hits\": %lld, \"misses\": %lld, \"ahead\": %lld, \"hit_percent\": ", (long long)x->hits,
                     (long long)x->misses, (long long)x->n_ahead);
        mox_cli_put_json_real(hit);
        mox_cli_putf(", \"bytes_per_token\": ");
        mox_cli_put_json_real(x->bytes_per_token);
        mox_cli_putf("}");
    } else {
        if (r->n_rows == 0) mox_cli_putf("\npolicy    slots      %%    hit %%      misses  disk MB/tok\n");
        mox_cli_putf("%-8s %6lld %6.1f %8.2f %11lld %12.3f\n", x->policy, (long long)x->n_slots, share, hit,
                     (long long)x->misses, x->bytes_per_token / 1e6);
    }
    r->n_rows++;
}

static int run_rows(replay *r, const char *policy)
{
    for (int i = 0; i < r->n_slots; i++) {
        for (int j = 0; j < N_POLICIES; j++) {
            mox_replay x;
            mox_err err;
            if (strcmp(policy, "all") != 0 && strcmp(policy, policies[j]) != 0) continue;
            if (mox_trace_replay(r->trace, policies[j], r->slots[i], &x, &err) != MOX_OK) return mox_cli_fail_running(&err);
            print_row(r, &x);
        }
    }
    return EXIT_OK;
}

/* The run as it was. */
static int reproduce(const replay *r, bool *same)
{
    mox_replay x;
    mox_err err;
    *same = true;
    if (r->info.n_slots == 0) return EXIT_OK;
    if (mox_trace_replay(r->trace, r->info.policy, r->info.n_slots, &x, &err) != MOX_OK) return mox_cli_fail_running(&err);
    *same = x.hits == r->info.hits && x.misses == r->info.misses;
    if (!*same)
        mox_cli_say("the recorded run had %lld hits and %lld misses, but replaying it gives %lld and %lld: the trace is damaged, "
                    "or of another version",
                    (long long)r->info.hits, (long long)r->info.misses, (long long)x.hits, (long long)x.misses);
    return EXIT_OK;
}

int mox_cli_replay(const mox_cli_options *o)
{
    replay r = {.json = o->v[OPT_JSON].on};
    mox_err err;
    bool same;
    if (mox_trace_open(&r.trace, o->words[0], &err) != MOX_OK) return mox_cli_fail_running(&err);
    mox_trace_get_info(r.trace, &r.info);
    choose_slots(&r, o);
    int code = reproduce(&r, &same);
    if (code == EXIT_OK) {
        print_info(&r);
        print_recorded(&r, same);
        if (r.json) mox_cli_putf("\"rows\": [");
        code = run_rows(&r, o->v[OPT_POLICY].text);
        if (r.json) mox_cli_putf("]}\n");
        if (code == EXIT_OK && !same) code = EXIT_RUNTIME;
    }
    mox_trace_close(&r.trace);
    return code;
}
