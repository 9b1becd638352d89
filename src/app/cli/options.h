/* app/cli/options.h -- the one table of options, and what a command line said.
 *
 * Parsing, help and environment names all come from the table in options.c.  An
 * option's value comes from the command line, else from its environment name
 * (MOXIE_ and the option in capitals), else from the table's default. */
#ifndef MOX_APP_CLI_OPTIONS_H
#define MOX_APP_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_id {
    OPT_MODEL,
    OPT_PROMPT,
    OPT_FILE,
    OPT_TOKENS,
    OPT_OUT,
    OPT_SYSTEM,
    OPT_MESSAGES,
    OPT_TOOLS,
    OPT_THINK,
    OPT_NO_THINK,
    OPT_THINK_BUDGET,
    OPT_STOP,
    OPT_JSON_SCHEMA,
    OPT_GRAMMAR,
    OPT_TEMPLATE,
    OPT_KWARGS,
    OPT_NO_GENERATION_PROMPT,
    OPT_NOW,
    OPT_TEMPLATE_TOKENS,
    OPT_RAW,
    OPT_SPECIAL,
    OPT_DECODE,
    OPT_MAX_TOKENS,
    OPT_TEMP,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_MIN_P,
    OPT_SEED,
    OPT_REPEAT_PENALTY,
    OPT_PRESENCE_PENALTY,
    OPT_FREQUENCY_PENALTY,
    OPT_CHUNK,
    OPT_STEP,
    OPT_AGAINST,
    OPT_SYNTHETIC,
    OPT_PREFILL,
    OPT_GENERATE,
    OPT_DEPTHS,
    OPT_STREAMS,
    OPT_THREAD_COUNTS,
    OPT_REPEAT,
    OPT_OUTPUT,
    OPT_SYNTH_SEED,
    OPT_SKEW,
    OPT_CONTEXT,
    OPT_KV_TYPE,
    OPT_EXACT,
    OPT_DETERMINISTIC,
    OPT_FAST,
    OPT_DEVICE,
    OPT_ISA,
    OPT_THREADS,
    OPT_PIN,
    OPT_WEIGHTS,
    OPT_NAMES,
    OPT_RAM,
    OPT_VRAM,
    OPT_CPU_EXPERTS,
    OPT_DISK,
    OPT_EXPERTS,
    OPT_EXPERT_SLOTS,
    OPT_EXPERT_POLICY,
    OPT_READERS,
    OPT_PREFETCH,
    OPT_TRACE,
    OPT_POLICY,
    OPT_SLOTS,
    OPT_HOST,
    OPT_PORT,
    OPT_UNIX_SOCKET,
    OPT_API_KEY,
    OPT_API_KEY_FILE,
    OPT_NO_AUTH,
    OPT_CORS_ORIGIN,
    OPT_ALLOW_HOST,
    OPT_PARALLEL,
    OPT_QUEUE,
    OPT_BODY_LIMIT,
    OPT_PREFIX_CACHE,
    OPT_STATE_DIR,
    OPT_LOG_FILE,
    OPT_LOG_JSON,
    OPT_JSON,
    OPT_QUIET,
    OPT_COLOR,
    OPT_HELP,
    OPT_VERSION,
    N_OPTIONS
} option_id;

enum { MOX_CLI_WORDS = 2, MOX_CLI_LIST = 16 };

/* Where a value came from, weakest first. */
typedef enum option_source { FROM_NOWHERE, FROM_DEFAULT, FROM_ENVIRONMENT, FROM_FLAG } option_source;

typedef struct option_value {
    option_source source;
    bool on;          /* switches */
    int64_t number;   /* whole numbers; bytes */
    double real;      /* other numbers */
    const char *text; /* texts, choices and lists; borrowed from argv or the environment */
    const char *texts[MOX_CLI_LIST]; /* of options that may be given several times */
    int n_texts;
} option_value;

typedef struct mox_cli_options {
    option_value v[N_OPTIONS];
    const char *words[MOX_CLI_WORDS]; /* arguments that are no options, for commands that take them */
    int n_words;
    bool dash; /* "-" was given: read standard input */
} mox_cli_options;

typedef int mox_cli_command_fn(const mox_cli_options *o); /* returns the exit code */

/* What a text stands for, which shells can complete. */
typedef enum mox_cli_meaning {
    MEANS_TEXT,
    MEANS_FILE,
    MEANS_FOLDER,
    MEANS_MODEL, /* a folder, or what `moxie list --names` prints */
    MEANS_SHAPE, /* of a synthetic model */
    MEANS_LEVEL, /* of kernels */
    MEANS_SCRIPT, /* of `moxie completion` */
} mox_cli_meaning;

typedef struct mox_cli_command {
    const char *name, *summary, *usage;
    mox_cli_command_fn *run;
    unsigned bit;    /* its bit in the table's lists of commands */
    bool takes_dash; /* "-" as an argument means standard input */
    int takes_words; /* arguments that are no options, all of them needed */
    mox_cli_meaning words[MOX_CLI_WORDS]; /* what they are */
    const char *more; /* paragraphs for its help, or NULL */
} mox_cli_command;

/* All commands, ended by a NULL name. */
extern const mox_cli_command mox_cli_commands[];
const mox_cli_command *mox_cli_find_command(const char *name);

/* Fills o from the environment and argv[0, argc), the words after the command.
 * On a usage error it has been reported and false is returned. */
bool mox_cli_parse(mox_cli_options *o, const mox_cli_command *c, int argc, char **argv);

/* Changes an option as if it had been given.  text must outlive o where it is kept (texts,
 * choices, lists).  A usage error has been reported, and o is as before. */
bool mox_cli_set(mox_cli_options *o, option_id id, const char *text);
/* As if it had not been given. */
void mox_cli_unset(mox_cli_options *o, option_id id);

/* The numbers of a list option that was given or has a default; returns how many. */
int mox_cli_list(const mox_cli_options *o, option_id id, int64_t out[MOX_CLI_LIST]);

const char *mox_cli_option_name(option_id id); /* without the dashes */

void mox_cli_help(FILE *to);
void mox_cli_help_command(FILE *to, const mox_cli_command *c);

/* The entry of a list (ended by NULL) that a misspelt word was most likely meant
 * to be, or NULL. */
const char *mox_cli_nearest(const char *word, const char *const *list);

static inline bool mox_cli_given(const mox_cli_options *o, option_id id) { return o->v[id].source > FROM_DEFAULT; }

#endif
