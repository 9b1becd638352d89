/* tests/fuzz/fuzz_state.c -- a file of kept states of any bytes.
 *
 *   MODE FILE   bit 0 of MODE: the size in the header and the checksums of header and tokens are made
 *               right; bit 1: those of pages and states, too, as far as the file has them
 *
 * What is accepted must keep what state_file.h promises, and all of it is read. */
#include "base/alloc.h"
#include "runtime/state_format.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void promise(int kept)
{
    if (!kept) abort();
}

enum { PAGE = 64, FLOATS = 2 };

static void make_right(unsigned char *file, size_t n, int mode)
{
    mox_state_header h;
    mox_state_layout l;
    if (n < sizeof h || !(mode & 1)) return;
    memcpy(&h, file, sizeof h);
    h.file_bytes = n;
    const bool fits = mox_state_lay_out(&h, &l) && l.file_bytes == (int64_t)n;
    if (fits) h.meta_sum = XXH3_64bits(file + sizeof h, (size_t)l.pages_at - sizeof h);
    h.header_sum = mox_state_header_sum(&h);
    memcpy(file, &h, sizeof h);
    if (!fits || !(mode & 2) || h.page_bytes != PAGE || h.state_bytes != FLOATS * sizeof(float)) return;
    for (int64_t i = 0; i < l.n_pages + (int64_t)h.n_states; i++) {
        const bool page = i < l.n_pages;
        const int64_t at = page ? l.pages_at + i * PAGE : l.states_at + (i - l.n_pages) * (int64_t)h.state_bytes;
        const uint64_t sum = XXH3_64bits(file + at, page ? PAGE : h.state_bytes);
        memcpy(file + l.sums_at + i * 8, &sum, sizeof sum);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    /* A context of one page and one state, with one layer that has one cache. */
    static unsigned char cache[PAGE];
    static float states[FLOATS];
    static mox_model model = {.dims.n_layers = 1, .recurrent_floats = FLOATS};
    static mox_layer_caches caches = {.first = {.data = cache, .type = MOX_DT_I8, .page_stride = PAGE}, .second = {.type = MOX_DT_I8}};
    static mox_context c = {.model = &model, .caches = &caches, .cache_bytes = PAGE, .n_sections = 1, .sections[0] = {.end = 1, .states = states, .state_floats = FLOATS},
                            .shares[MOX_SHARE_PAGES].n = 1};
    const mox_state_shape shape = mox_state_shape_of(&c, "key");
    if (n < 2) return 0;
    mox_file file;
    mox_state_file f;
    mox_err err = {0};
    promise(mox_file_memory(&file, "input", (int64_t)n - 1, &err) == MOX_OK);
    memcpy(file.map, data + 1, n - 1);
    make_right(file.map, n - 1, data[0]);
    const mox_status status = mox_state_file_parse(&f, file, &shape, &err);
    if (status != MOX_OK) {
        promise(err.status == status && err.msg[0] != '\0' && !f.tokens && !f.positions);
        return 0;
    }
    promise(f.n_tokens > 0 && f.n_pages == (f.n_tokens + MOX_PAGE_LEN - 1) / MOX_PAGE_LEN);
    int64_t last = 0, sum = 0;
    for (int64_t i = 0; i < f.n_tokens; i++) sum += f.tokens[i];
    for (int64_t i = 0; i < f.n_states; last = f.positions[i++]) promise(f.positions[i] > last && f.positions[i] <= f.n_tokens);
    for (int64_t i = 0; i < f.n_pages; i++) promise(mox_state_file_read_page(&f, i, &c, 0, &err) == MOX_OK || err.status == MOX_E_FORMAT);
    for (int64_t i = 0; i < f.n_states; i++) promise(mox_state_file_read_state(&f, i, &c, 0, &err) == MOX_OK || err.status == MOX_E_FORMAT);
    promise(sum != INT64_MIN);
    mox_state_file_close(&f);
    return 0;
}
