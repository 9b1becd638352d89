/* tests/unit/test_config.c -- config.json and generation_config.json: both styles of
 * every family, every refusal by its words, failing memory and disks. */
#include "base/alloc.h"
#include "base/file.h"
#include "format/config.h"
#include "fail_nth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char label[] = "some/config.json";

static void assert_says(const mox_err *err, mox_status got, mox_status status, const char *words)
{
    if (got != status || !strstr(err->msg, words))
        fail_msg("expected %d with \"%s\", got %d: %s", status, words, got, err->msg);
    assert_int_equal(err->status, status);
}

static void parse(mox_config *c, const char *text)
{
    mox_err err = {0};
    const mox_status status = mox_config_parse(c, label, text, strlen(text), &err);
    if (status != MOX_OK) fail_msg("%s: %s", text, err.msg);
}

/* The text is refused with a sentence that names the file and says `words`. */
static void refused(const char *text, mox_status status, const char *words)
{
    mox_config c;
    mox_err err = {0};
    const mox_status got = mox_config_parse(&c, label, text, strlen(text), &err);
    assert_says(&err, got, status, words);
    assert_says(&err, got, status, label);
    assert_null(c.root); /* closed again */
    assert_null(c.path);
    assert_null(c.quant.overrides);
}

/* ---- families ---- */

static void test_families(void **state)
{
    (void)state;
    static const struct {
        const char *text, *family;
        double theta, partial;
        mox_rope_kind kind;
        bool tied;
        int64_t layers;
    } cases[] = {
        {"{\"model_type\":\"qwen3\",\"rope_theta\":1000000,\"rope_scaling\":null,\"tie_word_embeddings\":true,"
         "\"num_hidden_layers\":28}",
         "qwen3", 1e6, 0, MOX_ROPE_DEFAULT, true, 28},
        {"{\"model_type\":\"qwen3\",\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"default\"},"
         "\"num_hidden_layers\":28}",
         "qwen3", 1e6, 0, MOX_ROPE_DEFAULT, false, 28},
        {"{\"model_type\":\"qwen3_moe\",\"rope_theta\":10000000.0,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":"
         "4,"
         "\"original_max_position_embeddings\":32768},\"num_hidden_layers\":48}",
         "qwen3_moe", 1e7, 0, MOX_ROPE_YARN, false, 48},
        {"{\"model_type\":\"qwen3_moe\",\"rope_parameters\":{\"rope_theta\":1e7,\"rope_type\":\"default\"},"
         "\"num_hidden_layers\":48}",
         "qwen3_moe", 1e7, 0, MOX_ROPE_DEFAULT, false, 48},
        {"{\"model_type\":\"qwen3_next\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,\"num_hidden_"
         "layers\":48}",
         "qwen3_next", 1e7, 0.25, MOX_ROPE_DEFAULT, false, 48},
        {"{\"model_type\":\"qwen3_next\",\"partial_rotary_factor\":0.25,\"num_hidden_layers\":48,\"rope_"
         "parameters\":"
         "{\"partial_rotary_factor\":0.25,\"rope_theta\":10000000.0,\"rope_type\":\"default\"}}",
         "qwen3_next", 1e7, 0.25, MOX_ROPE_DEFAULT, false, 48},
        {"{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":true,\"num_hidden_layers\":9,\"rope_theta\":5,"
         "\"text_config\":{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":32,\"rope_parameters\":"
         "{\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,\"rope_type\":\"default\","
         "\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]}},\"vision_config\":{\"depth\":27}}",
         "qwen3_5", 1e7, 0.25, MOX_ROPE_DEFAULT, true, 32},
        {"{\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":32,\"rope_parameters\":{\"rope_theta\":1e7}}",
         "qwen3_5", 1e7, 0, MOX_ROPE_DEFAULT, false, 32},
        {"{\"model_type\":\"qwen3_5_moe\",\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":"
         "\"qwen3_5_moe_text\",\"tie_word_embeddings\":false,\"num_hidden_layers\":60,\"rope_theta\":10000000,"
         "\"partial_rotary_factor\":0.25}}",
         "qwen3_5_moe", 1e7, 0.25, MOX_ROPE_DEFAULT, false, 60},
        {"{\"model_type\":\"qwen3_5_moe_text\",\"num_hidden_layers\":60,\"rope_parameters\":{\"rope_theta\":1e7,"
         "\"partial_rotary_factor\":0.25,\"rope_type\":\"default\"}}",
         "qwen3_5_moe", 1e7, 0.25, MOX_ROPE_DEFAULT, false, 60},
        {"{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":61,\"rope_theta\":10000,\"rope_scaling\":{"
         "\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
         "\"original_max_position_embeddings\":4096}}",
         "deepseek_v3", 1e4, 0, MOX_ROPE_YARN, false, 61},
        {"{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":61,\"rope_parameters\":{\"rope_type\":\"yarn\","
         "\"rope_theta\":10000.0,\"factor\":40.0,\"beta_fast\":32.0,\"beta_slow\":1.0,\"mscale\":1.0,"
         "\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":4096}}",
         "deepseek_v3", 1e4, 0, MOX_ROPE_YARN, false, 61},
        /* text_config without its own model_type; defaults; an object for nothing */
        {"{\"model_type\":\"qwen3\",\"text_config\":{\"num_hidden_layers\":2,\"rope_parameters\":{}}}", "qwen3",
         1e4, 0, MOX_ROPE_DEFAULT, false, 2},
        {"{\"model_type\":\"qwen3\",\"text_config\":null,\"num_hidden_layers\":2,\"tie_word_embeddings\":null}",
         "qwen3", 1e4, 0, MOX_ROPE_DEFAULT, false, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mox_config c;
        int64_t layers = 0;
        parse(&c, cases[i].text);
        assert_string_equal(c.family, cases[i].family);
        assert_true(c.rope.theta == cases[i].theta);
        assert_true(c.rope.partial_rotary_factor == cases[i].partial);
        assert_int_equal(c.rope.kind, cases[i].kind);
        assert_int_equal(c.tied, cases[i].tied);
        assert_int_equal(mox_config_int(&c, "num_hidden_layers", 1, 1000, &layers, NULL), MOX_OK);
        assert_int_equal(layers, cases[i].layers);
        assert_false(c.quant.mlx || c.quant.fp8);
        mox_config_close(&c);
        mox_config_close(&c); /* zeroed storage is fine */
    }
}

static void test_file(void **state)
{
    (void)state;
    refused("", MOX_E_FORMAT, "not valid JSON");
    refused("[]", MOX_E_FORMAT, "expected a JSON object");
    refused("{\"model_type\":\"qwen3\"} x", MOX_E_FORMAT, "not valid JSON");
    refused("{\"model_type\":\"qwen3\",\"model_type\":\"qwen3\"}", MOX_E_FORMAT, "duplicate");
    refused("{\"model_type\":\"qwen3\",\"rms_norm_eps\":NaN}", MOX_E_FORMAT, "near 'NaN'");
    refused("{\"model_type\":\"qwen3\",\"rms_norm_eps\":1e999}", MOX_E_FORMAT, "not valid JSON");
    refused("version https://git-lfs.github.com/spec/v1\n", MOX_E_FORMAT, "git lfs pull");
    char deep[65 + 200] = "{\"model_type\":\"qwen3\",\"x\":";
    const size_t n = strlen(deep);
    memset(deep + n, '[', 63);
    memset(deep + n + 63, ']', 63);
    strcpy(deep + n + 126, "}");
    mox_config c;
    parse(&c, deep); /* 64 deep */
    mox_config_close(&c);
    memset(deep + n, '[', 64);
    memset(deep + n + 64, ']', 64);
    strcpy(deep + n + 128, "}");
    refused(deep, MOX_E_FORMAT, "nested more than 64 deep");
    /* Brackets in strings do not count, nor does an escaped quote end one. */
    parse(&c, "{\"model_type\":\"qwen3\",\"x\":\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
              "[[[[[\"}");
    mox_config_close(&c);
}

static void test_family_refused(void **state)
{
    (void)state;
    refused("{}", MOX_E_FORMAT, "model_type is missing");
    refused("{\"model_type\":null}", MOX_E_FORMAT, "model_type is missing");
    refused("{\"model_type\":3}", MOX_E_FORMAT, "model_type is 3, expected a string");
    refused("{\"model_type\":\"qwen3\",\"text_config\":{\"model_type\":3}}", MOX_E_FORMAT,
            "text_config.model_type is 3");
    refused("{\"model_type\":\"\"}", MOX_E_UNSUPPORTED, "model_type \"\" is not");
    refused("{\"model_type\":\"0123456789012345678901234567890123456789012345678901234567890123\"}",
            MOX_E_UNSUPPORTED, "is not a known family");
    refused("{\"model_type\":\"qwen3\",\"text_config\":[]}", MOX_E_FORMAT,
            "text_config is an array, expected an object");
    refused("{\"model_type\":\"qwen3\",\"tie_word_embeddings\":1}", MOX_E_FORMAT,
            "tie_word_embeddings is 1, expected true or false");
    refused("{\"model_type\":\"qwen3\",\"text_config\":{\"tie_word_embeddings\":\"no\"}}", MOX_E_FORMAT,
            "text_config.tie_word_embeddings is \"no\"");
}

/* ---- rope ---- */

static void test_yarn(void **state)
{
    (void)state;
    mox_config c;
    parse(&c, "{\"model_type\":\"m\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,\"beta_fast\":16,"
              "\"beta_slow\":2,"
              "\"mscale\":0.5,\"mscale_all_dim\":0.75,\"attention_factor\":1.25,\"truncate\":false,"
              "\"original_max_position_embeddings\":4096},\"max_position_embeddings\":9}");
    assert_true(c.rope.factor == 8 && c.rope.beta_fast == 16 && c.rope.beta_slow == 2);
    assert_true(c.rope.mscale == 0.5 && c.rope.mscale_all_dim == 0.75 && c.rope.attention_factor == 1.25);
    assert_false(c.rope.truncate);
    assert_int_equal(c.rope.original_max_position_embeddings, 4096);
    mox_config_close(&c);
    parse(&c, "{\"model_type\":\"m\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":1},\"max_position_"
              "embeddings\":512}");
    assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1);
    assert_true(c.rope.mscale == 0 && c.rope.mscale_all_dim == 0 && c.rope.attention_factor == 0);
    assert_true(c.rope.truncate);
    assert_int_equal(c.rope.original_max_position_embeddings, 512);
    mox_config_close(&c);
    /* The object wins over what stands beside it; rope_type over type. */
    parse(&c, "{\"model_type\":\"m\",\"rope_theta\":5,\"partial_rotary_factor\":0.5,\"rope_parameters\":{\"rope_"
              "theta\":7,"
              "\"partial_rotary_factor\":0.75,\"rope_type\":\"default\",\"type\":\"linear\"},\"rope_scaling\":{"
              "\"type\":\"default\"}}");
    assert_true(c.rope.theta == 7 && c.rope.partial_rotary_factor == 0.75);
    assert_int_equal(c.rope.kind, MOX_ROPE_DEFAULT);
    mox_config_close(&c);
}

static void test_rope_refused(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        mox_status status;
        const char *words;
    } cases[] = {
        {"\"rope_theta\":0", MOX_E_FORMAT, "rope_theta is 0, expected a number from"},
        {"\"rope_theta\":-1.5", MOX_E_FORMAT, "rope_theta is the real number -1.5"},
        {"\"rope_theta\":1e300", MOX_E_FORMAT, "rope_theta is the real number 1e+300"},
        {"\"rope_theta\":\"1e6\"", MOX_E_FORMAT, "rope_theta is \"1e6\""},
        {"\"partial_rotary_factor\":0", MOX_E_FORMAT, "partial_rotary_factor is 0"},
        {"\"partial_rotary_factor\":1.5", MOX_E_FORMAT, "partial_rotary_factor is the real number 1.5"},
        {"\"rope_parameters\":[]", MOX_E_FORMAT, "rope_parameters is an array, expected an object"},
        {"\"rope_scaling\":4", MOX_E_FORMAT, "rope_scaling is 4, expected an object"},
        {"\"rope_parameters\":{\"rope_theta\":0}", MOX_E_FORMAT, "rope_parameters.rope_theta is 0"},
        {"\"rope_parameters\":{\"partial_rotary_factor\":2}", MOX_E_FORMAT,
         "rope_parameters.partial_rotary_factor is 2"},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", MOX_E_UNSUPPORTED,
         "rope_scaling.rope_type is \"linear\""},
        {"\"rope_scaling\":{\"rope_type\":\"longrope\"}", MOX_E_UNSUPPORTED, "\"longrope\""},
        {"\"rope_parameters\":{\"rope_type\":\"llama3\"}", MOX_E_UNSUPPORTED,
         "rope_parameters.rope_type is \"llama3\""},
        {"\"rope_scaling\":{\"rope_type\":5}", MOX_E_FORMAT, "rope_scaling.rope_type is 5, expected a string"},
        {"\"rope_scaling\":{\"type\":5}", MOX_E_FORMAT, "rope_scaling.type is 5, expected a string"},
        {"\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}",
         MOX_E_FORMAT, "rope_parameters says \"default\" and rope_scaling says \"yarn\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        snprintf(text, sizeof text, "{\"model_type\":\"m\",%s}", cases[i].keys);
        refused(text, cases[i].status, cases[i].words);
        snprintf(text, sizeof text, "{\"model_type\":\"m\",\"text_config\":{%s}}", cases[i].keys);
        refused(text, cases[i].status, i < 8 ? "text_config." : "rope_");
    }
    static const struct {
        const char *keys, *words;
    } yarn[] = {
        {"\"x\":1", "rope_scaling.factor is missing"},
        {"\"factor\":0.5", "rope_scaling.factor is the real number 0.5, expected a number from 1 to"},
        {"\"factor\":1e9", "rope_scaling.factor is"},
        {"\"factor\":true", "rope_scaling.factor is true"},
        {"\"factor\":4,\"beta_fast\":0", "rope_scaling.beta_fast is 0, expected a number from"},
        {"\"factor\":4,\"beta_slow\":-1", "rope_scaling.beta_slow is -1"},
        {"\"factor\":4,\"beta_slow\":33", "beta_fast is 32, expected at least beta_slow, which is 33"},
        {"\"factor\":4,\"mscale\":-1", "rope_scaling.mscale is -1"},
        {"\"factor\":4,\"mscale_all_dim\":-1", "rope_scaling.mscale_all_dim is -1"},
        {"\"factor\":4,\"attention_factor\":\"1\"", "rope_scaling.attention_factor is \"1\""},
        {"\"factor\":4,\"truncate\":0", "rope_scaling.truncate is 0, expected true or false"},
        {"\"factor\":4,\"original_max_position_embeddings\":0", "original_max_position_embeddings is 0"},
        {"\"factor\":4,\"original_max_position_embeddings\":4096.5",
         "original_max_position_embeddings is the real"},
        {"\"factor\":4", "rope_scaling.original_max_position_embeddings is missing"},
    };
    for (size_t i = 0; i < sizeof yarn / sizeof *yarn; i++) {
        char text[400];
        snprintf(text, sizeof text, "{\"model_type\":\"m\",%s\"rope_scaling\":{\"type\":\"yarn\",%s}}",
                 i + 1 == sizeof yarn / sizeof *yarn ? "" : "\"max_position_embeddings\":8192,", yarn[i].keys);
        refused(text, MOX_E_FORMAT, yarn[i].words);
    }
    refused(
        "{\"model_type\":\"m\",\"max_position_embeddings\":0,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}",
        MOX_E_FORMAT, "max_position_embeddings is 0");
}

/* ---- quantization ---- */

static void expect_quantization(const mox_config *c, const char *module, bool has_scales, bool quantized,
                                int bits, int group)
{
    bool q = !quantized;
    int32_t b = -1, g = -1;
    assert_int_equal(mox_config_quantization_of(c, module, has_scales, &q, &b, &g, NULL), MOX_OK);
    assert_int_equal(q, quantized);
    assert_int_equal(b, quantized ? bits : -1);
    assert_int_equal(g, quantized ? group : -1);
}

static void test_quantization(void **state)
{
    (void)state;
    mox_config c;
    bool q;
    int32_t bits, group;
    mox_err err;
    parse(&c,
          "{\"model_type\":\"m\",\"quantization\":{\"group_size\":32,\"bits\":3,\"mode\":\"affine\","
          "\"z.gate\":{\"group_size\":128,\"bits\":8},\"a.gate\":{\"bits\":6},\"k.gate\":false,\"m.gate\":{}},"
          "\"quantization_config\":{\"quant_method\":\"gptq\"}}");
    assert_true(c.quant.mlx);
    assert_false(c.quant.fp8); /* the MLX object wins */
    assert_int_equal(c.quant.n_overrides, 4);
    for (int64_t i = 1; i < c.quant.n_overrides; i++)
        assert_true(strcmp(c.quant.overrides[i - 1].module, c.quant.overrides[i].module) < 0);
    expect_quantization(&c, "z.gate", true, true, 8, 128);
    expect_quantization(&c, "a.gate", true, true, 6,
                        64); /* what an override leaves out is 4 and 64, not the global value */
    expect_quantization(&c, "m.gate", true, true, 4, 64);
    expect_quantization(&c, "k.gate", true, false, 0, 0);
    expect_quantization(&c, "k.gate", false, false, 0, 0);
    expect_quantization(&c, "other", true, true, 3, 32);
    expect_quantization(&c, "other", false, false, 0, 0);
    assert_says(&err, mox_config_quantization_of(&c, "a.gate", false, &q, &bits, &group, &err), MOX_E_FORMAT,
                "there is no tensor a.gate.scales");
    mox_config_close(&c);
    parse(&c, "{\"model_type\":\"m\",\"quantization\":{}}");
    expect_quantization(&c, "x", true, true, 4, 64);
    mox_config_close(&c);
    parse(&c, "{\"model_type\":\"m\",\"quantization\":null,\"quantization_config\":null}");
    assert_false(c.quant.mlx || c.quant.fp8);
    expect_quantization(&c, "x", false, false, 0, 0);
    assert_says(&err, mox_config_quantization_of(&c, "x", true, &q, &bits, &group, &err), MOX_E_FORMAT,
                "there is a tensor x.scales, but no \"quantization\"");
    mox_config_close(&c);
}

static void test_many_overrides(void **state)
{
    (void)state;
    enum { N = 5000 };
    char *text = malloc(N * 64 + 100), *at = text;
    assert_non_null(text);
    at += sprintf(at, "{\"model_type\":\"m\",\"quantization\":{\"bits\":4");
    for (int i = 0; i < N; i++)
        at += sprintf(at, ",\"layers.%d.gate\":{\"bits\":%d}", (i * 37) % N, i % 2 ? 8 : 6);
    strcpy(at, "}}");
    mox_config c;
    parse(&c, text);
    assert_int_equal(c.quant.n_overrides, N);
    for (int i = 0; i < N; i++) {
        char module[40];
        sprintf(module, "layers.%d.gate", (i * 37) % N);
        expect_quantization(&c, module, true, true, i % 2 ? 8 : 6, 64);
    }
    mox_config_close(&c);
    free(text);
}

static void test_quantization_refused(void **state)
{
    (void)state;
    static const struct {
        const char *object;
        mox_status status;
        const char *words;
    } cases[] = {
        {"[]", MOX_E_FORMAT, "quantization is an array, expected an object"},
        {"true", MOX_E_FORMAT, "quantization is true"},
        {"{\"bits\":7}", MOX_E_FORMAT, "quantization.bits is 7, expected 2, 3, 4, 5, 6 or 8"},
        {"{\"bits\":1}", MOX_E_FORMAT, "quantization.bits is 1"},
        {"{\"bits\":16}", MOX_E_FORMAT, "quantization.bits is 16"},
        {"{\"bits\":4294967300}", MOX_E_FORMAT, "quantization.bits is 4294967300"},
        {"{\"bits\":4.0}", MOX_E_FORMAT, "quantization.bits is the real number 4"},
        {"{\"bits\":\"4\"}", MOX_E_FORMAT, "quantization.bits is \"4\""},
        {"{\"group_size\":0}", MOX_E_FORMAT, "quantization.group_size is 0, expected 32, 64 or 128"},
        {"{\"group_size\":48}", MOX_E_FORMAT, "quantization.group_size is 48"},
        {"{\"mode\":\"mxfp4\"}", MOX_E_UNSUPPORTED, "quantization.mode is \"mxfp4\""},
        {"{\"mode\":4}", MOX_E_FORMAT, "quantization.mode is 4, expected a string"},
        {"{\"a.gate\":{\"bits\":7}}", MOX_E_FORMAT, "quantization.a.gate.bits is 7"},
        {"{\"a.gate\":{\"group_size\":16}}", MOX_E_FORMAT, "quantization.a.gate.group_size is 16"},
        {"{\"a.gate\":{\"mode\":\"nvfp4\"}}", MOX_E_UNSUPPORTED, "quantization.a.gate.mode is \"nvfp4\""},
        {"{\"b\":{},\"a.gate\":true}", MOX_E_FORMAT, "quantization.a.gate is true, expected an object or false"},
        {"{\"a.gate\":null}", MOX_E_FORMAT, "quantization.a.gate is null"},
        {"{\"a.gate\":8}", MOX_E_FORMAT, "quantization.a.gate is 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        snprintf(text, sizeof text, "{\"model_type\":\"m\",\"quantization\":%s}", cases[i].object);
        refused(text, cases[i].status, cases[i].words);
    }
}

static void test_fp8(void **state)
{
    (void)state;
    mox_config c;
    parse(&c, "{\"model_type\":\"m\",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
              "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[64,65536],\"modules_to_not_convert\":["
              "\"lm_head\"]}}");
    assert_true(c.quant.fp8);
    assert_false(c.quant.mlx);
    assert_int_equal(c.quant.block_rows, 64);
    assert_int_equal(c.quant.block_cols, 65536);
    mox_config_close(&c);
    parse(&c, "{\"model_type\":\"m\",\"text_config\":{\"quantization_config\":{\"quant_method\":\"fp8\"}}}");
    assert_true(c.quant.fp8);
    assert_int_equal(c.quant.block_rows, 128);
    assert_int_equal(c.quant.block_cols, 128);
    mox_config_close(&c);
    static const struct {
        const char *object;
        mox_status status;
        const char *words;
    } cases[] = {
        {"\"fp8\"", MOX_E_FORMAT, "quantization_config is \"fp8\", expected an object"},
        {"{}", MOX_E_FORMAT, "quantization_config.quant_method is missing"},
        {"{\"quant_method\":8}", MOX_E_FORMAT, "quantization_config.quant_method is 8"},
        {"{\"quant_method\":\"gptq\",\"bits\":4}", MOX_E_UNSUPPORTED,
         "quantization_config.quant_method is \"gptq\""},
        {"{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", MOX_E_UNSUPPORTED, "quantization_config.fmt is \"e5m2\""},
        {"{\"quant_method\":\"fp8\",\"fmt\":8}", MOX_E_FORMAT, "quantization_config.fmt is 8"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":128}", MOX_E_FORMAT, "weight_block_size is 128"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}", MOX_E_FORMAT, "weight_block_size is an array"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128,128]}", MOX_E_FORMAT, "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}", MOX_E_FORMAT, "weight_block_size"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,65537]}", MOX_E_FORMAT,
         "two integers from 1 to 65536"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[65537,128]}", MOX_E_FORMAT,
         "two integers from 1 to 65536"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]}", MOX_E_FORMAT,
         "two integers from 1 to 65536"},
        {"{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128.0]}", MOX_E_FORMAT,
         "two integers from 1 to 65536"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        snprintf(text, sizeof text, "{\"model_type\":\"m\",\"quantization_config\":%s}", cases[i].object);
        refused(text, cases[i].status, cases[i].words);
        snprintf(text, sizeof text, "{\"model_type\":\"m\",\"text_config\":{\"quantization_config\":%s}}",
                 cases[i].object);
        refused(text, cases[i].status, "text_config.quantization_config");
    }
}

/* ---- look-ups ---- */

static void test_lookups(void **state)
{
    (void)state;
    mox_config c;
    mox_err err;
    int64_t i = 0;
    double r = 0;
    bool b = false;
    const char *s = NULL;
    parse(&c, "{\"model_type\":\"m\",\"only_root\":1,\"text_config\":{\"layers\":28,\"huge\":1000000000,"
              "\"heads\":0,\"eps\":1e-6,"
              "\"neg\":-1e-6,\"one\":1,\"real\":28.0,\"yes\":true,\"no\":false,\"act\":\"silu\",\"nothing\":null,"
              "\"types\":[\"a\",\"b\",3],\"only\":[0,5],\"mixed\":[0,\"5\"]}}");
    assert_true(mox_config_has(&c, "layers"));
    assert_false(mox_config_has(&c, "nothing"));
    assert_false(mox_config_has(&c, "only_root"));

    assert_int_equal(mox_config_int(&c, "layers", 28, 28, &i, &err), MOX_OK);
    assert_int_equal(i, 28);
    assert_says(&err, mox_config_int(&c, "layers", 29, 99, &i, &err), MOX_E_FORMAT,
                "text_config.layers is 28, expected an integer from 29 to 99");
    assert_says(&err, mox_config_int(&c, "huge", 1, 10000, &i, &err), MOX_E_FORMAT,
                "is 1000000000, expected an integer from 1 to 10000");
    assert_says(&err, mox_config_int(&c, "heads", 1, 10000, &i, &err), MOX_E_FORMAT, "text_config.heads is 0");
    assert_says(&err, mox_config_int(&c, "real", 1, 99, &i, &err), MOX_E_FORMAT, "is the real number 28");
    assert_says(&err, mox_config_int(&c, "absent", 1, 99, &i, &err), MOX_E_FORMAT,
                "text_config.absent is missing");
    assert_says(&err, mox_config_int(&c, "nothing", 1, 99, &i, &err), MOX_E_FORMAT,
                "text_config.nothing is missing");
    assert_int_equal(mox_config_int_or(&c, "nothing", 1, 99, -7, &i, &err), MOX_OK);
    assert_int_equal(i, -7);
    assert_int_equal(mox_config_int_or(&c, "layers", 1, 99, -7, &i, &err), MOX_OK);
    assert_int_equal(i, 28);
    assert_int_equal(mox_config_int_or(&c, "act", 1, 99, -7, &i, &err), MOX_E_FORMAT);

    assert_int_equal(mox_config_real_or(&c, "eps", 1e-12, 1, 5, &r, &err), MOX_OK);
    assert_true(r == 1e-6);
    assert_int_equal(mox_config_real_or(&c, "one", 1e-12, 1, 5, &r, &err), MOX_OK);
    assert_true(r == 1);
    assert_says(&err, mox_config_real_or(&c, "neg", 1e-12, 1, 5, &r, &err), MOX_E_FORMAT,
                "text_config.neg is the real number -1e-06, expected a number from 1e-12 to 1");
    assert_says(&err, mox_config_real_or(&c, "act", 0, 1, 5, &r, &err), MOX_E_FORMAT, "is \"silu\"");
    assert_int_equal(mox_config_real_or(&c, "absent", 0, 1, 5, &r, &err), MOX_OK);
    assert_true(r == 5);

    assert_int_equal(mox_config_bool_or(&c, "yes", false, &b, &err), MOX_OK);
    assert_true(b);
    assert_int_equal(mox_config_bool_or(&c, "no", true, &b, &err), MOX_OK);
    assert_false(b);
    assert_int_equal(mox_config_bool_or(&c, "absent", true, &b, &err), MOX_OK);
    assert_true(b);
    assert_says(&err, mox_config_bool_or(&c, "one", true, &b, &err), MOX_E_FORMAT,
                "is 1, expected true or false");

    assert_int_equal(mox_config_expect_string(&c, "act", "silu", &err), MOX_OK);
    assert_int_equal(mox_config_expect_string(&c, "absent", "silu", &err), MOX_OK);
    assert_says(&err, mox_config_expect_string(&c, "act", "gelu", &err), MOX_E_UNSUPPORTED,
                "text_config.act is \"silu\", this version supports gelu only");
    assert_int_equal(mox_config_expect_string(&c, "one", "silu", &err), MOX_E_FORMAT);
    assert_int_equal(mox_config_expect_bool(&c, "yes", true, &err), MOX_OK);
    assert_int_equal(mox_config_expect_bool(&c, "absent", true, &err), MOX_OK);
    assert_says(&err, mox_config_expect_bool(&c, "yes", false, &err), MOX_E_UNSUPPORTED,
                "text_config.yes is true, this version supports false only");
    assert_int_equal(mox_config_expect_bool(&c, "act", true, &err), MOX_E_FORMAT);

    assert_int_equal(mox_config_string_at(&c, "types", 1, 3, &s, &err), MOX_OK);
    assert_string_equal(s, "b");
    assert_says(&err, mox_config_string_at(&c, "types", 1, 4, &s, &err), MOX_E_FORMAT,
                "types has 3 entries, expected 4");
    assert_says(&err, mox_config_string_at(&c, "types", 2, 3, &s, &err), MOX_E_FORMAT,
                "types[2] is 3, expected a string");
    assert_says(&err, mox_config_string_at(&c, "types", 3, 3, &s, &err), MOX_E_FORMAT, "types[3] is missing");
    assert_says(&err, mox_config_string_at(&c, "act", 0, 3, &s, &err), MOX_E_FORMAT,
                "expected an array of strings");
    assert_says(&err, mox_config_string_at(&c, "absent", 0, 3, &s, &err), MOX_E_FORMAT, "is missing");

    assert_int_equal(mox_config_int_array_has(&c, "only", 5, &b, &err), MOX_OK);
    assert_true(b);
    assert_int_equal(mox_config_int_array_has(&c, "only", 4, &b, &err), MOX_OK);
    assert_false(b);
    b = true;
    assert_int_equal(mox_config_int_array_has(&c, "absent", 4, &b, &err), MOX_OK);
    assert_false(b);
    assert_says(&err, mox_config_int_array_has(&c, "mixed", 0, &b, &err), MOX_E_FORMAT,
                "mixed[1] is \"5\", expected an integer");
    assert_says(&err, mox_config_int_array_has(&c, "act", 0, &b, &err), MOX_E_FORMAT,
                "expected an array of integers");
    mox_config_close(&c);
}

/* Text of the file in a sentence: cut between characters, no control characters. */
static void test_foreign_text_in_sentences(void **state)
{
    (void)state;
    char text[400], value[200];
    for (size_t i = 0; i < sizeof value - 1; i++) value[i] = "\xe2\x82\xac"[i % 3];
    value[198] = '\0';
    snprintf(text, sizeof text, "{\"model_type\":\"m\",\"rope_scaling\":{\"type\":\"%s\"}}", value);
    refused(text, MOX_E_UNSUPPORTED, "\xe2\x82\xac...\"");
    refused("{\"model_type\":\"m\",\"rope_scaling\":{\"type\":\"a\\u001b[31m\\nb\"}}", MOX_E_UNSUPPORTED,
            "\"a?[31m?b\"");
}

/* ---- generation ---- */

static void test_generation(void **state)
{
    (void)state;
    mox_config c;
    mox_generation_config g;
    mox_err err = {0};
    parse(&c, "{\"model_type\":\"m\",\"eos_token_id\":[7,9],\"text_config\":{\"eos_token_id\":11}}");
    static const char all[] =
        "{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"min_p\":0.01,"
        "\"repetition_penalty\":1.05,\"eos_token_id\":[9,8,9],\"pad_token_id\":null}";
    assert_int_equal(mox_generation_parse(&g, &c, "g.json", all, strlen(all), &err), MOX_OK);
    assert_true(g.temperature == 0.6 && g.top_p == 0.95 && g.min_p == 0.01 && g.repeat_penalty == 1.05);
    assert_int_equal(g.top_k, 20);
    static const int32_t stops[] = {9, 8, 7, 11};
    assert_int_equal(g.n_stop_ids, 4);
    assert_memory_equal(g.stop_ids, stops, sizeof stops);
    static const char negative[] = "{\"eos_token_id\":-1}", huge[] = "{\"eos_token_id\":2147483648}";
    assert_says(&err, mox_generation_parse(&g, &c, "g.json", negative, strlen(negative), &err), MOX_E_FORMAT,
                "g.json: the end-of-sequence id -1");
    assert_says(&err, mox_generation_parse(&g, &c, "g.json", huge, strlen(huge), &err), MOX_E_FORMAT, "2147483648");
    char many[1024] = "{\"eos_token_id\":[7,9,11";
    for (int i = 3; i < MOX_MAX_STOP_IDS; i++) snprintf(many + strlen(many), 16, ",%d", 100 + i);
    snprintf(many + strlen(many), 16, "]}");
    assert_int_equal(mox_generation_parse(&g, &c, "g.json", many, strlen(many), &err), MOX_OK);
    assert_int_equal(g.n_stop_ids, MOX_MAX_STOP_IDS);
    snprintf(many + strlen(many) - 2, 16, ",99]}");
    assert_says(&err, mox_generation_parse(&g, &c, "g.json", many, strlen(many), &err), MOX_E_FORMAT, "more than 64");

    assert_int_equal(mox_generation_parse(&g, &c, "g.json", NULL, 0, &err), MOX_OK);
    assert_true(g.temperature == 0 && g.top_p == 1 && g.min_p == 0 && g.repeat_penalty == 1);
    assert_int_equal(g.top_k, 0);
    assert_int_equal(g.n_stop_ids, 3);
    static const struct {
        const char *text;
        double temperature;
    } warmth[] = {{"{\"do_sample\":true}", 1},
                  {"{\"do_sample\":false,\"temperature\":0.7}", 0},
                  {"{\"temperature\":0.7}", 0}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mox_generation_parse(&g, &c, "g.json", warmth[i].text, strlen(warmth[i].text), &err),
                         MOX_OK);
        assert_true(g.temperature == warmth[i].temperature);
    }
    mox_config_close(&c);
}

static void test_generation_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"[]", "g.json: expected a JSON object"},
        {"{\"do_sample\":1}", "g.json: do_sample is 1, expected true or false"},
        {"{\"temperature\":\"hot\"}", "g.json: temperature is \"hot\""},
        {"{\"temperature\":-0.5}", "g.json: temperature is the real number -0.5"},
        {"{\"top_k\":20.5}", "g.json: top_k is the real number 20.5"},
        {"{\"top_k\":-1}", "g.json: top_k is -1"},
        {"{\"top_p\":1.5}", "g.json: top_p is the real number 1.5"},
        {"{\"min_p\":-1}", "g.json: min_p is -1"},
        {"{\"repetition_penalty\":0}", "g.json: repetition_penalty is 0"},
        {"{\"eos_token_id\":\"7\"}", "g.json: eos_token_id is \"7\", expected an integer or an array"},
        {"{\"eos_token_id\":[7,null]}", "g.json: eos_token_id[1] is null"},
        {"{\"eos_token_id\":-7}", "g.json: the end-of-sequence id -7"},
        {"{\"eos_token_id\":[2147483648]}", "g.json: the end-of-sequence id 2147483648"},
    };
    mox_config c;
    mox_generation_config g;
    mox_err err = {0};
    parse(&c, "{\"model_type\":\"m\"}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_says(&err, mox_generation_parse(&g, &c, "g.json", cases[i].text, strlen(cases[i].text), &err),
                    MOX_E_FORMAT, cases[i].words);
    mox_config_close(&c);
    parse(&c, "{\"model_type\":\"m\",\"eos_token_id\":true}");
    assert_says(&err, mox_generation_parse(&g, &c, "g.json", NULL, 0, &err), MOX_E_FORMAT,
                "some/config.json: eos_token_id is true");
    mox_config_close(&c);
    parse(&c, "{\"model_type\":\"m\",\"text_config\":{\"eos_token_id\":[true]}}");
    assert_says(&err, mox_generation_parse(&g, &c, "g.json", NULL, 0, &err), MOX_E_FORMAT,
                "text_config.eos_token_id[0] is true");
    mox_config_close(&c);
}

/* ---- files, failing memory and disks ---- */

static char dir[64];

static void path_in_dir(char out[128], const char *name) { snprintf(out, 128, "%s/%s", dir, name); }

static void write_text(const char *name, const char *text)
{
    char path[128];
    path_in_dir(path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mox-config-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json"};
    for (size_t i = 0; i < 2; i++) {
        char path[128];
        path_in_dir(path, names[i]);
        (void)unlink(path);
    }
    return rmdir(dir);
}

static void write_model(void)
{
    write_text("config.json",
               "{\"model_type\":\"m\",\"quantization\":{\"bits\":4,\"model.a\":{\"bits\":8},\"model.b\":false},"
               "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4},\"max_position_embeddings\":99}");
    write_text("generation_config.json", "{\"do_sample\":true,\"top_k\":20,\"eos_token_id\":[1,2]}");
}

static mox_status open_both(mox_err *err)
{
    mox_config c;
    mox_generation_config g;
    MOX_TRY(mox_config_open(&c, dir, err));
    const mox_status status = mox_generation_open(&g, &c, dir, err);
    if (status == MOX_OK) {
        assert_int_equal(c.quant.n_overrides, 2);
        assert_int_equal(g.n_stop_ids, 2);
    }
    mox_config_close(&c);
    return status;
}

static void test_open(void **state)
{
    (void)state;
    mox_config c;
    mox_generation_config g;
    mox_err err = {0};
    assert_says(&err, mox_config_open(&c, dir, &err), MOX_E_NOT_FOUND, "config.json");
    write_model();
    assert_int_equal(open_both(&err), MOX_OK);
    char path[128];
    path_in_dir(path, "generation_config.json");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mox_config_open(&c, dir, &err), MOX_OK);
    assert_int_equal(mox_generation_open(&g, &c, dir, &err), MOX_OK); /* it need not exist */
    assert_true(g.top_p == 1);
    mox_config_close(&c);
    path_in_dir(path, "config.json");
    assert_int_equal(truncate(path, 200 << 20), 0);
    assert_says(&err, mox_config_open(&c, dir, &err), MOX_E_FORMAT,
                "209715200 bytes is over the limit of 67108864");
}

static void test_every_alloc_fails(void **state)
{
    (void)state;
    write_model();
    json_set_alloc_funcs(json_alloc, mox_free);
    nth n = {.at = 1};
    for (;; n.at++) {
        mox_err err = {0};
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = open_both(&err);
        mox_alloc_set_hook(NULL, NULL);
        if (n.count < n.at) {
            assert_int_equal(status, MOX_OK);
            break;
        }
        if (status == MOX_OK) fail_msg("allocation %ld failed and nobody noticed", n.at);
        assert_int_equal(err.status, status);
    }
    json_set_alloc_funcs(malloc, free);
    assert_in_range(n.at, 40, 10000);
}

static void test_every_read_fails(void **state)
{
    (void)state;
    write_model();
    nth n = {.at = 1};
    for (;; n.at++) {
        mox_err err = {0};
        n.count = 0;
        mox_io_set_hook(fail_nth_io, &n);
        const mox_status status = open_both(&err);
        mox_io_set_hook(NULL, NULL);
        if (n.count < n.at) {
            assert_int_equal(status, MOX_OK);
            break;
        }
        assert_says(&err, status, MOX_E_IO, strerror(EIO));
    }
    assert_int_equal(n.at, 1 + 4); /* two files, opened and read */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_family_refused),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_rope_refused),
        cmocka_unit_test(test_quantization),
        cmocka_unit_test(test_many_overrides),
        cmocka_unit_test(test_quantization_refused),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_foreign_text_in_sentences),
        cmocka_unit_test(test_generation),
        cmocka_unit_test(test_generation_refused),
        cmocka_unit_test_setup_teardown(test_open, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_every_alloc_fails, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_every_read_fails, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
