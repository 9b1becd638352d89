/* app/cli/settings.h -- how replies are made: sampling, limits, thinking.
 *
 * From the options where they say something, else from the model's own files. */
#ifndef MOX_APP_CLI_SETTINGS_H
#define MOX_APP_CLI_SETTINGS_H

#include "app/cli/options.h"
#include "moxie/chat.h"

typedef struct mox_cli_settings {
    mox_sampler_opts sampling;
    bool fixed_seed; /* otherwise every reply has a new one */
    int64_t max_tokens; /* -1: as many as the context holds */
    mox_think think;
    int64_t think_budget; /* -1: no limit */
    const char *const *stops;
    int32_t n_stops;
    const struct mox_grammar *grammar; /* what replies are held to; NULL: nothing */
    const struct mox_token_trie *trie;
} mox_cli_settings;

/* False, and said, when the options contradict each other. */
bool mox_cli_settings_read(mox_cli_settings *s, const mox_cli_options *o, const mox_model *m);

/* Before each reply: a new seed, unless one was asked for. */
void mox_cli_settings_reseed(mox_cli_settings *s);

uint64_t mox_cli_random(void);

#endif
