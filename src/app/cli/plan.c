/* app/cli/plan.c -- `moxie plan`: what would go where in memory, and how fast that could be.
 *
 * Nothing is loaded: the plan is the one that run, eval and the others make before they load
 * (app/cli/memory.h), and speeds come from probes of this machine. */
#include "app/cli/commands.h"
#include "app/cli/disk.h"
#include "app/cli/heat.h"
#include "app/cli/memory.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/session.h"

#include <stdio.h>
#include <string.h>

/* Bytes of heap per entry of a tokenizer, for models that come without one: 85 were measured
 * for the 151,669 entries of Qwen3's, 106 for the 1,932 of the demo model's. */
enum { TOKENIZER_ENTRY_BYTES = 106 };

enum { N_ROUTINGS = 2 };
static const struct {
    const char *name;
    double zipf;
} routings[N_ROUTINGS] = {{"alike", 0.0}, {"zipf", 1.0}};

typedef struct planning {
    mox_cli_session s;
    const char *name;
    mox_plan plan;
    mox_plan_machine machine;
    mox_plan_speed speeds[N_ROUTINGS];
} planning;

/* ---- finding out ----------------------------------------------------------- */

static int open_model(planning *g, const mox_cli_options *o, int64_t *extra_bytes)
{
    mox_err err;
    const char *synthetic = o->v[OPT_SYNTHETIC].text;
    *extra_bytes = 0;
    if (synthetic && mox_cli_given(o, OPT_MODEL)) {
        mox_cli_say("-m and --synthetic name two models: give one of them");
        return EXIT_USAGE;
    }
    g->name = synthetic;
    if (synthetic) {
        if (mox_model_open_shape(&g->s.model, synthetic, &err) != MOX_OK) return mox_cli_fail_opening(&err);
        mox_model_info info;
        mox_model_get_info(g->s.model, &info);
        *extra_bytes = info.n_vocab * TOKENIZER_ENTRY_BYTES;
        return EXIT_OK;
    }
    const int code = mox_cli_session_find(&g->s, o);
    if (code != EXIT_OK) return code;
    g->name = g->s.dir;
    const mox_status status = mox_tokenizer_open(&g->s.tokenizer, g->s.dir, &err); /* a folder may have none */
    if (status != MOX_OK && status != MOX_E_NOT_FOUND) return mox_cli_fail_opening(&err);
    if (status == MOX_OK) { /* what run and chat have in memory; they say what is wrong with it */
        (void)mox_chat_open(&g->s.chat, g->s.dir, g->s.tokenizer, NULL, NULL);
    }
    return mox_cli_session_open_model(&g->s, o);
}

static int make_plan(planning *g, const mox_cli_options *o)
{
    mox_err err;
    mox_context_opts context;
    mox_plan_opts opts = mox_cli_memory_opts(o);
    if (!mox_cli_memory_check(o, &opts)) return EXIT_USAGE;
    int code = open_model(g, o, &opts.extra_bytes);
    if (code != EXIT_OK) return code;
    mox_cli_context_opts_on(o, o->v[OPT_DEVICE].text, 0, &context);
    opts.context = &context;
    opts.extra_bytes += mox_cli_heat_bytes(g->s.model);
    return mox_plan_make(&g->plan, g->s.model, &opts, &err) == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

/* A disk that cannot be measured is unknown, and so is one behind a page cache, which is fast only
 * for what fits in there. */
static double disk_speed(const planning *g, const mox_cli_options *o)
{
    mox_disk_speed speed;
    if (mox_cli_given(o, OPT_DISK)) return o->v[OPT_DISK].real * 1e9;
    if (g->plan.experts != MOX_EXPERTS_STREAM || g->plan.slot_bytes == 0) return 0.0;
    if (!g->s.dir) return 0.0; /* a shape lies on no disk */
    return mox_cli_disk_speed(g->s.model, g->s.dir, g->plan.experts_bytes, &speed) && speed.direct ? speed.bytes_per_s : 0.0;
}

static int predict(planning *g, const mox_cli_options *o)
{
    mox_err err;
    mox_probe *probe;
    mox_context_opts context;
    mox_cli_context_opts_on(o, "cpu", 0, &context);
    if (mox_probe_create(&probe, &context, 0, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    enum { TRIES = 5 };
    for (int i = 0; i < TRIES; i++) { /* the best: others may disturb */
        const double weights = mox_probe_weights(probe), macs = mox_probe_products(probe);
        if (weights > g->machine.weights_per_s) g->machine.weights_per_s = weights;
        if (macs > g->machine.macs_per_s) g->machine.macs_per_s = macs;
    }
    mox_probe_destroy(&probe);
    g->machine.disk_bytes_per_s = disk_speed(g, o);
    for (int i = 0; i < N_ROUTINGS; i++) {
        g->machine.zipf = routings[i].zipf;
        mox_plan_predict(&g->plan, &g->machine, &g->speeds[i]);
    }
    return EXIT_OK;
}

/* ---- saying it ------------------------------------------------------------- */

static const char *mode_name(mox_experts e)
{
    return e == MOX_EXPERTS_STREAM ? "stream" : e == MOX_EXPERTS_MMAP ? "mmap" : "resident";
}

static void line(const char *name, int64_t bytes, const char *more)
{
    mox_cli_putf("%-14s %10.2f GiB%s%s\n", name, (double)bytes / 0x1p30, *more ? "  " : "", more);
}

static const char *rate_text(double rate, char out[32])
{
    if (rate > 0.0) (void)snprintf(out, 32, "%10.2f t/s", rate);
    else (void)snprintf(out, 32, "%14s", "unknown");
    return out;
}

static void print_experts(const mox_plan *p)
{
    char text[160] = "";
    if (p->experts == MOX_EXPERTS_STREAM)
        (void)snprintf(text, sizeof text, "%lld of %lld experts, slots of %.2f MiB", (long long)p->n_slots, (long long)p->n_experts,
                       (double)p->slot_bytes / 0x1p20);
    else if (p->experts == MOX_EXPERTS_RESIDENT && p->n_experts > 0)
        (void)snprintf(text, sizeof text, "all %lld", (long long)p->n_experts);
    else if (p->experts == MOX_EXPERTS_MMAP)
        (void)snprintf(text, sizeof text, "mapped like all weights, and not counted");
    line("experts", p->experts_bytes, text);
}

static void print_device(const mox_plan_devices *all, int64_t i, const char *name)
{
    const mox_plan_device *d = &all->each[i];
    char text[96] = "";
    if (all->n > 1) (void)snprintf(text, sizeof text, ", number %lld of %lld, layers %lld to %lld", (long long)(i + 1), (long long)all->n,
                                   (long long)d->first_layer, (long long)(d->first_layer + d->n_layers - 1));
    mox_cli_putf("\non device %s%s: experts %s\n", name, text,
                 d->n_experts == 0 ? "none" : d->n_slots == 0 ? "stay" : all->cpu_experts ? "come and go, the cpu computes missing ones" : "come and go");
    line("weights", d->weights_bytes, d->n_slots > 0 ? "without routed experts" : "");
    if (d->n_slots > 0) {
        (void)snprintf(text, sizeof text, "%lld of %lld experts, slots of %.2f MiB", (long long)d->n_slots, (long long)d->n_experts,
                       (double)all->slot_bytes / 0x1p20);
        line("experts", d->experts_bytes, text);
    }
    line("cache", d->cache_bytes, "");
    line("activations", d->activation_bytes, "");
    line("other", d->other_bytes, "");
    line("total", d->total, "");
}

static void print_devices(const mox_plan_devices *all, const char *name)
{
    const char *of = all->n > 1 ? "of each device" : "";
    for (int64_t i = 0; i < all->n; i++) print_device(all, i, name);
    if (all->n > 1) mox_cli_putf("\n");
    if (all->budget < INT64_MAX) line("budget", all->budget, of);
    line("least budget", all->least_budget, of);
}

static void print_page(const planning *g, const char *device)
{
    const mox_plan *p = &g->plan;
    char text[96] = "", decode[32], prefill[32];
    mox_cli_putf("%s: experts %s\n", g->name, mode_name(p->experts));
    line("dense weights", p->dense_bytes, "");
    print_experts(p);
    if (p->copy_bytes > 0) line("copy", p->copy_bytes, "of all weights");
    (void)snprintf(text, sizeof text, "%lld tokens", (long long)p->n_ctx);
    line("cache", p->cache_bytes, text);
    (void)snprintf(text, sizeof text, "batches of %lld%s", (long long)p->n_batch,
                   p->n_batch < p->n_batch_wanted ? ", smaller than asked for" : "");
    line("activations", p->activation_bytes, text);
    line("other", p->other_bytes, "");
    line("total", p->total, "");
    if (p->budget < INT64_MAX) line("budget", p->budget, "");
    else mox_cli_putf("%-14s %14s\n", "budget", "unlimited");
    line("least budget", p->least_budget, "");
    if (p->device.total > 0) {
        print_devices(&p->device, device);
        return; /* speeds are those of the processor */
    }
    mox_cli_putf("\n%-14s %9s %14s %14s\n", "routing", "hits", "decode", "prefill");
    for (int i = 0; i < N_ROUTINGS; i++)
        mox_cli_putf("%-14s %8.1f%% %s %s\n", routings[i].name, 100.0 * g->speeds[i].hit_rate,
                     rate_text(g->speeds[i].decode_per_s, decode), rate_text(g->speeds[i].prefill_per_s, prefill));
    mox_cli_putf("estimated from kernels that read %.1f GB/s and multiply %.0f GMAC/s, and ", g->machine.weights_per_s / 1e9,
                 g->machine.macs_per_s / 1e9);
    if (g->machine.disk_bytes_per_s > 0.0) mox_cli_putf("a disk of %.2f GB/s\n", g->machine.disk_bytes_per_s / 1e9);
    else mox_cli_putf("a disk that was not measured\n");
}

static void json_real(const char *name, double x, bool known)
{
    mox_cli_putf(", \"%s\": ", name);
    if (known) mox_cli_put_json_real(x);
    else mox_cli_putf("null");
}

static void json_limit(const char *name, int64_t bytes)
{
    mox_cli_putf(", \"%s\": ", name);
    if (bytes < INT64_MAX) mox_cli_putf("%lld", (long long)bytes);
    else mox_cli_putf("null");
}

static void print_device_json(const mox_plan_device *d)
{
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"n_layers", d->n_layers}, {"weights_bytes", d->weights_bytes}, {"experts_bytes", d->experts_bytes}, {"cache_bytes", d->cache_bytes},
        {"activation_bytes", d->activation_bytes}, {"other_bytes", d->other_bytes}, {"total", d->total}, {"n_experts", d->n_experts},
        {"n_slots", d->n_slots},
    };
    mox_cli_putf("{\"first_layer\": %lld", (long long)d->first_layer);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        mox_cli_putf(", \"%s\": %lld", numbers[i].name, (long long)numbers[i].value);
    mox_cli_putf("}");
}

static void print_devices_json(const mox_plan_devices *d)
{
    if (d->total == 0) return;
    mox_cli_putf(", \"device\": {\"total\": %lld, \"least_budget\": %lld, \"slot_bytes\": %lld, \"n_slots\": %lld", (long long)d->total,
                 (long long)d->least_budget, (long long)d->slot_bytes, (long long)d->n_slots);
    json_limit("budget", d->budget);
    mox_cli_putf(", \"cpu_experts\": %s, \"each\": [", d->cpu_experts ? "true" : "false");
    for (int64_t i = 0; i < d->n; i++) {
        if (i > 0) mox_cli_putf(", ");
        print_device_json(&d->each[i]);
    }
    mox_cli_putf("]}");
}

static void print_json(const planning *g)
{
    const mox_plan *p = &g->plan;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"dense_bytes", p->dense_bytes}, {"experts_bytes", p->experts_bytes}, {"copy_bytes", p->copy_bytes},
        {"cache_bytes", p->cache_bytes}, {"activation_bytes", p->activation_bytes}, {"other_bytes", p->other_bytes},
        {"total", p->total}, {"least_budget", p->least_budget}, {"n_experts", p->n_experts},
        {"n_experts_active", p->n_experts_active}, {"expert_bytes_all", p->expert_bytes_all}, {"slot_bytes", p->slot_bytes},
        {"n_slots", p->n_slots}, {"n_ctx", p->n_ctx}, {"n_batch", p->n_batch}, {"n_batch_wanted", p->n_batch_wanted},
    };
    mox_cli_putf("{\"model\": ");
    mox_cli_put_json(g->name, strlen(g->name));
    mox_cli_putf(", \"experts\": \"%s\", \"fits\": %s", mode_name(p->experts), p->fits ? "true" : "false");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        mox_cli_putf(", \"%s\": %lld", numbers[i].name, (long long)numbers[i].value);
    print_devices_json(&p->device);
    json_limit("budget", p->budget);
    json_limit("available", p->available);
    json_real("weights_bytes_per_s", g->machine.weights_per_s, g->machine.weights_per_s > 0.0);
    json_real("macs_per_s", g->machine.macs_per_s, g->machine.macs_per_s > 0.0);
    json_real("disk_bytes_per_s", g->machine.disk_bytes_per_s, g->machine.disk_bytes_per_s > 0.0);
    mox_cli_putf(", \"routing\": [");
    for (int i = 0; i < N_ROUTINGS && p->fits && p->device.total == 0; i++) {
        const mox_plan_speed *s = &g->speeds[i];
        mox_cli_putf("%s{\"name\": \"%s\"", i ? ", " : "", routings[i].name);
        json_real("hit_rate", s->hit_rate, p->experts != MOX_EXPERTS_MMAP);
        json_real("decode_tokens_per_s", s->decode_per_s, s->decode_per_s > 0.0);
        json_real("prefill_tokens_per_s", s->prefill_per_s, s->prefill_per_s > 0.0);
        json_real("disk_bytes_per_token", s->disk_bytes_per_token, p->experts != MOX_EXPERTS_MMAP);
        mox_cli_putf("}");
    }
    mox_cli_putf("]}\n");
}

int mox_cli_plan(const mox_cli_options *o)
{
    planning g = {0};
    int code = make_plan(&g, o);
    if (code == EXIT_OK && g.plan.fits && g.plan.device.total == 0) code = predict(&g, o);
    if (code == EXIT_OK && o->v[OPT_JSON].on) print_json(&g);
    else if (code == EXIT_OK && g.plan.fits) print_page(&g, o->v[OPT_DEVICE].text);
    if (code == EXIT_OK && !g.plan.fits) code = mox_cli_memory_refuse(&g.plan, o);
    mox_cli_session_close(&g.s);
    return code;
}
