/* tests/fuzz/fuzz_safetensors.c -- a safetensors file of any bytes.
 *
 *   'h' lo hi HEADER   HEADER is parsed as if lo + 256 * hi bytes of data followed
 *   x FILE             FILE is opened as a file
 *
 * A file that is accepted must keep what safetensors.h promises. */
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void promise(int kept)
{
    if (!kept) abort();
}

/* Every tensor has the size of its shape, and together they are the data area. */
static void check(const mox_tensors *t, int64_t data_offset, int64_t data_bytes)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < t->n_tensors; i++) {
        const mox_tensor_info *info = &t->tensors[i];
        int64_t bytes = 1;
        promise(mox_dtype_bytes(info->dtype) > 0 && info->n_dims >= 0 && info->n_dims <= MOX_MAX_DIMS &&
                strlen(info->name) <= 512);
        for (int32_t d = 0; d < info->n_dims; d++) {
            promise(info->shape[d] >= 0);
            bytes *= info->shape[d];
        }
        bytes *= mox_dtype_bytes(info->dtype);
        promise(info->extent.file == 0 && bytes == info->extent.bytes && info->extent.offset >= data_offset &&
                info->extent.offset + bytes <= data_offset + data_bytes);
        sum += bytes;
    }
    promise(sum == data_bytes);
}

static void parse_header(const uint8_t *data, size_t n)
{
    const int64_t data_bytes = data[0] + 256 * data[1];
    mox_tensors t = {0};
    mox_err err = {0};
    const mox_status status =
        mox_safetensors_parse(&t, 0, "input", (const char *)data + 2, n - 2, (int64_t)n + 6, data_bytes, &err);
    if (status == MOX_OK)
        check(&t, (int64_t)n + 6, data_bytes);
    else
        promise(err.status == status && err.msg[0] != '\0');
    mox_tensors_close(&t);
}

static void open_file(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("input", 0);
        promise(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    promise(ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    mox_tensors t;
    mox_err err = {0};
    const mox_status status = mox_tensors_open_file(&t, path, &err);
    if (status == MOX_OK) {
        int64_t header = 0;
        for (int i = 7; i >= 0; i--) header = header << 8 | data[i];
        check(&t, 8 + header, (int64_t)n - 8 - header);
        for (int64_t i = 0; i < t.n_tensors; i++)
            promise(mox_tensors_find(&t, t.tensors[i].name) == &t.tensors[i]);
    } else {
        promise(err.status == status && err.msg[0] != '\0');
    }
    mox_tensors_close(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n >= 3 && data[0] == 'h')
        parse_header(data + 1, n - 1);
    else if (n >= 1)
        open_file(data + 1, n - 1);
    return 0;
}
