/* ops/simd/embed.c -- rows of an embedding table, for one level.
 *
 * Affine rows are one fused multiply-add per element, which rounds once as decoding
 * does; bf16 is a shift.  Other layouts are decoded as everywhere else. */
#include "ops/kern.h"
#include "ops/simd/weights.h"

enum { PIECE = 512 }; /* codes unpacked at a time: whole groups */

static void decode_affine(const mox_mat *m, int64_t row, float *out)
{
    const mox_mat_layout *l = &m->layout;
    const int64_t row_bytes = mox_mat_row_bytes(l, m->cols), first = row * (m->cols / l->group);
    const uint8_t *packed = m->w + row * row_bytes;
    const uint8_t *codes = packed;
    uint8_t unpacked[PIECE];
    for (int64_t c = 0; c < m->cols; c += l->group, codes += l->group) {
        const vf scale = vf_set(mox_load_as_f32(m->scales, l->scale_type, first + c / l->group));
        const vf bias = vf_set(mox_load_as_f32(m->biases, l->scale_type, first + c / l->group));
        if (l->bits != 8 && c % PIECE == 0) {
            unpack_codes(packed, l->bits, c, m->cols - c < PIECE ? m->cols - c : PIECE, row_bytes, unpacked);
            codes = unpacked;
        }
        for (int64_t i = 0; i < l->group; i += LANES)
            vf_store(out + c + i, vf_fma(vf_from_int(vi_load_u8_wide(codes + i)), scale, bias));
    }
}

static void decode_bf16(const uint8_t *row, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vf_store(out + i, vf_load_bf16(row + 2 * i));
    for (; i < n; i++) out[i] = mox_bf16_to_f32(mox_load_u16(row + 2 * i));
}

void MOX_AT(mox_embed)(const mox_embed_args *a, int64_t begin, int64_t end)
{
    const mox_mat *m = &a->table;
    for (int64_t t = begin; t < end; t++) {
        float *out = a->out + t * a->out_stride;
        if (m->layout.kind == MOX_MAT_AFFINE) decode_affine(m, a->ids[t], out);
        else if (m->layout.kind == MOX_MAT_BF16) decode_bf16(m->w + a->ids[t] * 2 * m->cols, m->cols, out);
        else mox_mat_decode(m, a->ids[t], 0, m->cols, out);
    }
}
