/* ops/simd/codes.h -- tiles of codes, transposed on the fly: LANES rows meet blocks of tokens held in registers.
 *
 * Codes lie as [word of 4 columns][row][4 bytes] in the order of the
 * prepared activations, so one broadcast activation word multiplies LANES rows.  Codes of
 * 4 bits stay packed, two words in one, and are taken apart where they are multiplied.
 *
 * Filling a tile of those is hidden behind multiplying: units that shuffle and units that
 * multiply work side by side when their instructions are mixed, so the first block of
 * tokens fills the columns that it needs next, a step at a time (filling). */
#ifndef MOX_OPS_SIMD_CODES_H
#define MOX_OPS_SIMD_CODES_H

#include "ops/simd/tile.h"

typedef struct code_tile {
    _Alignas(64) uint8_t codes[PANEL * LANES];
    _Alignas(64) float scale[PANEL / 32 * LANES], bias[PANEL / 32 * LANES]; /* [unit][row] */
} code_tile;

/* There is nothing to set up. */
static void open_tile(code_tile *tile) { (void)tile; }
static void close_tile(code_tile *tile) { (void)tile; }

/* ---- filling a tile: rows [row, row + n_rows) of m, columns [col, col + n) ---- */

/* Packed 4-bit codes stay packed: words of 8 codes. */
static void fill_nibbles(code_tile *tile, const mox_mat *m, int64_t row, int64_t n_rows, int64_t col, int64_t n)
{
    const int64_t row_bytes = m->cols / 2;
    for (int64_t c = 0; c < n; c += CHUNK) {
        const int64_t bytes = n - c < CHUNK ? (n - c) / 2 : VBYTES;
        vi r[LANES];
        for (int64_t i = 0; i < LANES; i++) {
            uint8_t spare[VBYTES] = {0};
            if (i < n_rows) memcpy(spare, m->w + (row + i) * row_bytes + (col + c) / 2, (size_t)bytes);
            r[i] = vi_load(spare);
        }
        transpose(r);
        for (int64_t w = 0; w < bytes / 4; w++) vi_store(tile->codes + (c / 8 + w) * VBYTES, r[w]);
    }
}

/* The same for LANES rows and whole chunks, in steps: fours of rows, then quads of lanes. */
enum { FILL_STEPS = LANES / 4 + 4 };
typedef struct filling {
    const uint8_t *w; /* the chunk of the first row; NULL: there is nothing to fill */
    int64_t row_bytes;
    uint8_t *out;
    int64_t step;  /* of the chunk */
    int64_t ahead; /* columns that are filled before they are multiplied */
    _Alignas(64) uint8_t room[LANES * VBYTES];
} filling;

ALWAYS_INLINE void fill_step(filling *f)
{
    if (f->step < LANES / 4) {
        const uint8_t *w = f->w + 4 * f->step * f->row_bytes;
        uint8_t *room = f->room + 4 * f->step * VBYTES;
        vf x[4];
        for (int e = 0; e < 4; e++) x[e] = vf_load_at(w + e * f->row_bytes);
        vf_transpose4(x);
        for (int e = 0; e < 4; e++) vi_store(room + e * VBYTES, vi_bits(x[e]));
    } else {
        const int64_t k = f->step - LANES / 4;
        vi x[LANES / 4];
        for (int g = 0; g < LANES / 4; g++) x[g] = vi_load(f->room + (4 * g + k) * VBYTES);
        vi_transpose_quads(x);
        for (int g = 0; g < LANES / 4; g++) vi_store(f->out + (4 * g + k) * VBYTES, x[g]);
    }
    if (++f->step < FILL_STEPS) return;
    f->step = 0;
    f->w += VBYTES;
    f->out += LANES * VBYTES;
}

/* Fills the first columns, and leaves the rest to multiply_codes. */
static void begin_filling(filling *f, code_tile *tile, const mox_mat *m, const act_plan *p, int64_t row, int64_t col)
{
    f->row_bytes = m->cols / 2;
    f->w = m->w + row * f->row_bytes + col / 2;
    f->out = tile->codes;
    f->step = 0;
    f->ahead = p->unit > CHUNK ? p->unit : CHUNK;
    for (int64_t s = 0; s < f->ahead / CHUNK * FILL_STEPS; s++) fill_step(f);
}

/* Any other width, through bytes. */
static void fill_codes(code_tile *tile, const mox_mat *m, int64_t row, int64_t n_rows, int64_t col, int64_t n)
{
    const int bits = m->layout.bits;
    const int64_t row_bytes = m->cols * bits / 8;
    for (int64_t c = 0; c < n; c += VBYTES) {
        vi r[LANES];
        const int64_t left = n - c < VBYTES ? n - c : VBYTES;
        for (int64_t i = 0; i < LANES; i++) {
            uint8_t bytes[VBYTES] = {0};
            if (i < n_rows) unpack_codes(m->w + (row + i) * row_bytes, bits, col + c, left, row_bytes, bytes);
            r[i] = vi_load(bytes);
        }
        transpose(r);
        for (int64_t w = 0; w < left / 4; w++) vi_store(tile->codes + (c / 4 + w) * VBYTES, r[w]);
    }
}

/* ---- multiplying ---- */

/* How the codes of a tile lie: as bytes, as bytes of which some are 128 and more (where that
 * makes a difference), or packed in pairs, perhaps still to be filled. */
typedef enum code_kind { CODE_BYTES, CODE_WIDE, CODE_PAIRS, CODE_FILLED } code_kind;

/* NT tokens of a block over units [u0, u0 + n_units): y[t][lane], set or added to. */
ALWAYS_INLINE void multiply_codes(const int NT, const int PLANES, const code_kind KIND, const code_tile *tile, filling *f,
                                  const act_plan *p, const uint8_t *acts, int64_t u0, int64_t n_units, const next_tile *next,
                                  bool add, float *const *y)
{
    const bool pairs = KIND == CODE_PAIRS || KIND == CODE_FILLED;
    const int64_t words = p->unit / (pairs ? 8 : 4), plane = p->unit * NT;
    const uint8_t *x = acts + u0 * PLANES * plane;
    const float *scale = (const float *)(const void *)(acts + p->units * PLANES * plane) + u0 * NT, *sum = scale + p->units * NT;
    const uint8_t *codes = tile->codes;
    const int64_t n_fill = KIND == CODE_FILLED ? n_units - f->ahead / p->unit : 0, steps = FILL_STEPS * p->unit / CHUNK;
    vf acc[BLOCK_MAX];
#pragma GCC unroll 12
    for (int t = 0; t < NT; t++) acc[t] = add ? vf_load(y[t]) : vf_zero();
    for (int64_t u = 0; u < n_units; u++, codes += words * VBYTES) {
        vi i[BLOCK_MAX];
        if (next) fetch_unit(next, u0 + u);
#pragma GCC unroll 12
        for (int t = 0; t < NT; t++) i[t] = vi_zero();
#pragma GCC unroll 2
        for (int k = 0; k < PLANES; k++) {
            if (k > 0) {
#pragma GCC unroll 12
                for (int t = 0; t < NT; t++) i[t] = vi_shl(i[t], 8);
            }
            if (KIND == CODE_FILLED && u < n_fill)
                for (int64_t s = steps * k / PLANES; s < steps * (k + 1) / PLANES; s++) fill_step(f);
#pragma GCC unroll 1
            for (int64_t w = 0; w < words; w++, x += 4 * NT) {
                const vi c = vi_kept(vi_load(codes + w * VBYTES)), first = pairs ? vi_and(c, vi_set8(15)) : c;
#pragma GCC unroll 12
                for (int t = 0; t < NT; t++) i[t] = dot_broadcast(i[t], first, x, t, NT, KIND == CODE_WIDE);
                if (!pairs) continue;
                const vi second = vi_and(vi_shr4(c), vi_set8(15)); /* where the units that multiply are not needed */
                x += 4 * NT;
#pragma GCC unroll 12
                for (int t = 0; t < NT; t++) i[t] = dot_broadcast(i[t], second, x, t, NT, false);
            }
        }
        const vf s = vf_load(tile->scale + u * LANES), b = vf_load(tile->bias + u * LANES);
#pragma GCC unroll 12
        for (int t = 0; t < NT; t++) {
            acc[t] = vf_fma(vf_mul(vf_from_int(i[t]), s), vf_set(scale[u * NT + t]), acc[t]);
            acc[t] = vf_fma(b, vf_set(sum[u * NT + t]), acc[t]);
        }
    }
#pragma GCC unroll 12
    for (int t = 0; t < NT; t++) vf_store(y[t], acc[t]);
}

#endif
