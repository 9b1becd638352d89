/* ops/simd/online.h -- softmax attention over tiles of keys.
 *
 * A block is up to LANES queries that read the same keys: heads of one row that share a
 * key head, rows of one sequence, or both.  A lane is a query: scores come from the
 * queries turned on their side and one key element at a time, so the maximum, the
 * exponentials and the denominator of all queries are plain vertical operations.  The
 * sums of values are rows again (values.h).
 *
 * I1  what is computed for a query does not depend on the other queries of its block.
 *     Tiles begin at multiples of TILE positions, whatever the block sees; keys that a
 *     query does not see never enter its sums, not even with a weight of 0, because
 *     they may hold an infinity. */
#ifndef MOX_OPS_SIMD_ONLINE_H
#define MOX_OPS_SIMD_ONLINE_H

#include "ops/span.h"
#include "ops/simd/values.h"

#include <float.h>

enum {
    TILE = 64,       /* keys */
    Q_COLS = 576,    /* columns of queries kept on their side; longer ones are turned again in every tile */
    PIECE_COLS = 128, /* columns of keys widened at a time */
    PIECE_STRIDE = PIECE_COLS + LANES,
    SUM_COLS = 512, /* columns of values in one pass */
#if MOX_LEVEL == 1
    KEY_BLOCK = 8
#else
    KEY_BLOCK = 16
#endif
};

/* One operand of the scores: score = scale (sum over parts of q . key). */
typedef struct key_part {
    const mox_cache *cache;
    int64_t head, dim;
    const float *q[LANES];
} key_part;

typedef struct query_block {
    key_part part[2];
    int n_parts;
    const mox_cache *v;
    int64_t v_head;
    const int32_t *pages; /* NULL: contiguous caches */
    int64_t n;            /* queries */
    int64_t first[LANES], last[LANES]; /* the keys that each sees */
    float scale;
} query_block;

typedef struct online_state {
    _Alignas(64) float max[LANES];
    _Alignas(64) float denom[LANES];
    _Alignas(64) float sum[LANES * SUM_COLS];
} online_state;

typedef struct online_work {
    _Alignas(64) float q[Q_COLS * LANES];               /* [column][query] */
    _Alignas(64) float keys[KEY_BLOCK * PIECE_STRIDE];  /* a piece, widened */
    _Alignas(64) float p[(TILE + KEY_BLOCK) * LANES];   /* scores, then weights: [key][query] */
    _Alignas(64) float shrink[LANES];
    bool q_stays; /* q holds all columns of all parts */
} online_work;

/* The rows of one tile in each cache. */
typedef struct tile_rows {
    const uint8_t *key[2][TILE], *value[TILE];
} tile_rows;

/* Addresses of positions [pos, pos + n), and of the last once more up to TILE. */
static void find_rows(const mox_cache *c, const int32_t *pages, int64_t head, int64_t pos, int64_t n, const uint8_t **rows)
{
    const int64_t size = c->type == MOX_DT_F32 ? 4 : 2;
    int64_t i = 0;
    while (i < n) {
        const uint8_t *at = (const uint8_t *)c->data + mox_cache_offset(c, pages, pos + i, head) * size;
        int64_t run = pages ? c->page_len - (pos + i) % c->page_len : n;
        for (; run > 0 && i < n; run--, at += c->token_stride * size) rows[i++] = at;
    }
    for (; i < TILE; i++) rows[i] = rows[n - 1];
}

static void find_tile(const query_block *b, int64_t pos, int64_t n, tile_rows *t)
{
    for (int k = 0; k < b->n_parts; k++) find_rows(b->part[k].cache, b->pages, b->part[k].head, pos, n, t->key[k]);
    if (b->v) find_rows(b->v, b->pages, b->v_head, pos, n, t->value);
}

/* Columns [col, col + n) of every query, turned; absent queries are 0. */
static void turn_queries(const key_part *part, int64_t n_queries, int64_t col, int64_t n, float *out)
{
    for (int64_t i = 0; i < LANES; i++) {
        const float *q = i < n_queries ? part->q[i] + col : NULL;
        for (int64_t c = 0; c < n; c++) out[c * LANES + i] = q ? q[c] : 0;
    }
}

static void begin_block(const query_block *b, online_work *w)
{
    int64_t cols = 0;
    for (int k = 0; k < b->n_parts; k++) cols += b->part[k].dim;
    w->q_stays = cols <= Q_COLS;
    if (!w->q_stays) return;
    float *q = w->q;
    for (int k = 0; k < b->n_parts; q += b->part[k++].dim * LANES) turn_queries(&b->part[k], b->n, 0, b->part[k].dim, q);
}

/* ---- scores ---- */

ALWAYS_INLINE void widen_rows(const uint8_t *const *rows, const uint8_t *const *next, const mox_dtype T, int64_t col, int64_t n,
                              float *out)
{
    const int64_t size = T == MOX_DT_F32 ? 4 : 2;
    for (int64_t j = 0; j < KEY_BLOCK; j++, out += PIECE_STRIDE) {
        const uint8_t *row = rows[j] + col * size;
        int64_t c = 0;
        for (int64_t i = 0; next && i < n * size; i += 64) _mm_prefetch((const char *)next[j] + col * size + i, _MM_HINT_T1);
        for (; c + LANES <= n; c += LANES) vf_store(out + c, load_numbers(row + c * size, T, LANES));
        if (c < n) vf_store(out + c, load_numbers(row + c * size, T, n - c));
    }
}

/* s[j][query] = (add ? s : 0) + sum of n columns of the widened keys, one chain each. */
#define MOX_DOT_KEYS(name, type, zero, load, set, fma, store)                                       \
    static void name(const float *q, const float *keys, int64_t n, bool add, float *s)              \
    {                                                                                               \
        type acc[KEY_BLOCK];                                                                        \
        for (int j = 0; j < KEY_BLOCK; j++) acc[j] = add ? load(s + j * LANES) : zero();            \
        for (int64_t c = 0; c < n; c++) {                                                           \
            const type x = load(q + c * LANES);                                                     \
            _Pragma("GCC unroll 16")                                                                \
            for (int j = 0; j < KEY_BLOCK; j++) acc[j] = fma(x, set(keys[j * PIECE_STRIDE + c]), acc[j]); \
        }                                                                                           \
        for (int j = 0; j < KEY_BLOCK; j++) store(s + j * LANES, acc[j]);                           \
    }
MOX_DOT_KEYS(dot_keys, vf, vf_zero, vf_load, vf_set, vf_fma, vf_store)
#if MOX_LEVEL > 1
MOX_DOT_KEYS(dot_keys_half, __m256, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps)
#endif
#undef MOX_DOT_KEYS

/* half: only the first half of the lanes is wanted, which is twice as fast where
 * vectors of 64 bytes take two passes. */
static void dot_queries(bool half, const float *q, const float *keys, int64_t n, bool add, float *s)
{
#if MOX_LEVEL > 1
    if (half) {
        dot_keys_half(q, keys, n, add, s);
        return;
    }
#endif
    (void)half;
    dot_keys(q, keys, n, add, s);
}

/* Adds columns [col, col + n) of one part to the scores of n_keys keys. */
static void score_columns(const key_part *part, bool half, const uint8_t *const *rows, const uint8_t *const *next, int64_t n_keys,
                          int64_t col, int64_t n, bool add, const float *q, online_work *w)
{
    for (int64_t j = 0; j < n_keys; j += KEY_BLOCK) {
        for (int64_t c = 0; c < n; c += PIECE_COLS) {
            const int64_t piece = n - c < PIECE_COLS ? n - c : PIECE_COLS;
            const uint8_t *const *ahead = next ? next + j : NULL;
            if (part->cache->type == MOX_DT_F16) widen_rows(rows + j, ahead, MOX_DT_F16, col + c, piece, w->keys);
            else widen_rows(rows + j, ahead, MOX_DT_F32, col + c, piece, w->keys);
            dot_queries(half, q + c * LANES, w->keys, piece, add || c > 0, w->p + j * LANES);
        }
    }
}

/* w->p[j][query] = q . k for the keys of a tile. */
static void score_tile(const query_block *b, const tile_rows *rows, const tile_rows *next, int64_t n_keys, online_work *w)
{
    bool add = false;
    const float *kept = w->q;
    for (int k = 0; k < b->n_parts; k++) {
        const key_part *part = &b->part[k];
        for (int64_t c = 0; c < part->dim; c += Q_COLS) {
            const int64_t n = part->dim - c < Q_COLS ? part->dim - c : Q_COLS;
            if (!w->q_stays) turn_queries(part, b->n, c, n, w->q);
            score_columns(part, b->n <= LANES / 2, rows->key[k], next ? next->key[k] : NULL, n_keys, c, n, add,
                          w->q_stays ? kept : w->q, w);
            add = true;
        }
        kept += part->dim * LANES;
    }
}

/* ---- weights ---- */

/* e^x for x <= 0: 0 from where e^x leaves the normal numbers, NaN for NaN. */
ALWAYS_INLINE vf vf_weight(vf x)
{
    const vf e = vf_exp(x);
#if MOX_LEVEL == 1
    return _mm256_and_ps(e, _mm256_cmp_ps(x, vf_set(-87.0f), _CMP_NLT_UQ));
#else
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, vf_set(-87.0f), _CMP_NLT_UQ), e);
#endif
}

/* Scores to weights, for n keys from pos on.  whole: every query sees all of them. */
static void weigh_tile(const query_block *b, int64_t pos, int64_t n, bool whole, online_state *o, online_work *w)
{
    const vf scale = vf_set(b->scale), old = vf_load(o->max);
    vf max = old, sum = vf_zero();
    for (int64_t j = 0; j < n; j++) vf_store(w->p + j * LANES, vf_mul(vf_load(w->p + j * LANES), scale));
    for (int64_t i = 0; !whole && i < b->n; i++)
        for (int64_t j = 0; j < n; j++)
            if (pos + j < b->first[i] || pos + j >= b->last[i]) w->p[j * LANES + i] = -INFINITY;
    for (int64_t j = 0; j < n; j++) max = vf_max(vf_load(w->p + j * LANES), max); /* a NaN is not a maximum */
    const vf base = vf_max(max, vf_set(-FLT_MAX)); /* nothing seen yet: -inf - base is still -inf */
    for (int64_t j = 0; j < n; j++) {
        const vf p = vf_weight(vf_sub(vf_load(w->p + j * LANES), base));
        vf_store(w->p + j * LANES, p);
        sum = vf_add(sum, p);
    }
    const vf shrink = vf_weight(vf_sub(old, base));
    vf_store(o->max, max);
    vf_store(o->denom, vf_fma(vf_load(o->denom), shrink, sum));
    vf_store(w->shrink, shrink);
}

/* ---- values ---- */

ALWAYS_INLINE int64_t clamp_i64(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* A tile that some query sees in part: first what each sees alone, then what all see
 * together, then the rest of each; ascending order for every one of them. */
static void add_ragged(const query_block *b, const strip *s, int64_t pos, int64_t n, float *sum, const float *shrink)
{
    _Alignas(64) float part[LANES * STRIP] = {0};
    int64_t from[LANES], to[LANES], all_from = 0, all_to = n;
    for (int64_t i = 0; i < b->n; i++) {
        from[i] = clamp_i64(b->first[i] - pos, 0, n);
        to[i] = clamp_i64(b->last[i] - pos, from[i], n);
        if (from[i] > all_from) all_from = from[i];
        if (to[i] < all_to) all_to = to[i];
    }
    if (all_to < all_from) all_to = all_from = n; /* nothing in common */
    for (int64_t i = 0; i < b->n; i++)
        add_rows(s, i, i + 1, from[i], to[i] < all_from ? to[i] : all_from, part, STRIP, NULL);
    add_rows(s, 0, b->n, all_from, all_to, part, STRIP, NULL);
    for (int64_t i = 0; i < b->n; i++) {
        add_rows(s, i, i + 1, all_to > from[i] ? all_to : from[i], to[i], part, STRIP, NULL);
        if (from[i] == to[i]) continue; /* not its tile at all */
        for (int64_t c = 0; c < STRIP; c += LANES) {
            float *out = sum + i * SUM_COLS + c;
            vf_store(out, vf_fma(vf_load(out), vf_set(shrink[i]), vf_load(part + i * STRIP + c)));
        }
    }
}

/* Columns [col, col + n) of the values of n_keys keys from pos on into the sums. */
static void add_tile(const query_block *b, const tile_rows *rows, const tile_rows *next, int64_t pos, int64_t n_keys, bool whole,
                     int64_t col, int64_t n, online_state *o, const online_work *w)
{
    for (int64_t c = 0; c < n; c += STRIP) {
        const strip s = {.rows = rows->value, .next = next ? next->value : NULL, .type = b->v->type, .col = col + c,
                         .n_cols = n - c < STRIP ? n - c : STRIP, .p = w->p, .p_row = 1, .p_key = LANES};
        if (whole) add_rows(&s, 0, b->n, 0, n_keys, o->sum + c, SUM_COLS, w->shrink);
        else add_ragged(b, &s, pos, n_keys, o->sum + c, w->shrink);
    }
}

/* ---- a block ---- */

static void clear_state(online_state *o)
{
    for (int i = 0; i < LANES; i++) o->max[i] = -INFINITY;
    memset(o->denom, 0, sizeof o->denom);
    memset(o->sum, 0, sizeof o->sum);
}

/* Keys from pos to the end of its tile. */
ALWAYS_INLINE int64_t tile_keys(int64_t pos, int64_t last)
{
    const int64_t n = TILE - pos % TILE;
    return last - pos < n ? last - pos : n;
}

/* Takes all keys of the block into the state; sums of value columns [col, col + n). */
static void attend_block(const query_block *b, int64_t col, int64_t n, online_state *o, online_work *w)
{
    int64_t first = b->first[0], last = b->last[0], all_first = first, all_last = last;
    for (int64_t i = 1; i < b->n; i++) {
        if (b->first[i] < first) first = b->first[i];
        if (b->last[i] > last) last = b->last[i];
        if (b->first[i] > all_first) all_first = b->first[i];
        if (b->last[i] < all_last) all_last = b->last[i];
    }
    tile_rows rows[2];
    if (first < last) find_tile(b, first, tile_keys(first, last), &rows[0]);
    int at = 0;
    for (int64_t pos = first; pos < last; at = 1 - at) {
        const int64_t n_keys = tile_keys(pos, last), then = pos + n_keys;
        const bool whole = all_first <= pos && all_last >= then;
        const tile_rows *now = &rows[at], *next = then < last ? &rows[1 - at] : NULL;
        if (next) find_tile(b, then, tile_keys(then, last), &rows[1 - at]);
        score_tile(b, now, next, n_keys, w);
        weigh_tile(b, pos, n_keys, whole, o, w);
        add_tile(b, now, next, pos, n_keys, whole, col, n, o, w);
        pos = then;
    }
}

#endif
