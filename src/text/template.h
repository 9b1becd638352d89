/* text/template.h -- chat templates: messages to the text of a prompt.
 *
 * An interpreter for the part of Jinja that the templates of models use, with the
 * settings they are written for: trim_blocks and lstrip_blocks on, autoescape off,
 * loop controls, `{% generation %}`, `raise_exception`, `strftime_now`, and a
 * `tojson` that is Python's json.dumps(ensure_ascii=False).  Values behave as in
 * Python.  There is no I/O, no import, no attribute of the host language.
 *
 * A template is parsed once, is immutable then and may be rendered by many threads
 * at a time.  A render takes its memory from a region of its own and is bounded in
 * steps, memory, output and depth, whatever the template says.
 *
 * A prompt remembers where its bytes are from.  What the template spells out is
 * trusted; what came in as a variable is not, unless the caller says so.  This
 * follows every byte through concatenation, slicing, filters and methods, so that
 * a special token that a user typed stays text when the prompt is encoded.
 *
 * Differences from Jinja that are meant: lists have append() and pop(), which the
 * reference's sandbox forbids; there is a filter `from_json`; integers beyond 64
 * bits can be printed and compared but not computed with; changing case maps one
 * character to one character (and the German sharp s to SS).  Not there: template
 * inheritance, include, import, recursive loops, calls with * and **. */
#ifndef MOX_TEXT_TEMPLATE_H
#define MOX_TEXT_TEMPLATE_H

#include "base/err.h"
#include "moxie/chat.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mox_template mox_template;

/* Parses text[0, n), which is copied.  name is for messages, borrowed for as long as
 * the template lives.  A text that is no template is MOX_E_FORMAT, with name, line
 * and column. */
mox_status mox_template_open(mox_template **out, const char *name, const char *text, size_t n, mox_err *err);
void mox_template_close(mox_template **t);

/* The template's text mentions a variable, filter or function of that name. */
bool mox_template_mentions(const mox_template *t, const char *name);
/* It has those bytes somewhere. */
bool mox_template_contains(const mox_template *t, const char *bytes);

/* What a template sees under a name. */
typedef struct mox_template_var {
    const char *name; /* NULL: json is an object, and each of its fields is a variable */
    const char *json; /* the value as JSON, unless text is given */
    const char *text; /* the value as a string */
    size_t n;         /* bytes of json or text */
    bool trusted;     /* its strings may hold special tokens: bos_token and the like */
} mox_template_var;

typedef struct mox_template_opts { /* zero: the default in brackets */
    int64_t steps_max;             /* evaluations, and bytes handled in units of 32 [10 million] */
    size_t memory_bytes_max;       /* [256 MiB] */
    size_t output_bytes_max;       /* of the prompt, and of any string [16 MiB] */
    int32_t depth_max;             /* evaluations inside each other [600] */
    int64_t unix_time_s;           /* for strftime_now; 0 is 1970 */
    int32_t utc_offset_s;
    /* Where in the prompt each element of the variable `messages` was written: the output of
     * the turn of a loop whose item it was.  Empty for those that no such loop wrote.  [n_written] */
    mox_text_span *written;
    size_t n_written;
} mox_template_opts;

/* Renders t with variables, of which no two may have the same name.  opts may be NULL.
 *
 * MOX_E_REFUSED  the template itself refused with raise_exception: err has its words
 * MOX_E_FORMAT   the template failed (err has name, line and column), or a variable
 *                is no JSON
 * MOX_E_LIMIT    a limit was reached
 * MOX_E_ARG      two variables, or two fields of an object, of one name */
mox_status mox_template_render(const mox_template *t, const mox_template_var *vars, size_t n_vars,
                               const mox_template_opts *opts, mox_prompt *out, mox_err *err);

#endif
