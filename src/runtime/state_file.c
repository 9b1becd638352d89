/* runtime/state_file.c -- writing and reading prefixes; see state_file.h. */
#include "runtime/state_file.h"

#include "base/alloc.h"
#include "base/cancel.h"
#include "base/plant.h"
#include "base/size.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { VERSION = 1, MAX_STATES = 1 << 12 };
#define ORDER UINT64_C(0x0102030405060708)
static const char magic[8] = {'m', 'o', 'x', 's', 't', 'a', 't', 'e'}, zeros[8];

typedef struct header {
    char magic[8];
    uint64_t order, version, file_bytes;
    uint64_t key_bytes, n_tokens, n_states;
    uint64_t n_layers, page_len, page_bytes, state_bytes, kv_type, precision;
    uint64_t meta_sum;   /* of key, tokens, positions, with their padding */
    uint64_t header_sum; /* of what precedes it */
} header;

/* Where things are in a file. */
typedef struct layout {
    int64_t n_pages, tokens_at, positions_at, pages_at, states_at, sums_at, file_bytes;
} layout;

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

static bool lay_out(const header *h, layout *l)
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

static uint64_t header_sum(const header *h) { return XXH3_64bits(h, offsetof(header, header_sum)); }

static header make_header(const mox_state_shape *shape, int64_t n_tokens, int64_t n_states)
{
    header h = {.order = ORDER, .version = VERSION, .key_bytes = strlen(shape->key), .n_tokens = (uint64_t)n_tokens,
                .n_states = (uint64_t)n_states, .n_layers = shape->n_layers, .page_len = shape->page_len,
                .page_bytes = shape->page_bytes, .state_bytes = shape->state_bytes, .kv_type = shape->kv_type,
                .precision = shape->precision};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

/* ---- reading ---- */

static mox_status check_header(const mox_file *file, const header *h, const mox_state_shape *shape, layout *l, mox_err *err)
{
    const char *path = file->path;
    if (memcmp(h->magic, magic, sizeof magic) != 0) return mox_fail(err, MOX_E_FORMAT, "%s: not a file of kept states", path);
    if (h->order != ORDER || h->version != VERSION)
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: states of another version of moxie or another machine", path);
    if (header_sum(h) != h->header_sum) return mox_fail(err, MOX_E_FORMAT, "%s: its header is damaged", path);
    if (!lay_out(h, l) || h->file_bytes != (uint64_t)l->file_bytes || l->file_bytes != file->size)
        return mox_fail(err, MOX_E_FORMAT, "%s: %lld bytes, which is not what its header says (cut short?)", path, (long long)file->size);
    if (h->key_bytes != strlen(shape->key) || h->n_layers != shape->n_layers || h->page_len != shape->page_len ||
        h->page_bytes != shape->page_bytes || h->state_bytes != shape->state_bytes || h->kv_type != shape->kv_type ||
        h->precision != shape->precision)
        return mox_fail(err, MOX_E_UNSUPPORTED, "%s: states of another model, template or kind of cache", path);
    return MOX_OK;
}

static mox_status check_meta(const mox_state_file *f, const char *path, mox_err *err)
{
    for (int64_t i = 0; i < f->n_states; i++) {
        MOX_PLANT(f->n_states == 3 && f->positions[i] == 77);
        if (f->positions[i] < 1 || f->positions[i] > f->n_tokens || (i > 0 && f->positions[i] <= f->positions[i - 1]))
            return mox_fail(err, MOX_E_FORMAT, "%s: a state behind token %lld of %lld", path, (long long)f->positions[i], (long long)f->n_tokens);
    }
    return MOX_OK;
}

/* Key, tokens and positions: all that precedes the pages. */
static mox_status read_meta(mox_state_file *f, const header *h, const layout *l, const mox_state_shape *shape, mox_err *err)
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
    header h;
    layout l = {0};
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
    *f = (mox_state_file){.file = MOX_FILE_CLOSED};
}

/* Compares the i-th checksum. */
static mox_status check_sum(const mox_state_file *f, int64_t i, uint64_t sum, mox_err *err)
{
    uint64_t want;
    MOX_TRY(mox_file_read_at(&f->file, f->sums_at + i * (int64_t)sizeof want, &want, sizeof want, err));
    return sum == want ? MOX_OK : mox_fail(err, MOX_E_FORMAT, "%s: its states are damaged", f->file.path);
}

mox_status mox_state_file_read_page(const mox_state_file *f, int64_t i, mox_context *c, int32_t page, mox_err *err)
{
    int64_t at = f->pages_at + i * mox_page_bytes(c);
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int64_t j = 0; j < 2 * c->model->dims.n_layers; j++) {
        size_t bytes;
        void *part = mox_page_part(c, page, j, &bytes);
        if (bytes == 0) continue;
        MOX_TRY(mox_file_read_at(&f->file, at, part, bytes, err));
        (void)XXH3_64bits_update(&sum, part, bytes);
        at += (int64_t)bytes;
    }
    return check_sum(f, i, XXH3_64bits_digest(&sum), err);
}

mox_status mox_state_file_read_state(const mox_state_file *f, int64_t i, mox_context *c, int32_t state, mox_err *err)
{
    const size_t bytes = mox_state_bytes(c);
    MOX_TRY(mox_file_read_at(&f->file, f->states_at + i * (int64_t)bytes, mox_state_at(c, state), bytes, err));
    return check_sum(f, f->n_pages + i, XXH3_64bits(mox_state_at(c, state), bytes), err);
}

/* ---- writing ---- */

mox_status mox_state_job_init(mox_state_job *job, int64_t n_tokens, int64_t n_states, mox_err *err)
{
    const int64_t n_pages = mox_ceil_div(n_tokens, MOX_PAGE_LEN);
    *job = (mox_state_job){.n_tokens = n_tokens, .n_pages = n_pages, .n_states = n_states};
    job->tokens = mox_alloc_array((size_t)n_tokens, sizeof *job->tokens);
    job->pages = mox_alloc_array((size_t)n_pages, sizeof *job->pages);
    job->states = mox_alloc_array((size_t)n_states, sizeof *job->states);
    job->positions = mox_alloc_array((size_t)n_states, sizeof *job->positions);
    if (job->tokens && job->pages && job->states && job->positions) return MOX_OK;
    mox_state_job_deinit(job);
    return mox_fail_memory(err, (size_t)n_tokens * sizeof *job->tokens, "a list of tokens");
}

void mox_state_job_deinit(mox_state_job *job)
{
    mox_free(job->path);
    mox_free(job->tokens);
    mox_free(job->pages);
    mox_free(job->states);
    mox_free(job->positions);
    *job = (mox_state_job){0};
}

int64_t mox_state_job_bytes(const mox_state_job *job, const mox_state_shape *shape)
{
    const header h = make_header(shape, job->n_tokens, job->n_states);
    layout l;
    return lay_out(&h, &l) ? l.file_bytes : -1;
}

/* Bytes and the zeros that fill them up to 8, also for the checksum. */
static mox_status write_padded(mox_out *o, const void *bytes, size_t n, XXH3_state_t *sum, mox_err *err)
{
    const size_t rest = -n & 7;
    if (sum) {
        if (n > 0) (void)XXH3_64bits_update(sum, bytes, n);
        (void)XXH3_64bits_update(sum, zeros, rest);
    }
    if (!o) return MOX_OK;
    MOX_TRY(mox_out_write(o, bytes, n, err));
    return mox_out_write(o, zeros, rest, err);
}

/* To the file, or, without one, to the checksum alone. */
static mox_status write_meta(mox_out *o, const mox_state_job *job, const mox_state_shape *shape, XXH3_state_t *sum, mox_err *err)
{
    MOX_TRY(write_padded(o, shape->key, strlen(shape->key), sum, err));
    MOX_TRY(write_padded(o, job->tokens, (size_t)job->n_tokens * sizeof *job->tokens, sum, err));
    return write_padded(o, job->positions, (size_t)job->n_states * sizeof *job->positions, sum, err);
}

static mox_status write_page(mox_out *o, const mox_context *c, int32_t page, uint64_t *out, mox_err *err)
{
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int64_t j = 0; j < 2 * c->model->dims.n_layers; j++) {
        size_t bytes;
        const void *part = mox_page_part(c, page, j, &bytes);
        if (bytes == 0) continue;
        (void)XXH3_64bits_update(&sum, part, bytes);
        MOX_TRY(mox_out_write(o, part, bytes, err));
    }
    *out = XXH3_64bits_digest(&sum);
    return MOX_OK;
}

static mox_status write_data(mox_out *o, const mox_state_job *job, const mox_context *c, uint64_t *sums, const mox_cancel *cancel,
                             mox_err *err)
{
    const size_t bytes = mox_state_bytes(c);
    for (int64_t i = 0; i < job->n_pages + job->n_states; i++) {
        if (mox_cancelled(cancel)) return mox_fail(err, MOX_E_CANCELLED, "%s: cancelled", job->path);
        if (i < job->n_pages) {
            MOX_TRY(write_page(o, c, job->pages[i], &sums[i], err));
        } else {
            const float *state = mox_state_at(c, job->states[i - job->n_pages]);
            sums[i] = XXH3_64bits(state, bytes);
            MOX_TRY(mox_out_write(o, state, bytes, err));
        }
    }
    MOX_TRY(mox_out_write(o, zeros, (size_t)(-o->written & 7), err));
    return mox_out_write(o, sums, (size_t)(job->n_pages + job->n_states) * sizeof *sums, err);
}

mox_status mox_state_job_write(const mox_state_job *job, const mox_context *c, const mox_state_shape *shape,
                               const mox_cancel *cancel, mox_err *err)
{
    header h = make_header(shape, job->n_tokens, job->n_states);
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    (void)write_meta(NULL, job, shape, &sum, NULL);
    h.file_bytes = (uint64_t)mox_state_job_bytes(job, shape);
    h.meta_sum = XXH3_64bits_digest(&sum);
    h.header_sum = header_sum(&h);
    mox_out o = MOX_OUT_CLOSED;
    uint64_t *sums = mox_alloc_array((size_t)(job->n_pages + job->n_states), sizeof *sums);
    mox_status status = sums ? mox_out_open_durable(&o, job->path, err) : mox_fail_memory(err, sizeof *sums, job->path);
    if (status == MOX_OK) status = mox_out_write(&o, &h, sizeof h, err);
    if (status == MOX_OK) status = write_meta(&o, job, shape, NULL, err);
    if (status == MOX_OK) status = write_data(&o, job, c, sums, cancel, err);
    if (status == MOX_OK) status = mox_out_commit(&o, err);
    mox_out_discard(&o);
    mox_free(sums);
    return status;
}
