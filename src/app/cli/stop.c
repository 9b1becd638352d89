/* app/cli/stop.c -- signal handlers that ask first. */
#include "app/cli/stop.h"

#include "app/cli/commands.h"
#include "app/cli/tty.h"

#include <signal.h>
#include <unistd.h>

static mox_cancel flag;
static volatile sig_atomic_t asked;

static void on_signal(int number)
{
    if (asked) {
        mox_cli_tty_restore();
        _exit(EXIT_SIGNAL + number);
    }
    asked = number;
    mox_cancel_raise(&flag);
}

void mox_cli_stop_catch(void)
{
    /* no SA_RESTART: a read that waits for input returns and sees the flag */
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

mox_cancel *mox_cli_stop_flag(void) { return &flag; }
int mox_cli_stop_signal(void) { return asked; }

void mox_cli_stop_forget(void)
{
    flag.raised = 0;
    asked = 0;
}
