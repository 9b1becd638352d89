/* app/cli/wide.h -- UTF-8 to the wide characters of the line editor, and back.
 *
 * Independent of the locale: wide characters are code points. */
#ifndef MOX_APP_CLI_WIDE_H
#define MOX_APP_CLI_WIDE_H

#include <stddef.h>
#include <wchar.h>

/* The first character of valid UTF-8. */
wchar_t mox_cli_wide_char(const char *utf8);
/* Terminated; the caller frees it with mox_free; NULL when out of memory.  Bytes that are
 * no UTF-8 become U+FFFD. */
wchar_t *mox_cli_wide(const char *utf8, size_t n);
/* Terminated; the caller frees it with mox_free; NULL when out of memory. */
char *mox_cli_utf8(const wchar_t *wide, size_t n, size_t *n_out);

#endif
