/* base/sha256.h -- SHA-256 (FIPS 180-4), as the Hugging Face cache names large files by
 * it.  For comparing files with their names; nothing secret passes through here. */
#ifndef MOX_BASE_SHA256_H
#define MOX_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { MOX_SHA256_HEX = 64 }; /* digits */

typedef struct mox_sha256 {
    uint32_t state[8];
    uint64_t n_bytes;
    uint8_t block[64]; /* its first n_bytes % 64 wait */
} mox_sha256;

void mox_sha256_init(mox_sha256 *s);
void mox_sha256_add(mox_sha256 *s, const void *bytes, size_t n);
/* Lower-case digits and a NUL.  The state is used up. */
void mox_sha256_end(mox_sha256 *s, char out[MOX_SHA256_HEX + 1]);

#endif
