/* app/cli/keys.c -- bytes to characters and events.
 *
 * Terminals put ESC[200~ and ESC[201~ around what is pasted.  A paste whose end does not
 * come is over after a while of silence: the keyboard must come back. */
#include "app/cli/keys.h"

#include "app/cli/stop.h"
#include "app/cli/terminal.h"
#include "app/cli/wide.h"
#include "base/alloc.h"
#include "moxie/text.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const char paste_begins[] = "\x1b[200~", paste_ends[] = "\x1b[201~";
enum { MARK_BYTES = 6, MARK_WAIT_MS = 50, PASTE_WAIT_MS = 2000, PASTE_BYTES_MAX = 1 << 26 };

static volatile sig_atomic_t resized;

static void on_resize(int number)
{
    (void)number;
    resized = 1;
    mox_cli_stop_wake();
}

void mox_cli_keys_watch_size(void)
{
    struct sigaction action = {.sa_handler = on_resize, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGWINCH, &action, NULL);
}

/* ---- bytes ------------------------------------------------------------------- */

typedef enum waiting { WAIT_DATA, WAIT_SIGNAL, WAIT_TIMEOUT } waiting;

/* timeout_ms < 0: for ever, and signals count. */
static waiting wait_for_input(int timeout_ms)
{
    struct pollfd in[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = mox_cli_stop_waker(), .events = POLLIN}};
    for (;;) {
        if (timeout_ms < 0 && (mox_cli_stop_signal() || resized)) return WAIT_SIGNAL;
        in[0].revents = in[1].revents = 0;
        const int n = poll(in, timeout_ms < 0 ? 2 : 1, timeout_ms);
        if (n == 0) return WAIT_TIMEOUT;
        if (n < 0 && errno == EINTR) continue;
        if (in[1].revents) mox_cli_stop_woken();
        if (n < 0 || in[0].revents) return WAIT_DATA; /* also at the end and on errors, which read tells */
    }
}

/* More bytes behind those that are there; false at the end and when there is no room. */
static bool read_more(mox_cli_keys *k)
{
    if (k->at > 0) {
        memmove(k->bytes, k->bytes + k->at, k->n - k->at);
        k->n -= k->at;
        k->at = 0;
    }
    ssize_t n;
    do n = read(STDIN_FILENO, k->bytes + k->n, sizeof k->bytes - k->n);
    while (n < 0 && errno == EINTR && !mox_cli_stop_signal());
    if (n <= 0) return false;
    k->n += (size_t)n;
    return true;
}

mox_cli_input_event mox_cli_keys_byte(mox_cli_keys *k, char *out)
{
    while (k->at == k->n) {
        if (wait_for_input(-1) == WAIT_SIGNAL) {
            if (mox_cli_stop_signal() == SIGINT) {
                mox_cli_stop_forget();
                return INPUT_INTERRUPT;
            }
            if (mox_cli_stop_signal()) return INPUT_TERMINATE;
            resized = 0;
            return INPUT_RESIZE;
        }
        if (!read_more(k) && !mox_cli_stop_signal()) return INPUT_END;
    }
    *out = k->bytes[k->at++];
    return INPUT_BYTE;
}

/* ---- pastes ------------------------------------------------------------------ */

/* A paste begins here; waits a moment for the rest of a mark that may be one. */
static bool at_paste(mox_cli_keys *k)
{
    for (;;) {
        const size_t n = k->n - k->at < MARK_BYTES ? k->n - k->at : MARK_BYTES;
        if (n == 0 || memcmp(k->bytes + k->at, paste_begins, n) != 0) return false;
        if (n == MARK_BYTES) return true;
        if (wait_for_input(MARK_WAIT_MS) != WAIT_DATA || !read_more(k)) return false;
    }
}

static bool append(mox_cli_keys *k, char c)
{
    if (k->n_paste == k->paste_capacity) {
        const size_t capacity = 2 * k->paste_capacity + (1 << 12);
        char *bigger = capacity <= PASTE_BYTES_MAX ? mox_realloc_array(k->paste, capacity, 1) : NULL;
        if (!bigger) return false;
        k->paste = bigger;
        k->paste_capacity = capacity;
    }
    k->paste[k->n_paste++] = c;
    return true;
}

/* Takes a paste's bytes up to its end into k->paste, as they are; what does not fit is
 * dropped. */
static void collect(mox_cli_keys *k)
{
    k->at += MARK_BYTES;
    k->n_paste = 0;
    for (;;) {
        while (k->n - k->at >= MARK_BYTES) {
            if (memcmp(k->bytes + k->at, paste_ends, MARK_BYTES) == 0) {
                k->at += MARK_BYTES;
                return;
            }
            (void)append(k, k->bytes[k->at++]);
        }
        if (wait_for_input(PASTE_WAIT_MS) != WAIT_DATA || !read_more(k)) break;
    }
    while (k->at < k->n) (void)append(k, k->bytes[k->at++]);
}

/* Terminals send newlines as carriage returns, and pairs of both as they please. */
static void tidy(mox_cli_keys *k)
{
    size_t m = 0;
    for (size_t i = 0; i < k->n_paste;) {
        const char c = k->paste[i];
        const size_t control = c == '\n' || c == '\t' || c == '\r' ? 0 : mox_cli_control_bytes(k->paste + i, k->n_paste - i);
        if (control > 0) {
            i += control;
            continue;
        }
        const bool pair = c == '\r' && i + 1 < k->n_paste && k->paste[i + 1] == '\n';
        k->paste[m++] = c == '\r' ? '\n' : c;
        i += pair ? 2 : 1;
    }
    while (m > 0 && k->paste[m - 1] == '\n') m--; /* what is pasted is not yet sent */
    k->n_paste = m;
}

/* ---- characters -------------------------------------------------------------- */

static void take(void *user, const char *text, size_t n)
{
    if (n > 0) *(wchar_t *)user = mox_cli_wide_char(text);
}

bool mox_cli_keys_next(mox_cli_keys *k, wchar_t *out)
{
    mox_utf8_stream stream = {0};
    *out = 0;
    for (;;) {
        char c;
        switch (mox_cli_keys_byte(k, &c)) {
        case INPUT_END: return false;
        case INPUT_INTERRUPT: *out = KEY_INTERRUPT; return true;
        case INPUT_TERMINATE: *out = KEY_LEAVE; return true;
        case INPUT_RESIZE: *out = KEY_RESIZE; return true;
        case INPUT_BYTE: break;
        }
        if (c == paste_begins[0]) { /* look from the mark's first byte on */
            k->at--;
            if (at_paste(k)) {
                collect(k);
                tidy(k);
                *out = KEY_PASTE;
                return true;
            }
            k->at++;
        }
        mox_utf8_stream_push(&stream, &c, 1, take, out);
        if (*out != 0 || (c == 0 && stream.n_held == 0)) return true;
    }
}

void mox_cli_keys_free(mox_cli_keys *k)
{
    mox_free(k->paste);
    *k = (mox_cli_keys){0};
}
