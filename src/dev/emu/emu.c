/* dev/emu/emu.c -- memory of the emulated device.
 *
 * Allocations begin at pages and have at least one unused page behind them, so that one
 * number per page, how many of its bytes are allocated, decides whether an access is inside. */
#include "dev/emu/internal.h"

#include "base/alloc.h"
#include "base/size.h"

#include <assert.h>
#include <string.h>

/* No process has memory there, on any processor that we know: following such an address
 * faults.  Devices are 2^44 bytes apart. */
static const uintptr_t first_base = (uintptr_t)0x00FE000000000000u;
enum { DEVICES = 8, DEVICE_SHIFT = 44 };
static _Atomic unsigned n_created;

mox_status mox_emu_create(mox_emu **out, int64_t bytes, mox_err *err)
{
    *out = NULL;
    if (bytes <= 0 || bytes > (int64_t)1 << DEVICE_SHIFT)
        return mox_fail(err, MOX_E_ARG, "an emulated device of %lld bytes is not possible", (long long)bytes);
    mox_emu *e = mox_alloc_array(1, sizeof *e);
    if (!e) return mox_fail_memory(err, sizeof *e, "the emulated device");
    e->bytes = (size_t)mox_ceil_div(bytes, MOX_EMU_PAGE) * MOX_EMU_PAGE;
    const size_t n_cells = e->bytes / 2;
    e->run.global.size = e->bytes;
    e->run.global.base = first_base + ((uintptr_t)(n_created++ % DEVICES) << DEVICE_SHIFT);
    e->run.global.data = mox_reserve_pages(e->bytes);
    e->run.global.cells = mox_reserve_pages(n_cells * sizeof(mox_emu_cell));
    e->page_bytes = mox_alloc_array(e->bytes / MOX_EMU_PAGE, sizeof *e->page_bytes);
    e->run.page_bytes = e->page_bytes;
    mox_status status = MOX_OK;
    if (!e->run.global.data || !e->run.global.cells || !e->page_bytes)
        status = mox_fail_memory(err, e->bytes, "the memory of the emulated device");
    if (status == MOX_OK) status = mox_emu_run_init(e, err);
    if (status != MOX_OK) mox_emu_destroy(&e);
    *out = e;
    return status;
}

void mox_emu_destroy(mox_emu **device)
{
    mox_emu *e = *device;
    if (!e) return;
    mox_emu_run_deinit(e);
    mox_free_pages(e->run.global.data, e->bytes);
    mox_free_pages(e->run.global.cells, e->bytes / 2 * sizeof(mox_emu_cell));
    mox_free(e->page_bytes);
    mox_free(e->blocks);
    mox_free(e);
    *device = NULL;
}

/* ---- allocation: first fit ---- */

static size_t pages_of(size_t bytes) { return (bytes + MOX_EMU_PAGE - 1) / MOX_EMU_PAGE; }

/* Bytes from the beginning of a block to where the next may begin. */
static size_t block_room(size_t bytes) { return (pages_of(bytes) + 1) * MOX_EMU_PAGE; }

static mox_status insert_block(mox_emu *e, int64_t i, mox_emu_block block, mox_err *err)
{
    if (e->n_blocks == e->blocks_capacity) {
        const int64_t capacity = e->blocks_capacity ? 2 * e->blocks_capacity : 64;
        mox_emu_block *blocks = mox_realloc_array(e->blocks, (size_t)capacity, sizeof *blocks);
        if (!blocks) return mox_fail_memory(err, (size_t)capacity * sizeof *blocks, "the list of allocations");
        e->blocks = blocks;
        e->blocks_capacity = capacity;
    }
    memmove(e->blocks + i + 1, e->blocks + i, (size_t)(e->n_blocks - i) * sizeof *e->blocks);
    e->blocks[i] = block;
    e->n_blocks++;
    return MOX_OK;
}

static void mark_pages(mox_emu *e, const mox_emu_block *b, bool allocated)
{
    for (size_t i = 0; i < pages_of(b->bytes); i++) {
        const size_t left = b->bytes - i * MOX_EMU_PAGE;
        e->page_bytes[b->at / MOX_EMU_PAGE + i] = !allocated ? 0 : (uint16_t)(left < MOX_EMU_PAGE ? left : MOX_EMU_PAGE);
    }
}

/* Copies wait for what was launched: a launch after one has nothing in front of it. */
static void settle(mox_emu *e) { e->run.launch_since = e->run.now + 1; }

static mox_status place(mox_emu *e, int64_t bytes, void *host, void **out, mox_err *err)
{
    *out = NULL;
    if (bytes < 0 || (uint64_t)bytes > e->bytes)
        return mox_fail(err, MOX_E_MEMORY, "the emulated device has %zu bytes, not %lld", e->bytes, (long long)bytes);
    const size_t size = bytes > 0 ? (size_t)bytes : 1; /* every allocation has an address of its own */
    size_t at = 0;
    int64_t i = 0;
    while (i < e->n_blocks && e->blocks[i].at - at < block_room(size)) {
        at = e->blocks[i].at + block_room(e->blocks[i].bytes);
        i++;
    }
    if (at > e->bytes || e->bytes - at < block_room(size))
        return mox_fail(err, MOX_E_MEMORY, "no room for %lld bytes on the emulated device", (long long)bytes);
    MOX_TRY(insert_block(e, i, (mox_emu_block){at, size, host}, err));
    mark_pages(e, &e->blocks[i], true);
    memset(e->run.global.data + at, 0xFF, size);
    settle(e);
    *out = (void *)(e->run.global.base + at);
    return MOX_OK;
}

mox_status mox_emu_alloc(mox_emu *e, int64_t bytes, void **out, mox_err *err) { return place(e, bytes, NULL, out, err); }
mox_status mox_emu_show(mox_emu *e, void *host, int64_t bytes, void **out, mox_err *err) { return place(e, bytes, host, out, err); }

void mox_emu_exchange(mox_emu *e, bool to_host)
{
    for (int64_t i = 0; i < e->n_blocks; i++) {
        const mox_emu_block *b = &e->blocks[i];
        unsigned char *data = e->run.global.data + b->at;
        if (b->host) (void)(to_host ? memcpy(b->host, data, b->bytes) : memcpy(data, b->host, b->bytes));
    }
}

void mox_emu_free(mox_emu *e, void *p)
{
    if (!p) return;
    const size_t at = (uintptr_t)p - e->run.global.base;
    int64_t i = 0;
    while (i < e->n_blocks && e->blocks[i].at != at) i++;
    assert(i < e->n_blocks); /* not an address that alloc returned */
    mark_pages(e, &e->blocks[i], false);
    e->n_blocks--;
    memmove(e->blocks + i, e->blocks + i + 1, (size_t)(e->n_blocks - i) * sizeof *e->blocks);
}

int64_t mox_emu_used(const mox_emu *e)
{
    size_t pages = 0;
    for (int64_t i = 0; i < e->n_blocks; i++) pages += e->blocks[i].host ? 0 : pages_of(e->blocks[i].bytes);
    return (int64_t)(pages * MOX_EMU_PAGE);
}

/* ---- copying ---- */

static mox_status find(const mox_emu *e, const void *p, int64_t bytes, unsigned char **data, mox_err *err)
{
    const size_t at = (uintptr_t)p - e->run.global.base;
    for (int64_t i = 0; i < e->n_blocks; i++) {
        const mox_emu_block *b = &e->blocks[i];
        if (at < b->at || at - b->at > b->bytes || bytes < 0 || (uint64_t)bytes > b->bytes - (at - b->at)) continue;
        *data = e->run.global.data + at;
        return MOX_OK;
    }
    return mox_fail(err, MOX_E_DEVICE, "%lld bytes at %p are not memory of the emulated device", (long long)bytes, p);
}

mox_status mox_emu_upload(mox_emu *e, void *p, const void *from, int64_t bytes, mox_err *err)
{
    e->was_hasty = false; /* a launch behind this begins when what is in front of it has ended */
    settle(e);
    unsigned char *data = NULL;
    if (bytes == 0) return MOX_OK;
    MOX_TRY(find(e, p, bytes, &data, err));
    memcpy(data, from, (size_t)bytes);
    return MOX_OK;
}

mox_status mox_emu_download(mox_emu *e, void *to, const void *p, int64_t bytes, mox_err *err)
{
    settle(e);
    unsigned char *data = NULL;
    if (bytes == 0) return MOX_OK;
    MOX_TRY(find(e, p, bytes, &data, err));
    memcpy(to, data, (size_t)bytes);
    return MOX_OK;
}

mox_status mox_emu_copy(mox_emu *e, void *to, const void *from, int64_t bytes, mox_err *err)
{
    settle(e);
    unsigned char *source = NULL;
    if (bytes == 0) return MOX_OK;
    MOX_TRY(find(e, from, bytes, &source, err));
    return mox_emu_upload(e, to, source, bytes, err);
}

mox_status mox_emu_zero(mox_emu *e, void *p, int64_t bytes, mox_err *err)
{
    settle(e);
    unsigned char *data = NULL;
    if (bytes == 0) return MOX_OK;
    MOX_TRY(find(e, p, bytes, &data, err));
    memset(data, 0, (size_t)bytes);
    return MOX_OK;
}
