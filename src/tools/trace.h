/* tools/trace.h -- a recorded run in memory; docs/trace.md has the format of the file. */
#ifndef MOX_TOOLS_TRACE_H
#define MOX_TOOLS_TRACE_H

#include "base/buffer.h"
#include "moxie/tools.h"

typedef struct mox_trace_batch {
    int32_t layer;
    int64_t first; /* of its experts in ids */
} mox_trace_batch;

struct mox_trace {
    mox_trace_info info;
    mox_buffer batches; /* of mox_trace_batch, [n_batches + 1]: the last one ends those before it */
    mox_buffer ids;     /* of int32_t, [n_requests] */
};

static inline const mox_trace_batch *mox_trace_batches(const mox_trace *t) { return t->batches.data; }
static inline const int32_t *mox_trace_ids(const mox_trace *t) { return t->ids.data; }

#endif
