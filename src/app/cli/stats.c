/* app/cli/stats.c -- the line of numbers behind a reply.
 *
 * Narrow windows get fewer numbers, not smaller ones: the wordings are tried from the
 * longest to the shortest. */
#include "app/cli/stats.h"

#include "app/cli/describe.h"
#include "app/cli/message.h"
#include "app/cli/output.h"

#include <stdio.h>
#include <string.h>

static double rate(int64_t n, double seconds) { return n > 0 && seconds > 0.0 ? (double)n / seconds : 0.0; }

/* The first token comes with the prompt, so one less was computed afterwards. */
static double generate_rate(const mox_cli_stats *s) { return rate(s->n_reply - 1, s->generate_s); }

static int64_t tokens_computed(const mox_cli_stats *s) { return s->n_computed + s->n_reply - (s->n_reply > 0); }

/* As many as mean something. */
static int rate_digits(double x) { return x < 100.0 ? 1 : 0; }
static int second_digits(double x) { return x < 1.0 ? 2 : 1; }

static const char *ending(const mox_cli_stats *s)
{
    return s->stop == MOX_STOP_CANCELLED ? " | stopped" : s->stop == MOX_STOP_LENGTH ? " | cut at the limit" : "";
}

/* level 0 is the longest. */
static void wording(const mox_cli_stats *s, int level, char out[MOX_CLI_STATS_BYTES])
{
    const double pr = rate(s->n_computed, s->prompt_s);
    const double gr = generate_rate(s);
    const int pd = rate_digits(pr), gd = rate_digits(gr);
    const long long prompt = s->n_prompt, computed = s->n_computed, generated = s->n_reply;
    char cached[40] = "";
    if (s->n_cached > 0) (void)snprintf(cached, sizeof cached, " (cached %lld)", (long long)s->n_cached);
    char first[40] = ""; /* not of a sum */
    if (s->first_token_s > 0.0)
        (void)snprintf(first, sizeof first, " | ttft %.*fs", second_digits(s->first_token_s), s->first_token_s);
    const size_t room = MOX_CLI_STATS_BYTES;
    if (s->n_cached + computed < prompt) {
        char speed[24] = ""; /* of nothing there is none */
        if (computed > 0) (void)snprintf(speed, sizeof speed, " %.*f t/s", pd, pr);
        if (level < 2) (void)snprintf(out, room, "prompt %lld of %lld tok %.*fs%s%s", computed + s->n_cached, prompt,
                                      second_digits(s->prompt_s), s->prompt_s, speed, ending(s));
        else (void)snprintf(out, room, "%lld of %lld tok", computed + s->n_cached, prompt);
        return;
    }
    switch (level) {
    case 0:
        (void)snprintf(out, room, "prompt %lld tok %.*fs %.*f t/s%s | gen %lld tok %.*fs %.*f t/s%s%s", prompt,
                       second_digits(s->prompt_s), s->prompt_s, pd, pr, cached, generated, second_digits(s->generate_s),
                       s->generate_s, gd, gr, first, ending(s));
        break;
    case 1:
        (void)snprintf(out, room, "prompt %lld tok %.*f t/s%s | gen %lld tok %.*f t/s%s", prompt, pd, pr, cached, generated, gd,
                       gr, ending(s));
        break;
    case 2:
        (void)snprintf(out, room, "prompt %lld tok %.*f t/s | gen %lld tok %.*f t/s%s", prompt, pd, pr, generated, gd, gr,
                       ending(s));
        break;
    case 3: (void)snprintf(out, room, "prompt %.*f t/s | gen %lld tok %.*f t/s%s", pd, pr, generated, gd, gr, ending(s)); break;
    case 4: (void)snprintf(out, room, "gen %lld tok %.*f t/s%s", generated, gd, gr, ending(s)); break;
    default: (void)snprintf(out, room, "%.*f t/s", gd, gr); break;
    }
}

void mox_cli_stats_line(const mox_cli_stats *s, int columns, char out[MOX_CLI_STATS_BYTES])
{
    char experts[MOX_CLI_DESCRIPTION];
    wording(s, 0, out);
    mox_cli_describe_experts(&s->experts, tokens_computed(s), s->own_bytes, experts);
    if ((int)(strlen(out) + strlen(experts)) < columns) {
        (void)snprintf(out + strlen(out), MOX_CLI_STATS_BYTES - strlen(out), "%s", experts);
        return;
    }
    for (int level = 0; level <= 5; level++) {
        wording(s, level, out);
        if ((int)strlen(out) < columns) return;
    }
    out[0] = '\0';
}

void mox_cli_say_stats(const mox_cli_stats *s)
{
    char line[MOX_CLI_STATS_BYTES];
    mox_cli_stats_line(s, MOX_CLI_STATS_BYTES, line);
    mox_cli_say("%s", line);
}

const char *mox_cli_stop_name(mox_stop stop)
{
    switch (stop) {
    case MOX_STOP_CALLS: return "tool_calls";
    case MOX_STOP_LENGTH: return "length";
    case MOX_STOP_CANCELLED: return "cancelled";
    default: return "stop";
    }
}

void mox_cli_put_stats(const mox_cli_stats *s, double load_s)
{
    mox_cli_putf("\"stop_reason\": \"%s\", \"prompt_tokens\": %lld, \"cached_tokens\": %lld, \"generated_tokens\": %lld, "
                 "\"thinking_tokens\": %lld, \"seed\": %llu",
                 mox_cli_stop_name(s->stop), (long long)s->n_prompt, (long long)s->n_cached, (long long)s->n_reply,
                 (long long)s->n_thinking, (unsigned long long)s->seed);
    const struct {
        const char *name;
        double value;
    } timings[] = {
        {"load_s", load_s},
        {"prompt_s", s->prompt_s},
        {"prompt_tokens_per_s", rate(s->n_computed, s->prompt_s)},
        {"generate_s", s->generate_s},
        {"generate_tokens_per_s", generate_rate(s)},
        {"ttft_s", s->first_token_s},
    };
    mox_cli_putf(", \"timings\": {");
    for (size_t i = 0; i < sizeof timings / sizeof *timings; i++) {
        mox_cli_putf("%s\"%s\": ", i == 0 ? "" : ", ", timings[i].name);
        mox_cli_put_json_real(timings[i].value);
    }
    mox_cli_putf("}, \"rss_anon_bytes\": %lld", (long long)s->own_bytes);
    if (s->experts.n_slots + s->experts.n_device_slots > 0) mox_cli_put_experts_json(&s->experts, tokens_computed(s));
}

void mox_cli_stats_add(mox_cli_stats *sum, const mox_cli_stats *s)
{
    sum->n_prompt += s->n_prompt;
    sum->n_cached += s->n_cached;
    sum->n_computed += s->n_computed;
    sum->n_reply += s->n_reply;
    sum->prompt_s += s->prompt_s;
    sum->generate_s += s->generate_s;
    mox_cli_experts_add(&sum->experts, &s->experts);
    sum->own_bytes = s->own_bytes;
}
