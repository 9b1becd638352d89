/* base/rng.h -- a small, fast, seedable generator (xoshiro256**, public domain
 * algorithm by Blackman and Vigna).  The same seed gives the same numbers on
 * every machine. */
#ifndef MOX_BASE_RNG_H
#define MOX_BASE_RNG_H

#include <stdint.h>

typedef struct mox_rng {
    uint64_t s[4];
} mox_rng;

static inline void mox_rng_init(mox_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) { /* splitmix64 fills the state, so that seed 0 is fine */
        uint64_t z = (seed += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        r->s[i] = z ^ (z >> 31);
    }
}

static inline uint64_t mox_rng_u64(mox_rng *r)
{
    const uint64_t x = r->s[1] * 5, result = ((x << 7) | (x >> 57)) * 9, t = r->s[1] << 17;
    r->s[2] ^= r->s[0];
    r->s[3] ^= r->s[1];
    r->s[1] ^= r->s[2];
    r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = (r->s[3] << 45) | (r->s[3] >> 19);
    return result;
}

/* Uniform in [0, 1), 53 bits. */
static inline double mox_rng_unit(mox_rng *r) { return (double)(mox_rng_u64(r) >> 11) * 0x1p-53; }

#endif
