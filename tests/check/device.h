/* tests/check/device.h -- operations on a device, as a level of the check program.
 *
 * A kernel table is filled with functions that bring the arguments of an operation to the
 * device, call its slot and fetch the results; so every test holds devices to the same contract
 * as kernels of the processor.  A whole buffer of a test goes over, guard bands left out: what
 * lies in gaps must come back as it was, and the emulated device finds accesses beyond its end.
 * What a slot refuses as unsupported is left to the reference, but each test must have
 * computed something on the device. */
#ifndef TESTS_CHECK_DEVICE_H
#define TESTS_CHECK_DEVICE_H

#include "check.h"
#include "dev/dev.h"

/* Planted bugs change the parameters of one kernel on its way to the device. */
typedef struct ck_device_plant {
    const char *op;
    int kernel;
    void (*change)(void *params);
} ck_device_plant;
extern const ck_device_plant ck_device_plants[]; /* ends with a NULL op */

/* Sequences of operations (MOX_DEV_SEQUENCES), which are of devices alone; with the experts of a layer. */
extern const ck_op ck_ops_sequences[];
void ck_device_project(const mox_project_args *g);
void ck_device_gqa_heads(const mox_gqa_heads_args *g);
void ck_device_mla_heads(const mox_mla_heads_args *g);
void ck_device_gdn_mix(const mox_gdn_mix_args *g);
void ck_device_moe_finish(const mox_moe_finish_args *g, const mox_expert *experts);

bool ck_device_has(const char *op);
/* NULL, or every operation of a device that no test is for, one after the other. */
const char *ck_device_untested(int i, bool (*tested)(const char *op));

/* Fills the table; plant may be NULL.  False when there is no such device here. */
bool ck_device_open(const char *name, mox_kern *kern, const ck_device_plant *plant);
void ck_device_close(void); /* fails the test when nothing was computed */

#endif
