/* tools/manifest.h -- moxie.pack.json: the files of a packed model and checksums of
 * their pieces.
 *
 *   {"moxie_pack": 1, "complete": true, "source": "<16 digits>",
 *    "files": {"NAME": {"bytes": N, "pieces": [["PIECE", OFFSET, BYTES, "<16 digits>"], ...]}}}
 *
 * A piece is the header of a file, a dense tensor, an expert with its padding, or a whole
 * small file; pieces follow each other without a hole and cover their file.  Checksums are
 * XXH3 of 64 bits: they find damage, not malice.  `source` stands for the checkpoint that
 * was packed, so that packing goes on with the same one only. */
#ifndef MOX_TOOLS_MANIFEST_H
#define MOX_TOOLS_MANIFEST_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern const char mox_manifest_name[]; /* "moxie.pack.json" */

typedef struct mox_piece {
    char *name; /* "header", a tensor, or the path of an expert */
    int64_t offset, bytes;
    uint64_t sum;
} mox_piece;

typedef struct mox_packed_file {
    char *name;
    int64_t bytes;
    mox_piece *pieces;
    size_t n_pieces, capacity;
} mox_packed_file;

typedef struct mox_manifest {
    bool complete;
    uint64_t source;
    mox_packed_file *files;
    size_t n_files;
} mox_manifest;

/* MOX_E_NOT_FOUND: the folder has none. */
mox_status mox_manifest_read(mox_manifest *out, const char *dir, mox_err *err);
mox_status mox_manifest_write(const mox_manifest *m, const char *dir, mox_err *err);
void mox_manifest_deinit(mox_manifest *m); /* zeroed storage is fine */

mox_packed_file *mox_manifest_find(const mox_manifest *m, const char *file); /* or NULL */
/* Another file, empty as yet.  The pointer is good until the next call. */
mox_status mox_manifest_add_file(mox_manifest *m, const char *name, mox_packed_file **out, mox_err *err);
/* The piece that follows the last one. */
mox_status mox_manifest_add_piece(mox_packed_file *f, const char *name, int64_t bytes, uint64_t sum, mox_err *err);

#endif
