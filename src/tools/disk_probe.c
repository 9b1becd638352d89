/* tools/disk_probe.c -- how the reader of experts gets the most out of a disk.
 *
 * The reader itself (runtime/reader.h) reads at random places of the model's own files, for
 * a fraction of a second each time, as many and as long ranges at a time as an expert has:
 * with more and more threads, with io_uring, then with the best of these and ranges cut into
 * other pieces.  Disks differ too much for a constant: some are at their best with two reads
 * at a time, some need sixty.
 *
 * Speeds of a disk that is shared jump, so what needs less (fewer threads, the usual
 * pieces) wins unless something else is clearly faster, and the winner is measured once
 * more: the best of many noisy numbers would be too good. */
#include "tools/disk_probe.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/size.h"
#include "model/model.h"
#include "runtime/expert_place.h"

#include <string.h>

enum { MAX_JOBS = 64, USUAL_PIECE = 1 << 20, USUAL_AT_ONCE = 8 };
static const double try_s = 0.16, final_s = 0.4, settle_s = 0.02;
static const double clearly_faster = 1.05;

static const mox_disk_speed ways[] = {
    {.n_at_once = 1}, {.n_at_once = 2}, {.n_at_once = 4}, {.n_at_once = USUAL_AT_ONCE}, {.n_at_once = 16},
    {.uring = true, .n_at_once = 8}, {.uring = true, .n_at_once = 32},
};
static const int64_t other_pieces[] = {256 << 10, 512 << 10, 4 << 20};

/* Jobs are what an expert is: n_ranges ranges. */
struct mox_disk_probe {
    const mox_file *files;
    int32_t n_files;
    int32_t n_ranges;
    int64_t range_bytes[MOX_EXPERT_PARTS], n_places[MOX_EXPERT_PARTS]; /* bytes of files at which it can begin */
    int64_t job_bytes, longest, slot_bytes;
    int64_t n_slots;
    size_t block_bytes;
    uint8_t *block, *memory; /* [n_slots, slot_bytes], on a page of the block */
    mox_rng rng;
    /* of the reader at work: job i uses slots i, i + n_jobs, ... in turn, so that no cache of
     * the processor holds what is written, as none would hold experts */
    int n_jobs;
    int64_t round[MAX_JOBS];
    mox_read_job jobs[MAX_JOBS];
    mox_read_range ranges[MAX_JOBS][MOX_EXPERT_PARTS];
};

static int64_t places_in(const mox_file *f, int64_t read_bytes)
{
    return f->fd >= 0 && f->size >= read_bytes ? f->size - read_bytes + 1 : 0;
}

static int64_t room_of(int64_t bytes) { return mox_ceil_div(bytes, MOX_READ_ALIGN) * MOX_READ_ALIGN + MOX_READ_ALIGN; }

/* Reads anywhere; any byte is as likely a beginning as any other, as it is for experts. */
static void submit(mox_disk_probe *p, mox_reader *r, int i)
{
    const int64_t slot = i + p->n_jobs * (p->round[i]++ % (p->n_slots / p->n_jobs));
    uint8_t *dst = p->memory + slot * p->slot_bytes;
    for (int32_t k = 0; k < p->n_ranges; k++) {
        const int64_t bytes = p->range_bytes[k];
        int64_t at = (int64_t)(mox_rng_u64(&p->rng) % (uint64_t)p->n_places[k]);
        int32_t file = 0;
        while (at >= places_in(&p->files[file], bytes)) at -= places_in(&p->files[file++], bytes);
        p->ranges[i][k] = (mox_read_range){.file = file, .offset = at, .bytes = bytes, .dst = dst + at % MOX_READ_ALIGN};
        dst += room_of(bytes);
    }
    p->jobs[i] = (mox_read_job){.ranges = p->ranges[i], .n_ranges = p->n_ranges};
    mox_reader_submit(r, &p->jobs[i]);
}

/* Enough jobs to keep so many reads under way, and as many again waiting. */
static int jobs_for(const mox_disk_probe *p, const mox_disk_speed *way)
{
    int64_t pieces = 0;
    for (int32_t k = 0; k < p->n_ranges; k++) pieces += mox_ceil_div(p->range_bytes[k], way->piece_bytes);
    return (int)mox_min_i64(mox_min_i64(p->n_slots, MAX_JOBS), 1 + mox_ceil_div(2 * way->n_at_once, pieces));
}

/* Keeps the jobs under way for so long; bytes per second, 0 when there was no time for one. */
static mox_status keep_reading(mox_disk_probe *p, mox_reader *r, double seconds, double *bytes_per_s, mox_err *err)
{
    const double start = mox_clock_now() + settle_s;
    double last = start;
    int64_t n_done = 0;
    for (int i = 0; i < p->n_jobs; i++) submit(p, r, i);
    while (last - start < seconds) {
        const mox_read_job *job = mox_reader_wait(r, 60.0);
        if (!job) return mox_fail(err, MOX_E_IO, "the disk gave nothing for a minute");
        if (job->status != MOX_OK) return mox_fail(err, job->status, "%s", job->err.msg);
        last = job->done_s;
        n_done += last >= start;
        submit(p, r, (int)(job - p->jobs));
    }
    *bytes_per_s = (double)(n_done * p->job_bytes) / (last - start);
    return MOX_OK;
}

mox_status mox_disk_probe_try(mox_disk_probe *p, mox_disk_speed *way, double seconds, mox_err *err)
{
    mox_reader *r;
    if (way->n_at_once == 0) way->n_at_once = USUAL_AT_ONCE;
    if (way->piece_bytes == 0) way->piece_bytes = USUAL_PIECE;
    const mox_reader_opts opts = {.n_threads = way->n_at_once, .depth = way->n_at_once, .uring = way->uring,
                                  .piece_bytes = way->piece_bytes};
    MOX_TRY(mox_reader_open(&r, p->files, p->n_files, &opts, err));
    mox_reader_stats stats;
    mox_reader_get_stats(r, &stats);
    way->direct = stats.n_buffered == 0;
    way->bytes_per_s = 0.0;
    p->n_jobs = jobs_for(p, way);
    mox_status status = MOX_OK;
    if (stats.uring == way->uring) status = keep_reading(p, r, seconds, &way->bytes_per_s, err); /* else there is none */
    mox_reader_close(&r);
    return status;
}

mox_status mox_disk_probe_best(mox_disk_probe *p, mox_disk_speed *best, mox_err *err)
{
    mox_disk_speed tried[sizeof ways / sizeof *ways];
    const int n = sizeof ways / sizeof *ways;
    double most = 0.0;
    *best = (mox_disk_speed){0};
    for (int i = 0; i < n; i++) {
        tried[i] = ways[i];
        tried[i].piece_bytes = USUAL_PIECE;
        MOX_TRY(mox_disk_probe_try(p, &tried[i], try_s, err));
        if (tried[i].bytes_per_s > most) most = tried[i].bytes_per_s;
    }
    int i = 0;
    while (tried[i].bytes_per_s * clearly_faster < most) i++;
    *best = tried[i];
    for (size_t k = 0; k < sizeof other_pieces / sizeof *other_pieces; k++) {
        mox_disk_speed other = tried[i];
        other.piece_bytes = other_pieces[k];
        if (other.piece_bytes >= p->longest && USUAL_PIECE >= p->longest) continue; /* neither cuts anything */
        MOX_TRY(mox_disk_probe_try(p, &other, try_s, err));
        const double lead = best->piece_bytes == USUAL_PIECE ? clearly_faster : 1.0;
        if (other.bytes_per_s > best->bytes_per_s * lead) *best = other;
    }
    return mox_disk_probe_try(p, best, final_s, err);
}

static mox_status reserve(mox_disk_probe *p, int64_t bytes, mox_err *err)
{
    p->n_slots = mox_max_i64(1, (bytes - MOX_READ_ALIGN) / p->slot_bytes);
    p->block_bytes = (size_t)(p->n_slots * p->slot_bytes + MOX_READ_ALIGN);
    p->block = mox_alloc_pages(p->block_bytes);
    if (!p->block) return mox_fail_memory(err, p->block_bytes, "a probe of the disk");
    memset(p->block, 1, p->block_bytes); /* pages that are there: the disk is measured, not the allocation */
    p->memory = p->block + (MOX_READ_ALIGN - (uintptr_t)p->block % MOX_READ_ALIGN) % MOX_READ_ALIGN;
    mox_rng_init(&p->rng, (uint64_t)(mox_clock_now() * 1e9)); /* the disk may remember what was read before */
    return MOX_OK;
}

mox_status mox_disk_probe_create_files(mox_disk_probe **out, const mox_file *files, int32_t n_files, const int64_t *range_bytes,
                                       int32_t n_ranges, int64_t bytes, mox_err *err)
{
    *out = NULL;
    int64_t largest = 0;
    for (int32_t i = 0; i < n_files; i++)
        if (files[i].fd >= 0) largest = mox_max_i64(largest, files[i].size);
    if (largest == 0)
        return mox_fail(err, MOX_E_UNSUPPORTED, "the weights are not on a disk, so there is none to measure");
    mox_disk_probe *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "a probe of the disk");
    p->files = files;
    p->n_files = n_files;
    p->n_ranges = n_ranges;
    for (int32_t k = 0; k < n_ranges; k++) {
        const int64_t n = p->range_bytes[k] = mox_min_i64(range_bytes[k], largest);
        for (int32_t i = 0; i < n_files; i++) p->n_places[k] += places_in(&files[i], n);
        p->job_bytes += n;
        p->longest = mox_max_i64(p->longest, n);
        p->slot_bytes += room_of(n);
    }
    const mox_status status = reserve(p, bytes, err);
    if (status != MOX_OK) mox_disk_probe_destroy(&p);
    *out = p;
    return status;
}

mox_status mox_disk_probe_create(mox_disk_probe **out, const mox_model *m, int64_t bytes, mox_err *err)
{
    *out = NULL;
    for (int64_t i = 0; i < m->dims.n_layers; i++) {
        if (!m->layers[i].experts) continue;
        mox_expert_place place;
        mox_expert_place_find(&m->layers[i].experts[0], &place);
        int64_t range_bytes[MOX_EXPERT_PARTS];
        for (int32_t k = 0; k < place.n_ranges; k++) range_bytes[k] = place.ranges[k].bytes;
        return mox_disk_probe_create_files(out, m->tensors.files, m->tensors.n_files, range_bytes, place.n_ranges, bytes, err);
    }
    return mox_fail(err, MOX_E_UNSUPPORTED, "%s: the model has no routed experts, which are what is read", m->config.path);
}

void mox_disk_probe_destroy(mox_disk_probe **probe)
{
    mox_disk_probe *p = *probe;
    if (!p) return;
    mox_free_pages(p->block, p->block_bytes);
    mox_free(p);
    *probe = NULL;
}
