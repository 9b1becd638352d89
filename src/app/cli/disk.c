/* app/cli/disk.c -- the cache of measured disks.
 *
 * A JSON array with one object per line.  Only lines that look exactly as they are written
 * here are believed, so a damaged or foreign file costs a measurement and nothing else; and
 * since the file can be lost at any time, nothing that goes wrong with it is worth a word. */
#include "app/cli/disk.h"

#include "app/cli/cache.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/size.h"
#include "base/writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE = 64 << 10, MAX_LINES = 128, MAX_LINE = 256, MAX_MEMORY = 128 << 20 };

#define LINE_FORMAT                                                                                             \
    "{\"device\": %" PRIu64 ", \"read_bytes\": %" PRId64 ", \"direct\": %d, \"uring\": %d, \"n_at_once\": %" PRId32 \
    ", \"piece_bytes\": %" PRId64 ", \"bytes_per_s\": %.0f}"
#define LINE_SCAN                                                                                               \
    "{\"device\": %" SCNu64 ", \"read_bytes\": %" SCNd64 ", \"direct\": %d, \"uring\": %d, \"n_at_once\": %" SCNd32 \
    ", \"piece_bytes\": %" SCNd64 ", \"bytes_per_s\": %lf}"

typedef struct entry {
    uint64_t device;
    int64_t read_bytes;
    mox_disk_speed speed;
} entry;

static bool parse_line(const char *line, entry *e)
{
    int direct, uring;
    mox_disk_speed *s = &e->speed;
    if (sscanf(line, LINE_SCAN, &e->device, &e->read_bytes, &direct, &uring, &s->n_at_once, &s->piece_bytes,
               &s->bytes_per_s) != 7)
        return false;
    s->direct = direct != 0;
    s->uring = uring != 0;
    return s->n_at_once >= 1 && s->n_at_once <= 256 && s->piece_bytes >= 4096 && s->piece_bytes <= INT32_MAX &&
           s->bytes_per_s > 0.0 && s->bytes_per_s < 1e15;
}

/* Entries of the file, at most MAX_LINES; 0 when there is none. */
static int load(const char *path, entry *entries)
{
    char *text;
    size_t n_bytes;
    int n = 0;
    if (mox_file_slurp(path, MAX_FILE, &text, &n_bytes, NULL) != MOX_OK) return 0;
    char *rest = text;
    for (char *line; n < MAX_LINES && (line = strsep(&rest, "\n"));)
        if (parse_line(line, &entries[n])) n++;
    mox_free(text);
    return n;
}

static void save(const char *path, const entry *entries, int n)
{
    mox_writer w = {0};
    mox_out out;
    mox_status status = mox_write_text(&w, "[\n", NULL);
    for (int i = 0; i < n && status == MOX_OK; i++) {
        char line[MAX_LINE];
        const entry *e = &entries[i];
        (void)snprintf(line, sizeof line, LINE_FORMAT "%s\n", e->device, e->read_bytes, e->speed.direct, e->speed.uring,
                       e->speed.n_at_once, e->speed.piece_bytes, e->speed.bytes_per_s, i < n - 1 ? "," : "");
        status = mox_write_text(&w, line, NULL);
    }
    if (status == MOX_OK) status = mox_write_text(&w, "]\n", NULL);
    if (status == MOX_OK) status = mox_out_open(&out, path, NULL);
    if (status == MOX_OK) status = mox_out_write(&out, mox_writer_text(&w), w.n, NULL);
    if (status == MOX_OK) (void)mox_out_commit(&out, NULL);
    mox_writer_deinit(&w);
}

/* Measures and, when there is a file to keep it in, adds to the n entries of it. */
static bool measure(const mox_model *m, int64_t bytes, entry *now, const char *path, entry *entries, int n)
{
    mox_disk_probe *probe;
    mox_status status = mox_disk_probe_create(&probe, m, mox_min_i64(bytes, MAX_MEMORY), NULL);
    if (status == MOX_OK) status = mox_disk_probe_best(probe, &now->speed, NULL);
    mox_disk_probe_destroy(&probe);
    if (status != MOX_OK || now->speed.bytes_per_s <= 0.0) return false;
    if (!path) return true;
    if (n == MAX_LINES) memmove(entries, entries + 1, (size_t)--n * sizeof *entries); /* the oldest goes */
    entries[n++] = *now;
    mox_cli_cache_make();
    save(path, entries, n);
    return true;
}

bool mox_cli_disk_speed(const mox_model *m, const char *dir, int64_t bytes, mox_disk_speed *out)
{
    entry now = {.read_bytes = mox_model_expert_slot_bytes(m)};
    entry *entries = mox_alloc_array(MAX_LINES, sizeof *entries);
    char *path = entries && mox_path_device(dir, &now.device) ? mox_cli_cache_path("disk.json") : NULL;
    const int n = path ? load(path, entries) : 0;
    int i = 0;
    while (i < n && (entries[i].device != now.device || entries[i].read_bytes != now.read_bytes)) i++;
    if (i < n) now = entries[i];
    const bool known = i < n || measure(m, bytes, &now, path, entries, n);
    *out = now.speed;
    mox_free(path);
    mox_free(entries);
    return known;
}
