/* dev/metal/objc.c -- finding Metal.  See objc.h.
 *
 * Metal's library brings the Objective-C runtime and its string class along, so that one handle
 * finds all names. */
#include "dev/metal/objc.h"

#include <dlfcn.h>

/* `to` is a pointer to a pointer to a function. */
static mox_status find(void *library, const char *name, void *to, mox_err *err)
{
    *(void **)to = dlsym(library, name);
    if (*(void **)to) return MOX_OK;
    return mox_fail(err, MOX_E_DEVICE, "Metal of this machine has no %s: macOS 13 or later is needed", name);
}

mox_status mox_objc_load(mox_objc *o, mox_err *err)
{
    void *send = NULL;
    void *library = dlopen("/System/Library/Frameworks/Metal.framework/Metal", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return mox_fail(err, MOX_E_DEVICE, "this machine has no Metal, which is for Apple's GPUs on macOS");
    MOX_TRY(find(library, "objc_getClass", &o->get_class, err));
    MOX_TRY(find(library, "sel_registerName", &o->selector, err));
    MOX_TRY(find(library, "objc_autoreleasePoolPush", &o->push_pool, err));
    MOX_TRY(find(library, "objc_autoreleasePoolPop", &o->pop_pool, err));
    MOX_TRY(find(library, "objc_msgSend", &send, err));
    MOX_TRY(find(library, "MTLCreateSystemDefaultDevice", &o->default_device, err));
#define FILL(result, name, text, parameters) \
    *(void **)&o->name.send = send;          \
    o->name.selector = o->selector(text);
    MOX_METAL_MESSAGES(FILL)
#undef FILL
    return MOX_OK;
}
