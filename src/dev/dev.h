/* dev/dev.h -- what a device must be able to do.
 *
 * Model code is written once against this table.  Every slot takes the argument
 * struct of the operation catalogue; pointers to numbers in it are memory of the device,
 * while matrices, spans and offsets are described in memory of the host.  A
 * device fills the required slots; an optional slot may stay NULL and is then
 * composed of required ones (dev/compose.c), so that a new device starts small and
 * every fusion has a name and a test.
 *
 * Operations and copies take place in the order of the calls, but perhaps later.  What a
 * device finds wrong only then is told by the next sync or download, and by all that follow.
 *
 * Experts do not belong to the device: the feed-forward of a MoE layer takes a
 * source that hands them out as they become available. */
#ifndef MOX_DEV_DEV_H
#define MOX_DEV_DEV_H

#include "dev/upload.h"
#include "ops/kern.h"

/* ---- experts ---- */

typedef struct mox_expert {
    int32_t id;
    mox_mat gate, up, down; /* valid until the following next or release */
} mox_expert;

/* acquire(layer, ids) asks for distinct experts: what is there stays, what is not
 * begins to come; ids belong to the source until release.  next takes back what it
 * handed over before, and hands over up to max experts that can be computed now, waiting
 * for at least one, and 0 when all have been handed over; cancel (may be NULL) ends the
 * waiting.  release ends the use, and is called once per successful acquire, also after
 * an error of next.
 *
 * Between acquire and release, or for a source of a device's memory after it, a source can be told what a later
 * layer will probably ask for, so that it comes meanwhile: wants says whether that is of any use now, ahead takes the
 * guess, in which an expert may be named more than once. */
/* A source whose experts are memory of a device also has all: it hands over everything that was acquired for
 * a batch of at most MOX_DEV_TOGETHER tokens, at once.  For such a batch it may have divide: an acquire of those
 * among ids that are there, which says of each whether it is.  compute has the others computed by the
 * processor, before or after release. */
enum { MOX_DEV_TOGETHER = 4 };

/* All of it is memory of the host. */
typedef struct mox_cold_args {
    int32_t layer;
    const int32_t *ids; /* [n, k]; -1: not this pair */
    const float *x;     /* [n, dim] */
    const float *w;     /* [n, k] */
    float *sum;         /* [n, dim]: for each token, the sum of w times what its experts return */
    int64_t n, k;
    const mox_cancel *cancel; /* may be NULL */
} mox_cold_args;

typedef struct mox_expert_source {
    mox_status (*acquire)(struct mox_expert_source *s, int32_t layer, const int32_t *ids, int64_t n, mox_err *err);
    mox_status (*next)(struct mox_expert_source *s, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel,
                       mox_err *err);
    void (*release)(struct mox_expert_source *s);
    bool (*wants)(struct mox_expert_source *s);
    void (*ahead)(struct mox_expert_source *s, int32_t layer, const int32_t *ids, int64_t n);
    mox_status (*all)(struct mox_expert_source *s, mox_expert *out, int64_t *n, const mox_cancel *cancel, mox_err *err);
    mox_status (*divide)(struct mox_expert_source *s, int32_t layer, const int32_t *ids, int64_t n, bool *there, mox_err *err);
    mox_status (*compute)(struct mox_expert_source *s, const mox_cold_args *a, mox_err *err);
} mox_expert_source;

/* moe_acquire sorts the pairs by expert and acquires the experts; moe_ffn computes and
 * releases them.  Between the two the caller may compute what needs no expert, while
 * experts come.  Both take the same arguments:
 * rows[p, :] = down_e(silu(gate_e x_t) * up_e x_t) for every pair p = t * k + slot,
 * e = ids[p]; each expert writes its own rows, so their order does not matter.
 * The scratch members are memory of the device that the caller provides. */
typedef struct mox_moe_ffn_args {
    mox_expert_source *source;
    int32_t layer;
    const float *x;     /* [n, dim] */
    const int32_t *ids; /* [n, k] */
    const float *w;     /* [n, k], for a source that divides */
    const int32_t *guess; /* [n, guess_k]: for the source's ahead, about the layer that follows; NULL: none */
    int64_t guess_k;
    float *rows;        /* [n * k, dim] */
    int64_t n, k, n_experts, dim, width;
    const mox_cancel *cancel; /* may be NULL; looked at between batches of experts */
    /* scratch */
    int64_t *bucket_offsets, *batch_offsets;  /* [n_experts + 1] each */
    int32_t *bucket_pairs, *batch_pairs, *batch_tokens; /* [n * k] each */
    int32_t *wanted;                           /* [n_experts] */
    mox_expert *batch;                         /* [n_experts] */
    mox_mat *gate, *up, *down;                 /* [n_experts] each */
    float *mid;                                /* [n * k, width]; for moe_finish with a shared expert [n * (k + 1), width] */
    void *acts;                                /* mox_matmul_scratch(n * k, the larger of dim and width) */
} mox_moe_ffn_args;

/* ---- sequences of operations ---- */

/* Products with the same rows x, each with its own y. */
enum { MOX_PROJECT_MOST = 4 };
typedef struct mox_project_args {
    mox_matmul_args product[MOX_PROJECT_MOST];
    int64_t n;
} mox_project_args;

/* Between the products of grouped-query attention and attention itself: both norms, both rotations, then
 * both appends.  The sources of the appends are free afterwards. */
typedef struct mox_gqa_heads_args {
    mox_rms_norm_args q_norm, k_norm; /* in place */
    mox_rope_args q_rope, k_rope;     /* of what was normed */
    mox_kv_append_args k_append, v_append;
} mox_gqa_heads_args;

/* Between the products of latent attention and attention itself: the split, the norm of the latent part, both rotations,
 * then both appends.  The sources of the appends, and where the split puts them, are free afterwards. */
typedef struct mox_mla_heads_args {
    mox_mla_split_args split;
    mox_rms_norm_args norm;       /* in place */
    mox_rope_args q_rope, k_rope; /* in place */
    mox_kv_append_args latent_append, k_append;
} mox_mla_heads_args;

/* Behind the products of the gated delta rule, for the rows of one sequence: gates, convolution, its state, norms of q and k,
 * the recurrence (by chunks where chunked says so), and the gated norm of what that gives. */
typedef struct mox_gdn_mix_args {
    mox_gdn_gates_args gates;
    mox_conv1d_silu_args conv;
    mox_conv1d_shift_args shift;
    mox_gdn_qk_norm_args qk_norm;
    mox_gdn_args rule;
    mox_gated_rms_norm_args norm; /* in place */
    bool chunked;
} mox_gdn_mix_args;

/* The expert that all tokens share; nothing of it is looked at where the mode of combine is MOX_SHARED_NONE. */
typedef struct mox_moe_shared {
    mox_mat gate, up, down;
    mox_mat scale;   /* MOX_SHARED_GATED: one row, whose product with a token is combine's gate */
    float *mid;      /* [n, rows of gate], scratch */
    float *out;      /* [n, dim], combine's shared, and ... */
    float *logit;    /* [n], combine's gate: need not be written */
    void *scratch;   /* mox_matmul_scratch(n, the larger of dim and rows of gate) */
} mox_moe_shared;

/* The shared expert, then moe_ffn, then moe_combine; rows need not be written.  Releases the experts, also on failure. */
typedef struct mox_moe_finish_args {
    mox_moe_ffn_args ffn;
    mox_moe_combine_args combine;
    mox_moe_shared shared;
} mox_moe_finish_args;

/* ---- the table ---- */

/* X(slot, argument struct): operations of the catalogue that every device has ... */
#define MOX_DEV_CATALOGUE(X)                                                     \
    X(embed, mox_embed_args)                                                     \
    X(matmul, mox_matmul_args)                                                   \
    X(gate_up_swiglu, mox_gate_up_swiglu_args)                                   \
    X(add, mox_add_args)                                                         \
    X(copy_slice, mox_copy_slice_args)                                           \
    X(sigmoid_gate, mox_sigmoid_gate_args)                                       \
    X(rms_norm, mox_rms_norm_args)                                               \
    X(gated_rms_norm, mox_gated_rms_norm_args)                                   \
    X(rope, mox_rope_args)                                                       \
    X(split_q_gate, mox_split_q_gate_args)                                       \
    X(kv_append, mox_kv_append_args)                                             \
    X(attention, mox_attention_args)                                             \
    X(mla_split, mox_mla_split_args)                                             \
    X(mla_q_absorb, mox_mla_q_absorb_args)                                       \
    X(mla_attention, mox_mla_attention_args)                                     \
    X(mla_out, mox_mla_out_args)                                                 \
    X(gdn_split, mox_gdn_split_args)                                             \
    X(conv1d_silu, mox_conv1d_silu_args)                                         \
    X(conv1d_shift, mox_conv1d_shift_args)                                       \
    X(gdn_qk_norm, mox_gdn_qk_norm_args)                                         \
    X(gdn_gates, mox_gdn_gates_args)                                             \
    X(gdn_recurrent, mox_gdn_args)                                               \
    X(router_topk, mox_router_topk_args)                                         \
    X(router_sigmoid, mox_router_sigmoid_args)                                   \
    X(moe_combine, mox_moe_combine_args)

/* ... all that every device has ... */
#define MOX_DEV_REQUIRED(X) MOX_DEV_CATALOGUE(X) X(moe_acquire, mox_moe_ffn_args) X(moe_ffn, mox_moe_ffn_args)

/* ... and operations of the catalogue that a device may leave to dev/compose.c. */
#define MOX_DEV_OPTIONAL(X)                                                      \
    X(residual_norm, mox_residual_norm_args)                                     \
    X(gdn_chunk, mox_gdn_args)                                                   \
    X(mla_expanded, mox_mla_expanded_args)

/* Sequences of the above: a device may do at once what dev/compose.c does one after the other. */
#define MOX_DEV_SEQUENCES(X)                                                     \
    X(project, mox_project_args)                                                 \
    X(gqa_heads, mox_gqa_heads_args)                                             \
    X(mla_heads, mox_mla_heads_args)                                             \
    X(gdn_mix, mox_gdn_mix_args)                                                 \
    X(moe_finish, mox_moe_finish_args)

typedef struct mox_dev mox_dev;

/* ---- memory ---- */

typedef struct mox_dev_memory {
    /* Zeroed, for caches, states and activations; give it back with the same size. */
    mox_status (*alloc)(mox_dev *d, int64_t bytes, void **out, mox_err *err);
    void (*free)(mox_dev *d, void *p, int64_t bytes); /* NULL is fine */
    /* Bytes of the host as the device sees them in place; they stay as they are until free.  NULL: it cannot. */
    mox_status (*map)(mox_dev *d, const void *host, int64_t bytes, void **out, mox_err *err);
    void (*upload)(mox_dev *d, void *to, const void *from, int64_t bytes); /* from is free when it returns */
    void (*copy)(mox_dev *d, void *to, const void *from, int64_t bytes);   /* no overlap */
    void (*zero)(mox_dev *d, void *p, int64_t bytes);
    mox_status (*download)(mox_dev *d, void *to, const void *from, int64_t bytes, mox_err *err);
    mox_status (*sync)(mox_dev *d, mox_err *err);
} mox_dev_memory;

/* The small arrays of a batch. */
typedef struct mox_batch {
    const int32_t *tokens, *pos; /* [n] */
    int64_t n;
    const mox_span *spans;
    int64_t n_spans;
} mox_batch;

/* The largest batches there will be. */
typedef struct mox_dev_sizes {
    int64_t n_rows, n_spans, n_pages; /* pages: of a span */
    int64_t n_pairs, n_experts;       /* of layers whose experts come from a source; 0: there are none */
    int64_t dim;                      /* of rows for a source that divides; 0: it does not */
} mox_dev_sizes;

/* Copies from the host that run beside operations, in their own order.  What one device has pinned is for all of its kind, and is
 * not pinned twice.  What bring copies is there for
 * operations that follow use_brought; it may arrive before, so what is there must not be in use any more,
 * or have been used before a bring_next.  `from` is pinned, and stays as it is until await_brought. */
typedef struct mox_dev_copies {
    mox_status (*pin)(mox_dev *d, void *p, int64_t bytes, mox_err *err);
    void (*unpin)(mox_dev *d, void *p);
    /* Where operations may write to what was pinned as p, which the host sees after a sync.  NULL: nowhere. */
    void *(*seen)(mox_dev *d, void *p);
    void (*bring)(mox_dev *d, void *to, const void *from, int64_t bytes);
    void (*bring_next)(mox_dev *d);
    void (*use_brought)(mox_dev *d);
    mox_status (*await_brought)(mox_dev *d, mox_err *err);
    double (*waited_s)(mox_dev *d); /* that operations waited for copies and for nothing else */
} mox_dev_copies;

/* What a device whose memory is not the host's has to be told. */
typedef struct mox_dev_apart {
    mox_status (*reserve)(mox_dev *d, const mox_dev_sizes *most, mox_err *err); /* once */
    /* Bytes that the device has, and that are not taken. */
    void (*memory)(mox_dev *d, int64_t *total, int64_t *left);
    /* Once: numbers of the host that operations name by this address, and the device has a copy of. */
    mox_status (*know)(mox_dev *d, const float *p, int64_t n, mox_err *err);
    /* Once per layer: all its experts, by id, in memory of the device.  come: they are not there, but the
     * source hands them over, each as in come but a multiple of `step` bytes behind it; where they would be
     * if they stayed still decides about kernels, so that results are the same.  NULL: they stay. */
    mox_status (*place_experts)(mox_dev *d, int32_t layer, const mox_expert *experts, int64_t n, const mox_expert *come, int64_t step,
                                mox_err *err);
    /* Before the operations of a batch, which name its spans by their addresses; replaces tokens
     * and pos by addresses of the device. */
    void (*begin)(mox_dev *d, mox_batch *b);
    /* Many uploads at once, before there are steps. */
    void (*upload_all)(mox_dev *d, const mox_upload *pieces, int64_t n);
    /* Copies from another device of the same kind, in the order of the calls of both. */
    void (*copy_from)(mox_dev *d, void *to, mox_dev *other, const void *from, int64_t bytes);
    mox_dev_copies copies; /* NULL, all of them: upload does as well */
} mox_dev_apart;

typedef struct mox_dev_ops {
#define MOX_DEV_SLOT(op, args) mox_status (*op)(mox_dev * d, const args *a, mox_err *err);
    MOX_DEV_REQUIRED(MOX_DEV_SLOT)
    MOX_DEV_OPTIONAL(MOX_DEV_SLOT)
    MOX_DEV_SEQUENCES(MOX_DEV_SLOT)
#undef MOX_DEV_SLOT
} mox_dev_ops;

struct mox_dev {
    const char *name, *level; /* level: of its kernels; NULL when it has none */
    int n_threads;
    mox_dev_memory memory;
    const mox_dev_apart *apart; /* NULL: its memory is the host's */
    mox_dev_ops ops;
    /* Products of a list of n rows follow, those of w first, after operations that leave memory idle: it may be fetched
     * meanwhile.  NULL: there is nothing to fetch for. */
    void (*expect)(mox_dev *d, const mox_mat *w, int64_t n);
    void (*close)(mox_dev *d); /* frees d */
};

/* Fills the optional slots that are NULL and asserts the required ones. */
void mox_dev_complete(mox_dev *d);
void mox_dev_close(mox_dev **d); /* NULL-safe */

/* Sequences, one operation after the other. */
mox_status mox_dev_project(mox_dev *d, const mox_project_args *a, mox_err *err);
mox_status mox_dev_gqa_heads(mox_dev *d, const mox_gqa_heads_args *a, mox_err *err);
mox_status mox_dev_mla_heads(mox_dev *d, const mox_mla_heads_args *a, mox_err *err);
mox_status mox_dev_gdn_mix(mox_dev *d, const mox_gdn_mix_args *a, mox_err *err);
mox_status mox_dev_moe_shared(mox_dev *d, const mox_moe_finish_args *a, mox_err *err); /* the first of moe_finish; releases nothing */
mox_status mox_dev_moe_finish(mox_dev *d, const mox_moe_finish_args *a, mox_err *err);
/* mla_expanded in the folded form: mla_q_absorb, mla_attention, mla_out. */
mox_status mox_dev_mla_folded(mox_dev *d, const mox_mla_expanded_args *a, mox_err *err);

/* The processor.  isa NULL = the best level. */
mox_status mox_dev_cpu_open(mox_dev **out, const mox_pool_opts *threads, const char *isa, mox_precision precision,
                            bool deterministic, mox_err *err);
/* GPUs; with halves, products and attention of many tokens take operands in f16, and add up in f32.
 * An emulated one with so much memory (dev/emu), */
mox_status mox_dev_emu_open(mox_dev **out, int64_t bytes, bool halves, mox_err *err);
/*   an NVIDIA GPU, counted from 0, through the plug-in (dev/cuda), and how many of them there are, */
mox_status mox_dev_cuda_open(mox_dev **out, int number, bool halves, mox_err *err);
mox_status mox_dev_cuda_count(int *n, mox_err *err);
/*   and the GPU of an Apple machine (dev/metal); and whether this is one. */
mox_status mox_dev_metal_open(mox_dev **out, bool halves, mox_err *err);
mox_status mox_dev_metal_find(mox_err *err);
/* What reserve, and place_experts of so many layers of n_experts, take of a GPU's memory. */
int64_t mox_dev_gpu_table_bytes(const mox_dev_sizes *most, int64_t n_layers, int64_t n_experts);
/* Whether GPUs have kernels for a few tokens that need all experts with matrices like this one at once. */
bool mox_dev_gpu_needs_all(const mox_mat *m);
/* Computes nothing: running a step through it measures what the step needs. */
mox_status mox_dev_plan_open(mox_dev **out, mox_err *err);

#endif
