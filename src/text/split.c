/* text/split.c -- the stages of a pre-tokenizer, one feeding the next.
 *
 * I1  at most one stage adds a space, so one buffer is enough for it.
 */
#include "text/split.h"

#include <string.h>

void mox_split_deinit(mox_split *s)
{
    for (int i = 0; i < s->n; i++) {
        mox_regex_destroy(&s->stage[i].regex);
        mox_free(s->stage[i].literal);
    }
    s->n = 0;
}

/* NULL, and a sentence for MOX_E_UNSUPPORTED, when there are too many. */
static mox_split_stage *add_stage(mox_split *s, const char *name, mox_err *err)
{
    if (s->n == MOX_SPLIT_STAGES_MAX) {
        (void)mox_fail(err, MOX_E_UNSUPPORTED, "%s: the pre_tokenizer has more than %d steps", name,
                       (int)MOX_SPLIT_STAGES_MAX);
        return NULL;
    }
    mox_split_stage *stage = &s->stage[s->n++];
    memset(stage, 0, sizeof *stage);
    return stage;
}

mox_status mox_split_add_pattern(mox_split *s, const char *name, const char *pattern, size_t n, mox_err *err)
{
    mox_split_stage *stage = add_stage(s, name, err);
    if (!stage) return MOX_E_UNSUPPORTED;
    stage->scan = mox_scan_find(pattern, n);
    return stage->scan ? MOX_OK : mox_regex_create(&stage->regex, name, pattern, n, err);
}

mox_status mox_split_add_literal(mox_split *s, const char *name, const char *text, size_t n, mox_err *err)
{
    if (n == 0) return mox_fail(err, MOX_E_FORMAT, "%s: a split pattern of the pre_tokenizer is empty", name);
    mox_split_stage *stage = add_stage(s, name, err);
    if (!stage) return MOX_E_UNSUPPORTED;
    stage->literal = mox_strndup(text, n);
    stage->n_literal = n;
    return stage->literal ? MOX_OK : mox_fail_memory(err, n, "a split pattern");
}

mox_status mox_split_add_prefix_space(mox_split *s, const char *name, mox_err *err)
{
    for (int i = 0; i < s->n; i++) {
        if (s->stage[i].prefix_space) {
            return mox_fail(err, MOX_E_UNSUPPORTED, "%s: two pre_tokenizer steps add a space", name);
        }
    }
    mox_split_stage *stage = add_stage(s, name, err);
    if (!stage) return MOX_E_UNSUPPORTED;
    stage->prefix_space = true;
    return MOX_OK;
}

void mox_split_scratch_deinit(mox_split_scratch *s)
{
    mox_regex_match_destroy(&s->match);
    mox_buffer_deinit(&s->spaced);
}

typedef struct run {
    const mox_split *split;
    const mox_unicode *unicode;
    mox_split_scratch *scratch;
    mox_piece_fn *piece;
    void *user;
    mox_err *err;
} run;

static size_t char_length(const unsigned char *p)
{
    uint32_t cp;
    return mox_utf8_next(p, &cp);
}

/* The first match at or after `from`; *begin = *end = n when there is none. */
static mox_status find_match(const run *r, const mox_split_stage *stage, const unsigned char *text, size_t n,
                             size_t from, size_t *begin, size_t *end)
{
    *begin = *end = n;
    if (stage->scan) {
        for (size_t i = from; i < n; i += char_length(text + i)) {
            const size_t length = stage->scan(r->unicode, text + i, n - i);
            if (length == 0) continue;
            *begin = i;
            *end = i + length;
            break;
        }
        return MOX_OK;
    }
    if (stage->literal) {
        const unsigned char *at = memmem(text + from, n - from, stage->literal, stage->n_literal);
        if (at) *end = (*begin = (size_t)(at - text)) + stage->n_literal;
        return MOX_OK;
    }
    return mox_regex_find(stage->regex, r->scratch->match, text, n, from, begin, end, r->err);
}

static mox_status run_stage(const run *r, int i, const unsigned char *text, size_t n);

static mox_status run_spaced(const run *r, int i, const unsigned char *text, size_t n)
{
    if (text[0] == ' ') return run_stage(r, i + 1, text, n);
    mox_buffer *b = &r->scratch->spaced;
    MOX_TRY(mox_buffer_reserve(b, n + 1, 1, "a space in front", r->err));
    unsigned char *spaced = b->data;
    spaced[0] = ' ';
    memcpy(spaced + 1, text, n);
    return run_stage(r, i + 1, spaced, n + 1);
}

static mox_status run_stage(const run *r, int i, const unsigned char *text, size_t n)
{
    if (n == 0) return MOX_OK;
    if (i == r->split->n) return r->piece(r->user, text, n, r->err);
    const mox_split_stage *stage = &r->split->stage[i];
    if (stage->prefix_space) return run_spaced(r, i, text, n);
    if (stage->regex) {
        if (!r->scratch->match) MOX_TRY(mox_regex_match_create(&r->scratch->match, r->err));
        mox_regex_grant(stage->regex, r->scratch->match, n);
    }
    size_t done = 0, from = 0;
    while (from < n) {
        size_t begin, end;
        MOX_TRY(find_match(r, stage, text, n, from, &begin, &end));
        MOX_TRY(run_stage(r, i + 1, text + done, begin - done));
        MOX_TRY(run_stage(r, i + 1, text + begin, end - begin));
        done = end;
        /* an empty match is a border too; the next one must begin later */
        from = end > begin || end == n ? end : end + char_length(text + end);
    }
    return run_stage(r, i + 1, text + done, n - done);
}

mox_status mox_split_run(const mox_split *s, const mox_unicode *u, mox_split_scratch *scratch,
                         const unsigned char *text, size_t n, mox_piece_fn *piece, void *user, mox_err *err)
{
    const run r = {s, u, scratch, piece, user, err};
    return run_stage(&r, 0, text, n);
}
