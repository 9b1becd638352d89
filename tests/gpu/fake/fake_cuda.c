/* tests/gpu/fake/fake_cuda.c -- a driver for GPUs that are not there, and that fail when they are told to.
 *
 * The loader finds it as libcuda.so.1 where LD_LIBRARY_PATH leads to it.  Copies are real and memory of a GPU
 * is memory of the host; kernels do nothing, so what a model answers is nonsense.  FAKE_CUDA says how it
 * behaves, as words between blanks:
 *
 *   version=12040   what the driver supports          init=N      what cuInit answers
 *   gpus=N          how many there are (1)            arch=75     compute capability of them (90)
 *   memory=MIB      of each (4096)                    alloc=N     the N-th allocation finds no room
 *   launch=N        the N-th launch fails             sync=N      from the N-th wait on the GPU is lost
 *   graph=N         from the N-th graph on there is no memory to make one of
 *   most=MIB        says at the end when a GPU had more at once
 *
 * When the process ends it says on standard error what was not given back. */
#include <cuda.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT __attribute__((visibility("default")))

enum { MOST_GPUS = 16, MOST_BLOCKS = 1 << 16, MOST_PINNED = 64 };

typedef struct block {
    void *bytes;
    size_t size;
    int gpu;
} block;

typedef struct range {
    unsigned char *begin;
    size_t size;
} range;

static range pinned[MOST_PINNED]; /* memory of the host */
static int n_pinned;
static block blocks[MOST_BLOCKS];
static int n_blocks;
static size_t used[MOST_GPUS], most_used;
/* Weights are uploaded by several threads, each with a stack of contexts of its own; all else comes from one. */
static _Atomic long n_things; /* contexts, streams, events, modules, graphs, pinned memory */
static _Atomic long n_launches, n_syncs;
static long n_allocs;
static _Thread_local int stack[64], depth; /* GPUs of the contexts that are current */
static _Atomic CUresult lost;

static long setting(const char *name, long otherwise)
{
    const char *at = getenv("FAKE_CUDA");
    const size_t n = strlen(name);
    for (; at && *at; at += strcspn(at, " "), at += strspn(at, " "))
        if (strncmp(at, name, n) == 0 && at[n] == '=') return strtol(at + n + 1, NULL, 10);
    return otherwise;
}

static void *handle(int gpu)
{
    n_things++;
    int *p = malloc(sizeof *p);
    if (!p) abort();
    *p = gpu;
    return p;
}
static CUresult drop(void *p)
{
    n_things--;
    free(p);
    return CUDA_SUCCESS;
}
static int current(void) { return depth > 0 ? stack[depth - 1] : 0; }

__attribute__((destructor)) static void say_left(void)
{
    if (n_things != 0 || n_blocks != 0 || depth != 0)
        fprintf(stderr, "fake_cuda: %ld things, %d blocks, %d contexts are left\n", n_things, n_blocks, depth);
    if (most_used >> 20 > (size_t)setting("most", LONG_MAX))
        fprintf(stderr, "fake_cuda: %zu MiB were used at once\n", most_used >> 20);
}

/* ---- the driver and its GPUs ---- */

OUT CUresult cuInit(unsigned flags)
{
    (void)flags;
    return (CUresult)setting("init", CUDA_SUCCESS);
}
OUT CUresult cuDriverGetVersion(int *version)
{
    *version = (int)setting("version", CUDA_VERSION);
    return CUDA_SUCCESS;
}
OUT CUresult cuGetErrorString(CUresult result, const char **words)
{
    *words = result == CUDA_ERROR_LAUNCH_FAILED ? "unspecified launch failure" : "fake error";
    return CUDA_SUCCESS;
}
OUT CUresult cuDeviceGetCount(int *n)
{
    *n = (int)setting("gpus", 1);
    return CUDA_SUCCESS;
}
OUT CUresult cuDeviceGet(CUdevice *device, int number)
{
    *device = number;
    return CUDA_SUCCESS;
}
OUT CUresult cuDeviceGetName(char *name, int n, CUdevice device)
{
    (void)snprintf(name, (size_t)n, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}
OUT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device)
{
    (void)device;
    const int arch = (int)setting("arch", 90);
    *value = what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? arch / 10 : arch % 10;
    return CUDA_SUCCESS;
}
OUT CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
    (void)params, (void)flags;
    *context = handle(device);
    stack[depth++] = device;
    return CUDA_SUCCESS;
}
OUT CUresult cuCtxDestroy(CUcontext context)
{
    const int gpu = *(int *)(void *)context;
    for (int i = 0; i < n_blocks;) { /* a context takes its memory with it */
        if (blocks[i].gpu != gpu) {
            i++;
            continue;
        }
        free(blocks[i].bytes);
        used[gpu] -= blocks[i].size;
        blocks[i] = blocks[--n_blocks];
    }
    return drop(context);
}
OUT CUresult cuCtxPushCurrent(CUcontext context)
{
    stack[depth++] = *(int *)(void *)context;
    return CUDA_SUCCESS;
}
OUT CUresult cuCtxPopCurrent(CUcontext *context)
{
    *context = NULL;
    depth--;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

static size_t memory_bytes(void) { return (size_t)setting("memory", 4096) << 20; }

OUT CUresult cuMemGetInfo(size_t *left, size_t *total)
{
    *total = memory_bytes();
    *left = *total - used[current()];
    return CUDA_SUCCESS;
}
OUT CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes)
{
    const bool fits = bytes <= memory_bytes() - used[current()] && n_blocks < MOST_BLOCKS;
    if (++n_allocs == setting("alloc", 0) || !fits) return CUDA_ERROR_OUT_OF_MEMORY;
    void *memory = NULL;
    if (posix_memalign(&memory, 512, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    blocks[n_blocks++] = (block){memory, bytes, current()};
    used[current()] += bytes;
    if (used[current()] > most_used) most_used = used[current()];
    *p = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}
OUT CUresult cuMemFree(CUdeviceptr p)
{
    for (int i = 0; i < n_blocks; i++) {
        if ((uintptr_t)blocks[i].bytes != (uintptr_t)p) continue;
        used[blocks[i].gpu] -= blocks[i].size;
        free(blocks[i].bytes);
        blocks[i] = blocks[--n_blocks];
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
OUT CUresult cuMemAllocHost(void **p, size_t bytes)
{
    *p = malloc(bytes);
    n_things++;
    return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
OUT CUresult cuMemFreeHost(void *p) { return drop(p); }
/* What is registered is so for all GPUs, and cannot be twice. */
OUT CUresult cuMemHostRegister(void *p, size_t bytes, unsigned flags)
{
    if (!(flags & CU_MEMHOSTREGISTER_PORTABLE) || !(flags & CU_MEMHOSTREGISTER_DEVICEMAP) || n_pinned == MOST_PINNED) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < n_pinned; i++)
        if ((unsigned char *)p < pinned[i].begin + pinned[i].size && pinned[i].begin < (unsigned char *)p + bytes)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pinned[n_pinned++] = (range){p, bytes};
    n_things++;
    return CUDA_SUCCESS;
}
OUT CUresult cuMemHostUnregister(void *p)
{
    int i = 0;
    while (i < n_pinned && pinned[i].begin != p) i++;
    if (i == n_pinned) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pinned[i] = pinned[--n_pinned];
    n_things--;
    return CUDA_SUCCESS;
}
OUT CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *p, unsigned flags)
{
    (void)flags;
    for (int i = 0; i < n_pinned; i++) {
        if (pinned[i].begin != p) continue;
        *out = (CUdeviceptr)(uintptr_t)p;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* Inside one block of that GPU, or nothing happens. */
static void *inside(CUdeviceptr p, size_t bytes, int gpu)
{
    for (int i = 0; i < n_blocks; i++) {
        const uintptr_t at = (uintptr_t)p - (uintptr_t)blocks[i].bytes;
        if (blocks[i].gpu == gpu && at <= blocks[i].size && bytes <= blocks[i].size - at) return (unsigned char *)blocks[i].bytes + at;
    }
    return NULL;
}
static CUresult copy(void *to, const void *from, size_t bytes)
{
    if (lost != CUDA_SUCCESS) return lost;
    if (!to || !from) return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUDA_SUCCESS;
}
OUT CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream stream)
{
    (void)stream;
    return copy(inside(to, n, current()), from, n);
}
OUT CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream stream)
{
    (void)stream;
    return copy(to, inside(from, n, current()), n);
}
OUT CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream)
{
    (void)stream;
    return copy(inside(to, n, current()), inside(from, n, current()), n);
}
OUT CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t n, CUstream stream)
{
    (void)stream;
    return copy(inside(to, n, *(int *)(void *)there), inside(from, n, *(int *)(void *)here), n);
}
OUT CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t n, CUstream stream)
{
    (void)stream;
    void *at = inside(p, n, current());
    if (lost != CUDA_SUCCESS || !at) return lost != CUDA_SUCCESS ? lost : CUDA_ERROR_INVALID_VALUE;
    memset(at, value, n);
    return CUDA_SUCCESS;
}

/* ---- modules, streams, events ---- */

OUT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    (void)image;
    *module = handle(current());
    return CUDA_SUCCESS;
}
OUT CUresult cuModuleUnload(CUmodule module) { return drop(module); }
OUT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)name;
    *function = (CUfunction)(void *)module;
    return CUDA_SUCCESS;
}
OUT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    *stream = handle(current());
    return CUDA_SUCCESS;
}
OUT CUresult cuStreamDestroy(CUstream stream) { return drop(stream); }
OUT CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    const long at = setting("sync", 0);
    if (++n_syncs >= at && at > 0) lost = CUDA_ERROR_DEVICE_UNAVAILABLE;
    return lost;
}
OUT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return lost;
}
OUT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = handle(current());
    return CUDA_SUCCESS;
}
OUT CUresult cuEventDestroy(CUevent event) { return drop(event); }
OUT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)stream;
    return *(int *)(void *)event == current() ? lost : CUDA_ERROR_INVALID_HANDLE;
}
OUT CUresult cuEventSynchronize(CUevent event)
{
    (void)event;
    return lost;
}
OUT CUresult cuEventElapsedTime(float *ms, CUevent begun, CUevent ended)
{
    (void)begun, (void)ended;
    *ms = 0;
    return lost;
}

/* ---- launches ---- */

static CUresult launch(void)
{
    if (++n_launches == setting("launch", 0)) lost = CUDA_ERROR_LAUNCH_FAILED;
    return lost;
}
OUT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    (void)config, (void)params, (void)extra;
    return *(int *)(void *)function == current() ? launch() : CUDA_ERROR_INVALID_HANDLE;
}
OUT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    *graph = handle(current());
    return CUDA_SUCCESS;
}
OUT CUresult cuGraphDestroy(CUgraph graph) { return drop(graph); }
OUT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n,
                            CUgraphNodeParams *params)
{
    (void)graph, (void)after, (void)edges, (void)n, (void)params;
    *node = NULL;
    return CUDA_SUCCESS;
}
OUT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    static long n_graphs;
    const long at = setting("graph", 0);
    if (++n_graphs >= at && at > 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *exec = handle(current());
    return CUDA_SUCCESS;
}
OUT CUresult cuGraphExecDestroy(CUgraphExec exec) { return drop(exec); }
OUT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    (void)exec, (void)node, (void)params;
    return lost;
}
OUT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    return *(int *)(void *)exec == current() ? launch() : CUDA_ERROR_INVALID_HANDLE;
}
