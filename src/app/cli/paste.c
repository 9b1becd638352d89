/* app/cli/paste.c -- labels and the texts they stand for. */
#include "app/cli/paste.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

enum { LINES_MAX = 6, BYTES_MAX = 1000 }; /* of a text that may stand in the line itself */

static size_t count_lines(const char *text, size_t n)
{
    size_t lines = n > 0 && text[n - 1] != '\n';
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    return lines;
}

bool mox_cli_paste_is_long(const char *text, size_t n) { return n > BYTES_MAX || count_lines(text, n) > LINES_MAX; }

const char *mox_cli_paste_keep(mox_cli_pastes *p, const char *text, size_t n)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i].n == n && memcmp(p->list[i].text, text, n) == 0) return p->list[i].label;
    if (p->n == p->capacity) {
        const size_t capacity = 2 * p->capacity + 8;
        mox_cli_paste *bigger = mox_realloc_array(p->list, capacity, sizeof *bigger);
        if (!bigger) return NULL;
        p->list = bigger;
        p->capacity = capacity;
    }
    mox_cli_paste *paste = &p->list[p->n];
    *paste = (mox_cli_paste){.text = mox_strndup(text, n), .n = n};
    if (!paste->text) return NULL;
    const size_t lines = count_lines(text, n);
    if (lines > 1) (void)snprintf(paste->label, sizeof paste->label, "[paste %zu: %zu lines]", p->n + 1, lines);
    else (void)snprintf(paste->label, sizeof paste->label, "[paste %zu: %zu bytes]", p->n + 1, n);
    return p->list[p->n++].label;
}

/* The paste whose label begins at line, or NULL. */
static const mox_cli_paste *find(const mox_cli_pastes *p, const char *line, size_t n)
{
    if (n == 0 || line[0] != '[') return NULL;
    for (size_t i = 0; i < p->n; i++) {
        const size_t m = strlen(p->list[i].label);
        if (m <= n && memcmp(line, p->list[i].label, m) == 0) return &p->list[i];
    }
    return NULL;
}

char *mox_cli_paste_expand(const mox_cli_pastes *p, const char *line, size_t n, size_t *n_out)
{
    char *out = NULL;
    for (int pass = 0; pass < 2; pass++) { /* counts, then copies */
        size_t m = 0;
        for (size_t i = 0; i < n;) {
            const mox_cli_paste *paste = find(p, line + i, n - i);
            const char *from = paste ? paste->text : line + i;
            const size_t bytes = paste ? paste->n : 1;
            if (out) memcpy(out + m, from, bytes);
            m += bytes;
            i += paste ? strlen(paste->label) : 1;
        }
        if (pass == 0 && !(out = mox_alloc(m + 1))) return NULL;
        out[m] = '\0';
        *n_out = m;
    }
    return out;
}

size_t mox_cli_paste_label_at_end(const mox_cli_pastes *p, const char *line, size_t n)
{
    for (size_t i = 0; i < p->n; i++) {
        const size_t m = strlen(p->list[i].label);
        if (m <= n && memcmp(line + n - m, p->list[i].label, m) == 0) return m;
    }
    return 0;
}

void mox_cli_pastes_free(mox_cli_pastes *p)
{
    for (size_t i = 0; i < p->n; i++) mox_free(p->list[i].text);
    mox_free(p->list);
    *p = (mox_cli_pastes){0};
}
