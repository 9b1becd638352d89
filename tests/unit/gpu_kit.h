/* tests/unit/gpu_kit.h -- running single kernels of dev/gpu and comparing what they leave with
 * the references of src/ops: on the emulated device, on an NVIDIA GPU where KIT_PLUGIN is
 * defined as the path of the plug-in (tests/gpu), or through Metal where KIT_METAL is (tests/metal).
 *
 * Everything that a test takes is given back when it ends.  Launches take the orders of threads
 * in turn. */
#ifndef TESTS_GPU_KIT_H
#define TESTS_GPU_KIT_H

#include "base/rng.h"
#include "dev/cuda/load.h"
#include "dev/emu/emu.h"
#include "dev/emu/kernels.h"
#include "dev/gpu/fill.h"
#include "dev/metal/metal.h"
#include "ops/kern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { KIT_MEMORY = 256 << 20, KIT_MOST = 4096 };

#if defined(KIT_PLUGIN)
#define KIT_OPEN(out, err) mox_cuda_open(out, KIT_PLUGIN, 0, err)
enum { KIT_NONE = 77 }; /* skipped where there is no GPU */
#elif defined(KIT_METAL)
#define KIT_OPEN(out, err) mox_metal_open(out, err)
enum { KIT_NONE = 1 };
#endif
/* Numbers of a size that counts: Metal may take subnormal ones for zero. */
#ifdef KIT_METAL
#define KIT_TINY 1e-34f
#else
#define KIT_TINY 1e-38f
#endif

static struct {
#ifdef KIT_OPEN
    mox_gpu_backend *gpu;
#else
    mox_emu *emu;
#endif
    mox_err err;
    mox_rng rng;
    uint64_t n_launches;
    void *on_host[KIT_MOST], *on_device[KIT_MOST];
    int n_host, n_device;
} kit;

/* ---- the device ---- */

#ifdef KIT_OPEN
static size_t kit_params_bytes(mox_gpu_kernel id) { return mox_emu_find(id)->params_bytes; }
static int kit_open(void **state)
{
    (void)state;
    if (KIT_OPEN(&kit.gpu, &kit.err) == MOX_OK) return 0;
    print_message("no GPU: %s\n0 passed, 0 failed, 1 skipped\n", kit.err.msg);
    exit(kit.err.status == MOX_E_DEVICE ? KIT_NONE : 1);
}
static int kit_close(void **state)
{
    (void)state;
    kit.gpu->close(kit.gpu);
    return 0;
}
static inline mox_status device_alloc(int64_t bytes, void **out) { return kit.gpu->alloc(kit.gpu, bytes, out, &kit.err); }
static inline void device_free(void *p) { kit.gpu->free(kit.gpu, p); }
static inline mox_status device_write(void *to, const void *from, int64_t bytes)
{
    kit.gpu->upload(kit.gpu, to, from, bytes);
    return kit.gpu->sync(kit.gpu, &kit.err);
}
static inline mox_status device_read(void *to, const void *from, int64_t bytes)
{
    return kit.gpu->download(kit.gpu, to, from, bytes, &kit.err);
}
static inline mox_status device_launch(mox_gpu_kernel id, const int64_t groups[3], const void *params)
{
    kit.gpu->launch(kit.gpu, id, groups, params, kit_params_bytes(id));
    return kit.gpu->sync(kit.gpu, &kit.err);
}
#else
static int kit_open(void **state)
{
    (void)state;
    return mox_emu_create(&kit.emu, KIT_MEMORY, &kit.err) == MOX_OK ? 0 : 1;
}
static int kit_close(void **state)
{
    (void)state;
    mox_emu_destroy(&kit.emu);
    return 0;
}
static inline mox_status device_alloc(int64_t bytes, void **out) { return mox_emu_alloc(kit.emu, bytes, out, &kit.err); }
static inline void device_free(void *p) { mox_emu_free(kit.emu, p); }
static inline mox_status device_write(void *to, const void *from, int64_t bytes) { return mox_emu_upload(kit.emu, to, from, bytes, &kit.err); }
static inline mox_status device_read(void *to, const void *from, int64_t bytes) { return mox_emu_download(kit.emu, to, from, bytes, &kit.err); }
static inline mox_status device_launch(mox_gpu_kernel id, const int64_t groups[3], const void *params)
{
    const uint64_t n = kit.n_launches++;
    mox_emu_set_order(kit.emu, (mox_emu_order)(n % 3), n);
    return mox_emu_launch(kit.emu, mox_emu_find(id), groups, params, &kit.err);
}
#endif

static int kit_begin(void **state)
{
    (void)state;
    mox_rng_init(&kit.rng, 1);
    return 0;
}
static int kit_end(void **state)
{
    (void)state;
    while (kit.n_host) free(kit.on_host[--kit.n_host]);
    while (kit.n_device) device_free(kit.on_device[--kit.n_device]);
    return 0;
}

static inline void kit_ok(mox_status status)
{
    if (status != MOX_OK) print_error("%s\n", kit.err.msg);
    assert_int_equal(status, MOX_OK);
}

/* ---- data ---- */

static inline void *host_bytes(int64_t n)
{
    assert_true(kit.n_host < KIT_MOST);
    void *p = malloc((size_t)n + 1);
    assert_non_null(p);
    memset(p, 0xFF, (size_t)n + 1);
    return kit.on_host[kit.n_host++] = p;
}
static inline float *floats(int64_t n) { return host_bytes(n * 4); } /* NaNs */
static inline double *doubles(int64_t n) { return host_bytes(n * 8); }

static inline float uniform(float low, float high) { return low + (high - low) * (float)mox_rng_unit(&kit.rng); }
static inline float *randoms(int64_t n, float size)
{
    float *p = floats(n);
    for (int64_t i = 0; i < n; i++) p[i] = uniform(-size, size);
    return p;
}

/* `skip` bytes beyond a page: 1 for what files put at odd addresses. */
static inline void *upload_at(const void *from, int64_t bytes, int64_t skip)
{
    void *p;
    assert_true(kit.n_device < KIT_MOST);
    kit_ok(device_alloc(bytes + skip, &p));
    kit.on_device[kit.n_device++] = p;
    kit_ok(device_write((char *)p + skip, from, bytes));
    return (char *)p + skip;
}
static inline void *upload(const void *from, int64_t bytes) { return upload_at(from, bytes, 0); }
static inline float *upload_f32(const float *from, int64_t n) { return upload(from, n * 4); }
static inline float *device_f32(int64_t n) { return upload_f32(floats(n), n); } /* NaNs */
static inline void *download(const void *p, int64_t bytes)
{
    void *to = host_bytes(bytes);
    kit_ok(device_read(to, p, bytes));
    return to;
}
static inline float *download_f32(const float *p, int64_t n) { return download(p, n * 4); }

/* A vector of a file with its twin on the device. */
typedef struct both_vec {
    mox_vec host;
    mox_gpu_vec device;
} both_vec;
static inline both_vec random_vec(mox_dtype type, int64_t n, float low, float high)
{
    both_vec v = {.host = {.type = type, .n = n}};
    if (type == MOX_DT_NONE) return v;
    uint8_t *bytes = host_bytes(n * 4);
    for (int64_t i = 0; i < n; i++) {
        const float x = uniform(low, high);
        const uint16_t half = type == MOX_DT_F16 ? mox_f32_to_f16(x) : mox_f32_to_bf16(x);
        if (type == MOX_DT_F32) memcpy(bytes + 4 * i, &x, 4);
        else memcpy(bytes + 2 * i, &half, 2);
    }
    v.host.data = bytes;
    mox_vec d = v.host;
    d.data = upload_at(bytes, n * mox_dtype_bytes(type), 1);
    v.device = mox_gpu_vec_of(&d);
    return v;
}

/* ---- launching ---- */

static inline void launch(mox_gpu_kernel id, int64_t x, int64_t y, int64_t z, const void *params)
{
    kit_ok(device_launch(id, (const int64_t[3]){x, y, z}, params));
}
static inline int64_t over(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- comparing ---- */

/* |got - want| <= rel * mag + abs everywhere, mag NULL = |want|. */
static inline bool within(const float *got, const float *want, const double *mag, int64_t n, double rel, double abs)
{
    for (int64_t i = 0; i < n; i++) {
        const double bound = rel * (mag ? mag[i] : fabs((double)want[i])) + abs;
        if (isnan(want[i]) ? !isnan(got[i]) : !(fabs((double)got[i] - (double)want[i]) <= bound)) return false;
    }
    return true;
}
static inline bool class_p(const float *got, const float *want, int64_t n) { return within(got, want, NULL, n, 5e-6, 1e-7); }
static inline bool class_s(const float *got, const float *want, int64_t n, double scale) { return within(got, want, NULL, n, 0, 1e-5 * scale); }

#endif
