/* app/cli/set.c -- /set: names and values are those of the command line's options. */
#include "app/cli/set.h"

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

const char *const *mox_cli_set_names(void)
{
    static const char *names[N_SETTINGS + 1];
    for (int i = 0; i < N_SETTINGS; i++) names[i] = settings[i].name;
    return names;
}

static bool set_think(mox_cli_options *o, const char *value)
{
    const bool on = strcmp(value, "on") == 0, off = strcmp(value, "off") == 0;
    if (!on && !off && strcmp(value, "auto") != 0 && strcmp(value, "default") != 0) {
        mox_cli_say("think takes on, off or auto, not '%s'", value);
        return false;
    }
    mox_cli_unset(o, OPT_THINK);
    mox_cli_unset(o, OPT_NO_THINK);
    return (!on || mox_cli_set(o, OPT_THINK, NULL)) && (!off || mox_cli_set(o, OPT_NO_THINK, NULL));
}

static bool set_number(mox_cli_options *o, option_id id, const char *value)
{
    if (strcmp(value, "default") == 0) {
        mox_cli_unset(o, id);
        return true;
    }
    if (!mox_cli_set(o, id, value)) return false;
    o->v[id].text = NULL; /* it is a number by now, and the line that it was typed in goes */
    return true;
}

bool mox_cli_set_words(mox_cli_options *o, const char *words)
{
    char name[32] = "", value[64] = "", rest[2] = "";
    const int n = sscanf(words, "%31s %63s %1s", name, value, rest);
    for (int i = 0; i < N_SETTINGS; i++) {
        if (strcmp(settings[i].name, name) != 0) continue;
        if (n == 2) return settings[i].id == OPT_THINK ? set_think(o, value) : set_number(o, settings[i].id, value);
        mox_cli_say("/set %s takes one value, which may be default", name);
        return false;
    }
    const char *near = mox_cli_nearest(name, mox_cli_set_names());
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

void mox_cli_set_show(const mox_cli_options *o, const mox_generation *g)
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
    mox_cli_note("%-15s %s", "think", o->v[OPT_THINK].on ? "on" : o->v[OPT_NO_THINK].on ? "off" : "auto");
    show_number(o, OPT_THINK_BUDGET, "think-budget", "no limit");
}
