/* text/token_trie.c -- builds the tries of a vocabulary. */
#include "text/token_trie.h"

#include "base/alloc.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const char *text;
    size_t n;
    int32_t id;
} entry;

static int compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    if (order != 0) return order;
    return x->n != y->n ? (x->n > y->n) - (x->n < y->n) : (x->id > y->id) - (x->id < y->id);
}

static int kind_of(const entry *e, unsigned char *chars)
{
    const unsigned char *p = (const unsigned char *)e->text, *end = p + e->n;
    int kind = MOX_TOKEN_PLAIN | MOX_TOKEN_COMMON;
    uint32_t c, n = 0;
    if (e->n > MOX_TRIE_PLAIN_MAX || mox_utf8_valid_prefix(p, e->n) != e->n) return 0;
    for (; p < end; n++) {
        p += mox_utf8_next(p, &c);
        if (c < 0x20 || c == '"' || c == '\\') return 0;
        if (!mox_char_is_common(c)) kind = MOX_TOKEN_PLAIN;
    }
    *chars = (unsigned char)n;
    return kind;
}

/* Adds the bytes of a token behind those that it shares with the one before. */
static mox_status add_token(mox_trie *t, const entry *e, size_t shared, uint32_t *path, mox_err *err)
{
    if (t->n + e->n > MOX_TRIE_NODES_MAX)
        return mox_fail(err, MOX_E_LIMIT, "the tokens of this vocabulary are too long");
    MOX_TRY(mox_buffer_reserve(&t->nodes, t->n + e->n, sizeof(mox_trie_node), "the tokens", err));
    mox_trie_node *nodes = t->nodes.data;
    for (size_t i = shared; i < e->n; i++) {
        path[i] = t->n;
        nodes[t->n++] =
            (mox_trie_node){.byte = (unsigned char)e->text[i], .token = MOX_TRIE_NO_TOKEN, .depth = i & MOX_TRIE_PLAIN_MAX};
    }
    nodes[path[e->n - 1]].token = (uint32_t)e->id & 0xFFFFFF;
    return MOX_OK;
}

typedef struct builder {
    const entry *entries; /* sorted */
    size_t n;
    const unsigned char *kinds;
    uint32_t *path;
} builder;

/* From the leaves up, because a branch is one of words when all of its branches begin so and are. */
static void mark_words(mox_trie *t)
{
    mox_trie_node *nodes = t->nodes.data;
    for (uint32_t i = t->n; i-- > 0;) {
        bool word = true;
        for (uint32_t k = i + 1; word && k < nodes[i].end; k = nodes[k].end) word = nodes[k].word && mox_byte_is_word(nodes[k].byte);
        nodes[i].word = word;
    }
}

/* Tokens whose kind is `is` where the bits of `mask` are concerned. */
static mox_status build(mox_trie *t, const builder *b, int mask, int is, mox_err *err)
{
    const entry *before = NULL;
    uint32_t *path = b->path;
    for (size_t i = 0; i <= b->n; i++) {
        const entry *e = i < b->n ? &b->entries[i] : NULL;
        if (e && (b->kinds[e->id] & mask) != is) continue;
        size_t shared = 0;
        if (e && before) {
            while (shared < before->n && shared < e->n - 1 && before->text[shared] == e->text[shared]) shared++;
        }
        mox_trie_node *nodes = t->nodes.data;
        for (size_t k = before ? before->n : 0; k-- > shared;) nodes[path[k]].end = t->n & 0xFFFFFF;
        if (e) MOX_TRY(add_token(t, e, shared, path, err));
        before = e;
    }
    mark_words(t);
    return MOX_OK;
}

static mox_status collect(mox_token_trie *t, entry *entries, size_t *n, mox_err *err)
{
    for (int32_t id = 0; id < t->n_tokens; id++) {
        entry e = {.id = id};
        e.text = mox_tokenizer_bytes(t->tokenizer, id, &e.n);
        if (!e.text || e.n == 0) continue;
        if (e.n > t->longest) t->longest = e.n;
        if (mox_tokenizer_is_special(t->tokenizer, id))
            t->special[t->n_special++] = id;
        else
            entries[(*n)++] = e;
    }
    if (*n == 0) return mox_fail(err, MOX_E_ARG, "the tokenizer has no tokens");
    qsort(entries, *n, sizeof *entries, compare);
    return MOX_OK;
}

static mox_status build_all(mox_token_trie *t, entry *entries, mox_err *err)
{
    size_t n = 0;
    MOX_TRY(collect(t, entries, &n, err));
    uint32_t *path = mox_alloc_array(t->longest, sizeof *path);
    if (!path) return mox_fail_memory(err, t->longest * sizeof *path, "the tokens");
    for (size_t i = 0; i < n; i++)
        t->kinds[entries[i].id] = (unsigned char)kind_of(&entries[i], &t->chars[entries[i].id]);
    const builder b = {entries, n, t->kinds, path};
    mox_status status = build(&t->all, &b, 0, 0, err);
    if (status == MOX_OK) status = build(&t->plain, &b, MOX_TOKEN_PLAIN, MOX_TOKEN_PLAIN, err);
    if (status == MOX_OK) status = build(&t->rest, &b, MOX_TOKEN_PLAIN, 0, err);
    if (status == MOX_OK) status = build(&t->uncommon, &b, MOX_TOKEN_PLAIN | MOX_TOKEN_COMMON, MOX_TOKEN_PLAIN, err);
    mox_free(path);
    return status;
}

mox_status mox_token_trie_create(mox_token_trie **out, const mox_tokenizer *tokenizer, mox_err *err)
{
    *out = NULL;
    mox_token_trie *t = mox_alloc_array(1, sizeof *t);
    if (!t) return mox_fail_memory(err, sizeof *t, "the tokens");
    t->tokenizer = tokenizer;
    t->n_tokens = mox_tokenizer_size(tokenizer);
    const size_t n = t->n_tokens > 0 ? (size_t)t->n_tokens : 0;
    entry *entries = mox_alloc_array(n + 1, sizeof *entries);
    t->special = mox_alloc_array(n + 1, sizeof *t->special);
    t->kinds = mox_alloc_array(n + 1, 1);
    t->chars = mox_alloc_array(n + 1, 1);
    const bool whole = entries && t->special && t->kinds && t->chars;
    mox_status status = whole ? MOX_OK : mox_fail_memory(err, n * sizeof *entries, "the tokens");
    if (status == MOX_OK && n >= MOX_TRIE_NO_TOKEN)
        status = mox_fail(err, MOX_E_LIMIT, "a vocabulary of %zu tokens is too large", n);
    if (status == MOX_OK) status = build_all(t, entries, err);
    mox_free(entries);
    if (status != MOX_OK) mox_token_trie_destroy(&t);
    *out = t;
    return status;
}

void mox_token_trie_destroy(mox_token_trie **trie)
{
    mox_token_trie *t = *trie;
    if (!t) return;
    mox_buffer_deinit(&t->all.nodes);
    mox_buffer_deinit(&t->plain.nodes);
    mox_buffer_deinit(&t->rest.nodes);
    mox_buffer_deinit(&t->uncommon.nodes);
    mox_free(t->kinds);
    mox_free(t->chars);
    mox_free(t->special);
    mox_free(t);
    *trie = NULL;
}
