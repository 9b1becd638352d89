/* app/cli/output.h -- results on standard output.
 *
 * The first failed write is remembered; later ones are dropped.  A command looks
 * at mox_cli_output_failed where it would otherwise work on for nobody, and main
 * turns the failure into one sentence and the exit code. */
#ifndef MOX_APP_CLI_OUTPUT_H
#define MOX_APP_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

void mox_cli_put(const char *bytes, size_t n);
void mox_cli_putf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Text of a model or of a file: in a terminal, without control characters. */
void mox_cli_put_text(const char *text, size_t n);
void mox_cli_put_flush(void);
bool mox_cli_output_failed(void);
/* Flushes; false, with the sentence said, when anything could not be written. */
bool mox_cli_output_finish(void);

/* text as a JSON string with its quotes; what is no UTF-8 becomes U+FFFD. */
void mox_cli_put_json(const char *text, size_t n);
/* x as a JSON number; null when it has no such form. */
void mox_cli_put_json_real(double x);

#endif
