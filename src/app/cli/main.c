/* app/cli/main.c -- the program: finds the command, lets it work, answers with
 * one exit code. */
#include "app/cli/bus.h"
#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/terminal.h"

#include <signal.h>
#include <string.h>

static int unknown_command(const char *word)
{
    const char *names[32] = {"help"};
    int n = 1;
    for (const mox_cli_command *c = mox_cli_commands; c->name && n < 31; c++) names[n++] = c->name;
    names[n] = NULL;
    const char *near = mox_cli_nearest(word, names);
    if (near) mox_cli_say("there is no command '%s'; did you mean %s?", word, near);
    else mox_cli_say("there is no command '%s'; `moxie --help` lists them", word);
    return EXIT_USAGE;
}

static int help(int argc, char **argv)
{
    if (argc == 0) {
        mox_cli_help(stdout);
        return EXIT_OK;
    }
    const mox_cli_command *c = mox_cli_find_command(argv[0]);
    if (!c) return unknown_command(argv[0]);
    if (argc > 1) {
        mox_cli_say("help is about one command: '%s' is one word too many", argv[1]);
        return EXIT_USAGE;
    }
    mox_cli_help_command(stdout, c);
    return EXIT_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        mox_cli_help(stderr);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)
        return help(argc - 2, argv + 2);
    if (strcmp(word, "--version") == 0) word = "version";
    if (word[0] == '-') {
        mox_cli_say("the command comes before '%s': moxie run %s ...", word, word);
        return EXIT_USAGE;
    }
    const mox_cli_command *c = mox_cli_find_command(word);
    if (!c) return unknown_command(word);
    mox_cli_options o;
    if (!mox_cli_parse(&o, c, argc - 2, argv + 2)) return EXIT_USAGE;
    if (o.v[OPT_HELP].on) {
        mox_cli_help_command(stdout, c);
        return EXIT_OK;
    }
    return o.v[OPT_VERSION].on ? mox_cli_version(&o) : c->run(&o);
}

int main(int argc, char **argv)
{
    mox_cli_terminal_init();
    signal(SIGPIPE, SIG_IGN); /* a reader that left is a write error, which says more; */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not grow */
    mox_cli_bus_catch();
    const int code = dispatch(argc, argv);
    return mox_cli_output_finish() || code > EXIT_SIGNAL ? code : EXIT_IO;
}
