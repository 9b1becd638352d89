/* app/cli/help.c -- help pages, printed from the tables of options.c. */
#include "app/cli/table.h"

#include <string.h>

void mox_cli_help(FILE *to)
{
    fputs("moxie runs Mixture-of-Experts language models from their checkpoints.\n\n"
          "usage: moxie COMMAND [options]\n\n",
          to);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) fprintf(to, "  %-10s %s\n", c->name, c->summary);
    fputs("\n`moxie COMMAND --help` lists a command's options.\n", to);
}

/* Text folded at blanks into lines of at most 96 columns; a newline begins a line. */
static void print_folded(FILE *to, const char *text, int indent)
{
    enum { COLUMNS = 96 };
    int column = indent;
    for (const char *p = text; *p;) {
        if (*p == '\n') {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
            p++;
        }
        const int n = (int)strcspn(p, " \n");
        if (column > indent && column + 1 + n > COLUMNS) {
            fprintf(to, "\n%*s", indent, "");
            column = indent;
        }
        column += fprintf(to, "%s%.*s", column > indent ? " " : "", n, p);
        p += n;
        p += *p == ' ';
    }
    fputc('\n', to);
}

void mox_cli_help_command(FILE *to, const mox_cli_command *c)
{
    enum { INDENT = 32 };
    fprintf(to, "moxie %s: %s\n\nusage: %s\n\n", c->name, c->summary, c->usage);
    if (c->more) {
        print_folded(to, c->more, 0);
        fputc('\n', to);
    }
    for (int id = 0; id < N_OPTIONS; id++) {
        const option_def *d = &mox_cli_table[id];
        if (!mox_cli_takes(c, d)) continue;
        char left[MOX_CLI_NAME], text[512];
        (void)snprintf(left, sizeof left, "  %c%c%c --%s%s%s", d->letter ? '-' : ' ', d->letter ? d->letter : ' ',
                       d->letter ? ',' : ' ', d->name, d->value ? " " : "", d->value ? d->value : "");
        (void)snprintf(text, sizeof text, "%s%s%s%s", d->help, d->fallback ? " (default: " : "",
                       d->fallback ? d->fallback : "", d->fallback ? ")" : "");
        fprintf(to, "%-*s", INDENT, left);
        if (strlen(left) >= INDENT) fprintf(to, "\n%*s", INDENT, "");
        print_folded(to, text, INDENT);
    }
    fputs("\nEvery option can be set by an environment name: --top-k is MOXIE_TOP_K; switches take 0 or 1.\n", to);
}
