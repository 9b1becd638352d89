/* dev/upload.h -- bytes of the host that go to a device, or come from one. */
#ifndef MOX_DEV_UPLOAD_H
#define MOX_DEV_UPLOAD_H

#include <stdint.h>

typedef struct mox_upload {
    void *to; /* memory of the device */
    const void *from;
    int64_t bytes;
} mox_upload;

typedef struct mox_fetch {
    void *to;
    const void *from; /* memory of the device */
    int64_t bytes;
} mox_fetch;

#endif
