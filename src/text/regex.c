/* text/regex.c -- translation of split patterns and matching with limits.
 *
 * PCRE2 limits the backtracking of one attempt, and neither the attempts nor the
 * characters that a repetition runs over.  So every pattern is compiled with a
 * callout in front of each of its items, none of which may be optimized away: the
 * calls and the distances between their places are the steps that are counted.
 */
#include "text/regex.h"

#include "base/alloc.h"
#include "base/buffer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

enum { STEPS_ANYWAY = 1000000, STEPS_PER_BYTE = 64, MATCH_DEPTH_MAX = 100000, MATCH_HEAP_KIB_MAX = 65536 };

struct mox_regex {
    pcre2_general_context *memory;
    pcre2_code *code;
    size_t n_pattern;
};

struct mox_regex_match {
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_match_data *data;
    int64_t steps_left;
    size_t place; /* where the last step was */
};

/* ---- translation ------------------------------------------------------------ */

typedef struct translator {
    const char *name; /* of the file */
    const char *in;
    size_t n, pos;
    mox_buffer out;
    size_t n_out;
    bool in_class;
    mox_err *err;
} translator;

static mox_status refuse(const translator *t, const char *what)
{
    return mox_fail(t->err, MOX_E_UNSUPPORTED,
                    "%s: a split pattern of the pre_tokenizer uses %s at its byte %zu, "
                    "which this version cannot read the way the reference does",
                    t->name, what, t->pos);
}

static mox_status put(translator *t, const char *text, size_t n)
{
    MOX_TRY(mox_buffer_reserve(&t->out, t->n_out + n, 1, "a split pattern", t->err));
    memcpy((char *)t->out.data + t->n_out, text, n);
    t->n_out += n;
    return MOX_OK;
}

static bool follows(const translator *t, const char *text)
{
    const size_t n = strlen(text);
    return t->n - t->pos >= n && memcmp(t->in + t->pos, text, n) == 0;
}

/* \p{Name}: names of two letters are general categories, longer ones scripts;
 * PCRE2 would take a bare script name for its extensions. */
static mox_status translate_property(translator *t)
{
    const char *name = t->in + t->pos + 2;
    const char *close = follows(t, "\\p{") || follows(t, "\\P{") ? memchr(name, '}', t->n - t->pos - 2) : NULL;
    if (!close) return refuse(t, "a property without braces");
    name++;
    const bool negated = *name == '^';
    const size_t length = (size_t)(close - name) - negated;
    MOX_TRY(put(t, t->in + t->pos, (size_t)(name - (t->in + t->pos)) + negated));
    if (length > 2) MOX_TRY(put(t, "sc:", 3));
    MOX_TRY(put(t, name + negated, length + 1));
    t->pos += (size_t)(close + 1 - (t->in + t->pos));
    return MOX_OK;
}

static mox_status translate_escape(translator *t)
{
    if (t->n - t->pos < 2) return refuse(t, "a backslash at the end");
    const char c = t->in[t->pos + 1];
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == 'p' || c == 'P') return translate_property(t);
    /* \s of PCRE2 has U+180E, which is no White_Space */
    if (c == 's' || c == 'S') {
        t->pos += 2;
        return c == 's' ? put(t, "\\p{White_Space}", 15) : put(t, "\\P{White_Space}", 15);
    }
    if (word && !strchr("rntfaedD", c) && !follows(t, "\\x{")) {
        const char what[] = {'\\', c, '\0'};
        return refuse(t, what);
    }
    const char *close = c == 'x' ? memchr(t->in + t->pos, '}', t->n - t->pos) : NULL;
    const size_t length = close ? (size_t)(close + 1 - (t->in + t->pos)) : 2;
    MOX_TRY(put(t, t->in + t->pos, length));
    t->pos += length;
    return MOX_OK;
}

static mox_status check_group(const translator *t)
{
    static const char *const known[] = {"(?:", "(?i:", "(?!", "(?=", "(?<!", "(?<=", "(?>"};
    if (!follows(t, "(?") && !follows(t, "(*")) return MOX_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (follows(t, known[i])) return MOX_OK;
    }
    return refuse(t, "a special group");
}

/* Where characters of a repetition are missing, those before them are not counted as
 * steps. */
static bool is_long_repetition(const translator *t)
{
    size_t end = t->pos + 1;
    if (t->in[t->pos] != '{') return false;
    while (end < t->n && t->in[end] >= '0' && t->in[end] <= '9') end++;
    return end - t->pos > 4;
}

static mox_status translate_char(translator *t)
{
    const char c = t->in[t->pos];
    if (c == '\\') return translate_escape(t);
    if (t->in_class) {
        if (c == '[') return refuse(t, "a set inside a set");
        if (follows(t, "&&")) return refuse(t, "the intersection of sets");
        t->in_class = c != ']';
    } else if (c == '[') {
        const size_t length = follows(t, "[^") ? 2 : 1;
        t->in_class = true;
        MOX_TRY(put(t, t->in + t->pos, length));
        t->pos += length;
        return t->pos < t->n && t->in[t->pos] == ']' ? refuse(t, "a set that begins with ']'") : MOX_OK;
    } else {
        MOX_TRY(check_group(t));
        if (c == '^' || c == '$') return refuse(t, "a line anchor");
        if (follows(t, "{,")) return refuse(t, "a repetition without a lower bound");
        if (is_long_repetition(t)) return refuse(t, "a repetition of 1000 times or more");
        if (follows(t, "}+")) return refuse(t, "'+' after a repetition");
    }
    t->pos++;
    return put(t, &c, 1);
}

/* ---- life cycle ------------------------------------------------------------- */

static void *regex_malloc(size_t bytes, void *user)
{
    (void)user;
    return mox_alloc(bytes);
}

static void regex_free(void *p, void *user)
{
    (void)user;
    mox_free(p);
}

static mox_status compile(mox_regex *r, const translator *t)
{
    r->memory = pcre2_general_context_create(regex_malloc, regex_free, NULL);
    pcre2_compile_context *compile_context = r->memory ? pcre2_compile_context_create(r->memory) : NULL;
    if (!compile_context) return mox_fail_memory(t->err, 0, "a split pattern");
    pcre2_set_newline(compile_context, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE at = 0;
    r->n_pattern = t->n_out;
    r->code = pcre2_compile(t->out.data, t->n_out,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT |
                                PCRE2_NO_START_OPTIMIZE,
                            &code, &at, compile_context);
    pcre2_compile_context_free(compile_context);
    if (r->code) return MOX_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED) return mox_fail_memory(t->err, 0, "a split pattern");
    PCRE2_UCHAR text[128] = "";
    (void)pcre2_get_error_message(code, text, sizeof text);
    return mox_fail(t->err, MOX_E_FORMAT, "%s: a split pattern of the pre_tokenizer does not compile: %s", t->name,
                    (const char *)text);
}

mox_status mox_regex_create(mox_regex **out, const char *name, const char *pattern, size_t n, mox_err *err)
{
    translator t = {.name = name, .in = pattern, .n = n, .err = err};
    *out = NULL;
    mox_status status = mox_buffer_reserve(&t.out, 1, 1, "a split pattern", err);
    while (status == MOX_OK && t.pos < n) status = translate_char(&t);
    mox_regex *r = NULL;
    if (status == MOX_OK) {
        r = mox_alloc_array(1, sizeof *r);
        status = r ? compile(r, &t) : mox_fail_memory(err, sizeof *r, "a split pattern");
    }
    mox_buffer_deinit(&t.out);
    if (status != MOX_OK) mox_regex_destroy(&r);
    *out = r;
    return status;
}

void mox_regex_destroy(mox_regex **r)
{
    if (!*r) return;
    pcre2_code_free((*r)->code);
    pcre2_general_context_free((*r)->memory);
    mox_free(*r);
    *r = NULL;
}

/* ---- matching --------------------------------------------------------------- */

static int count_step(pcre2_callout_block *block, void *user)
{
    mox_regex_match *m = user;
    const size_t place = block->current_position;
    m->steps_left -= 1 + (int64_t)(place > m->place ? place - m->place : m->place - place);
    m->place = place;
    return m->steps_left < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
}

mox_status mox_regex_match_create(mox_regex_match **out, mox_err *err)
{
    mox_regex_match *m = mox_alloc_array(1, sizeof *m);
    if (m) m->memory = pcre2_general_context_create(regex_malloc, regex_free, NULL);
    if (m && m->memory) m->data = pcre2_match_data_create(1, m->memory);
    if (m && m->data) m->limits = pcre2_match_context_create(m->memory);
    *out = m;
    if (!m || !m->limits) {
        mox_regex_match_destroy(out);
        return mox_fail_memory(err, sizeof *m, "matching a split pattern");
    }
    m->steps_left = STEPS_ANYWAY;
    pcre2_set_match_limit(m->limits, UINT32_MAX); /* steps are counted instead */
    pcre2_set_depth_limit(m->limits, MATCH_DEPTH_MAX);
    pcre2_set_heap_limit(m->limits, MATCH_HEAP_KIB_MAX);
    pcre2_set_callout(m->limits, count_step, m);
    return MOX_OK;
}

void mox_regex_match_destroy(mox_regex_match **m)
{
    if (!*m) return;
    pcre2_match_context_free((*m)->limits);
    pcre2_match_data_free((*m)->data);
    pcre2_general_context_free((*m)->memory);
    mox_free(*m);
    *m = NULL;
}

/* An attempt whose alternatives all fail at once takes no more than a step for each
 * byte of the pattern; what comes on top is backtracking, and attempts that run far
 * into the text. */
void mox_regex_grant(const mox_regex *r, mox_regex_match *m, size_t n)
{
    m->steps_left += (int64_t)(n * (STEPS_PER_BYTE + r->n_pattern));
}

mox_status mox_regex_find(const mox_regex *r, mox_regex_match *m, const unsigned char *text, size_t n, size_t from,
                          size_t *begin, size_t *end, mox_err *err)
{
    m->place = from;
    const int found = pcre2_match(r->code, text, n, from, PCRE2_NO_UTF_CHECK, m->data, m->limits);
    *begin = *end = n;
    if (found >= 0) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
        *begin = span[0];
        *end = span[1];
        return MOX_OK;
    }
    switch (found) {
    case PCRE2_ERROR_NOMATCH: return MOX_OK;
    case PCRE2_ERROR_NOMEMORY: return mox_fail_memory(err, 0, "matching a split pattern");
    case PCRE2_ERROR_MATCHLIMIT:
    case PCRE2_ERROR_DEPTHLIMIT:
    case PCRE2_ERROR_HEAPLIMIT:
        return mox_fail(err, MOX_E_LIMIT,
                        "the split pattern of this model's tokenizer is not one that moxie has a scanner for, and it "
                        "is too slow for this text: shorten the long runs of like characters in it");
    default: return mox_fail(err, MOX_E_UNSUPPORTED, "the tokenizer's split pattern fails on this text (%d)", found);
    }
}
