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

static bool is_common(unsigned char c) { return c == ' ' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c >= 0x80; }

/* Whether the slice has a token. */
static bool in_slice(const entry *e, int slice)
{
    const unsigned char *p = (const unsigned char *)e->text;
    if (mox_utf8_valid_prefix(p, e->n) != e->n) return false;
    for (size_t i = 0; i < e->n; i++) {
        if (p[i] < 0x20 || p[i] == '"' || p[i] == '\\') return false;
        if (slice == MOX_SLICE_COMMON && !is_common(p[i])) return false;
    }
    return true;
}

/* Adds the bytes of a token behind those that it shares with the one before. */
static mox_status add_token(mox_trie *t, const entry *e, size_t shared, uint32_t *path, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(&t->nodes, t->n + e->n, sizeof(mox_trie_node), "the tokens", err));
    mox_trie_node *nodes = t->nodes.data;
    for (size_t i = shared; i < e->n; i++) {
        path[i] = t->n;
        nodes[t->n++] = (mox_trie_node){.byte = (unsigned char)e->text[i], .token = MOX_TRIE_NO_TOKEN};
    }
    nodes[path[e->n - 1]].token = (uint32_t)e->id & 0xFFFFFF;
    return MOX_OK;
}

/* entries are sorted; those with skip[id] set are left out. */
static mox_status build(mox_trie *t, const entry *entries, size_t n, const unsigned char *skip, uint32_t *path, mox_err *err)
{
    const entry *before = NULL;
    for (size_t i = 0; i <= n; i++) {
        const entry *e = i < n ? &entries[i] : NULL;
        if (e && skip && skip[e->id]) continue;
        size_t shared = 0;
        if (e && before) {
            while (shared < before->n && shared < e->n - 1 && before->text[shared] == e->text[shared]) shared++;
        }
        mox_trie_node *nodes = t->nodes.data;
        for (size_t k = before ? before->n : 0; k-- > shared;) nodes[path[k]].end = t->n;
        if (e) MOX_TRY(add_token(t, e, shared, path, err));
        before = e;
    }
    return MOX_OK;
}

static mox_status collect(mox_token_trie *t, entry *entries, size_t *n, mox_err *err)
{
    for (int32_t id = 0; id < t->n_tokens; id++) {
        entry e = {.id = id};
        e.text = mox_tokenizer_bytes(t->tokenizer, id, &e.n);
        if (!e.text || e.n == 0) continue;
        if (e.n > t->longest) t->longest = e.n;
        if (mox_tokenizer_is_special(t->tokenizer, id)) t->special[t->n_special++] = id;
        else entries[(*n)++] = e;
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
    mox_status status = build(&t->all, entries, n, NULL, path, err);
    for (int s = 0; s < MOX_SLICES && status == MOX_OK; s++) {
        mox_slice *slice = &t->slices[s];
        for (size_t i = 0; i < n; i++) {
            if (!in_slice(&entries[i], s)) continue;
            slice->mask[entries[i].id] = 1;
            slice->count++;
        }
        status = build(&slice->rest, entries, n, slice->mask, path, err);
    }
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
    bool whole = entries && t->special;
    for (int s = 0; s < MOX_SLICES; s++) {
        t->slices[s].mask = mox_alloc_array(n + 1, 1);
        whole = whole && t->slices[s].mask;
    }
    mox_status status = whole ? MOX_OK : mox_fail_memory(err, n * sizeof *entries, "the tokens");
    if (status == MOX_OK && n >= MOX_TRIE_NO_TOKEN) status = mox_fail(err, MOX_E_LIMIT, "a vocabulary of %zu tokens is too large", n);
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
    for (int s = 0; s < MOX_SLICES; s++) {
        mox_free(t->slices[s].mask);
        mox_buffer_deinit(&t->slices[s].rest.nodes);
    }
    mox_free(t->special);
    mox_free(t);
    *trie = NULL;
}
