/* dev/gpu/tile_emu.h -- tiles and copies of gpu.h on the emulator.
 *
 * Lanes hold other numbers of a tile than on any GPU, so a kernel that knows a layout by heart
 * is wrong here.  Every tile operation waits for the whole wave.  A copy poisons its target
 * when it is begun and arrives when it is waited for. */
#ifndef MOX_DEV_GPU_TILE_EMU_H
#define MOX_DEV_GPU_TILE_EMU_H

#include "dev/emu/tile.h"

typedef mox_emu_tile_a gpu_tile_a;
typedef mox_emu_tile_b gpu_tile_b;
typedef mox_emu_tile_c gpu_tile_c;

#define gpu_tile_get(c, i) ((c).v[i])
#define gpu_tile_set(c, i, x) ((void)((c)->v[i] = (x)))
#define gpu_load_quad(p, i) (*(const gpu_quad *)mox_emu_read((p) + (i), sizeof(gpu_quad), GPU_SITE))
#define gpu_store_quad(p, i, q) ((void)(*(gpu_quad *)mox_emu_write((p) + (i), sizeof(gpu_quad), GPU_SITE) = (q)))
#define gpu_is_aligned(p, n) (((uintptr_t)(p) & ((n) - 1)) == 0)

GPU_FN uint32_t gpu_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    float v[2];
    for (int i = 0; i < 2; i++) /* exact in f64 for what f16 holds, but for sums of very different sizes */
        v[i] = (float)((double)mox_f16_to_f32((uint16_t)(a >> (16 * i))) * (double)mox_f16_to_f32((uint16_t)(b >> (16 * i))) +
                       (double)mox_f16_to_f32((uint16_t)(c >> (16 * i))));
    return gpu_pack_f16(v[0], v[1]);
}

/* Not a row after the other, so that who adds up addresses by hand is wrong. */
GPU_FN int32_t gpu_tile_at(int32_t row, int32_t col, int32_t width)
{
    return row * width + ((col >> 3 ^ (row & 3)) << 3) + (col & 7);
}

GPU_FN gpu_tile_c gpu_tile_zero(void)
{
    const gpu_tile_c c = {{0.0f}};
    return c;
}

#define gpu_tile_row(lane, i) mox_emu_tile_row(lane, i)
#define gpu_tile_col(lane, i) mox_emu_tile_col(lane, i)
#define EMU_TILE_NUMBER(p, row, col, width) \
    (((const mox_emu_shared_u16 *)mox_emu_read((p) + gpu_tile_at(row, col, width), 2, site))->value)

GPU_FN gpu_tile_a emu_tile_load_a(const GPU_SHARED(u16) *p, int32_t row, int32_t col, int32_t width, int32_t lane, const char *site)
{
    gpu_tile_a t;
    mox_emu_wave(site);
    for (int32_t i = 0; i < 8; i++)
        t.h[i] = EMU_TILE_NUMBER(p, row + mox_emu_tile_row(lane, i), col + mox_emu_tile_col(lane, i), width);
    return t;
}
GPU_FN gpu_tile_b emu_tile_load_b(const GPU_SHARED(u16) *p, int32_t row, int32_t col, int32_t width, int32_t lane, bool across,
                                  const char *site)
{
    gpu_tile_b t;
    mox_emu_wave(site);
    for (int32_t i = 0; i < 8; i++) {
        const int32_t k = mox_emu_tile_row(lane, i), n = mox_emu_tile_col(lane, i);
        t.h[i] = EMU_TILE_NUMBER(p, row + (across ? k : n), col + (across ? n : k), width);
    }
    return t;
}
#define gpu_tile_load_a(p, row, col, width, lane) emu_tile_load_a(p, row, col, width, lane, GPU_SITE)
#define gpu_tile_load_b(p, row, col, width, lane) emu_tile_load_b(p, row, col, width, lane, false, GPU_SITE)
#define gpu_tile_load_b_across(p, row, col, width, lane) emu_tile_load_b(p, row, col, width, lane, true, GPU_SITE)

#define gpu_mma(c, a0, a1, a2, a3, b0, b1) mox_emu_mma_fragments(c, (const uint32_t[6]){a0, a1, a2, a3, b0, b1}, GPU_SITE)
#define gpu_tile_mma(c, a, b) mox_emu_mma(c, a, b, GPU_SITE)

GPU_FN gpu_tile_a gpu_tile_a_of(gpu_tile_c c)
{
    gpu_tile_a a;
    for (int i = 0; i < 8; i++) a.h[i] = mox_f32_to_f16(c.v[i]);
    return a;
}

GPU_FN void gpu_tile_a_set(gpu_tile_a *a, int32_t i, uint32_t pair)
{
    a->h[2 * i] = (uint16_t)pair;
    a->h[2 * i + 1] = (uint16_t)(pair >> 16);
}

#define GPU_SHARED_TILES(name, n) GPU_SHARED_ARRAY(u16, name, n)
GPU_FN void emu_rows_mma(gpu_tile_c *c, gpu_tile_a a, const GPU_SHARED(u16) *p, int32_t col, int32_t n, int32_t lane, const char *site)
{
    for (int32_t j = 0; j < n; j++) mox_emu_mma(&c[j], a, emu_tile_load_b(p, j * 16, col, 64, lane, false, site), site);
}
#define gpu_rows_mma(c, a, p, col, n, lane) emu_rows_mma(c, a, p, col, n, lane, GPU_SITE)
#define gpu_rows_begin() ((void)0)
#define gpu_rows_end() ((void)0)
#define gpu_rows_wait(n) ((void)0)
#define gpu_rows_barrier() gpu_barrier()

#define gpu_tile_row_sum(v, lane) mox_bits_f32(mox_emu_lanes(MOX_EMU_ROW_SUM, mox_f32_bits(v), lane, GPU_SITE))
#define gpu_tile_row_max(v, lane) mox_bits_f32(mox_emu_lanes(MOX_EMU_ROW_MAX, mox_f32_bits(v), lane, GPU_SITE))

#define gpu_copy_quad(to, i, from, j, there) mox_emu_copy_quad((to) + (i), (from) + (j), there, GPU_SITE)
#define gpu_copy_pair(to, i, from) mox_emu_copy_pair((to) + (i), from, GPU_SITE)
#define gpu_copy_commit() mox_emu_copy_commit()
#define gpu_copy_wait(n) mox_emu_copy_wait(n, GPU_SITE)

#endif
