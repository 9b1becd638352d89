/* runtime/device.c -- which devices a context computes on, and which layers each of them has.
 *
 * Devices are named NAME or NAME:N,N,...: the latter are those numbers, all of them.  By the name
 * alone NVIDIA GPUs are meant from the first on, as few as the model fits on: every border costs a
 * step time.
 *
 * With a budget of their memory there are those that are numbered, or one (device_sizes.h).
 *
 * Refuses: settings that devices do not have, and models that do not fit. */
#include "runtime/context.h"

#include "base/clock.h"
#include "base/size.h"
#include "runtime/divide.h"

#include <stdlib.h>
#include <string.h>

/* Left on each device: for tables of experts and arrays of a batch, and a part of its memory for what the driver takes later. */
enum { SMALL_BYTES = 8 << 20, LEFT_PART = 128 };

/* Address space of an emulated GPU: what is not touched costs nothing. */
static const int64_t emu_bytes = (int64_t)16 << 30;

static mox_status check_apart(const mox_context *c, const mox_context_opts *o, mox_err *err)
{
    enum { MAX_ROWS = 65535 }; /* groups of a launch along an axis */
    if ((o->expert_bytes > 0 || c->model->dense_only) && o->device_bytes == 0)
        return mox_fail(err, MOX_E_ARG, "device %s: its experts must all be resident; do not stream them, or give it a budget of its memory",
                        o->device);
    if (o->deterministic) /* kernels are chosen by the number of tokens */
        return mox_fail(err, MOX_E_ARG, "device %s: only the cpu computes deterministically", o->device);
    if (o->trace) return mox_fail(err, MOX_E_ARG, "device %s: routing is traced on the cpu only", o->device);
    if (o->isa) return mox_fail(err, MOX_E_ARG, "isa: '%s' is a level of the cpu, and the device is %s", o->isa, o->device);
    if (c->n_batch > MAX_ROWS)
        return mox_fail(err, MOX_E_ARG, "device %s: batches have at most %d tokens, not %lld", o->device, MAX_ROWS, (long long)c->n_batch);
    return MOX_OK;
}

/* ---- names ---- */

typedef enum device_kind { IS_CPU, IS_EMU, IS_CUDA, IS_METAL, N_KINDS } device_kind;

/* Of CUDA both numbers are more than on an H200: with a budget of 6144 MiB nvidia-smi saw 6065 at most, and the
 * process had 0.1 GB more for itself than was counted. */
static const struct kind {
    const char *name;
    bool counted;   /* there may be several */
    mox_device_costs costs;
} kinds[N_KINDS] = {
    [IS_CPU] = {.name = "cpu"},
    [IS_EMU] = {.name = "emu", .counted = true, .costs = {.unit = 4096}},
    [IS_CUDA] = {.name = "cuda", .counted = true,
                 .costs = {.unit = 2 << 20, .own_bytes = (int64_t)640 << 20, .host_bytes = (int64_t)192 << 20}},
    [IS_METAL] = {.name = "metal"}, /* its memory is the host's, and counted there */
};

typedef struct wanted {
    device_kind kind;
    bool numbered;
    int n, numbers[MOX_SECTIONS_MAX];
} wanted;

static bool is_name(const char *text, size_t n, const char *name) { return strlen(name) == n && strncmp(text, name, n) == 0; }

static mox_status read_numbers(const char *text, const char *at, wanted *w, mox_err *err)
{
    w->numbered = true;
    for (;; at++) {
        const size_t digits = strspn(at, "0123456789");
        if (digits == 0 || digits > 3 || (at[digits] != ',' && at[digits] != '\0'))
            return mox_fail(err, MOX_E_ARG, "device: '%s': behind the name goes a list of numbers, as in cuda:0,1", text);
        if (w->n == MOX_SECTIONS_MAX) return mox_fail(err, MOX_E_ARG, "device: '%s': at most %d devices", text, MOX_SECTIONS_MAX);
        w->numbers[w->n++] = (int)strtol(at, NULL, 10);
        at += digits;
        if (*at == '\0') return MOX_OK;
    }
}

static mox_status read_device(const char *text, wanted *w, mox_err *err)
{
    *w = (wanted){0};
    if (!text) text = "cpu";
    const size_t n = strcspn(text, ":");
    while (w->kind < N_KINDS && !is_name(text, n, kinds[w->kind].name)) w->kind++;
    if (w->kind == N_KINDS || (text[n] == ':' && !kinds[w->kind].counted))
        return mox_fail(err, MOX_E_ARG, "device: '%s' is none that this build has (cpu, emu, cuda, metal)", text);
    return text[n] == ':' ? read_numbers(text, text + n + 1, w, err) : MOX_OK;
}

mox_status mox_device_get_kind(const char *device, mox_device_kind *out, mox_err *err)
{
    wanted w;
    MOX_TRY(read_device(device, &w, err));
    *out = (mox_device_kind){.name = kinds[w.kind].name, .n_numbers = w.n, .is_cpu = w.kind == IS_CPU,
                             .has_memory = kinds[w.kind].costs.unit > 0};
    return MOX_OK;
}

bool mox_device_is_cpu(const char *device)
{
    mox_device_kind kind;
    return mox_device_get_kind(device, &kind, NULL) == MOX_OK && kind.is_cpu;
}

const mox_device_costs *mox_device_find_costs(const char *device)
{
    wanted w;
    if (read_device(device, &w, NULL) != MOX_OK || kinds[w.kind].costs.unit == 0) return NULL;
    return &kinds[w.kind].costs;
}

mox_status mox_device_find(const char *device, mox_err *err)
{
    wanted w;
    int n = 1;
    MOX_TRY(read_device(device, &w, err));
    if (w.kind == IS_METAL) return mox_dev_metal_find(err);
    if (w.kind == IS_CUDA) MOX_TRY(mox_dev_cuda_count(&n, err));
    return n > 0 ? MOX_OK : mox_fail(err, MOX_E_DEVICE, "the NVIDIA driver finds no GPU on this machine");
}

/* ---- what goes where ---- */

static mox_status count_devices(const mox_context *c, const mox_context_opts *o, const wanted *w, int *n, mox_err *err)
{
    *n = w->numbered ? w->n : 1;
    if (*n <= c->model->dims.n_layers) return MOX_OK;
    return mox_fail(err, MOX_E_ARG, "device: '%s' are %d devices for a model of %lld layers; name as many at most", o->device, *n,
                    (long long)c->model->dims.n_layers);
}

/* What the layers, and all that goes with them, take on devices. */
static mox_status weigh(const mox_context *c, const mox_context_sizes *sizes, mox_device_load **out, mox_err *err)
{
    const mox_device_use use = {.model = c->model, .kv_type = c->kv_type, .cache_bytes = sizes->cache_bytes - sizes->state_bytes,
                                .state_bytes = sizes->state_bytes, .step_bytes = sizes->step_bytes, .most = mox_device_batch(c, true)};
    return mox_device_load_create(out, &use, err);
}

mox_status mox_device_measure(const mox_context *c, const mox_context_opts *o, mox_context_sizes *out, mox_err *err)
{
    wanted w;
    int n;
    mox_device_load *load;
    MOX_TRY(read_device(o->device, &w, err));
    const mox_device_costs *costs = &kinds[w.kind].costs;
    if (costs->unit == 0) return MOX_OK;
    MOX_TRY(count_devices(c, o, &w, &n, err));
    MOX_TRY(weigh(c, out, &load, err));
    mox_status status = mox_spread_make(&out->stay, load, costs, n, o->device_bytes, false, err);
    if (status == MOX_OK) status = mox_spread_make(&out->come, load, costs, n, o->device_bytes, true, err);
    mox_device_load_destroy(&load);
    return status;
}

/* ---- opening ---- */

static mox_status open_next(mox_context *c, const wanted *w, mox_err *err)
{
    const int number = w->numbered ? w->numbers[c->n_sections] : c->n_sections;
    mox_dev **out = &c->sections[c->n_sections].dev;
    /* A deterministic token has the same bytes alone and among many. */
    const bool halves = c->precision != MOX_PRECISION_EXACT && !c->deterministic;
    const double begun = mox_clock_now();
    if (w->kind == IS_EMU) MOX_TRY(mox_dev_emu_open(out, emu_bytes, halves, err));
    else if (w->kind == IS_METAL) MOX_TRY(mox_dev_metal_open(out, halves, err));
    else MOX_TRY(mox_dev_cuda_open(out, number, halves, err));
    c->load.open_s += mox_clock_now() - begun;
    c->n_sections++;
    return MOX_OK;
}

typedef struct opened {
    const mox_device_load *load;
    int64_t room[MOX_SECTIONS_MAX];
} opened;

static double share_of_room(const void *user, int device, int32_t first, int32_t end)
{
    const opened *o = user;
    return ((double)mox_device_load_bytes(o->load, first, end) + SMALL_BYTES) / (double)mox_max_i64(o->room[device], 1);
}

/* Opens devices up to n, until the layers fit; all of them where they are numbered. */
static mox_status open_enough(mox_context *c, const wanted *w, int n, const mox_device_load *load, mox_err *err)
{
    opened o = {.load = load};
    int32_t ends[MOX_SECTIONS_MAX];
    double share = 0;
    while (c->n_sections < n) {
        MOX_TRY(open_next(c, w, err));
        const int64_t free_bytes = mox_device_room(c->sections[c->n_sections - 1].dev);
        o.room[c->n_sections - 1] = free_bytes - free_bytes / LEFT_PART;
        if (w->numbered && c->n_sections < n) continue;
        MOX_TRY(mox_divide((int32_t)c->model->dims.n_layers, c->n_sections, share_of_room, &o, ends, &share, err));
        if (share <= 1) break;
    }
    for (int i = 0; i < c->n_sections; i++) {
        c->sections[i].first = i > 0 ? ends[i - 1] : 0;
        c->sections[i].end = ends[i];
        c->sections[i].n_slots = -1;
    }
    if (share <= 1 || c->n_sections == 1) return MOX_OK; /* of a single one, what does not fit is said when it is brought */
    return mox_fail(err, MOX_E_FULL, "%s: even spread over %d devices it takes %.2f times the memory that one of them has free; ask for "
                                     "less context or use the cpu", c->model->config.path, c->n_sections, share);
}

/* As the budget of each allows: all experts stay, unless they cannot. */
static mox_status open_budget(mox_context *c, const mox_context_opts *o, const wanted *w, const mox_context_sizes *sizes, mox_err *err)
{
    const int64_t budget = o->device_bytes;
    const bool must_come = o->expert_bytes > 0 || c->model->dense_only;
    const mox_spread *s = must_come || sizes->stay.bytes > budget ? &sizes->come : &sizes->stay;
    if (s->bytes > budget) {
        const int64_t least = must_come ? s->bytes : mox_min_i64(s->bytes, sizes->stay.bytes);
        return mox_fail(err, MOX_E_FULL, "device %s: a budget of %lld MiB is too small; with this context and batches of %lld tokens it takes "
                                         "%lld MiB%s", o->device, (long long)(budget >> 20), (long long)c->n_batch,
                        (long long)mox_ceil_div(least, 1 << 20), s->n > 1 ? " on each" : "");
    }
    for (int i = 0; i < s->n; i++) {
        c->sections[i].first = s->parts[i].first;
        c->sections[i].end = s->parts[i].end;
        c->sections[i].n_slots = s->parts[i].n_slots;
        MOX_TRY(open_next(c, w, err));
    }
    c->device_left = budget - s->parts[0].bytes;
    return MOX_OK;
}

static mox_status open_apart(mox_context *c, const mox_context_opts *o, const wanted *w, mox_err *err)
{
    mox_context_sizes sizes;
    mox_device_load *load;
    int n;
    if (o->device_bytes > 0 && kinds[w->kind].costs.unit == 0)
        return mox_fail(err, MOX_E_ARG, "device: '%s': a budget of its memory is for GPUs with memory of their own", o->device);
    MOX_TRY(count_devices(c, o, w, &n, err));
    MOX_TRY(mox_context_measure(c->model, o, &sizes, err));
    c->device_left = INT64_MAX;
    if (o->device_bytes > 0) return open_budget(c, o, w, &sizes, err);
    if (!w->numbered && w->kind != IS_METAL) {
        n = MOX_SECTIONS_MAX;
        if (w->kind == IS_CUDA) MOX_TRY(mox_dev_cuda_count(&n, err));
        n = (int)mox_max_i64(1, mox_min_i64(mox_min_i64(n, MOX_SECTIONS_MAX), c->model->dims.n_layers)); /* where there is none, opening says so */
    }
    MOX_TRY(weigh(c, &sizes, &load, err));
    const mox_status status = open_enough(c, w, n, load, err);
    mox_device_load_destroy(&load);
    return status;
}

mox_status mox_context_open_devices(mox_context *c, const mox_context_opts *o, mox_err *err)
{
    wanted w;
    MOX_TRY(read_device(o->device, &w, err));
    if (o->cpu_experts && o->device_bytes == 0)
        return mox_fail(err, MOX_E_ARG, "cpu_experts: the cpu computes what a device lacks only with a budget of that device's memory "
                                        "(device_bytes)");
    if (w.kind == IS_CPU) {
        if (o->device_bytes > 0)
            return mox_fail(err, MOX_E_ARG, "device_bytes are for a device with memory of its own, which the cpu is not");
        const mox_pool_opts threads = {.n_threads = o->n_threads, .pin = o->pin};
        return mox_dev_cpu_open(&c->sections[0].dev, &threads, o->isa, c->precision, c->deterministic, err);
    }
    MOX_TRY(check_apart(c, o, err));
    c->n_sections = 0;
    return open_apart(c, o, &w, err);
}
