/* ops/simd/online.h -- softmax attention over tiles of keys.
 *
 * A block is up to LANES queries that read the same keys: heads of one row that share a
 * key head, rows of one sequence, or both.  For the scores a vector holds KCOLS columns
 * of each of SHARE queries and meets the same columns of a key: widening a key is shared
 * by all queries in registers, and few lanes are left to be added up in the end.  Weights
 * are rows of keys, one per query, and so are the sums of values (values.h).
 *
 * I1  what is computed for a query does not depend on the other queries of its block.
 *     Tiles begin at multiples of TILE positions, whatever the block sees, and a key has
 *     its place in the tile; keys that a query does not see never enter its sums, not
 *     even with a weight of 0, because they may hold an infinity. */
#ifndef MOX_OPS_SIMD_ONLINE_H
#define MOX_OPS_SIMD_ONLINE_H

#include "ops/span.h"
#include "ops/simd/values.h"

#include <float.h>

enum {
    Q_COLS = 576,   /* columns of queries kept side by side; longer ones are cut again in every tile */
    SUM_COLS = 512, /* columns of values in one pass */
    DOT_QUERIES = 4 * SHARE /* that meet a key in registers */
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
    _Alignas(64) float q[LANES / SHARE][Q_COLS * SHARE]; /* [column / KCOLS][query][column % KCOLS] of SHARE queries */
    _Alignas(64) float p[LANES * P_STRIDE];              /* scores, then weights: [query][key] */
    _Alignas(64) float shrink[LANES];
    bool q_stays; /* q holds all columns of all parts, each from a multiple of KCOLS on */
} online_work;

/* The rows of one tile in each cache. */
typedef struct tile_rows {
    const uint8_t *key[2][TILE], *value[TILE];
} tile_rows;

/* Addresses of positions [pos, pos + n), and of the last once more up to TILE. */
static void find_rows(const mox_cache *c, const int32_t *pages, int64_t head, int64_t pos, int64_t n, const uint8_t **rows)
{
    const int64_t size = mox_dtype_bytes(c->type);
    int64_t i = 0;
    while (i < n) {
        const uint8_t *at = (const uint8_t *)c->data + mox_cache_offset(c, pages, pos + i, head) * size;
        const int64_t run = pages ? c->page_len - (pos + i) % c->page_len : n, stop = i + run < n ? i + run : n;
        for (; i < stop; i++, at += c->token_stride * size) rows[i] = at;
    }
    for (; i < TILE; i++) rows[i] = rows[n - 1];
}

static void find_tile(const query_block *b, int64_t pos, int64_t n, tile_rows *t)
{
    for (int k = 0; k < b->n_parts; k++) find_rows(b->part[k].cache, b->pages, b->part[k].head, pos, n, t->key[k]);
    if (b->v) find_rows(b->v, b->pages, b->v_head, pos, n, t->value);
}

ALWAYS_INLINE int64_t padded(int64_t n) { return (n + KCOLS - 1) / KCOLS * KCOLS; }

/* Columns [col, col + n) of every query to column `at` of w->q; absent queries and columns are 0. */
static void cut_queries(const key_part *part, int64_t n_queries, int64_t col, int64_t n, int64_t at, online_work *w)
{
    for (int64_t i = 0; i < LANES; i++) {
        float *out = w->q[i / SHARE] + at * SHARE + i % SHARE * KCOLS;
        for (int64_t c = 0; c < n; c += KCOLS, out += LANES) {
            if (i < n_queries && c + KCOLS <= n) memcpy(out, part->q[i] + col + c, KCOLS * sizeof *out);
            else
                for (int64_t d = 0; d < KCOLS; d++) out[d] = i < n_queries && c + d < n ? part->q[i][col + c + d] : 0;
        }
    }
}

static void begin_block(const query_block *b, online_work *w)
{
    int64_t at = 0;
    for (int k = 0; k < b->n_parts; k++) at += padded(b->part[k].dim);
    w->q_stays = at <= Q_COLS;
    at = 0;
    for (int k = 0; w->q_stays && k < b->n_parts; at += padded(b->part[k++].dim))
        cut_queries(&b->part[k], b->n, 0, b->part[k].dim, at, w);
}

/* ---- scores ---- */

/* KCOLS numbers of a key from column col on, SHARE times; n < KCOLS of them, then zeros. */
ALWAYS_INLINE vf load_key(const uint8_t *row, const mox_dtype T, int64_t col)
{
    const uint8_t *p = row + column_at(T, col);
    if (T == MOX_DT_I8) return vf_mul(vf_from_int(vi_repeat_i8(p)), vf_set_f16(row + mox_q8_scale_at(col)));
    return T == MOX_DT_F16 ? vf_repeat_f16(p) : vf_repeat_at(p);
}
ALWAYS_INLINE vf load_key_end(const uint8_t *row, const mox_dtype T, int64_t col, int64_t n)
{
    if (T == MOX_DT_I8) return load_key(row, T, col); /* zeros are stored */
    uint8_t bytes[KCOLS * 4] = {0};
    memcpy(bytes, row + column_at(T, col), (size_t)column_at(T, n));
    return load_key(bytes, T, 0);
}

/* A product of some columns of keys: rows, and those of the next tile to bring into the
 * cache meanwhile (or NULL); columns [col, col + n), col a multiple of 32. */
typedef struct key_columns {
    const uint8_t *const *rows, *const *next;
    int64_t col, n;
} key_columns;

/* acc += KCOLS columns of NV * SHARE queries times those of the keys. */
ALWAYS_INLINE void add_products(const int NV, const float *q, const vf key[DOT_KEYS], vf acc[4][DOT_KEYS])
{
#pragma GCC unroll 4
    for (int v = 0; v < NV; v++) {
        const vf x = vf_load(q + v * Q_COLS * SHARE);
#pragma GCC unroll 4
        for (int j = 0; j < DOT_KEYS; j++) acc[v][j] = vf_fma(x, key[j], acc[v][j]);
    }
}

/* p[query][j] = (add ? p : 0) + q . k, for DOT_KEYS keys and NV * SHARE queries from q on. */
ALWAYS_INLINE void dot_keys(const int NV, const mox_dtype T, const float *q, const key_columns *k, bool add, float *p)
{
    enum { RUN = 32 }; /* columns between prefetches: few lines at a time, many would wait for each other */
    const int64_t whole = k->n - k->n % RUN;
    const uint8_t *row[DOT_KEYS];
    vf acc[4][DOT_KEYS];
#pragma GCC unroll 4
    for (int j = 0; j < DOT_KEYS; j++) {
        row[j] = k->rows[j];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) acc[v][j] = vf_zero();
    }
    for (int64_t c0 = 0; c0 < whole; c0 += RUN) {
        for (int j = 0; k->next && j < DOT_KEYS; j++)
            for (int64_t i = 0; i < column_at(T, RUN); i += 64)
                prefetch_second(k->next[j] + column_at(T, k->col + c0) + i);
#pragma GCC unroll 8
        for (int c = 0; c < RUN; c += KCOLS) {
            vf key[DOT_KEYS];
#pragma GCC unroll 4
            for (int j = 0; j < DOT_KEYS; j++) key[j] = load_key(row[j], T, k->col + c0 + c);
            add_products(NV, q + (c0 + c) * SHARE, key, acc);
        }
    }
    for (int64_t c = whole; c < k->n; c += KCOLS) {
        vf key[DOT_KEYS];
        for (int j = 0; j < DOT_KEYS; j++)
            key[j] = k->n - c < KCOLS ? load_key_end(row[j], T, k->col + c, k->n - c) : load_key(row[j], T, k->col + c);
        add_products(NV, q + c * SHARE, key, acc);
    }
    store_dots(NV, acc, add, p, P_STRIDE);
}

/* The same for n_keys keys and n_queries queries, which are at column `at` of w->q. */
ALWAYS_INLINE void dot_columns(const mox_dtype T, key_columns k, int64_t n_keys, int64_t n_queries, int64_t at, bool add,
                               const online_work *w, float *p)
{
    const key_columns first = k;
    for (int64_t i = 0; i < n_queries; i += DOT_QUERIES, k = first, k.next = NULL)
        for (int64_t j = 0; j < n_keys; j += DOT_KEYS, k.rows += DOT_KEYS, k.next = k.next ? k.next + DOT_KEYS : NULL) {
            const float *q = w->q[i / SHARE] + at * SHARE;
            if (n_queries - i > DOT_QUERIES / 2) dot_keys(4, T, q, &k, add, p + i * P_STRIDE + j);
            else dot_keys(2, T, q, &k, add, p + i * P_STRIDE + j);
        }
}

/* Adds columns [col, col + n) of one part, which are at column `at` of w->q, to the scores of n_keys keys. */
static void score_columns(const query_block *b, const key_part *part, const uint8_t *const *rows, const uint8_t *const *next,
                          int64_t n_keys, int64_t col, int64_t n, int64_t at, bool add, online_work *w, float *p)
{
    const key_columns k = {rows, next, col, n};
    if (part->cache->type == MOX_DT_F16) dot_columns(MOX_DT_F16, k, n_keys, b->n, at, add, w, p);
    else if (part->cache->type == MOX_DT_I8) dot_columns(MOX_DT_I8, k, n_keys, b->n, at, add, w, p);
    else dot_columns(MOX_DT_F32, k, n_keys, b->n, at, add, w, p);
}

/* p[query][j] = q . k for the keys of a tile; p has room for DOT_KEYS keys too many. */
static void score_tile(const query_block *b, const tile_rows *rows, const tile_rows *next, int64_t n_keys, online_work *w,
                       float *p)
{
    bool add = false;
    int64_t kept = 0;
    for (int k = 0; k < b->n_parts; k++) {
        const key_part *part = &b->part[k];
        for (int64_t c = 0; c < part->dim; c += Q_COLS) {
            const int64_t n = part->dim - c < Q_COLS ? part->dim - c : Q_COLS;
            if (!w->q_stays) cut_queries(part, b->n, c, n, 0, w);
            score_columns(b, part, rows->key[k], next ? next->key[k] : NULL, n_keys, c, n, w->q_stays ? kept : 0, add, w, p);
            add = true;
        }
        kept += padded(part->dim);
    }
}

/* ---- weights ---- */

ALWAYS_INLINE int64_t clamp_i64(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* e^x for x <= 0: 0 from where e^x leaves the normal numbers, NaN for NaN. */
ALWAYS_INLINE vf vf_weight(vf x) { return vf_zero_below(vf_exp_near(x), x, vf_set(-87.0f)); }

/* Scores to weights, for n keys from pos on, which have their places in the rows of w->p. */
static void weigh_tile(const query_block *b, int64_t pos, int64_t n, online_state *o, online_work *w)
{
    const vf scale = vf_set(b->scale), old = vf_load(o->max);
    const int64_t tile = pos - pos % TILE;
    _Alignas(64) float top[LANES], sum[LANES] = {0};
    for (int64_t i = 0; i < LANES; i++) top[i] = -INFINITY;
    for (int64_t i = 0; i < b->n; i++) {
        float *p = w->p + i * P_STRIDE;
        const int64_t from = clamp_i64(b->first[i], pos, pos + n) - tile, to = clamp_i64(b->last[i], pos, pos + n) - tile;
        vf max = vf_set(-INFINITY);
        for (int64_t j = 0; j < TILE; j += LANES) { /* a NaN is not a maximum */
            const vf x = vf_mul(vf_load(p + j), scale);
            vf_store(p + j, x);
            max = vf_max(x, max);
        }
        if (to - from < TILE) {
            for (int64_t j = 0; j < from; j++) p[j] = -INFINITY;
            for (int64_t j = to; j < TILE; j++) p[j] = -INFINITY;
            max = vf_set(-INFINITY);
            for (int64_t j = 0; j < TILE; j += LANES) max = vf_max(vf_load(p + j), max);
        }
        top[i] = vf_max_of(max);
    }
    const vf max = vf_max(vf_load(top), old);
    const vf base = vf_max(max, vf_set(-FLT_MAX)); /* nothing seen yet: -inf - base is still -inf */
    vf_store(o->max, max);
    vf_store(top, base);
    for (int64_t i = 0; i < b->n; i++) {
        float *p = w->p + i * P_STRIDE;
        const vf less = vf_set(top[i]);
        vf all = vf_zero();
        for (int64_t j = 0; j < TILE; j += LANES) {
            const vf x = vf_weight(vf_sub(vf_load(p + j), less));
            vf_store(p + j, x);
            all = vf_add(all, x);
        }
        sum[i] = vf_sum(all);
    }
    const vf shrink = vf_weight(vf_sub(old, base));
    vf_store(o->denom, vf_fma(vf_load(o->denom), shrink, vf_load(sum)));
    vf_store(w->shrink, shrink);
}

/* ---- values ---- */

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
                         .n_cols = n - c < STRIP ? n - c : STRIP, .p = w->p + pos % TILE, .p_row = P_STRIDE};
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
        score_tile(b, now, next, n_keys, w, w->p + pos % TILE);
        weigh_tile(b, pos, n_keys, o, w);
        add_tile(b, now, next, pos, n_keys, whole, col, n, o, w);
        pos = then;
    }
}

#endif
