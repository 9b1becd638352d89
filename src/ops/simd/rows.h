/* ops/simd/rows.h -- few tokens: dot products in the order of the file.
 *
 * The speed of one token is that of memory, so the order of memory decides: RB
 * neighbouring rows at a time, which lie one after the other in the file. */
#ifndef MOX_OPS_SIMD_ROWS_H
#define MOX_OPS_SIMD_ROWS_H

#include "ops/simd/acts.h"
#include "ops/simd/decode.h"
#include "ops/simd/fetch.h"

enum {
    RB_MAX = 4,
    PASS = 4, /* tokens that meet a row together */
    SHORT_ROW = 1024
};

/* Memory must be asked early, in its own order, by a prefetch that walks through the rows
 * of a block one after the other.  Four short rows make a block that fits the first cache.
 * Long rows gain nothing from a prefetch into that one, at any distance: it seems that too
 * few lines can be on their way there.  They are taken by twos, into the second cache.
 * That is so on Zen 4; Zen 5 and a Xeon with AMX are fastest with one row after the other, short or long, into the second
 * cache (mox_kern.by_rows, bench/results/cpu.md). */
ALWAYS_INLINE int64_t fetch_distance(const int RB) { return RB == 4 ? 4 * SHORT_ROW : 8192; }
ALWAYS_INLINE void prefetch_rows(const int RB, const uint8_t *ahead)
{
    if (RB == 4) prefetch_first(ahead);
    else prefetch_second(ahead);
}

/* Where rows of a matrix begin; w NULL: nowhere; scales and biases NULL: they are not affine. */
typedef struct rows_at {
    const uint8_t *w, *scales, *biases;
} rows_at;

static inline rows_at find_row(const mox_mat *m, int64_t row)
{
    const int64_t scales = row * mox_mat_scale_row_bytes(&m->layout, m->cols);
    const bool affine = m->layout.kind == MOX_MAT_AFFINE;
    return (rows_at){.w = m->w + row * mox_mat_row_bytes(&m->layout, m->cols), .scales = affine ? m->scales + scales : NULL,
                     .biases = affine ? m->biases + scales : NULL};
}

/* What the kernels read of one matrix. */
typedef struct rows_in {
    const mox_mat *m;
    const act_plan *p;
    const uint8_t *token[PASS]; /* prepared activations */
    int64_t row_bytes, scale_bytes;
    int64_t n_chunks, n_whole; /* chunks of a row; those without padding */
    const uint8_t *then;   /* what is read after the run of rows, or NULL */
    const uint8_t *ahead;  /* what to fetch while the present rows are read, */
    fetching *fetch;       /* unless there are several tokens and this says it; or NULL */
} rows_in;

/* What lies fetch_distance behind `row` of the run that ends with `end`, and where the run is over, what is read
 * then: nobody may want the rows behind it, and the next run would wait for its first ones. */
ALWAYS_INLINE const uint8_t *ahead_of(const int RB, const rows_in *in, int64_t row, int64_t end)
{
    const int64_t beyond = fetch_distance(RB) - (end - row) * in->row_bytes;
    const uint8_t *w = in->m->w + row * in->row_bytes;
    if (beyond < 0) return w + fetch_distance(RB);
    return in->then ? in->then + beyond : w;
}

ALWAYS_INLINE const int8_t *plane_of(const rows_in *in, int64_t t, int k)
{
    return (const int8_t *)in->token[t] + k * in->p->cols_padded;
}
ALWAYS_INLINE const float *scales_of(const rows_in *in, int64_t t)
{
    return (const float *)(const void *)(in->token[t] + in->p->planes * in->p->cols_padded);
}

/* Asks for scales and biases of some rows ahead.  Processors find these streams themselves where a row has whole lines of
 * them; where it has less, as with 768 columns, some do not (bench/results/cpu.md). */
ALWAYS_INLINE void fetch_scales(const rows_in *in, int64_t row, int64_t group)
{
    enum { DISTANCE = 512 };
    const int64_t size = in->m->layout.scale_type == MOX_DT_F32 ? 4 : 2, at = row * in->scale_bytes + size * group + DISTANCE;
    prefetch_first(in->m->scales + at);
    prefetch_first(in->m->biases + at);
}

/* The codes of a chunk, or what is left of the row, zeros behind it. */
ALWAYS_INLINE vi load_chunk(const uint8_t *row, int64_t at, int64_t row_bytes)
{
    if (at + VBYTES <= row_bytes) return vi_load(row + at);
    uint8_t spare[VBYTES] = {0};
    memcpy(spare, row + at, (size_t)(row_bytes - at));
    return vi_load(spare);
}

/* i[r] = vi_dot_nibbles2 of row r.  Where a dot product adds to its sum, each waits for the one before: the rows
 * take turns, so that there is always one that need not, within as few instructions as a processor looks ahead. */
ALWAYS_INLINE void dot_rows_nibbles2(const int RB, const vi *low, const vi *high, vi even, vi odd, vi even1, vi odd1,
                                     vi *i)
{
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++)
        i[r] = DOT_ADDS ? vi_kept(vi_dot(vi_zero(), low[r], even))
                        : vi_dot_nibbles2(low[r], high[r], even, odd, even1, odd1);
    if (!DOT_ADDS) return;
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++) i[r] = vi_kept(vi_dot(i[r], high[r], odd));
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++) i[r] = vi_kept(vi_shl(i[r], 8));
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++) i[r] = vi_kept(vi_dot(i[r], low[r], even1));
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++) i[r] = vi_kept(vi_dot(i[r], high[r], odd1));
}

/* RB neighbouring rows from `row` on, NT tokens: out[r][t], to be summed over its lanes.
 * PLAIN: groups of 64 with scales in BF16 and whole chunks, as most files have them. */
ALWAYS_INLINE void lanes_nibbles(const int RB, const int NT, const int PLANES, const bool PLAIN, const rows_in *in,
                                 int64_t row, vf out[][4])
{
    const act_plan *p = in->p;
    const uint8_t *w = in->m->w + row * in->row_bytes;
    const int unit_shift = PLAIN ? 6 : p->unit_shift, share = PLAIN ? 1 : p->share;
    const int64_t n_chunks = in->n_chunks, per_block = (LANES << unit_shift) / CHUNK;
    const mox_dtype type = PLAIN ? MOX_DT_BF16 : in->m->layout.scale_type;
    vf acc[RB_MAX][4], scale[RB_MAX][4];
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) acc[r][t] = vf_zero();
    for (int64_t c0 = 0; c0 < n_chunks; c0 += per_block) {
        const int64_t u0 = (c0 * CHUNK) >> unit_shift;
#pragma GCC unroll 4
        for (int r = 0; r < RB; r++) {
            fetch_scales(in, row + r, u0 / share);
            const vf s = load_units(in->m->scales + (row + r) * in->scale_bytes, type, share, u0, p->units);
            const vf b = load_units(in->m->biases + (row + r) * in->scale_bytes, type, share, u0, p->units);
#pragma GCC unroll 4
            for (int t = 0; t < NT; t++) {
                const float *x = scales_of(in, t) + u0;
                scale[r][t] = vf_mul(s, vf_load(x));
                acc[r][t] = vf_fma(b, vf_load(x + p->units_padded), acc[r][t]);
            }
        }
        const int64_t end = c0 + per_block < n_chunks ? c0 + per_block : n_chunks;
        vi lanes = vi_lanes_shr(unit_shift - 3); /* units of lanes of 8 columns */
#pragma GCC unroll 1 /* as in the prototype, where unrolling was slower from memory */
        for (int64_t c = c0; c < end; c++, lanes = next_units(lanes, c - c0, unit_shift)) {
            vi low[RB_MAX], high[RB_MAX];
#pragma GCC unroll 4
            for (int r = 0; r < RB; r++) {
                const vi v = vi_kept(PLAIN || c < in->n_whole ? vi_load(w + r * in->row_bytes + c * VBYTES)
                                                              : load_chunk(w + r * in->row_bytes, c * VBYTES, in->row_bytes));
                if (NT > 1 && in->fetch) {
                    if (c % (LINE / VBYTES) == 0) fetch_line(in->fetch);
                } else prefetch_rows(RB, in->ahead + (c * RB + r) * VBYTES);
                low[r] = vi_and(v, vi_set8(15));
                /* With more tokens the units that multiply, which also shift by matrices, have enough to do. */
                high[r] = DOT_ADDS && NT > 1 ? vi_and(vi_shr4(v), vi_set8(15)) : vi_high_nibbles(v);
            }
#pragma GCC unroll 4
            for (int t = 0; t < NT; t++) {
                const int8_t *x = plane_of(in, t, 0) + c * CHUNK, *x1 = plane_of(in, t, PLANES - 1) + c * CHUNK;
                vi even = vi_load(x), odd = vi_load(x + VBYTES), even1 = vi_load(x1), odd1 = vi_load(x1 + VBYTES);
                if (RB > 1 && NT > 1) { /* shared by the rows: loading them for each would take the time of loading codes */
                    even = vi_kept(even), odd = vi_kept(odd);
                    if (PLANES == 2) even1 = vi_kept(even1), odd1 = vi_kept(odd1);
                }
                vi i[RB_MAX];
                if (PLANES == 2) dot_rows_nibbles2(RB, low, high, even, odd, even1, odd1, i);
#pragma GCC unroll 4
                for (int r = 0; r < RB; r++) {
                    if (PLANES == 1) i[r] = vi_dot_nibbles(low[r], high[r], even, odd);
                    acc[r][t] = vf_fma(vf_from_int(i[r]), vf_permute(scale[r][t], lanes), acc[r][t]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) out[r][t] = acc[r][t];
}

/* Columns [c0, c0 + n) of a row of codes as bytes, with VBYTES zeros behind what does not
 * fill its last vector. */
ALWAYS_INLINE const uint8_t *code_bytes(const rows_in *in, int64_t row, int64_t c0, int64_t n, uint8_t *room)
{
    const int bits = in->m->layout.bits;
    const uint8_t *w = in->m->w + row * in->row_bytes;
    if (bits == 8 && n % VBYTES == 0) {
        for (int64_t i = 0; i < n; i += 64) prefetch_rows(1, w + fetch_distance(1) + c0 + i);
        return w + c0;
    }
    unpack_codes(w, bits, c0, n, in->row_bytes, room);
    if (n % VBYTES) memset(room + n, 0, VBYTES);
    return room;
}

enum { PIECE = LANES * 64 }; /* columns of LANES units, at most */

/* One row of any other width of code, through bytes. */
ALWAYS_INLINE void dot_codes(const int NT, const int PLANES, const rows_in *in, int64_t row, float *out)
{
    const act_plan *p = in->p;
    const mox_dtype type = in->m->layout.scale_type;
    vf acc[4];
    for (int t = 0; t < NT; t++) acc[t] = vf_zero();
    const int64_t step = (int64_t)LANES << p->unit_shift;
    const vi lanes = vi_lanes_shr(p->unit_shift - 2); /* units of lanes of 4 columns */
    for (int64_t c0 = 0; c0 < p->cols; c0 += step) {
        uint8_t room[PIECE + VBYTES];
        const int64_t n = p->cols - c0 < step ? p->cols - c0 : step, u0 = c0 >> p->unit_shift;
        const uint8_t *codes = code_bytes(in, row, c0, n, room);
        const vf s = load_units(in->m->scales + row * in->scale_bytes, type, p->share, u0, p->units);
        const vf b = load_units(in->m->biases + row * in->scale_bytes, type, p->share, u0, p->units);
        for (int t = 0; t < NT; t++) {
            const float *x = scales_of(in, t) + u0;
            const vf scale = vf_mul(s, vf_load(x));
            acc[t] = vf_fma(b, vf_load(x + p->units_padded), acc[t]);
            for (int64_t i = 0; i < n; i += VBYTES) {
                const vi v = vi_load(codes + i);
                vi sum = vi_dot_wide(vi_zero(), v, vi_load(plane_of(in, t, 0) + c0 + i));
                if (PLANES == 2) sum = vi_dot_wide(vi_shl(sum, 8), v, vi_load(plane_of(in, t, 1) + c0 + i));
                acc[t] = vf_fma(vf_from_int(sum), vf_permute(scale, vi_add(lanes, vi_set((int32_t)(i >> p->unit_shift)))), acc[t]);
            }
        }
    }
    for (int t = 0; t < NT; t++) out[t] = vf_sum(acc[t]);
}

/* The same with f32 activations. */
ALWAYS_INLINE void dot_codes_f32(const int NT, const rows_in *in, int64_t row, float *out)
{
    const act_plan *p = in->p;
    const mox_dtype type = in->m->layout.scale_type;
    vf acc[4];
    for (int t = 0; t < NT; t++) acc[t] = vf_zero();
    const int64_t step = (int64_t)LANES << p->unit_shift;
    for (int64_t c0 = 0; c0 < p->cols; c0 += step) { /* whole units: a row is a whole number of groups */
        uint8_t room[PIECE + VBYTES];
        const int64_t n = p->cols - c0 < step ? p->cols - c0 : step, u0 = c0 >> p->unit_shift;
        const uint8_t *codes = code_bytes(in, row, c0, n, room);
        const vf s = load_units(in->m->scales + row * in->scale_bytes, type, p->share, u0, p->units);
        const vf b = load_units(in->m->biases + row * in->scale_bytes, type, p->share, u0, p->units);
        for (int t = 0; t < NT; t++) {
            const float *x = (const float *)(const void *)in->token[t];
            acc[t] = vf_fma(b, vf_load(x + p->cols_padded + u0), acc[t]);
            x += c0;
            for (int64_t u = 0; u << p->unit_shift < n; u++) {
                const int64_t at = u << p->unit_shift;
                vf sums[2] = {vf_zero(), vf_zero()};
                for (int64_t i = at; i < at + p->unit; i += 2 * LANES)
                    for (int k = 0; k < 2; k++)
                        sums[k] = vf_fma(vf_from_int(vi_load_u8_wide(codes + i + k * LANES)), vf_load(x + i + k * LANES), sums[k]);
                acc[t] = vf_fma(vf_add(sums[0], sums[1]), vf_permute(s, vi_set((int32_t)u)), acc[t]);
            }
        }
    }
    for (int t = 0; t < NT; t++) out[t] = vf_sum(acc[t]);
}

/* f32 activations and 4-bit codes: a code stays at its place in the word, and the
 * activation has been divided by that place. */
ALWAYS_INLINE void lanes_nibbles_f32(const int RB, const int NT, const bool PLAIN, const rows_in *in, int64_t row, vf out[][4])
{
    const act_plan *p = in->p;
    const uint8_t *w = in->m->w + row * in->row_bytes;
    const int unit_shift = PLAIN ? 6 : p->unit_shift, share = PLAIN ? 1 : p->share;
    const int64_t n_chunks = in->n_chunks, per_block = (LANES << unit_shift) / CHUNK;
    const mox_dtype type = PLAIN ? MOX_DT_BF16 : in->m->layout.scale_type;
    vf acc[RB_MAX][4], scale[RB_MAX];
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) acc[r][t] = vf_zero();
    for (int64_t c0 = 0; c0 < n_chunks; c0 += per_block) {
        const int64_t u0 = (c0 * CHUNK) >> unit_shift;
#pragma GCC unroll 4
        for (int r = 0; r < RB; r++) {
            fetch_scales(in, row + r, u0 / share);
            scale[r] = load_units(in->m->scales + (row + r) * in->scale_bytes, type, share, u0, p->units);
            const vf b = load_units(in->m->biases + (row + r) * in->scale_bytes, type, share, u0, p->units);
            for (int t = 0; t < NT; t++) {
                const float *sum = (const float *)(const void *)in->token[t] + p->cols_padded + u0;
                acc[r][t] = vf_fma(b, vf_load(sum), acc[r][t]);
            }
        }
        const int64_t end = c0 + per_block < n_chunks ? c0 + per_block : n_chunks;
        vi lanes = vi_lanes_shr(unit_shift - 3); /* units of lanes of 8 columns */
#pragma GCC unroll 1
        for (int64_t c = c0; c < end; c++, lanes = next_units(lanes, c - c0, unit_shift)) {
            vi v[RB_MAX];
            for (int r = 0; r < RB; r++) {
                v[r] = vi_kept(PLAIN || c < in->n_whole ? vi_load(w + r * in->row_bytes + c * VBYTES)
                                                        : load_chunk(w + r * in->row_bytes, c * VBYTES, in->row_bytes));
                if (NT > 1 && in->fetch) {
                    if (c % (LINE / VBYTES) == 0) fetch_line(in->fetch);
                } else prefetch_rows(RB, in->ahead + (c * RB + r) * VBYTES);
            }
            for (int t = 0; t < NT; t++) {
                const float *x = (const float *)(const void *)in->token[t] + c * CHUNK;
                vf sum[RB_MAX];
                for (int r = 0; r < RB; r++) sum[r] = vf_zero();
#pragma GCC unroll 8
                for (int j = 0; j < 8; j++) {
                    const vf xj = vf_load(x + j * LANES);
                    for (int r = 0; r < RB; r++) {
                        /* The top nibble would be a sign, so it is moved down by one place. */
                        const vi code = j < 7 ? vi_and(v[r], vi_set(15 << (4 * j))) : vi_and(vi_shr4(v[r]), vi_set(15 << 24));
                        sum[r] = vf_fma(vf_from_int(code), xj, sum[r]);
                    }
                }
                for (int r = 0; r < RB; r++) acc[r][t] = vf_fma(sum[r], vf_permute(scale[r], lanes), acc[r][t]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) out[r][t] = acc[r][t];
}

/* out[r * 4 + t]: the same, summed. */
ALWAYS_INLINE void dot_nibbles_f32(const int RB, const int NT, const rows_in *in, int64_t row, float *out)
{
    vf acc[RB_MAX][4];
    rows_in own = *in;
    own.ahead = in->m->w + row * in->row_bytes + fetch_distance(RB);
    lanes_nibbles_f32(RB, NT, false, &own, row, acc);
#pragma GCC unroll 4
    for (int r = 0; r < RB; r++)
#pragma GCC unroll 4
        for (int t = 0; t < NT; t++) out[r * 4 + t] = vf_sum(acc[r][t]);
}

/* f32 activations and weights that are not affine: decoded vector by vector. */
ALWAYS_INLINE void dot_decoded(const int NT, const rows_in *in, int64_t row, float *out)
{
    enum { SUMS = 4 }; /* one alone would wait for each addition */
    const act_plan *p = in->p;
    vf acc[4][SUMS];
    for (int t = 0; t < NT; t++)
        for (int k = 0; k < SUMS; k++) acc[t][k] = vf_zero();
    for (int64_t c = 0; c < p->cols; c += SUMS * LANES) { /* activations are padded that far, decoding gives zeros */
#pragma GCC unroll 4
        for (int k = 0; k < SUMS; k++) {
            if (c + k * LANES >= p->cols) break;
            const vf v = decode_vector(in->m, in->row_bytes, row, c + k * LANES);
#pragma GCC unroll 4
            for (int t = 0; t < NT; t++)
                acc[t][k] = vf_fma(v, vf_load((const float *)(const void *)in->token[t] + c + k * LANES), acc[t][k]);
        }
    }
    for (int t = 0; t < NT; t++) out[t] = vf_sum(vf_add(vf_add(acc[t][0], acc[t][1]), vf_add(acc[t][2], acc[t][3])));
}

#endif
