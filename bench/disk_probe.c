/* bench/disk_probe.c -- the probe of the disk by itself, for bench/disk, which holds fio against it.
 *
 *     bench/disk_probe DIR SECONDS
 *
 * For each line of its input, reads experts of the model in DIR with io_uring, 32 pieces of up to 512 KiB at a
 * time, for SECONDS, and says bytes per second. */
#include "moxie/tools.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    mox_err err;
    mox_model *m;
    mox_disk_probe *probe;
    mox_disk_speed way = {.uring = true, .n_at_once = 32, .piece_bytes = 512 << 10};
    if (argc != 3) {
        (void)fprintf(stderr, "usage: bench/disk_probe DIR SECONDS\n");
        return 2;
    }
    if (mox_model_open(&m, argv[1], NULL, &err) != MOX_OK || mox_disk_probe_create(&probe, m, 64 << 20, &err) != MOX_OK) {
        (void)fprintf(stderr, "bench/disk_probe: %s\n", err.msg);
        return 1;
    }
    for (int c; (c = getchar()) != EOF;) {
        if (c != '\n') continue;
        if (mox_disk_probe_try(probe, &way, atof(argv[2]), &err) != MOX_OK) {
            (void)fprintf(stderr, "bench/disk_probe: %s\n", err.msg);
            return 1;
        }
        printf("%.0f\n", way.bytes_per_s);
        (void)fflush(stdout);
    }
    mox_disk_probe_destroy(&probe);
    mox_model_close(&m);
    return 0;
}
