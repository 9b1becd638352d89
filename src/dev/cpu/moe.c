/* dev/cpu/moe.c -- the experts of a layer on the processor.
 *
 * Pairs (token, slot) are sorted by expert once.  The source then hands out experts
 * in batches, resident ones first; the pairs of a batch become one list of groups,
 * so that all its experts share one work list for gate+up and one for down.
 *
 * I1  a pair's row depends only on its token and its expert, never on the batch in
 *     which the expert came. */
#include "dev/cpu/cpu.h"

#include "base/cancel.h"

/* Lists the pairs of a batch of experts, expert after expert. */
static void gather_pairs(const mox_moe_ffn_args *a, int64_t n_batch)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_batch; i++) {
        const mox_expert *x = &a->batch[i];
        a->batch_offsets[i] = n;
        a->gate[i] = x->gate;
        a->up[i] = x->up;
        a->down[i] = x->down;
        for (int64_t p = a->bucket_offsets[x->id]; p < a->bucket_offsets[x->id + 1]; p++, n++) {
            a->batch_pairs[n] = a->bucket_pairs[p];
            a->batch_tokens[n] = (int32_t)(a->bucket_pairs[p] / a->k);
        }
    }
    a->batch_offsets[n_batch] = n;
}

static mox_status compute_batch(mox_dev *d, const mox_moe_ffn_args *a, int64_t n_batch, mox_err *err)
{
    const mox_exec *e = &((mox_dev_cpu *)d)->exec;
    gather_pairs(a, n_batch);
    mox_dev_cpu_expect(d, a->gate, n_batch, n_batch * a->gate->rows);
    const int64_t n_pairs = a->batch_offsets[n_batch];
    MOX_TRY(mox_op_gate_up_swiglu(e,
                                  &(mox_gate_up_swiglu_args){.n_groups = n_batch, .gate = a->gate, .up = a->up,
                                                             .offsets = a->batch_offsets, .x_row = a->batch_tokens,
                                                             .x = a->x, .y = a->mid, .x_stride = a->dim,
                                                             .y_stride = a->width, .n_x_rows = a->n, .n_y_rows = n_pairs,
                                                             .scratch = a->acts},
                                  err));
    mox_dev_cpu_expect(d, a->down, n_batch, n_batch * a->down->rows);
    return mox_op_matmul_grouped(e,
                                 &(mox_matmul_grouped_args){.n_groups = n_batch, .w = a->down,
                                                            .offsets = a->batch_offsets, .y_row = a->batch_pairs,
                                                            .x = a->mid, .y = a->rows, .x_stride = a->width,
                                                            .y_stride = a->dim, .n_x_rows = n_pairs,
                                                            .n_y_rows = a->n * a->k, .scratch = a->acts},
                                 err);
}

mox_status mox_dev_cpu_moe_acquire(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    const mox_exec *e = &((mox_dev_cpu *)d)->exec;
    MOX_TRY(mox_op_moe_bucket(e,
                              &(mox_moe_bucket_args){.ids = a->ids, .n_pairs = a->n * a->k, .n_experts = a->n_experts,
                                                     .offsets = a->bucket_offsets, .pairs = a->bucket_pairs},
                              err));
    int64_t n_wanted = 0;
    for (int64_t x = 0; x < a->n_experts; x++)
        if (a->bucket_offsets[x] < a->bucket_offsets[x + 1]) a->wanted[n_wanted++] = (int32_t)x;
    return a->source->acquire(a->source, a->layer, a->wanted, n_wanted, err);
}

mox_status mox_dev_cpu_moe_ffn(mox_dev *d, const mox_moe_ffn_args *a, mox_err *err)
{
    mox_status status = MOX_OK;
    if (a->guess) a->source->ahead(a->source, a->layer + 1, a->guess, a->n * a->guess_k);
    for (;;) {
        if (mox_cancelled(a->cancel)) {
            status = mox_fail(err, MOX_E_CANCELLED, "cancelled");
            break;
        }
        int64_t n_batch = 0;
        status = a->source->next(a->source, a->batch, a->n_experts, &n_batch, a->cancel, err);
        if (status != MOX_OK || n_batch == 0) break;
        status = compute_batch(d, a, n_batch, err);
        if (status != MOX_OK) break;
    }
    a->source->release(a->source);
    return status;
}
