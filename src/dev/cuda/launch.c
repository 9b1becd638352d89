/* dev/cuda/launch.c -- launches, and steps that come again as graphs.
 *
 * A launch costs the processor microseconds and a decoded token has hundreds, so a step that
 * was launched before is sent as one graph.  While a step is recorded nothing is asked of the
 * driver.  At its end: the same kernels in the same order as a graph that is kept make it again,
 * after the nodes whose grid or parameters have changed were told so; a step seen for the
 * second time becomes a graph; one that is new is launched as it is.  So a prompt, which comes once,
 * costs no graph.
 *
 * Recording a launch takes the processor about a tenth of the time that the GPU takes for it.  So a step begins with parts of their own, each
 * longer than the one before, and the GPU works on one while the next is recorded.  Below, a step is such a part.
 *
 * Where the GPU can (compute capability 9), a kernel may start while the one before it ends; each
 * waits for the other's results at its own beginning.  See target_cuda.h. */
#include "dev/cuda/internal.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

static const struct {
    unsigned threads;
    size_t params_bytes;
} kernels[] = {
#define ENTRY(name, n_threads) {n_threads, sizeof(mox_gpu_##name)},
    MOX_GPU_KERNELS(ENTRY)
#undef ENTRY
};

static const char *const names[] = {
#define NAME(name, threads) "kernel " #name,
    MOX_GPU_KERNELS(NAME)
#undef NAME
};

/* ---- memory of steps ---- */

static mox_status step_init(mox_cuda_step *s, mox_err *err)
{
    s->launches = mox_alloc_array(MOX_CUDA_STEP_LAUNCHES, sizeof *s->launches);
    s->nodes = mox_alloc_array(MOX_CUDA_STEP_LAUNCHES, sizeof(CUgraphNode));
    s->params = mox_alloc(MOX_CUDA_STEP_BYTES);
    if (s->launches && s->nodes && s->params) return MOX_OK;
    return mox_fail_memory(err, MOX_CUDA_STEP_BYTES, "steps of the GPU");
}

mox_status mox_cuda_launch_init(mox_cuda *c, mox_err *err)
{
    MOX_TRY(step_init(&c->now, err));
    for (int i = 0; i < MOX_CUDA_STEPS; i++) MOX_TRY(step_init(&c->kept[i], err));
    return MOX_OK;
}

static void drop_graph(mox_cuda *c, mox_cuda_step *s)
{
    if (s->exec) (void)MOX_CUDA(&c->driver, cuGraphExecDestroy)(s->exec);
    if (s->graph) (void)MOX_CUDA(&c->driver, cuGraphDestroy)(s->graph);
    s->exec = NULL;
    s->graph = NULL;
}

static void forget_graph(mox_cuda *c, mox_cuda_step *s)
{
    drop_graph(c, s);
    s->n = 0;
    s->params_used = 0;
}

static void step_deinit(mox_cuda *c, mox_cuda_step *s)
{
    forget_graph(c, s);
    mox_free(s->launches);
    mox_free(s->nodes);
    mox_free(s->params);
}

void mox_cuda_launch_deinit(mox_cuda *c)
{
    step_deinit(c, &c->now);
    for (int i = 0; i < MOX_CUDA_STEPS; i++) step_deinit(c, &c->kept[i]);
}

/* ---- single launches ---- */

static void launch_now(mox_cuda *c, mox_gpu_kernel kernel, const unsigned groups[3], const void *params)
{
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {.gridDimX = groups[0], .gridDimY = groups[1], .gridDimZ = groups[2],
                                   .blockDimX = kernels[kernel].threads, .blockDimY = 1, .blockDimZ = 1, .hStream = c->stream,
                                   .attrs = &early, .numAttrs = c->overlaps ? 1 : 0};
    void *arguments[] = {(void *)(uintptr_t)params};
    if (!mox_cuda_fine(c)) return;
    (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuLaunchKernelEx)(&config, c->kernels[kernel], arguments, NULL), names[kernel]);
}

static void launch_each(mox_cuda *c, const mox_cuda_step *s)
{
    for (int i = 0; i < s->n; i++) launch_now(c, s->launches[i].kernel, s->launches[i].groups, s->params + s->launches[i].params_at);
}

void mox_cuda_flush(mox_cuda *c)
{
    if (!c->recording) return;
    c->recording = false;
    launch_each(c, &c->now);
    c->now.n = 0;
}

/* Launches of the first parts; the last has the rest. */
static const int part_launches[] = {8, 32, 96};

static void begin_part(mox_cuda *c, int part)
{
    c->recording = mox_cuda_fine(c);
    c->now.n = 0;
    c->now.params_used = 0;
    c->now.part = part;
}
static void end_part(mox_cuda *c);

/* Does it fit into the step? */
static bool record(mox_cuda_step *s, mox_gpu_kernel kernel, const unsigned groups[3], const void *params, size_t bytes)
{
    const size_t room = (bytes + 15) / 16 * 16;
    if (s->n == MOX_CUDA_STEP_LAUNCHES || s->params_used + room > MOX_CUDA_STEP_BYTES) return false;
    s->launches[s->n++] = (mox_cuda_launch){kernel, {groups[0], groups[1], groups[2]}, s->params_used};
    memcpy(s->params + s->params_used, params, bytes);
    s->params_used += room;
    return true;
}

void mox_cuda_launch_kernel(mox_gpu_backend *b, mox_gpu_kernel kernel, const int64_t groups[3], const void *params, size_t params_bytes)
{
    mox_cuda *c = (mox_cuda *)b;
    unsigned grid[3];
    assert(params_bytes == kernels[kernel].params_bytes);
    for (int i = 0; i < 3; i++) {
        if (groups[i] == 0) return;
        if (groups[i] < 0 || groups[i] > (i == 0 ? INT32_MAX : 65535)) {
            if (mox_cuda_fine(c))
                (void)mox_fail(&c->fault, MOX_E_DEVICE, "%s: a grid of %lld x %lld x %lld groups is not possible", names[kernel],
                               (long long)groups[0], (long long)groups[1], (long long)groups[2]);
            return;
        }
        grid[i] = (unsigned)groups[i];
    }
    const int part = c->now.part;
    if (c->recording && part < (int)(sizeof part_launches / sizeof *part_launches) && c->now.n == part_launches[part]) {
        end_part(c);
        begin_part(c, part + 1);
    }
    if (c->recording && record(&c->now, kernel, grid, params, params_bytes)) return;
    mox_cuda_enter(c);
    mox_cuda_flush(c);
    launch_now(c, kernel, grid, params);
    mox_cuda_leave(c);
}

/* ---- graphs ---- */

static bool same_kernels(const mox_cuda_step *a, const mox_cuda_step *b)
{
    if (a->n != b->n || a->part != b->part) return false;
    for (int i = 0; i < a->n; i++)
        if (a->launches[i].kernel != b->launches[i].kernel) return false;
    return true;
}

static uint64_t fingerprint(const mox_cuda_step *s)
{
    uint64_t hash = 0xCBF29CE484222325u ^ (uint64_t)s->part;
    for (int i = 0; i < s->n; i++) hash = (hash ^ (uint64_t)s->launches[i].kernel) * 0x100000001B3u;
    return hash;
}

static CUDA_KERNEL_NODE_PARAMS_v2 node_of(const mox_cuda *c, const mox_cuda_step *s, int i, void **argument)
{
    const mox_cuda_launch *l = &s->launches[i];
    *argument = s->params + l->params_at;
    return (CUDA_KERNEL_NODE_PARAMS_v2){.func = c->kernels[l->kernel], .gridDimX = l->groups[0], .gridDimY = l->groups[1],
                                        .gridDimZ = l->groups[2], .blockDimX = kernels[l->kernel].threads, .blockDimY = 1,
                                        .blockDimZ = 1, .kernelParams = argument};
}

static CUresult add_node(const mox_cuda *c, mox_cuda_step *s, int i)
{
    void *argument;
    const CUDA_KERNEL_NODE_PARAMS_v2 k = node_of(c, s, i, &argument);
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    params.kernel = (CUDA_KERNEL_NODE_PARAMS_v3){.func = k.func, .gridDimX = k.gridDimX, .gridDimY = k.gridDimY, .gridDimZ = k.gridDimZ,
                                                 .blockDimX = k.blockDimX, .blockDimY = 1, .blockDimZ = 1, .kernelParams = &argument};
    const CUgraphEdgeData edge = {.from_port = c->overlaps ? CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC : CU_GRAPH_KERNEL_NODE_PORT_DEFAULT,
                                  .type = c->overlaps ? CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC : CU_GRAPH_DEPENDENCY_TYPE_DEFAULT};
    return MOX_CUDA(&c->driver, cuGraphAddNode)(&s->nodes[i], s->graph, i > 0 ? &s->nodes[i - 1] : NULL, i > 0 ? &edge : NULL,
                                                i > 0 ? 1 : 0, &params);
}

/* Makes the recorded step a kept one, in place of the one that was not used for longest.  Without memory for a graph the step
 * stays as it is, no other is tried again, and NULL is returned. */
static mox_cuda_step *keep(mox_cuda *c)
{
    mox_cuda_step *oldest = &c->kept[0];
    for (int i = 1; i < MOX_CUDA_STEPS; i++)
        if (c->kept[i].last_used < oldest->last_used) oldest = &c->kept[i];
    /* An instance that still runs is destroyed when it has ended: the driver sees to that. */
    forget_graph(c, oldest);
    CUresult r = MOX_CUDA(&c->driver, cuGraphCreate)(&c->now.graph, 0);
    for (int i = 0; i < c->now.n && r == CUDA_SUCCESS; i++) r = add_node(c, &c->now, i);
    if (r == CUDA_SUCCESS) r = MOX_CUDA(&c->driver, cuGraphInstantiate)(&c->now.exec, c->now.graph, 0);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        drop_graph(c, &c->now);
        c->no_graphs = true;
        return NULL;
    }
    (void)mox_cuda_did(c, r, "making a graph");
    const mox_cuda_step empty = *oldest;
    *oldest = c->now;
    c->now = empty;
    return oldest;
}

/* Tells the nodes of a kept step what the recorded one has changed. */
static void update(mox_cuda *c, mox_cuda_step *s)
{
    for (int i = 0; i < s->n && mox_cuda_fine(c); i++) {
        mox_cuda_launch *l = &s->launches[i];
        const mox_cuda_launch *want = &c->now.launches[i];
        unsigned char *params = s->params + l->params_at;
        const unsigned char *wanted = c->now.params + want->params_at;
        const size_t bytes = kernels[l->kernel].params_bytes;
        if (memcmp(l->groups, want->groups, sizeof l->groups) == 0 && memcmp(params, wanted, bytes) == 0) continue;
        memcpy(l->groups, want->groups, sizeof l->groups);
        memcpy(params, wanted, bytes);
        void *argument;
        const CUDA_KERNEL_NODE_PARAMS_v2 k = node_of(c, s, i, &argument);
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuGraphExecKernelNodeSetParams)(s->exec, s->nodes[i], &k), names[l->kernel]);
    }
}

static mox_cuda_step *find_kept(mox_cuda *c)
{
    for (int i = 0; i < MOX_CUDA_STEPS; i++)
        if (c->kept[i].exec && same_kernels(&c->kept[i], &c->now)) return &c->kept[i];
    return NULL;
}

/* Has a step like this one come before?  It has now. */
static bool came_before(mox_cuda *c)
{
    const uint64_t print = fingerprint(&c->now);
    for (int i = 0; i < MOX_CUDA_STEPS; i++)
        if (c->plain_steps[i] == print) return true;
    c->plain_steps[c->n_steps % MOX_CUDA_STEPS] = print;
    return false;
}

void mox_cuda_begin_step(mox_gpu_backend *b)
{
    mox_cuda *c = (mox_cuda *)b;
    assert(!c->recording);
    begin_part(c, 0);
}

void mox_cuda_end_step(mox_gpu_backend *b) { end_part((mox_cuda *)b); }

static void end_part(mox_cuda *c)
{
    if (!c->recording || c->now.n == 0 || !mox_cuda_fine(c)) {
        c->recording = false;
        return;
    }
    mox_cuda_enter(c);
    mox_cuda_step *s = find_kept(c);
    if (s) update(c, s);
    else if (!c->no_graphs && came_before(c)) s = keep(c);
    if (s && mox_cuda_fine(c)) {
        c->recording = false;
        s->last_used = ++c->n_steps;
        (void)mox_cuda_did(c, MOX_CUDA(&c->driver, cuGraphLaunch)(s->exec, c->stream), "a graph");
    } else {
        c->n_steps++;
        mox_cuda_flush(c);
    }
    mox_cuda_leave(c);
}
