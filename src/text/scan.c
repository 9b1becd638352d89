/* text/scan.c -- hand-written matchers for the split patterns.
 *
 * Each function is a transcription of one pattern: alternatives in their order,
 * greedy, with the outcome of backtracking worked out beforehand.  The comments
 * quote the alternative that the code below them decides.
 */
#include "text/scan.h"

#include <stdbool.h>
#include <string.h>

enum {
    L = MOX_CHAR_LETTER,
    N = MOX_CHAR_NUMBER,
    M = MOX_CHAR_MARK,
    SIGN = MOX_CHAR_SIGN,
    SPACE = MOX_CHAR_SPACE,
    UPPER = MOX_CHAR_UPPER,
    LOWER = MOX_CHAR_LOWER,
    ANY = MOX_CHAR_ANY
};

/* The class of the character at p and its length; 0 and 0 at the end. */
static inline unsigned look(const mox_unicode *u, const unsigned char *p, size_t n, size_t *length)
{
    *length = 0;
    if (n == 0) return 0;
    uint32_t cp;
    *length = mox_utf8_next(p, &cp);
    return mox_unicode_class(u, cp);
}

/* Has the class a character, and none of the bits? */
static inline bool none_of(unsigned class, unsigned bits) { return (class & (bits | ANY)) == ANY; }

static inline bool is_newline(unsigned char c) { return c == '\r' || c == '\n'; }

/* Bytes of the longest run whose classes have one of the bits. */
static inline size_t run(const mox_unicode *u, const unsigned char *p, size_t n, unsigned bits)
{
    size_t i = 0, length;
    while (look(u, p + i, n - i, &length) & bits) i += length;
    return i;
}

static inline size_t run_without(const mox_unicode *u, const unsigned char *p, size_t n, unsigned bits)
{
    size_t i = 0, length;
    while (none_of(look(u, p + i, n - i, &length), bits)) i += length;
    return i;
}

static inline size_t newlines(const unsigned char *p, size_t n)
{
    size_t i = 0;
    while (i < n && is_newline(p[i])) i++;
    return i;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d) -- under case folding U+017F is an s too. */
static size_t contraction(const unsigned char *p, size_t n)
{
    if (n < 2 || p[0] != '\'') return 0;
    const unsigned char a = p[1] | 0x20, b = n > 2 ? p[2] | 0x20 : 0;
    if (p[1] < 0x80 && (a == 's' || a == 't' || a == 'm' || a == 'd')) return 2;
    if (n > 2 && p[1] == 0xC5 && p[2] == 0xBF) return 3;
    if (p[1] >= 0x80 || n < 3 || p[2] >= 0x80) return 0;
    return ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ -- up to the last newline of the run when it has one;
 * else the run, less its last character when something follows. */
static size_t spaces(const mox_unicode *u, const unsigned char *p, size_t n, bool with_newlines)
{
    size_t i = 0, length, last = 0, newline_end = 0;
    while (look(u, p + i, n - i, &length) & SPACE) {
        if (is_newline(p[i])) newline_end = i + 1;
        last = i;
        i += length;
    }
    if (with_newlines && newline_end > 0) return newline_end;
    return i == n || last == 0 ? i : last;
}

/* \p{N}{1,most} */
static inline size_t numbers(const mox_unicode *u, const unsigned char *p, size_t n, int most)
{
    size_t i = 0, length;
    for (int k = 0; k < most && (look(u, p + i, n - i, &length) & N); k++) i += length;
    return i;
}

/* The patterns of Qwen2/3 (letters L, 1 digit), Qwen3.5 (L and M, 1) and Llama 3
 * and GLM (L, 3). */
static inline size_t words(const mox_unicode *u, const unsigned char *p, size_t n, unsigned letters, int most)
{
    size_t length, end = contraction(p, n);
    if (end) return end;
    const unsigned first = look(u, p, n, &length);
    /* [^\r\n\p{L}\p{N}]?[letters]+ -- a mark as the optional character gives the same as one in the run */
    if (first & letters) return run(u, p, n, letters);
    if (none_of(first, L | N) && !is_newline(p[0])) {
        end = run(u, p + length, n - length, letters);
        if (end) return length + end;
    }
    if (first & N) return numbers(u, p, n, most);
    /* ?[^\s letters \p{N}]+[\r\n]* */
    const size_t blank = p[0] == ' ';
    end = run_without(u, p + blank, n - blank, SPACE | N | letters);
    if (end) return blank + end + newlines(p + blank + end, n - blank - end);
    return spaces(u, p, n, true);
}

static size_t scan_qwen2(const mox_unicode *u, const unsigned char *p, size_t n) { return words(u, p, n, L, 1); }
static size_t scan_qwen35(const mox_unicode *u, const unsigned char *p, size_t n) { return words(u, p, n, L | M, 1); }
static size_t scan_llama3(const mox_unicode *u, const unsigned char *p, size_t n) { return words(u, p, n, L, 3); }

static size_t scan_numbers3(const mox_unicode *u, const unsigned char *p, size_t n) { return numbers(u, p, n, 3); }

static size_t scan_cjk(const mox_unicode *u, const unsigned char *p, size_t n)
{
    (void)u;
    size_t i = 0;
    while (i < n && p[i] >= 0xE3 && p[i] < 0xF0) { /* the ranges are three bytes each */
        uint32_t cp;
        mox_utf8_next(p + i, &cp);
        if (!((cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF))) break;
        i += 3;
    }
    return i;
}

static bool is_ascii_letter(unsigned char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

static size_t scan_deepseek3(const mox_unicode *u, const unsigned char *p, size_t n)
{
    size_t length, end;
    const unsigned first = look(u, p, n, &length);
    /* [ASCII punctuation][A-Za-z]+ */
    if (p[0] < 0x80 && (first & SIGN) && n > 1 && is_ascii_letter(p[1])) {
        for (end = 2; end < n && is_ascii_letter(p[end]);) end++;
        return end;
    }
    /* [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ */
    if (first & (L | M)) return run(u, p, n, L | M);
    if (none_of(first, SIGN) && !is_newline(p[0])) {
        end = run(u, p + length, n - length, L | M);
        if (end) return length + end;
    }
    /* ?[\p{P}\p{S}]+[\r\n]* */
    const size_t blank = p[0] == ' ';
    end = run(u, p + blank, n - blank, SIGN);
    if (end) return blank + end + newlines(p + blank + end, n - blank - end);
    return spaces(u, p, n, true);
}

/* UPPER*LOWER+ -- the first run takes all it can; when no lower case letter
 * follows it gives back up to its last character that is in both classes. */
static size_t o200k_lower(const mox_unicode *u, const unsigned char *p, size_t n)
{
    size_t i = 0, length, both_end = 0;
    unsigned class;
    while ((class = look(u, p + i, n - i, &length)) & UPPER) {
        i += length;
        if (class & LOWER) both_end = i;
    }
    return class & LOWER ? i + run(u, p + i, n - i, LOWER) : both_end;
}

/* UPPER+LOWER* */
static size_t o200k_upper(const mox_unicode *u, const unsigned char *p, size_t n)
{
    const size_t i = run(u, p, n, UPPER);
    return i ? i + run(u, p + i, n - i, LOWER) : 0;
}

static size_t scan_o200k(const mox_unicode *u, const unsigned char *p, size_t n)
{
    static size_t (*const word[2])(const mox_unicode *, const unsigned char *, size_t) = {o200k_lower, o200k_upper};
    size_t length, end;
    const unsigned first = look(u, p, n, &length);
    const bool may_skip = none_of(first, L | N) && !is_newline(p[0]);
    for (int i = 0; i < 2; i++) { /* [^\r\n\p{L}\p{N}]? word (?i:'s|...)? -- with the first character, then without */
        end = may_skip ? word[i](u, p + length, n - length) : 0;
        end = end ? length + end : word[i](u, p, n);
        if (end) return end + contraction(p + end, n - end);
    }
    if (first & N) return numbers(u, p, n, 3);
    /* ?[^\s\p{L}\p{N}]+[\r\n/]* */
    const size_t blank = p[0] == ' ';
    end = run_without(u, p + blank, n - blank, SPACE | L | N);
    if (end) {
        end += blank;
        while (end < n && (is_newline(p[end]) || p[end] == '/')) end++;
        return end;
    }
    return spaces(u, p, n, true);
}

static size_t scan_gpt2(const mox_unicode *u, const unsigned char *p, size_t n)
{
    const size_t short_form = contraction(p, n); /* here only in lower case */
    bool lower = short_form > 0;
    for (size_t i = 1; i < short_form; i++) lower = lower && p[i] >= 'a' && p[i] <= 'z';
    if (lower) return short_form;
    const size_t blank = p[0] == ' ';
    size_t end = run(u, p + blank, n - blank, L);
    if (!end) end = run(u, p + blank, n - blank, N);
    if (!end) end = run_without(u, p + blank, n - blank, SPACE | L | N);
    return end ? blank + end : spaces(u, p, n, false);
}

#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define O200K_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

const char mox_scan_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

const mox_scan mox_scans[] = {
    {"qwen2", SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, scan_qwen2},
    {"qwen3.5",
     SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
     scan_qwen35},
    {"llama3", SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
     scan_llama3},
    {"o200k",
     "[^\\r\\n\\p{L}\\p{N}]?" O200K_UPPER "*" O200K_LOWER "+" SHORT_FORMS "?|[^\\r\\n\\p{L}\\p{N}]?" O200K_UPPER
     "+" O200K_LOWER "*" SHORT_FORMS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     scan_o200k},
    {"numbers by three", "\\p{N}{1,3}", scan_numbers3},
    {"CJK", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+", scan_cjk},
    {"deepseek-v3",
     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
     " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES,
     scan_deepseek3},
    {"gpt2", mox_scan_gpt2_pattern, scan_gpt2},
    {NULL, NULL, NULL}};

/* Does the pattern say the same as known, which is in the one spelling? */
static bool same_pattern(const char *pattern, size_t n, const char *known)
{
    size_t i = 0;
    while (i < n) {
        char c[2] = {pattern[i++], '\0'};
        if (c[0] == '\r' || c[0] == '\n') {
            c[1] = c[0] == '\r' ? 'r' : 'n';
            c[0] = '\\';
        } else if (c[0] == '\\' && i < n) {
            c[1] = pattern[i++];
            if (c[1] == '"') c[0] = '"', c[1] = '\0';
        }
        if (*known == '\0' || *known++ != c[0]) return false;
        if (c[1] != '\0' && (*known == '\0' || *known++ != c[1])) return false;
    }
    return *known == '\0';
}

mox_scan_fn *mox_scan_find(const char *pattern, size_t n)
{
    for (const mox_scan *s = mox_scans; s->name; s++) {
        if (same_pattern(pattern, n, s->pattern)) return s->scan;
    }
    return NULL;
}
