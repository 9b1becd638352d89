/* base/sha256.c -- SHA-256 as the standard writes it down: sections 4 to 6 of FIPS 180-4.
 *
 * The constants are what the standard says they are, the first 32 bits of the fractional
 * parts of square and cube roots of the first primes. */
#include "base/sha256.h"

#include <string.h>

static const uint32_t first_state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static inline uint32_t load_big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64];
    for (int t = 0; t < 16; t++) w[t] = load_big_endian(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        const uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + w[t - 7] + (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        const uint32_t choice = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
        const uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + choice + round_constants[t] + w[t];
        const uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + majority;
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state[i] += sums[i];
}

void mox_sha256_init(mox_sha256 *s)
{
    *s = (mox_sha256){0};
    memcpy(s->state, first_state, sizeof s->state);
}

void mox_sha256_add(mox_sha256 *s, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    size_t waiting = (size_t)(s->n_bytes % sizeof s->block);
    s->n_bytes += n;
    while (n > 0) {
        if (waiting == 0 && n >= sizeof s->block) {
            compress(s->state, at);
            at += sizeof s->block;
            n -= sizeof s->block;
            continue;
        }
        const size_t room = sizeof s->block - waiting, m = n < room ? n : room;
        memcpy(s->block + waiting, at, m);
        waiting += m;
        at += m;
        n -= m;
        if (waiting < sizeof s->block) return;
        compress(s->state, s->block);
        waiting = 0;
    }
}

void mox_sha256_end(mox_sha256 *s, char out[MOX_SHA256_HEX + 1])
{
    static const uint8_t stop[64] = {0x80};
    static const char digits[] = "0123456789abcdef";
    const uint64_t n_bits = 8 * s->n_bytes;
    const size_t waiting = (size_t)(s->n_bytes % 64);
    mox_sha256_add(s, stop, (waiting < 56 ? 56 : 120) - waiting);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    mox_sha256_add(s, length, sizeof length);
    for (int i = 0; i < MOX_SHA256_HEX; i++) out[i] = digits[s->state[i / 8] >> (28 - i % 8 * 4) & 15];
    out[MOX_SHA256_HEX] = '\0';
}
