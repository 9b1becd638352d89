/* app/cli/table.h -- the entries of the one table of options (options.c), for what is
 * read off it besides parsing: help, completions, the manual page. */
#ifndef MOX_APP_CLI_TABLE_H
#define MOX_APP_CLI_TABLE_H

#include "app/cli/options.h"

enum { MOX_CLI_NAME = 64 }; /* bytes that hold any option's name */

typedef enum option_kind {
    KIND_SWITCH,
    KIND_TEXT,
    KIND_TEXTS,  /* may be given several times */
    KIND_CHOICE, /* one of the words of `value` */
    KIND_NUMBER, /* whole; 4k is 4096 where `thousands` is set */
    KIND_REAL,
    KIND_BYTES, /* 12G, 1.5G, 512M: units of 1024 */
    KIND_LIST, /* whole numbers between commas; 4k is 4096 */
} option_kind;

typedef struct option_def {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    option_kind kind;
    const char *value; /* what stands for the value in help; "a|b" for choices */
    double low, high;  /* numbers */
    bool thousands;
    const char *fallback; /* the default, parsed like a value; NULL: none */
    const char *help;
    unsigned commands;
    mox_cli_meaning means; /* of a KIND_TEXT */
    bool numbered; /* of a KIND_CHOICE: a word may have numbers behind it, as in a:0,1 */
} option_def;

extern const option_def mox_cli_table[N_OPTIONS];

static inline bool mox_cli_takes(const mox_cli_command *c, const option_def *d)
{
    return (d->commands & c->bit) != 0;
}

/* MOXIE_ and the option in capitals. */
void mox_cli_environment_name(const option_def *d, char out[MOX_CLI_NAME]);

#endif
