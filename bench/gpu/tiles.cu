/* bench/gpu/tiles.cu -- the tile kernels of dev/gpu on an NVIDIA GPU: right, and how fast?
 *
 * Stands alone: builds with nvcc and needs a GPU, no model.  Every kernel is compared with a
 * plain one that shares no code with it, on fresh random numbers into poisoned memory, and then
 * timed by events at the shapes of Qwen3-30B-A3B with a prompt of 2,048 tokens.  Weights change
 * from run to run, so that they come from memory and not from the cache.
 *
 *   nvcc -arch=sm_90a -std=c++17 -O3 -cudart static -I src -I include bench/gpu/tiles.cu -o tiles */
#include "dev/gpu/flash.h"
#include "dev/gpu/join.h"
#include "dev/gpu/matmul.h"
#include "dev/gpu/share.h"
#include "dev/gpu/sort.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

static void must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    std::printf("FAIL %s: %s\n", what, cudaGetErrorString(e));
    std::exit(1);
}
#define MUST(call) must(call, #call)

template <typename T> static T *take(int64_t n)
{
    void *p;
    MUST(cudaMalloc(&p, (size_t)n * sizeof(T)));
    MUST(cudaMemset(p, 0xFF, (size_t)n * sizeof(T)));
    return (T *)p;
}

/* ---- random numbers ---- */

__host__ __device__ static uint32_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9ull;
    return (uint32_t)(x >> 32 ^ x);
}
__host__ __device__ static float unit(uint64_t x) { return (float)(mix(x) >> 8) / 16777216.0f; }

__global__ void fill_floats(float *p, int64_t n, uint64_t seed, float low, float high)
{
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) p[i] = low + (high - low) * unit(seed * 1000003 + i);
}
__global__ void fill_words(uint32_t *p, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) p[i] = mix(seed * 1000003 + i);
}
__global__ void fill_bf16(uint16_t *p, int64_t n, uint64_t seed, float low, float high)
{
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
        p[i] = (uint16_t)(__float_as_uint(low + (high - low) * unit(seed * 1000003 + i)) >> 16);
}
static float *floats(int64_t n, uint64_t seed, float low, float high)
{
    float *p = take<float>(n);
    fill_floats<<<1024, 256>>>(p, n, seed, low, high);
    return p;
}

/* Affine, 4 bits, groups of 64, values in about [-0.06, 0.06]. */
static mox_gpu_mat affine(int64_t rows, int64_t cols, uint64_t seed)
{
    mox_gpu_mat m = {};
    const int64_t n_scales = rows * cols / 64;
    uint32_t *w = take<uint32_t>(rows * cols / 8);
    uint16_t *scales = take<uint16_t>(n_scales), *biases = take<uint16_t>(n_scales);
    fill_words<<<1024, 256>>>(w, rows * cols / 8, seed);
    fill_bf16<<<1024, 256>>>(scales, n_scales, seed + 1, 0.004f, 0.008f);
    fill_bf16<<<1024, 256>>>(biases, n_scales, seed + 2, -0.05f, -0.04f);
    m.w = (const uint8_t *)w;
    m.scales = (const uint8_t *)scales;
    m.biases = (const uint8_t *)biases;
    m.rows = rows;
    m.cols = cols;
    m.row_bytes = cols / 2;
    m.scale_cols = cols / 64;
    m.kind = MOX_GPU_AFFINE;
    m.bits = 4;
    m.group = 64;
    m.scale_type = MOX_GPU_BF16;
    return m;
}

/* ---- references ---- */

__device__ static float plain_weight(mox_gpu_mat m, int64_t r, int64_t c)
{
    const float code = (float)(m.w[r * m.row_bytes + c / 2] >> (c % 2 * 4) & 15);
    const int64_t g = r * m.scale_cols + c / m.group;
    return code * __uint_as_float((uint32_t)((const uint16_t *)m.scales)[g] << 16) + __uint_as_float((uint32_t)((const uint16_t *)m.biases)[g] << 16);
}
__device__ static double plain_dot(mox_gpu_mat m, int64_t r, const float *x)
{
    double sum = 0;
    for (int64_t c = 0; c < m.cols; c += 32) {
        float part = 0;
        for (int i = 0; i < 32; i++) part += plain_weight(m, r, c + i) * x[c + i];
        sum += part;
    }
    return sum;
}
/* err += (got - want)^2, norm += want^2 over a sample of the outputs; NaN stays NaN. */
__global__ void compare_product(mox_gpu_mat m, const float *x, const float *y, int64_t n, int64_t step, double *sums)
{
    const int64_t i = (blockIdx.x * 256ll + threadIdx.x) * step, t = i / m.rows, r = i % m.rows;
    if (t >= n) return;
    const double want = plain_dot(m, r, x + t * m.cols), off = y[i] - want;
    atomicAdd(&sums[0], off * off);
    atomicAdd(&sums[1], want * want);
}
__global__ void compare_gate_up(const mox_gpu_mat *gate, const mox_gpu_mat *up, const int *ids, int64_t k, const float *x, const float *y,
                                int64_t n, int64_t step, double *sums)
{
    const int64_t i = (blockIdx.x * 256ll + threadIdx.x) * step, rows = gate[0].rows, pair = i / rows, r = i % rows;
    if (pair >= n) return;
    const float *row = x + pair / k * gate[0].cols;
    const double g = plain_dot(gate[ids[pair]], r, row), u = plain_dot(up[ids[pair]], r, row), want = g / (1 + exp(-g)) * u;
    const double off = y[i] - want;
    atomicAdd(&sums[0], off * off);
    atomicAdd(&sums[1], want * want);
}
__global__ void compare_down(const mox_gpu_mat *down, const int *ids, const float *mid, const float *y, int64_t n, int64_t step, double *sums)
{
    const int64_t i = (blockIdx.x * 256ll + threadIdx.x) * step, rows = down[0].rows, pair = i / rows, r = i % rows;
    if (pair >= n) return;
    const double want = plain_dot(down[ids[pair]], r, mid + pair * down[0].cols), off = y[i] - want;
    atomicAdd(&sums[0], off * off);
    atomicAdd(&sums[1], want * want);
}

/* A thread per row and head: two passes over its keys. */
__global__ void compare_attention(mox_gpu_attention p, mox_gpu_span s, int64_t step, double *sums)
{
    const int64_t i = (blockIdx.x * 64ll + threadIdx.x) * step, row = i / p.heads, head = i % p.heads, kv = head / (p.heads / p.kv_heads);
    if (row >= s.n) return;
    const float *q = p.q + row * p.q_stride + head * p.q_head_stride;
    const auto at = [&](const mox_gpu_cache &c, int64_t j) {
        return (const __half *)c.data + s.pages[j / c.page_len] * c.page_stride + j % c.page_len * c.token_stride + kv * c.head_stride;
    };
    double denom = 0, sum[8] = {0}; /* of a few elements */
    float max = -INFINITY;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j <= s.pos0 + row; j++) {
            float dot = 0;
            for (int64_t d = 0; d < p.dim; d++) dot += q[d] * __half2float(at(p.k, j)[d]);
            dot *= p.scale;
            if (pass == 0) max = fmaxf(max, dot);
            if (pass == 0) continue;
            const double w = exp((double)(dot - max));
            denom += w;
            for (int e = 0; e < 8; e++) sum[e] += w * __half2float(at(p.v, j)[(e * 17 + row) % p.dim]);
        }
    for (int e = 0; e < 8; e++) {
        const double want = sum[e] / denom, off = p.out[row * p.out_stride + head * p.out_head_stride + (e * 17 + row) % p.dim] - want;
        atomicAdd(&sums[0], off * off);
        atomicAdd(&sums[1], want * want);
    }
}
__global__ void fill_halves(uint16_t *p, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
        p[i] = __half_as_ushort(__float2half_rn(2 * unit(seed * 1000003 + i) - 1));
}

static double *sums;
static bool all_right = true;
static void verdict(const char *what, double bound)
{
    double s[2];
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(s, sums, sizeof s, cudaMemcpyDeviceToHost));
    MUST(cudaMemset(sums, 0, 16));
    const double rel = std::sqrt(s[0] / s[1]);
    const bool right = rel < bound && s[1] > 0;
    all_right = all_right && right;
    std::printf("%-28s relative error %.2e (%s)\n", what, rel, right ? "right" : "WRONG");
}

/* ---- time ---- */

/* Median of many, microseconds; f gets a number that changes. */
static double micros(const std::function<void(int)> &f)
{
    cudaEvent_t a, b;
    MUST(cudaEventCreate(&a));
    MUST(cudaEventCreate(&b));
    std::vector<float> all;
    for (int i = 0; i < 33; i++) {
        MUST(cudaEventRecord(a));
        f(i);
        MUST(cudaEventRecord(b));
        MUST(cudaEventSynchronize(b));
        float ms;
        MUST(cudaEventElapsedTime(&ms, a, b));
        if (i >= 3) all.push_back(ms);
    }
    MUST(cudaGetLastError());
    std::sort(all.begin(), all.end());
    return all[all.size() / 2] * 1e3;
}
static double per_layer = 0; /* microseconds */
static void report(const char *what, double us, double flop, bool counts)
{
    std::printf("%-28s %9.1f us %8.1f TFLOP/s\n", what, us, flop / us * 1e-6);
    if (counts) per_layer += us;
}

/* ---- the shapes ---- */

enum { N = 2048, HIDDEN = 2048, WIDTH = 768, EXPERTS = 128, SLOTS = 8, PAIRS = N * SLOTS, COPIES = 12 };
enum { TILES = PAIRS / MOX_GPU_TILE_TOKENS + EXPERTS };

typedef struct halves {
    uint16_t *x;
    float *scale;
} halves;
static halves halve(const float *x, int64_t n, int64_t cols, halves h)
{
    mox_gpu_half_rows p = {};
    p.x = x;
    p.f16 = h.x;
    p.scale = h.scale;
    p.cols = p.x_stride = p.half_stride = cols;
    mox_gpu_kernel_half_rows<<<(unsigned)n, 128>>>(p);
    return h;
}
static halves room(int64_t n, int64_t cols) { return {take<uint16_t>(n * cols), take<float>(n)}; }

static void bench_dense(const char *name, int64_t rows, int64_t cols, bool q4)
{
    std::vector<mox_gpu_mat> w;
    for (int i = 0; i < COPIES; i++) w.push_back(affine(rows, cols, 100 + 10 * i));
    const float *x = floats(N * cols, 7, -3, 3);
    float *y = take<float>(N * rows);
    const halves h = halve(x, N, cols, room(N, cols));
    const auto go = [&](int i) {
        mox_gpu_matmul p = {};
        p.w = w[i % COPIES];
        p.x = h.x;
        p.x_scale = h.scale;
        p.y = y;
        p.n = N;
        p.rows = p.y_stride = rows;
        p.x_stride = cols;
        const dim3 grid(N / MOX_GPU_TILE_TOKENS, (unsigned)((rows + MOX_GPU_TILE_ROWS - 1) / MOX_GPU_TILE_ROWS));
        if (q4) mox_gpu_kernel_matmul_q4<<<grid, 128>>>(p);
        else mox_gpu_kernel_matmul<<<grid, 128>>>(p);
    };
    go(0);
    compare_product<<<4096, 256>>>(w[0], x, y, N, N * rows / (4096 * 256) + 1, sums);
    verdict(name, 1e-3);
    report(name, micros(go), 2.0 * N * rows * cols, q4);
    for (auto &m : w) cudaFree((void *)m.w), cudaFree((void *)m.scales), cudaFree((void *)m.biases);
}

/* Distinct experts of every token; `skew` makes some of them popular. */
static std::vector<int> choose(double skew)
{
    std::vector<int> ids;
    for (int t = 0; t < N; t++)
        for (int s = 0, tries = 0; s < SLOTS; tries++) {
            const int e = (int)(std::pow((double)unit((uint64_t)t * 977 + tries), 1 + skew) * EXPERTS);
            if (std::find(ids.begin() + t * SLOTS, ids.end(), e) != ids.end()) continue;
            ids.push_back(e);
            s++;
        }
    return ids;
}

static void bench_experts(double skew, bool q4, bool counts)
{
    std::vector<mox_gpu_mat> gate, up, down;
    for (int e = 0; e < EXPERTS; e++) {
        gate.push_back(affine(WIDTH, HIDDEN, 5000 + e * 30));
        up.push_back(affine(WIDTH, HIDDEN, 5010 + e * 30));
        down.push_back(affine(HIDDEN, WIDTH, 5020 + e * 30));
    }
    const auto on_device = [](const std::vector<mox_gpu_mat> &m) {
        mox_gpu_mat *p = take<mox_gpu_mat>(m.size());
        MUST(cudaMemcpy(p, m.data(), m.size() * sizeof m[0], cudaMemcpyHostToDevice));
        return p;
    };
    const mox_gpu_mat *gates = on_device(gate), *ups = on_device(up), *downs = on_device(down);
    const std::vector<int> ids = choose(skew);
    int *dev_ids = take<int>(PAIRS);
    MUST(cudaMemcpy(dev_ids, ids.data(), PAIRS * 4, cudaMemcpyHostToDevice));
    mox_gpu_moe_sort sort = {};
    sort.ids = dev_ids;
    sort.offsets = take<int64_t>(EXPERTS + 1);
    sort.pairs = take<int>(PAIRS);
    sort.n_pairs = PAIRS;
    sort.n_experts = EXPERTS;
    mox_gpu_moe_tiles cut = {};
    cut.offsets = sort.offsets;
    cut.tiles = take<mox_gpu_expert_tile>(TILES);
    cut.n_experts = EXPERTS;
    cut.n_tiles = TILES;
    const float *x = floats(N * HIDDEN, 9, -3, 3);
    const halves hx = room(N, HIDDEN), hm = room(PAIRS, WIDTH);
    float *mid = take<float>(PAIRS * WIDTH), *y = take<float>((int64_t)PAIRS * HIDDEN);
    halve(x, N, HIDDEN, hx);
    const auto do_sort = [&](int) {
        mox_gpu_kernel_moe_sort<<<EXPERTS, 256>>>(sort);
        mox_gpu_kernel_moe_tiles<<<1, 256>>>(cut);
    };
    mox_gpu_experts_tiles g = {};
    g.gate = gates;
    g.up = ups;
    g.tiles = cut.tiles;
    g.x_row = g.y_row = sort.pairs;
    g.x = hx.x;
    g.x_scale = hx.scale;
    g.y = mid;
    g.rows = g.y_stride = WIDTH;
    g.x_stride = HIDDEN;
    g.x_divisor = SLOTS;
    mox_gpu_experts_tiles d = g;
    d.gate = downs;
    d.x = hm.x;
    d.x_scale = hm.scale;
    d.y = y;
    d.rows = d.y_stride = HIDDEN;
    d.x_stride = WIDTH;
    d.x_divisor = 1;
    const auto do_gate_up = [&](int) {
        const dim3 grid(WIDTH / (MOX_GPU_TILE_ROWS / 2), TILES);
        if (q4) mox_gpu_kernel_experts_gate_up_tiles_q4<<<grid, 128>>>(g);
        else mox_gpu_kernel_experts_gate_up_tiles<<<grid, 128>>>(g);
    };
    const auto do_down = [&](int) {
        const dim3 grid(HIDDEN / MOX_GPU_TILE_ROWS, TILES);
        if (q4) mox_gpu_kernel_experts_down_tiles_q4<<<grid, 128>>>(d);
        else mox_gpu_kernel_experts_down_tiles<<<grid, 128>>>(d);
    };
    do_sort(0);
    do_gate_up(0);
    compare_gate_up<<<1024, 256>>>(gates, ups, dev_ids, SLOTS, x, mid, PAIRS, PAIRS * WIDTH / (1024 * 256) + 1, sums);
    verdict(q4 ? "experts gate and up" : "experts gate and up, any", 2e-3);
    halve(mid, PAIRS, WIDTH, hm);
    do_down(0);
    compare_down<<<1024, 256>>>(downs, dev_ids, mid, y, PAIRS, (int64_t)PAIRS * HIDDEN / (1024 * 256) + 1, sums);
    verdict(q4 ? "experts down" : "experts down, any", 1e-3);
    const double flop = 2.0 * PAIRS * WIDTH * HIDDEN;
    char name[64];
    std::snprintf(name, sizeof name, "gate and up, skew %.1f%s", skew, q4 ? "" : ", any");
    report(name, micros(do_gate_up), 2 * flop, counts);
    std::snprintf(name, sizeof name, "down, skew %.1f%s", skew, q4 ? "" : ", any");
    report(name, micros(do_down), flop, counts);
    if (counts) {
        report("sort and tiles", micros(do_sort), 0, true);
        report("half rows of tokens", micros([&](int) { halve(x, N, HIDDEN, hx); }), 0, true);
        report("half rows of pairs", micros([&](int) { halve(mid, PAIRS, WIDTH, hm); }), 0, true);
    }
    for (auto *list : {&gate, &up, &down})
        for (auto &m : *list) cudaFree((void *)m.w), cudaFree((void *)m.scales), cudaFree((void *)m.biases);
}

/* Keys, values and n rows after `past` keys: pages of 64 positions, dealt out in no order. */
static mox_gpu_attention rows_and_cache(int64_t n, int64_t past, mox_gpu_span *span)
{
    enum { HEADS = 32, KV = 4, DIM = 128, PAGE = 64 };
    const int64_t n_pages = (n + past + PAGE - 1) / PAGE, n_cache = n_pages * PAGE * KV * DIM;
    std::vector<int> pages;
    for (int64_t i = 0; i < n_pages; i++) pages.push_back((int)(i ^ 1) < n_pages ? (int)(i ^ 1) : (int)i);
    int *dev_pages = take<int>(n_pages);
    MUST(cudaMemcpy(dev_pages, pages.data(), n_pages * 4, cudaMemcpyHostToDevice));
    *span = {};
    span->n = n;
    span->pos0 = past;
    span->pages = dev_pages;
    mox_gpu_span *spans = take<mox_gpu_span>(1);
    MUST(cudaMemcpy(spans, span, sizeof *span, cudaMemcpyHostToDevice));
    uint16_t *k = take<uint16_t>(n_cache), *v = take<uint16_t>(n_cache);
    fill_halves<<<1024, 256>>>(k, n_cache, 3);
    fill_halves<<<1024, 256>>>(v, n_cache, 4);
    mox_gpu_attention a = {};
    a.k.data = (uint8_t *)k;
    a.k.page_len = PAGE;
    a.k.page_stride = PAGE * KV * DIM;
    a.k.token_stride = DIM;
    a.k.head_stride = PAGE * DIM;
    a.k.type = MOX_GPU_F16;
    a.v = a.k;
    a.v.data = (uint8_t *)v;
    a.q = floats(n * HEADS * DIM, 5, -1.7f, 1.7f);
    a.out = take<float>(n * HEADS * DIM);
    a.spans = spans;
    a.n_spans = 1;
    a.heads = HEADS;
    a.kv_heads = KV;
    a.dim = a.v_dim = DIM;
    a.q_stride = a.out_stride = HEADS * DIM;
    a.q_head_stride = a.out_head_stride = DIM;
    a.scale = 0.3f;
    a.causal = 1;
    a.n_pieces = 1;
    return a;
}

static void bench_flash(int64_t n, int64_t past, bool counts)
{
    mox_gpu_span span;
    mox_gpu_attention_flash f = {};
    f.a = rows_and_cache(n, past, &span);
    f.n_tiles = (n + MOX_GPU_FLASH_ROWS - 1) / MOX_GPU_FLASH_ROWS;
    const auto go = [&](int) { mox_gpu_kernel_attention_flash_128<<<dim3((unsigned)f.a.heads, (unsigned)f.n_tiles), 128>>>(f); };
    go(0);
    compare_attention<<<64, 64>>>(f.a, span, n * f.a.heads / 4096 + 1, sums);
    char name[64];
    std::snprintf(name, sizeof name, "attention, %d after %d", (int)n, (int)past);
    verdict(name, 2e-3);
    report(name, micros(go), 4.0 * (double)(f.a.heads * f.a.dim) * (double)n * ((double)past + n / 2.0), counts);
}

/* One row; the cache of one layer, so that it comes from L2 as far as it fits: a few copies take turns. */
static void bench_share(int64_t past, int64_t n_pieces)
{
    std::vector<mox_gpu_attention> all;
    mox_gpu_span span;
    for (int i = 0; i < 4; i++) {
        all.push_back(rows_and_cache(1, past, &span));
        all[i].n_pieces = n_pieces;
        all[i].parts = take<float>(32 * n_pieces * 130);
    }
    const auto go = [&](int i) {
        const mox_gpu_attention &a = all[i % 4];
        mox_gpu_kernel_attention_share_128<<<dim3(4, 1, (unsigned)n_pieces), 128>>>(a);
        mox_gpu_kernel_attention_join<<<dim3(32, 1, 128 / MOX_GPU_JOIN_WIDE), 128>>>(a);
    };
    go(3);
    compare_attention<<<64, 64>>>(all[3], span, 1, sums);
    char name[64];
    std::snprintf(name, sizeof name, "one row after %d, %d", (int)past, (int)n_pieces);
    verdict(name, 1e-5);
    const double us = micros(go), bytes = 2.0 * 4 * 128 * 2 * (double)past;
    std::printf("%-28s %9.1f us %8.1f GB/s\n", name, us, bytes / us * 1e-3);
}

int main()
{
    cudaDeviceProp prop;
    MUST(cudaGetDeviceProperties(&prop, 0));
    std::printf("%s, %d multiprocessors\n", prop.name, prop.multiProcessorCount);
    sums = take<double>(2);
    MUST(cudaMemset(sums, 0, 16));
    bench_dense("q, k, v", 5120, HIDDEN, true);
    bench_dense("o", HIDDEN, 4096, true);
    bench_dense("q, k, v, any", 5120, HIDDEN, false);
    bench_flash(N, 0, true);
    bench_flash(N, 14336, false);
    bench_flash(1000, 77, false);
    bench_share(16384, 32);
    bench_share(16384, 64);
    bench_share(16384, 128);
    bench_share(1000, 16);
    bench_experts(0, true, true);
    bench_experts(1, true, false);
    bench_experts(0, false, false);
    std::printf("a layer's products: %.1f us, so %.0f tokens/s over 48 layers of nothing else\n", per_layer, N / (per_layer * 48e-6));
    std::printf("%s\n", all_right ? "all right" : "SOMETHING IS WRONG");
    return all_right ? 0 : 1;
}
