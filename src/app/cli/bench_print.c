/* app/cli/bench_print.c -- rows of `moxie bench` as a table, as CSV and as JSON. */
#include "app/cli/bench.h"

#include "app/cli/describe.h"
#include "app/cli/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const bench_setup *s, const char *format) { return strcmp(s->format, format) == 0; }

static double gbytes(const bench_row *r) { return r->bytes_per_token * r->rate / 1e9; }
static double gmacs(const bench_row *r) { return r->macs_per_token * r->rate / 1e9; }
static double bandwidth_percent(const bench_row *r) { return r->probe_bytes > 0.0 ? 100.0 * gbytes(r) / (r->probe_bytes / 1e9) : 0.0; }
static double arithmetic_percent(const bench_row *r)
{
    return r->probe_macs > 0.0 ? 100.0 * gmacs(r) / (r->probe_macs / 1e9) : 0.0;
}

static double all_tokens(const bench_row *r) { return r->samples > 0 ? (double)(r->tokens * r->samples) : 1.0; }
static double disk_bytes(const bench_row *r) { return (double)r->experts.bytes_read / all_tokens(r); }
static double disk_rate(const bench_row *r) { return r->seconds > 0.0 ? (double)r->experts.bytes_read / r->seconds : 0.0; }
static double copied_bytes(const bench_row *r) { return (double)r->experts.bytes_copied / all_tokens(r); }
static double copy_rate(const bench_row *r) { return r->seconds > 0.0 ? (double)r->experts.bytes_copied / r->seconds : 0.0; }
static double copy_wait_ms(const bench_row *r) { return 1e3 * r->experts.copy_wait_s / all_tokens(r); }
static double wait_ms(const bench_row *r) { return 1e3 * r->experts.wait_s / all_tokens(r); }

/* What a token takes at least when experts are read while nothing but experts is computed: reading,
 * at the rate of the probe, and everything else. */
static double read_ms(const bench_row *r) { return r->probe_disk > 0.0 ? 1e3 * disk_bytes(r) / r->probe_disk : 0.0; }
static double dense_ms(const bench_row *r) { return 1e3 * (r->seconds - r->experts.busy_s) / all_tokens(r); }
static double stream_percent(const bench_row *r)
{
    return r->probe_disk > 0.0 && r->seconds > 0.0 ? 0.1 * (read_ms(r) + dense_ms(r)) * all_tokens(r) / r->seconds : 0.0;
}

/* The numbers of a row, for CSV and JSON alike. */
enum { N_NUMBERS = 34 };
typedef struct number {
    const char *name;
    double value;
} number;

static void numbers_of(const bench_row *r, number out[N_NUMBERS])
{
    const number all[N_NUMBERS] = {
        {"tokens", (double)r->tokens},
        {"depth", (double)r->depth},
        {"streams", r->streams},
        {"threads", r->threads},
        {"samples", (double)r->samples},
        {"tokens_per_s", r->rate},
        {"tokens_per_s_min", r->rate_low},
        {"tokens_per_s_max", r->rate_high},
        {"bytes_per_token", r->bytes_per_token},
        {"gbytes_per_s", gbytes(r)},
        {"probe_gbytes_per_s", r->probe_bytes / 1e9},
        {"bandwidth_percent", bandwidth_percent(r)},
        {"macs_per_token", r->macs_per_token},
        {"gmac_per_s", gmacs(r)},
        {"peak_gmac_per_s", r->probe_macs / 1e9},
        {"arithmetic_percent", arithmetic_percent(r)},
        {"ms_per_token", 1e3 / r->rate},
        {"expert_hit_percent", mox_cli_hit_percent(&r->experts)},
        {"disk_bytes_per_token", disk_bytes(r)},
        {"disk_gbytes_per_s", disk_rate(r) / 1e9},
        {"wait_ms_per_token", wait_ms(r)},
        {"probe_disk_gbytes_per_s", r->probe_disk / 1e9},
        {"read_ms_per_token", read_ms(r)},
        {"dense_ms_per_token", dense_ms(r)},
        {"stream_percent", stream_percent(r)},
        {"expert_slots", (double)r->experts.n_slots},
        {"expert_slots_away", (double)r->experts.n_slots_away},
        {"device_slots", (double)r->experts.n_device_slots},
        {"device_hit_percent", mox_cli_device_hit_percent(&r->experts)},
        {"device_cold_percent", mox_cli_device_cold_percent(&r->experts)},
        {"copied_bytes_per_token", copied_bytes(r)},
        {"copied_gbytes_per_s", copy_rate(r) / 1e9},
        {"copy_wait_ms_per_token", copy_wait_ms(r)},
        {"rss_anon_bytes", (double)r->own_bytes},
    };
    memcpy(out, all, sizeof all);
}

static void json_text(const char *name, const char *text)
{
    mox_cli_putf("\"%s\": ", name);
    mox_cli_put_json(text, strlen(text));
}

static void json_row(const bench_setup *s, const bench_row *r, bool first)
{
    number n[N_NUMBERS];
    numbers_of(r, n);
    mox_cli_putf(first ? "\n  {" : ",\n  {");
    json_text("test", r->test);
    mox_cli_putf(", \"kind\": \"%s\", ", r->decode ? "decode" : "prefill");
    json_text("level", s->kernels.isa);
    mox_cli_putf(", ");
    json_text("precision", s->kernels.precision);
    for (int i = 0; i < N_NUMBERS; i++) {
        mox_cli_putf(", \"%s\": ", n[i].name);
        mox_cli_put_json_real(n[i].value);
    }
    mox_cli_putf("}");
}

static void csv_row(const bench_setup *s, const bench_row *r)
{
    number n[N_NUMBERS];
    numbers_of(r, n);
    mox_cli_putf("%s,%s,%s,%s", r->test, r->decode ? "decode" : "prefill", s->kernels.isa,
                 s->kernels.precision);
    for (int i = 0; i < N_NUMBERS; i++) mox_cli_putf(",%.9g", n[i].value);
    mox_cli_putf("\n");
}

/* ---- the table ---- */

enum { N_CELLS = 27 };
typedef struct cell {
    const char *heading;
    int width; /* as printf has it */
    int spare; /* the higher, the sooner it is left out where a terminal is too narrow; 0: never */
    char text[64];
} cell;

typedef struct table_line {
    cell cells[N_CELLS];
    int n;
} table_line;

__attribute__((format(printf, 5, 6))) static void add(table_line *l, const char *heading, int width, int spare,
                                                      const char *format, ...)
{
    cell *c = &l->cells[l->n++];
    *c = (cell){.heading = heading, .width = width, .spare = spare};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(c->text, sizeof c->text, format, args);
    va_end(args);
}

static void table_of(const bench_row *r, table_line *l)
{
    l->n = 0;
    add(l, "test", -12, 0, "%s", r->test);
    add(l, "threads", 7, 2, "%d", r->threads);
    add(l, "t/s", 9, 0, "%.2f", r->rate);
    add(l, "    least..most     ", 20, 20, "%9.2f..%-9.2f", r->rate_low, r->rate_high);
    add(l, "MB/tok", 9, 18, "%.1f", r->bytes_per_token / 1e6);
    add(l, "GB/s", 7, 4, "%.2f", gbytes(r));
    add(l, "probe", 7, 9, "%.2f", r->probe_bytes / 1e9);
    add(l, "%", 5, 5, "%.0f%%", bandwidth_percent(r));
    add(l, "MMAC/tok", 9, 19, "%.1f", r->macs_per_token / 1e6);
    add(l, "GMAC/s", 8, 7, "%.1f", gmacs(r));
    if (r->probe_macs > 0.0) {
        add(l, "peak", 8, 10, "%.1f", r->probe_macs / 1e9);
        add(l, "%", 5, 8, "%.0f%%", arithmetic_percent(r));
    } else { /* of a device nobody knows */
        add(l, "peak", 8, 10, "-");
        add(l, "%", 5, 8, "-");
    }
    if (r->experts.n_slots > 0) {
        add(l, "hit", 5, 0, "%.0f%%", mox_cli_hit_percent(&r->experts));
        add(l, "disk MB/tok", 11, 1, "%.1f", disk_bytes(r) / 1e6);
        add(l, "GB/s", 6, 0, "%.2f", disk_rate(r) / 1e9);
        add(l, "probe", 6, 3, "%.2f", r->probe_disk / 1e9);
        add(l, "read ms", 8, 14, "%.1f", read_ms(r));
        add(l, "dense ms", 8, 13, "%.1f", dense_ms(r));
        add(l, "wait ms", 8, 0, "%.1f", wait_ms(r));
        add(l, "%", 5, 6, "%.0f%%", stream_percent(r));
        add(l, "slots", 7, 16, "%lld", (long long)(r->experts.n_slots - r->experts.n_slots_away));
        add(l, "GB memory", 9, 15, "%.2f", (double)r->own_bytes / 1e9);
    }
    if (r->experts.n_device_slots > 0) {
        add(l, "GPU", 5, 0, "%.0f%%", mox_cli_device_hit_percent(&r->experts));
        add(l, "copy MB/tok", 11, 11, "%.1f", copied_bytes(r) / 1e6);
        add(l, "GB/s", 6, 12, "%.2f", copy_rate(r) / 1e9);
        add(l, "wait ms", 8, 0, "%.1f", copy_wait_ms(r));
        add(l, "slots", 7, 17, "%lld", (long long)r->experts.n_device_slots);
    }
}

/* Leaves cells out until the others have room. */
static void narrow(table_line *l, int columns)
{
    int total = -1;
    for (int i = 0; i < l->n; i++) total += 1 + abs(l->cells[i].width);
    while (total > columns) {
        int first = 0;
        for (int i = 1; i < l->n; i++)
            if (l->cells[i].spare > l->cells[first].spare) first = i;
        if (l->cells[first].spare == 0) return;
        total -= 1 + abs(l->cells[first].width);
        l->n--;
        memmove(&l->cells[first], &l->cells[first + 1], (size_t)(l->n - first) * sizeof l->cells[0]);
    }
}

static void put_table(const bench_setup *s, const bench_row *r, bool headings)
{
    table_line l;
    table_of(r, &l);
    if (s->columns > 0) narrow(&l, s->columns);
    for (int i = 0; i < l.n; i++)
        mox_cli_putf("%s%*s", i == 0 ? "" : " ", l.cells[i].width, headings ? l.cells[i].heading : l.cells[i].text);
}

static void table_row(const bench_setup *s, const bench_row *r)
{
    put_table(s, r, false);
    mox_cli_putf("\n");
}

void bench_print_begin(const bench_setup *s)
{
    if (is(s, "json")) {
        mox_cli_putf("{");
        json_text("model", s->model);
        mox_cli_putf(", ");
        json_text("instruction", s->instruction);
        mox_cli_putf(", ");
        json_text("kv_type", s->kernels.kv_type);
        mox_cli_putf(", ");
        json_text("device", s->kernels.device);
        mox_cli_putf(", \"devices\": %d, \"load\": {\"open_s\": ", (int)s->kernels.n_devices);
        mox_cli_put_json_real(s->load.open_s);
        mox_cli_putf(", \"upload_s\": ");
        mox_cli_put_json_real(s->load.upload_s);
        mox_cli_putf(", \"upload_bytes\": %lld}, \"rows\": [", (long long)s->load.upload_bytes);
    } else if (is(s, "csv")) {
        number n[N_NUMBERS];
        numbers_of(&(bench_row){0}, n);
        mox_cli_putf("test,kind,level,precision");
        for (int i = 0; i < N_NUMBERS; i++) mox_cli_putf(",%s", n[i].name);
        mox_cli_putf("\n");
    } else {
        mox_cli_put_text(s->model, strlen(s->model));
        char words[MOX_CLI_DESCRIPTION];
        mox_cli_describe_kernels(s->context, false, words);
        const bool copies = strcmp(s->instruction, "copy") == 0;
        mox_cli_putf(": %s (%s%s)\n", words, copies ? "probe: copies of its own memory" : "peak of ", copies ? "" : s->instruction);
        if (s->color) mox_cli_putf("\x1b[1m");
        bench_row none = {0};
        mox_context_get_expert_stats(s->context, &none.experts);
        put_table(s, &none, true);
        mox_cli_putf(s->color ? "\x1b[0m\n" : "\n");
    }
    mox_cli_put_flush();
}

void bench_print_row(const bench_setup *s, const bench_row *r, bool first)
{
    if (is(s, "json")) json_row(s, r, first);
    else if (is(s, "csv")) csv_row(s, r);
    else table_row(s, r);
    mox_cli_put_flush();
}

void bench_print_end(const bench_setup *s, const mox_model *m)
{
    if (is(s, "json")) {
        mox_cli_putf("\n], \"weights\": ");
        mox_cli_put_weights_json(m);
        mox_cli_putf("}\n");
    } else if (is(s, "table")) {
        char words[MOX_CLI_DESCRIPTION];
        mox_cli_describe_weights(m, words);
        mox_cli_putf("weights: %s\n", words);
        if (s->load.upload_bytes > 0)
            mox_cli_putf("load: %.3f s for the driver, %.2f GB of weights in %.3f s: %.1f GB/s\n", s->load.open_s,
                         (double)s->load.upload_bytes / 1e9, s->load.upload_s, (double)s->load.upload_bytes / 1e9 / s->load.upload_s);
    }
}
