/* text/vocab.c -- an open-addressing table over one pool of bytes.
 *
 * I1  the table is at most half full, so a search ends.
 */
#include "text/vocab.h"

#include "base/utf8.h"

#include <string.h>

void mox_vocab_deinit(mox_vocab *v)
{
    mox_buffer_deinit(&v->pool);
    mox_buffer_deinit(&v->entries);
    mox_free(v->slots);
    v->slots = NULL;
}

/* Bytes that print as themselves; the other 68 are spelled U+0100, U+0101, ... */
static bool prints(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD && byte <= 0xFF);
}

/* The byte that a code point spells, or -1. */
static int spelled_byte(uint32_t cp)
{
    if (cp < 0x100) return prints(cp) ? (int)cp : -1;
    cp -= 0x100; /* among the bytes that do not print: 00-20, 7F-A0, AD */
    if (cp <= 0x20) return (int)cp;
    if (cp <= 0x20 + 0x22) return (int)(cp - 0x21 + 0x7F);
    return cp == 0x43 ? 0xAD : -1;
}

mox_token_kind mox_vocab_unspell(const char *spelling, size_t n, unsigned char *dst, size_t *n_dst)
{
    const unsigned char *p = (const unsigned char *)spelling;
    size_t count = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += mox_utf8_next(p + i, &cp);
        const int byte = spelled_byte(cp);
        if (byte < 0) {
            memcpy(dst, spelling, n);
            *n_dst = n;
            return MOX_TOKEN_LITERAL;
        }
        dst[count++] = (unsigned char)byte;
    }
    *n_dst = count;
    return MOX_TOKEN_BYTES;
}

static uint32_t hash_of(mox_token_kind kind, const unsigned char *p, size_t n)
{
    uint64_t h = (n ^ (uint64_t)kind << 32) * UINT64_C(0x9E3779B97F4A7C15), word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 32;
    }
    word = 0;
    for (size_t i = 0; i < n; i++) word = word << 8 | p[i];
    h = (h ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 11);
}

/* The slot of the token, or the free one where it belongs. */
static uint32_t slot_of(const mox_vocab *v, mox_token_kind kind, const unsigned char *bytes, size_t n, uint32_t hash)
{
    uint32_t i = hash & (v->n_slots - 1);
    for (; v->slots[i].id >= 0; i = (i + 1) & (v->n_slots - 1)) {
        if (v->slots[i].hash != hash) continue;
        const mox_token_entry *e = mox_vocab_entry(v, v->slots[i].id);
        if (e->kind == kind && e->n == n && memcmp(mox_vocab_bytes(v, e), bytes, n) == 0) break;
    }
    return i;
}

int32_t mox_vocab_find(const mox_vocab *v, mox_token_kind kind, const unsigned char *bytes, size_t n)
{
    if (v->n_slots == 0) return -1;
    return v->slots[slot_of(v, kind, bytes, n, hash_of(kind, bytes, n))].id;
}

int32_t mox_vocab_find_text(const mox_vocab *v, const char *text, size_t n)
{
    unsigned char bytes[MOX_VOCAB_TEXT_MAX];
    size_t n_bytes;
    if (n > sizeof bytes || mox_utf8_valid_prefix((const unsigned char *)text, n) != n) return -1;
    const bool spelled = mox_vocab_unspell(text, n, bytes, &n_bytes) == MOX_TOKEN_BYTES;
    const int32_t id = spelled ? mox_vocab_find(v, MOX_TOKEN_BYTES, bytes, n_bytes) : -1;
    return id >= 0 ? id : mox_vocab_find(v, MOX_TOKEN_LITERAL, (const unsigned char *)text, n);
}

static mox_status grow_slots(mox_vocab *v, mox_err *err)
{
    if ((uint32_t)v->n_tokens + 1 <= v->n_slots / 2) return MOX_OK;
    const uint32_t n_slots = v->n_slots ? v->n_slots * 2 : 1024;
    mox_vocab_slot *slots = mox_alloc_array(n_slots, sizeof *slots);
    if (!slots) return mox_fail_memory(err, n_slots * sizeof *slots, "the vocabulary");
    for (uint32_t i = 0; i < n_slots; i++) slots[i].id = -1;
    for (uint32_t i = 0; i < v->n_slots; i++) {
        if (v->slots[i].id < 0) continue;
        uint32_t at = v->slots[i].hash & (n_slots - 1);
        while (slots[at].id >= 0) at = (at + 1) & (n_slots - 1);
        slots[at] = v->slots[i];
    }
    mox_free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return MOX_OK;
}

mox_status mox_vocab_add(mox_vocab *v, const char *name, mox_token_kind kind, const unsigned char *bytes, size_t n,
                         int64_t id, mox_err *err)
{
    const int shown = n < 60 ? (int)n : 60;
    if (id < 0 || id >= MOX_VOCAB_IDS_MAX) {
        return mox_fail(err, MOX_E_FORMAT, "%s: token \"%.*s\" has id %lld; ids go from 0 to %d", name, shown,
                        (const char *)bytes, (long long)id, MOX_VOCAB_IDS_MAX - 1);
    }
    if (v->pool_n + n > UINT32_MAX) return mox_fail(err, MOX_E_FORMAT, "%s: the vocabulary is too large", name);
    const size_t n_before = (size_t)v->n_ids;
    MOX_TRY(mox_buffer_reserve(&v->entries, (size_t)id + 1, sizeof(mox_token_entry), "the vocabulary", err));
    MOX_TRY(mox_buffer_reserve(&v->pool, v->pool_n + n, 1, "the vocabulary", err));
    MOX_TRY(grow_slots(v, err));
    mox_token_entry *entries = v->entries.data;
    if ((size_t)id >= n_before) {
        memset(entries + n_before, 0, ((size_t)id + 1 - n_before) * sizeof *entries);
        v->n_ids = (int32_t)id + 1;
    }
    if (entries[id].kind != MOX_TOKEN_NONE) {
        return mox_fail(err, MOX_E_FORMAT, "%s: id %lld belongs to two tokens, the second is \"%.*s\"", name,
                        (long long)id, shown, (const char *)bytes);
    }
    const uint32_t hash = hash_of(kind, bytes, n), at = slot_of(v, kind, bytes, n, hash);
    if (v->slots[at].id >= 0) {
        return mox_fail(err, MOX_E_FORMAT, "%s: token \"%.*s\" comes twice, with ids %d and %lld", name, shown,
                        (const char *)bytes, (int)v->slots[at].id, (long long)id);
    }
    if (n > 0) memcpy((unsigned char *)v->pool.data + v->pool_n, bytes, n);
    entries[id] = (mox_token_entry){.start = (uint32_t)v->pool_n, .n = (uint32_t)n, .kind = (uint8_t)kind};
    v->slots[at] = (mox_vocab_slot){hash, (int32_t)id};
    v->pool_n += n;
    v->n_tokens++;
    if (kind == MOX_TOKEN_BYTES && n > v->longest) v->longest = (uint32_t)n;
    return MOX_OK;
}
