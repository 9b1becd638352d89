/* text/prompt.c -- a prompt's token ids, with those of an earlier prompt where they still hold.
 *
 * A model need not have sampled the ids that an encoder would choose for the same text.  So
 * the prompt is encoded afresh, and then, as far as an earlier timeline of ids spells the
 * same bytes with the same special tokens, that timeline is taken instead.  Both are cut at
 * the edge of a special token: nothing merges across one, so the halves fit. */
#include "moxie/chat.h"

#include "base/err.h"
#include "base/buffer.h"

#include <string.h>

/* Whether two lists of ids spell the same bytes. */
static bool same_bytes(const mox_tokenizer *t, const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    const char *p = NULL, *q = NULL;
    size_t left_p = 0, left_q = 0;
    for (;;) {
        while (left_p == 0 && n_a > 0) p = mox_tokenizer_bytes(t, *a++, &left_p), n_a--;
        while (left_q == 0 && n_b > 0) q = mox_tokenizer_bytes(t, *b++, &left_q), n_b--;
        if (left_p == 0 || left_q == 0) return left_p == left_q;
        const size_t n = left_p < left_q ? left_p : left_q;
        if (memcmp(p, q, n) != 0) return false;
        p += n, left_p -= n;
        q += n, left_q -= n;
    }
}

/* Ids from i on that are not special. */
static int64_t plain_run(const mox_tokenizer *t, const int32_t *ids, int64_t i, int64_t n)
{
    int64_t end = i;
    while (end < n && !mox_tokenizer_is_special(t, ids[end])) end++;
    return end - i;
}

/* The longest beginnings of both lists that spell the same and end at a special token's edge. */
static void common_part(const mox_tokenizer *t, const mox_tokens *fresh, const int32_t *known, int64_t n_known,
                        int64_t *n_fresh_same, int64_t *n_known_same)
{
    int64_t i = 0, k = 0;
    for (;;) {
        const int64_t run = plain_run(t, fresh->ids, i, fresh->n), known_run = plain_run(t, known, k, n_known);
        if (!same_bytes(t, fresh->ids + i, run, known + k, known_run)) break;
        i += run;
        k += known_run;
        if (i == fresh->n || k == n_known || fresh->ids[i] != known[k]) break;
        i++;
        k++;
    }
    *n_fresh_same = i;
    *n_known_same = k;
}

static int64_t bytes_of(const mox_tokenizer *t, const int32_t *ids, int64_t n_ids)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < n_ids; i++) {
        size_t n;
        (void)mox_tokenizer_bytes(t, ids[i], &n);
        bytes += (int64_t)n;
    }
    return bytes;
}

/* How many of ids end within the first `bytes` bytes. */
static int64_t ids_within(const mox_tokenizer *t, const int32_t *ids, int64_t n_ids, int64_t bytes)
{
    int64_t i = 0;
    for (; i < n_ids; i++) {
        size_t n;
        (void)mox_tokenizer_bytes(t, ids[i], &n);
        bytes -= (int64_t)n;
        if (bytes < 0) break;
    }
    return i;
}

/* The ids of the prompt's first n bytes. */
static mox_status encode_part(const mox_tokenizer *t, const mox_prompt *p, size_t n, mox_tokens *out, mox_err *err)
{
    size_t n_plain = 0;
    while (n_plain < p->n_plain && p->plain[n_plain].begin < n) n_plain++;
    if (n_plain > 0 && p->plain[n_plain - 1].end > n) n = p->plain[--n_plain].begin; /* whole spans only */
    return mox_tokenizer_encode_mixed(t, p->text, n, p->plain, n_plain, out, err);
}

/* Which bytes of the ids are before the part that only this prompt has.  Both encodings are
 * compared, because ids may straddle the border, and normalization may move it. */
static mox_status bytes_before(const mox_tokenizer *t, const mox_prompt *p, const mox_tokens *fresh, int64_t *bytes, mox_err *err)
{
    mox_tokens before = {0};
    const mox_status status = encode_part(t, p, p->generation_at, &before, err);
    int64_t same = 0;
    while (same < before.n && same < fresh->n && before.ids[same] == fresh->ids[same]) same++;
    *bytes = bytes_of(t, fresh->ids, same);
    mox_tokens_free(&before);
    return status;
}

static mox_status append(mox_tokens *out, const int32_t *ids, int64_t n, mox_err *err)
{
    mox_buffer b = {out->ids, (size_t)out->capacity};
    MOX_TRY(mox_buffer_reserve(&b, (size_t)(out->n + n), sizeof *ids, "token ids", err));
    out->ids = b.data;
    out->capacity = (int64_t)b.capacity;
    if (n > 0) memcpy(out->ids + out->n, ids, (size_t)n * sizeof *ids);
    out->n += n;
    return MOX_OK;
}

mox_status mox_prompt_encode(const mox_tokenizer *t, const mox_prompt *p, const int32_t *known, int64_t n_known,
                             mox_tokens *out, int64_t *n_before, mox_err *err)
{
    mox_tokens fresh = {0};
    int64_t fresh_same = 0, known_same = 0, bytes = 0;
    const int64_t begun = out->n;
    mox_status status = mox_tokenizer_encode_mixed(t, p->text, p->n, p->plain, p->n_plain, &fresh, err);
    if (status == MOX_OK && n_before) status = bytes_before(t, p, &fresh, &bytes, err);
    if (status == MOX_OK && fresh.n > 0) { /* an empty list has no address to count from */
        if (n_known > 0) common_part(t, &fresh, known, n_known, &fresh_same, &known_same);
        status = append(out, known, known_same, err);
        if (status == MOX_OK) status = append(out, fresh.ids + fresh_same, fresh.n - fresh_same, err);
        if (status != MOX_OK) out->n = begun;
    }
    if (status == MOX_OK && n_before) *n_before = out->n > begun ? ids_within(t, out->ids + begun, out->n - begun, bytes) : 0;
    mox_tokens_free(&fresh);
    return status;
}
