/* runtime/state_write.c -- writing prefixes to files; see state_file.h. */
#include "runtime/state_file.h"

#include "base/alloc.h"
#include "base/cancel.h"
#include "base/size.h"
#include "runtime/state_format.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

static const char zeros[8];

static mox_state_header make_header(const mox_state_shape *shape, int64_t n_tokens, int64_t n_states)
{
    mox_state_header h = {.order = MOX_STATE_ORDER, .version = MOX_STATE_VERSION, .key_bytes = strlen(shape->key), .n_tokens = (uint64_t)n_tokens,
                .n_states = (uint64_t)n_states, .n_layers = shape->n_layers, .page_len = shape->page_len,
                .page_bytes = shape->page_bytes, .state_bytes = shape->state_bytes, .kv_type = shape->kv_type,
                .precision = shape->precision};
    memcpy(h.magic, MOX_STATE_MAGIC, sizeof h.magic);
    return h;
}

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
    const mox_state_header h = make_header(shape, job->n_tokens, job->n_states);
    mox_state_layout l;
    return mox_state_lay_out(&h, &l) ? l.file_bytes : -1;
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

static mox_status write_page(mox_out *o, const mox_context *c, int32_t page, void *buffer, uint64_t *out, mox_err *err)
{
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int64_t j = 0; j < 2 * c->model->dims.n_layers; j++) {
        size_t bytes;
        const void *part = mox_page_part(c, page, j, &bytes);
        if (bytes == 0) continue;
        MOX_TRY(mox_window_look(c, part, bytes, buffer, &part, err));
        (void)XXH3_64bits_update(&sum, part, bytes);
        MOX_TRY(mox_out_write(o, part, bytes, err));
    }
    *out = XXH3_64bits_digest(&sum);
    return MOX_OK;
}

static mox_status write_data(mox_out *o, const mox_state_job *job, const mox_context *c, void *buffer, uint64_t *sums,
                             const mox_cancel *cancel, mox_err *err)
{
    const size_t bytes = mox_state_bytes(c);
    for (int64_t i = 0; i < job->n_pages + job->n_states; i++) {
        if (mox_cancelled(cancel)) return mox_fail(err, MOX_E_CANCELLED, "%s: cancelled", job->path);
        if (i < job->n_pages) {
            MOX_TRY(write_page(o, c, job->pages[i], buffer, &sums[i], err));
        } else {
            const void *state;
            MOX_TRY(mox_window_look(c, mox_state_at(c, job->states[i - job->n_pages]), bytes, buffer, &state, err));
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
    mox_state_header h = make_header(shape, job->n_tokens, job->n_states);
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    (void)write_meta(NULL, job, shape, &sum, NULL);
    h.file_bytes = (uint64_t)mox_state_job_bytes(job, shape);
    h.meta_sum = XXH3_64bits_digest(&sum);
    h.header_sum = mox_state_header_sum(&h);
    mox_out o = MOX_OUT_CLOSED;
    uint64_t *sums = mox_alloc_array((size_t)(job->n_pages + job->n_states), sizeof *sums);
    void *buffer = mox_alloc(mox_window_bytes(c));
    mox_status status = sums && buffer ? mox_out_open_durable(&o, job->path, err) : mox_fail_memory(err, sizeof *sums, job->path);
    if (status == MOX_OK) status = mox_out_write(&o, &h, sizeof h, err);
    if (status == MOX_OK) status = write_meta(&o, job, shape, NULL, err);
    if (status == MOX_OK) status = write_data(&o, job, c, buffer, sums, cancel, err);
    if (status == MOX_OK) status = mox_out_commit(&o, err);
    mox_out_discard(&o);
    mox_free(sums);
    mox_free(buffer);
    return status;
}
