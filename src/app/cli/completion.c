/* app/cli/completion.c -- `moxie completion`: scripts that teach shells the commands and
 * options, from the tables of options.c.
 *
 * The scripts hold what the tables say.  Only models are asked for while completing, with
 * `moxie list --names`, and whatever that has to complain about is dropped: a completion
 * never disturbs the line that is being typed. */
#include "app/cli/completion.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "moxie/tools.h"

#include <string.h>

/* ---- values ---------------------------------------------------------------- */

static const char scripts[] = "bash|zsh|fish|man";

/* What may follow an option, or be an argument of a command. */
typedef struct value {
    mox_cli_meaning means;
    const char *choices; /* "a|b", or NULL */
} value;

static value value_of(const option_def *d)
{
    return (value){.means = d->kind == KIND_TEXT ? d->means : MEANS_TEXT,
                   .choices = d->kind == KIND_CHOICE ? d->value : NULL};
}

static value value_of_word(const mox_cli_command *c, int i)
{
    return (value){.means = c->words[i], .choices = c->words[i] == MEANS_SCRIPT ? scripts : NULL};
}

static bool has_words(value v) { return v.choices || v.means == MEANS_SHAPE || v.means == MEANS_LEVEL; }

/* The words of a value that has them, with blanks between. */
static void put_words(value v)
{
    if (v.choices) {
        for (const char *p = v.choices; *p; p++) mox_cli_put(*p == '|' ? " " : p, 1);
        return;
    }
    const int n = v.means == MEANS_SHAPE ? mox_synth_count() : mox_isa_count();
    for (int i = 0; i < n; i++)
        mox_cli_putf("%s%s", i ? " " : "", v.means == MEANS_SHAPE ? mox_synth_name(i) : mox_isa_name(i));
}

/* ---- text ------------------------------------------------------------------ */

/* As much of a text as is worth showing in a menu: up to the first aside. */
static size_t short_length(const char *text)
{
    const char *aside = strstr(text, " ("), *more = strstr(text, "; ");
    const char *end = !aside || (more && more < aside) ? more : aside;
    return end ? (size_t)(end - text) : strlen(text);
}

/* Inside single quotes of zsh; brackets and colons mean something to its functions. */
static void put_zsh(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\'')
            mox_cli_putf("'\\''");
        else
            mox_cli_putf(strchr("[]:\\", text[i]) ? "\\%c" : "%c", text[i]);
    }
}

static void put_fish(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) mox_cli_putf(text[i] == '\'' || text[i] == '\\' ? "\\%c" : "%c", text[i]);
}

/* "run eval ...": the commands, all of them or those that take d. */
static void put_commands(const option_def *d)
{
    bool first = true;
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) {
        if (d && !mox_cli_takes(c, d)) continue;
        mox_cli_putf("%s%s", first ? "" : " ", c->name);
        first = false;
    }
}

/* ---- bash ------------------------------------------------------------------ */

static const char bash_beginning[] =
    "# bash completion for moxie, made by `moxie completion bash`\n"
    "\n"
    "_moxie()\n"
    "{\n"
    "    local line=${COMP_LINE:0:COMP_POINT} word=${COMP_WORDS[COMP_CWORD]} i=$COMP_CWORD\n"
    "    local before option value head='' words='' kind='' found reply\n"
    "    COMPREPLY=()\n"
    "    # readline splits at = : @ and the like: the word is what reaches back to a blank\n"
    "    while [[ $line != *\"$word\" ]]; do word=${word%?}; done\n"
    "    line=${line%\"$word\"}\n"
    "    while ((i > 1)) && [[ $line == *[^[:space:]] ]]; do\n"
    "        ((i--))\n"
    "        word=${COMP_WORDS[i]}$word\n"
    "        line=${line%\"${COMP_WORDS[i]}\"}\n"
    "    done\n"
    "    [[ $word == [\\\"\\']* ]] && word=$2\n"
    "    before=${word%\"$2\"} # which readline keeps; it replaces $2\n"
    "    value=$word\n"
    "    option=${COMP_WORDS[i-1]}\n"
    "    if ((i == 1)); then\n"
    "        kind=words words='";

static const char bash_ending[] =
    "        esac\n"
    "    fi\n"
    "    case $kind in\n"
    "    words) reply=$(compgen -W \"$words\" -- \"$value\") ;;\n"
    "    file) reply=$(compgen -f -- \"$value\") ;;\n"
    "    folder) reply=$(compgen -d -- \"$value\") ;;\n"
    "    model)\n"
    "        words=$(\"${COMP_WORDS[0]}\" list --names 2>/dev/null </dev/null)\n"
    "        reply=$(compgen -d -- \"$value\"; compgen -W \"$words\" -- \"$value\")\n"
    "        ;;\n"
    "    esac\n"
    "    [[ -n $reply ]] || return 0\n"
    "    [[ $kind == words ]] || compopt -o filenames 2>/dev/null\n"
    "    while IFS= read -r found; do\n"
    "        found=$head$found\n"
    "        COMPREPLY+=(\"${found#\"$before\"}\")\n"
    "    done <<<\"$reply\"\n"
    "    return 0\n"
    "}\n"
    "\n"
    "complete -F _moxie moxie\n";

/* 'run --model'|'run -m'|... : the pattern of an option in the commands that take it. */
static void bash_pattern(const option_def *d)
{
    bool first = true;
    mox_cli_putf("        ");
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) {
        if (!mox_cli_takes(c, d)) continue;
        mox_cli_putf("%s'%s --%s'", first ? "" : "|", c->name, d->name);
        if (d->letter) mox_cli_putf("|'%s -%c'", c->name, d->letter);
        first = false;
    }
    mox_cli_putf(") ");
}

static void bash_kind(value v)
{
    if (has_words(v)) {
        mox_cli_putf("kind=words words='");
        put_words(v);
        mox_cli_putf("' ;;\n");
    } else
        mox_cli_putf("kind=%s ;;\n", v.means == MEANS_FILE     ? "file"
                                     : v.means == MEANS_FOLDER ? "folder"
                                     : v.means == MEANS_MODEL  ? "model"
                                                               : "text");
}

static void bash_options(void)
{
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) {
        mox_cli_putf("        %s) words='", c->name);
        bool first = true;
        for (int id = 0; id < N_OPTIONS; id++) {
            const option_def *d = &mox_cli_table[id];
            if (!mox_cli_takes(c, d)) continue;
            mox_cli_putf("%s--%s", first ? "" : " ", d->name);
            if (d->letter) mox_cli_putf(" -%c", d->letter);
            first = false;
        }
        mox_cli_putf("' ;;\n");
    }
}

static void print_bash(void)
{
    mox_cli_putf("%s", bash_beginning);
    put_commands(NULL);
    mox_cli_putf(" help --help --version'\n"
                 "    elif [[ ${COMP_WORDS[1]} == help ]]; then\n"
                 "        kind=words words='");
    put_commands(NULL);
    mox_cli_putf("'\n"
                 "    elif [[ $word == -* && $word != *=* ]]; then\n"
                 "        kind=words\n"
                 "        case ${COMP_WORDS[1]} in\n");
    bash_options();
    mox_cli_putf("        esac\n"
                 "    else\n"
                 "        [[ $word == --*=* ]] && option=${word%%%%=*} value=${word#*=} head=${word%%%%=*}=\n"
                 "        case \"${COMP_WORDS[1]} $option\" in\n");
    for (int id = 0; id < N_OPTIONS; id++) {
        if (mox_cli_table[id].kind == KIND_SWITCH) continue;
        bash_pattern(&mox_cli_table[id]);
        bash_kind(value_of(&mox_cli_table[id]));
    }
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++)
        for (int i = 0; i < c->takes_words; i++) {
            if (i == 0)
                mox_cli_putf("        '%s %s') ", c->name, c->name); /* right behind the command */
            else
                mox_cli_putf("        '%s '*) ", c->name);
            bash_kind(value_of_word(c, i));
        }
    mox_cli_putf("%s", bash_ending);
}

/* ---- zsh ------------------------------------------------------------------- */

static const char zsh_beginning[] =
    "#compdef moxie\n"
    "# zsh completion for moxie, made by `moxie completion zsh`\n"
    "\n"
    "_moxie_models() {\n"
    "    local -a names\n"
    "    names=(${(f)\"$($program list --names 2>/dev/null </dev/null)\"})\n"
    "    _alternative 'folders:folder:_files -/' 'models:model:compadd -a names'\n"
    "}\n"
    "\n"
    "_moxie_commands() {\n"
    "    local -a commands\n"
    "    commands=(\n";

static const char zsh_middle[] =
    "    )\n"
    "    _describe -t commands command commands\n"
    "}\n"
    "\n"
    "_moxie() {\n"
    "    local program=$words[1] curcontext=$curcontext state line\n"
    "    typeset -A opt_args\n"
    "    _arguments -C '(- *)--help[show the commands]' '(- *)--version[show the version]' \\\n"
    "        '1:command:_moxie_commands' '*::argument:->argument' && return 0\n"
    "    [[ $state == argument ]] || return 1\n"
    "    case $words[1] in\n"
    "    help) _arguments '1:command:_moxie_commands' ;;\n";

static const char zsh_ending[] =
    "    esac\n"
    "}\n"
    "\n"
    "if [[ $funcstack[1] == _moxie ]]; then _moxie \"$@\"; else compdef _moxie moxie; fi\n";

static void zsh_action(value v)
{
    if (has_words(v)) {
        mox_cli_putf("(");
        put_words(v);
        mox_cli_putf(")");
    } else
        mox_cli_putf("%s", v.means == MEANS_FILE     ? "_files"
                           : v.means == MEANS_FOLDER ? "_files -/"
                           : v.means == MEANS_MODEL  ? "_moxie_models"
                                                     : " ");
}

static void zsh_option(const option_def *d)
{
    const bool valued = d->kind != KIND_SWITCH;
    mox_cli_putf(" \\\n            ");
    if (d->letter)
        mox_cli_putf("'(-%c --%s)'{-%c%s,--%s%s}", d->letter, d->name, d->letter, valued ? "+" : "", d->name,
                     valued ? "=" : "");
    else
        mox_cli_putf("--%s%s", d->name, valued ? "=" : "");
    mox_cli_putf("'[");
    put_zsh(d->help, short_length(d->help));
    mox_cli_putf("]");
    if (valued) {
        mox_cli_putf(":");
        put_zsh(d->kind == KIND_CHOICE ? d->name : d->value,
                strlen(d->kind == KIND_CHOICE ? d->name : d->value));
        mox_cli_putf(":");
        zsh_action(value_of(d));
    }
    mox_cli_putf("'");
}

static void zsh_command(const mox_cli_command *c)
{
    mox_cli_putf("    %s)\n        _arguments", c->name);
    for (int id = 0; id < N_OPTIONS; id++)
        if (mox_cli_takes(c, &mox_cli_table[id])) zsh_option(&mox_cli_table[id]);
    for (int i = 0; i < c->takes_words; i++) {
        mox_cli_putf(" \\\n            '%d:argument:", i + 1);
        zsh_action(value_of_word(c, i));
        mox_cli_putf("'");
    }
    mox_cli_putf("\n        ;;\n");
}

static void print_zsh(void)
{
    mox_cli_putf("%s", zsh_beginning);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) {
        mox_cli_putf("        '%s:", c->name);
        put_zsh(c->summary, strlen(c->summary));
        mox_cli_putf("'\n");
    }
    mox_cli_putf("        'help:the options of a command'\n%s", zsh_middle);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) zsh_command(c);
    mox_cli_putf("%s", zsh_ending);
}

/* ---- fish ------------------------------------------------------------------ */

static const char fish_beginning[] =
    "# fish completion for moxie, made by `moxie completion fish`\n"
    "\n"
    "function __moxie_command # WORDS: is the command one of them?\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -gt 1; and contains -- $words[2] $argv\n"
    "end\n"
    "\n"
    "function __moxie_at # N COMMAND: is the N-th argument of the command next?\n"
    "    __moxie_command $argv[2]; and test (count (commandline -opc)) -eq (math $argv[1] + 1)\n"
    "end\n"
    "\n"
    "function __moxie_models\n"
    "    __fish_complete_directories (commandline -ct)\n"
    "    command moxie list --names 2>/dev/null </dev/null\n"
    "end\n"
    "\n"
    "complete -c moxie -f\n"
    "complete -c moxie -n 'test (count (commandline -opc)) -eq 1' -l help -d 'show the commands'\n"
    "complete -c moxie -n 'test (count (commandline -opc)) -eq 1' -l version -d 'show the version'\n";

static void fish_action(value v)
{
    if (has_words(v)) {
        mox_cli_putf("-x -a '");
        put_words(v);
        mox_cli_putf("'");
    } else
        mox_cli_putf("%s", v.means == MEANS_FILE ? "-r -F"
                           : v.means == MEANS_FOLDER
                               ? "-x -a '(__fish_complete_directories (commandline -ct))'"
                           : v.means == MEANS_MODEL ? "-x -a '(__moxie_models)'"
                                                    : "-x");
}

static void fish_option(const option_def *d)
{
    mox_cli_putf("complete -c moxie -n '__moxie_command ");
    put_commands(d);
    mox_cli_putf("' ");
    if (d->letter) mox_cli_putf("-s %c ", d->letter);
    mox_cli_putf("-l %s ", d->name);
    if (d->kind != KIND_SWITCH) {
        fish_action(value_of(d));
        mox_cli_putf(" ");
    }
    mox_cli_putf("-d '");
    put_fish(d->help, short_length(d->help));
    mox_cli_putf("'\n");
}

static void print_fish(void)
{
    mox_cli_putf("%s", fish_beginning);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++) {
        mox_cli_putf("complete -c moxie -n 'test (count (commandline -opc)) -eq 1' -a %s -d '", c->name);
        put_fish(c->summary, strlen(c->summary));
        mox_cli_putf("'\n");
    }
    mox_cli_putf(
        "complete -c moxie -n 'test (count (commandline -opc)) -eq 1' -a help -d 'the options of a command'\n"
        "complete -c moxie -n '__moxie_at 1 help' -a '");
    put_commands(NULL);
    mox_cli_putf("'\n");
    for (int id = 0; id < N_OPTIONS; id++) fish_option(&mox_cli_table[id]);
    for (const mox_cli_command *c = mox_cli_commands; c->name; c++)
        for (int i = 0; i < c->takes_words; i++) {
            mox_cli_putf("complete -c moxie -n '__moxie_at %d %s' ", i + 1, c->name);
            fish_action(value_of_word(c, i));
            mox_cli_putf("\n");
        }
}

/* ---- the command ----------------------------------------------------------- */

int mox_cli_completion(const mox_cli_options *o)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } prints[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}, {"man", mox_cli_print_man}};
    for (size_t i = 0; i < sizeof prints / sizeof *prints; i++)
        if (strcmp(prints[i].name, o->words[0]) == 0) {
            prints[i].print();
            return EXIT_OK;
        }
    mox_cli_say("completion takes %s, not '%s'", scripts, o->words[0]);
    return EXIT_USAGE;
}
