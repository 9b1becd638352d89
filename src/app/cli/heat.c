/* app/cli/heat.c -- see heat.h.
 *
 * The file is a head of four 8-byte words (magic, model, number of experts, checksum) and a
 * 4-byte count per expert, all as they lie in memory. */
#include "app/cli/heat.h"

#include "app/cli/cache.h"
#include "app/cli/message.h"
#include "base/alloc.h"
#include "base/file.h"
#include "moxie/tools.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file is written as it lies in memory");

enum {
    MOST_TEXT = 1 << 28, /* bytes of a configuration or an index */
    MEAN_COUNT = 1000,   /* counts of an expert on average, beyond which all are halved: older runs fade */
};

typedef struct file_head {
    char magic[8];
    uint64_t model;
    int64_t n;
    uint64_t check; /* of all that is not this */
} file_head;

#define HASH_BEGIN 0xCBF29CE484222325u

/* FNV-1a. */
static uint64_t hash(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ at[i]) * 0x100000001B3u;
    return h;
}

static file_head head_of(const mox_cli_heat *h, const uint32_t *counts)
{
    file_head head = {.magic = "moxheat1", .model = h->model, .n = h->n};
    head.check = hash(hash(HASH_BEGIN, &head, offsetof(file_head, check)), counts, (size_t)h->n * sizeof *counts);
    return head;
}

/* What tells a model from others: its configuration, and its index where it has one.  False when they cannot be read. */
static bool hash_model(const char *dir, uint64_t *out)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json"};
    *out = HASH_BEGIN;
    for (int i = 0; i < 2; i++) {
        char *path = mox_path_join(dir, names[i]), *text = NULL;
        size_t n = 0;
        const mox_status status = path ? mox_file_slurp(path, MOST_TEXT, &text, &n, NULL) : MOX_E_MEMORY;
        if (status == MOX_OK) *out = hash(*out, text, n);
        mox_free(text);
        mox_free(path);
        if (status != MOX_OK && (i == 0 || status != MOX_E_NOT_FOUND)) return false;
    }
    return true;
}

/* False when there is nothing that can be used: no file, or, said here, one that is not what it should be. */
static bool read_counts(mox_cli_heat *h, bool quiet)
{
    char *bytes;
    size_t n;
    const size_t expected = sizeof(file_head) + (size_t)h->n * sizeof *h->counts;
    if (!mox_path_exists(h->path)) return false;
    bool good = mox_file_slurp(h->path, (int64_t)expected, &bytes, &n, NULL) == MOX_OK;
    if (good) {
        good = n == expected;
        if (good) {
            memcpy(h->counts, bytes + sizeof(file_head), n - sizeof(file_head));
            const file_head head = head_of(h, h->counts);
            good = memcmp(bytes, &head, sizeof head) == 0;
        }
        mox_free(bytes);
    }
    if (good) return true;
    memset(h->counts, 0, (size_t)h->n * sizeof *h->counts);
    if (!quiet)
        mox_cli_say("warning: %s is damaged or of another model, so no experts are read ahead; it is written anew", h->path);
    return false;
}

static int64_t count_experts(const mox_model *m)
{
    mox_inspection r;
    mox_model_inspect(m, &r);
    return r.n_layers * r.n_experts;
}

int64_t mox_cli_heat_bytes(const mox_model *m) { return 2 * count_experts(m) * (int64_t)sizeof(uint32_t); }

const uint32_t *mox_cli_heat_open(mox_cli_heat *h, const char *dir, const mox_model *m, bool quiet)
{
    *h = (mox_cli_heat){.n = count_experts(m)};
    if (h->n > 0 && hash_model(dir, &h->model)) {
        char name[64];
        (void)snprintf(name, sizeof name, "heat-%016llx.bin", (unsigned long long)h->model);
        h->path = mox_cli_cache_path(name);
        h->counts = mox_alloc_array(1, (size_t)mox_cli_heat_bytes(m));
    }
    if (!h->path || !h->counts) mox_cli_heat_close(h);
    return h->path && read_counts(h, quiet) ? h->counts : NULL;
}

static void add(mox_cli_heat *h, const uint32_t *run)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < h->n; i++) {
        const uint64_t both = (uint64_t)h->counts[i] + run[i];
        h->counts[i] = both < UINT32_MAX ? (uint32_t)both : UINT32_MAX;
        sum += h->counts[i];
    }
    for (; sum > (uint64_t)h->n * MEAN_COUNT; sum /= 2)
        for (int64_t i = 0; i < h->n; i++) h->counts[i] /= 2;
}

void mox_cli_heat_save(mox_cli_heat *h, const mox_context *c)
{
    mox_expert_stats stats = {0};
    if (h->path && c) mox_context_get_expert_stats(c, &stats);
    if (stats.n_slots == 0) return; /* it streamed nothing */
    mox_context_get_heat(c, h->counts + h->n);
    add(h, h->counts + h->n);
    const file_head head = head_of(h, h->counts);
    mox_out out;
    mox_cli_cache_make();
    if (mox_out_open(&out, h->path, NULL) == MOX_OK && mox_out_write(&out, &head, sizeof head, NULL) == MOX_OK &&
        mox_out_write(&out, h->counts, (size_t)h->n * sizeof *h->counts, NULL) == MOX_OK)
        (void)mox_out_commit(&out, NULL);
    mox_out_discard(&out);
}

void mox_cli_heat_close(mox_cli_heat *h)
{
    mox_free(h->path);
    mox_free(h->counts);
    *h = (mox_cli_heat){0};
}
