/* tests/fuzz/fuzz_config.c -- config.json and, after a NUL byte, generation_config.json
 * of any bytes.  Values of an accepted file must lie in the documented ranges, and
 * every typed look-up must take every key. */
#include "format/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void promise(int kept)
{
    if (!kept) abort();
}

static void check_rope(const mox_rope_config *r)
{
    promise(isfinite(r->theta) && r->theta > 0 && r->partial_rotary_factor >= 0 && r->partial_rotary_factor <= 1);
    if (r->kind != MOX_ROPE_YARN) return;
    promise(isfinite(r->factor) && r->factor >= 1 && r->beta_slow > 0 && r->beta_fast >= r->beta_slow &&
            isfinite(r->beta_fast) && r->original_max_position_embeddings > 0);
}

static int is_affine(int32_t bits, int32_t group)
{
    return bits >= 2 && bits <= 8 && bits != 7 && (group == 32 || group == 64 || group == 128);
}

static void check_quantization(const mox_config *c)
{
    const mox_quant_config *q = &c->quant;
    promise(!q->mlx || is_affine(q->bits, q->group));
    promise(!q->fp8 ||
            (q->block_rows >= 1 && q->block_rows <= 65536 && q->block_cols >= 1 && q->block_cols <= 65536));
    for (int64_t i = 0; i < q->n_overrides; i++) {
        const mox_quant_override *o = &q->overrides[i];
        promise(i == 0 || strcmp(o[-1].module, o->module) < 0);
        bool quantized = !o->quantized;
        int32_t bits = 0, group = 0;
        promise(mox_config_quantization_of(c, o->module, true, &quantized, &bits, &group, NULL) == MOX_OK);
        promise(quantized == o->quantized && (!quantized || is_affine(bits, group)));
        promise((mox_config_quantization_of(c, o->module, false, &quantized, &bits, &group, NULL) == MOX_OK) ==
                !o->quantized);
    }
}

static void look_up(const mox_config *c, const char *key)
{
    mox_err err;
    int64_t i = 5;
    double r = 5;
    bool b;
    const char *s = "";
    if (mox_config_int(c, key, 1, 10, &i, &err) == MOX_OK) promise(i >= 1 && i <= 10 && mox_config_has(c, key));
    if (mox_config_int_or(c, key, 1, 10, 3, &i, &err) == MOX_OK) promise(i >= 1 && i <= 10);
    if (mox_config_real_or(c, key, 0.5, 10, 3, &r, &err) == MOX_OK) promise(r >= 0.5 && r <= 10);
    (void)mox_config_bool_or(c, key, true, &b, &err);
    (void)mox_config_expect_string(c, key, "silu", &err);
    (void)mox_config_expect_bool(c, key, true, &err);
    if (mox_config_string_at(c, key, 1, 2, &s, &err) == MOX_OK) promise(s != NULL);
    (void)mox_config_int_array_has(c, key, 1, &b, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = (const char *)data;
    const char *zero = n ? memchr(text, 0, n) : NULL;
    const size_t first = zero ? (size_t)(zero - text) : n;
    mox_config c;
    mox_err err = {0};
    const mox_status status = mox_config_parse(&c, "input", text, first, &err);
    if (status != MOX_OK) {
        promise(err.status == status && err.msg[0] != '\0');
        return 0;
    }
    check_rope(&c.rope);
    check_quantization(&c);
    promise(c.family[0] != '\0' && strlen(c.family) < sizeof c.family);
    const char *key;
    json_t *value;
    json_object_foreach(c.text, key, value) look_up(&c, key);
    look_up(&c, "no such key");
    mox_generation_config g;
    if (mox_generation_parse(&g, &c, "more", zero ? zero + 1 : NULL, zero ? n - first - 1 : 0, &err) == MOX_OK) {
        promise(g.temperature >= 0 && g.temperature <= 100 && g.top_p >= 0 && g.top_p <= 1 && g.min_p >= 0 &&
                g.min_p <= 1);
        promise(g.top_k >= 0 && g.repeat_penalty > 0 && g.n_stop_ids >= 0 && g.n_stop_ids <= MOX_MAX_STOP_IDS);
        for (int32_t i = 0; i < g.n_stop_ids; i++) promise(g.stop_ids[i] >= 0);
    }
    mox_config_close(&c);
    return 0;
}
