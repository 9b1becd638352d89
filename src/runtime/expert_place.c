/* runtime/expert_place.c -- see expert_place.h. */
#include "runtime/expert_place.h"

#include "base/size.h"

static int64_t page_down(int64_t offset) { return offset / MOX_READ_ALIGN * MOX_READ_ALIGN; }
static int64_t page_up(int64_t offset) { return page_down(offset + MOX_READ_ALIGN - 1); }

/* The parts in the order of part_at; empty extents for those that an expert does not own. */
static void list_parts(const mox_expert_weights *w, mox_extent out[MOX_EXPERT_PARTS])
{
    const mox_weight *matrices[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++) {
        const bool own = matrices[i]->layout.kind == MOX_MAT_AFFINE;
        out[3 * i] = matrices[i]->w;
        out[3 * i + 1] = own ? matrices[i]->scales : (mox_extent){0};
        out[3 * i + 2] = own ? matrices[i]->biases : (mox_extent){0};
    }
}

static bool before(const mox_extent *a, const mox_extent *b)
{
    return a->file != b->file ? a->file < b->file : a->offset < b->offset;
}

void mox_expert_place_find(const mox_expert_weights *w, mox_expert_place *out)
{
    mox_extent parts[MOX_EXPERT_PARTS];
    int order[MOX_EXPERT_PARTS], n = 0;
    list_parts(w, parts);
    for (int i = 0; i < MOX_EXPERT_PARTS; i++) {
        out->part_at[i] = -1;
        if (parts[i].bytes == 0) continue;
        int at = n++;
        for (; at > 0 && before(&parts[i], &parts[order[at - 1]]); at--) order[at] = order[at - 1];
        order[at] = i;
    }
    out->n_ranges = 0;
    out->bytes = 0;
    for (int i = 0; i < n; i++) {
        const mox_extent *e = &parts[order[i]];
        int32_t last = out->n_ranges - 1;
        const int64_t end = last < 0 ? 0 : out->ranges[last].offset + out->ranges[last].bytes;
        if (last < 0 || out->ranges[last].file != e->file || page_down(e->offset) > page_up(end)) {
            last = out->n_ranges++;
            out->ranges[last].file = e->file;
            out->ranges[last].offset = e->offset;
            out->ranges[last].bytes = e->bytes;
            out->ranges[last].at = out->bytes;
        } else {
            out->ranges[last].bytes = mox_max_i64(end, e->offset + e->bytes) - out->ranges[last].offset;
        }
        const int64_t page = page_down(out->ranges[last].offset);
        out->part_at[order[i]] = out->ranges[last].at + e->offset - page;
        out->bytes = out->ranges[last].at + page_up(out->ranges[last].offset + out->ranges[last].bytes) - page;
    }
}

void mox_expert_place_reads(const mox_expert_place *p, uint8_t *slot, mox_read_range out[MOX_EXPERT_PARTS])
{
    for (int32_t i = 0; i < p->n_ranges; i++)
        out[i] = (mox_read_range){.file = p->ranges[i].file, .offset = p->ranges[i].offset, .bytes = p->ranges[i].bytes,
                                  .dst = slot + p->ranges[i].at + p->ranges[i].offset % MOX_READ_ALIGN};
}

void mox_expert_place_views(const mox_expert_place *p, const mox_expert_weights *w, const uint8_t *slot, const mox_residency *r,
                            mox_expert *out)
{
    const mox_weight *from[] = {&w->gate, &w->up, &w->down};
    mox_mat *to[] = {&out->gate, &out->up, &out->down};
    for (int i = 0; i < 3; i++) {
        const int64_t *at = &p->part_at[3 * i];
        *to[i] = mox_residency_mat(r, from[i]);
        to[i]->w = slot + at[0];
        if (at[1] >= 0) to[i]->scales = slot + at[1];
        if (at[2] >= 0) to[i]->biases = slot + at[2];
    }
}

int64_t mox_model_expert_slot_bytes(const mox_model *m)
{
    int64_t most = 0;
    for (int64_t layer = 0; layer < m->dims.n_layers; layer++) {
        for (int64_t i = 0; m->layers[layer].experts && i < m->n_experts; i++) {
            mox_expert_place p;
            mox_expert_place_find(&m->layers[layer].experts[i], &p);
            most = mox_max_i64(most, p.bytes);
        }
    }
    return most;
}
