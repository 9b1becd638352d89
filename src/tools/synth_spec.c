/* tools/synth_spec.c -- the models that can be imitated, and the names for them. */
#include "tools/synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Published dimensions of the text models. */
static const mox_synth_spec specs[] = {
    {.name = "qwen3-30b-a3b", .kind = MOX_SYNTH_QWEN3, .vocab = 151936, .dim = 2048, .layers = 48, .n_ctx = 40960,
     .heads = 32, .kv_heads = 4, .head_dim = 128, .experts = 128, .active = 8, .expert_width = 768, .theta = 1e6},
    {.name = "qwen3-235b-a22b", .kind = MOX_SYNTH_QWEN3, .vocab = 151936, .dim = 4096, .layers = 94, .n_ctx = 40960,
     .heads = 64, .kv_heads = 4, .head_dim = 128, .experts = 128, .active = 8, .expert_width = 1536, .theta = 1e6},
    {.name = "qwen3-next-80b-a3b", .kind = MOX_SYNTH_NEXT, .vocab = 151936, .dim = 2048, .layers = 48, .n_ctx = 262144,
     .heads = 16, .kv_heads = 2, .head_dim = 256, .experts = 512, .active = 10, .expert_width = 512, .shared_width = 512,
     .k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128, .conv = 4, .theta = 1e7},
    {.name = "qwen3.5-35b-a3b", .kind = MOX_SYNTH_QWEN3_5, .vocab = 248320, .dim = 2048, .layers = 40, .n_ctx = 262144,
     .heads = 16, .kv_heads = 2, .head_dim = 256, .experts = 256, .active = 8, .expert_width = 512, .shared_width = 512,
     .k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128, .conv = 4, .theta = 1e7},
    {.name = "qwen3.5-397b-a17b", .kind = MOX_SYNTH_QWEN3_5, .vocab = 248320, .dim = 4096, .layers = 60, .n_ctx = 262144,
     .heads = 32, .kv_heads = 2, .head_dim = 256, .experts = 512, .active = 10, .expert_width = 1024, .shared_width = 1024,
     .k_heads = 16, .v_heads = 64, .k_dim = 128, .v_dim = 128, .conv = 4, .theta = 1e7},
    {.name = "deepseek-v3", .kind = MOX_SYNTH_DEEPSEEK, .vocab = 129280, .dim = 7168, .layers = 61, .n_ctx = 163840,
     .heads = 128, .kv_heads = 128, .experts = 256, .active = 8, .expert_width = 2048, .shared_width = 2048,
     .dense_layers = 3, .dense_width = 18432, .q_rank = 1536, .kv_rank = 512, .nope = 128, .rope = 64, .mla_v_dim = 128,
     .groups = 8, .kept_groups = 4, .theta = 1e4},
};
enum { N_SPECS = sizeof specs / sizeof *specs };

int mox_synth_count(void) { return N_SPECS; }
const char *mox_synth_name(int i) { return specs[i].name; }

static mox_status fail_name(const char *text, mox_err *err)
{
    char known[200] = "";
    for (size_t i = 0; i < N_SPECS; i++) {
        const size_t n = strlen(known);
        (void)snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", specs[i].name);
    }
    return mox_fail(err, MOX_E_ARG, "there is no synthetic model '%.80s' (there are: %s; NAME:layers=N shortens one)", text,
                    known);
}

static mox_status read_layers(mox_synth_spec *s, const char *text, const char *options, mox_err *err)
{
    static const char key[] = "layers=";
    char *end = NULL;
    const char *digits = options + sizeof key - 1;
    if (strncasecmp(options, key, sizeof key - 1) != 0 || *digits < '0' || *digits > '9')
        return mox_fail(err, MOX_E_ARG, "'%.80s': what follows the name is layers=N", text);
    const long long n = strtoll(digits, &end, 10);
    if (*end != '\0' || n < 1 || n > s->layers)
        return mox_fail(err, MOX_E_ARG, "'%.80s': %s has 1 to %lld layers", text, s->name, (long long)s->layers);
    s->layers = n;
    if (s->dense_layers >= n) s->dense_layers = n > 1 ? n - 1 : 1;
    return MOX_OK;
}

mox_status mox_synth_parse(mox_synth_spec *out, const char *text, mox_err *err)
{
    const size_t n = strcspn(text, ":");
    for (size_t i = 0; i < N_SPECS; i++) {
        if (strlen(specs[i].name) != n || strncasecmp(specs[i].name, text, n) != 0) continue;
        *out = specs[i];
        return text[n] == ':' ? read_layers(out, text, text + n + 1, err) : MOX_OK;
    }
    return fail_name(text, err);
}

bool mox_synth_is_full(const mox_synth_spec *s, int64_t layer) { return s->conv == 0 || (layer + 1) % 4 == 0; }
bool mox_synth_is_dense(const mox_synth_spec *s, int64_t layer) { return layer < s->dense_layers; }

const char *mox_synth_prefix(const mox_synth_spec *s)
{
    return s->kind == MOX_SYNTH_QWEN3_5 ? "language_model.model." : "model.";
}
