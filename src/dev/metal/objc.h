/* dev/metal/objc.h -- Metal through the Objective-C runtime, found at run time.
 *
 * Metal has no functions in C but one; everything else is a message to an object.  A message is a
 * call of objc_msgSend as if it had the method's own type, so each has a pointer of that type here,
 * beside the selector that names it.  Objects are `mox_id`.
 *
 * Nothing is linked with: a machine without Metal gets a sentence and not an error of the loader. */
#ifndef MOX_DEV_METAL_OBJC_H
#define MOX_DEV_METAL_OBJC_H

#include "base/err.h"

#include <stdint.h>

typedef void *mox_id;
typedef void *mox_sel;
typedef signed char mox_objc_bool;

/* MTLSize */
typedef struct mox_metal_size {
    uint64_t width, height, depth;
} mox_metal_size;

/* X(result, name, selector, parameters) */
#define MOX_METAL_MESSAGES(X)                                                                                            \
    X(mox_id, make, "new", (mox_id, mox_sel))                                                                            \
    X(mox_id, retain, "retain", (mox_id, mox_sel))                                                                       \
    X(void, release, "release", (mox_id, mox_sel))                                                                       \
    X(mox_id, string, "stringWithUTF8String:", (mox_id, mox_sel, const char *))                                          \
    X(const char *, utf8, "UTF8String", (mox_id, mox_sel))                                                               \
    X(mox_id, description, "localizedDescription", (mox_id, mox_sel))                                                    \
    X(mox_id, device_name, "name", (mox_id, mox_sel))                                                                    \
    X(mox_objc_bool, supports_family, "supportsFamily:", (mox_id, mox_sel, int64_t))                                     \
    X(mox_objc_bool, is_unified, "hasUnifiedMemory", (mox_id, mox_sel))                                                  \
    X(uint64_t, working_set, "recommendedMaxWorkingSetSize", (mox_id, mox_sel))                                          \
    X(uint64_t, allocated, "currentAllocatedSize", (mox_id, mox_sel))                                                    \
    X(uint64_t, longest_buffer, "maxBufferLength", (mox_id, mox_sel))                                                    \
    X(mox_id, new_queue, "newCommandQueue", (mox_id, mox_sel))                                                           \
    X(void, set_fast_math, "setFastMathEnabled:", (mox_id, mox_sel, mox_objc_bool))                                      \
    X(void, set_language, "setLanguageVersion:", (mox_id, mox_sel, uint64_t))                                            \
    X(mox_id, new_library, "newLibraryWithSource:options:error:", (mox_id, mox_sel, mox_id, mox_id, mox_id *))           \
    X(mox_id, new_function, "newFunctionWithName:", (mox_id, mox_sel, mox_id))                                           \
    X(mox_id, new_pipeline, "newComputePipelineStateWithFunction:error:", (mox_id, mox_sel, mox_id, mox_id *))           \
    X(uint64_t, most_threads, "maxTotalThreadsPerThreadgroup", (mox_id, mox_sel))                                        \
    X(uint64_t, lanes, "threadExecutionWidth", (mox_id, mox_sel))                                                        \
    X(mox_id, new_buffer, "newBufferWithLength:options:", (mox_id, mox_sel, uint64_t, uint64_t))                         \
    X(mox_id, new_buffer_over, "newBufferWithBytesNoCopy:length:options:deallocator:",                                   \
      (mox_id, mox_sel, void *, uint64_t, uint64_t, mox_id))                                                             \
    X(uint64_t, address, "gpuAddress", (mox_id, mox_sel))                                                                \
    X(void *, contents, "contents", (mox_id, mox_sel))                                                                   \
    X(mox_id, command_buffer, "commandBuffer", (mox_id, mox_sel))                                                        \
    X(mox_id, encoder, "computeCommandEncoder", (mox_id, mox_sel))                                                       \
    X(void, use_resources, "useResources:count:usage:", (mox_id, mox_sel, const mox_id *, uint64_t, uint64_t))           \
    X(void, set_pipeline, "setComputePipelineState:", (mox_id, mox_sel, mox_id))                                         \
    X(void, set_bytes, "setBytes:length:atIndex:", (mox_id, mox_sel, const void *, uint64_t, uint64_t))                  \
    X(void, dispatch, "dispatchThreadgroups:threadsPerThreadgroup:", (mox_id, mox_sel, mox_metal_size, mox_metal_size)) \
    X(void, memory_barrier, "memoryBarrierWithScope:", (mox_id, mox_sel, uint64_t))                                      \
    X(void, end_encoding, "endEncoding", (mox_id, mox_sel))                                                              \
    X(void, commit, "commit", (mox_id, mox_sel))                                                                         \
    X(void, wait, "waitUntilCompleted", (mox_id, mox_sel))                                                               \
    X(uint64_t, status, "status", (mox_id, mox_sel))                                                                     \
    X(mox_id, error, "error", (mox_id, mox_sel))

typedef struct mox_objc {
    mox_id (*get_class)(const char *name);
    mox_sel (*selector)(const char *name);
    void *(*push_pool)(void);
    void (*pop_pool)(void *pool);
    mox_id (*default_device)(void);
#define MOX_METAL_MEMBER(result, name, text, parameters) \
    struct {                                             \
        result(*send) parameters;                        \
        mox_sel selector;                                \
    } name;
    MOX_METAL_MESSAGES(MOX_METAL_MEMBER)
#undef MOX_METAL_MEMBER
} mox_objc;

/* Sends a message of objc o to an object, with or without arguments. */
#define MOX_SEND(o, name, to) ((o)->name.send((to), (o)->name.selector))
#define MOX_SEND_WITH(o, name, to, ...) ((o)->name.send((to), (o)->name.selector, __VA_ARGS__))

/* Finds the runtime and Metal, which stay loaded.  MOX_E_DEVICE with one sentence when they are not there. */
mox_status mox_objc_load(mox_objc *o, mox_err *err);

#endif
