"""Quantized number formats, both ways: MLX affine groups and Hugging Face FP8 blocks.

Decoding is done in float64. The affine encoder follows the rule of MLX's CPU quantizer to the bit; see VECTORS.
"""
import zlib

import numpy as np

from checkpoint import encode

# ---- MLX affine: w = scale * code + bias over groups of consecutive columns; scales may be negative

def unpack_codes(words, bits):
    """[..., n] uint32 -> [..., 32 n / bits] codes. A row is one little-endian bit stream; element c owns bits
    c*bits ... c*bits+bits-1 of it, so 3-, 5- and 6-bit codes may straddle bytes and words."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    stream = stream.reshape(*words.shape[:-1], -1, bits)
    codes = stream[..., 0].copy()
    for b in range(1, bits):
        codes |= stream[..., b] << b
    return codes


def pack_codes(codes, bits):
    stream = (codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1).reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")


def affine_codes(w, bits, group):
    """-> codes [..., in] uint8, scales and biases [..., in/group] in float32, not rounded to their stored type."""
    g = np.asarray(w, np.float32).reshape(*w.shape[:-1], -1, group)
    n, one = np.float32(2 ** bits - 1), np.float32(1)
    high, low = g.max(-1, keepdims=True), g.min(-1, keepdims=True)
    negative_side = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / n, np.float32(1e-7))
    scale = np.where(negative_side, scale, -scale)
    edge = np.where(negative_side, low, high)
    q0 = np.rint(edge / scale)
    scale = np.where(q0 == 0, scale, edge / np.where(q0 == 0, one, q0))
    bias = np.where(q0 == 0, np.float32(0), edge)
    codes = np.clip(np.rint((g - bias) / scale), 0, n).astype(np.uint8)
    return codes.reshape(w.shape), scale[..., 0], bias[..., 0]


def affine_quantize(w, bits, group, scale_type="BF16"):
    """-> the three tensors of a quantized module: weight, scales, biases."""
    codes, scales, biases = affine_codes(w, bits, group)
    return encode(pack_codes(codes, bits), "U32"), encode(scales, scale_type), encode(biases, scale_type)


def affine_dequantize(words, scales, biases, bits, group):
    codes = unpack_codes(words, bits)
    if codes.shape[-1] != scales.shape[-1] * group:
        raise ValueError("bits/group_size in config.json do not fit the tensor shapes")
    weight = codes * np.repeat(scales.astype(np.float64), group, axis=-1)
    return weight + np.repeat(biases.astype(np.float64), group, axis=-1)


# ---- FP8: one multiplier per block of rows and columns; the last block of an axis may be cut

def e4m3(byte):
    """1 sign, 4 exponent, 3 mantissa bits; exponent bias 7; subnormals; no infinities."""
    sign = np.where(byte & 0x80, -1.0, 1.0)
    exponent, mantissa = (byte >> 3 & 15).astype(int), (byte & 7).astype(float)
    return sign * np.where(exponent == 0, mantissa * 2.0 ** -9, (8 + mantissa) * 2.0 ** (exponent - 10))


def e8m0(byte):
    return 2.0 ** (byte.astype(int) - 127)


E4M3_POSITIVE = e4m3(np.arange(127, dtype=np.uint8))            # ascending; 127 is not a number


def e4m3_nearest(x):
    code = np.searchsorted((E4M3_POSITIVE[1:] + E4M3_POSITIVE[:-1]) / 2, np.abs(x))
    return (code + np.where(x < 0, 128, 0)).astype(np.uint8)


def fp8_quantize(w, block, scale_type):
    """-> weight, weight_scale_inv. scale_type F32, BF16, F8_E8M0, or U8 (E8M0 without its name)."""
    rows, cols = (-(-n // b) for n, b in zip(w.shape, block))
    largest = np.zeros((rows, cols))
    for r in range(rows):
        for c in range(cols):
            largest[r, c] = np.abs(w[r * block[0]:(r + 1) * block[0], c * block[1]:(c + 1) * block[1]]).max()
    scale = np.maximum(largest, 1e-12) / 448
    if scale_type in ("F8_E8M0", "U8"):
        stored = encode(np.ceil(np.log2(scale)) + 127, scale_type)
        scale = e8m0(stored.array)
    else:
        stored = encode(scale, scale_type)
        scale = stored.values().astype(np.float64)
    return encode(e4m3_nearest(w / spread(scale, block, w.shape)), "F8_E4M3"), stored


def spread(scale, block, shape):
    return np.repeat(np.repeat(scale, block[0], axis=0), block[1], axis=1)[:shape[0], :shape[1]]


def fp8_dequantize(codes, scale, block):
    scale = e8m0(scale) if scale.dtype == np.uint8 else scale.astype(np.float64)
    return e4m3(codes) * spread(scale, block, codes.shape)


# ---- known answers: one group of 64, w[i] = ((37 i mod 64) - 20) / 32

VECTORS = {  # bits: (stored bf16 scale, first packed bytes, CRC-32 of all of them)
    2: (0xBF2C, "67e29974229d78269d49279e", 0xd27dacbd), 3: (0xBE8A, "9fd5f0b38a5d0d31abe16715", 0x1b4bb6a3),
    4: (0xBE0A, "6f4c1ae8c593715d2b09d6a4", 0xfd65c2c0), 5: (0xBD83, "bf695407ec0b1b1a1e57b748", 0x73f3be6d),
    6: (0xBD00, "bf5643ab11f297dca0839753", 0x749b2750), 8: (0xBBFD, "ff69d641ae1886f35dca35a2", 0x1a31dc7f)}


def wrong_vectors():
    """Widths whose encoder or decoder does not give the known answers."""
    w = ((((np.arange(64) * 37) % 64) - 20) / 32)[None]
    wrong = []
    for bits, (scale, head, crc) in VECTORS.items():
        words, scales, biases = affine_quantize(w, bits, 64)
        data = words.array.tobytes()
        right = scales.array[0, 0] == scale and biases.array[0, 0] == 0x3FAC and data[:12].hex() == head
        right = right and zlib.crc32(data) == crc
        right = right and (unpack_codes(words.array, bits) == affine_codes(w, bits, 64)[0]).all()
        if not right:
            wrong.append(bits)
    return wrong
