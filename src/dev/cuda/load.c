/* dev/cuda/load.c -- finding the plug-in.  See load.h.
 *
 * A plug-in is never unloaded: drivers do not take kindly to that, and a process that opened a
 * GPU once will do so again. */
#include "dev/cuda/load.h"

#include "base/alloc.h"
#include "dev/cuda/plugin.h"
#include "dev/gpu/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The plug-in beside the file that holds this function; NULL when there is no memory. */
static char *path_beside(void)
{
    Dl_info info;
    const char *own = dladdr((const void *)(uintptr_t)mox_cuda_open, &info) && info.dli_fname ? info.dli_fname : "";
    const char *slash = strrchr(own, '/');
    const size_t folder = slash ? (size_t)(slash - own) + 1 : 0, size = folder + sizeof MOX_CUDA_PLUGIN_FILE;
    char *path = mox_alloc(size);
    if (path) (void)snprintf(path, size, "%.*s%s", (int)folder, own, MOX_CUDA_PLUGIN_FILE);
    return path;
}

static mox_status find_plugin(const char *path, void **library, mox_err *err)
{
    if (path) {
        *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        return *library ? MOX_OK : mox_fail(err, MOX_E_DEVICE, "%s does not load as the plug-in for NVIDIA GPUs: %s", path, dlerror());
    }
    char *beside = path_beside();
    if (!beside) return mox_fail_memory(err, sizeof MOX_CUDA_PLUGIN_FILE, "the name of a plug-in");
    *library = dlopen(beside, RTLD_NOW | RTLD_LOCAL);
    mox_free(beside);
    if (!*library) *library = dlopen(MOX_CUDA_PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
    if (*library) return MOX_OK;
    return mox_fail(err, MOX_E_DEVICE, "this copy of moxie has no plug-in for NVIDIA GPUs (%s): install it, or use --device cpu",
                    dlerror());
}

mox_status mox_cuda_open(mox_gpu_backend **out, const char *path, int device, mox_err *err)
{
    void *library = NULL;
    *out = NULL;
    MOX_TRY(find_plugin(path, &library, err));
    const mox_cuda_plugin *plugin = dlsym(library, MOX_CUDA_PLUGIN_SYMBOL);
    if (!plugin) return mox_fail(err, MOX_E_DEVICE, "%s is not a plug-in of moxie", path ? path : MOX_CUDA_PLUGIN_FILE);
    if (strcmp(plugin->version, MOX_VERSION) != 0 || plugin->backend_bytes != sizeof(mox_gpu_backend) ||
        plugin->n_kernels != MOX_GPU_KERNEL_COUNT)
        return mox_fail(err, MOX_E_DEVICE, "the plug-in for NVIDIA GPUs is of another build (%s, this is %s): install both from "
                                           "one package", plugin->version, MOX_VERSION);
    return plugin->open(out, device, err);
}

mox_status mox_dev_cuda_open(mox_dev **out, bool halves, mox_err *err)
{
    *out = NULL;
    mox_gpu_backend *backend;
    MOX_TRY(mox_cuda_open(&backend, NULL, 0, err));
    return mox_dev_gpu_open(out, backend, halves, err);
}
