/* tools/disk_probe.h -- mox_disk_probe of moxie/tools.h on files that need not be a model's. */
#ifndef MOX_TOOLS_DISK_PROBE_H
#define MOX_TOOLS_DISK_PROBE_H

#include "base/file.h"
#include "moxie/tools.h"

mox_status mox_disk_probe_files(const mox_file *files, int32_t n_files, int64_t read_bytes, mox_disk_speed *out,
                                mox_err *err);

#endif
