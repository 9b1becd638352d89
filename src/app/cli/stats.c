/* app/cli/stats.c -- the line of numbers behind a reply.
 *
 * Narrow windows get fewer numbers, not smaller ones: the wordings are tried from the
 * longest to the shortest. */
#include "app/cli/stats.h"

#include <stdio.h>
#include <string.h>

static double rate(int64_t n, double seconds) { return n > 0 && seconds > 0.0 ? (double)n / seconds : 0.0; }

int mox_cli_rate_digits(double x) { return x < 100.0 ? 1 : 0; }
static int second_digits(double x) { return x < 1.0 ? 2 : 1; }

static const char *ending(const mox_cli_stats *s)
{
    return s->stop == MOX_STOP_CANCELLED ? " | stopped" : s->stop == MOX_STOP_LENGTH ? " | cut at the limit" : "";
}

/* level 0 is the longest. */
static void wording(const mox_cli_stats *s, int level, char out[MOX_CLI_STATS_BYTES])
{
    const double pr = rate(s->n_computed, s->prompt_s);
    const double gr = rate(s->n_generated - 1, s->generate_s); /* the first token comes with the prompt */
    const int pd = mox_cli_rate_digits(pr), gd = mox_cli_rate_digits(gr);
    const long long prompt = s->n_prompt, computed = s->n_computed, generated = s->n_generated;
    char cached[40] = "";
    if (s->n_cached > 0) (void)snprintf(cached, sizeof cached, " (cached %lld)", (long long)s->n_cached);
    char first[40] = ""; /* not of a sum */
    if (s->first_token_s > 0.0)
        (void)snprintf(first, sizeof first, " | ttft %.*fs", second_digits(s->first_token_s), s->first_token_s);
    const size_t room = MOX_CLI_STATS_BYTES;
    if (generated == 0) {
        if (level < 2) (void)snprintf(out, room, "prompt %lld of %lld tok %.*fs %.*f t/s%s", computed + s->n_cached, prompt,
                                      second_digits(s->prompt_s), s->prompt_s, pd, pr, ending(s));
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
        (void)snprintf(out, room, "prompt %lld tok %.*f t/s | gen %lld tok %.*f t/s%s", prompt, pd, pr, generated, gd, gr,
                       ending(s));
        break;
    case 2: (void)snprintf(out, room, "gen %lld tok %.*f t/s%s", generated, gd, gr, ending(s)); break;
    default: (void)snprintf(out, room, "%.*f t/s", gd, gr); break;
    }
}

void mox_cli_stats_line(const mox_cli_stats *s, int columns, char out[MOX_CLI_STATS_BYTES])
{
    for (int level = 0; level <= 3; level++) {
        wording(s, level, out);
        if ((int)strlen(out) < columns) return;
    }
    out[0] = '\0';
}

void mox_cli_stats_add(mox_cli_stats *sum, const mox_cli_stats *s)
{
    sum->n_prompt += s->n_prompt;
    sum->n_cached += s->n_cached;
    sum->n_computed += s->n_computed;
    sum->n_generated += s->n_generated;
    sum->prompt_s += s->prompt_s;
    sum->generate_s += s->generate_s;
}
