/* runtime/device_sizes.c -- see device_sizes.h. */
#include "runtime/device_sizes.h"

#include "base/alloc.h"
#include "base/size.h"
#include "model/moe.h"
#include "runtime/context.h"
#include "runtime/divide.h"

#include <math.h>

enum { ALIGN = 256 };

static int64_t round_up(int64_t bytes, int64_t unit)
{
    return bytes > INT64_MAX - unit ? INT64_MAX : mox_ceil_div(bytes, unit) * unit;
}
int64_t mox_device_aligned(int64_t bytes) { return round_up(bytes, ALIGN); }

/* Of an allocation: an empty one takes a unit, too. */
static int64_t allocated(int64_t bytes, int64_t unit) { return round_up(mox_max_i64(bytes, 1), unit); }

/* ---- tensors ---- */

static bool begins_with(const mox_extent *tensor, const mox_extent *e)
{
    return e->bytes > 0 && e->file == tensor->file && e->offset == tensor->offset;
}
static bool is_part_of(const mox_extent *tensor, const mox_weight *w)
{
    return begins_with(tensor, &w->w) || begins_with(tensor, &w->scales) || begins_with(tensor, &w->biases);
}

/* Of what model/moe.c guesses with. */
static bool is_of_router(const mox_model *m, int64_t layer, const mox_extent *tensor)
{
    const mox_layer *l = &m->layers[layer];
    const mox_moe *moe = l->experts ? l->ffn.data : NULL;
    return moe && (begins_with(tensor, &l->norm_post.data) || is_part_of(tensor, &moe->router) || begins_with(tensor, &moe->router_bias.data));
}

mox_need mox_device_need(const mox_model *m, const char *prefix, int64_t i)
{
    const mox_tensor_info *t = &m->tensors.tensors[i];
    if (m->tensor_use[i] == MOX_UNUSED || t->extent.bytes == 0) return (mox_need){.layer = -1};
    const int64_t layer = mox_bind_layer_of(prefix, t->name);
    return (mox_need){.layer = layer, .first = is_part_of(&t->extent, &m->embed),
                      .last = is_part_of(&t->extent, &m->head) || begins_with(&t->extent, &m->final_norm.data),
                      .guesses = layer >= 0 && is_of_router(m, layer, &t->extent)};
}

bool mox_device_guesses_on(const mox_model *m, int32_t end)
{
    return end < m->dims.n_layers && m->layers[end - 1].experts && m->layers[end].experts;
}

/* ---- layers ---- */

/* Of all layers before one. */
typedef struct layer_sums {
    int64_t weights, dense, caches, states, n_moe;
} layer_sums;

struct mox_device_load {
    mox_device_use use;
    layer_sums *before; /* [n_layers + 1] */
    int64_t *routers;   /* [n_layers]: what the layer before guesses with */
    int64_t with_first, with_last, with_both; /* beside the first and the last layer; both: a part of each, of which one is enough */
    int64_t slot_bytes, least_slots;
};

static int64_t cache_width(const mox_device_use *u, int64_t layer)
{
    return mox_cache_elements(u->model, layer, u->kv_type, 0) + mox_cache_elements(u->model, layer, u->kv_type, 1);
}

/* Each layer into the sums behind it. */
static void weigh_tensors(mox_device_load *l)
{
    const mox_model *m = l->use.model;
    const char *prefix = mox_bind_prefix(&m->tensors);
    for (int64_t i = 0; i < m->tensors.n_tensors; i++) {
        const mox_need n = mox_device_need(m, prefix, i);
        const int64_t bytes = mox_device_aligned(m->tensors.tensors[i].extent.bytes);
        if (n.layer >= 0) {
            layer_sums *s = &l->before[n.layer + 1];
            s->weights = mox_plus_i64(s->weights, bytes);
            if (m->tensor_use[i] != MOX_USED_EXPERT) s->dense = mox_plus_i64(s->dense, bytes);
        }
        if (n.first) l->with_first = mox_plus_i64(l->with_first, bytes);
        if (n.last) l->with_last = mox_plus_i64(l->with_last, bytes);
        if (n.first && n.last) l->with_both = mox_plus_i64(l->with_both, bytes);
        if (n.guesses) l->routers[n.layer] = mox_plus_i64(l->routers[n.layer], bytes);
    }
}

static void weigh(mox_device_load *l)
{
    const mox_device_use *u = &l->use;
    const mox_model *m = u->model;
    const int64_t n_layers = m->dims.n_layers;
    int64_t width = 0;
    weigh_tensors(l);
    for (int64_t i = 0; i < n_layers; i++) width += cache_width(u, i);
    for (int64_t i = 0; i < n_layers; i++) {
        layer_sums *s = &l->before[i + 1];
        if (width > 0) s->caches = u->cache_bytes / width * cache_width(u, i);
        if (m->recurrent_floats > 0) s->states = u->state_bytes / m->recurrent_floats * m->layers[i].recurrent_floats;
        s->n_moe = m->layers[i].experts != NULL;
        s->weights = mox_plus_i64(s->weights, s[-1].weights);
        s->dense = mox_plus_i64(s->dense, s[-1].dense);
        s->caches += s[-1].caches;
        s->states += s[-1].states;
        s->n_moe += s[-1].n_moe;
    }
    l->slot_bytes = mox_expert_tier_slot_bytes(m);
    l->least_slots = mox_expert_tier_least(m);
}

mox_status mox_device_load_create(mox_device_load **out, const mox_device_use *use, mox_err *err)
{
    const size_t n_layers = (size_t)use->model->dims.n_layers;
    mox_device_load *l = *out = mox_alloc_array(1, sizeof *l);
    if (!l) return mox_fail_memory(err, sizeof *l, "a list of layers");
    l->use = *use;
    l->before = mox_alloc_array(n_layers + 1, sizeof *l->before);
    l->routers = mox_alloc_array(n_layers, sizeof *l->routers);
    if (!l->before || !l->routers) {
        mox_device_load_destroy(out);
        return mox_fail_memory(err, (n_layers + 1) * (sizeof *l->before + sizeof *l->routers), "a list of layers");
    }
    weigh(l);
    return MOX_OK;
}

void mox_device_load_destroy(mox_device_load **load)
{
    mox_device_load *l = *load;
    if (!l) return;
    mox_free(l->before);
    mox_free(l->routers);
    mox_free(l);
    *load = NULL;
}

/* ---- some layers on a device ---- */

static int64_t at_ends(const mox_device_load *l, int32_t first, int32_t end)
{
    const bool begins = first == 0, ends = end == l->use.model->dims.n_layers;
    return mox_plus_i64(begins ? l->with_first : 0, ends ? l->with_last : 0) - (begins && ends ? l->with_both : 0);
}

int64_t mox_device_load_bytes(const mox_device_load *l, int32_t first, int32_t end)
{
    const layer_sums *a = &l->before[first], *b = &l->before[end];
    const int64_t weights = mox_plus_i64(b->weights - a->weights, at_ends(l, first, end));
    return mox_plus_i64(mox_plus_i64(weights, b->caches - a->caches + b->states - a->states), l->use.step_bytes);
}

static mox_device_sizes measure(const mox_device_load *l, const mox_device_costs *costs, int32_t first, int32_t end)
{
    const mox_model *m = l->use.model;
    const layer_sums *a = &l->before[first], *b = &l->before[end];
    const int64_t unit = costs->unit, rest = at_ends(l, first, end), n_moe = b->n_moe - a->n_moe;
    const int64_t router = mox_device_guesses_on(m, end) ? l->routers[end] : 0;
    const int64_t weights = mox_plus_i64(b->weights - a->weights, rest);
    const int64_t dense = mox_plus_i64(mox_plus_i64(b->dense - a->dense, rest), router);
    const int64_t caches = allocated(b->caches - a->caches, unit), states = allocated(b->states - a->states, unit);
    mox_device_sizes s = {.weight_bytes = allocated(weights, unit), .dense_bytes = allocated(dense, unit),
                          .cache_bytes = mox_plus_i64(caches, states),
                          .step_bytes = allocated(l->use.step_bytes, unit), .slot_bytes = l->slot_bytes, .unit = unit,
                          .n_experts = n_moe * m->n_experts, .least_slots = n_moe > 0 ? l->least_slots : 0};
    const int64_t tables = mox_dev_gpu_table_bytes(&l->use.most, n_moe, m->n_experts);
    s.other_bytes = mox_plus_i64(costs->own_bytes, round_up(tables, unit));
    s.other_bytes = mox_plus_i64(s.other_bytes, round_up(m->n_frequencies * (int64_t)sizeof *m->frequencies, unit));
    return s;
}

int64_t mox_device_total(const mox_device_sizes *s, int64_t n_slots)
{
    const int64_t rest = mox_plus_i64(mox_plus_i64(s->cache_bytes, s->step_bytes), s->other_bytes);
    if (n_slots < 0) return mox_plus_i64(rest, s->weight_bytes);
    return mox_plus_i64(mox_plus_i64(rest, s->dense_bytes), round_up(n_slots * s->slot_bytes, s->unit));
}

int64_t mox_device_slots(const mox_device_sizes *s, int64_t budget)
{
    const int64_t rest = mox_device_total(s, 0);
    return budget <= rest || s->slot_bytes == 0 ? 0 : mox_min_i64((budget - rest) / s->unit * s->unit / s->slot_bytes, s->n_experts);
}

/* ---- all of them on some devices ---- */

typedef struct spreading {
    const mox_device_load *load;
    const mox_device_costs *costs;
    int64_t budget;
    bool come;
} spreading;

static double share_of_bytes(const void *user, int device, int32_t first, int32_t end)
{
    const spreading *s = user;
    const mox_device_sizes sizes = measure(s->load, s->costs, first, end);
    (void)device;
    return (double)mox_device_total(&sizes, s->come ? sizes.least_slots : -1);
}

/* How many times its slots its experts are; where these hold them all, how full it is. */
static double share_of_budget(const void *user, int device, int32_t first, int32_t end)
{
    const spreading *s = user;
    const mox_device_sizes sizes = measure(s->load, s->costs, first, end);
    const int64_t n = mox_device_slots(&sizes, s->budget), total = mox_device_total(&sizes, n);
    (void)device;
    if (total > s->budget || n < sizes.least_slots) return INFINITY;
    return n < sizes.n_experts ? (double)sizes.n_experts / (double)n : (double)total / (double)s->budget;
}

mox_status mox_spread_make(mox_spread *out, const mox_device_load *l, const mox_device_costs *costs, int n, int64_t budget, bool come,
                           mox_err *err)
{
    const int32_t n_layers = (int32_t)l->use.model->dims.n_layers;
    const spreading s = {.load = l, .costs = costs, .budget = budget, .come = come};
    int32_t ends[MOX_SECTIONS_MAX];
    double share = INFINITY;
    if (come && budget > 0) MOX_TRY(mox_divide(n_layers, n, share_of_budget, &s, ends, &share, err));
    if (share == INFINITY) MOX_TRY(mox_divide(n_layers, n, share_of_bytes, &s, ends, &share, err));
    *out = (mox_spread){.n = n};
    for (int i = 0; i < n; i++) {
        struct mox_spread_part *p = &out->parts[i];
        p->first = i > 0 ? ends[i - 1] : 0;
        p->end = ends[i];
        p->sizes = measure(l, costs, p->first, p->end);
        p->n_slots = come ? mox_max_i64(mox_device_slots(&p->sizes, budget), p->sizes.least_slots) : -1;
        p->bytes = mox_device_total(&p->sizes, p->n_slots);
        out->bytes = mox_max_i64(out->bytes, p->bytes);
    }
    return MOX_OK;
}
