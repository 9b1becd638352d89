/* app/cli/man.c -- the manual page, as troff, from the tables of options.c.
 *
 * An option that several commands take is explained once, under COMMON OPTIONS; commands
 * name it there.  What comes from the tables is escaped: a hyphen is a minus, which can
 * be copied and searched for, and `words` between backticks become bold. */
#include "app/cli/commands.h"
#include "app/cli/completion.h"
#include "app/cli/output.h"
#include "moxie.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { COMMON = 3 }; /* commands that make an option common */

/* ---- text ------------------------------------------------------------------ */

/* Text of the tables; begins a line where at_start is set.  Sentences and paragraphs
 * begin lines of their own, as troff wants it. */
static void put_escaped(const char *text, size_t n, bool at_start)
{
    bool bold = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (at_start && (c == '.' || c == '\'')) mox_cli_putf("\\&");
        at_start = c == '\n';
        switch (c) {
        case '-': mox_cli_putf("\\-"); break;
        case '\\': mox_cli_putf("\\e"); break;
        case '~': mox_cli_putf("\\(ti"); break;
        case '^': mox_cli_putf("\\(ha"); break;
        case '\'': mox_cli_putf("\\(aq"); break;
        case '"': mox_cli_putf("\\(dq"); break;
        case '`':
            bold = !bold;
            mox_cli_putf(bold ? "\\fB" : "\\fR");
            break;
        case '\n': mox_cli_putf("\n.PP\n"); break;
        case ' ':
            if (i + 1 < n && text[i + 1] == ' ') { /* between sentences */
                while (i + 1 < n && text[i + 1] == ' ') i++;
                mox_cli_putf("\n");
                at_start = true;
            } else
                mox_cli_putf(" ");
            break;
        default: mox_cli_put(&c, 1);
        }
    }
}

static void put(const char *text) { put_escaped(text, strlen(text), false); }

static void heading(const char *text) { mox_cli_putf(".SH %s\n", text); }

/* A usage line, with the program and its command bold; folded lines are indented.  More
 * of them may follow; end_usage ends them. */
static void put_usage(const char *usage)
{
    const size_t name = strcspn(usage, " ") + 1, n = name + strcspn(usage + name, " ");
    mox_cli_putf(".SY \"");
    put_escaped(usage, n, false);
    mox_cli_putf("\"\n");
    const char *rest = usage + n + strspn(usage + n, " ");
    if (!*rest) return;
    put_escaped(rest, strlen(rest), true);
    mox_cli_putf("\n");
}

static void end_usage(void) { mox_cli_putf(".YS\n.nh\n.ad l\n"); } /* it had its own ideas about lines */

/* ---- options --------------------------------------------------------------- */

static int n_commands(const option_def *d)
{
    int n = 0;
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) n += mox_cli_takes(c, d);
    return n;
}

static bool is_common(const option_def *d) { return n_commands(d) >= COMMON; }

/* -n, --max-tokens N */
static void put_names(const option_def *d)
{
    if (d->letter) mox_cli_putf("\\fB\\-%c\\fR, ", d->letter);
    mox_cli_putf("\\fB\\-\\-");
    put(d->name);
    mox_cli_putf("\\fR");
    if (!d->value) return;
    mox_cli_putf(" \\fI");
    put(d->value);
    mox_cli_putf("\\fR");
}

static void put_option(const option_def *d)
{
    mox_cli_putf(".TP 7\n"); /* .SY left its own indent */
    put_names(d);
    mox_cli_putf("\n");
    put_escaped(d->help, strlen(d->help), true);
    if (d->fallback) {
        mox_cli_putf(" (default: ");
        put(d->fallback);
        mox_cli_putf(")");
    }
    mox_cli_putf("\n");
}

static void put_command(const mox_cli_command *c)
{
    mox_cli_putf(".SS %s\n", c->name);
    put_usage(c->usage);
    end_usage();
    mox_cli_putf(".PP\n%c", toupper((unsigned char)c->summary[0]));
    put(c->summary + 1);
    mox_cli_putf(".\n");
    if (c->more) {
        mox_cli_putf(".PP\n");
        put_escaped(c->more, strlen(c->more), true);
        mox_cli_putf("\n");
    }
    for (int id = 0; id < N_OPTIONS; id++)
        if (mox_cli_takes(c, &mox_cli_table[id]) && !is_common(&mox_cli_table[id]))
            put_option(&mox_cli_table[id]);
    mox_cli_putf(".PP\nCommon options:");
    bool first = true;
    for (int id = 0; id < N_OPTIONS; id++) {
        const option_def *d = &mox_cli_table[id];
        if (!mox_cli_takes(c, d) || !is_common(d)) continue;
        mox_cli_putf("%s\n\\fB\\-\\-", first ? "" : ",");
        put(d->name);
        mox_cli_putf("\\fR");
        first = false;
    }
    mox_cli_putf(".\n");
}

static void put_common_options(void)
{
    heading("COMMON OPTIONS");
    mox_cli_putf("A value follows its option as the next word or behind \\(dq=\\(dq.\n");
    for (int id = 0; id < N_OPTIONS; id++)
        if (is_common(&mox_cli_table[id])) put_option(&mox_cli_table[id]);
}

/* ---- environment, exit status ---------------------------------------------- */

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

static void put_option_names(void)
{
    static char names[N_OPTIONS][MOX_CLI_NAME];
    size_t n = 0;
    for (int id = 0; id < N_OPTIONS; id++)
        if (id != OPT_HELP && id != OPT_VERSION) mox_cli_environment_name(&mox_cli_table[id], names[n++]);
    qsort(names, n, sizeof *names, by_text);
    mox_cli_putf(".TP\n.BR MOXIE_ *\n"
                 "Every option can be set by an environment name, which the command line overrides.\n"
                 "Switches take 0 or 1; an empty value is none.\nThe names:");
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i - 1], names[i]) != 0)
            mox_cli_putf("%s\n%s", i == 0 ? "" : ",", names[i]);
    mox_cli_putf(".\n");
}

static void put_exit_status(void)
{
    static const struct {
        int code;
        const char *text;
    } codes[] = {
#define ENTRY(name, value, text) {value, text},
        MOX_CLI_EXIT_LIST(ENTRY)
#undef ENTRY
            {EXIT_SIGNAL + 2, "interrupted (SIGINT)"},
        {EXIT_SIGNAL + 15, "terminated (SIGTERM)"},
    };
    heading("EXIT STATUS");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        mox_cli_putf(".TP\n.B %d\n", codes[i].code);
        put(codes[i].text);
        mox_cli_putf("\n");
    }
}

/* ---- the page -------------------------------------------------------------- */

static const char beginning[] =
    ".SH NAME\n"
    "moxie \\- run Mixture\\-of\\-Experts language models from their checkpoints\n"
    ".SH SYNOPSIS\n";

static const char description[] =
    ".SH DESCRIPTION\n"
    "moxie runs Mixture\\-of\\-Experts language models, and their dense relatives, straight from the "
    "checkpoint as it was\n"
    "downloaded: a folder with\n.I config.json\nand\n.IR *.safetensors ,\n"
    "in the layout of Hugging Face or of MLX.\nThere is no conversion step.\n"
    ".PP\n"
    "A model is named with\n.B \\-m\nby its folder, or by its name in the Hugging Face cache of this "
    "machine:\n"
    ".IR ORG / NAME ,\nor\n.IR ORG / NAME @ REVISION ,\n"
    "where the revision is a ref (\\fBmain\\fR is the default), a commit, or the unique beginning of one.\n"
    "A folder of that name comes first.\n"
    "Nothing is ever downloaded;\n.B moxie list\nshows what is there.\n"
    "Without\n.B \\-m\ncommands use the demo model that comes with moxie, which is also called\n.BR demo .\n"
    ".PP\n"
    "Results go to standard output, everything else to standard error.\n";

static const char environment[] =
    ".TP\n.B NO_COLOR\nIf set, no colour unless\n.B \\-\\-color on\nasks for it.\n"
    ".TP\n.B CLICOLOR_FORCE\nIf set and not 0, colour also where standard output is no terminal.\n"
    ".TP\n.BR HF_HUB_CACHE \", \" HUGGINGFACE_HUB_CACHE\n"
    "Folder of the Hugging Face cache.\nThe first of this list that is set decides:\n"
    ".BR HF_HUB_CACHE ,\n.BR HUGGINGFACE_HUB_CACHE ,\n.BR HF_HOME ,\n.BR XDG_CACHE_HOME ,\n.BR HOME .\n"
    ".TP\n.B HF_HOME\nThe cache is its subfolder\n.IR hub .\n"
    ".TP\n.B XDG_CACHE_HOME\nThe cache is its subfolder\n.IR huggingface/hub .\n"
    "What moxie keeps for itself is in its subfolder\n.IR moxie .\n"
    ".TP\n.B XDG_STATE_HOME\nWhat was typed in chats is kept in its subfolder\n.IR moxie .\n";

static const char ending[] =
    ".SH FILES\n"
    ".TP\n.I \\(ti/.cache/huggingface/hub\nWhere the Hugging Face cache is unless the environment says "
    "otherwise.\n"
    ".TP\n.I \\(ti/.cache/moxie\nHow fast disks are, and which experts earlier runs of a model used.\n"
    "Can be deleted at any time.\n"
    ".TP\n.I \\(ti/.local/state/moxie/history\nWhat was typed in chats.\n"
    ".TP\n.I /etc/moxie/serve.env\nEnvironment names for the system service.\n"
    ".TP\n.I config.json\nOf a model: its family and sizes.\n"
    ".TP\n.IR model.safetensors \", \" model.safetensors.index.json\nIts weights, or the list of the files "
    "that hold them.\n"
    ".TP\n.IR tokenizer.json \", \" tokenizer_config.json\nIts vocabulary and chat template.\n"
    ".TP\n.I generation_config.json\nIts defaults for sampling.\n"
    ".SH EXAMPLES\n"
    "Continue a text with the demo model:\n.PP\n.RS 4\n.EX\nmoxie run \\-\\-raw \\-p \\(aqOnce there was "
    "a\\(aq \\-n 60\n.EE\n.RE\n"
    ".PP\nSee what is in the cache, and look into a model of it:\n.PP\n.RS 4\n.EX\n"
    "moxie list\nmoxie inspect \\-m Qwen/Qwen3\\-30B\\-A3B\n.EE\n.RE\n"
    ".PP\nPerplexity of a file, and what the faster setting costs:\n.PP\n.RS 4\n.EX\n"
    "moxie eval \\-m FOLDER \\-f text.txt \\-\\-fast \\-\\-against exact\n.EE\n.RE\n"
    ".PP\nHow fast a model of that shape would run here, without having it:\n.PP\n.RS 4\n.EX\n"
    "moxie bench \\-\\-synthetic qwen3\\-30b\\-a3b:layers=12\n.EE\n.RE\n";

void mox_cli_print_man(void)
{
    mox_cli_putf(".\\\" Generated from the program's own tables.\n"
                 ".TH MOXIE 1 \"\" \"moxie %s\" \"User Commands\"\n"
                 ".nh\n.ad l\n",
                 mox_version());
    mox_cli_putf("%s", beginning);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) put_usage(c->usage);
    end_usage();
    mox_cli_putf("%s", description);
    heading("COMMANDS");
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) put_command(c);
    put_common_options();
    heading("ENVIRONMENT");
    put_option_names();
    mox_cli_putf("%s", environment);
    put_exit_status();
    mox_cli_putf("%s", ending);
}
