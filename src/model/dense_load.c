/* model/dense_load.c -- dense weights in memory of our own, and nothing else of the files.
 *
 * When experts are streamed, a mapping would let the system keep and drop what it likes, and
 * no budget could be kept.  So every mapping is replaced by address space of the same length
 * in which only the pages of dense weights are ever touched: an extent is still an offset
 * from the beginning of its file, and the rest costs nothing.  The page cache is asked to
 * forget what was read through it: nobody will read it again.
 *
 * On failure the model is as it was. */
#include "model/dense_load.h"

#include "base/alloc.h"
#include "base/size.h"

#include <stdlib.h>

enum { CHUNK = 8 << 20, PAGE = 4096 };

static int by_place(const void *a, const void *b)
{
    const mox_extent *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

mox_status mox_dense_extents(const mox_model *m, mox_extent **out, int64_t *n, mox_err *err)
{
    const mox_tensors *t = &m->tensors;
    mox_extent *list = mox_alloc_array((size_t)t->n_tensors, sizeof *list);
    if (!list) return mox_fail_memory(err, (size_t)t->n_tensors * sizeof *list, "a list of dense weights");
    int64_t n_all = 0;
    for (int64_t i = 0; i < t->n_tensors; i++)
        if (m->tensor_use[i] == MOX_USED_DENSE && t->tensors[i].extent.bytes > 0) list[n_all++] = t->tensors[i].extent;
    qsort(list, (size_t)n_all, sizeof *list, by_place);
    *n = 0;
    for (int64_t i = 0; i < n_all; i++) {
        mox_extent *last = *n > 0 ? &list[*n - 1] : NULL;
        if (last && last->file == list[i].file && last->offset + last->bytes == list[i].offset) last->bytes += list[i].bytes;
        else list[(*n)++] = list[i];
    }
    *out = list;
    return MOX_OK;
}

mox_status mox_dense_bytes(const mox_model *m, int64_t *out, mox_err *err)
{
    mox_extent *list;
    int64_t n, end = 0; /* of the pages counted so far, in the file at hand */
    MOX_TRY(mox_dense_extents(m, &list, &n, err));
    *out = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i == 0 || list[i].file != list[i - 1].file) end = 0;
        const int64_t begin = mox_max_i64(end, list[i].offset / PAGE * PAGE);
        end = mox_ceil_div(list[i].offset + list[i].bytes, PAGE) * PAGE;
        *out += end - begin;
    }
    mox_free(list);
    return MOX_OK;
}

typedef struct loading {
    const mox_model *m;
    void **memory; /* [n_files] */
    int64_t done, total;
    void (*progress)(void *user, int64_t n_done, int64_t n_total);
    void *progress_user;
} loading;

static mox_status load_extent(loading *l, const mox_extent *e, mox_err *err)
{
    uint8_t *to = (uint8_t *)l->memory[e->file] + e->offset;
    mox_want_huge_pages(to, (size_t)e->bytes);
    for (int64_t at = 0; at < e->bytes; at += CHUNK) {
        const int64_t n = mox_min_i64(CHUNK, e->bytes - at);
        MOX_TRY(mox_file_read_at(&l->m->tensors.files[e->file], e->offset + at, to + at, (size_t)n, err));
        mox_file_forget(&l->m->tensors.files[e->file]);
        l->done += n;
        if (l->progress) l->progress(l->progress_user, l->done, l->total);
    }
    return MOX_OK;
}

static mox_status load_all(loading *l, mox_err *err)
{
    const mox_tensors *t = &l->m->tensors;
    mox_extent *list;
    int64_t n;
    for (int32_t i = 0; i < t->n_files; i++) {
        l->memory[i] = mox_reserve_pages((size_t)t->files[i].size);
        if (!l->memory[i]) return mox_fail_memory(err, (size_t)t->files[i].size, "the dense weights");
    }
    MOX_TRY(mox_dense_extents(l->m, &list, &n, err));
    for (int64_t i = 0; i < n; i++) l->total += list[i].bytes;
    mox_status status = MOX_OK;
    for (int64_t i = 0; i < n && status == MOX_OK; i++) status = load_extent(l, &list[i], err);
    mox_free(list);
    return status;
}

mox_status mox_model_load_dense(mox_model *m, void (*progress)(void *user, int64_t n_done, int64_t n_total), void *user,
                                mox_err *err)
{
    const mox_tensors *t = &m->tensors;
    if (m->dense_only) return MOX_OK;
    if (m->residency.copy) return mox_fail(err, MOX_E_ARG, "weights are copied as a whole or loaded without their experts, not both");
    for (int32_t i = 0; i < t->n_files; i++)
        if (t->files[i].fd < 0)
            return mox_fail(err, MOX_E_ARG, "%s was made in memory: its experts have no file to be read from", t->files[i].path);
    loading l = {.m = m, .progress = progress, .progress_user = user};
    l.memory = mox_alloc_array((size_t)t->n_files, sizeof *l.memory);
    if (!l.memory) return mox_fail_memory(err, (size_t)t->n_files * sizeof *l.memory, "the dense weights");
    const mox_status status = load_all(&l, err);
    for (int32_t i = 0; i < t->n_files; i++) {
        if (status == MOX_OK) mox_file_map_memory(&t->files[i], l.memory[i]), mox_file_forget(&t->files[i]);
        else mox_free_pages(l.memory[i], (size_t)t->files[i].size);
    }
    mox_free(l.memory);
    if (status == MOX_OK) m->dense_only = true;
    return status;
}
