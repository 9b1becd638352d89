/* app/cli/stop.c -- signal handlers that ask first. */
#include "app/cli/stop.h"

#include "app/cli/commands.h"
#include "app/cli/tty.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static mox_cancel flag;
static atomic_int asked; /* the first signal; two may come at once, each to a thread of its own */
static int waker[2] = {-1, -1}; /* a pipe */

int mox_cli_stop_waker(void) { return waker[0]; }

void mox_cli_stop_wake(void)
{
    const int before = errno;
    const ssize_t n = write(waker[1], "", 1);
    (void)n; /* a pipe that is full wakes as well */
    errno = before;
}

void mox_cli_stop_woken(void)
{
    char bytes[64];
    while (read(waker[0], bytes, sizeof bytes) > 0) {}
}

static void on_signal(int number)
{
    int none = 0;
    mox_cancel_raise(&flag); /* first: who sees the signal may forget both */
    if (!atomic_compare_exchange_strong(&asked, &none, number)) {
        mox_cli_tty_restore();
        _exit(EXIT_SIGNAL + number);
    }
    mox_cli_stop_wake();
}

void mox_cli_stop_catch(void)
{
    if (waker[0] < 0 && pipe2(waker, O_CLOEXEC | O_NONBLOCK) != 0) waker[0] = waker[1] = -1;
    /* a write that waits for its reader goes on; who waits for input asks the waker too */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
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
