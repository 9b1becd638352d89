/* app/cli/disk.h -- how fast the disk under a model reads, measured once per device. */
#ifndef MOX_APP_CLI_DISK_H
#define MOX_APP_CLI_DISK_H

#include "moxie/tools.h"

/* For ranges of read_bytes of the model in folder dir: what was measured before on the same
 * device, else two seconds of measuring, whose result is kept in
 * disk.json (app/cli/cache.h).  False when it is not
 * known; the program then goes on without. */
bool mox_cli_disk_speed(const mox_model *m, const char *dir, int64_t read_bytes, mox_disk_speed *out);

#endif
