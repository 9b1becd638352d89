/* tests/unit/test_matrix.c -- element types and weight matrices.
 *
 * Conversions are tried on every code and on every point halfway between two codes.
 * Packed rows are made here by a packer that sets one bit at a time, and checked
 * against golden bytes before they are decoded. */
#include "tensor/matrix.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- element types ---- */

/* sign, exponent and mantissa of an IEEE-like code, without its NaN and infinities. */
static double formula(unsigned code, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double fraction = (double)(code & ((1u << mantissa_bits) - 1)) / (double)(1 << mantissa_bits);
    const double v = exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, exponent - bias);
    return code >> (exponent_bits + mantissa_bits) ? -v : v;
}

static void bf16_all(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 65536; code++) {
        const float v = mox_bf16_to_f32((uint16_t)code);
        assert_int_equal(mox_f32_bits(v), code << 16);
        if (isnan(v)) {
            assert_true(isnan(mox_bf16_to_f32(mox_f32_to_bf16(v))));
            continue;
        }
        assert_int_equal(mox_f32_to_bf16(v), code);
        if (isinf(v)) continue;
        assert_true((double)v == formula(code, 8, 7));
        /* just below, at, and just above half way to the next code */
        const uint32_t half = (code << 16) + 0x8000u;
        assert_int_equal(mox_f32_to_bf16(mox_bits_f32(half - 1)), code);
        assert_int_equal(mox_f32_to_bf16(mox_bits_f32(half)), code + (code & 1));
        assert_int_equal(mox_f32_to_bf16(mox_bits_f32(half + 1)), code + 1);
    }
    assert_int_equal(mox_f32_to_bf16(mox_bits_f32(0x3F818000u)), 0x3F82);
    assert_int_equal(mox_f32_to_bf16(mox_bits_f32(0x3F808000u)), 0x3F80);
    assert_int_equal(mox_f32_to_bf16(mox_bits_f32(0x7F800001u)), 0x7FC0); /* a truncated NaN would be infinity */
}

static void f16_all(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 65536; code++) {
        const float v = mox_f16_to_f32((uint16_t)code);
        const unsigned magnitude = code & 0x7FFF;
        if (magnitude > 0x7C00) {
            assert_true(isnan(v) && isnan(mox_f16_to_f32(mox_f32_to_f16(v))));
            continue;
        }
        assert_int_equal(mox_f32_to_f16(v), code);
        if (magnitude == 0x7C00) {
            assert_true(isinf(v) && !signbit(v) == (code == magnitude));
            continue;
        }
        assert_true((double)v == formula(code, 5, 10) && !signbit(v) == (code == magnitude));
        /* the next code up in size; past the largest it would be 65536 */
        const double next = magnitude == 0x7BFF ? copysign(65536, (double)v) : formula(code + 1, 5, 10);
        const float half = (float)((fabs((double)v) + fabs(next)) / 2);
        const unsigned sign = code & 0x8000;
        assert_int_equal(mox_f32_to_f16(sign ? -half : half), code + (code & 1));
        const float below = nextafterf(half, 0), above = nextafterf(half, INFINITY);
        assert_int_equal(mox_f32_to_f16(sign ? -below : below), code);
        assert_int_equal(mox_f32_to_f16(sign ? -above : above), code + 1);
    }
    assert_int_equal(mox_f32_to_f16(3e38f), 0x7C00);
    assert_int_equal(mox_f32_to_f16(1e-30f), 0);
    assert_int_equal(mox_f32_to_f16(-1e-45f), 0x8000);
}

static void e4m3_all(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        const float v = mox_e4m3_to_f32((uint8_t)code);
        const unsigned magnitude = code & 0x7F, sign = code & 0x80;
        if (magnitude == 0x7F) {
            assert_true(isnan(v));
            continue;
        }
        assert_true((double)v == formula(code, 4, 3) && !signbit(v) == !sign);
    }
    assert_true(mox_e4m3_to_f32(0x7E) == 448.0f && mox_e4m3_to_f32(0x01) == 0x1p-9f && mox_e4m3_to_f32(0x38) == 1.0f);
}

static void e8m0_all(void **state)
{
    (void)state;
    for (int code = 0; code < 255; code++) assert_true((double)mox_e8m0_to_f32((uint8_t)code) == ldexp(1, code - 127));
    assert_true(isnan(mox_e8m0_to_f32(255)));
}

static void names_and_loads(void **state)
{
    (void)state;
    for (int t = MOX_DT_NONE + 1; t < MOX_DT_COUNT; t++) {
        assert_int_equal(mox_dtype_parse(mox_dtype_name((mox_dtype)t)), t);
        assert_true(mox_dtype_bytes((mox_dtype)t) >= 1);
    }
    assert_int_equal(mox_dtype_parse("F8_E4M3FN"), MOX_DT_NONE);
    assert_int_equal(mox_dtype_parse(""), MOX_DT_NONE);
    assert_string_equal(mox_dtype_name(MOX_DT_COUNT), "?");
    assert_int_equal(mox_dtype_bytes(MOX_DT_NONE), 0);
    assert_int_equal(mox_dtype_bytes(MOX_DT_BF16), 2);
    /* from an odd address, element 1 */
    static const uint8_t bytes[] = {0, 9, 9, 9, 9, 0x00, 0x00, 0x20, 0x40};
    assert_true(mox_load_as_f32(bytes + 1, MOX_DT_F32, 1) == 2.5f);
    assert_true(mox_load_as_f32(bytes + 5, MOX_DT_BF16, 1) == 2.5f);
    assert_true(mox_load_as_f32(bytes + 3, MOX_DT_F16, 2) == (float)formula(0x4020, 5, 10));
    assert_true(mox_load_as_f32(bytes + 7, MOX_DT_F8_E4M3, 1) == 2.0f);
    assert_true(mox_load_as_f32(bytes + 7, MOX_DT_F8_E8M0, 1) == 0x1p-63f);
    assert_true(isnan(mox_load_as_f32(bytes, MOX_DT_I32, 0)));
    assert_true(mox_dtype_is_float(MOX_DT_F8_E8M0) && !mox_dtype_is_float(MOX_DT_F64));
}

/* ---- packed codes ---- */

static void pack(const unsigned *codes, int n, int bits, uint8_t *bytes)
{
    memset(bytes, 0, (size_t)(n * bits / 8));
    for (int i = 0; i < n * bits; i++)
        if (codes[i / bits] >> (i % bits) & 1) bytes[i / 8] |= (uint8_t)(1 << (i % 8));
}

static uint32_t crc32_of(const uint8_t *bytes, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n * 8; i++) {
        const uint32_t bit = (crc ^ (uint32_t)(bytes[i / 8] >> (i % 8))) & 1;
        crc = (crc >> 1) ^ (bit ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void assert_hex(const uint8_t *bytes, const char *hex)
{
    for (size_t i = 0; hex[2 * i]; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], 0};
        assert_int_equal(bytes[i], strtol(digits, NULL, 16));
    }
}

/* One group of 64 at an odd address: [codes][scale][bias], and what it should give. */
static void check_group(const unsigned *codes, int bits, uint16_t scale, uint16_t bias)
{
    uint8_t file[1 + 64 + 4];
    const int n_bytes = 64 * bits / 8;
    pack(codes, 64, bits, file + 1);
    memcpy(file + 1 + n_bytes, &scale, 2);
    memcpy(file + 3 + n_bytes, &bias, 2);
    const mox_mat m = {.layout = {.kind = MOX_MAT_AFFINE, .bits = bits, .group = 64, .scale_type = MOX_DT_BF16},
                       .rows = 1,
                       .cols = 64,
                       .w = file + 1,
                       .scales = file + 1 + n_bytes,
                       .biases = file + 3 + n_bytes};
    float out[64];
    for (int col = 0; col < 64; col++) /* from every column: whole rows are not the only thing decoded */
        for (int n = 1; n <= 64 - col; n++) {
            mox_mat_decode(&m, 0, col, n, out);
            for (int i = 0; i < n; i++) {
                const double want = (double)mox_bf16_to_f32(scale) * codes[col + i] + (double)mox_bf16_to_f32(bias);
                assert_true(out[i] == (float)want);
            }
        }
}

static void golden_groups(void **state)
{
    (void)state;
    static const struct {
        int bits;
        float scale;
        uint16_t stored;
        unsigned codes[12];
        const char *hex;
        uint32_t crc;
    } goldens[] = {
        {2, -0.671875f, 0xBF2C, {3, 1, 2, 1, 2, 0, 2, 3, 1, 2, 1, 2}, "67e29974229d78269d49279e", 0xd27dacbd},
        {3, -0.26875001f, 0xBE8A, {7, 3, 6, 2, 5, 1, 4, 7, 3, 6, 2, 5}, "9fd5f0b38a5d0d31abe16715", 0x1b4bb6a3},
        {4, -0.13437501f, 0xBE0A, {15, 6, 12, 4, 10, 1, 8, 14, 5, 12, 3, 9}, "6f4c1ae8c593715d2b09d6a4", 0xfd65c2c0},
        {5, -0.0639881f, 0xBD83, {31, 13, 26, 8, 21, 3, 16, 29, 11, 24, 6, 20}, "bf695407ec0b1b1a1e57b748", 0x73f3be6d},
        {6, -0.03125f, 0xBD00, {63, 26, 53, 16, 43, 6, 33, 60, 23, 50, 13, 40}, "bf5643ab11f297dca0839753", 0x749b2750},
        {8,
         -0.0077227f,
         0xBBFD,
         {255, 105, 214, 65, 174, 24, 134, 243, 93, 202, 53, 162},
         "ff69d641ae1886f35dca35a2",
         0x1a31dc7f},
    };
    for (size_t k = 0; k < sizeof goldens / sizeof *goldens; k++) {
        /* w = (37 i mod 64 - 20) / 32; the edge 1.34375 is the bias, codes are (w - edge) / scale */
        unsigned codes[64];
        uint8_t bytes[64];
        const int most = (1 << goldens[k].bits) - 1;
        for (int i = 0; i < 64; i++) {
            const double w = (i * 37 % 64 - 20) / 32.0;
            codes[i] = (unsigned)fmin(fmax(nearbyint((w - 1.34375) / (double)goldens[k].scale), 0), most);
        }
        for (int i = 0; i < 12; i++) assert_int_equal(codes[i], goldens[k].codes[i]);
        pack(codes, 64, goldens[k].bits, bytes);
        assert_hex(bytes, goldens[k].hex);
        assert_int_equal(crc32_of(bytes, (size_t)(8 * goldens[k].bits)), goldens[k].crc);
        assert_int_equal(mox_f32_to_bf16(goldens[k].scale), goldens[k].stored);
        check_group(codes, goldens[k].bits, goldens[k].stored, 0x3FAC);
    }
    /* the other side: a positive scale */
    static const unsigned repeat[16] = {0, 7, 14, 5, 12, 3, 10, 1, 8, 15, 6, 13, 4, 11, 2, 9};
    unsigned codes[64];
    uint8_t bytes[32];
    for (int i = 0; i < 64; i++) codes[i] = repeat[i % 16];
    pack(codes, 64, 4, bytes);
    assert_hex(bytes, "705e3c1af8d6b492");
    assert_int_equal(crc32_of(bytes, 32), 0x543853ac);
    check_group(codes, 4, mox_f32_to_bf16(0.09090909f), mox_f32_to_bf16(-1.0f));
}

/* ---- layouts, sizes, views ---- */

static void sizes(void **state)
{
    (void)state;
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    for (int i = 0; i < 6; i++) {
        const mox_mat_layout l = {.kind = MOX_MAT_AFFINE, .bits = bits[i], .group = 32, .scale_type = MOX_DT_BF16};
        assert_int_equal(mox_mat_row_bytes(&l, 96), 12 * bits[i]);
        assert_int_equal(mox_mat_scale_row_bytes(&l, 96), 6);
        assert_null(mox_mat_layout_problem(&l, 96));
        assert_non_null(mox_mat_layout_problem(&l, 80));
    }
    const mox_mat_layout fp8 = {.kind = MOX_MAT_FP8, .scale_type = MOX_DT_F32, .block_rows = 128, .block_cols = 128};
    assert_int_equal(mox_mat_row_bytes(&fp8, 7168), 7168);
    assert_int_equal(mox_mat_scale_row_bytes(&fp8, 7168), 56 * 4);
    assert_int_equal(mox_mat_scale_row_bytes(&fp8, 7169), 57 * 4);
    const mox_mat_layout f16 = {.kind = MOX_MAT_F16}, f32 = {.kind = MOX_MAT_F32};
    assert_int_equal(mox_mat_row_bytes(&f16, 7), 14);
    assert_int_equal(mox_mat_row_bytes(&f32, 7), 28);
}

static void problems(void **state)
{
    (void)state;
    const mox_mat_layout affine = {.kind = MOX_MAT_AFFINE, .bits = 4, .group = 64, .scale_type = MOX_DT_BF16};
    mox_mat_layout l = affine;
    for (int bits = -1; bits < 40; bits++) {
        const bool fine = (bits >= 2 && bits <= 6) || bits == 8;
        l.bits = bits;
        assert_true(!mox_mat_layout_problem(&l, 128) == fine);
    }
    l = affine;
    for (int group = -64; group <= 256; group += 16) {
        l.group = group;
        assert_true(!mox_mat_layout_problem(&l, 256) == (group == 32 || group == 64 || group == 128));
    }
    l = affine;
    l.scale_type = MOX_DT_F8_E8M0;
    assert_non_null(mox_mat_layout_problem(&l, 128));
    l = (mox_mat_layout){.kind = MOX_MAT_FP8, .scale_type = MOX_DT_F32, .block_rows = 128};
    assert_non_null(mox_mat_layout_problem(&l, 128));
    l.block_cols = 128;
    assert_null(mox_mat_layout_problem(&l, 129));
    l.scale_type = MOX_DT_U8;
    assert_non_null(mox_mat_layout_problem(&l, 128));
    l = (mox_mat_layout){0};
    assert_non_null(mox_mat_layout_problem(&l, 128));
    l.kind = (mox_mat_kind)99;
    assert_non_null(mox_mat_layout_problem(&l, 128));
}

/* A cut grid, and rows of a view that starts inside a block. */
static void fp8_views(void **state)
{
    (void)state;
    enum { ROWS = 7, COLS = 5 };
    uint8_t codes[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) codes[i] = (uint8_t)(i * 3 + 1);
    static const uint8_t scales[3 * 3] = {127, 128, 129, 130, 131, 132, 126, 125, 124}; /* powers of two */
    const mox_mat m = {.layout = {.kind = MOX_MAT_FP8, .scale_type = MOX_DT_F8_E8M0, .block_rows = 3, .block_cols = 2},
                       .rows = ROWS, .cols = COLS, .w = codes, .scales = scales};
    for (int64_t row = 0; row < ROWS; row++) {
        const mox_mat view = mox_mat_rows(&m, row, ROWS - row), twice = mox_mat_rows(&view, (ROWS - row) / 2, 1);
        float out[COLS];
        mox_mat_decode(&view, 0, 0, COLS, out);
        for (int c = 0; c < COLS; c++)
            assert_true((double)out[c] ==
                        formula(codes[row * COLS + c], 4, 3) * ldexp(1, scales[row / 3 * 3 + c / 2] - 127));
        const int64_t at = row + (ROWS - row) / 2;
        mox_mat_decode(&twice, 0, 1, COLS - 1, out);
        for (int c = 1; c < COLS; c++)
            assert_true((double)out[c - 1] ==
                        formula(codes[at * COLS + c], 4, 3) * ldexp(1, scales[at / 3 * 3 + c / 2] - 127));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_all),        cmocka_unit_test(f16_all),       cmocka_unit_test(e4m3_all),
        cmocka_unit_test(e8m0_all),        cmocka_unit_test(names_and_loads), cmocka_unit_test(golden_groups),
        cmocka_unit_test(sizes),           cmocka_unit_test(problems),      cmocka_unit_test(fp8_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
