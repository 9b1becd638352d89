/* tests/metal/fake.c -- see fake.h.
 *
 * A message is any call of objc_msgSend, which reads its arguments as those of a variadic function:
 * the processors that we test on pass integers, pointers and structs alike to both.  A selector is an
 * entry of the table of methods. */
#include "fake.h"

#include "dev/emu/emu.h"
#include "dev/gpu/params.h"
#include "dev/metal/objc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __x86_64__
#include <pmmintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))

enum { LAUNCHES_MAX = 512, PARAMS_MAX = 4096, QUEUE_MAX = 64, LANES = 32 };

typedef enum kind { CLASS = 1, STRING, ERROR, DEVICE, QUEUE, OPTIONS, LIBRARY, FUNCTION, PIPELINE, BUFFER, COMMANDS, ENCODER } kind;

typedef struct launch {
    const mox_emu_kernel *kernel;
    mox_metal_size groups;
    unsigned char params[PARAMS_MAX];
    int64_t params_bytes;
} launch;

typedef struct object object;
struct object {
    kind kind;
    int count; /* of owners; 0: gone */
    object *home;      /* QUEUE, COMMANDS, BUFFER: the device */
    uint64_t n_buffers; /* DEVICE: that it has */
    char *text;                    /* STRING, ERROR, FUNCTION */
    bool safe_math;                /* OPTIONS */
    const mox_emu_kernel *kernel;  /* PIPELINE; ENCODER: the one that is set */
    unsigned char *bytes, *on_gpu; /* BUFFER */
    size_t size;
    bool is_own; /* the bytes are the buffer's */
    launch *launches; /* COMMANDS */
    int n_launches;
    bool is_closed, is_sent, is_done, has_failed;
    object *commands; /* ENCODER */
    unsigned char params[PARAMS_MAX];
    int64_t params_bytes; /* -1: none since the last launch */
    bool is_ordered;      /* nothing was launched since the last barrier */
    uint64_t n_resources;
};

EXPORT fake_metal_state fake_metal;
static mox_emu *gpu; /* one for all devices, and kept: stacks that are given back keep the marks of sanitizers */
static object *pool[1024]; /* what is released when pools end */
static int n_pooled, pool_starts[64];
static object *sent[QUEUE_MAX]; /* in order, not yet run */
static int n_sent;

static void wrong(const char *what)
{
    if (!fake_metal.misuse[0]) (void)snprintf(fake_metal.misuse, sizeof fake_metal.misuse, "%s", what);
}
static void expect(bool condition, const char *what)
{
    if (!condition) wrong(what);
}

/* ---- objects ---- */

static object *make(kind k, const char *text)
{
    object *o = calloc(1, sizeof *o);
    if (!o) abort();
    *o = (object){.kind = k, .count = 1, .text = text ? strdup(text) : NULL, .params_bytes = -1, .is_ordered = true};
    fake_metal.n_objects++;
    return o;
}

static void give_up(object *o)
{
    expect(o->count > 0, "released once too often");
    if (--o->count > 0) return;
    if (o->kind == COMMANDS) expect(o->is_done || !o->is_sent, "commands released while they run");
    if (o->kind == ENCODER) expect(o->is_closed, "an encoder released that is open");
    if (o->kind == ENCODER) give_up(o->commands);
    if (o->is_own) (void)munmap(o->bytes, o->size);
    if (o->is_own) (void)munmap(o->on_gpu, o->size);
    if (o->kind == BUFFER) o->home->n_buffers--;
    free(o->text);
    free(o->launches);
    fake_metal.n_objects--;
    memset(o, 0xDD, sizeof *o);
    free(o);
}

static object *later(object *o) /* autoreleased */
{
    if (fake_metal.n_pools == 0) wrong("an object is autoreleased and there is no pool");
    else if (n_pooled < 1024) pool[n_pooled++] = o;
    else wrong("a pool is full");
    return o;
}

EXPORT void *objc_autoreleasePoolPush(void);
void *objc_autoreleasePoolPush(void)
{
    if (fake_metal.n_pools == 64) abort();
    pool_starts[fake_metal.n_pools++] = n_pooled;
    return &pool_starts[fake_metal.n_pools - 1];
}
EXPORT void objc_autoreleasePoolPop(void *which);
void objc_autoreleasePoolPop(void *which)
{
    expect(fake_metal.n_pools > 0 && which == &pool_starts[fake_metal.n_pools - 1], "pools end out of order");
    if (fake_metal.n_pools == 0) return;
    const int start = pool_starts[--fake_metal.n_pools];
    while (n_pooled > start) give_up(pool[--n_pooled]);
}

EXPORT void *objc_getClass(const char *name);
void *objc_getClass(const char *name)
{
    static object strings = {.kind = CLASS, .count = 1}, options = {.kind = CLASS, .count = 1};
    return strcmp(name, "NSString") == 0 ? &strings : strcmp(name, "MTLCompileOptions") == 0 ? &options : NULL;
}

EXPORT void *MTLCreateSystemDefaultDevice(void);
void *MTLCreateSystemDefaultDevice(void)
{
    if (fake_metal.wish == FAKE_NO_DEVICE) return NULL;
    mox_err err;
    if (!gpu && mox_emu_create(&gpu, MOX_EMU_PAGE, &err) != MOX_OK) abort();
    return make(DEVICE, "Made-up GPU");
}

/* ---- kernels ---- */

#define DECLARE(name, threads)                                                                                             \
    void shim_run_##name(const void *p, uint32_t x, uint32_t y, uint32_t z, uint32_t wave, uint32_t place);                \
    static void start_##name(const void *p)                                                                                \
    {                                                                                                                      \
        const mox_emu_run *now = mox_emu_now;                                                                              \
        shim_run_##name(p, (uint32_t)now->group[0], (uint32_t)now->group[1], (uint32_t)now->group[2],                      \
                        (uint32_t)now->thread / LANES, (uint32_t)now->thread % LANES);                                    \
    }
MOX_GPU_KERNELS(DECLARE)
static const mox_emu_kernel kernels[] = {
#define ENTRY(name, threads) {"mox_gpu_kernel_" #name, start_##name, sizeof(mox_gpu_##name), threads, false, false, false},
    MOX_GPU_KERNELS(ENTRY)
};

/* What kernels ask of the simdgroup and the group. */
uint32_t shim_place(void);
uint32_t shim_shuffle(uint32_t bits, uint32_t place);
void shim_barrier(int of_device);
void shim_multiply(float a0, float a1, float b0, float b1, float *c);
const uint32_t *shim_gather(uint32_t bits);
uint32_t shim_place(void) { return (uint32_t)mox_emu_now->thread % LANES; }
uint32_t shim_shuffle(uint32_t bits, uint32_t place) { return mox_emu_lanes(MOX_EMU_SHUFFLE, bits, (int32_t)place, "simd_shuffle"); }
void shim_barrier(int of_device) { mox_emu_barrier(of_device ? MOX_EMU_BARRIER_ALL : MOX_EMU_BARRIER, "threadgroup_barrier"); }

/* As Apple's GPUs have them: quarters of the simdgroup take 4 x 4 numbers each. */
static uint32_t row_of(uint32_t place) { return (place / 4 & 4) + place / 2 % 4; }
static uint32_t col_of(uint32_t place) { return (place / 4 & 2) * 2 + place % 2 * 2; }

/* What a simdgroup brings to one of its meetings, and to the next: there are two, so that who comes early to the next one takes
 * nothing from those who still read.  To the one after that nobody comes before all have been at the next. */
typedef struct brought {
    float a[8][8], b[8][8];
    uint32_t bits[LANES];
} brought;
static brought meetings[MOX_EMU_THREADS_MAX / LANES][2];
static uint8_t n_met[MOX_EMU_THREADS_MAX]; /* of each thread, in this launch */

static brought *next_meeting(void)
{
    const int32_t thread = mox_emu_now->thread;
    return &meetings[thread / LANES][n_met[thread]++ % 2];
}

void shim_multiply(float a0, float a1, float b0, float b1, float *c)
{
    brought *all = next_meeting();
    const uint32_t row = row_of(shim_place()), col = col_of(shim_place());
    all->a[row][col] = a0;
    all->a[row][col + 1] = a1;
    all->b[row][col] = b0;
    all->b[row][col + 1] = b1;
    mox_emu_wave("simdgroup_multiply_accumulate");
    for (int k = 0; k < 8; k++) {
        c[0] += all->a[row][k] * all->b[k][col];
        c[1] += all->a[row][k] * all->b[k][col + 1];
    }
}

const uint32_t *shim_gather(uint32_t bits)
{
    brought *all = next_meeting();
    all->bits[shim_place()] = bits;
    mox_emu_wave("an operation of all lanes");
    return all->bits;
}

/* Metal may take subnormal numbers for zero, so here they are, where this processor can. */
#ifdef __x86_64__
static unsigned flush_subnormals(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return before;
}
static void restore(unsigned mode) { _mm_setcsr(mode); }
#else
static unsigned flush_subnormals(void) { return 0; }
static void restore(unsigned mode) { (void)mode; }
#endif

static void run(object *commands)
{
    static uint64_t n;
    mox_err err;
    const unsigned mode = flush_subnormals();
    if (fake_metal.wish == FAKE_LOST) commands->has_failed = true;
    for (int i = 0; i < commands->n_launches && !commands->has_failed; i++, n++) {
        const launch *l = &commands->launches[i];
        const int64_t groups[3] = {(int64_t)l->groups.width, (int64_t)l->groups.height, (int64_t)l->groups.depth};
        mox_emu_set_order(gpu, (mox_emu_order)(n % 3), n);
        memset(n_met, 0, sizeof n_met); /* a launch may have ended half way */
        fake_metal.n_run++;
        if (mox_emu_launch(gpu, l->kernel, groups, l->params, &err) == MOX_OK) continue;
        commands->has_failed = true;
        wrong(err.msg);
    }
    restore(mode);
    commands->is_done = true;
}

static void finish(const object *commands) /* and what was sent before it */
{
    while (n_sent > 0 && !commands->is_done) {
        object *first = sent[0];
        memmove(sent, sent + 1, (size_t)--n_sent * sizeof *sent);
        run(first);
    }
}

/* ---- methods ---- */

#define METHOD(name) static void *name(object *self, va_list a)
#define NUMBER(n) ((void *)(uintptr_t)(n))
#define UNUSED ((void)self, (void)a)

METHOD(m_new) { UNUSED; return make(OPTIONS, NULL); }
METHOD(m_retain)
{
    UNUSED;
    self->count++;
    return self;
}
METHOD(m_release)
{
    UNUSED;
    give_up(self);
    return NULL;
}
METHOD(m_string)
{
    (void)self;
    return fake_metal.wish == FAKE_NO_STRING ? NULL : later(make(STRING, va_arg(a, const char *)));
}
METHOD(m_utf8) { UNUSED; return self->text; }
METHOD(m_description) { UNUSED; return later(make(STRING, self->text)); }
METHOD(m_name) { UNUSED; return later(make(STRING, self->text)); }
METHOD(m_supports) { (void)self; return NUMBER(va_arg(a, int64_t) == 5001 && fake_metal.wish != FAKE_OLD_DEVICE); }
METHOD(m_unified) { UNUSED; return NUMBER(fake_metal.wish != FAKE_MEMORY_APART); }
METHOD(m_working_set) { UNUSED; return NUMBER((uint64_t)8 << 30); }
METHOD(m_allocated) { UNUSED; return NUMBER((uint64_t)1 << 30); }
METHOD(m_longest) { UNUSED; return NUMBER((uint64_t)4 << 30); }
METHOD(m_new_queue)
{
    UNUSED;
    if (fake_metal.wish == FAKE_NO_QUEUE) return NULL;
    object *o = make(QUEUE, NULL);
    o->home = self;
    return o;
}
METHOD(m_fast_math)
{
    self->safe_math = va_arg(a, int) == 0;
    return NULL;
}
METHOD(m_language)
{
    (void)self;
    expect(va_arg(a, uint64_t) == 3 << 16, "a language that is not 3.0");
    return NULL;
}
METHOD(m_new_library)
{
    (void)self;
    const object *source = va_arg(a, object *), *options = va_arg(a, object *);
    object **error = va_arg(a, object **);
    expect(options->kind == OPTIONS && options->safe_math, "kernels are compiled with fast math");
    expect(source->kind == STRING && strstr(source->text, "#include <metal_stdlib>"), "the source is none of Metal");
    if (fake_metal.wish != FAKE_NO_LIBRARY) return make(LIBRARY, source->text);
    *error = later(make(ERROR, "program_source:1:1: error: unknown type name"));
    return NULL;
}
METHOD(m_new_function)
{
    const object *name = va_arg(a, object *);
    char text[120];
    (void)snprintf(text, sizeof text, "kernel void %s(", name->text);
    return fake_metal.wish == FAKE_NO_FUNCTION || !strstr(self->text, text) ? NULL : make(FUNCTION, name->text);
}
METHOD(m_new_pipeline)
{
    (void)self;
    const object *function = va_arg(a, object *);
    object **error = va_arg(a, object **);
    if (fake_metal.wish == FAKE_NO_PIPELINE) {
        *error = later(make(ERROR, "XPC_ERROR_CONNECTION_INTERRUPTED"));
        return NULL;
    }
    object *o = make(PIPELINE, NULL);
    for (int i = 0; i < MOX_GPU_KERNEL_COUNT; i++)
        if (strcmp(kernels[i].name, function->text) == 0) o->kernel = &kernels[i];
    return o;
}
METHOD(m_most_threads) { UNUSED; return NUMBER(fake_metal.wish == FAKE_FEW_THREADS ? 96 : self->kernel->n_threads); }
METHOD(m_lanes) { UNUSED; return NUMBER(fake_metal.wish == FAKE_MANY_LANES ? 64 : 32); }

static object *make_buffer(object *home, void *bytes, void *on_gpu, size_t size, bool is_own)
{
    object *o = make(BUFFER, NULL);
    o->bytes = bytes;
    o->on_gpu = on_gpu;
    o->size = size;
    o->is_own = is_own;
    o->home = home;
    home->n_buffers++;
    return o;
}
METHOD(m_new_buffer)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (va_arg(a, uint64_t) + page - 1) / page * page;
    expect(va_arg(a, uint64_t) == 0, "memory that is not shared");
    if (fake_metal.wish == FAKE_NO_BUFFER) return NULL;
    const int file = memfd_create("buffer", 0);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) abort();
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *on_gpu = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (bytes == MAP_FAILED || on_gpu == MAP_FAILED) abort();
    memset(bytes, 0xFF, size);
    return make_buffer(self, bytes, on_gpu, size, true);
}
METHOD(m_new_buffer_over)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *bytes = va_arg(a, unsigned char *);
    const uint64_t size = va_arg(a, uint64_t);
    expect((uintptr_t)bytes % page == 0 && size > 0 && size % page == 0, "bytes of the host that are not whole pages");
    expect(va_arg(a, uint64_t) == 0, "memory that is not shared");
    expect(va_arg(a, void *) == NULL, "a deallocator of bytes that are not Metal's");
    return fake_metal.wish == FAKE_NO_BUFFER ? NULL : make_buffer(self, bytes, bytes, size, false);
}
METHOD(m_address) { UNUSED; return self->on_gpu; }
METHOD(m_contents) { UNUSED; return self->bytes; }

METHOD(m_command_buffer)
{
    UNUSED;
    if (fake_metal.wish == FAKE_NO_COMMANDS) return NULL;
    object *o = later(make(COMMANDS, "the GPU was lost"));
    o->home = self->home;
    o->launches = calloc(LAUNCHES_MAX, sizeof *o->launches);
    if (!o->launches) abort();
    return o;
}
METHOD(m_encoder)
{
    UNUSED;
    if (fake_metal.wish == FAKE_NO_ENCODER) return NULL;
    object *o = later(make(ENCODER, NULL));
    o->commands = self;
    self->count++;
    return o;
}
METHOD(m_use_resources)
{
    object *const *buffers = va_arg(a, object *const *);
    const uint64_t n = va_arg(a, uint64_t), usage = va_arg(a, uint64_t);
    for (uint64_t i = 0; i < n; i++)
        expect(buffers[i]->kind == BUFFER && usage == (buffers[i]->is_own ? 3 : 1), "a resource that is not read, or read and written");
    self->n_resources += n;
    return NULL;
}
METHOD(m_set_pipeline)
{
    self->kernel = va_arg(a, object *)->kernel;
    return NULL;
}
METHOD(m_set_bytes)
{
    const void *bytes = va_arg(a, const void *);
    const uint64_t n = va_arg(a, uint64_t);
    expect(va_arg(a, uint64_t) == 0, "parameters that are not in buffer 0");
    if (n > PARAMS_MAX) abort();
    memcpy(self->params, bytes, n);
    self->params_bytes = (int64_t)n;
    return NULL;
}
METHOD(m_dispatch)
{
    const mox_metal_size groups = va_arg(a, mox_metal_size), threads = va_arg(a, mox_metal_size);
    object *c = self->commands;
    expect(!self->is_closed && !c->is_sent, "a launch in commands that are closed");
    expect(self->is_ordered, "a launch that does not wait for the one before");
    expect(self->n_resources == c->home->n_buffers, "a launch that may not use all memory");
    if (!self->kernel || c->n_launches == LAUNCHES_MAX) abort();
    expect(self->params_bytes == (int64_t)self->kernel->params_bytes, "a launch without its parameters");
    expect(threads.width == (uint64_t)self->kernel->n_threads && threads.height == 1 && threads.depth == 1, "a group of another size");
    launch *l = &c->launches[c->n_launches++];
    l->kernel = self->kernel;
    l->groups = groups;
    memcpy(l->params, self->params, sizeof l->params);
    self->params_bytes = -1;
    self->is_ordered = false;
    return NULL;
}
METHOD(m_barrier)
{
    expect(va_arg(a, uint64_t) == 1, "a barrier that is not for buffers");
    self->is_ordered = true;
    return NULL;
}
METHOD(m_end)
{
    UNUSED;
    expect(!self->is_closed, "an encoder is closed twice");
    self->is_closed = self->commands->is_closed = true;
    return NULL;
}
METHOD(m_commit)
{
    UNUSED;
    expect(self->is_closed && !self->is_sent, "commands are sent that are open, or twice");
    self->is_sent = true;
    if (n_sent == QUEUE_MAX) abort();
    sent[n_sent++] = self;
    fake_metal.n_commands++;
    return NULL;
}
METHOD(m_wait)
{
    UNUSED;
    expect(self->is_sent, "commands are waited for and were not sent");
    finish(self);
    return NULL;
}
METHOD(m_status)
{
    UNUSED;
    expect(self->is_done, "commands are asked for their end before it");
    return NUMBER(self->has_failed ? 5 : 4);
}
METHOD(m_error) { UNUSED; return later(make(ERROR, self->text)); }

typedef struct method {
    const char *selector;
    void *(*run)(object *self, va_list a);
    kind of; /* 0: any */
} method;
static const method methods[] = {
    {"new", m_new, CLASS}, {"retain", m_retain, 0}, {"release", m_release, 0}, {"stringWithUTF8String:", m_string, CLASS},
    {"UTF8String", m_utf8, STRING}, {"localizedDescription", m_description, ERROR}, {"name", m_name, DEVICE},
    {"supportsFamily:", m_supports, DEVICE}, {"hasUnifiedMemory", m_unified, DEVICE},
    {"recommendedMaxWorkingSetSize", m_working_set, DEVICE}, {"currentAllocatedSize", m_allocated, DEVICE},
    {"maxBufferLength", m_longest, DEVICE}, {"newCommandQueue", m_new_queue, DEVICE}, {"setFastMathEnabled:", m_fast_math, OPTIONS},
    {"setLanguageVersion:", m_language, OPTIONS}, {"newLibraryWithSource:options:error:", m_new_library, DEVICE},
    {"newFunctionWithName:", m_new_function, LIBRARY}, {"newComputePipelineStateWithFunction:error:", m_new_pipeline, DEVICE},
    {"maxTotalThreadsPerThreadgroup", m_most_threads, PIPELINE}, {"threadExecutionWidth", m_lanes, PIPELINE},
    {"newBufferWithLength:options:", m_new_buffer, DEVICE},
    {"newBufferWithBytesNoCopy:length:options:deallocator:", m_new_buffer_over, DEVICE}, {"gpuAddress", m_address, BUFFER},
    {"contents", m_contents, BUFFER}, {"commandBuffer", m_command_buffer, QUEUE}, {"computeCommandEncoder", m_encoder, COMMANDS},
    {"useResources:count:usage:", m_use_resources, ENCODER}, {"setComputePipelineState:", m_set_pipeline, ENCODER},
    {"setBytes:length:atIndex:", m_set_bytes, ENCODER}, {"dispatchThreadgroups:threadsPerThreadgroup:", m_dispatch, ENCODER},
    {"memoryBarrierWithScope:", m_barrier, ENCODER}, {"endEncoding", m_end, ENCODER}, {"commit", m_commit, COMMANDS},
    {"waitUntilCompleted", m_wait, COMMANDS}, {"status", m_status, COMMANDS}, {"error", m_error, COMMANDS},
};

EXPORT void *sel_registerName(const char *name);
void *sel_registerName(const char *name)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i].selector, name) == 0) return (void *)(uintptr_t)&methods[i];
    wrong(name);
    return NULL;
}

EXPORT void *objc_msgSend(object *self, const method *selector, ...);
void *objc_msgSend(object *self, const method *selector, ...)
{
    if (!self || !selector) return NULL; /* messages to nil do nothing */
    expect(self->count > 0 && (selector->of == 0 || selector->of == self->kind), selector->selector);
    va_list a;
    va_start(a, selector);
    void *result = selector->run(self, a);
    va_end(a);
    return result;
}
