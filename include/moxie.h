/* moxie.h -- run Mixture-of-Experts language models from their checkpoints.
 *
 * Four objects.  A `mox_model` is an opened checkpoint: immutable, shared.  A
 * `mox_context` owns all memory of a run and executes one step at a time.  A
 * `mox_seq` is a token timeline inside a context.  A `mox_sampler` turns logits
 * into token ids.  Text lives in moxie/text.h, tools in moxie/tools.h.
 *
 * Errors     every function that can fail returns a mox_status: 0 is success,
 *            negative is failure.  `err` may be NULL; otherwise it receives one
 *            sentence that names the file or argument and what to do.
 * Ownership  create/open give the caller a handle that destroy/close takes back
 *            and sets to NULL (NULL-safe).  Pointer arguments are borrowed for
 *            the call unless the comment says otherwise.
 * Threads    models may be shared freely; a context and its sequences belong to
 *            one thread at a time.  A cancel flag may be raised from anywhere.
 * Manners    the library never prints, exits, reads the environment or installs
 *            signal handlers.
 */
#ifndef MOXIE_H
#define MOXIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(MOX_BUILDING) && defined(__GNUC__)
#define MOX_API __attribute__((visibility("default")))
#else
#define MOX_API
#endif

/* ---- status ---------------------------------------------------------------- */

/* X(name, value, what it means) */
#define MOX_STATUS_LIST(X)                                                       \
    X(MOX_OK, 0, "success")                                                      \
    X(MOX_E_ARG, -1, "an argument is wrong")                                     \
    X(MOX_E_MEMORY, -2, "out of memory")                                         \
    X(MOX_E_IO, -3, "a file could not be read or written")                       \
    X(MOX_E_NOT_FOUND, -4, "a file is missing")                                  \
    X(MOX_E_FORMAT, -5, "a file is damaged or not what it says it is")           \
    X(MOX_E_UNSUPPORTED, -6, "a valid model that this version cannot run")       \
    X(MOX_E_FULL, -7, "it does not fit")                                         \
    X(MOX_E_CANCELLED, -8, "the step was cancelled")                             \
    X(MOX_E_STATE, -9, "the sequence cannot return to that position")            \
    X(MOX_E_NUMERIC, -10, "the model produced numbers that are not finite")      \
    X(MOX_E_DEVICE, -11, "the device failed")                                    \
    X(MOX_E_LIMIT, -12, "it would take too long")                                \
    X(MOX_E_REFUSED, -13, "the chat template refuses these messages")

typedef enum mox_status {
#define MOX_STATUS_ENUM(name, value, text) name = value,
    MOX_STATUS_LIST(MOX_STATUS_ENUM)
#undef MOX_STATUS_ENUM
} mox_status;

typedef struct mox_err {
    mox_status status;
    char msg[480]; /* one sentence, always terminated */
} mox_err;

MOX_API const char *mox_status_text(mox_status status); /* static storage */
MOX_API const char *mox_version(void);                  /* static storage */

/* ---- model ----------------------------------------------------------------- */

typedef struct mox_model mox_model;

/* Called for things worth a user's attention that are no errors. */
typedef void mox_warn_fn(void *user, const char *sentence);

/* Where weights are while steps run.  A copy is made in the background, in memory on huge
 * pages, and used as it grows; the model needs as much memory again, and is faster where
 * the system keeps files in small pages. */
typedef enum mox_weights { MOX_WEIGHTS_MAP = 0, MOX_WEIGHTS_COPY } mox_weights;

typedef struct mox_model_opts {
    mox_warn_fn *warn; /* NULL: warnings are dropped */
    void *warn_user;
    mox_weights weights;
} mox_model_opts;

/* Opens the checkpoint in folder dir (config.json and *.safetensors).  Every
 * header, shape and size is checked here; weights stay in their files.
 * opts may be NULL.  On failure *out is NULL. */
MOX_API mox_status mox_model_open(mox_model **out, const char *dir, const mox_model_opts *opts,
                                  mox_err *err);
MOX_API void mox_model_close(mox_model **m);

/* Where routed experts are while steps run: chosen by size; mapped whole; read into a part
 * of the memory as they are needed; mapped, and left to the system. */
typedef enum mox_experts { MOX_EXPERTS_AUTO = 0, MOX_EXPERTS_RESIDENT, MOX_EXPERTS_STREAM, MOX_EXPERTS_MMAP } mox_experts;

/* For contexts that read experts as they need them (expert_bytes): loads all other weights
 * into memory and gives up the mappings of the files, so that the process takes no more
 * than that.  Before any context exists; all of them need expert_bytes afterwards.
 * progress (bytes done, bytes in all) may be NULL.  On failure the model is as it was. */
MOX_API mox_status mox_model_load_dense(mox_model *m, void (*progress)(void *user, int64_t n_done, int64_t n_total),
                                        void *user, mox_err *err);

typedef struct mox_model_info {
    const char *family; /* lives as long as the model */
    int64_t n_vocab;
    int64_t n_layers;
    int64_t n_ctx_max;  /* positions the model was made for */
    bool recurrent;     /* has layers whose state cannot be cut back freely */
} mox_model_info;
MOX_API void mox_model_get_info(const mox_model *m, mox_model_info *out);

/* Sampling defaults and stop ids that the model's own files name; mox_is_stop of
 * moxie/text.h knows the tokenizer's too. */
typedef struct mox_generation {
    float temperature; /* 0 = greedy */
    int32_t top_k;     /* 0 = off */
    float top_p, min_p;
    float repeat_penalty;
    const int32_t *stop_ids; /* lives as long as the model */
    int32_t n_stop_ids;
} mox_generation;
MOX_API void mox_model_get_generation(const mox_model *m, mox_generation *out);

/* ---- context --------------------------------------------------------------- */

typedef struct mox_context mox_context;

typedef enum mox_kv_type { MOX_KV_DEFAULT = 0, MOX_KV_F32, MOX_KV_F16, MOX_KV_Q8 } mox_kv_type;

/* Called for all that the cache of routed experts depends on, in order: inside a step for each layer
 * with the experts that its batch needs; and, where they are streamed, also when a context is made,
 * with a single expert. */
typedef enum mox_trace_kind {
    MOX_TRACE_BATCH = 0,
    MOX_TRACE_AHEAD, /* it got a slot though nobody had asked for it yet */
    MOX_TRACE_LOST,  /* it had a slot, but could not be read */
    MOX_TRACE_SLOTS, /* no expert: from now on n slots are in use, as memory allows */
} mox_trace_kind;
typedef void mox_trace_fn(void *user, mox_trace_kind what, int32_t layer, const int32_t *ids, int64_t n);

typedef struct mox_context_opts {
    int64_t n_ctx;         /* positions per sequence; 0 = model maximum, at most 4096 */
    int32_t n_seqs;        /* sequences alive at once; 0 = 1 */
    int32_t n_batch;       /* tokens computed at once, one of each sequence at least; 0 = 512, 2048 on a GPU */
    int32_t n_threads;     /* 0 = one per core that the process may use */
    bool pin;              /* threads stay on one processor each, but for the calling one */
    int32_t n_checkpoints; /* recurrent models: saved states per sequence; 0 = 4 */
    int64_t prefix_bytes;  /* memory for what finished sequences leave to others, beyond what the
                            * sequences need; recurrent models keep states in half of it */
    bool exact;            /* f32 activations and caches */
    bool fast;             /* 8-bit activations: faster, and less exact; not with exact */
    bool deterministic;    /* a token's logits depend on the tokens before it and on nothing else: neither on
                            * what shares a step with it nor on how a prompt is cut; slower */
    mox_kv_type kv_type;   /* default: f32 when exact, else f16; q8: 8 bits in blocks of 32 with a scale */
    const char *device;    /* "cpu", "cuda", "metal", or "emu": a GPU that the processor plays, for tests; NULL = cpu.
                            * "cuda" takes as few GPUs as the model fits on, "cuda:1" that one, "cuda:0,2" spreads
                            * the layers over those; so does "emu:0,1" */
    int64_t device_bytes;  /* of the memory of each device that is named, for all that the context and its driver have there; "cuda" is one GPU then.  When not all
                            * experts fit, those used least recently give way to others.  0 = all stay */
    bool cpu_experts;      /* with device_bytes: of one to four tokens, most of the experts that are not on the device are computed by
                            * the cpu while the others are copied there, which gives other bytes */
    const char *isa;       /* kernel level of the cpu by name; NULL = the best there is */
    int64_t expert_bytes;  /* memory for routed experts that are read from the model's files when they
                            * are needed; 0 = they are used where the model has them */
    int32_t n_readers;     /* reads under way at once; 0 = 8 */
    bool uring;            /* by io_uring where there is one, else, with a warning, by threads */
    int64_t read_bytes;    /* of one read at most; 0 = 1 MiB */
    bool buffered;         /* they go through the system's page cache */
    const char *expert_policy; /* which expert gives way to another: "lfu", "lru" or "2q"; NULL = lfu */
    const uint32_t *heat;  /* how often experts were used in earlier runs (mox_context_get_heat of
                            * moxie/tools.h): the most used ones are read ahead; NULL = none */
    bool no_prefetch;      /* experts are read, and copied to a device, when they are asked for and not before, but for those
                            * of heat */
    mox_trace_fn *trace;   /* may be NULL */
    void *trace_user;
    mox_warn_fn *warn;     /* NULL: warnings are dropped */
    void *warn_user;
} mox_context_opts;

/* The model must outlive the context.  All memory is reserved here: a step
 * allocates nothing.  opts may be NULL.  On failure *out is NULL. */
MOX_API mox_status mox_context_create(mox_context **out, const mox_model *model,
                                      const mox_context_opts *opts, mox_err *err);
MOX_API void mox_context_destroy(mox_context **c);
MOX_API int64_t mox_context_n_ctx(const mox_context *c);
MOX_API int64_t mox_context_bytes(const mox_context *c); /* reserved by create */

/* ---- sequences ------------------------------------------------------------- */

typedef struct mox_seq mox_seq;

/* A sequence lives in its context; destroy it first. */
MOX_API mox_status mox_seq_create(mox_seq **out, mox_context *c, mox_err *err);
MOX_API void mox_seq_destroy(mox_seq **s);
MOX_API int64_t mox_seq_length(const mox_seq *s);

/* Forget everything: length 0. */
MOX_API void mox_seq_reset(mox_seq *s);

/* Return to the first n tokens.  Attention-only models can return anywhere;
 * recurrent ones only to 0, to the present length or to a checkpoint, and
 * otherwise answer MOX_E_STATE and stay as they are. */
MOX_API mox_status mox_seq_cut(mox_seq *s, int64_t n, mox_err *err);

/* Returns to the longest part of tokens[0, n), n > 0, that the sequence holds already and can
 * return to, short of the last token; says how many tokens that is. */
MOX_API int64_t mox_seq_reuse(mox_seq *s, const int32_t *tokens, int64_t n);

/* The longest length <= n that mox_seq_cut would accept. */
MOX_API int64_t mox_seq_cut_point(const mox_seq *s, int64_t n);

/* Keep the present state so that mox_seq_cut can return to it.  When the slots
 * are used up the checkpoint that is missed least gives way.  No-op without
 * recurrent layers. */
MOX_API void mox_seq_checkpoint(mox_seq *s);

/* ---- step ------------------------------------------------------------------ */

typedef enum mox_want {
    MOX_WANT_NONE = 0, /* only update the state                 */
    MOX_WANT_LAST,     /* logits of the segment's last token    */
    MOX_WANT_ALL       /* logits of every token of the segment  */
} mox_want;

/* n tokens that follow what seq already holds.  A step takes several segments
 * of different sequences and lengths; a sequence appears at most once. */
typedef struct mox_segment {
    mox_seq *seq;
    const int32_t *tokens;
    int64_t n;
    mox_want want;
} mox_segment;

/* Asks a running step to stop.  mox_cancel_raise may be called from any thread and
 * from signal handlers; clear the flag (zero it) before the next step. */
typedef struct mox_cancel {
    int raised;
} mox_cancel;
MOX_API void mox_cancel_raise(mox_cancel *c);

/* The callbacks run inside the step: they may raise the flag, but must not touch the
 * context or its sequences. */
typedef struct mox_step_opts {
    const mox_cancel *cancel; /* looked at in every layer; may be NULL */
    /* Called while the step runs, with tokens done and tokens in all. */
    void (*progress)(void *user, int64_t n_done, int64_t n_total);
    void *progress_user;
    /* Called with the rows of logits as they are ready, in segment order: row i
     * of segment s.  The view is valid during the call.  NULL: use mox_logits_row. */
    void (*on_logits)(void *user, int32_t segment, int64_t row, const float *logits);
    void *on_logits_user;
} mox_step_opts;

/* Runs the segments.  A failed or cancelled step leaves every sequence usable:
 * attention-only models at their old length, recurrent ones at their last
 * checkpoint (see mox_seq_length). */
MOX_API mox_status mox_step(mox_context *c, const mox_segment *segments, int32_t n_segments,
                            const mox_step_opts *opts, mox_err *err);

/* Logits [n_vocab] of the last token of a segment that wanted any; NULL
 * otherwise.  Valid until the next step. */
MOX_API const float *mox_logits_row(const mox_context *c, int32_t segment);

/* ---- sampling -------------------------------------------------------------- */

typedef struct mox_sampler mox_sampler;

typedef struct mox_logit_bias {
    int32_t token;
    float bias; /* added to its logit; minus infinity: it is never chosen */
} mox_logit_bias;

typedef struct mox_sampler_opts {
    float temperature;       /* 0 = greedy                                    */
    int32_t top_k;           /* 0 = off                                       */
    float top_p;             /* 0 or 1 = off                                  */
    float min_p;             /* 0 = off                                       */
    float repeat_penalty;    /* 0 or 1 = off; over the last repeat_window ids */
    float presence_penalty;  /* 0 = off; subtracted once per id seen          */
    float frequency_penalty; /* 0 = off; subtracted per occurrence            */
    int32_t repeat_window;   /* 0 = 64                                        */
    uint64_t seed;
    const mox_logit_bias *logit_bias; /* [n_logit_bias], copied; may be NULL  */
    int32_t n_logit_bias;
} mox_sampler_opts;

MOX_API mox_status mox_sampler_create(mox_sampler **out, int64_t n_vocab,
                                      const mox_sampler_opts *opts, mox_err *err);
MOX_API void mox_sampler_destroy(mox_sampler **s);
/* Tell the sampler about a token that it did not choose (the prompt). */
MOX_API void mox_sampler_accept(mox_sampler *s, int32_t token);
/* Chooses a token from logits [n_vocab] and accepts it.  MOX_E_NUMERIC when a
 * logit is NaN or all are infinite, MOX_E_ARG when logit_bias leaves none to choose. */
MOX_API mox_status mox_sampler_sample(mox_sampler *s, const float *logits, int32_t *token,
                                      mox_err *err);

#ifdef __cplusplus
}
#endif
#endif
