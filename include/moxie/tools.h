/* moxie/tools.h -- looking into models, and measuring.  See moxie.h for errors and
 * ownership. */
#ifndef MOXIE_TOOLS_H
#define MOXIE_TOOLS_H

#include "moxie.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MOX_INSPECT_TYPES = 24 };

/* What a checkpoint is made of.  Counts that a family has no use for are 0. */
typedef struct mox_inspection {
    char family[64];
    char layout[32];           /* "Hugging Face" or "MLX" */
    int64_t n_files, n_tensors, n_tensors_skipped; /* skipped: vision, MTP, and what was warned of */
    int64_t n_layers, n_vocab, d_model, n_ctx_max;
    bool tied_embeddings;
    /* layers by kind */
    int64_t n_layers_attention, n_layers_latent, n_layers_linear;
    int64_t n_layers_dense, n_layers_moe;
    /* attention */
    int64_t n_heads, n_kv_heads, head_dim, rotary_dim;
    int64_t kv_lora_rank, q_lora_rank;
    int64_t linear_k_heads, linear_v_heads, linear_k_dim, linear_v_dim;
    char rope[64];             /* "theta 1e+06" or "yarn x40, theta 10000" */
    /* feed-forward */
    int64_t ffn_width, expert_width, shared_expert_width;
    int64_t n_experts, n_experts_active;
    /* weights */
    int64_t params_total, params_active; /* active: used for one token */
    int64_t bytes_total, bytes_experts;  /* of the bound weights */
    int64_t kv_bytes_per_token;          /* at f16 */
    int64_t state_bytes;                 /* recurrent state of one sequence */
    int n_types;
    struct {
        char name[40]; /* "affine 4-bit, groups of 64", "BF16" */
        int64_t n_matrices, params, bytes;
    } types[MOX_INSPECT_TYPES];
} mox_inspection;

MOX_API void mox_model_inspect(const mox_model *m, mox_inspection *out);

/* A model folder at a glance: what config.json says, and whether the weight files are
 * there.  None of them is opened, so that a model that passes may still be refused by
 * mox_model_open. */
typedef struct mox_glance {
    char family[64];       /* "" when config.json does not say */
    char quantization[32]; /* "4-bit", "fp8"; "" for plain numbers, or when it could not be read */
} mox_glance;
/* *out is filled as far as was possible, also on failure: MOX_E_NOT_FOUND when files are
 * missing, MOX_E_UNSUPPORTED for a model of another kind. */
MOX_API mox_status mox_model_glance(const char *dir, mox_glance *out, mox_err *err);

/* Where the weights of a model are now. */
typedef struct mox_weight_residency {
    int64_t bytes;        /* of the files; 0 for a model that was made in memory */
    int64_t bytes_copied; /* memory of the process that holds a copy */
    bool copying;         /* it grows */
    int64_t bytes_loaded; /* dense weights that mox_model_load_dense brought into memory */
    int64_t bytes_mapped, bytes_mapped_huge; /* of all mapped files of the process that are in memory; of
                                              * those, on huge pages */
} mox_weight_residency;
MOX_API void mox_model_get_residency(const mox_model *m, mox_weight_residency *out);

/* What a context computes with.  Names live as long as the program. */
typedef struct mox_kernels {
    const char *device;    /* "cpu", "cuda", "metal", "emu" */
    int32_t n_devices;     /* that the layers are spread over */
    const char *isa;       /* the kernel level; of a GPU, what it is */
    const char *precision; /* of activations: "default", "exact", "fast" */
    const char *kv_type;   /* of the attention cache: "f32", "f16", "q8" */
    int32_t n_threads;
} mox_kernels;
MOX_API void mox_context_get_kernels(const mox_context *c, mox_kernels *out);
/* What it took to bring a model to its devices; zeros where the processor computes. */
typedef struct mox_context_load {
    double open_s;        /* the driver: its contexts, and the kernels */
    double upload_s;
    int64_t upload_bytes; /* weights */
} mox_context_load;
MOX_API void mox_context_get_load(const mox_context *c, mox_context_load *out);
/* How fast the first device of a context copies its own memory: bytes read and written per second.  It takes up
 * to half a GiB there.  MOX_E_UNSUPPORTED where the processor computes; MOX_E_FULL where the budget of the device's
 * memory leaves too little; MOX_E_MEMORY where there is no room. */
typedef struct mox_device_probe mox_device_probe;
MOX_API mox_status mox_device_probe_create(mox_device_probe **out, const mox_context *c, mox_err *err);
MOX_API void mox_device_probe_destroy(mox_device_probe **p); /* before the context */
MOX_API mox_status mox_device_probe_copy(mox_device_probe *p, double *bytes_per_s, mox_err *err);
/* What a name of mox_context_opts.device means, also on a machine without such a device. */
typedef struct mox_device_kind {
    const char *name;  /* "cpu", "cuda", "metal", "emu": without numbers; static storage */
    int32_t n_numbers; /* that follow it: of so many devices */
    bool is_cpu;
    bool has_memory;   /* of its own; else it computes in that of the host */
} mox_device_kind;
/* device NULL: the cpu. */
MOX_API mox_status mox_device_get_kind(const char *device, mox_device_kind *out, mox_err *err);
/* Whether there is such a device as mox_context_opts.device names; MOX_E_DEVICE says why not: no plug-in for
 * it, no driver or an old one, no GPU.  It may still have too little memory. */
MOX_API mox_status mox_device_find(const char *device, mox_err *err);

/* Kernel levels of this build, lowest first; mox_context_opts.isa takes a name. */
MOX_API int mox_isa_count(void);
MOX_API const char *mox_isa_name(int level); /* static storage */
MOX_API bool mox_isa_available(int level);   /* on this processor */

/* ---- synthetic models: random weights in the shape of a real model ----
 *
 * A name is one of the list, in any case, or NAME:layers=N for its first N layers.
 * Weights are as a 4-bit MLX conversion has them. */

typedef struct mox_synth_opts {
    uint64_t seed;      /* the same seed gives the same bytes */
    double router_skew; /* 0 to 8: how unevenly experts are chosen.  Of softmax routers the i-th most
                         * popular expert of a layer is chosen with a weight of about 1 / i^skew, but
                         * none by more than half of the tokens; sigmoid routers get correction
                         * biases of up to 0.01 + 0.1 skew either way */
    int32_t n_threads;  /* 0 = one per core that the process may use */
    const mox_cancel *cancel; /* may be NULL */
    /* Called with bytes done and bytes in all; may be NULL. */
    void (*progress)(void *user, int64_t n_done, int64_t n_total);
    void *progress_user;
} mox_synth_opts;

MOX_API int mox_synth_count(void);
MOX_API const char *mox_synth_name(int i); /* static storage */
/* Bytes of its tensors. */
MOX_API mox_status mox_synth_bytes(const char *name, int64_t *out, mox_err *err);
/* Writes the checkpoint to the folder dir, which is made, or empty.  On failure no
 * file stays behind.  opts may be NULL. */
MOX_API mox_status mox_synth_write(const char *name, const char *dir, const mox_synth_opts *opts, mox_err *err);
/* The same checkpoint in memory.  opts may be NULL.  On failure *out is NULL. */
MOX_API mox_status mox_model_open_synthetic(mox_model **out, const char *name, const mox_synth_opts *opts,
                                            mox_err *err);

/* Its shape alone: can be inspected and planned for, but contexts refuse it. */
MOX_API mox_status mox_model_open_shape(mox_model **out, const char *name, mox_err *err);

/* ---- memory ----
 *
 * A plan says, before anything large is allocated, where everything would go and whether it
 * fits a budget.  What it counts is what the process has in memory, files that it maps
 * included; only experts that are left to the system (MOX_EXPERTS_MMAP, where no weight is
 * counted) are outside of it. */

typedef struct mox_plan_opts {
    int64_t ram_bytes;   /* the budget; 0 = 80 % of what is available now */
    int64_t vram_bytes;  /* of each device with memory of its own that the contexts name; 0 = all of it, for all experts */
    mox_experts experts; /* AUTO: all of them resident if that fits, else streamed */
    int64_t n_slots;     /* streamed: so many slots; 0 = as many as fit.  Makes AUTO stream */
    const mox_context_opts *context; /* NULL: the defaults */
    const mox_context_opts *second;  /* a second context beside it; NULL: there is none */
    int64_t extra_bytes; /* what the caller will take for itself, beyond what it has now */
} mox_plan_opts;

enum { MOX_PLAN_CONTEXTS = 2, MOX_PLAN_DEVICES = 8 };

/* One of the devices that have memory of their own. */
typedef struct mox_plan_device {
    int64_t first_layer, n_layers; /* that it has, of the first context */
    int64_t weights_bytes; /* of all weights of these, or of all but routed experts */
    int64_t experts_bytes; /* of slots for them */
    int64_t cache_bytes, activation_bytes;
    int64_t other_bytes;   /* tables, and what the driver takes for itself */
    int64_t total;
    int64_t n_experts, n_slots; /* of its layers, and slots for them per context */
} mox_plan_device;

/* Memory of devices of its own; all 0 where the host's is used. */
typedef struct mox_plan_devices {
    int64_t budget;        /* of each; INT64_MAX: whatever it has */
    int64_t shares[MOX_PLAN_CONTEXTS]; /* of it, for each context */
    int64_t least_budget;  /* the smallest that fits */
    int64_t total;         /* of the one that has most to hold */
    int64_t slot_bytes, n_slots; /* per context, of all devices; 0: all experts stay there */
    bool cpu_experts;      /* of a few tokens, the cpu computes what is missing there */
    int64_t n;
    mox_plan_device each[MOX_PLAN_DEVICES];
} mox_plan_devices;

typedef struct mox_plan {
    mox_experts experts;   /* as decided: never AUTO */
    bool fits;             /* otherwise the rest describes the smallest run there could be */
    int64_t budget;        /* INT64_MAX: there is no limit */
    int64_t available;     /* now, what the process has already included; INT64_MAX: nobody says */
    int64_t least_budget;  /* the smallest that fits */
    /* what takes memory, in all of the two contexts; the sum is total */
    int64_t dense_bytes;   /* weights that are no routed experts, and the rest of mapped files */
    int64_t experts_bytes; /* resident: all of them; streamed: the slots */
    int64_t copy_bytes;    /* of the files, for MOX_WEIGHTS_COPY */
    int64_t cache_bytes;   /* attention caches, recurrent states and their checkpoints, unless a device has them */
    int64_t activation_bytes; /* likewise */
    int64_t other_bytes;   /* program, tokenizer, timelines, logits, threads, the caller's own */
    int64_t total;
    /* experts */
    int64_t n_experts, n_experts_active; /* of all layers: there are, and used by one token */
    int64_t expert_bytes_all;            /* of all of them */
    int64_t slot_bytes, n_slots;         /* streamed: per context; 0 otherwise */
    int64_t n_layers_moe;
    /* the context */
    int64_t n_ctx, n_batch;
    int64_t n_batch_wanted; /* more than n_batch: it had to shrink */
    /* what computing takes */
    int64_t token_bytes;  /* read from memory for one token at the beginning of a context, experts left out */
    int64_t token_macs;   /* multiply-adds of one token, without the head, */
    int64_t head_macs;    /* and those of the head, which of a prompt only the last token needs */
    mox_plan_devices device;
} mox_plan;

/* MOX_OK also when it does not fit. */
MOX_API mox_status mox_plan_make(mox_plan *out, const mox_model *m, const mox_plan_opts *opts, mox_err *err);

/* How fast a machine is, and how unevenly experts are asked for. */
typedef struct mox_plan_machine {
    double weights_per_s;    /* bytes of weights that products with one token read: mox_probe_weights */
    double macs_per_s;       /* of products with many tokens: mox_probe_products */
    double disk_bytes_per_s; /* 0 = unknown */
    double zipf;             /* the i-th most popular expert of a layer is chosen with a weight of
                              * 1 / i^zipf; 0: all alike, which is the worst case */
} mox_plan_machine;

/* Rates of tokens, 0 = unknown.  While generating, reads of experts are taken to overlap the computing
 * of experts and nothing else; in a prompt they overlap all computing.  Where they do, both are slower. */
typedef struct mox_plan_speed {
    double hit_rate;       /* of experts while generating, with the least recently used one giving way */
    double decode_per_s;   /* tokens, at the beginning of a context */
    double prefill_per_s;  /* tokens of a prompt of many batches */
    double disk_bytes_per_token; /* while generating */
} mox_plan_speed;
MOX_API void mox_plan_predict(const mox_plan *p, const mox_plan_machine *machine, mox_plan_speed *out);

/* ---- packed models ----
 *
 * A packed model has the bytes of each routed expert side by side, so that one read brings
 * it, and checksums of everything.  It is opened like any other. */

typedef struct mox_pack_opts {
    const mox_cancel *cancel; /* may be NULL */
    /* Called with bytes done and bytes in all; may be NULL. */
    void (*progress)(void *user, int64_t n_done, int64_t n_total);
    void *progress_user;
    mox_warn_fn *warn; /* of opening the model; may be NULL */
    void *warn_user;
} mox_pack_opts;

typedef struct mox_pack_report {
    int64_t bytes, bytes_written; /* of all files; of those that were written and not linked */
    int64_t n_experts;            /* that were written */
    int32_t n_files, n_linked, n_kept; /* kept: an earlier run had finished them */
    bool was_complete;            /* there was nothing to do */
} mox_pack_report;

/* Packs the model in the folder dir into the folder out, which is made, or empty, or holds
 * what an earlier call left: files that are complete stay.  Files without experts are
 * linked where the file system can.  opts and report may be NULL. */
MOX_API mox_status mox_pack(const char *dir, const char *out, const mox_pack_opts *opts, mox_pack_report *report,
                            mox_err *err);

/* What is wrong with a file of a model. */
typedef struct mox_finding {
    bool warning;       /* odd, but the model may be meant so */
    const char *file;   /* its name in the folder; NULL: the model as a whole */
    const char *tensor; /* or piece; NULL: the file as a whole */
    const char *what;   /* and what to do */
} mox_finding;

typedef struct mox_verify_opts {
    const mox_cancel *cancel; /* may be NULL */
    /* Called with bytes done and bytes in all; may be NULL. */
    void (*progress)(void *user, int64_t n_done, int64_t n_total);
    void *progress_user;
    /* Called for each finding, whose strings are good during the call; may be NULL. */
    void (*found)(void *user, const mox_finding *f);
    void *found_user;
} mox_verify_opts;

typedef struct mox_verify_report {
    int64_t n_problems, n_warnings;
    int64_t n_files, bytes; /* that were read */
    int64_t n_tensors;      /* whose numbers were looked at */
    int64_t n_checksums;    /* that were compared */
} mox_verify_report;

/* Reads every byte of a model: compares checksums where there are any (moxie.pack.json, and
 * files that the Hugging Face cache names by their SHA-256), looks for numbers that are not
 * finite and for scales that are all zero.  MOX_OK: it was looked through, whatever was found.
 * opts may be NULL. */
MOX_API mox_status mox_verify(const char *dir, const mox_verify_opts *opts, mox_verify_report *report, mox_err *err);

/* ---- measuring ---- */

/* What the steps of a context had to do at least, counted while they ran. */
typedef struct mox_work {
    int64_t tokens, batches;
    int64_t weight_bytes; /* per batch: every weight but the embedding table once, its rows,
                           * and the experts that tokens were routed to once each */
    int64_t cache_bytes;  /* per batch: cached positions and recurrent states once */
    int64_t macs;         /* multiply-adds: one per weight and token, and those of attention
                           * and delta nets */
} mox_work;
MOX_API void mox_context_get_work(const mox_context *c, mox_work *out);

/* Memory that one expert takes in a context with expert_bytes; 0 for a model without. */
MOX_API int64_t mox_model_expert_slot_bytes(const mox_model *m);

/* What became of the experts that the steps of a context asked for; all 0 without
 * expert_bytes and slots on a device. */
typedef struct mox_expert_stats {
    int64_t n_slots, slot_bytes;
    int64_t n_slots_away; /* of them, how many are not in use now, because others need the memory */
    int64_t hits, misses; /* asked for and there, or had to be read */
    int64_t bytes_read;
    int64_t waits;        /* times that a step had nothing to compute until a read ended, */
    double wait_s;        /* and for how long in all */
    double busy_s;        /* from asking for the experts of a layer until they were computed: the rest of a
                           * step is what reads for that layer cannot overlap */
    int64_t warmed, warmed_used; /* experts that heat brought, and of those, asked for */
    int64_t prefetched, prefetched_used; /* the same of those that were read for a layer before its turn */
    int64_t guessed, guessed_right; /* missing experts that the next layer was thought to want, and did; with slots on a
                                     * device, missing there */
    /* Slots on devices, all together, with mox_context_opts.device_bytes; the least recently used expert gives way. */
    int64_t n_device_slots, device_slot_bytes;
    int64_t device_hits, device_misses; /* asked for and there, or had to be copied from the host: what is above is about those */
    int64_t device_prefetched; /* copied for a layer before its turn */
    int64_t device_cold;  /* asked for, not there, and computed by the cpu (mox_context_opts.cpu_experts) */
    int64_t bytes_copied;
    double copy_wait_s;   /* that the device had nothing to compute until a copy ended */
    const char *policy;   /* of mox_context_opts.expert_policy; static storage, NULL without expert_bytes */
} mox_expert_stats;
MOX_API void mox_context_get_expert_stats(const mox_context *c, mox_expert_stats *out);

/* How often the steps of a context asked for each expert, [n_layers, n_experts] of mox_inspection; all 0
 * without expert_bytes.  Kept by the caller, it is mox_context_opts.heat of a later context. */
MOX_API void mox_context_get_heat(const mox_context *c, uint32_t *out);

/* ---- replaying: which expert cache would have had how many hits ----
 *
 * A trace is what mox_context_opts.trace was called with, as `moxie --trace` writes it down. */

typedef struct mox_trace mox_trace;

typedef struct mox_trace_info {
    int64_t n_layers, n_experts, n_active, slot_bytes; /* of the model; slot_bytes: memory of one expert */
    int64_t n_all;      /* experts of all layers that have any */
    int64_t n_batches;  /* layers of batches that asked for experts, */
    int64_t n_requests; /* experts that they asked for, */
    int64_t n_tokens;   /* and tokens that were computed */
    int64_t n_ahead;    /* experts that got a slot before anybody asked for them */
    /* What the recorded run had and counted; n_slots is 0 when its experts were not streamed. */
    int64_t n_slots, hits, misses;
    char policy[16];
} mox_trace_info;

/* MOX_E_FORMAT with the line when the file is damaged.  On failure *out is NULL. */
MOX_API mox_status mox_trace_open(mox_trace **out, const char *path, mox_err *err);
MOX_API void mox_trace_close(mox_trace **t);
MOX_API void mox_trace_get_info(const mox_trace *t, mox_trace_info *out);

typedef struct mox_replay {
    const char *policy; /* static storage */
    int64_t n_slots;    /* at most n_all */
    int64_t hits, misses;
    int64_t n_ahead;        /* got a slot before anybody asked for them */
    double bytes_per_token; /* slot_bytes for every miss and every one of those; 0 without tokens */
} mox_replay;

/* policy: one of mox_context_opts.expert_policy, or "belady", which knows the future and so says
 * what the best one could have had. */
MOX_API mox_status mox_trace_replay(const mox_trace *t, const char *policy, int64_t n_slots, mox_replay *out,
                                    mox_err *err);

/* For measurements only: makes the sequence n tokens longer without computing them.
 * Their part of the attention cache is zero, recurrent state stays as it is and is
 * saved, so that mox_seq_cut can return here. */
MOX_API mox_status mox_seq_skip(mox_seq *s, int64_t n, mox_err *err);

/* Limits of the machine, with the threads, kernel level and precision of opts. */
typedef struct mox_probe mox_probe;
/* most_bytes: of its buffer, so that it fits a budget; 0 = mox_probe_bytes, which no cache holds. */
MOX_API mox_status mox_probe_create(mox_probe **out, const mox_context_opts *opts, int64_t most_bytes, mox_err *err);
MOX_API void mox_probe_destroy(mox_probe **p);
MOX_API int64_t mox_probe_bytes(void); /* memory that a probe takes */
/* Bytes per second that all threads together read from memory; some milliseconds. */
MOX_API double mox_probe_read(mox_probe *p);
/* Multiply-adds per second of the instruction that products use, from registers, and
 * divided by the times that the precision needs it; some milliseconds. */
MOX_API double mox_probe_macs(mox_probe *p);
/* What the kernels make of both: bytes of 4-bit weights per second in products with one token, and
 * multiply-adds per second in products with 128 tokens; some milliseconds each. */
MOX_API double mox_probe_weights(mox_probe *p);
MOX_API double mox_probe_products(mox_probe *p);
MOX_API const char *mox_probe_instruction(const mox_probe *p); /* static storage */

/* How a disk is read best, and how fast that is. */
typedef struct mox_disk_speed {
    bool direct;         /* around the page cache; false: the file system refuses that, and the speed is
                          * that of the page cache */
    bool uring;          /* by io_uring, not by threads */
    int32_t n_at_once;   /* reads under way: threads, or the depth of io_uring */
    int64_t piece_bytes; /* longer ranges are cut into pieces of at most this */
    double bytes_per_s;
} mox_disk_speed;
/* Reads what experts are made of, at random places of the model's files, as contexts with
 * expert_bytes do.  It takes about so many bytes of memory, room for one expert at least.
 * MOX_E_UNSUPPORTED for a model that was made in memory or has no routed experts. */
typedef struct mox_disk_probe mox_disk_probe;
MOX_API mox_status mox_disk_probe_create(mox_disk_probe **out, const mox_model *m, int64_t bytes, mox_err *err);
MOX_API void mox_disk_probe_destroy(mox_disk_probe **p);
/* In the way that *way says (0: the default) for so long, and completes *way; its speed stays
 * 0 where io_uring was asked for and there is none. */
MOX_API mox_status mox_disk_probe_try(mox_disk_probe *p, mox_disk_speed *way, double seconds, mox_err *err);
/* The best of several ways, in about two seconds. */
MOX_API mox_status mox_disk_probe_best(mox_disk_probe *p, mox_disk_speed *out, mox_err *err);

#ifdef __cplusplus
}
#endif
#endif
