/* app/cli/settings.c -- how replies are made. */
#include "app/cli/settings.h"

#include "app/cli/message.h"
#include "base/clock.h"

#include <sys/random.h>

uint64_t mox_cli_random(void)
{
    uint64_t x;
    if (getrandom(&x, sizeof x, 0) != (ssize_t)sizeof x) x = (uint64_t)(mox_clock_now() * 1e9);
    return x;
}

void mox_cli_settings_reseed(mox_cli_settings *s)
{
    if (!s->fixed_seed) s->sampling.seed = (uint32_t)mox_cli_random(); /* 32 bits: short to type, and exact in every JSON reader */
}

static float choose_real(const mox_cli_options *o, option_id id, float model_default)
{
    return mox_cli_given(o, id) ? (float)o->v[id].real : model_default;
}

bool mox_cli_settings_read(mox_cli_settings *s, const mox_cli_options *o, const mox_model *m)
{
    mox_generation g;
    mox_model_get_generation(m, &g);
    const bool on = o->v[OPT_THINK].on, off = o->v[OPT_NO_THINK].on;
    const bool on_stronger = o->v[OPT_THINK].source > o->v[OPT_NO_THINK].source; /* options beat the environment */
    if (on && off && o->v[OPT_THINK].source == o->v[OPT_NO_THINK].source) {
        mox_cli_say("--think and --no-think contradict each other; give one of them");
        return false;
    }
    *s = (mox_cli_settings){
        .sampling = {
            .temperature = choose_real(o, OPT_TEMP, g.temperature),
            .top_k = mox_cli_given(o, OPT_TOP_K) ? (int32_t)o->v[OPT_TOP_K].number : g.top_k,
            .top_p = choose_real(o, OPT_TOP_P, g.top_p),
            .min_p = choose_real(o, OPT_MIN_P, g.min_p),
            .repeat_penalty = choose_real(o, OPT_REPEAT_PENALTY, g.repeat_penalty),
            .presence_penalty = (float)o->v[OPT_PRESENCE_PENALTY].real,
            .frequency_penalty = (float)o->v[OPT_FREQUENCY_PENALTY].real,
            .seed = (uint64_t)o->v[OPT_SEED].number,
        },
        .fixed_seed = mox_cli_given(o, OPT_SEED),
        .max_tokens = mox_cli_given(o, OPT_MAX_TOKENS) ? o->v[OPT_MAX_TOKENS].number : -1,
        .think = on && (!off || on_stronger) ? MOX_THINK_ON : off ? MOX_THINK_OFF : MOX_THINK_DEFAULT,
        .think_budget = mox_cli_given(o, OPT_THINK_BUDGET) ? o->v[OPT_THINK_BUDGET].number : -1,
        .stops = o->v[OPT_STOP].texts,
        .n_stops = o->v[OPT_STOP].n_texts,
    };
    return true;
}
