/* runtime/plan.c -- what a run would take of the memory, and whether that fits.
 *
 * Every size comes from the code that later reserves it: contexts measure themselves
 * (runtime/context.c), dense weights and slots are counted where they are loaded and placed.
 * The heap that is in use when the plan is made (tokenizer, template, headers) is counted
 * as it is; what cannot be counted has the constants below.
 *
 * Memory that the process has already is part of what it may have: a plan that is made
 * again when everything is loaded comes to the same result.
 *
 * A plan is a way of having the experts and a size of batches.  Ways are tried from the
 * fastest to the smallest, and in each of them batches are halved until it fits, so the
 * smallest budget is simply the total of the smallest plan.  The length of the context
 * is never changed.
 *
 * A device with memory of its own has a budget of its own, as large for each of several, and a plan fits when it keeps all of
 * them.  All experts stay there if they can; else they come and go, and what is missing there comes from slots in memory of
 * the host, which hold all experts if that fits, or from the disk. */
#include "runtime/plan.h"

#include "base/alloc.h"
#include "base/machine.h"
#include "base/size.h"
#include "model/dense_load.h"
#include "runtime/context.h"
#include "runtime/expert_stream.h"

#include <string.h>

_Static_assert((int)MOX_PLAN_DEVICES == (int)MOX_SECTIONS_MAX, "a plan has room for all devices of a context");

/* Measured on x86-64 as the resident memory of `eval` with full batches and contexts, less
 * everything that is counted: at most 4.6 MB for the program; 80 to 130 KiB for a thread of
 * the pool, the most with the widest kernels; 12 KiB for a thread that reads. */
enum {
    FILE_PAGE = 4096,
    PROGRAM_BYTES = 10 << 20, /* code and data of the program and its libraries, stack, texts, slack of the heap */
    THREAD_BYTES = 192 << 10,
    READER_BYTES = 32 << 10,
    READERS_DEFAULT = 8,
    SAMPLER_BYTES = 22, /* per id of the vocabulary: logits and the largest of each block, candidates, counts, mask */
};

typedef struct planner {
    const mox_model *m;
    const mox_plan_opts *o;
    mox_context_opts contexts[MOX_PLAN_CONTEXTS];
    int n_contexts;
    int64_t mapped_bytes, dense_bytes, expert_bytes, slot_bytes, fixed_bytes;
    int64_t smallest_batch;
    bool apart; /* the device has memory of its own */
    mox_err *err;
} planner;

/* How experts are had, and whether they come and go on the device. */
typedef struct way {
    mox_experts experts;
    bool come;
} way;

/* ---- sizes ---- */

/* That the driver of its device takes. */
static int64_t host_bytes(const mox_context_opts *o)
{
    const mox_device_costs *costs = mox_device_find_costs(o->device);
    return costs ? costs->host_bytes : 0;
}

static int64_t threads_of(const mox_context_opts *o) { return o->n_threads > 0 ? o->n_threads : mox_machine_threads(); }

static mox_status measure_weights(planner *l, mox_plan *p)
{
    const mox_model *m = l->m;
    for (int32_t i = 0; i < m->tensors.n_files; i++)
        l->mapped_bytes =
            mox_plus_i64(l->mapped_bytes, mox_ceil_div(m->tensors.files[i].size, FILE_PAGE) * FILE_PAGE);
    MOX_TRY(mox_dense_bytes(m, &l->dense_bytes, l->err));
    l->expert_bytes = m->report.bytes_experts;
    l->slot_bytes = mox_model_expert_slot_bytes(m);
    p->n_layers_moe = m->report.n_layers_moe;
    p->n_experts = m->report.n_layers_moe * m->report.n_experts;
    p->n_experts_active = m->report.n_layers_moe * m->report.n_experts_active;
    p->expert_bytes_all = l->expert_bytes;
    p->copy_bytes = m->residency.copy ? l->mapped_bytes : 0;
    mox_work_token(m, &p->token_bytes, &p->token_macs, &p->head_macs);
    return MOX_OK;
}

/* What does not depend on the way of having experts or on the batch. */
static void measure_fixed(planner *l)
{
    int64_t bytes = mox_plus_i64(PROGRAM_BYTES + mox_alloc_live(), mox_max_i64(l->o->extra_bytes, 0));
    bytes = mox_plus_i64(bytes, SAMPLER_BYTES * l->m->dims.n_vocab); /* one: replies of a scheduler choose in turn */
    for (int i = 0; i < l->n_contexts; i++)
        bytes = mox_plus_i64(bytes, threads_of(&l->contexts[i]) * THREAD_BYTES + host_bytes(&l->contexts[i]));
    l->fixed_bytes = bytes;
}

/* Of threads that read experts, in all contexts. */
static int64_t reader_bytes(const planner *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->n_contexts; i++) n += l->contexts[i].n_readers > 0 ? l->contexts[i].n_readers : READERS_DEFAULT;
    return n * READER_BYTES;
}

/* ---- one way, one size of batches ---- */

static void add_up(mox_plan *p)
{
    const int64_t parts[] = {p->dense_bytes, p->experts_bytes, p->copy_bytes, p->cache_bytes, p->activation_bytes, p->other_bytes};
    p->total = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) p->total = mox_plus_i64(p->total, parts[i]);
}

/* Of n slots in each context. */
static mox_status measure_slots(const planner *l, int64_t n, int64_t *out)
{
    *out = 0;
    for (int i = 0; i < l->n_contexts; i++) {
        mox_context_opts o = l->contexts[i];
        int64_t bytes;
        o.expert_bytes = n * l->slot_bytes;
        MOX_TRY(mox_expert_stream_measure(l->m, &o, &bytes, l->err));
        *out = mox_plus_i64(*out, bytes);
    }
    return MOX_OK;
}

/* As many slots as were asked for, or as fit what the rest of p leaves of the budget, and
 * at least one. */
static mox_status add_slots(const planner *l, mox_plan *p)
{
    const int64_t room = p->budget - mox_min_i64(p->total, p->budget), all_slots = l->n_contexts * l->slot_bytes;
    int64_t n = mox_min_i64(l->o->n_slots > 0 ? l->o->n_slots : room / all_slots, p->n_experts), bytes;
    for (;; n -= mox_ceil_div(bytes - room, all_slots)) { /* tables take memory beside the slots */
        n = mox_max_i64(n, 1);
        MOX_TRY(measure_slots(l, n, &bytes));
        if (n == 1 || bytes <= room || l->o->n_slots > 0) break;
    }
    p->slot_bytes = l->slot_bytes;
    p->n_slots = n;
    p->experts_bytes = bytes;
    return MOX_OK;
}

/* Shares of a device's budget: what each context must have there, and as much of the rest as the other. */
static void share_device(const planner *l, mox_plan *p, const mox_context_sizes *s, bool come)
{
    mox_plan_devices *d = &p->device;
    int64_t least[MOX_PLAN_CONTEXTS], sum = 0;
    for (int i = 0; i < l->n_contexts; i++) {
        least[i] = come ? s[i].come.bytes : s[i].stay.bytes;
        sum = mox_plus_i64(sum, least[i]);
    }
    const int64_t rest = mox_max_i64(d->budget - sum, 0);
    for (int i = 0; i < l->n_contexts; i++)
        d->shares[i] = d->budget == INT64_MAX ? INT64_MAX : mox_plus_i64(least[i], rest / l->n_contexts);
}

/* What a context has on one of its devices. */
static void add_device(const planner *l, mox_plan *p, mox_plan_device *d, const struct mox_spread_part *part)
{
    const mox_device_sizes *s = &part->sizes;
    const bool come = part->n_slots >= 0, is_first = d->total == 0;
    const int64_t n = come ? part->n_slots : 0;
    if (is_first) {
        d->first_layer = part->first;
        d->n_layers = part->end - part->first;
        d->n_experts = s->n_experts;
    }
    d->weights_bytes = mox_plus_i64(d->weights_bytes, come ? s->dense_bytes : s->weight_bytes);
    d->experts_bytes = mox_plus_i64(d->experts_bytes, n * s->slot_bytes);
    d->cache_bytes = mox_plus_i64(d->cache_bytes, s->cache_bytes);
    d->activation_bytes = mox_plus_i64(d->activation_bytes, s->step_bytes);
    d->other_bytes = mox_plus_i64(d->other_bytes, s->other_bytes);
    d->total = mox_plus_i64(d->total, part->bytes);
    d->n_slots = is_first ? n : mox_min_i64(d->n_slots, n);
    if (n > 0) p->other_bytes = mox_plus_i64(p->other_bytes, mox_expert_tier_bytes(l->m, n));
}

/* What a context has on its devices; experts come and go there, or stay. */
static mox_status add_devices(const planner *l, mox_plan *p, const mox_context_opts *o, const mox_context_sizes *least, bool come)
{
    mox_plan_devices *d = &p->device;
    mox_context_sizes sizes = *least;
    if (come) MOX_TRY(mox_context_measure(l->m, o, &sizes, l->err));
    const mox_spread *s = come ? &sizes.come : &sizes.stay;
    d->n = s->n;
    /* Contexts may differ in which of their devices that is; their shares do not. */
    d->total = mox_plus_i64(d->total, s->bytes);
    d->slot_bytes = come ? s->parts[0].sizes.slot_bytes : 0;
    d->cpu_experts = come && o->cpu_experts;
    for (int i = 0; i < s->n; i++) add_device(l, p, &d->each[i], &s->parts[i]);
    p->other_bytes = mox_plus_i64(p->other_bytes, (s->n - 1) * host_bytes(o));
    if (d->cpu_experts) p->other_bytes = mox_plus_i64(p->other_bytes, mox_expert_host_bytes(l->m));
    return MOX_OK;
}

static mox_status try_batch(const planner *l, mox_plan *p, way how, int64_t n_batch)
{
    p->experts = how.experts;
    p->n_batch = n_batch;
    p->other_bytes = l->fixed_bytes;
    p->dense_bytes = p->experts_bytes = p->cache_bytes = p->activation_bytes = p->slot_bytes = p->n_slots = 0;
    p->device = (mox_plan_devices){.budget = p->device.budget};
    mox_context_sizes sizes[MOX_PLAN_CONTEXTS] = {0};
    for (int i = 0; i < l->n_contexts; i++) {
        mox_context_opts o = l->contexts[i];
        mox_context_sizes *s = &sizes[i];
        o.n_batch = (int32_t)n_batch;
        o.device_bytes = 0; /* the least */
        MOX_TRY(mox_context_measure(l->m, &o, s, l->err));
        p->cache_bytes = mox_plus_i64(p->cache_bytes, l->apart ? 0 : s->cache_bytes);
        p->activation_bytes = mox_plus_i64(p->activation_bytes, l->apart ? 0 : s->step_bytes);
        p->other_bytes = mox_plus_i64(p->other_bytes, s->small_bytes);
    }
    p->n_ctx = sizes[0].n_ctx;
    if (l->apart) {
        share_device(l, p, sizes, how.come);
        for (int i = 0; i < l->n_contexts; i++) {
            mox_context_opts o = l->contexts[i];
            o.n_batch = (int32_t)n_batch;
            o.device_bytes = p->device.shares[i];
            MOX_TRY(add_devices(l, p, &o, &sizes[i], how.come));
        }
        for (int64_t i = 0; i < p->device.n; i++) p->device.n_slots += p->device.each[i].n_slots;
    }
    if (how.experts == MOX_EXPERTS_RESIDENT) {
        p->experts_bytes = l->expert_bytes;
        p->dense_bytes = l->mapped_bytes - l->expert_bytes;
    } else if (how.experts == MOX_EXPERTS_STREAM) {
        p->dense_bytes = l->dense_bytes;
        p->other_bytes = mox_plus_i64(p->other_bytes, reader_bytes(l));
        add_up(p);
        MOX_TRY(add_slots(l, p));
    }
    add_up(p);
    p->fits = p->total <= p->budget && p->device.total <= p->device.budget;
    return MOX_OK;
}

/* With fewer slots than this, one set of experts cannot load while another computes. */
static int64_t wanted_slots(const planner *l, const mox_plan *p)
{
    return mox_min_i64(l->o->n_slots > 0 ? 1 : 2 * l->m->report.n_experts_active, p->n_experts);
}

/* One way with the largest batch that fits, or the smallest there is. */
static mox_status try_way(const planner *l, mox_plan *p, way how)
{
    for (int64_t n = p->n_batch_wanted;; n = mox_max_i64(n / 2, l->smallest_batch)) {
        MOX_TRY(try_batch(l, p, how, n));
        const bool good = p->fits && (how.experts != MOX_EXPERTS_STREAM || p->n_slots >= wanted_slots(l, p));
        if (good || n == l->smallest_batch) return MOX_OK;
    }
}

/* ---- the choice ---- */

/* A GPU that reads the files where they are mapped. */
static bool reads_maps(const planner *l)
{
    return !l->apart && !mox_device_is_cpu(l->contexts[0].device);
}

/* Why experts cannot be streamed, or NULL. */
static const char *no_stream(const planner *l, const mox_plan *p)
{
    const mox_model *m = l->m;
    if (reads_maps(l)) return "this device reads experts where the files are mapped, so there is nothing to stream";
    if (p->n_experts == 0) return "this model has no routed experts that could be streamed";
    if (m->residency.copy) return "weights that are copied as a whole cannot be streamed as well";
    for (int32_t i = 0; i < m->tensors.n_files && !m->shape_only; i++)
        if (m->tensors.files[i].fd < 0) return "a model that was made in memory has no file that experts could be read from";
    return NULL;
}

/* The ways that the options and the model leave, fastest first. */
static mox_status list_ways(const planner *l, const mox_plan *p, way out[2], int *n)
{
    mox_experts asked = l->o->experts;
    const char *problem = no_stream(l, p);
    const bool may_come = l->apart && l->o->vram_bytes > 0 && p->n_experts > 0;
    *n = 0;
    if (asked < MOX_EXPERTS_AUTO || asked > MOX_EXPERTS_MMAP)
        return mox_fail(l->err, MOX_E_ARG, "experts: %d is no way of having them", (int)asked);
    if (asked == MOX_EXPERTS_AUTO && (l->o->n_slots > 0 || l->m->dense_only)) asked = MOX_EXPERTS_STREAM;
    if (asked != MOX_EXPERTS_STREAM && (l->o->n_slots > 0 || l->m->dense_only))
        return mox_fail(l->err, MOX_E_ARG, "slots are for experts that are streamed");
    if (asked == MOX_EXPERTS_STREAM && problem) return mox_fail(l->err, MOX_E_ARG, "%s", problem);
    const bool is_auto = asked == MOX_EXPERTS_AUTO;
    if (asked == MOX_EXPERTS_STREAM) {
        out[(*n)++] = (way){asked, may_come};
        return MOX_OK;
    }
    out[(*n)++] = (way){is_auto ? MOX_EXPERTS_RESIDENT : asked, false};
    if (may_come) out[(*n)++] = (way){is_auto && !problem ? MOX_EXPERTS_STREAM : out[0].experts, true};
    else if (is_auto && reads_maps(l)) out[(*n)++] = (way){MOX_EXPERTS_MMAP, false};
    else if (is_auto && !problem && !l->apart) out[(*n)++] = (way){MOX_EXPERTS_STREAM, false};
    return MOX_OK;
}

static mox_status choose(const planner *l, mox_plan *p)
{
    way ways[2];
    int n;
    MOX_TRY(list_ways(l, p, ways, &n));
    const int64_t budget = p->budget, device_budget = p->device.budget;
    mox_plan best = {0}, least = {0};
    int64_t least_device = INT64_MAX;
    bool least_fits = false; /* on the device */
    for (int i = 0; i < n; i++) {
        mox_plan tried = *p;
        MOX_TRY(try_way(l, &tried, ways[i]));
        if (tried.fits && !best.fits) best = tried;
        tried = *p;
        tried.budget = tried.device.budget = 0; /* leaves no room for more slots than there must be */
        MOX_TRY(try_batch(l, &tried, ways[i], l->smallest_batch));
        const bool fits = tried.device.total <= device_budget;
        least_device = mox_min_i64(least_device, tried.device.total);
        if (i == 0 || (fits && !least_fits) || (fits == least_fits && tried.total < least.total)) least = tried;
        least_fits = least_fits || fits;
    }
    *p = best.fits ? best : least;
    p->budget = budget;
    p->least_budget = least.total;
    p->device.budget = device_budget;
    p->device.least_budget = least_device;
    return MOX_OK;
}

/* Batches as asked for; no context has fewer rows in one than it has sequences. */
static mox_status begin(planner *l, mox_plan *p)
{
    l->smallest_batch = 1;
    for (int i = 0; i < l->n_contexts; i++) {
        mox_context_sizes s;
        MOX_TRY(mox_context_measure(l->m, &l->contexts[i], &s, l->err));
        l->smallest_batch = mox_max_i64(l->smallest_batch, s.n_seqs);
        p->n_batch_wanted = mox_max_i64(p->n_batch_wanted, s.n_batch);
    }
    return measure_weights(l, p);
}

mox_status mox_plan_make_at(const char *root, mox_plan *out, const mox_model *m, const mox_plan_opts *opts, mox_err *err)
{
    *out = (mox_plan){.available = mox_plus_i64(mox_machine_memory(root), mox_machine_own(root))};
    if (opts->ram_bytes < 0 || opts->n_slots < 0 || opts->vram_bytes < 0)
        return mox_fail(err, MOX_E_ARG, "a budget of %lld bytes and %lld slots: neither can be negative",
                        (long long)opts->ram_bytes, (long long)opts->n_slots);
    planner l = {.m = m, .o = opts, .err = err};
    if (opts->context) l.contexts[0] = *opts->context;
    l.n_contexts = 1;
    if (opts->second) l.contexts[l.n_contexts++] = *opts->second;
    if (opts->ram_bytes > 0) out->budget = opts->ram_bytes;
    else out->budget = out->available == INT64_MAX ? INT64_MAX : out->available / 10 * 8;
    l.apart = mox_device_find_costs(l.contexts[0].device) != NULL;
    if (l.apart) out->device.budget = opts->vram_bytes > 0 ? opts->vram_bytes : INT64_MAX;
    MOX_TRY(begin(&l, out));
    measure_fixed(&l);
    return choose(&l, out);
}

mox_status mox_plan_make(mox_plan *out, const mox_model *m, const mox_plan_opts *opts, mox_err *err)
{
    return mox_plan_make_at("", out, m, opts, err);
}
