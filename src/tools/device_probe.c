/* tools/device_probe.c -- how fast a device copies its own memory, as a limit to hold steps against. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/size.h"
#include "runtime/context.h"

enum { COPIES = 8 };
static const int64_t most_bytes = 256 << 20; /* of each of two buffers: more than any cache of a GPU holds */

struct mox_device_probe {
    mox_dev *dev; /* of the context */
    void *from, *to;
    int64_t bytes; /* of each */
};

mox_status mox_device_probe_create(mox_device_probe **out, const mox_context *c, mox_err *err)
{
    *out = NULL;
    mox_dev *d = c->sections[0].dev;
    if (!d->apart) return mox_fail(err, MOX_E_UNSUPPORTED, "device %s has no memory of its own to copy", d->name);
    mox_device_probe *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "a probe");
    p->dev = d;
    p->bytes = mox_min_i64(most_bytes, mox_device_room(d) / 4);
    mox_status status = d->memory.alloc(d, p->bytes, &p->from, err);
    if (status == MOX_OK) status = d->memory.alloc(d, p->bytes, &p->to, err);
    if (status != MOX_OK) mox_device_probe_destroy(&p);
    *out = p;
    return status;
}

void mox_device_probe_destroy(mox_device_probe **probe)
{
    mox_device_probe *p = *probe;
    if (!p) return;
    p->dev->memory.free(p->dev, p->from, p->bytes);
    p->dev->memory.free(p->dev, p->to, p->bytes);
    mox_free(p);
    *probe = NULL;
}

mox_status mox_device_probe_copy(mox_device_probe *p, double *bytes_per_s, mox_err *err)
{
    MOX_TRY(p->dev->memory.sync(p->dev, err));
    const double begun = mox_clock_now();
    for (int i = 0; i < COPIES; i++) p->dev->memory.copy(p->dev, p->to, p->from, p->bytes);
    MOX_TRY(p->dev->memory.sync(p->dev, err));
    *bytes_per_s = 2.0 * COPIES * (double)p->bytes / (mox_clock_now() - begun);
    return MOX_OK;
}
