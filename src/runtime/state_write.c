/* runtime/state_write.c -- writing prefixes to files; see state_file.h.
 *
 * Pages are copied piece by piece to a buffer before they are written, so that whoever needs them
 * back waits for a copy and never for the disk. */
#include "runtime/state_file.h"

#include "base/alloc.h"
#include "base/size.h"
#include "runtime/state_format.h"

#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { PIECE = 256 << 10 };
static const char zeros[8];

static mox_state_header make_header(const mox_state_shape *shape, int64_t n_tokens, int64_t n_states)
{
    mox_state_header h = {.order = MOX_STATE_ORDER,
                          .version = MOX_STATE_VERSION,
                          .key_bytes = strlen(shape->key),
                          .n_tokens = (uint64_t)n_tokens,
                          .n_states = (uint64_t)n_states,
                          .n_layers = shape->n_layers,
                          .page_len = shape->page_len,
                          .page_bytes = shape->page_bytes,
                          .state_bytes = shape->state_bytes,
                          .kv_type = shape->kv_type,
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
    mox_free(job->old);
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
static mox_status write_meta(mox_out *o, const mox_state_job *job, const mox_state_shape *shape,
                             XXH3_state_t *sum, mox_err *err)
{
    MOX_TRY(write_padded(o, shape->key, strlen(shape->key), sum, err));
    MOX_TRY(write_padded(o, job->tokens, (size_t)job->n_tokens * sizeof *job->tokens, sum, err));
    return write_padded(o, job->positions, (size_t)job->n_states * sizeof *job->positions, sum, err);
}

/* What is under way to the file. */
typedef struct passage {
    mox_out o;
    mox_state_gate *gate;
    char *piece; /* [PIECE] */
} passage;

/* Bytes of the context, for the file and for their checksum. */
static mox_status copy_out(passage *p, mox_dev *d, const void *from, size_t n, XXH3_state_t *sum, mox_err *err)
{
    const char *bytes = from;
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t take = n - at < PIECE ? n - at : PIECE;
        (void)pthread_mutex_lock(&p->gate->lock);
        const bool shut = p->gate->shut;
        const mox_status status = shut ? MOX_OK : d->memory.download(d, p->piece, bytes + at, (int64_t)take, err);
        (void)pthread_mutex_unlock(&p->gate->lock);
        MOX_TRY(status);
        if (shut) return mox_fail(err, MOX_E_CANCELLED, "what was to be written is needed elsewhere");
        (void)XXH3_64bits_update(sum, p->piece, take);
        MOX_TRY(mox_out_write(&p->o, p->piece, take, err));
    }
    return MOX_OK;
}

static mox_status write_page(passage *p, const mox_context *c, int32_t page, uint64_t *out, mox_err *err)
{
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int64_t j = 0; j < 2 * c->model->dims.n_layers; j++) {
        size_t bytes;
        const void *part = mox_page_part(c, page, j, &bytes);
        MOX_TRY(copy_out(p, mox_context_section_of(c, j / 2)->dev, part, bytes, &sum, err));
    }
    *out = XXH3_64bits_digest(&sum);
    return MOX_OK;
}

static mox_status write_state(passage *p, const mox_context *c, int32_t state, uint64_t *out, mox_err *err)
{
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    for (int j = 0; j < c->n_sections; j++) {
        size_t bytes;
        const float *piece = mox_state_piece(&c->sections[j], mox_state_saved(c, state), &bytes);
        MOX_TRY(copy_out(p, c->sections[j].dev, piece, bytes, &sum, err));
    }
    *out = XXH3_64bits_digest(&sum);
    return MOX_OK;
}

static mox_status write_data(passage *p, const mox_state_job *job, const mox_context *c, uint64_t *sums,
                             mox_err *err)
{
    const int64_t n = job->n_pages + job->n_states;
    for (int64_t i = 0; i < job->n_pages; i++) MOX_TRY(write_page(p, c, job->pages[i], &sums[i], err));
    for (int64_t i = job->n_pages; i < n; i++)
        MOX_TRY(write_state(p, c, job->states[i - job->n_pages], &sums[i], err));
    MOX_TRY(mox_out_write(&p->o, zeros, (size_t)(-p->o.written & 7), err));
    return mox_out_write(&p->o, sums, (size_t)n * sizeof *sums, err);
}

mox_status mox_state_job_write(const mox_state_job *job, const mox_context *c, const mox_state_shape *shape,
                               mox_state_gate *gate, mox_err *err)
{
    mox_state_header h = make_header(shape, job->n_tokens, job->n_states);
    XXH3_state_t sum;
    (void)XXH3_64bits_reset(&sum);
    (void)write_meta(NULL, job, shape, &sum, NULL);
    h.file_bytes = (uint64_t)mox_state_job_bytes(job, shape);
    h.meta_sum = XXH3_64bits_digest(&sum);
    h.header_sum = mox_state_header_sum(&h);
    passage p = {.o = MOX_OUT_CLOSED, .gate = gate, .piece = mox_alloc_array(PIECE, 1)};
    uint64_t *sums = mox_alloc_array((size_t)(job->n_pages + job->n_states), sizeof *sums);
    mox_status status =
        sums && p.piece ? mox_out_open_durable(&p.o, job->path, err) : mox_fail_memory(err, PIECE, job->path);
    if (status == MOX_OK) status = mox_out_write(&p.o, &h, sizeof h, err);
    if (status == MOX_OK) status = write_meta(&p.o, job, shape, NULL, err);
    if (status == MOX_OK) status = write_data(&p, job, c, sums, err);
    if (status == MOX_OK) status = mox_out_commit(&p.o, err);
    mox_out_discard(&p.o);
    mox_free(sums);
    mox_free(p.piece);
    return status;
}
