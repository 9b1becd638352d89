/* dev/gpu/device.h -- what the files of the GPU device share.
 *
 * A GPU device is a backend (backend.h) and slots that launch kernels on it.  The slots check
 * what kernels take for granted, and refuse what no kernel computes.
 *
 * Threads: operations come from one thread at a time, as everywhere; copies may come from another
 * one beside it, so each call of the backend is made under a lock. */
#ifndef MOX_DEV_GPU_DEVICE_H
#define MOX_DEV_GPU_DEVICE_H

#include "base/size.h"
#include "dev/dev.h"
#include "dev/gpu/backend.h"
#include "dev/gpu/fill.h"

#include <pthread.h>

/* Processors of a large GPU, an H200.  How work is cut is decided by it on every GPU, so that results do not depend on which one it is. */
enum { MOX_GPU_PROCESSORS = 132 };

/* Experts of a layer on the device, by id. */
typedef struct mox_gpu_experts {
    void *memory; /* gate, up and down, [n] matrices each; NULL: a layer without */
    int64_t n;
    bool is_four;       /* matvec4.h can read them all, as ... */
    mox_gpu_stack gate, up, down;
    bool is_q4;         /* matmul.h's kernels of that name can */
    int64_t width, dim; /* of gate and up, and of down: their rows */
    /* They come from a source: the same as in memory, but of the host; the stacks are those of the places
     * that they come to, `step` bytes apart.  NULL: they stay. */
    mox_gpu_mat *come;
    int64_t step;
} mox_gpu_experts;

/* Numbers of the host with their copy. */
typedef struct mox_gpu_known {
    const float *host;
    float *device;
    int64_t n;
} mox_gpu_known;

enum { MOX_GPU_KNOWN_MAX = 4 };

/* A launch that is held back: the operation behind it may do its work on the way, and then it is dropped.
 * Any other launch or copy sends it off first, so nobody can tell. */
typedef struct mox_gpu_held {
    bool is_there;
    mox_gpu_kernel kernel;
    int64_t n; /* rows that it is for */
    int64_t groups[3];
    size_t bytes;
    union {
        mox_gpu_rms_norm norm;
        mox_gpu_matvec4 product;
    } params;
} mox_gpu_held;

/* What a product has left in its scratch: planes (few.h) or halves (matmul.h) of rows of x. */
typedef struct mox_gpu_made {
    const float *x; /* NULL: another operation came since */
    const void *at;
    int64_t n, cols, stride;
    bool planes;
} mox_gpu_made;

typedef struct mox_dev_gpu {
    mox_dev dev; /* first: a mox_dev of this device is one of these */
    mox_gpu_backend *backend;
    pthread_mutex_t lock;
    bool halves;  /* products and attention of many tokens may take operands in f16 */
    bool in_step; /* between begin_step and end_step of the backend */
    mox_gpu_held held;
    mox_gpu_made made;
    /* Groups of the attention of short caches that was launched last; 0: something else was.  And whether the last product behind one left
     * processors of the GPU to the launches that follow, which then begin early.  A thread that copies sends what is held, too. */
    _Atomic int64_t attention_groups;
    bool leaves_room;
    mox_gpu_known known[MOX_GPU_KNOWN_MAX];
    int n_known;
    mox_gpu_experts *layers;
    int32_t n_layers;

    /* Of a layer whose experts come (slots_experts.c). */
    mox_dev_sizes most;
    int32_t *ids, *masked; /* [n_pairs]: of the batch, and those whose turn it is */
    int32_t *guess;        /* [n_pairs]: of the layer that follows */
    int32_t *wanted;       /* [n_experts]: what the source was asked for */
    int32_t *called;       /* [n_experts]: what kernels call those whose turn it is */
    bool *marked;          /* [n_experts], scratch */
    mox_expert *batch;     /* [n_experts] */

    /* Of one that the processor has a part in (slots_cold.c): a few tokens. */
    bool divided; /* the layer that was acquired: called has those that are there, and -1 for the others */
    struct {
        int32_t *ids;       /* [n, k]: of the processor's pairs */
        float *w, *hot_w;   /* [n, k]: of all pairs, of those that the device has */
        float *x, *sum;     /* [n, dim]: what goes in and what comes out */
    } cold;

    /* Small arrays of a batch: tokens, positions, page tables and spans, as the host puts them
     * together and as they are on the device. */
    uint8_t *staging, *arrays;
    const mox_span *spans;   /* of the batch, by the host's address */
    mox_gpu_span *gpu_spans; /* of the device */
    int64_t n_spans;
} mox_dev_gpu;

/* device.c.  hold: instead of a launch, for n rows, over a grid (x, y).  see: what is held, if it is this kernel for n
 * rows.  drop: it is not launched; false when another thread has sent it off meanwhile, so it is done already. */
void mox_gpu_launch(mox_dev *d, mox_gpu_kernel kernel, int64_t x, int64_t y, int64_t z, const void *params, size_t bytes);
void mox_gpu_hold(mox_dev *d, mox_gpu_kernel kernel, int64_t n, int64_t x, int64_t y, const void *params, size_t bytes);
bool mox_gpu_see(mox_dev *d, mox_gpu_kernel kernel, int64_t n, void *params, size_t bytes);
bool mox_gpu_drop(mox_dev *d);

/* Launches a kernel over a grid (x, y, z); the rest are members of its parameters. */
#define MOX_GPU_LAUNCH(d, name, x, y, z, ...)                                                   \
    do {                                                                                        \
        const mox_gpu_##name params_ = {__VA_ARGS__};                                           \
        mox_gpu_launch((d), MOX_GPU_KERNEL_##name, (x), (y), (z), &params_, sizeof params_);     \
    } while (0)

/* Spans of the batch on the device. */
const mox_gpu_span *mox_gpu_spans(mox_dev *d, const mox_span *spans, int64_t n);
/* Rows of n spans. */
static inline int64_t mox_gpu_rows(const mox_span *spans, int64_t n)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++) rows += spans[i].n;
    return rows;
}

/* The copy of [p, p + n), which the device was told of. */
mox_status mox_gpu_find_known(mox_dev *d, const float *p, int64_t n, const float **out, mox_err *err);

/* Rows of x that kernels can read 16 bytes at a time? */
static inline bool mox_gpu_is_wide(const float *x, int64_t stride) { return (uintptr_t)x % 16 == 0 && stride % 4 == 0; }

/* slots_attention.c: how many pieces rows that are alone in their spans are cut into: as many as n_parts floats have room for,
 * `most` at most, and one where no row sees more than least_keys keys. */
int64_t mox_gpu_pieces(const mox_gpu_attention *p, const mox_span *spans, int64_t n_parts, int64_t least_keys, int64_t most);

/* MOX_E_UNSUPPORTED for heads that kernels of attention have no room for. */
mox_status mox_gpu_check_heads(const mox_dev *d, int64_t dim, int64_t v_dim, mox_err *err);

/* NULL is fine; MOX_E_UNSUPPORTED for what kernels do not read. */
mox_status mox_gpu_check_mat(const mox_mat *m, mox_err *err);
mox_status mox_gpu_check_vec(const mox_vec *v, mox_err *err);

static inline int64_t mox_gpu_shared_mode(mox_shared_mode mode)
{
    if (mode == MOX_SHARED_GATED) return MOX_GPU_SHARED_GATED;
    return mode == MOX_SHARED_UNSCALED ? MOX_GPU_SHARED_UNSCALED : MOX_GPU_SHARED_NONE;
}

/* ---- slots_tiles.c: products of many tokens, and of some, operands in f16 ---- */

/* More tokens than this make less work there, if they have so many columns at least: shorter sums end
 * before what is brought ahead is of use.  (And models that small are fixtures with random weights, where a router's
 * choice can be so close that rounding turns it: see docs/gpu.md.) */
enum { MOX_GPU_MANY = 16, MOX_GPU_MANY_COLS = 256 };

/* More tokens than the first, and no more than the second, go to few.h. */
enum { MOX_GPU_FEW_FROM = 4, MOX_GPU_FEW_TO = 64 };
static inline bool mox_gpu_is_few(const mox_dev *d, int64_t n, int64_t cols)
{
    return ((const mox_dev_gpu *)d)->halves && n > MOX_GPU_FEW_FROM && n <= MOX_GPU_FEW_TO && cols >= MOX_GPU_MANY_COLS;
}


/* Can few.h multiply n rows of x by this? */
static inline bool mox_gpu_few_takes(const mox_dev *d, const mox_gpu_mat *w, const float *x, int64_t n, int64_t stride)
{
    return mox_gpu_is_few(d, n, w->cols) && mox_gpu_mat_is_four(w) && mox_gpu_is_wide(x, stride);
}

/* Do n tokens of so many columns go there? */
static inline bool mox_gpu_is_many(const mox_dev *d, int64_t n, int64_t cols)
{
    return ((const mox_dev_gpu *)d)->halves && n > MOX_GPU_MANY && cols >= MOX_GPU_MANY_COLS;
}
void mox_gpu_few_matmul(mox_dev *d, const mox_matmul_args *a); /* what mox_gpu_few_takes says yes to */
void mox_gpu_few_gate_up(mox_dev *d, const mox_gate_up_swiglu_args *a); /* likewise, one of each */
void mox_gpu_few_project(mox_dev *d, const mox_project_args *a); /* three such products of one x, y without gaps */
/* Whether few.h takes these experts: not when they are no stack that matvec4.h reads.
 * ids: numbers of their places in the stack, below n_places, and -1 for pairs that are left out. */
bool mox_gpu_takes_few(const mox_dev *d, const mox_moe_ffn_args *a);
void mox_gpu_few_experts(mox_dev *d, const mox_moe_ffn_args *a, const int32_t *ids, int64_t n_places);
void mox_gpu_tile_matmul(mox_dev *d, const mox_matmul_args *a);
void mox_gpu_tile_gate_up(mox_dev *d, const mox_gate_up_swiglu_args *a);
/* False when the scratch of a is too small. */
bool mox_gpu_tile_experts(mox_dev *d, const mox_moe_ffn_args *a);

/* ---- slots_experts.c: experts that come from a source ---- */

/* check_pairs and list_wanted are parts of acquire: whether there is room for the batch, and the experts that
 * g->ids name, each once, to g->wanted.
 * acquire asks for those that a batch was routed to; each computes them in groups as they arrive, by a
 * function that takes the ids of a group, or the numbers of their places, and -1 for all others, all of them below n;
 * all waits until they are there, and leaves the numbers of their places (mox_gpu_experts) instead of ids in a->batch_pairs.  The last two release what was acquired. */
/* guess fetches what the layer that follows will probably want, before experts are launched, and releases what was
 * acquired if it fails; ahead tells the source, when it has been released. */
typedef void mox_gpu_group_fn(mox_dev *d, const mox_moe_ffn_args *a, const int32_t *ids, int64_t n);
mox_status mox_gpu_check_pairs(const mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);
mox_status mox_gpu_list_wanted(mox_dev *d, const mox_moe_ffn_args *a, int64_t *n, mox_err *err);
mox_status mox_gpu_come_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);
mox_status mox_gpu_come_each(mox_dev *d, const mox_moe_ffn_args *a, bool by_place, mox_gpu_group_fn *compute, mox_err *err);
mox_status mox_gpu_come_guess(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);
void mox_gpu_come_ahead(mox_dev *d, const mox_moe_ffn_args *a);
mox_status mox_gpu_come_all(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);

/* slots_products.c: if a product is held whose rows are added to the residual stream now, sends it off to do so. */
bool mox_gpu_product_adds(mox_dev *d, const mox_residual_norm_args *a);

/* ---- slots_cold.c: experts that the processor computes ---- */

bool mox_gpu_may_divide(const mox_dev *d, const mox_moe_ffn_args *a);
mox_status mox_gpu_cold_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err);
mox_status mox_gpu_cold_finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err); /* where acquire has divided */
mox_status mox_gpu_cold_reserve(mox_dev_gpu *g, mox_err *err);
void mox_gpu_cold_free(mox_dev_gpu *g);

/* Some downloads, with one wait if they are small. */
mox_status mox_gpu_fetch(mox_dev *d, const mox_fetch *pieces, int64_t n, mox_err *err);

/* Fill their slots: products and experts, attention, latent attention, recurrence, and the rest. */
void mox_gpu_fill_products(mox_dev_ops *ops);
void mox_gpu_fill_attention(mox_dev_ops *ops);
void mox_gpu_fill_latent(mox_dev_ops *ops);
void mox_gpu_fill_deltanet(mox_dev_ops *ops);
void mox_gpu_fill_rows(mox_dev_ops *ops);

/* The device over a backend, which it takes over, also on failure. */
mox_status mox_dev_gpu_open(mox_dev **out, mox_gpu_backend *backend, bool halves, mox_err *err);

#endif
