/* text/tokenizer.c -- text to ids: added tokens, normalization, splitting, merging.
 *
 * The order is that of the reference.  Added tokens cut the text first; each rest
 * is normalized, cut again at tokens that are looked for after normalization,
 * split into pieces, and every piece is merged.  Bytes that are not UTF-8 pass
 * normalization untouched and then are one piece each.
 *
 * A tokenizer is only read here; all working storage belongs to the call.
 */
#include "text/tokenizer_internal.h"

#include "base/alloc.h"
#include "base/file.h"

#include <string.h>

enum { FILE_BYTES_MAX = 1 << 28, TEXT_BYTES_MAX = 1 << 30 };

/* ---- life cycle ------------------------------------------------------------- */

void mox_tokenizer_close(mox_tokenizer **t)
{
    if (!t || !*t) return;
    mox_unicode_deinit(&(*t)->unicode);
    mox_vocab_deinit(&(*t)->vocab);
    mox_bpe_deinit(&(*t)->bpe);
    mox_added_deinit(&(*t)->added);
    mox_added_deinit(&(*t)->added_normalized);
    mox_split_deinit(&(*t)->split);
    mox_free(*t);
    *t = NULL;
}

static mox_status open_texts(mox_tokenizer **out, const char *name, const char *text, size_t n, const char *config_name,
                             const char *config, size_t n_config, mox_err *err)
{
    mox_tokenizer *t = mox_alloc_array(1, sizeof *t);
    *out = NULL;
    if (!t) return mox_fail_memory(err, sizeof *t, "the tokenizer");
    t->bos_id = t->eos_id = -1;
    mox_status status = mox_tokenizer_parse(t, name, text, n, err);
    if (status == MOX_OK && config) status = mox_tokenizer_parse_config(t, config_name, config, n_config, err);
    if (status != MOX_OK) mox_tokenizer_close(&t);
    *out = t;
    return status;
}

mox_status mox_tokenizer_open_memory(mox_tokenizer **out, const char *name, const char *text, size_t n,
                                     const char *config, size_t n_config, mox_err *err)
{
    return open_texts(out, name, text, n, name, config, n_config, err);
}

mox_status mox_tokenizer_open(mox_tokenizer **out, const char *dir, mox_err *err)
{
    char *path = mox_path_join(dir, "tokenizer.json"), *config_path = mox_path_join(dir, "tokenizer_config.json");
    char *text = NULL, *config = NULL;
    size_t n = 0, n_config = 0;
    *out = NULL;
    mox_status status = path && config_path ? MOX_OK : mox_fail_memory(err, strlen(dir), "a path");
    if (status == MOX_OK) status = mox_file_slurp(path, FILE_BYTES_MAX, &text, &n, err);
    if (status == MOX_OK && mox_path_exists(config_path)) {
        status = mox_file_slurp(config_path, FILE_BYTES_MAX, &config, &n_config, err);
    }
    if (status == MOX_OK) status = open_texts(out, path, text, n, config_path, config, n_config, err);
    mox_free(config);
    mox_free(text);
    mox_free(config_path);
    mox_free(path);
    return status;
}

/* ---- answers ---------------------------------------------------------------- */

static const mox_token_entry *entry_of(const mox_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->vocab.n_ids) return NULL;
    const mox_token_entry *e = mox_vocab_entry(&t->vocab, id);
    return e->kind == MOX_TOKEN_NONE ? NULL : e;
}

int32_t mox_tokenizer_size(const mox_tokenizer *t) { return t->vocab.n_ids; }
int32_t mox_tokenizer_eos_id(const mox_tokenizer *t) { return t->eos_id; }
int32_t mox_tokenizer_bos_id(const mox_tokenizer *t) { return t->bos_id; }
bool mox_tokenizer_adds_bos(const mox_tokenizer *t) { return t->adds_bos; }

int32_t mox_tokenizer_added_id(const mox_tokenizer *t, const char *content)
{
    const int32_t id = mox_vocab_find_text(&t->vocab, content, strlen(content));
    return id >= 0 && mox_vocab_entry(&t->vocab, id)->added ? id : -1;
}

const char *mox_tokenizer_bytes(const mox_tokenizer *t, int32_t id, size_t *n)
{
    const mox_token_entry *e = entry_of(t, id);
    *n = e ? e->n : 0;
    return e ? (const char *)mox_vocab_bytes(&t->vocab, e) : NULL;
}

bool mox_tokenizer_is_special(const mox_tokenizer *t, int32_t id)
{
    const mox_token_entry *e = entry_of(t, id);
    return e && e->special;
}

int32_t mox_stop_id(const mox_generation *g, const mox_tokenizer *t, int32_t i)
{
    if (i < g->n_stop_ids) return g->stop_ids[i];
    if (i > g->n_stop_ids || !t) return -1;
    for (int32_t j = 0; j < g->n_stop_ids; j++) {
        if (g->stop_ids[j] == t->eos_id) return -1;
    }
    return t->eos_id;
}

bool mox_is_stop(const mox_generation *g, const mox_tokenizer *t, int32_t id)
{
    int32_t stop;
    for (int32_t i = 0; (stop = mox_stop_id(g, t, i)) >= 0; i++) {
        if (stop == id) return true;
    }
    return false;
}

/* ---- encoding --------------------------------------------------------------- */

typedef struct encoder {
    const mox_tokenizer *t;
    mox_tokens *out;
    mox_nfc_scratch nfc;
    mox_split_scratch split;
    mox_bpe_scratch bpe;
} encoder;

void mox_tokens_free(mox_tokens *t)
{
    mox_free(t->ids);
    *t = (mox_tokens){0};
}

static mox_status append(mox_tokens *out, const int32_t *ids, size_t n, mox_err *err)
{
    mox_buffer b = {out->ids, (size_t)out->capacity};
    MOX_TRY(mox_buffer_reserve(&b, (size_t)out->n + n, sizeof *ids, "token ids", err));
    out->ids = b.data;
    out->capacity = (int64_t)b.capacity;
    memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += (int64_t)n;
    return MOX_OK;
}

static mox_status encode_piece(void *user, const unsigned char *piece, size_t n, mox_err *err)
{
    encoder *e = user;
    const int32_t *ids;
    size_t n_ids;
    MOX_TRY(mox_bpe_encode(&e->t->bpe, &e->bpe, piece, n, &ids, &n_ids, err));
    return append(e->out, ids, n_ids, err);
}

/* Text without added tokens: what is UTF-8 in runs, the rest byte by byte. */
static mox_status encode_plain(encoder *e, const unsigned char *text, size_t n, mox_err *err)
{
    size_t i = 0;
    while (i < n) {
        const size_t run = mox_utf8_valid_prefix(text + i, n - i);
        if (run > 0) {
            MOX_TRY(mox_split_run(&e->t->split, &e->t->unicode, &e->split, text + i, run, encode_piece, e, err));
        }
        i += run;
        if (i < n && run == 0) MOX_TRY(append(e->out, &e->t->bpe.byte_id[text[i++]], 1, err));
    }
    return MOX_OK;
}

typedef mox_status gap_fn(encoder *e, const unsigned char *text, size_t n, mox_err *err);

/* Emits the added tokens of a set and hands the text between them on. */
static mox_status encode_added(encoder *e, const mox_added_set *set, const unsigned char *text, size_t n,
                               mox_plain_spans *plain, gap_fn *gap, mox_err *err)
{
    size_t done = 0, begin, end;
    const mox_added_token *token;
    while (mox_added_find(set, &e->t->unicode, text, n, done, plain, &token, &begin, &end)) {
        if (begin > done) MOX_TRY(gap(e, text + done, begin - done, err));
        MOX_TRY(append(e->out, &token->id, 1, err));
        done = end;
    }
    return n > done ? gap(e, text + done, n - done, err) : MOX_OK;
}

static mox_status encode_gap(encoder *e, const unsigned char *text, size_t n, mox_err *err)
{
    mox_plain_spans none = {0};
    if (e->t->nfc) MOX_TRY(mox_nfc(&e->t->unicode, text, n, &e->nfc, &text, &n, err));
    return encode_added(e, &e->t->added_normalized, text, n, &none, encode_plain, err);
}

mox_status mox_tokenizer_encode_mixed(const mox_tokenizer *t, const char *text, size_t n, const mox_text_span *plain,
                                      size_t n_plain, mox_tokens *out, mox_err *err)
{
    if (n > TEXT_BYTES_MAX) {
        return mox_fail(err, MOX_E_ARG, "a text of %zu bytes is too long to tokenize; the most is %d", n,
                        (int)TEXT_BYTES_MAX);
    }
    for (size_t i = 0; i < n_plain; i++) {
        if (plain[i].begin > plain[i].end || plain[i].end > n || (i > 0 && plain[i].begin < plain[i - 1].end)) {
            return mox_fail(err, MOX_E_ARG, "plain span %zu is not inside the text and behind the one before", i);
        }
    }
    encoder e = {.t = t, .out = out};
    mox_plain_spans spans = {plain, n_plain, 0};
    const int64_t n_before = out->n;
    const mox_status status =
        n == 0 ? MOX_OK : encode_added(&e, &t->added, (const unsigned char *)text, n, &spans, encode_gap, err);
    mox_nfc_scratch_deinit(&e.nfc);
    mox_split_scratch_deinit(&e.split);
    mox_bpe_scratch_deinit(&e.bpe);
    if (status != MOX_OK) out->n = n_before;
    return status;
}

mox_status mox_tokenizer_encode(const mox_tokenizer *t, const char *text, size_t n, unsigned flags, mox_tokens *out,
                                mox_err *err)
{
    const mox_text_span all = {0, n};
    return mox_tokenizer_encode_mixed(t, text, n, &all, flags & MOX_ENCODE_SPECIAL ? 0 : 1, out, err);
}
