/* runtime/state_format.h -- how a file of states is laid out; for those that read and write it.
 * See state_file.h. */
#ifndef MOX_RUNTIME_STATE_FORMAT_H
#define MOX_RUNTIME_STATE_FORMAT_H

#include "runtime/state_file.h"

enum { MOX_STATE_VERSION = 1 };
#define MOX_STATE_MAGIC "moxstate"
#define MOX_STATE_ORDER UINT64_C(0x0102030405060708)

typedef struct mox_state_header {
    char magic[8];
    uint64_t order, version, file_bytes;
    uint64_t key_bytes, n_tokens, n_states;
    uint64_t n_layers, page_len, page_bytes, state_bytes, kv_type, precision;
    uint64_t meta_sum;   /* of key, tokens, positions, with their padding */
    uint64_t header_sum; /* of what precedes it */
} mox_state_header;

/* Where things are. */
typedef struct mox_state_layout {
    int64_t n_pages, tokens_at, positions_at, pages_at, states_at, sums_at, file_bytes;
} mox_state_layout;
/* False: no file can be like that. */
bool mox_state_lay_out(const mox_state_header *h, mox_state_layout *l);
uint64_t mox_state_header_sum(const mox_state_header *h);

#endif
