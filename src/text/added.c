/* text/added.c -- a trie of added tokens. */
#include "text/added.h"

#include "base/utf8.h"

void mox_added_deinit(mox_added_set *set)
{
    mox_buffer_deinit(&set->tokens);
    mox_buffer_deinit(&set->nodes);
    set->n_tokens = set->n_nodes = 0;
}

/* The child of `parent` (-1: the root) for a byte, made when it is not there. */
static int32_t child_of(mox_added_set *set, int32_t parent, unsigned char byte)
{
    mox_added_node *nodes = set->nodes.data;
    int32_t at = parent < 0 ? set->root[byte] - 1 : nodes[parent].child;
    while (at >= 0 && nodes[at].byte != byte) at = nodes[at].sibling;
    if (at >= 0) return at;
    at = set->n_nodes++;
    nodes[at] = (mox_added_node){.token = -1, .child = -1, .sibling = -1, .byte = byte};
    if (parent < 0) {
        set->root[byte] = at + 1;
    } else {
        nodes[at].sibling = nodes[parent].child;
        nodes[parent].child = at;
    }
    return at;
}

mox_status mox_added_add(mox_added_set *set, const unsigned char *text, size_t n, mox_added_token token, mox_err *err)
{
    MOX_TRY(mox_buffer_reserve(&set->nodes, (size_t)set->n_nodes + n, sizeof(mox_added_node), "added tokens", err));
    MOX_TRY(mox_buffer_reserve(&set->tokens, (size_t)set->n_tokens + 1, sizeof token, "added tokens", err));
    int32_t at = -1;
    for (size_t i = 0; i < n; i++) at = child_of(set, at, text[i]);
    mox_added_node *nodes = set->nodes.data;
    if (nodes[at].token < 0) {
        nodes[at].token = set->n_tokens;
        ((mox_added_token *)set->tokens.data)[set->n_tokens++] = token;
    }
    return MOX_OK;
}

/* The longest token at text[at, n) that may be recognised, or NULL. */
static const mox_added_token *longest_at(const mox_added_set *set, const unsigned char *text, size_t n, size_t at,
                                         size_t plain_begin, size_t *end)
{
    const mox_added_node *nodes = set->nodes.data;
    const mox_added_token *tokens = set->tokens.data, *best = NULL;
    int32_t node = set->root[text[at]] - 1;
    for (size_t i = at + 1; node >= 0; i++) {
        const int32_t t = nodes[node].token;
        if (t >= 0 && !(tokens[t].special && plain_begin < i)) {
            best = &tokens[t];
            *end = i;
        }
        if (i == n) break;
        for (node = nodes[node].child; node >= 0 && nodes[node].byte != text[i];) node = nodes[node].sibling;
    }
    return best;
}

static size_t spaces_before(const mox_unicode *u, const unsigned char *text, size_t from, size_t at)
{
    while (at > from) {
        size_t begin = at - 1;
        uint32_t cp;
        while (begin > from && at - begin < 4 && (text[begin] & 0xC0) == 0x80) begin--;
        if (mox_utf8_decode(text + begin, at - begin, &cp) != at - begin) break;
        if (!(mox_unicode_class(u, cp) & MOX_CHAR_SPACE)) break;
        at = begin;
    }
    return at;
}

static size_t spaces_after(const mox_unicode *u, const unsigned char *text, size_t n, size_t at)
{
    uint32_t cp;
    size_t length;
    while ((length = mox_utf8_decode(text + at, n - at, &cp)) > 0 && (mox_unicode_class(u, cp) & MOX_CHAR_SPACE)) {
        at += length;
    }
    return at;
}

bool mox_added_find(const mox_added_set *set, const mox_unicode *u, const unsigned char *text, size_t n, size_t from,
                    mox_plain_spans *plain, const mox_added_token **token, size_t *begin, size_t *end)
{
    for (size_t i = from; i < n; i++) {
        if (set->root[text[i]] == 0) continue;
        while (plain->next < plain->n &&
               (plain->span[plain->next].end <= i || plain->span[plain->next].end == plain->span[plain->next].begin)) {
            plain->next++;
        }
        const size_t plain_begin = plain->next < plain->n ? plain->span[plain->next].begin : SIZE_MAX;
        *token = longest_at(set, text, n, i, plain_begin, end);
        if (!*token) continue;
        *begin = (*token)->lstrip ? spaces_before(u, text, from, i) : i;
        if ((*token)->rstrip) *end = spaces_after(u, text, n, *end);
        return true;
    }
    return false;
}
