/* app/cli/settings.c -- /set: names and values are those of the command line's options. */
#include "app/cli/settings.h"

#include "app/cli/message.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    option_id id;
} settings[] = {
    {"temp", OPT_TEMP},
    {"top-k", OPT_TOP_K},
    {"top-p", OPT_TOP_P},
    {"min-p", OPT_MIN_P},
    {"repeat-penalty", OPT_REPEAT_PENALTY},
    {"seed", OPT_SEED},
    {"max-tokens", OPT_MAX_TOKENS},
    {"think", OPT_THINK},
    {"think-budget", OPT_THINK_BUDGET},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

const char *const *mox_cli_setting_names(void)
{
    static const char *names[N_SETTINGS + 1];
    for (int i = 0; i < N_SETTINGS; i++) names[i] = settings[i].name;
    return names;
}

/* Choices live longer than the line they were typed in. */
static const char *lasting(const char *word)
{
    static const char *const words[] = {"auto", "on", "off"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], word) == 0) return words[i];
    return word;
}

bool mox_cli_setting_change(mox_cli_options *o, const char *words)
{
    char name[32] = "", value[64] = "", rest[2] = "";
    const int n = sscanf(words, "%31s %63s %1s", name, value, rest);
    for (int i = 0; i < N_SETTINGS; i++) {
        if (strcmp(settings[i].name, name) != 0) continue;
        if (n != 2) {
            mox_cli_say("/set %s takes one value, or default", name);
            return false;
        }
        if (strcmp(value, "default") == 0) {
            mox_cli_unset(o, settings[i].id);
            return true;
        }
        if (!mox_cli_set(o, settings[i].id, lasting(value))) return false;
        if (o->v[settings[i].id].text == value) o->v[settings[i].id].text = NULL; /* a number: parsed */
        return true;
    }
    const char *near = mox_cli_nearest(name, mox_cli_setting_names());
    if (near) mox_cli_say("there is no setting %s; did you mean %s?", name, near);
    else mox_cli_say("there is no setting %s; /set alone lists them", name);
    return false;
}

static void show_real(const mox_cli_options *o, option_id id, const char *name, double fallback)
{
    const bool given = mox_cli_given(o, id);
    mox_cli_note("%-15s %g%s", name, given ? o->v[id].real : fallback, given ? "" : "  (the model's)");
}

static void show_number(const mox_cli_options *o, option_id id, const char *name, const char *fallback)
{
    if (mox_cli_given(o, id)) mox_cli_note("%-15s %lld", name, (long long)o->v[id].number);
    else mox_cli_note("%-15s %s", name, fallback);
}

void mox_cli_settings_show(const mox_cli_options *o, const mox_generation *g)
{
    char top_k[48];
    (void)snprintf(top_k, sizeof top_k, "%d  (the model's)", (int)g->top_k);
    show_real(o, OPT_TEMP, "temp", (double)g->temperature);
    show_number(o, OPT_TOP_K, "top-k", top_k);
    show_real(o, OPT_TOP_P, "top-p", (double)g->top_p);
    show_real(o, OPT_MIN_P, "min-p", (double)g->min_p);
    show_real(o, OPT_REPEAT_PENALTY, "repeat-penalty", (double)g->repeat_penalty);
    show_number(o, OPT_SEED, "seed", "a new one each time");
    show_number(o, OPT_MAX_TOKENS, "max-tokens", "what the context has room for");
    mox_cli_note("%-15s %s", "think", o->v[OPT_THINK].text);
    show_number(o, OPT_THINK_BUDGET, "think-budget", "no limit");
}
