/* model/model.c -- opening a checkpoint: files, configuration, family, weights. */
#include "model/model.h"

#include "base/alloc.h"
#include "base/machine.h"

#include <stdio.h>
#include <string.h>

struct mox_keep {
    struct mox_keep *next;
    max_align_t memory[];
};

void *mox_model_keep(mox_model *m, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(bytes, sizeof(mox_keep), &bytes)) return NULL;
    mox_keep *k = mox_alloc_array(1, bytes);
    if (!k) return NULL;
    k->next = m->kept;
    m->kept = k;
    return k->memory;
}

mox_status mox_family_find(const mox_config *c, const mox_family **out, mox_err *err)
{
    char known[200] = "";
    for (const mox_family *const *f = mox_families; *f; f++) {
        if (strcmp((*f)->model_type, c->family) == 0) {
            *out = *f;
            return MOX_OK;
        }
        const size_t n = strlen(known);
        (void)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", (*f)->model_type);
    }
    return mox_fail(err, MOX_E_UNSUPPORTED, "%s: model_type '%s' is not supported (supported: %s)", c->path, c->family, known);
}

/* Keys that every family has, each with the range it may have. */
static mox_status read_dims(const mox_config *c, mox_dims *d, mox_err *err)
{
    MOX_TRY(mox_config_int(c, "vocab_size", 1, 1 << 24, &d->n_vocab, err));
    MOX_TRY(mox_config_int(c, "num_hidden_layers", 1, 4096, &d->n_layers, err));
    MOX_TRY(mox_config_int(c, "hidden_size", 1, 1 << 20, &d->dim, err));
    MOX_TRY(mox_config_int(c, "num_attention_heads", 1, 1 << 16, &d->heads, err));
    MOX_TRY(mox_config_int_or(c, "max_position_embeddings", 1, 1 << 28, 4096, &d->n_ctx_max, err));
    double eps;
    MOX_TRY(mox_config_real_or(c, "rms_norm_eps", 0, 1, 1e-6, &eps, err));
    d->eps = (float)eps;
    return mox_config_expect_string(c, "hidden_act", "silu", err);
}

/* Embedding, head and norms, which have the same names in all families. */
static mox_status bind_common(mox_model *m, mox_binder *b, mox_err *err)
{
    const mox_dims *d = &m->dims;
    MOX_TRY(mox_bind_matrix(b, &m->embed, d->n_vocab, d->dim, err, "embed_tokens"));
    MOX_TRY(mox_bind_vector(b, &m->final_norm, d->dim, false, err, "norm.weight"));
    bool has_head = false;
    if (!m->config.tied) MOX_TRY(mox_bind_head(b, &m->head, d->n_vocab, d->dim, &has_head, err));
    if (!has_head) m->head = m->embed;
    m->report.tied_embeddings = !has_head;
    for (long long i = 0; i < d->n_layers; i++) {
        MOX_TRY(mox_bind_vector(b, &m->layers[i].norm_in, d->dim, false, err, "layers.%lld.input_layernorm.weight", i));
        MOX_TRY(mox_bind_vector(b, &m->layers[i].norm_post, d->dim, false, err, "layers.%lld.post_attention_layernorm.weight", i));
    }
    return MOX_OK;
}

static void fill_report(mox_model *m)
{
    mox_inspection *r = &m->report;
    (void)snprintf(r->family, sizeof r->family, "%s", m->config.family);
    r->n_files = m->tensors.n_files;
    r->n_tensors = m->tensors.n_tensors;
    r->n_layers = m->dims.n_layers;
    r->n_vocab = m->dims.n_vocab;
    r->d_model = m->dims.dim;
    r->n_ctx_max = m->dims.n_ctx_max;
    r->n_heads = m->dims.heads;
    if (m->config.rope.kind == MOX_ROPE_YARN)
        (void)snprintf(r->rope, sizeof r->rope, "yarn x%g, theta %g", m->config.rope.factor, m->config.rope.theta);
    else (void)snprintf(r->rope, sizeof r->rope, "theta %g", m->config.rope.theta);
    for (int64_t i = 0; i < m->dims.n_layers; i++)
        r->kv_bytes_per_token += 2 * (m->layers[i].cache.first + m->layers[i].cache.second);
    r->state_bytes = m->recurrent_floats * (int64_t)sizeof(float);
}

/* The first half: what kind of model the configuration describes. */
static mox_status begin(mox_model *m, const mox_family **family, mox_err *err)
{
    MOX_TRY(mox_family_find(&m->config, family, err));
    return read_dims(&m->config, &m->dims, err);
}

/* Where the weights will be. */
static mox_status settle(mox_model *m, mox_weights weights, mox_err *err)
{
    mox_file *files = m->tensors.files;
    const int32_t n = m->tensors.n_files;
    int64_t bytes = 0; /* the files are there, so their sizes add up */
    for (int32_t i = 0; i < n; i++) bytes += files[i].size;
    /* Of files that do not fit, single experts come and go, and huge pages read too much. */
    const bool fits = bytes <= mox_machine_memory("");
    for (int32_t i = 0; i < n; i++) {
        MOX_TRY(mox_file_map(&files[i], err));
        if (fits) mox_file_want_huge_pages(&files[i]);
    }
    m->residency = (mox_residency){.files = files, .n_files = n};
    return weights == MOX_WEIGHTS_COPY ? mox_copy_start(&m->residency.copy, files, n, err) : MOX_OK;
}

/* The second half: binding the tensors. */
static mox_status bind(mox_model *m, const mox_family *family, const mox_model_opts *opts, mox_err *err)
{
    if (m->tensors.unlisted && opts && opts->warn) opts->warn(opts->warn_user, m->tensors.unlisted);
    m->layers = MOX_KEEP(m, mox_layer, m->dims.n_layers);
    if (!m->layers) return mox_fail_memory(err, (size_t)m->dims.n_layers * sizeof *m->layers, "layers");
    mox_binder b = {0};
    mox_status status = mox_binder_init(&b, &m->tensors, &m->config, &m->report, err);
    if (status == MOX_OK) status = family->load(m, &b, err); /* first: it knows best what is wrong with the config */
    if (status == MOX_OK) status = bind_common(m, &b, err);
    if (status == MOX_OK)
        status = mox_binder_finish(&b, m->dims.n_layers, opts ? opts->warn : NULL, opts ? opts->warn_user : NULL, err);
    m->tensor_use = b.used;
    b.used = NULL;
    mox_binder_deinit(&b);
    MOX_TRY(status);
    fill_report(m);
    return settle(m, opts ? opts->weights : MOX_WEIGHTS_MAP, err);
}

static mox_status load(mox_model *m, const char *dir, const mox_model_opts *opts, mox_err *err)
{
    const mox_family *family = NULL;
    MOX_TRY(mox_config_open(&m->config, dir, err));
    MOX_TRY(begin(m, &family, err));
    MOX_TRY(mox_generation_open(&m->generation, &m->config, dir, err));
    MOX_TRY(mox_tensors_open(&m->tensors, dir, err));
    return bind(m, family, opts, err);
}

mox_status mox_model_open(mox_model **out, const char *dir, const mox_model_opts *opts, mox_err *err)
{
    *out = NULL;
    mox_model *m = mox_alloc_array(1, sizeof *m);
    if (!m) return mox_fail_memory(err, sizeof *m, "a model");
    const mox_status status = load(m, dir, opts, err);
    if (status != MOX_OK) mox_model_close(&m);
    *out = m;
    return status;
}

mox_status mox_model_open_parts(mox_model **out, mox_config *config, const mox_generation_config *generation,
                                mox_tensors *tensors, const mox_model_opts *opts, mox_err *err)
{
    *out = NULL;
    mox_model *m = mox_alloc_array(1, sizeof *m);
    if (!m) {
        mox_config_close(config);
        mox_tensors_close(tensors);
        return mox_fail_memory(err, sizeof *m, "a model");
    }
    m->config = *config;
    m->generation = *generation;
    m->tensors = *tensors;
    *config = (mox_config){0};
    *tensors = (mox_tensors){0};
    const mox_family *family = NULL;
    mox_status status = begin(m, &family, err);
    if (status == MOX_OK) status = bind(m, family, opts, err);
    if (status != MOX_OK) mox_model_close(&m);
    *out = m;
    return status;
}

void mox_model_close(mox_model **model)
{
    mox_model *m = *model;
    if (!m) return;
    while (m->kept) {
        mox_keep *next = m->kept->next;
        mox_free(m->kept);
        m->kept = next;
    }
    mox_free(m->tensor_use);
    mox_copy_stop(&m->residency.copy);
    mox_tensors_close(&m->tensors);
    mox_config_close(&m->config);
    mox_free(m);
    *model = NULL;
}

void mox_model_get_info(const mox_model *m, mox_model_info *out)
{
    *out = (mox_model_info){.family = m->config.family, .n_vocab = m->dims.n_vocab, .n_layers = m->dims.n_layers,
                            .n_ctx_max = m->dims.n_ctx_max, .recurrent = m->recurrent_floats > 0};
}

void mox_model_get_generation(const mox_model *m, mox_generation *out)
{
    const mox_generation_config *g = &m->generation;
    *out = (mox_generation){.temperature = (float)g->temperature, .top_k = (int32_t)g->top_k, .top_p = (float)g->top_p,
                            .min_p = (float)g->min_p, .repeat_penalty = (float)g->repeat_penalty, .stop_ids = g->stop_ids,
                            .n_stop_ids = g->n_stop_ids};
}

void mox_model_get_residency(const mox_model *m, mox_weight_residency *out)
{
    *out = (mox_weight_residency){0};
    for (int32_t i = 0; i < m->tensors.n_files; i++)
        if (m->tensors.files[i].fd >= 0) out->bytes += m->tensors.files[i].size;
    if (m->dense_only) out->bytes_loaded = m->report.bytes_total - m->report.bytes_experts;
    if (m->residency.copy) out->bytes_copied = mox_copy_bytes(m->residency.copy, &out->copying);
    mox_machine_mapped("", &out->bytes_mapped, &out->bytes_mapped_huge);
}

void mox_model_inspect(const mox_model *m, mox_inspection *out) { *out = m->report; }
