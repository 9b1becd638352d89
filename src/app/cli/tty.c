/* app/cli/tty.c -- the terminal's modes and their return.
 *
 * Everything that a signal handler reads is written before the change it undoes, so that
 * an end at any moment undoes at worst what had not yet begun.  A crash goes on to whoever
 * handled it before. */
#include "app/cli/tty.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGQUIT, SIGHUP};
enum { N_FATAL = sizeof fatal_signals / sizeof *fatal_signals };

static struct termios before;
static struct sigaction before_fatal[N_FATAL];
static volatile sig_atomic_t kept, marks_pastes, colored;

static void tell(const char *escape)
{
    const ssize_t n = write(STDOUT_FILENO, escape, strlen(escape));
    (void)n; /* a terminal that is gone needs nothing back */
}

void mox_cli_tty_restore(void)
{
    if (colored) tell("\x1b[0m");
    if (marks_pastes) tell("\x1b[?2004l");
    marks_pastes = colored = 0;
    if (kept) (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
}

/* A faulting instruction runs again when the handler returns; a signal that somebody sent must be raised again. */
static bool is_fault(int number, const siginfo_t *info)
{
    return info->si_code > 0 && (number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL);
}

static void on_fatal(int number, siginfo_t *info, void *context)
{
    (void)context;
    mox_cli_tty_restore();
    for (int i = 0; i < N_FATAL; i++)
        if (fatal_signals[i] == number) (void)sigaction(number, &before_fatal[i], NULL);
    if (!is_fault(number, info)) (void)raise(number);
}

void mox_cli_tty_keep(void)
{
    if (kept || !isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &before) != 0) return;
    kept = 1;
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_FATAL; i++) (void)sigaction(fatal_signals[i], &action, &before_fatal[i]);
}

void mox_cli_tty_hide_keys(bool hide)
{
    if (!kept) return;
    struct termios now = before;
    if (hide) now.c_lflag &= (tcflag_t)~(tcflag_t)(ECHO | ICANON);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &now);
}

void mox_cli_tty_mark_pastes(bool mark)
{
    if (!kept) return;
    if (mark) marks_pastes = 1;
    tell(mark ? "\x1b[?2004h" : "\x1b[?2004l");
    if (!mark) marks_pastes = 0;
}

void mox_cli_tty_colored(void) { colored = 1; }
