/* format/safetensors.c -- one safetensors file: from bytes to checked entries.
 *
 *   bytes 0..7    N, the length of the header, little-endian
 *   bytes 8..8+N  JSON: {"name": {"dtype": D, "shape": [..], "data_offsets": [b, e]}, ..}
 *   the rest      data; b and e count from its first byte
 *
 * Invariants, checked before the file counts as opened
 *   I1  e - b is the product of the shape times the element size
 *   I2  sorted by b, each tensor begins where the one before it ends, the first
 *       at 0 and the last ends with the file: no hole, no overlap, no rest
 *   I3  nothing is allocated by a claimed size: the header is read after its
 *       length was compared with the file, and data is not read at all */
#include "format/safetensors.h"

#include "base/alloc.h"
#include "base/plant.h"
#include "base/size.h"
#include "format/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000, MAX_NAME_BYTES = 512, MAX_TENSORS = 1000000 };

typedef struct parser {
    const char *label;
    char name[MOX_SHORT_BYTES]; /* of the tensor at hand */
    int32_t file;
    int64_t data_offset;
    mox_err *err;
} parser;

static mox_status fail_tensor(parser *p, mox_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static mox_status fail_tensor(parser *p, mox_status status, const char *format, ...)
{
    mox_err why;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why.msg, sizeof why.msg, format, args);
    va_end(args);
    return mox_fail(p->err, status, "%s: tensor \"%s\": %s", p->label, p->name, why.msg);
}

/* shape: fills n_dims, shape and the number of elements. */
static mox_status parse_shape(parser *p, mox_tensor_info *t, const json_t *shape, int64_t *n_elements)
{
    if (!json_is_array(shape)) return fail_tensor(p, MOX_E_FORMAT, "shape is not an array");
    const size_t n_dims = json_array_size(shape);
    if (n_dims > MOX_MAX_DIMS)
        return fail_tensor(p, MOX_E_FORMAT, "has %zu dimensions, the limit is %d", n_dims, MOX_MAX_DIMS);
    t->n_dims = (int32_t)n_dims;
    MOX_PLANT(n_dims == 6);
    *n_elements = 1;
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        char words[MOX_SHORT_BYTES];
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return fail_tensor(p, MOX_E_FORMAT,
                               "dimension %zu of its shape is %s, expected an integer of at least 0", i,
                               mox_json_describe(dim, words));
        t->shape[i] = json_integer_value(dim);
        if (!mox_mul_i64(*n_elements, t->shape[i], n_elements))
            return fail_tensor(p, MOX_E_FORMAT, "the product of its shape is too large");
    }
    return MOX_OK;
}

/* data_offsets: fills the extent, with offsets from the start of the file. */
static mox_status parse_extent(parser *p, mox_tensor_info *t, const json_t *offsets)
{
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return fail_tensor(p, MOX_E_FORMAT, "data_offsets is not an array of two integers");
    int64_t at[2];
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_array_get(offsets, i);
        char words[MOX_SHORT_BYTES];
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fail_tensor(p, MOX_E_FORMAT, "data_offsets holds %s, expected integers of at least 0",
                               mox_json_describe(value, words));
        at[i] = json_integer_value(value);
    }
    int64_t end;
    if (at[1] < at[0] || !mox_add_i64(at[1], p->data_offset, &end))
        return fail_tensor(p, MOX_E_FORMAT, "its data_offsets [%lld, %lld] are no byte range", (long long)at[0],
                           (long long)at[1]);
    t->extent = (mox_extent){.file = p->file, .offset = p->data_offset + at[0], .bytes = at[1] - at[0]};
    return MOX_OK;
}

static mox_status parse_entry(parser *p, mox_tensor_info *t, const char *name, const json_t *entry)
{
    (void)mox_short(name, p->name);
    if (strlen(name) > MAX_NAME_BYTES)
        return fail_tensor(p, MOX_E_FORMAT, "its name is longer than %d bytes", MAX_NAME_BYTES);
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape"),
                 *offsets = json_object_get(entry, "data_offsets");
    if (!dtype || !shape || !offsets || json_object_size(entry) != 3)
        return fail_tensor(p, MOX_E_FORMAT, "expected exactly dtype, shape and data_offsets");
    if (!json_is_string(dtype)) return fail_tensor(p, MOX_E_FORMAT, "dtype is not a string");
    t->dtype = mox_dtype_parse(json_string_value(dtype));
    if (t->dtype == MOX_DT_NONE) {
        char words[MOX_SHORT_BYTES];
        return fail_tensor(p, MOX_E_FORMAT, "its dtype %s is not known", mox_json_describe(dtype, words));
    }
    int64_t n_elements = 0, bytes;
    MOX_TRY(parse_shape(p, t, shape, &n_elements));
    MOX_TRY(parse_extent(p, t, offsets));
    if (!mox_mul_i64(n_elements, mox_dtype_bytes(t->dtype), &bytes) || bytes != t->extent.bytes)
        return fail_tensor(
            p, MOX_E_FORMAT,
            "its data_offsets span %lld bytes, its shape and dtype need another size (%lld elements of %s)",
            (long long)t->extent.bytes, (long long)n_elements, mox_dtype_name(t->dtype));
    t->name = mox_strdup(name);
    return t->name ? MOX_OK : mox_fail_memory(p->err, strlen(name) + 1, "a tensor name");
}

static mox_status check_metadata(const char *label, const json_t *metadata, mox_err *err)
{
    if (!metadata) return MOX_OK;
    if (!json_is_object(metadata)) return mox_fail(err, MOX_E_FORMAT, "%s: __metadata__ is not an object", label);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        char words[MOX_SHORT_BYTES];
        if (!json_is_string(value))
            return mox_fail(err, MOX_E_FORMAT, "%s: __metadata__ \"%s\" is not a string", label,
                            mox_short(key, words));
    }
    return MOX_OK;
}

static int by_place(const void *a, const void *b)
{
    const mox_extent *x = &((const mox_tensor_info *)a)->extent, *y = &((const mox_tensor_info *)b)->extent;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* an empty tensor goes before its neighbour */
}

/* I2 for the n tensors of one file; sorts them by place. */
static mox_status check_cover(parser *p, mox_tensor_info *tensors, int64_t n, int64_t data_bytes)
{
    qsort(tensors, (size_t)n, sizeof *tensors, by_place);
    int64_t end = p->data_offset;
    for (int64_t i = 0; i < n; i++) {
        const mox_extent *e = &tensors[i].extent;
        (void)mox_short(tensors[i].name, p->name);
        if (e->offset != end)
            return fail_tensor(p, MOX_E_FORMAT,
                               "its data begins at byte %lld of the data area, expected %lld: the tensors %s",
                               (long long)(e->offset - p->data_offset), (long long)(end - p->data_offset),
                               e->offset < end ? "overlap" : "leave a hole");
        end = e->offset + e->bytes;
    }
    const int64_t have = p->data_offset + data_bytes;
    if (end > have)
        return mox_fail(
            p->err, MOX_E_FORMAT,
            "%s: the file should be %lld bytes long but is %lld: tensor \"%s\" is cut off; download it again",
            p->label, (long long)end, (long long)have, p->name);
    if (end < have)
        return mox_fail(p->err, MOX_E_FORMAT,
                        "%s: the file should be %lld bytes long but is %lld: data after the last tensor",
                        p->label, (long long)end, (long long)have);
    return MOX_OK;
}

static mox_status parse_entries(parser *p, mox_tensors *out, json_t *root, int64_t data_bytes)
{
    const json_t *metadata = json_object_get(root, "__metadata__");
    MOX_TRY(check_metadata(p->label, metadata, p->err));
    const int64_t n = (int64_t)json_object_size(root) - (metadata ? 1 : 0), first = out->n_tensors;
    if (n > MAX_TENSORS - first)
        return mox_fail(p->err, MOX_E_FORMAT, "%s: more than %d tensors in the model", p->label, MAX_TENSORS);
    mox_tensor_info *grown = mox_realloc_array(out->tensors, (size_t)(first + n), sizeof *grown);
    if (!grown) return mox_fail_memory(p->err, (size_t)(first + n) * sizeof *grown, "the tensor directory");
    out->tensors = grown;
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry) {
        if (entry == metadata) continue;
        mox_tensor_info t = {0};
        MOX_TRY(parse_entry(p, &t, name, entry));
        out->tensors[out->n_tensors++] = t;
    }
    return check_cover(p, out->tensors + first, n, data_bytes);
}

mox_status mox_safetensors_parse(mox_tensors *out, int32_t file, const char *label, const char *header, size_t n,
                                 int64_t data_offset, int64_t data_bytes, mox_err *err)
{
    if (n == 0 || header[0] != '{')
        return mox_fail(err, MOX_E_FORMAT, "%s: not a safetensors file: its header does not begin with '{'",
                        label);
    json_t *root;
    MOX_TRY(mox_json_load(&root, label, header, n, err));
    parser p = {.label = label, .file = file, .data_offset = data_offset, .err = err};
    const mox_status status = parse_entries(&p, out, root, data_bytes);
    json_decref(root);
    return status;
}

/* The length of the header, checked against the size of the file. */
static mox_status read_header_length(const mox_file *f, size_t *out, mox_err *err)
{
    unsigned char head[64];
    const size_t have = (size_t)mox_min_i64(f->size, (int64_t)sizeof head);
    MOX_TRY(mox_file_read_at(f, 0, head, have, err));
    if (mox_is_lfs_pointer(head, have)) return mox_fail_lfs_pointer(err, f->path);
    if (have < LENGTH_BYTES)
        return mox_fail(err, MOX_E_FORMAT,
                        "%s: %zu bytes is too short for a safetensors file (incomplete download?)", f->path,
                        have);
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | head[i];
    if (length < 1 || length > MAX_HEADER_BYTES)
        return mox_fail(err, MOX_E_FORMAT, "%s: not a safetensors file: header length %llu is not in 1 to %d",
                        f->path, (unsigned long long)length, MAX_HEADER_BYTES);
    if (length > (uint64_t)(f->size - LENGTH_BYTES))
        return mox_fail(err, MOX_E_FORMAT,
                        "%s: the header needs %llu bytes but the file is %lld bytes long (incomplete download?)",
                        f->path, (unsigned long long)length + LENGTH_BYTES, (long long)f->size);
    *out = (size_t)length;
    return MOX_OK;
}

/* Room for one more file, which is not counted yet. */
static mox_status grow_files(mox_tensors *out, mox_err *err)
{
    mox_file *grown = mox_realloc_array(out->files, (size_t)out->n_files + 1, sizeof *grown);
    if (!grown) return mox_fail_memory(err, ((size_t)out->n_files + 1) * sizeof *grown, "the list of files");
    out->files = grown;
    return MOX_OK;
}

/* Reads the header of the last file. */
static mox_status read_last_file(mox_tensors *out, mox_err *err)
{
    const int32_t index = out->n_files - 1;
    const mox_file *f = &out->files[index];
    size_t n = 0;
    MOX_TRY(read_header_length(f, &n, err));
    char *header = mox_alloc(n);
    if (!header) return mox_fail_memory(err, n, f->path);
    mox_status status = mox_file_read_at(f, LENGTH_BYTES, header, n, err);
    const int64_t data_offset = LENGTH_BYTES + (int64_t)n;
    if (status == MOX_OK)
        status = mox_safetensors_parse(out, index, f->path, header, n, data_offset, f->size - data_offset, err);
    mox_free(header);
    return status;
}

mox_status mox_tensors_add_file(mox_tensors *out, const char *path, mox_err *err)
{
    MOX_TRY(grow_files(out, err));
    MOX_TRY(mox_file_open(&out->files[out->n_files], path, err));
    out->n_files++;
    return read_last_file(out, err);
}

static int by_name(const void *a, const void *b)
{
    const mox_tensor_info *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : x->extent.file - y->extent.file;
}

mox_status mox_tensors_seal(mox_tensors *t, mox_err *err)
{
    if (t->n_tensors == 0) return MOX_OK;
    qsort(t->tensors, (size_t)t->n_tensors, sizeof *t->tensors, by_name);
    mox_name_list twice = {0};
    int32_t files[2] = {0};
    for (int64_t i = 1; i < t->n_tensors; i++) {
        const mox_tensor_info *a = &t->tensors[i - 1], *b = &t->tensors[i];
        if (strcmp(a->name, b->name) != 0) continue;
        if (twice.n == 0) files[0] = a->extent.file, files[1] = b->extent.file;
        mox_name_list_add(&twice, a->name);
    }
    if (twice.n == 0) return MOX_OK;
    return mox_fail(err, MOX_E_FORMAT,
                    "%s and %s hold the same tensors: %s; remove the file that does not belong here",
                    t->files[files[0]].path, mox_tensors_file_name(t, files[1]), mox_name_list_end(&twice));
}

mox_status mox_tensors_open_file(mox_tensors *out, const char *path, mox_err *err)
{
    *out = (mox_tensors){0};
    mox_status status = mox_tensors_add_file(out, path, err);
    if (status == MOX_OK) status = mox_tensors_seal(out, err);
    if (status != MOX_OK) mox_tensors_close(out);
    return status;
}

mox_status mox_tensors_adopt(mox_tensors *out, mox_file *files, int32_t n, mox_err *err)
{
    *out = (mox_tensors){0};
    mox_status status = MOX_OK;
    for (int32_t i = 0; i < n && status == MOX_OK; i++) {
        status = grow_files(out, err);
        if (status != MOX_OK) break;
        out->files[out->n_files++] = files[i];
        files[i] = MOX_FILE_CLOSED;
        status = read_last_file(out, err);
    }
    if (status == MOX_OK) status = mox_tensors_seal(out, err);
    if (status == MOX_OK) return MOX_OK;
    for (int32_t i = 0; i < n; i++) mox_file_close(&files[i]);
    mox_tensors_close(out);
    return status;
}

void mox_tensors_close(mox_tensors *t)
{
    for (int64_t i = 0; i < t->n_tensors; i++) mox_free(t->tensors[i].name);
    mox_free(t->tensors);
    for (int32_t i = 0; i < t->n_files; i++) mox_file_close(&t->files[i]);
    mox_free(t->files);
    mox_free(t->unlisted);
    *t = (mox_tensors){0};
}

static int name_against(const void *name, const void *tensor)
{
    return strcmp(name, ((const mox_tensor_info *)tensor)->name);
}

const mox_tensor_info *mox_tensors_find(const mox_tensors *t, const char *name)
{
    if (t->n_tensors == 0) return NULL;
    return bsearch(name, t->tensors, (size_t)t->n_tensors, sizeof *t->tensors, name_against);
}

const char *mox_tensors_file_name(const mox_tensors *t, int32_t i)
{
    const char *slash = strrchr(t->files[i].path, '/');
    return slash ? slash + 1 : t->files[i].path;
}
