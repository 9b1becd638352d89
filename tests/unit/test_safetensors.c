/* tests/unit/test_safetensors.c -- the safetensors reader against good files, files
 * with exactly one thing wrong, and failing memory and disks.
 *
 * Every refusal is checked by status and by the words that tell the user why, so
 * that a file cannot be refused for another reason than the one under test. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "format/safetensors.h"
#include "fail_nth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <errno.h>
#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mox-safetensors-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    DIR *d = opendir(dir);
    if (!d) return -1;
    const struct dirent *entry;
    while ((entry = readdir(d)) != NULL)
        if (entry->d_name[0] != '.') (void)unlinkat(dirfd(d), entry->d_name, 0);
    closedir(d);
    return rmdir(dir);
}

/* The path of a file in the test's folder, in one of a few static buffers. */
static const char *in_dir(const char *name)
{
    static char paths[4][400];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *name, const char *text) { write_bytes(name, text, strlen(text)); }

/* length, header of n bytes, then n_data bytes of data. */
static void write_raw(const char *name, uint64_t length, const char *header, size_t n, size_t n_data)
{
    unsigned char *bytes = calloc(1, 8 + n + n_data);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> (8 * i));
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < n_data; i++) bytes[8 + n + i] = (unsigned char)(i * 7 + 1);
    write_bytes(name, bytes, 8 + n + n_data);
    free(bytes);
}

static void write_tensors(const char *name, const char *header, size_t n_data)
{
    write_raw(name, strlen(header), header, strlen(header), n_data);
}

static void assert_says(const mox_err *err, mox_status got, mox_status status, const char *words)
{
    if (got != status || !strstr(err->msg, words))
        fail_msg("expected %d with \"%s\", got %d: %s", status, words, got, err->msg);
    assert_int_equal(err->status, status);
}

/* The file is refused with a sentence that names it and says `words`. */
static void refused(const char *name, mox_status status, const char *words)
{
    mox_tensors t;
    mox_err err = {0};
    const mox_status got = mox_tensors_open_file(&t, in_dir(name), &err);
    assert_says(&err, got, status, words);
    assert_says(&err, got, status, name);
    assert_int_equal(t.n_files, 0); /* closed again */
    assert_null(t.tensors);
}

static void refused_header(const char *header, size_t n_data, const char *words)
{
    write_tensors("bad.safetensors", header, n_data);
    refused("bad.safetensors", MOX_E_FORMAT, words);
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                           "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[4,4]},"
                           "\"z\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[16,19]}}   ";

static void test_good(void **state)
{
    (void)state;
    write_tensors("good.safetensors", good, 19);
    mox_tensors t;
    mox_err err;
    assert_int_equal(mox_tensors_open_file(&t, in_dir("good.safetensors"), &err), MOX_OK);
    assert_int_equal(t.n_files, 1);
    assert_int_equal(t.n_tensors, 4);
    assert_null(t.unlisted);
    for (int64_t i = 1; i < t.n_tensors; i++) assert_true(strcmp(t.tensors[i - 1].name, t.tensors[i].name) < 0);
    const int64_t data = 8 + (int64_t)strlen(good);
    const mox_tensor_info *b = mox_tensors_find(&t, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, MOX_DT_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->extent.file, 0);
    assert_int_equal(b->extent.offset, data + 4);
    assert_int_equal(b->extent.bytes, 12);
    unsigned char first;
    assert_int_equal(mox_file_read_at(&t.files[0], b->extent.offset, &first, 1, &err), MOX_OK);
    assert_int_equal(first, 4 * 7 + 1);
    const mox_tensor_info *a = mox_tensors_find(&t, "a"), *none = mox_tensors_find(&t, "none");
    assert_int_equal(a->n_dims, 0); /* a scalar */
    assert_int_equal(a->extent.bytes, 4);
    assert_int_equal(none->extent.bytes, 0); /* a dimension of 0 is legal */
    assert_int_equal(mox_tensors_find(&t, "z")->n_dims, MOX_MAX_DIMS);
    assert_null(mox_tensors_find(&t, "c"));
    assert_null(mox_tensors_find(&t, ""));
    mox_tensors_close(&t);
    mox_tensors_close(&t); /* zeroed storage is fine */
    assert_null(mox_tensors_find(&t, "b"));
}

static void test_no_tensors(void **state)
{
    (void)state;
    write_tensors("empty.safetensors", "{}", 0);
    mox_tensors t;
    assert_int_equal(mox_tensors_open_file(&t, in_dir("empty.safetensors"), NULL), MOX_OK);
    assert_int_equal(t.n_tensors, 0);
    mox_tensors_close(&t);
    refused_header("{}", 1, "should be 10 bytes long but is 11");
}

/* Largest single allocation seen by the hook. */
static int remember_largest(void *user, size_t bytes)
{
    size_t *largest = user;
    if (bytes > *largest) *largest = bytes;
    return 1;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double at_once_s = 0.1;
#else
static const double at_once_s = 0.01;
#endif

/* bad.safetensors is refused, and quickly; a busy machine has five tries. */
static void refused_at_once(const char *words)
{
    double best = 1e9;
    refused("bad.safetensors", MOX_E_FORMAT, words);
    for (int i = 0; i < 5; i++) {
        mox_tensors t;
        const double start = mox_clock_now();
        assert_int_equal(mox_tensors_open_file(&t, in_dir("bad.safetensors"), NULL), MOX_E_FORMAT);
        best = fmin(best, mox_clock_now() - start);
    }
    if (best >= at_once_s) fail_msg("\"%s\" took %g s", words, best);
}

static void test_length(void **state)
{
    (void)state;
    size_t largest = 0;
    mox_alloc_set_hook(remember_largest, &largest);
    write_bytes("bad.safetensors", "", 0);
    refused_at_once("0 bytes is too short");
    write_bytes("bad.safetensors", "1234567", 7);
    refused_at_once("7 bytes is too short");
    write_raw("bad.safetensors", 2, "", 0, 0);
    refused_at_once("needs 10 bytes but the file is 8");
    write_raw("bad.safetensors", 0, "{}", 2, 0);
    refused_at_once("header length 0 is not in 1 to 100000000");
    write_raw("bad.safetensors", 1, "{}", 2, 0);
    refused_at_once("not valid JSON");
    write_raw("bad.safetensors", UINT64_C(1) << 63, "{}", 2, 0);
    refused_at_once("header length 9223372036854775808");
    write_raw("bad.safetensors", UINT64_MAX, "{}", 2, 0);
    refused_at_once("header length 18446744073709551615");
    write_raw("bad.safetensors", 100000001, "{}", 2, 0);
    refused_at_once("header length 100000001");
    write_raw("bad.safetensors", 100000000, "{}", 2, 0);
    refused_at_once("needs 100000008 bytes but the file is 10");
    write_raw("bad.safetensors", 3, "{}", 2, 0);
    refused_at_once("needs 11 bytes but the file is 10");
    mox_alloc_set_hook(NULL, NULL);
    assert_in_range(largest, 1, 4096); /* no claimed size was ever allocated */
}

static void test_header_text(void **state)
{
    (void)state;
    refused_header("[]", 0, "does not begin with '{'");
    refused_header(" {}", 0, "does not begin with '{'");
    refused_header("{} x", 0, "not valid JSON");
    refused_header("{}{}", 0, "not valid JSON");
    refused_header("{", 0, "not valid JSON");
    refused_header("{\"a\":1,}", 0, "not valid JSON");
    refused_header("{\"\xff\":{}}", 0, "not valid JSON");
    refused_header("{\"\xc0\xaf\":{}}", 0, "not valid JSON"); /* an overlong encoding */
    refused_header("{\"a\\u0000b\":{}}", 0, "not valid JSON");
    refused_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                   "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                   1, "duplicate");
    refused_header("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                   "duplicate");
    write_raw("bad.safetensors", 3, "{}\0", 3, 0);
    refused("bad.safetensors", MOX_E_FORMAT, "not valid JSON");
    enum { DEEP = 10000 };
    char *deep = malloc(DEEP + 8);
    assert_non_null(deep);
    strcpy(deep, "{\"a\":");
    memset(deep + 5, '[', DEEP);
    deep[DEEP + 5] = '\0';
    refused_header(deep, 0, "nested more than 64 deep");
    free(deep);
}

static void test_entries(void **state)
{
    (void)state;
    static const struct {
        const char *entry;
        size_t n_data;
        const char *words;
    } cases[] = {
        {"1", 0, "expected exactly dtype, shape and data_offsets"},
        {"{\"shape\":[1],\"data_offsets\":[0,1]}", 1, "expected exactly"},
        {"{\"dtype\":\"U8\",\"data_offsets\":[0,1]}", 1, "expected exactly"},
        {"{\"dtype\":\"U8\",\"shape\":[1]}", 1, "expected exactly"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}", 1, "expected exactly"},
        {"{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}", 1, "dtype is not a string"},
        {"{\"dtype\":\"F4_E9\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, "dtype \"F4_E9\" is not known"},
        {"{\"dtype\":\"u8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, "dtype \"u8\" is not known"},
        {"{\"dtype\":\"?\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, "dtype \"?\" is not known"},
        {"{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}", 1, "shape is not an array"},
        {"{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}", 1,
         "dimension 0 of its shape is the real number 1"},
        {"{\"dtype\":\"U8\",\"shape\":[1,\"1\"],\"data_offsets\":[0,1]}", 1, "dimension 1 of its shape is \"1\""},
        {"{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}", 1, "dimension 0 of its shape is -1"},
        {"{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}", 1,
         "has 9 dimensions, the limit is 8"},
        {"{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}", 0,
         "product of its shape is too large"},
        {"{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}", 0, "need another size"},
        {"{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, "need another size"},
        {"{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}", 1, "need another size"},
        {"{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,1]}", 1, "need another size"},
        {"{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}", 0, "need another size"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":1}", 1, "data_offsets is not an array of two"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}", 1, "data_offsets is not an array of two"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}", 1, "data_offsets is not an array of two"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,\"1\"]}", 1, "data_offsets holds \"1\""},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1e308]}", 1,
         "data_offsets holds the real number 1e+308"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}", 1, "data_offsets holds the real number 1"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}", 1, "data_offsets holds -1"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}", 1, "[1, 0] are no byte range"},
        {"{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[9223372036854775807,9223372036854775807]}", 0,
         "are no byte range"},
        {"{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}", 2, "leave a hole"},
        {"{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}", 2, "tensor \"the one\" is cut off"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[400];
        snprintf(header, sizeof header, "{\"the one\":%s}", cases[i].entry);
        refused_header(header, cases[i].n_data, cases[i].words);
        refused_header(header, cases[i].n_data, "\"the one\"");
    }
    /* Beyond 64 bits there is no integer to complain about: the text is refused. */
    refused_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,18446744073709551617]}}", 1,
                   "too big integer");
}

static void test_cover(void **state)
{
    (void)state;
#define ENTRY(name, n, begin, end)                                                                               \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #begin "," #end "]}"
    refused_header("{" ENTRY("a", 4, 0, 4) "," ENTRY("b", 4, 3, 7) "}", 7,
                   "tensor \"b\": its data begins at byte 3 of the data area, expected 4: the tensors overlap");
    refused_header("{" ENTRY("a", 4, 0, 4) "," ENTRY("b", 4, 0, 4) "}", 4, "overlap");
    refused_header(
        "{" ENTRY("b", 4, 5, 9) "," ENTRY("a", 4, 0, 4) "}", 9,
        "tensor \"b\": its data begins at byte 5 of the data area, expected 4: the tensors leave a hole");
    refused_header("{" ENTRY("a", 4, 0, 4) "," ENTRY("b", 0, 2, 2) "}", 4, "overlap");
    refused_header("{" ENTRY("a", 4, 0, 4) "," ENTRY("b", 4, 4, 8) "}", 9, "data after the last tensor");
    refused_header("{" ENTRY("a", 0, 0, 0) "," ENTRY("b", 4, 0, 4) "," ENTRY("c", 0, 5, 5) "}", 5,
                   "leave a hole");
    write_tensors("ok.safetensors", "{" ENTRY("b", 4, 0, 4) "," ENTRY("a", 0, 0, 0) "," ENTRY("c", 0, 4, 4) "}",
                  4);
    mox_tensors t;
    assert_int_equal(mox_tensors_open_file(&t, in_dir("ok.safetensors"), NULL), MOX_OK);
    mox_tensors_close(&t);
}

static void test_cut_by_one(void **state)
{
    (void)state;
    const long long whole = (long long)(8 + strlen(good) + 19);
    char words[80];
    snprintf(words, sizeof words, "should be %lld bytes long but is %lld", whole, whole - 1);
    write_tensors("cut.safetensors", good, 18);
    refused("cut.safetensors", MOX_E_FORMAT, words);
    refused("cut.safetensors", MOX_E_FORMAT, "tensor \"z\" is cut off");
}

static void test_metadata(void **state)
{
    (void)state;
    refused_header("{\"__metadata__\":3}", 0, "__metadata__ is not an object");
    refused_header("{\"__metadata__\":{\"format\":3}}", 0, "__metadata__ \"format\" is not a string");
}

static void test_limits(void **state)
{
    (void)state;
    char header[1200], name[514];
    memset(name, 'n', sizeof name);
    for (size_t n = 512; n <= 513; n++) {
        snprintf(header, sizeof header, "{\"%.*s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                 (int)n, name);
        if (n == 513) refused_header(header, 1, "name is longer than 512 bytes");
        write_tensors("name.safetensors", header, 1);
        mox_tensors t;
        assert_int_equal(mox_tensors_open_file(&t, in_dir("name.safetensors"), NULL),
                         n == 512 ? MOX_OK : MOX_E_FORMAT);
        mox_tensors_close(&t);
    }
    /* The millionth and the one after it; the entries are wrong, but counted first. */
    enum { ENTRY_BYTES = 12, LIMIT = 1000000 };
    for (size_t count = LIMIT; count <= LIMIT + 1; count++) {
        char *many = malloc(count * ENTRY_BYTES + 2);
        assert_non_null(many);
        char *at = many;
        for (size_t i = 0; i < count; i++) at += sprintf(at, "%c\"%zu\":1", i ? ',' : '{', i);
        strcpy(at, "}");
        refused_header(many, 0, count == LIMIT ? "expected exactly" : "more than 1000000 tensors");
        free(many);
    }
}

static void test_not_a_tensor_file(void **state)
{
    (void)state;
    write_text("pointer.safetensors", "version https://git-lfs.github.com/spec/v1\n"
                                      "oid sha256:0123456789abcdef\nsize 5000000000\n");
    refused("pointer.safetensors", MOX_E_FORMAT, "Git LFS pointer");
    refused("pointer.safetensors", MOX_E_FORMAT, "git lfs pull");
    refused("absent.safetensors", MOX_E_NOT_FOUND, "cannot open");
    write_text("page.safetensors", "<!DOCTYPE html><html><body>Not found</body></html>");
    refused("page.safetensors", MOX_E_FORMAT, "not a safetensors file");
}

/* ---- folders ---- */

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"
#define TWO(a, b)                                                                                                \
    "{\"" a "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"                                        \
    "\"" b "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}"
static const char index_name[] = "model.safetensors.index.json";

static void dir_refused(mox_status status, const char *words)
{
    mox_tensors t;
    mox_err err = {0};
    assert_says(&err, mox_tensors_open(&t, dir, &err), status, words);
    assert_null(t.files);
    assert_null(t.unlisted);
}

static void dir_opens(mox_tensors *t)
{
    mox_err err = {0};
    const mox_status status = mox_tensors_open(t, dir, &err);
    if (status != MOX_OK) fail_msg("%s", err.msg);
}

static void test_dir_without_index(void **state)
{
    (void)state;
    dir_refused(MOX_E_NOT_FOUND, "expected model.safetensors, or");
    dir_refused(MOX_E_NOT_FOUND, dir);
    static const char *const scrambled[] = {"5", "2", "8", "1", "7", "4", "6", "3"};
    for (size_t i = 0; i < 8; i++) {
        char name[40], header[100];
        snprintf(name, sizeof name, "model-%s.safetensors", scrambled[i]);
        snprintf(header, sizeof header, "{\"t%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                 scrambled[i]);
        write_tensors(name, header, 1);
    }
    write_tensors("other.safetensors", ONE("three"), 1);
    write_text("model.txt", "no weights");
    mox_tensors t;
    dir_opens(&t);
    assert_int_equal(t.n_files, 8);
    for (int i = 1; i < 8; i++) assert_true(strcmp(t.files[i - 1].path, t.files[i].path) < 0);
    assert_int_equal(mox_tensors_find(&t, "t2")->extent.file, 1);
    assert_null(mox_tensors_find(&t, "three"));
    mox_tensors_close(&t);
    write_tensors("model-3.safetensors", ONE("t1"), 1);
    dir_refused(MOX_E_FORMAT, "model-1.safetensors and model-3.safetensors hold the same tensors: t1;");
    write_tensors("model.safetensors", ONE("single"), 1);
    dir_opens(&t);
    assert_int_equal(t.n_files, 1);
    assert_non_null(mox_tensors_find(&t, "single"));
    mox_tensors_close(&t);
    mox_err err;
    assert_says(&err, mox_tensors_open(&t, in_dir("absent"), &err), MOX_E_NOT_FOUND,
                "cannot open the model folder");
}

static void test_dir_with_index(void **state)
{
    (void)state;
    write_tensors("x-00002.safetensors", TWO("c", "b"), 2);
    write_tensors("x-00001.safetensors", ONE("a"), 1);
    write_tensors("model.safetensors", ONE("unused"), 1);
    write_text(index_name, "{\"metadata\":{\"total_size\":3},\"weight_map\":{\"b\":\"x-00002.safetensors\","
                           "\"a\":\"x-00001.safetensors\",\"c\":\"x-00002.safetensors\"}}");
    mox_tensors t;
    dir_opens(&t);
    assert_int_equal(t.n_files, 2);
    assert_int_equal(t.n_tensors, 3);
    assert_null(t.unlisted);
    assert_int_equal(mox_tensors_find(&t, "a")->extent.file, 0);
    assert_int_equal(mox_tensors_find(&t, "b")->extent.file, 1);
    assert_null(mox_tensors_find(&t, "unused"));
    mox_tensors_close(&t);

    write_text(index_name, "{\"weight_map\":{\"a\":\"x-00001.safetensors\",\"d\":\"x-00003.safetensors\"}}");
    dir_refused(MOX_E_NOT_FOUND, "x-00003.safetensors is missing");
    write_tensors("x-00003.safetensors", TWO("a", "d"), 2);
    dir_refused(MOX_E_FORMAT, "x-00001.safetensors and x-00003.safetensors hold the same tensors: a;");
    write_tensors("x-00003.safetensors", ONE("e"), 1);
    dir_refused(MOX_E_FORMAT, "1 tensors are not in the files it names for them: d");
    write_tensors("x-00003.safetensors", "not tensors", 0);
    dir_refused(MOX_E_FORMAT, "x-00003.safetensors: not a safetensors file");
    /* The tensor is there, in another file than the index says. */
    write_text(index_name, "{\"weight_map\":{\"a\":\"x-00002.safetensors\",\"c\":\"x-00001.safetensors\"}}");
    dir_refused(MOX_E_FORMAT, "2 tensors are not in the files it names for them: a, c");
    /* What the index does not list is loaded, and a warning says so. */
    write_text(index_name, "{\"weight_map\":{\"c\":\"x-00002.safetensors\"}}");
    dir_opens(&t);
    assert_non_null(mox_tensors_find(&t, "b"));
    assert_non_null(t.unlisted);
    assert_non_null(strstr(t.unlisted, "does not list 1 tensors that its files hold: b"));
    mox_tensors_close(&t);
}

static void test_index_names(void **state)
{
    (void)state;
    static const char *const bad[] = {"3",
                                      "null",
                                      "\"\"",
                                      "\"../x.safetensors\"",
                                      "\"a/x.safetensors\"",
                                      "\"/etc/x.safetensors\"",
                                      "\"x.bin\"",
                                      "\".safetensors\"",
                                      "\"x..safetensors\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"the one\":%s}}", bad[i]);
        write_text(index_name, text);
        dir_refused(MOX_E_FORMAT, "weight_map \"the one\" is");
        dir_refused(MOX_E_FORMAT, "expected the plain name of a .safetensors file");
    }
    char name[300], text[400];
    memset(name, 'n', sizeof name);
    snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%.244s.safetensors\"}}",
             name); /* no file system takes it */
    write_text(index_name, text);
    dir_refused(MOX_E_FORMAT, "expected the plain name");
    static const struct {
        const char *text, *words;
    } shapes[] = {{"{}", "weight_map is not an object"},
                  {"{\"weight_map\":[]}", "weight_map is not an object"},
                  {"{\"weight_map\":{}}", "weight_map is not an object"},
                  {"[]", "expected a JSON object"},
                  {"", "not valid JSON"},
                  {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", "duplicate"}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        write_text(index_name, shapes[i].text);
        dir_refused(MOX_E_FORMAT, shapes[i].words);
        dir_refused(MOX_E_FORMAT, index_name);
    }
}

/* Many long names: ten at most, never a cut sentence. */
static void test_long_lists(void **state)
{
    (void)state;
    char text[8000] = "{\"weight_map\":{";
    for (int i = 0; i < 30; i++) sprintf(text + strlen(text), "%s\"t%02d\":\"x.safetensors\"", i ? "," : "", i);
    strcat(text, "}}");
    write_tensors("x.safetensors", ONE("t00"), 1);
    write_text(index_name, text);
    dir_refused(MOX_E_FORMAT, "29 tensors are not in the files it names for them: t01, t02, t03, t04, t05, t06, "
                              "t07, t08, t09, t10 and 19 more");
    char name[301];
    memset(name, 'n', 300);
    name[300] = '\0';
    strcpy(text, "{\"weight_map\":{");
    for (int i = 0; i < 12; i++)
        sprintf(text + strlen(text), "%s\"%02d%s\":\"x.safetensors\"", i ? "," : "", i, name);
    strcat(text, "}}");
    write_text(index_name, text);
    dir_refused(MOX_E_FORMAT, "nnn... and 10 more");
}

/* ---- failing memory and disks ---- */

static void write_sharded(void)
{
    write_tensors("x-1.safetensors", TWO("model.norm", "lm_head"), 2);
    write_tensors("x-2.safetensors", ONE("model.embed"), 1);
    write_text(index_name,
               "{\"weight_map\":{\"model.norm\":\"x-1.safetensors\",\"model.embed\":\"x-2.safetensors\"}}");
}

static void test_every_alloc_fails(void **state)
{
    (void)state;
    write_sharded();
    json_set_alloc_funcs(json_alloc, mox_free);
    nth n = {.at = 1};
    for (;; n.at++) {
        mox_tensors t;
        mox_err err = {0};
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const mox_status status = mox_tensors_open(&t, dir, &err);
        mox_alloc_set_hook(NULL, NULL);
        if (n.count < n.at) {
            assert_int_equal(status, MOX_OK);
            mox_tensors_close(&t);
            break;
        }
        if (status == MOX_OK) fail_msg("allocation %ld failed and nobody noticed", n.at);
        assert_int_equal(err.status, status);
        assert_null(t.files);
    }
    json_set_alloc_funcs(malloc, free);
    assert_in_range(n.at, 40, 10000);
}

static void test_every_read_fails(void **state)
{
    (void)state;
    write_sharded();
    nth n = {.at = 1};
    for (;; n.at++) {
        mox_tensors t;
        mox_err err = {0};
        n.count = 0;
        mox_io_set_hook(fail_nth_io, &n);
        const mox_status status = mox_tensors_open(&t, dir, &err);
        mox_io_set_hook(NULL, NULL);
        if (n.count < n.at) {
            assert_int_equal(status, MOX_OK);
            mox_tensors_close(&t);
            break;
        }
        assert_says(&err, status, MOX_E_IO, strerror(EIO));
        assert_null(t.files);
    }
    assert_int_equal(n.at, 1 + 2 + 2 * 3); /* open and read; per shard open, length, header */
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_good),
        TEST(test_no_tensors),
        TEST(test_length),
        TEST(test_header_text),
        TEST(test_entries),
        TEST(test_cover),
        TEST(test_cut_by_one),
        TEST(test_metadata),
        TEST(test_limits),
        TEST(test_not_a_tensor_file),
        TEST(test_dir_without_index),
        TEST(test_dir_with_index),
        TEST(test_index_names),
        TEST(test_long_lists),
        TEST(test_every_alloc_fails),
        TEST(test_every_read_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
