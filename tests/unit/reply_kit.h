/* tests/unit/reply_kit.h -- replies taken apart, written down in one line: K{thinking},
 * T{text}, C{name}, A{arguments} as they came, neighbours of one kind joined. */
#ifndef TESTS_REPLY_KIT_H
#define TESTS_REPLY_KIT_H

#include "base/json_reader.h"
#include "text/reply.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct string {
    char *text; /* terminated once anything was added */
    size_t n, capacity;
} string;

static inline void string_add(string *s, const char *text, size_t n)
{
    if (s->n + n + 1 > s->capacity) {
        s->capacity = (s->n + n + 1) * 2;
        s->text = realloc(s->text, s->capacity);
        if (!s->text) abort();
    }
    memcpy(s->text + s->n, text, n);
    s->n += n;
    s->text[s->n] = '\0';
}

static inline void string_puts(string *s, const char *text) { string_add(s, text, strlen(text)); }

static inline void string_free(string *s)
{
    free(s->text);
    *s = (string){0};
}

typedef struct notes {
    string line, text, thinking; /* the line, and what of it is text and thinking */
    int open;                    /* the kind at the end of the line, -1: none */
    int32_t n_calls;
    bool wrong; /* parts out of order */
} notes;

static inline void note_part(void *user, mox_part part, int32_t call, const char *text, size_t n)
{
    static const char *const kinds[] = {"T{", "K{", "C{", "A{"};
    notes *w = user;
    if (part == MOX_PART_CALL_NAME) w->wrong = w->wrong || call != w->n_calls++ || n == 0;
    if (part == MOX_PART_CALL_ARGUMENTS) w->wrong = w->wrong || call != w->n_calls - 1 || w->open < MOX_PART_CALL_NAME;
    if (part <= MOX_PART_THINKING) w->wrong = w->wrong || call != -1 || n == 0;
    if (w->open != (int)part || part == MOX_PART_CALL_NAME) {
        if (w->open >= 0) string_puts(&w->line, "}");
        string_puts(&w->line, kinds[part]);
    }
    w->open = (int)part;
    string_add(&w->line, text, n);
    if (part == MOX_PART_TEXT) string_add(&w->text, text, n);
    if (part == MOX_PART_THINKING) string_add(&w->thinking, text, n);
}

static inline void notes_free(notes *w)
{
    string_free(&w->line);
    string_free(&w->text);
    string_free(&w->thinking);
}

/* Whether text is one JSON value and nothing else; *type is what it begins with. */
static inline bool is_json(const char *text, size_t n, mox_json_type *type)
{
    mox_json_reader r;
    mox_json_token token;
    mox_json_reader_init(&r, (mox_json_span){.name = "test", .text = text, .n = n});
    bool ok = mox_json_next(&r, &token, NULL) == MOX_OK;
    if (ok) *type = token.type;
    while (ok && token.type != MOX_JSON_END) ok = mox_json_next(&r, &token, NULL) == MOX_OK;
    mox_json_reader_deinit(&r);
    return ok;
}

static inline bool is_json_object(const char *text)
{
    mox_json_type type;
    return is_json(text, strlen(text), &type) && type == MOX_JSON_OBJECT;
}

#endif
