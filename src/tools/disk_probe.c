/* tools/disk_probe.c -- how the reader of experts gets the most out of a disk.
 *
 * The reader itself (runtime/reader.h) reads at random places of the model's own files, for
 * a fraction of a second each time: with more and more threads, with io_uring, then with
 * the best of these and ranges cut into other pieces.  Disks differ too much for a constant:
 * some are at their best with two reads at a time, some need sixty.
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
#include "runtime/reader.h"

#include <string.h>

enum { MAX_JOBS = 64, MAX_MEMORY = 128 << 20, USUAL_PIECE = 1 << 20 };
static const double try_s = 0.16, final_s = 0.4, settle_s = 0.02;
static const double clearly_faster = 1.05;

static const mox_disk_speed ways[] = {
    {.n_at_once = 1}, {.n_at_once = 2}, {.n_at_once = 4}, {.n_at_once = 8}, {.n_at_once = 16},
    {.uring = true, .n_at_once = 8}, {.uring = true, .n_at_once = 32},
};
static const int64_t other_pieces[] = {256 << 10, 512 << 10, 4 << 20};

typedef struct probe {
    const mox_file *files;
    int32_t n_files;
    int64_t n_places; /* bytes of files at which a read can begin */
    int64_t read_bytes, slot_bytes;
    int64_t n_slots;
    uint8_t *memory; /* [n_slots, slot_bytes], on a page */
    mox_rng rng;
    /* of the reader at work: job i uses slots i, i + n_jobs, ... in turn, so that no cache of
     * the processor holds what is written, as none would hold experts */
    int n_jobs;
    int64_t round[MAX_JOBS];
    mox_read_job jobs[MAX_JOBS];
    mox_read_range ranges[MAX_JOBS];
} probe;

static int64_t places_in(const mox_file *f, int64_t read_bytes)
{
    return f->fd >= 0 && f->size >= read_bytes ? f->size - read_bytes + 1 : 0;
}

/* A read anywhere; any byte is as likely a beginning as any other, as it is for experts. */
static void submit(probe *p, mox_reader *r, int i)
{
    int64_t at = (int64_t)(mox_rng_u64(&p->rng) % (uint64_t)p->n_places);
    int32_t file = 0;
    while (at >= places_in(&p->files[file], p->read_bytes)) at -= places_in(&p->files[file++], p->read_bytes);
    const int64_t slot = i + p->n_jobs * (p->round[i]++ % (p->n_slots / p->n_jobs));
    p->ranges[i] = (mox_read_range){.file = file, .offset = at, .bytes = p->read_bytes,
                                    .dst = p->memory + slot * p->slot_bytes + at % MOX_READ_ALIGN};
    p->jobs[i] = (mox_read_job){.ranges = &p->ranges[i], .n_ranges = 1};
    mox_reader_submit(r, &p->jobs[i]);
}

/* Reads for so long and fills in what was seen. */
static mox_status measure(probe *p, mox_disk_speed *way, double seconds, mox_err *err)
{
    mox_reader *r;
    const mox_reader_opts opts = {.n_threads = way->n_at_once, .depth = way->n_at_once, .uring = way->uring,
                                  .piece_bytes = way->piece_bytes};
    MOX_TRY(mox_reader_open(&r, p->files, p->n_files, &opts, err));
    mox_reader_stats stats;
    mox_reader_get_stats(r, &stats);
    way->direct = stats.n_buffered == 0;
    way->bytes_per_s = 0.0;
    mox_status status = MOX_OK;
    if (stats.uring == way->uring) { /* else io_uring is not to be had */
        const int64_t pieces = mox_ceil_div(p->read_bytes, way->piece_bytes);
        p->n_jobs = (int)mox_min_i64(mox_min_i64(p->n_slots, MAX_JOBS), 1 + mox_ceil_div(2 * way->n_at_once, pieces));
        const double start = mox_clock_now() + settle_s;
        double last = start;
        int64_t n_done = 0;
        for (int i = 0; i < p->n_jobs; i++) submit(p, r, i);
        while (status == MOX_OK && last - start < seconds) {
            const mox_read_job *job = mox_reader_wait(r, 60.0);
            if (!job) status = mox_fail(err, MOX_E_IO, "the disk gave nothing for a minute");
            else if (job->status != MOX_OK) status = mox_fail(err, job->status, "%s", job->err.msg);
            else {
                last = job->done_s;
                n_done += last >= start;
                submit(p, r, (int)(job - p->jobs));
            }
        }
        if (n_done > 0) way->bytes_per_s = (double)(n_done * p->read_bytes) / (last - start);
    }
    mox_reader_close(&r);
    return status;
}

static mox_status find_best(probe *p, mox_disk_speed *best, mox_err *err)
{
    mox_disk_speed tried[sizeof ways / sizeof *ways];
    const int n = sizeof ways / sizeof *ways;
    double most = 0.0;
    for (int i = 0; i < n; i++) {
        tried[i] = ways[i];
        tried[i].piece_bytes = USUAL_PIECE;
        MOX_TRY(measure(p, &tried[i], try_s, err));
        if (tried[i].bytes_per_s > most) most = tried[i].bytes_per_s;
    }
    int i = 0;
    while (tried[i].bytes_per_s * clearly_faster < most) i++;
    *best = tried[i];
    for (size_t k = 0; k < sizeof other_pieces / sizeof *other_pieces; k++) {
        mox_disk_speed other = tried[i];
        other.piece_bytes = other_pieces[k];
        if (other.piece_bytes >= p->read_bytes && USUAL_PIECE >= p->read_bytes) continue; /* neither cuts anything */
        MOX_TRY(measure(p, &other, try_s, err));
        const double lead = best->piece_bytes == USUAL_PIECE ? clearly_faster : 1.0;
        if (other.bytes_per_s > best->bytes_per_s * lead) *best = other;
    }
    return measure(p, best, final_s, err);
}

mox_status mox_disk_probe_files(const mox_file *files, int32_t n_files, int64_t read_bytes, mox_disk_speed *out,
                                mox_err *err)
{
    *out = (mox_disk_speed){0};
    int64_t largest = 0;
    for (int32_t i = 0; i < n_files; i++)
        if (files[i].fd >= 0) largest = mox_max_i64(largest, files[i].size);
    if (largest == 0)
        return mox_fail(err, MOX_E_UNSUPPORTED, "the weights are not on a disk, so there is none to measure");
    if (read_bytes < 1)
        return mox_fail(err, MOX_E_ARG, "reads of %lld bytes cannot be measured", (long long)read_bytes);
    probe *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "a probe of the disk");
    p->files = files;
    p->n_files = n_files;
    p->read_bytes = mox_min_i64(read_bytes, mox_min_i64(largest, MAX_MEMORY / 2 - 2 * MOX_READ_ALIGN));
    for (int32_t i = 0; i < n_files; i++) p->n_places += places_in(&files[i], p->read_bytes);
    p->slot_bytes = mox_ceil_div(p->read_bytes, MOX_READ_ALIGN) * MOX_READ_ALIGN + MOX_READ_ALIGN;
    p->n_slots = MAX_MEMORY / p->slot_bytes;
    const size_t bytes = (size_t)(p->n_slots * p->slot_bytes + MOX_READ_ALIGN);
    uint8_t *block = mox_alloc_pages(bytes);
    mox_status status = MOX_OK;
    if (!block) status = mox_fail_memory(err, bytes, "a probe of the disk");
    else {
        memset(block, 1, bytes); /* pages that are there: the disk is measured, not the allocation */
        p->memory = block + (MOX_READ_ALIGN - (uintptr_t)block % MOX_READ_ALIGN) % MOX_READ_ALIGN;
        mox_rng_init(&p->rng, (uint64_t)(mox_clock_now() * 1e9)); /* the disk may remember what was read before */
        status = find_best(p, out, err);
    }
    mox_free_pages(block, bytes);
    mox_free(p);
    return status;
}

mox_status mox_disk_probe(const mox_model *m, int64_t read_bytes, mox_disk_speed *out, mox_err *err)
{
    return mox_disk_probe_files(m->residency.files, m->residency.n_files, read_bytes, out, err);
}
