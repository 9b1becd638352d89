/* app/cli/keys.h -- what comes in on standard input: bytes, characters, pastes, and the
 * signals that come between them.
 *
 * Waits for input and signals together, so that no signal is missed between looking and
 * waiting. */
#ifndef MOX_APP_CLI_KEYS_H
#define MOX_APP_CLI_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <wchar.h>

typedef enum mox_cli_input_event {
    INPUT_BYTE,
    INPUT_END, /* also when reading fails */
    INPUT_INTERRUPT, /* SIGINT, which is hereby served */
    INPUT_TERMINATE, /* SIGTERM: mox_cli_stop_signal says so from now on */
    INPUT_RESIZE,
} mox_cli_input_event;

/* What stands for an event among characters: controls that no key of ours needs. */
enum { KEY_INTERRUPT = 0x03, KEY_LEAVE = 0x1C, KEY_PASTE = 0x1E, KEY_RESIZE = 0x1F };

typedef struct mox_cli_keys { /* zero-initialise; release with mox_cli_keys_free */
    char bytes[1 << 14];
    size_t at, n;
    char *paste; /* what was pasted last; newlines are \n, other controls but tabs are gone */
    size_t n_paste, paste_capacity;
} mox_cli_keys;

/* From here on changes of the window's size are events. */
void mox_cli_keys_watch_size(void);
mox_cli_input_event mox_cli_keys_byte(mox_cli_keys *k, char *out);
/* The next character or KEY_ of an event; false at the end.  A paste is one KEY_PASTE. */
bool mox_cli_keys_next(mox_cli_keys *k, wchar_t *out);
void mox_cli_keys_free(mox_cli_keys *k);

#endif
