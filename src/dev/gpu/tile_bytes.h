/* dev/gpu/tile_bytes.h -- products of bytes on targets that have matrix units for halves only. */
#ifndef MOX_DEV_GPU_TILE_BYTES_H
#define MOX_DEV_GPU_TILE_BYTES_H

GPU_FN uint32_t gpu_byte_of_each(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int32_t i)
{
    return (a >> (8 * i) & 0xFFu) | (b >> (8 * i) & 0xFFu) << 8 | (c >> (8 * i) & 0xFFu) << 16 | (d >> (8 * i) & 0xFFu) << 24;
}

/* Bytes 2 i and 2 i + 1 as a pair of f16, which is exact. */
GPU_FN uint32_t gpu_pair_of_bytes(uint32_t four, int32_t i, bool is_signed)
{
    const int32_t low = (int32_t)(four >> (16 * i) & 0xFFu), high = (int32_t)(four >> (16 * i + 8) & 0xFFu);
    return gpu_pack_f16((float)(is_signed && low > 127 ? low - 256 : low), (float)(is_signed && high > 127 ? high - 256 : high));
}

/* Sums of 32 products of bytes are exact in f32. */
GPU_FN void gpu_mma_bytes(GPU_PRIVATE(i32) *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    float sum[4];
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) sum[i] = 0.0f;
    gpu_mma(sum, gpu_pair_of_bytes(a0, 0, false), gpu_pair_of_bytes(a1, 0, false), gpu_pair_of_bytes(a0, 1, false),
            gpu_pair_of_bytes(a1, 1, false), gpu_pair_of_bytes(b0, 0, true), gpu_pair_of_bytes(b0, 1, true));
    gpu_mma(sum, gpu_pair_of_bytes(a2, 0, false), gpu_pair_of_bytes(a3, 0, false), gpu_pair_of_bytes(a2, 1, false),
            gpu_pair_of_bytes(a3, 1, false), gpu_pair_of_bytes(b1, 0, true), gpu_pair_of_bytes(b1, 1, true));
    GPU_UNROLL
    for (int32_t i = 0; i < 4; i++) c[i] += (int32_t)sum[i];
}

#endif
