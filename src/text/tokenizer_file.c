/* text/tokenizer_file.c -- the vocabulary, merges and added tokens of a
 * tokenizer.json, and tokenizer_config.json.
 *
 * Reads what byte-level BPE models use and refuses the rest by name: a setting
 * passed over in silence would change tokens.  Objects are first taken apart into
 * spans because keys may come in any order and merges need the vocabulary.
 */
#include "text/tokenizer_parse.h"

#include "base/plant.h"

#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- vocabulary and merges -------------------------------------------------- */

static mox_status parse_token(const mox_tokenizer_parser *p, mox_json_reader *r, const mox_json_token *key,
                              mox_err *err)
{
    unsigned char bytes[MOX_VOCAB_TEXT_MAX];
    size_t n;
    int64_t id;
    mox_json_token value;
    if (key->n == 0 || key->n > sizeof bytes) {
        return mox_fail(err, MOX_E_FORMAT, "%s: model.vocab has a token of %zu bytes; tokens have 1 to %d", p->name,
                        key->n, (int)MOX_VOCAB_TEXT_MAX);
    }
    MOX_PLANT(key->n > 16);
    const mox_token_kind kind = mox_vocab_unspell(key->text, key->n, bytes, &n);
    MOX_TRY(mox_json_next(r, &value, err));
    if (!mox_json_token_int(&value, &id)) {
        return mox_fail(err, MOX_E_FORMAT, "%s: model.vocab: the id of token \"%.*s\" is not an integer", p->name,
                        n < 60 ? (int)n : 60, (const char *)bytes);
    }
    return mox_vocab_add(&p->t->vocab, p->name, kind, bytes, n, id, err);
}

static mox_status parse_vocab(const mox_tokenizer_parser *p, mox_json_span span, mox_err *err)
{
    mox_json_reader r;
    mox_json_token token = {MOX_JSON_NULL, NULL, 0};
    mox_json_reader_init(&r, span);
    mox_status status = span.text ? mox_json_next(&r, &token, err) : MOX_OK;
    if (status == MOX_OK && token.type != MOX_JSON_OBJECT) {
        status = mox_fail(err, MOX_E_FORMAT, "%s: model.vocab must be an object", p->name);
    }
    while (status == MOX_OK) {
        status = mox_json_next(&r, &token, err);
        if (status != MOX_OK || token.type != MOX_JSON_KEY) break;
        status = parse_token(p, &r, &token, err);
    }
    mox_json_reader_deinit(&r);
    return status;
}

/* A merge under way: the two spellings behind each other. */
typedef struct merge {
    char text[2 * MOX_VOCAB_TEXT_MAX];
    size_t n_left, n;
} merge;

static mox_status add_merge(const mox_tokenizer_parser *p, const merge *m, mox_err *err)
{
    const mox_vocab *v = &p->t->vocab;
    const int32_t left = mox_vocab_find_text(v, m->text, m->n_left);
    const int32_t right = mox_vocab_find_text(v, m->text + m->n_left, m->n - m->n_left);
    const int32_t joined = mox_vocab_find_text(v, m->text, m->n);
    if (left < 0 || right < 0 || joined < 0) {
        const char *which = left < 0 ? "its left token" : right < 0 ? "its right token" : "what they join to";
        return mox_fail(err, MOX_E_FORMAT,
                        "%s: model.merges[%zu] joins \"%.*s\" and \"%.*s\", but %s is not in the "
                        "vocabulary",
                        p->name, p->t->bpe.n_merges, (int)(m->n_left < 60 ? m->n_left : 60), m->text,
                        (int)(m->n - m->n_left < 60 ? m->n - m->n_left : 60), m->text + m->n_left, which);
    }
    return mox_bpe_add_merge(&p->t->bpe, left, right, joined, err);
}

static mox_status bad_merge(const mox_tokenizer_parser *p, mox_err *err)
{
    return mox_fail(err, MOX_E_FORMAT, "%s: model.merges[%zu] is not two tokens: \"A B\" or [\"A\", \"B\"]", p->name,
                    p->t->bpe.n_merges);
}

/* "A B": exactly one space, since a space inside a token is spelled otherwise. */
static mox_status parse_merge_string(const mox_tokenizer_parser *p, const mox_json_token *token, merge *m, mox_err *err)
{
    const char *space = memchr(token->text, ' ', token->n);
    if (token->n >= 8 && memcmp(token->text, "#version", 8) == 0) return MOX_OK; /* a comment of old files */
    if (!space || token->n > sizeof m->text) return bad_merge(p, err);
    m->n_left = (size_t)(space - token->text);
    m->n = token->n - 1;
    if (memchr(space + 1, ' ', m->n - m->n_left)) return bad_merge(p, err);
    memcpy(m->text, token->text, m->n_left);
    memcpy(m->text + m->n_left, space + 1, m->n - m->n_left);
    return add_merge(p, m, err);
}

static mox_status parse_merge_array(const mox_tokenizer_parser *p, mox_json_reader *r, merge *m, mox_err *err)
{
    mox_json_token token;
    m->n = m->n_left = 0;
    for (int i = 0; i < 2; i++) {
        MOX_TRY(mox_json_next(r, &token, err));
        if (token.type != MOX_JSON_STRING || token.n > MOX_VOCAB_TEXT_MAX) return bad_merge(p, err);
        memcpy(m->text + m->n, token.text, token.n);
        m->n_left = m->n;
        m->n += token.n;
    }
    MOX_TRY(mox_json_next(r, &token, err));
    return token.type == MOX_JSON_ARRAY_END ? add_merge(p, m, err) : bad_merge(p, err);
}

static mox_status parse_merges(const mox_tokenizer_parser *p, mox_json_span span, mox_err *err)
{
    mox_json_reader r;
    mox_json_token token = {MOX_JSON_NULL, NULL, 0};
    merge m;
    mox_json_reader_init(&r, span);
    mox_status status = span.text ? mox_json_next(&r, &token, err) : MOX_OK;
    if (status == MOX_OK && token.type != MOX_JSON_ARRAY) {
        status = mox_fail(err, MOX_E_FORMAT, "%s: model.merges must be an array", p->name);
    }
    while (status == MOX_OK) {
        status = mox_json_next(&r, &token, err);
        if (status != MOX_OK || token.type == MOX_JSON_ARRAY_END) break;
        if (token.type == MOX_JSON_STRING)
            status = parse_merge_string(p, &token, &m, err);
        else if (token.type == MOX_JSON_ARRAY)
            status = parse_merge_array(p, &r, &m, err);
        else
            status = bad_merge(p, err);
    }
    mox_json_reader_deinit(&r);
    return status;
}

/* ---- model ------------------------------------------------------------------ */

enum { MODEL_TYPE, MODEL_VOCAB, MODEL_MERGES, MODEL_IGNORE_MERGES, MODEL_DROPOUT, MODEL_PREFIX, MODEL_SUFFIX, N_MODEL };
static const char *const model_names[N_MODEL] = {
    "type", "vocab", "merges", "ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix"};

/* A setting that must be off: null, or an empty string. */
static mox_status must_be_empty(const mox_tokenizer_parser *p, mox_json_span span, const char *what, mox_err *err)
{
    if (mox_json_is_null(span) || (span.n == 2 && memcmp(span.text, "\"\"", 2) == 0)) return MOX_OK;
    return mox_fail(err, MOX_E_UNSUPPORTED, "%s: %s is not supported; it must be null", p->name, what);
}

/* Everything about the model but its tokens. */
static mox_status parse_model_settings(const mox_tokenizer_parser *p, const mox_json_span *f, mox_err *err)
{
    char *type;
    MOX_TRY(mox_json_get_string(f[MODEL_TYPE], "model.type", &type, NULL, err));
    mox_status status = MOX_OK;
    if (type && strcmp(type, "BPE") != 0) { /* old files have no type and are BPE */
        status = mox_fail(err, MOX_E_UNSUPPORTED,
                          "%s: tokenizer model \"%.60s\" is not supported; this version reads "
                          "BPE",
                          p->name, type);
    }
    mox_free(type);
    MOX_TRY(status);
    MOX_TRY(must_be_empty(p, f[MODEL_DROPOUT], "model.dropout", err));
    MOX_TRY(must_be_empty(p, f[MODEL_PREFIX], "model.continuing_subword_prefix", err));
    MOX_TRY(must_be_empty(p, f[MODEL_SUFFIX], "model.end_of_word_suffix", err));
    return mox_json_get_bool(f[MODEL_IGNORE_MERGES], "model.ignore_merges", &p->t->bpe.ignore_merges, err);
}

/* ---- added tokens ----------------------------------------------------------- */

enum {
    ADDED_ID,
    ADDED_CONTENT,
    ADDED_SINGLE_WORD,
    ADDED_LSTRIP,
    ADDED_RSTRIP,
    ADDED_NORMALIZED,
    ADDED_SPECIAL,
    N_ADDED
};

/* Puts the token into the vocabulary, or finds it there with the same id. */
static mox_status place_added(const mox_tokenizer_parser *p, const char *text, size_t n, int64_t id, bool special,
                              mox_err *err)
{
    mox_vocab *v = &p->t->vocab;
    const int32_t known = mox_vocab_find_text(v, text, n);
    if (known < 0) {
        MOX_TRY(mox_vocab_add(v, p->name, MOX_TOKEN_LITERAL, (const unsigned char *)text, n, id, err));
    } else if (known != id || mox_vocab_entry(v, known)->added) {
        return mox_fail(err, MOX_E_FORMAT, "%s: added token \"%.60s\" has id %lld, but it is there already with id %d",
                        p->name, text, (long long)id, (int)known);
    }
    mox_token_entry *entry = (mox_token_entry *)v->entries.data + id;
    entry->added = true;
    entry->special = special;
    return MOX_OK;
}

/* Tokens that are looked for after normalization are normalized themselves.
 * Special ones are always looked for in the text as it is: whether they are seen
 * depends on who wrote that part of it. */
static mox_status match_added(const mox_tokenizer_parser *p, const char *text, size_t n, bool normalized,
                              mox_added_token token, mox_err *err)
{
    const unsigned char *bytes = (const unsigned char *)text;
    if (!normalized || token.special) return mox_added_add(&p->t->added, bytes, n, token, err);
    mox_nfc_scratch scratch = {0};
    mox_status status = p->t->nfc ? mox_nfc(&p->t->unicode, bytes, n, &scratch, &bytes, &n, err) : MOX_OK;
    if (status == MOX_OK) status = mox_added_add(&p->t->added_normalized, bytes, n, token, err);
    mox_nfc_scratch_deinit(&scratch);
    return status;
}

static mox_status parse_added_id(const mox_tokenizer_parser *p, mox_json_span span, int64_t *id, mox_err *err)
{
    const mox_json_token number = {MOX_JSON_NUMBER, span.text, span.n};
    if (span.text && (span.text[0] == '-' || (span.text[0] >= '0' && span.text[0] <= '9')) &&
        mox_json_token_int(&number, id)) {
        return MOX_OK;
    }
    return mox_fail(err, MOX_E_FORMAT, "%s: byte %zu: an added token has no integer as its id", p->name, span.at);
}

static mox_status parse_added_token(void *user, mox_json_span span, mox_err *err)
{
    static const char *const names[N_ADDED] = {"id",     "content",    "single_word", "lstrip",
                                               "rstrip", "normalized", "special"};
    const mox_tokenizer_parser *p = user;
    mox_json_span f[N_ADDED];
    bool flag[N_ADDED] = {false};
    int64_t id = 0;
    MOX_TRY(mox_json_fields(span, "added_tokens", names, N_ADDED, f, err));
    for (int i = ADDED_SINGLE_WORD; i < N_ADDED; i++) MOX_TRY(mox_json_get_bool(f[i], names[i], &flag[i], err));
    MOX_TRY(parse_added_id(p, f[ADDED_ID], &id, err));
    char *text;
    size_t n;
    MOX_TRY(mox_json_get_string(f[ADDED_CONTENT], "added_tokens.content", &text, &n, err));
    mox_status status = MOX_OK;
    if (!text || n > MOX_ADDED_BYTES_MAX) {
        status = mox_fail(err, MOX_E_FORMAT, "%s: added token %lld has %zu bytes; there must be 1 to %d", p->name,
                          (long long)id, n, (int)MOX_ADDED_BYTES_MAX);
    } else if (flag[ADDED_SINGLE_WORD]) {
        status = mox_fail(err, MOX_E_UNSUPPORTED,
                          "%s: added token \"%.60s\" is marked single_word, which is not "
                          "supported",
                          p->name, text);
    } else if (n > 0) { /* the reference passes over empty ones too */
        const mox_added_token token = {(int32_t)id, flag[ADDED_SPECIAL], flag[ADDED_LSTRIP], flag[ADDED_RSTRIP]};
        status = place_added(p, text, n, id, token.special, err);
        if (status == MOX_OK) status = match_added(p, text, n, flag[ADDED_NORMALIZED], token, err);
    }
    mox_free(text);
    return status;
}

/* ---- files ------------------------------------------------------------------ */

enum { FILE_MODEL, FILE_ADDED, FILE_NORMALIZER, FILE_PRE_TOKENIZER, FILE_POST_PROCESSOR, FILE_DECODER, N_FILE };

/* Finds the parts of the file.  The model, nearly all of it, is taken apart in
 * the same pass. */
static mox_status find_parts(mox_json_reader *r, mox_json_span *parts, mox_json_span *model, mox_err *err)
{
    static const char *const names[N_FILE] = {"model",         "added_tokens",   "normalizer",
                                              "pre_tokenizer", "post_processor", "decoder"};
    mox_json_token token;
    uint32_t seen = 0;
    int i = 0;
    for (int k = 0; k < N_FILE; k++) parts[k] = (mox_json_span){.name = r->in.name};
    MOX_TRY(mox_json_next(r, &token, err));
    while (token.type == MOX_JSON_OBJECT) {
        MOX_TRY(mox_json_field(r, names, N_FILE, &seen, &i, err));
        if (i < 0) break;
        if (i == FILE_MODEL)
            MOX_TRY(mox_json_read_fields(r, "model", model_names, N_MODEL, model, err));
        else
            MOX_TRY(mox_json_skip(r, &parts[i], err));
    }
    if (!(seen >> FILE_MODEL & 1)) {
        return mox_fail(err, MOX_E_FORMAT, "%s: there is no model, so this is no tokenizer.json", r->in.name);
    }
    return mox_json_next(r, &token, err); /* nothing may follow */
}

mox_status mox_tokenizer_parse(mox_tokenizer *t, const char *name, const char *text, size_t n, mox_err *err)
{
    mox_tokenizer_parser p = {.t = t, .name = name, .template_bos = -1};
    mox_json_span f[N_FILE], model[N_MODEL];
    mox_json_reader r;
    mox_json_reader_init(&r, (mox_json_span){name, text, n, 0});
    const mox_status found = find_parts(&r, f, model, err);
    mox_json_reader_deinit(&r);
    MOX_TRY(found);
    MOX_TRY(parse_model_settings(&p, model, err));
    MOX_TRY(mox_parse_normalizer(&p, f[FILE_NORMALIZER], err));
    MOX_TRY(mox_parse_pre_tokenizer(&p, f[FILE_PRE_TOKENIZER], err));
    if (!p.byte_level) {
        return mox_fail(err, MOX_E_UNSUPPORTED,
                        "%s: the pre_tokenizer has no ByteLevel step; this version reads "
                        "byte-level BPE tokenizers",
                        name);
    }
    MOX_TRY(mox_parse_decoder(&p, f[FILE_DECODER], err));
    MOX_TRY(parse_vocab(&p, model[MODEL_VOCAB], err));
    MOX_TRY(parse_merges(&p, model[MODEL_MERGES], err));
    MOX_TRY(mox_unicode_init(&t->unicode, err)); /* added tokens may have to be normalized */
    if (!mox_json_is_null(f[FILE_ADDED])) {
        MOX_TRY(mox_json_each(f[FILE_ADDED], "added_tokens", parse_added_token, &p, err));
    }
    MOX_TRY(mox_parse_post_processor(&p, f[FILE_POST_PROCESSOR], err));
    t->bos_id = p.template_bos;
    t->adds_bos = p.template_bos >= 0;
    return mox_bpe_finish(&t->bpe, &t->vocab, name, err);
}

/* A token named in tokenizer_config.json: TEXT, {"content": TEXT} or null.  One
 * that the vocabulary does not have is as good as none. */
static mox_status parse_named_token(const mox_tokenizer *t, mox_json_span span, const char *what, int32_t *id,
                                    mox_err *err)
{
    static const char *const names[] = {"content"};
    if (!mox_json_is_null(span) && span.text[0] == '{') MOX_TRY(mox_json_fields(span, what, names, 1, &span, err));
    char *text;
    size_t n;
    MOX_TRY(mox_json_get_string(span, what, &text, &n, err));
    if (text) *id = mox_vocab_find_text(&t->vocab, text, n);
    mox_free(text);
    return MOX_OK;
}

mox_status mox_tokenizer_parse_config(mox_tokenizer *t, const char *name, const char *text, size_t n, mox_err *err)
{
    static const char *const names[] = {"eos_token", "bos_token", "add_bos_token"};
    mox_json_span f[COUNT(names)];
    MOX_TRY(mox_json_fields((mox_json_span){name, text, n, 0}, "the file", names, COUNT(names), f, err));
    const int32_t template_bos = t->bos_id;
    MOX_TRY(parse_named_token(t, f[0], "eos_token", &t->eos_id, err));
    MOX_TRY(parse_named_token(t, f[1], "bos_token", &t->bos_id, err));
    if (template_bos >= 0) t->bos_id = template_bos; /* what the reference puts in front */
    MOX_TRY(mox_json_get_bool(f[2], "add_bos_token", &t->adds_bos, err));
    if (t->adds_bos && t->bos_id < 0) {
        return mox_fail(err, MOX_E_FORMAT, "%s: add_bos_token is true, but bos_token is no token of the vocabulary",
                        name);
    }
    return MOX_OK;
}
