/* text/template_lex.c -- the text of a template as tokens, and the rules of blanks.
 *
 * Blanks around tags are settled here: `-` takes all of them away, lstrip_blocks the
 * ones between the begin of a line and a block or comment, trim_blocks the line end
 * behind one, `+` keeps what these two would take.  The parser sees text that is
 * printed as it is.
 *
 * Inside tags an end mark counts only when brackets are closed, so that `}}` may end
 * two dicts. */
#include "text/template_internal.h"
#include "base/utf8.h"

#include <string.h>

enum { BRACKETS_MAX = 64, TEXT_MAX = 1 << 20 };

typedef struct lexer {
    const mox_template *t;
    mox_region *region;
    mox_ttokens *out;
    mox_err *err;
    const char *p;
    size_t n, pos;
    bool line_start; /* the last thing read ended a line */
    char brackets[BRACKETS_MAX];
    int n_brackets;
} lexer;

static mox_status add(lexer *l, mox_ttoken_type type, size_t begin, size_t end, int op)
{
    mox_ttokens *o = l->out;
    if (o->n == o->capacity) {
        const size_t capacity = o->capacity ? o->capacity * 2 : 256;
        void *token = o->token;
        MOX_TRY(
            mox_region_grow(l->region, &token, o->capacity * sizeof *o->token, capacity * sizeof *o->token, l->err));
        o->token = token;
        o->capacity = capacity;
    }
    o->token[o->n++] = (mox_ttoken){type, (uint32_t)begin, op, l->p + begin, end - begin};
    return MOX_OK;
}

static bool at_text(const lexer *l, size_t i, const char *text)
{
    const size_t n = strlen(text);
    return l->n - i >= n && memcmp(l->p + i, text, n) == 0;
}

/* Bytes of the blank character at i, or 0. */
static size_t blank_at(const lexer *l, size_t i)
{
    uint32_t cp;
    if (i >= l->n) return 0;
    const size_t length = mox_utf8_next((const unsigned char *)l->p + i, &cp);
    return mox_char_is_space(cp) ? length : 0;
}

static size_t skip_blanks(const lexer *l, size_t i)
{
    for (size_t length; (length = blank_at(l, i)) > 0;) i += length;
    return i;
}

/* Where the blanks that end [begin, end) begin. */
static size_t before_blanks(const lexer *l, size_t begin, size_t end)
{
    while (end > begin) {
        size_t i = end - 1;
        while (i > begin && ((unsigned char)l->p[i] & 0xC0) == 0x80) i--;
        if (blank_at(l, i) == 0) break;
        end = i;
    }
    return end;
}

/* Text up to a tag with the given sign; a block or comment may take the blanks of its line. */
static mox_status add_data(lexer *l, size_t begin, size_t end, char sign, bool strips_line)
{
    if (sign == '-') {
        end = before_blanks(l, begin, end);
    } else if (sign != '+' && strips_line) {
        size_t line = end;
        while (line > begin && l->p[line - 1] != '\n') line--;
        if ((line > begin || l->line_start) && before_blanks(l, line, end) == line) end = line;
    }
    return end > begin ? add(l, MOX_TT_DATA, begin, end, 0) : MOX_OK;
}

/* The end mark of a block or comment at i: its bytes with what it takes behind it, or 0. */
static size_t end_mark(const lexer *l, size_t i, const char *mark)
{
    if (l->p[i] == '+' && at_text(l, i + 1, mark)) return 3;
    if (l->p[i] == '-' && at_text(l, i + 1, mark)) return skip_blanks(l, i + 3) - i;
    if (!at_text(l, i, mark)) return 0;
    return i + 2 < l->n && l->p[i + 2] == '\n' ? 3 : 2;
}

static char sign_at(const lexer *l, size_t i) { return i < l->n && (l->p[i] == '-' || l->p[i] == '+') ? l->p[i] : 0; }

static void moved(lexer *l, size_t to)
{
    l->pos = to;
    l->line_start = to > 0 && l->p[to - 1] == '\n';
}

static mox_status lex_comment(lexer *l, size_t begin)
{
    for (size_t i = l->pos; i < l->n; i++) {
        const size_t length = end_mark(l, i, "#}");
        if (length == 0) continue;
        moved(l, i + length);
        return MOX_OK;
    }
    return mox_template_fail(l->t, (uint32_t)begin, l->err, "this comment has no end");
}

/* Behind a word that stands alone in a block, as raw does: the byte behind its end
 * mark, or 0. */
static size_t word_block(const lexer *l, size_t i, const char *word, bool trims)
{
    i = skip_blanks(l, i);
    if (!at_text(l, i, word)) return 0;
    i = skip_blanks(l, i + strlen(word));
    if (i >= l->n) return 0;
    if (trims) {
        const size_t length = end_mark(l, i, "%}");
        return length ? i + length : 0;
    }
    if (at_text(l, i, "-%}")) return skip_blanks(l, i + 3);
    return at_text(l, i, "%}") ? i + 2 : 0;
}

static mox_status lex_raw(lexer *l, size_t begin)
{
    for (size_t i = l->pos; i < l->n; i++) {
        if (!at_text(l, i, "{%")) continue;
        const char sign = sign_at(l, i + 2);
        const size_t end = word_block(l, i + 2 + (sign != 0), "endraw", true);
        if (end == 0) continue;
        MOX_TRY(add_data(l, l->pos, i, sign, true));
        moved(l, end);
        return MOX_OK;
    }
    return mox_template_fail(l->t, (uint32_t)begin, l->err, "raw without endraw");
}

/* ---- inside tags ------------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Bytes of the character at i if it may be in a name, or 0. */
static size_t word_at(const lexer *l, size_t i)
{
    uint32_t cp;
    if (i >= l->n) return 0;
    const size_t length = mox_utf8_next((const unsigned char *)l->p + i, &cp);
    return mox_char_is_word(cp) ? length : 0;
}

/* Digits with single underscores between them, from i; 0 when there are none. */
static size_t digits(const lexer *l, size_t i)
{
    const size_t begin = i;
    while (i < l->n && (is_digit(l->p[i]) || (i > begin && l->p[i] == '_' && i + 1 < l->n && is_digit(l->p[i + 1]))))
        i++;
    return i - begin;
}

static size_t exponent(const lexer *l, size_t i)
{
    if (i >= l->n || (l->p[i] != 'e' && l->p[i] != 'E')) return 0;
    const size_t sign = i + 1 < l->n && (l->p[i + 1] == '+' || l->p[i + 1] == '-');
    const size_t n = digits(l, i + 1 + sign);
    return n ? 1 + sign + n : 0;
}

/* A number at i as Jinja spells them: a leading zero is a number of its own. */
static mox_status lex_number(lexer *l)
{
    const size_t begin = l->pos;
    const size_t whole = digits(l, begin);
    size_t end = begin + whole;
    if (begin == 0 || l->p[begin - 1] != '.') {
        size_t fraction = end < l->n && l->p[end] == '.' ? digits(l, end + 1) : 0;
        if (fraction) fraction++;
        const size_t exp = exponent(l, end + fraction);
        if (fraction + exp > 0) {
            l->pos = end + fraction + exp;
            return add(l, MOX_TT_FLOAT, begin, l->pos, 0);
        }
    }
    const char radix = l->p[begin] == '0' && begin + 1 < l->n ? (char)(l->p[begin + 1] | 0x20) : 0;
    if (radix == 'x' || radix == 'o' || radix == 'b') {
        size_t i = begin + 2;
        const char *allowed = radix == 'x' ? "0123456789abcdefABCDEF" : radix == 'o' ? "01234567" : "01";
        while (i < l->n && l->p[i] &&
               (strchr(allowed, l->p[i]) ||
                (l->p[i] == '_' && i + 1 < l->n && l->p[i + 1] && strchr(allowed, l->p[i + 1])))) {
            i++;
        }
        if (i > begin + 2) {
            l->pos = i;
            return add(l, MOX_TT_INTEGER, begin, i, 0);
        }
    }
    if (l->p[begin] == '0') {
        end = begin + 1;
        while (end < begin + whole && (l->p[end] == '0' || (l->p[end] == '_' && l->p[end + 1] == '0'))) end++;
    }
    l->pos = end;
    return add(l, MOX_TT_INTEGER, begin, end, 0);
}

static mox_status lex_string(lexer *l)
{
    const size_t begin = l->pos;
    for (size_t i = begin + 1; i < l->n; i++) {
        if (l->p[i] == '\\') {
            i++;
        } else if (l->p[i] == l->p[begin]) {
            l->pos = i + 1;
            return add(l, MOX_TT_STRING, begin, l->pos, 0);
        }
    }
    return mox_template_fail(l->t, (uint32_t)begin, l->err, "this string has no end");
}

static mox_status close_bracket(lexer *l, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    if (l->n_brackets == 0) return mox_template_fail(l->t, (uint32_t)l->pos, l->err, "unexpected '%c'", c);
    const char expected = close[strchr(open, l->brackets[--l->n_brackets]) - open];
    if (c == expected) return MOX_OK;
    return mox_template_fail(l->t, (uint32_t)l->pos, l->err, "unexpected '%c', expected '%c'", c, expected);
}

static mox_status lex_operator(lexer *l)
{
    static const char pairs[][3] = {"//", "**", "==", "!=", ">=", "<="};
    const size_t begin = l->pos;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!at_text(l, begin, pairs[i])) continue;
        l->pos += 2;
        return add(l, MOX_TT_OPERATOR, begin, l->pos, MOX_OP2(pairs[i][0], pairs[i][1]));
    }
    const char c = l->p[begin];
    if (c == '\0' || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        uint32_t cp;
        const size_t length = mox_utf8_next((const unsigned char *)l->p + begin, &cp);
        return mox_template_fail(l->t, (uint32_t)begin, l->err, "unexpected character '%.*s'", (int)length,
                                 l->p + begin);
    }
    if (strchr("([{", c)) {
        if (l->n_brackets == BRACKETS_MAX) {
            return mox_template_fail(l->t, (uint32_t)begin, l->err, "more than %d brackets inside each other",
                                     BRACKETS_MAX);
        }
        l->brackets[l->n_brackets++] = c;
    } else if (strchr(")]}", c)) {
        MOX_TRY(close_bracket(l, c));
    }
    l->pos++;
    return add(l, MOX_TT_OPERATOR, begin, l->pos, c);
}

/* Everything up to and with the end mark of a tag. */
static mox_status lex_tag(lexer *l, size_t begin, bool block)
{
    l->n_brackets = 0;
    for (;;) {
        l->pos = skip_blanks(l, l->pos);
        if (l->pos >= l->n) return mox_template_fail(l->t, (uint32_t)begin, l->err, "this tag has no end");
        if (l->n_brackets == 0) {
            size_t length = 0;
            if (block) {
                length = end_mark(l, l->pos, "%}");
            } else if (at_text(l, l->pos, "-}}")) {
                length = skip_blanks(l, l->pos + 3) - l->pos;
            } else if (at_text(l, l->pos, "}}")) {
                length = 2;
            }
            if (length > 0) {
                MOX_TRY(add(l, block ? MOX_TT_BLOCK_END : MOX_TT_PRINT_END, l->pos, l->pos + length, 0));
                moved(l, l->pos + length);
                return MOX_OK;
            }
        }
        const char c = l->p[l->pos];
        if (is_digit(c)) {
            MOX_TRY(lex_number(l));
        } else if (word_at(l, l->pos) > 0) {
            const size_t word = l->pos;
            for (size_t length; (length = word_at(l, l->pos)) > 0;) l->pos += length;
            MOX_TRY(add(l, MOX_TT_NAME, word, l->pos, 0));
        } else {
            MOX_TRY(c == '\'' || c == '"' ? lex_string(l) : lex_operator(l));
        }
    }
}

/* Text up to the next tag, and that tag. */
static mox_status lex_next(lexer *l)
{
    size_t i = l->pos;
    while (i < l->n &&
           !(l->p[i] == '{' && i + 1 < l->n && (l->p[i + 1] == '{' || l->p[i + 1] == '%' || l->p[i + 1] == '#'))) {
        i++;
    }
    if (i == l->n) {
        if (i > l->pos) MOX_TRY(add(l, MOX_TT_DATA, l->pos, i, 0));
        l->pos = i;
        return MOX_OK;
    }
    const char kind = l->p[i + 1], sign = sign_at(l, i + 2);
    const size_t inside = i + 2 + (sign != 0);
    MOX_TRY(add_data(l, l->pos, i, sign, kind != '{'));
    l->pos = inside;
    l->line_start = false;
    if (kind == '#') return lex_comment(l, i);
    if (kind == '%') {
        const size_t raw = word_block(l, inside, "raw", false);
        if (raw > 0) {
            moved(l, raw);
            return lex_raw(l, i);
        }
    }
    MOX_TRY(add(l, kind == '%' ? MOX_TT_BLOCK_BEGIN : MOX_TT_PRINT_BEGIN, i, inside, 0));
    return lex_tag(l, i, kind == '%');
}

/* In place: every \r\n and \r becomes \n; the last line end goes. */
static void normalize_lines(mox_template *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        char c = t->text[i];
        if (c == '\r') {
            c = '\n';
            if (i + 1 < t->n && t->text[i + 1] == '\n') i++;
        }
        t->text[n++] = c;
    }
    t->n = n - (n > 0 && t->text[n - 1] == '\n');
}

mox_status mox_template_lex(mox_template *t, mox_region *region, mox_ttokens *out, mox_err *err)
{
    if (t->n > TEXT_MAX) return mox_fail(err, MOX_E_LIMIT, "%s: a template has at most %d bytes", t->name, TEXT_MAX);
    const size_t valid = mox_utf8_valid_prefix((const unsigned char *)t->text, t->n);
    if (valid < t->n) return mox_template_fail(t, (uint32_t)valid, err, "the text is not UTF-8");
    normalize_lines(t);
    lexer l = {.t = t, .region = region, .out = out, .err = err, .p = t->text, .n = t->n, .line_start = true};
    while (l.pos < l.n) MOX_TRY(lex_next(&l));
    return add(&l, MOX_TT_END, l.n, l.n, 0);
}
