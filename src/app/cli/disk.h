/* app/cli/disk.h -- how fast the disk under a model reads, measured once per device. */
#ifndef MOX_APP_CLI_DISK_H
#define MOX_APP_CLI_DISK_H

#include "moxie/tools.h"

/* As experts of the model in folder dir are read: what was measured before on the same device for
 * experts of that size, else two seconds of measuring with so many bytes of memory, whose result is
 * kept in disk.json (app/cli/cache.h).  False when it is not known; the program then goes on without. */
bool mox_cli_disk_speed(const mox_model *m, const char *dir, int64_t bytes, mox_disk_speed *out);

#endif
