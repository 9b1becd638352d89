/* runtime/expert_stream.h -- experts in a fixed number of slots, read from their files when a
 * batch asks for them.
 *
 * The index (expert_cache.h) says who goes where, expert_place.h what to read, the reader
 * (reader.h) reads in the background; this brings them together.  All reads that a batch
 * needs are under way at once, as far as there are slots.  Experts that are there are handed
 * out first, the others as they arrive.  With fewer slots than experts several share a slot:
 * the next one is read when the one before it has been computed.
 *
 * Experts are also read ahead of their layer, behind all reads that somebody waits for: those
 * that ahead names, while that pays (foresight.h), and the whole next layer when a batch needs
 * most of one, as prompts do.  They take free slots and those that the policy gives up, never
 * one of the running batch; from then on the index has them like any other.
 *
 * Owns:    slots, index, reader.     Borrows: the model.
 * Threads: that of the step; the reader's own write to slots that are LOADING.
 * Memory:  everything is reserved by open.
 *
 * I1  between batches what the index says is in a slot is there, or on its way; a slot that is free
 *     in the index may still be LOADING what nobody wants any more.
 * I2  bytes of a slot change only while it is LOADING, and it is never LOADING while a batch
 *     computes with it.
 * I3  what was handed out stays until the following next or release. */
#ifndef MOX_RUNTIME_EXPERT_STREAM_H
#define MOX_RUNTIME_EXPERT_STREAM_H

#include "dev/dev.h"
#include "model/model.h"
#include "moxie/tools.h"
#include "runtime/reader.h"

typedef struct mox_expert_stream mox_expert_stream;

/* What of opts begins with expert_, heat and trace.  The experts that heat names begin to be read.
 * MOX_E_FULL when expert_bytes are not enough for one slot. */
mox_status mox_expert_stream_open(mox_expert_stream **out, const mox_model *m, const mox_context_opts *opts,
                                  const mox_reader_opts *reader, mox_err *err);
void mox_expert_stream_close(mox_expert_stream **s); /* NULL-safe */
int64_t mox_expert_stream_bytes(const mox_expert_stream *s); /* reserved by open */

/* What open would reserve, by the code that does. */
mox_status mox_expert_stream_measure(const mox_model *m, const mox_context_opts *opts, int64_t *out, mox_err *err);

/* As in mox_expert_source. */
void mox_expert_stream_acquire(mox_expert_stream *s, int32_t layer, const int32_t *ids, int64_t n);
mox_status mox_expert_stream_next(mox_expert_stream *s, mox_expert *out, int64_t max, int64_t *n, const mox_cancel *cancel,
                                  mox_err *err);
void mox_expert_stream_release(mox_expert_stream *s);
bool mox_expert_stream_wants(mox_expert_stream *s);
void mox_expert_stream_ahead(mox_expert_stream *s, int32_t layer, const int32_t *ids, int64_t n);

/* How many next would hand over without waiting. */
int64_t mox_expert_stream_ready(mox_expert_stream *s);
/* All slots; whether there is one for every expert, so that nobody ever gives way. */
void *mox_expert_stream_memory(const mox_expert_stream *s, int64_t *bytes);
bool mox_expert_stream_has(const mox_expert_stream *s, int64_t key); /* or it is on its way */
bool mox_expert_stream_has_all(const mox_expert_stream *s);

/* Between batches: as few or as many of the slots are in use, at least one; the memory of the
 * others goes back to the system.  Slots that are being read stay for now, and those before them. */
void mox_expert_stream_resize(mox_expert_stream *s, int64_t n_slots);

void mox_expert_stream_get_stats(const mox_expert_stream *s, mox_expert_stats *out);
void mox_expert_stream_get_heat(const mox_expert_stream *s, uint32_t *out); /* [n_layers, n_experts] */

#endif
