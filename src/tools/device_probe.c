/* tools/device_probe.c -- how fast a device copies its own memory, as a limit to hold steps against. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/size.h"
#include "runtime/context.h"

enum { COPIES = 8 };
/* Of each of two buffers: more than any cache of a GPU holds; and as few as still say something within a budget, which is
 * taken by units. */
static const int64_t most_bytes = 256 << 20, least_bytes = 64 << 20, unit_bytes = 2 << 20;

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
    const int64_t share = c->device_left < INT64_MAX ? c->device_left / 2 / unit_bytes * unit_bytes : most_bytes;
    if (share < least_bytes)
        return mox_fail(err, MOX_E_FULL, "device %s: its budget leaves %lld MiB, and a probe takes %lld at least", d->name,
                        (long long)(c->device_left >> 20), (long long)(2 * least_bytes >> 20));
    mox_device_probe *p = mox_alloc_array(1, sizeof *p);
    if (!p) return mox_fail_memory(err, sizeof *p, "a probe");
    p->dev = d;
    p->bytes = mox_min_i64(mox_min_i64(most_bytes, share), mox_device_room(d) / 4);
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
