/* dev/emu/tile.c -- what tile products and delayed copies mean.
 *
 * A copy in flight is a store at any moment from its beginning to the wait: it is noted as one
 * at both ends, and between them its target is full of NaNs. */
#include "dev/emu/tile.h"

#include "dev/emu/internal.h"
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

/* ---- products ---- */

void mox_emu_mma(mox_emu_tile_c *c, mox_emu_tile_a a, mox_emu_tile_b b, const char *site)
{
    mox_emu_thread *t = &((mox_emu *)mox_emu_now)->threads[mox_emu_now->thread];
    t->a = &a;
    t->b = &b;
    t->c = c;
    (void)mox_emu_lanes(MOX_EMU_MMA, 0, 0, site);
}

void mox_emu_finish_mma(mox_emu_thread *wave)
{
    double a[16][16], b[16][16];
    for (int32_t lane = 0; lane < MOX_EMU_LANES; lane++)
        for (int32_t i = 0; i < 8; i++) {
            a[mox_emu_tile_row(lane, i)][mox_emu_tile_col(lane, i)] = (double)mox_f16_to_f32(wave[lane].a->h[i]);
            b[mox_emu_tile_row(lane, i)][mox_emu_tile_col(lane, i)] = (double)mox_f16_to_f32(wave[lane].b->h[i]);
        }
    for (int32_t lane = 0; lane < MOX_EMU_LANES; lane++)
        for (int32_t i = 0; i < 8; i++) {
            const int32_t row = mox_emu_tile_row(lane, i), col = mox_emu_tile_col(lane, i);
            double sum = (double)wave[lane].c->v[i];
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][col];
            wave[lane].c->v[i] = (float)sum;
        }
}

void mox_emu_mma_fragments(float *c, const uint32_t fragments[6], const char *site)
{
    mox_emu_thread *t = &((mox_emu *)mox_emu_now)->threads[mox_emu_now->thread];
    t->fragments = fragments;
    t->sums = c;
    (void)mox_emu_lanes(MOX_EMU_FRAGMENTS, 0, 0, site);
}

static float of_pair(uint32_t pair, int32_t k) { return mox_f16_to_f32((uint16_t)(pair >> (k % 2 * 16))); }

/* Where lanes have their numbers is in gpu.h.  A sum is rounded after every product. */
void mox_emu_finish_fragments(mox_emu_thread *wave)
{
    float a[16][16], b[16][8];
    for (int32_t lane = 0; lane < MOX_EMU_LANES; lane++)
        for (int32_t k = 0; k < 2; k++) {
            const uint32_t *f = wave[lane].fragments;
            const int32_t g = lane / 4, col = lane % 4 * 2 + k;
            for (int32_t i = 0; i < 4; i++) a[g + i % 2 * 8][col + i / 2 * 8] = of_pair(f[i], k);
            for (int32_t i = 0; i < 2; i++) b[col + i * 8][g] = of_pair(f[4 + i], k);
        }
    for (int32_t lane = 0; lane < MOX_EMU_LANES; lane++)
        for (int32_t i = 0; i < 4; i++) {
            const int32_t row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
            for (int32_t k = 0; k < 16; k++) wave[lane].sums[i] += a[row][k] * b[k][col];
        }
}

/* Joins the four lanes of a row, by distances 2 and 1 of their columns. */
void mox_emu_finish_row(mox_emu_thread *wave, bool is_sum)
{
    float v[8][4];
    for (int32_t lane = 0; lane < MOX_EMU_LANES; lane++)
        v[mox_emu_tile_row(lane, 0)][mox_emu_tile_col(lane, 0) / 2] = mox_bits_f32(wave[lane].bits);
    for (int32_t lane = 0; lane < MOX_EMU_LANES; lane++) {
        const float *r = v[mox_emu_tile_row(lane, 0)];
        const float joined = is_sum ? (r[0] + r[2]) + (r[1] + r[3]) : fmaxf(fmaxf(r[0], r[2]), fmaxf(r[1], r[3]));
        wave[lane].bits = mox_f32_bits(joined);
    }
}

/* ---- copies ---- */

static mox_emu_thread *this_thread(void) { return &((mox_emu *)mox_emu_now)->threads[mox_emu_now->thread]; }

enum { QUAD_BYTES = 16, PAIR_BYTES = 8 };

static void begin_copy(const void *to, const void *from, size_t bytes, const char *site)
{
    mox_emu_thread *t = this_thread();
    if (t->n_copies == MOX_EMU_COPIES_MAX) mox_emu_fail(MOX_EMU_COPIES, to, 0, "copy", site);
    if (from) (void)mox_emu_read(from, bytes, site);
    memset(mox_emu_write(to, bytes, site), 0xFF, bytes);
    t->copies[t->n_copies++] = (mox_emu_flight){to, from, bytes, t->n_batches};
}
void mox_emu_copy_quad(const void *to, const void *from, bool there, const char *site)
{
    begin_copy(to, there ? from : NULL, QUAD_BYTES, site);
}
void mox_emu_copy_pair(const void *to, const void *from, const char *site) { begin_copy(to, from, PAIR_BYTES, site); }

void mox_emu_copy_commit(void) { this_thread()->n_batches++; }

void mox_emu_copy_wait(int32_t n, const char *site)
{
    mox_emu_thread *t = this_thread();
    int32_t kept = 0;
    for (int32_t i = 0; i < t->n_copies; i++) {
        const mox_emu_flight copy = t->copies[i];
        if (copy.batch >= t->n_batches - n) {
            t->copies[kept++] = copy;
            continue;
        }
        void *to = mox_emu_write(copy.to, copy.bytes, site);
        if (copy.from) memcpy(to, mox_emu_read(copy.from, copy.bytes, site), copy.bytes);
        else memset(to, 0, copy.bytes);
    }
    t->n_copies = kept;
}
