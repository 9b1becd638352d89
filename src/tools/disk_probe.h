/* tools/disk_probe.h -- mox_disk_probe of moxie/tools.h on files that need not be a model's. */
#ifndef MOX_TOOLS_DISK_PROBE_H
#define MOX_TOOLS_DISK_PROBE_H

#include "base/file.h"
#include "moxie/tools.h"

/* Jobs of n_ranges ranges (1 to MOX_EXPERT_PARTS) of so many bytes each, 1 at least. */
mox_status mox_disk_probe_create_files(mox_disk_probe **out, const mox_file *files, int32_t n_files, const int64_t *range_bytes,
                                       int32_t n_ranges, int64_t bytes, mox_err *err);

#endif
