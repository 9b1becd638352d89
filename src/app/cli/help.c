/* app/cli/help.c -- help pages, printed from the tables of options.c and folded to the
 * terminal.  Where it is narrow, explanations go below what they explain. */
#include "app/cli/message.h"
#include "app/cli/table.h"
#include "app/cli/terminal.h"

#include <string.h>

enum { WIDEST = 96, WITHOUT_TERMINAL = 80, NARROW = 64 };

static int columns_of(const FILE *to)
{
    const int n = to == stdout ? mox_cli_stdout_columns() : mox_cli_stderr_columns();
    return n == 0 ? WITHOUT_TERMINAL : n < WIDEST ? n : WIDEST;
}

static void print_folded(FILE *to, const char *text, int column, int indent)
{
    mox_cli_print_folded(to, text, column, indent, columns_of(to));
}

/* A name and what it means, which begins in column `indent`, or below. */
static void print_entry(FILE *to, const char *name, const char *text, int indent)
{
    const bool below = columns_of(to) < NARROW || (int)strlen(name) > indent - 2;
    if (columns_of(to) < NARROW) {
        const size_t room = strspn(name, " ");
        name += room > 2 ? room - 2 : 0; /* for the letter that it does not have */
        indent = 8;
    }
    if (below)
        fprintf(to, "%s\n%*s", name, indent, "");
    else
        fprintf(to, "%-*s", indent, name);
    print_folded(to, text, indent, indent);
}

void mox_cli_help(FILE *to)
{
    print_folded(to, "moxie runs Mixture-of-Experts language models from their checkpoints.", 0, 0);
    fputs("\nusage: moxie COMMAND [options]\n\n", to);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) {
        char name[MOX_CLI_NAME];
        (void)snprintf(name, sizeof name, "  %s", c->name);
        print_entry(to, name, c->summary, 14);
    }
    fputc('\n', to);
    print_folded(to, "`moxie COMMAND --help` lists a command's options.", 0, 0);
}

void mox_cli_help_command(FILE *to, const mox_cli_command *c)
{
    print_folded(to, c->summary, fprintf(to, "moxie %s: ", c->name), 0);
    fputc('\n', to);
    print_folded(to, c->usage, fprintf(to, "usage: "), 11);
    fputc('\n', to);
    if (c->more) {
        print_folded(to, c->more, 0, 0);
        fputc('\n', to);
    }
    for (int id = 0; id < N_OPTIONS; id++) {
        const option_def *d = &mox_cli_table[id];
        if (!mox_cli_takes(c, d)) continue;
        char left[2 * MOX_CLI_NAME], text[512];
        (void)snprintf(left, sizeof left, "  %c%c%c --%s%s%s", d->letter ? '-' : ' ',
                       d->letter ? d->letter : ' ', d->letter ? ',' : ' ', d->name, d->value ? " " : "",
                       d->value ? d->value : "");
        (void)snprintf(text, sizeof text, "%s%s%s%s", d->help, d->fallback ? " (default: " : "",
                       d->fallback ? d->fallback : "", d->fallback ? ")" : "");
        print_entry(to, left, text, 30);
    }
    fputc('\n', to);
    print_folded(
        to, "Every option can be set by an environment name: --top-k is MOXIE_TOP_K; switches take 0 or 1.",
        0, 0);
}
