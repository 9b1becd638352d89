/* dev/cpu/cpu.h -- what the files of the CPU device share. */
#ifndef MOX_DEV_CPU_CPU_H
#define MOX_DEV_CPU_CPU_H

#include "dev/dev.h"

typedef struct mox_dev_cpu {
    mox_dev dev; /* first: a mox_dev of this device is one of these */
    mox_kern kern;
    mox_exec exec;
} mox_dev_cpu;

/* n matrices of a shape, of whose rows a list of n_rows begins. */
void mox_dev_cpu_expect(mox_dev *d, const mox_mat *w, int64_t n, int64_t n_rows);
mox_status mox_dev_cpu_moe_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);
mox_status mox_dev_cpu_moe_ffn(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);

#endif
