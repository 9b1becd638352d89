/* tools/trace.h -- a recorded run in memory; docs/trace.md has the format of the file. */
#ifndef MOX_TOOLS_TRACE_H
#define MOX_TOOLS_TRACE_H

#include "base/buffer.h"
#include "moxie/tools.h"

typedef struct mox_trace_event {
    mox_trace_kind what;
    int32_t layer; /* for MOX_TRACE_SLOTS: how many, and there are no experts */
    int64_t first; /* of its experts in ids */
} mox_trace_event;

struct mox_trace {
    mox_trace_info info;
    int64_t n_events, n_ids;
    mox_buffer events; /* of mox_trace_event, [n_events + 1]: the last one ends those before it */
    mox_buffer ids;    /* of int32_t, [n_ids] */
};

static inline const mox_trace_event *mox_trace_events(const mox_trace *t) { return t->events.data; }
static inline const int32_t *mox_trace_ids(const mox_trace *t) { return t->ids.data; }

#endif
