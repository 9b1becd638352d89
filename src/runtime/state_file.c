/* runtime/state_file.c -- reading prefixes from files of any bytes; see state_file.h. */
#include "runtime/state_file.h"

#include "base/alloc.h"
#include "base/plant.h"
#include "base/size.h"
#include "runtime/state_format.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { MAX_STATES = 1 << 12 };

mox_state_shape mox_state_shape_of(const mox_context *c, const char *key)
{
    return (mox_state_shape){.key = key, .n_layers = (uint64_t)c->model->dims.n_layers, .page_len = MOX_PAGE_LEN,
                             .page_bytes = (uint64_t)mox_page_bytes(c), .state_bytes = mox_state_bytes(c),
                             .kv_type = (uint64_t)c->kv_type, .precision = (uint64_t)c->precision};
}

/* *at += n * size, rounded up to 8; false when that wraps. */
static bool put(int64_t *at, uint64_t n, uint64_t size)
{
    int64_t bytes;
    if (n > INT64_MAX || size > INT64_MAX || !mox_mul_i64((int64_t)n, (int64_t)size, &bytes)) return false;
    if (!mox_add_i64(*at, bytes, at) || !mox_add_i64(*at, 7, at)) return false;
    *at &= ~INT64_C(7);
    return true;
}

bool mox_state_lay_out(const mox_state_header *h, mox_state_layout *l)
{
    int64_t at = (int64_t)sizeof *h;
    if (h->n_tokens == 0 || h->n_tokens > INT32_MAX || h->n_states > MAX_STATES || h->page_len == 0) return false;
    const uint64_t n_pages = (h->n_tokens - 1) / h->page_len + 1;
    l->n_pages = (int64_t)n_pages;
    if (!put(&at, h->key_bytes, 1)) return false;
    l->tokens_at = at;
    if (!put(&at, h->n_tokens, sizeof(int32_t))) return false;
    l->positions_at = at;
    if (!put(&at, h->n_states, sizeof(int64_t))) return false;
    l->pages_at = at;
    if (!put(&at, n_pages, h->page_bytes)) return false;
    l->states_at = at;
    if (!put(&at, h->n_states, h->state_bytes)) return false;
    l->sums_at = at;
    if (!put(&at, n_pages + h->n_states, sizeof(uint64_t))) return false;
    l->file_bytes = at;
    return true;
}

uint64_t mox_state_header_sum(const mox_state_header *h) { return XXH3_64bits(h, offsetof(mox_state_header, header_sum)); }

static mox_status check_header(const mox_file *file, const mox_state_header *h, const mox_state_shape *shape,
                               mox_state_layout *l, mox_err *err)
{
    const char *path = file->path;
    if (memcmp(h->magic, MOX_STATE_MAGIC, sizeof h->magic) != 0)
        return mox_fail(err, MOX_E_FORMAT, "%s: not a file of kept states", path);
    if (h->order != MOX_STATE_ORDER || h->version != MOX_STATE_VERSION)
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: states of another version of moxie or another machine", path);
    if (mox_state_header_sum(h) != h->header_sum) return mox_fail(err, MOX_E_FORMAT, "%s: its header is damaged", path);
    if (!mox_state_lay_out(h, l) || h->file_bytes != (uint64_t)l->file_bytes || l->file_bytes != file->size)
        return mox_fail(err, MOX_E_FORMAT, "%s: %lld bytes, which is not what its header says (cut short?)", path,
                        (long long)file->size);
    if (h->key_bytes != strlen(shape->key) || h->n_layers != shape->n_layers || h->page_len != shape->page_len ||
        h->page_bytes != shape->page_bytes || h->state_bytes != shape->state_bytes || h->kv_type != shape->kv_type ||
        h->precision != shape->precision)
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: states of another model, template or kind of cache", path);
    return MOX_OK;
}

static mox_status check_meta(const mox_state_file *f, const char *path, mox_err *err)
{
    for (int64_t i = 0; i < f->n_states; i++) {
        MOX_PLANT(f->positions[i] == 77);
        if (f->positions[i] < 1 || f->positions[i] > f->n_tokens || (i > 0 && f->positions[i] <= f->positions[i - 1]))
            return mox_fail(err, MOX_E_FORMAT, "%s: a state behind token %lld of %lld", path, (long long)f->positions[i], (long long)f->n_tokens);
    }
    return MOX_OK;
}

/* Key, tokens and positions: all that precedes the pages. */
static mox_status read_meta(mox_state_file *f, const mox_state_header *h, const mox_state_layout *l, const mox_state_shape *shape, mox_err *err)
{
    const size_t bytes = (size_t)l->pages_at - sizeof *h;
    char *meta = mox_alloc(bytes);
    f->tokens = mox_alloc_array((size_t)h->n_tokens, sizeof *f->tokens);
    f->positions = mox_alloc_array((size_t)h->n_states, sizeof *f->positions);
    mox_status status = MOX_OK;
    if (!meta || !f->tokens || !f->positions) status = mox_fail_memory(err, bytes, f->file.path);
    if (status == MOX_OK) status = mox_file_read_at(&f->file, (int64_t)sizeof *h, meta, bytes, err);
    if (status == MOX_OK && XXH3_64bits(meta, bytes) != h->meta_sum)
        status = mox_fail(err, MOX_E_FORMAT, "%s: its list of tokens is damaged", f->file.path);
    if (status == MOX_OK && memcmp(meta, shape->key, h->key_bytes) != 0)
        status = mox_fail(err, MOX_E_UNSUPPORTED, "%s: states of another model or template", f->file.path);
    if (status == MOX_OK) {
        memcpy(f->tokens, meta + l->tokens_at - sizeof *h, h->n_tokens * sizeof *f->tokens);
        if (h->n_states > 0) memcpy(f->positions, meta + l->positions_at - sizeof *h, h->n_states * sizeof *f->positions);
        f->n_tokens = (int64_t)h->n_tokens;
        f->n_states = (int64_t)h->n_states;
        status = check_meta(f, f->file.path, err);
    }
    mox_free(meta);
    return status;
}

mox_status mox_state_file_parse(mox_state_file *f, mox_file file, const mox_state_shape *shape, mox_err *err)
{
    mox_state_header h;
    mox_state_layout l = {0};
    *f = (mox_state_file){.file = file};
    mox_status status = MOX_OK;
    if (file.size < (int64_t)sizeof h) status = mox_fail(err, MOX_E_FORMAT, "%s: not a file of kept states", file.path);
    if (status == MOX_OK) status = mox_file_read_at(&file, 0, &h, sizeof h, err);
    if (status == MOX_OK) status = check_header(&file, &h, shape, &l, err);
    if (status == MOX_OK) {
        f->n_pages = l.n_pages;
        f->pages_at = l.pages_at;
        f->states_at = l.states_at;
        f->sums_at = l.sums_at;
        status = read_meta(f, &h, &l, shape, err);
    }
    if (status != MOX_OK) mox_state_file_close(f);
    return status;
}

mox_status mox_state_file_open(mox_state_file *f, const char *path, const mox_state_shape *shape, mox_err *err)
{
    mox_file file;
    *f = (mox_state_file){.file = MOX_FILE_CLOSED};
    MOX_TRY(mox_file_open_own(&file, path, err));
    return mox_state_file_parse(f, file, shape, err);
}

void mox_state_file_close(mox_state_file *f)
{
    mox_file_close(&f->file);
    mox_free(f->tokens);
    mox_free(f->positions);
    mox_free(f->window);
    *f = (mox_state_file){.file = MOX_FILE_CLOSED};
}

/* Compares the i-th checksum. */
static mox_status check_sum(const mox_state_file *f, int64_t i, uint64_t sum, mox_err *err)
{
    uint64_t want;
    MOX_TRY(mox_file_read_at(&f->file, f->sums_at + i * (int64_t)sizeof want, &want, sizeof want, err));
    return sum == want ? MOX_OK : mox_fail(err, MOX_E_FORMAT, "%s: its states are damaged", f->file.path);
}

/* Reads the bytes at *at, which moves on, to a device's memory: to their place where that is the host's, else
 * piece by piece by way of the window, which no plan has to count. */
static mox_status read_part(mox_state_file *f, const mox_section *on, void *to, size_t bytes, int64_t *at, XXH3_state_t *sum,
                            mox_err *err)
{
    enum { WINDOW_BYTES = 256 << 10 };
    const bool apart = on->dev && on->dev->apart;
    if (apart && !f->window) f->window = mox_alloc(WINDOW_BYTES);
    if (apart && !f->window) return mox_fail_memory(err, WINDOW_BYTES, f->file.path);
    for (size_t done = 0, n; done < bytes; done += n) {
        uint8_t *there = (uint8_t *)to + done;
        void *window = apart ? f->window : there;
        n = apart && bytes - done > WINDOW_BYTES ? WINDOW_BYTES : bytes - done;
        MOX_TRY(mox_file_read_at(&f->file, *at, window, n, err));
        (void)XXH3_64bits_update(sum, window, n);
        if (apart) on->dev->memory.upload(on->dev, there, window, (int64_t)n);
        *at += (int64_t)n;
    }
    return MOX_OK;
}

mox_status mox_state_file_read_page(mox_state_file *f, int64_t i, mox_context *c, int32_t page, mox_err *err)
{
    int64_t at = f->pages_at + i * mox_page_bytes(c);
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int64_t j = 0; j < 2 * c->model->dims.n_layers; j++) {
        size_t bytes;
        void *part = mox_page_part(c, page, j, &bytes);
        MOX_TRY(read_part(f, mox_context_section_of(c, j / 2), part, bytes, &at, &sum, err));
    }
    return check_sum(f, i, XXH3_64bits_digest(&sum), err);
}

mox_status mox_state_file_read_state(mox_state_file *f, int64_t i, mox_context *c, int32_t state, mox_err *err)
{
    int64_t at = f->states_at + i * (int64_t)mox_state_bytes(c);
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int j = 0; j < c->n_sections; j++) {
        size_t bytes;
        float *piece = mox_state_piece(&c->sections[j], mox_state_saved(c, state), &bytes);
        MOX_TRY(read_part(f, &c->sections[j], piece, bytes, &at, &sum, err));
    }
    return check_sum(f, f->n_pages + i, XXH3_64bits_digest(&sum), err);
}
