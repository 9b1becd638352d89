/* ops/matmul.c -- checked entries of products with weights. */
#include "ops/entry.h"

int64_t mox_matmul_scratch(int64_t n, int64_t cols)
{
    /* The widest form is f32 with a sum per 32 columns, padded to whole vectors. */
    int64_t wide, bytes;
    if (n < 0 || cols < 0 || !mox_add_i64(cols, 127, &wide)) return -1;
    wide = wide / 128 * 128;
    if (!mox_mul_i64(wide, 4, &bytes) || !mox_add_i64(bytes, (wide / 32 + 16) * 8 + 64, &bytes) || !mox_mul_i64(n, bytes, &bytes))
        return -1;
    return bytes;
}

/* Up to so many tokens a product reads memory more than it computes. */
enum { FEW_TOKENS = 4 };

/* Few tokens: a long enough run of memory (128 KiB) that streaming it is at full speed, or a quarter of a small matrix
 * unless that is not worth waking a thread for (32 KiB).
 * Many: enough arithmetic, or a quarter of a small matrix, in whole tiles of 16 rows. */
int64_t mox_matmul_grain(const mox_mat *w, int64_t tokens)
{
    if (tokens <= FEW_TOKENS) {
        const int64_t bytes = mox_max_i64(mox_mat_row_bytes(&w->layout, w->cols), 1);
        const int64_t rows = mox_min_i64(131072 / bytes, mox_max_i64(w->rows / 4, 32768 / bytes));
        return (mox_max_i64(rows, 1) + 7) / 8 * 8;
    }
    const int64_t rows = mox_min_i64((1 << 21) / mox_max_i64(w->cols, 1) / tokens, w->rows / 4);
    return (mox_max_i64(rows, 1) + 15) / 16 * 16;
}

/* Tokens that one thread prepares at a time: neighbours, because those of one block (of 4, 8, 12 or 16) share cache
 * lines. */
static int64_t prepare_grain(int64_t n) { return n < 192 ? 12 : 96; }

/* Levels that prepare activations need the memory for it. */
static mox_status check_scratch(const mox_check *c, bool prepares, const void *scratch, int64_t n)
{
    if (!prepares || n == 0 || scratch) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "scratch is NULL");
}

static mox_matmul_how how_of(const mox_exec *e)
{
    return (mox_matmul_how){.precision = e->precision, .deterministic = e->deterministic, .by_rows = e->kern->by_rows,
                            .stripes = e->kern->stripes};
}

/* Checks a product; *args is how the kernels get it. */
static mox_status begin_product(const mox_exec *e, const mox_matmul_args *a, mox_matmul_args *args, mox_err *err)
{
    const mox_check c = {"matmul", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_mat(&c, "w", &a->w));
    MOX_TRY(mox_check_vec(&c, "bias", &a->bias, a->w.rows, true));
    MOX_TRY(mox_check_rows(&c, "x", a->x, a->n, a->w.cols, a->x_stride));
    MOX_TRY(mox_check_rows(&c, "y", a->y, a->n, a->w.rows, a->y_stride));
    MOX_TRY(check_scratch(&c, e->kern->matmul_prepare != NULL, a->scratch, a->n));
    *args = *a;
    args->how = how_of(e);
    if (a->exact) args->how.precision = MOX_PRECISION_EXACT;
    return MOX_OK;
}

mox_status mox_op_matmul(const mox_exec *e, const mox_matmul_args *a, mox_err *err)
{
    mox_matmul_args args;
    MOX_TRY(begin_product(e, a, &args, err));
    if (a->n == 0) return MOX_OK;
    if (e->kern->matmul_prepare) mox_run_matmul_prepare(e, &args, a->n, prepare_grain(a->n));
    mox_run_matmul(e, &args, a->w.rows, mox_matmul_grain(&a->w, a->n));
    return MOX_OK;
}

/* Whether activations prepared for one layout serve the other. */
static bool are_alike(const mox_mat_layout *a, const mox_mat_layout *b)
{
    return a->kind == b->kind && a->bits == b->bits && a->group == b->group;
}

/* Several products of one x as one list of rows. */
typedef struct product_list {
    mox_matmul_fn *kernel;
    const mox_matmul_args *a;
    int64_t n;
} product_list;

static void list_job(const void *user, int64_t begin, int64_t end)
{
    const product_list *l = user;
    for (int64_t i = 0, first = 0; i < l->n; first += l->a[i++].w.rows) {
        const int64_t from = mox_max_i64(begin, first), to = mox_min_i64(end, first + l->a[i].w.rows);
        if (from < to) l->kernel(&l->a[i], from - first, to - first);
    }
}

/* Whether activations that were prepared for one product serve the other. */
static bool share_acts(const mox_matmul_args *a, const mox_matmul_args *b)
{
    return a->x == b->x && a->n == b->n && a->x_stride == b->x_stride && a->scratch == b->scratch && a->exact == b->exact &&
           a->w.cols == b->w.cols && are_alike(&a->w.layout, &b->w.layout);
}

mox_status mox_op_matmul_list(const mox_exec *e, const mox_matmul_args *a, int64_t n, mox_err *err)
{
    mox_matmul_args args[MOX_MATMUL_LIST];
    const mox_check c = {"matmul_list", err};
    if (n < 0 || n > MOX_MATMUL_LIST) return mox_refuse(&c, MOX_E_ARG, "%lld products", (long long)n);
    bool shared = n > 0 && a[0].n > 0;
    for (int64_t i = 1; i < n; i++) shared = shared && share_acts(&a[0], &a[i]);
    if (!shared) {
        for (int64_t i = 0; i < n; i++) MOX_TRY(mox_op_matmul(e, &a[i], err));
        return MOX_OK;
    }
    int64_t rows = 0;
    for (int64_t i = 0; i < n; i++) {
        MOX_TRY(begin_product(e, &a[i], &args[i], err));
        if (!mox_add_i64(rows, a[i].w.rows, &rows)) return mox_refuse(&c, MOX_E_ARG, "too many rows");
    }
    if (e->kern->matmul_prepare) mox_run_matmul_prepare(e, &args[0], args[0].n, prepare_grain(args[0].n));
    const product_list list = {.kernel = e->kern->matmul, .a = args, .n = n};
    mox_pool_run_even(e->pool, list_job, &list, rows, mox_matmul_grain(&a[0].w, a[0].n));
    return MOX_OK;
}

/* What the two grouped operations have in common. */
typedef struct groups {
    int64_t n;
    const mox_mat *w, *w2; /* w2 may be NULL */
    const int64_t *offsets;
    const int32_t *x_row, *y_row;
    const float *x, *y;
    int64_t x_stride, y_stride, n_x_rows, n_y_rows;
} groups;

static mox_status check_shapes(const mox_check *c, const char *name, const mox_mat *w, const groups *g)
{
    for (int64_t i = 0; i < g->n; i++) {
        MOX_TRY(mox_check_mat(c, name, &w[i]));
        if (w[i].rows != g->w[0].rows || w[i].cols != g->w[0].cols)
            return mox_refuse(c, MOX_E_ARG, "%s[%lld] is [%lld, %lld], not [%lld, %lld] as the first matrix", name,
                              (long long)i, (long long)w[i].rows, (long long)w[i].cols, (long long)g->w[0].rows,
                              (long long)g->w[0].cols);
    }
    return MOX_OK;
}

/* A row list, or for NULL the pairs themselves, stays inside its buffer. */
static mox_status check_row_list(const mox_check *c, const char *name, const int32_t *list, int64_t n_pairs,
                                 int64_t bound)
{
    if (list) return mox_check_ids(c, name, list, n_pairs, bound);
    if (n_pairs <= bound) return MOX_OK;
    return mox_refuse(c, MOX_E_ARG, "%s: %lld pairs but only %lld rows", name, (long long)n_pairs, (long long)bound);
}

/* *units is 0 when there is nothing to do; *largest, where it is asked for: pairs of the largest group. */
static mox_status check_groups(const mox_check *c, const groups *g, int64_t *units, int64_t *grain, int64_t *largest)
{
    *units = 0;
    if (largest) *largest = 0;
    *grain = 1;
    MOX_TRY(mox_check_size(c, "n_groups", g->n, 0));
    if (g->n == 0) return MOX_OK;
    MOX_TRY(mox_check_array(c, "offsets", g->offsets, g->n, (int64_t)sizeof *g->offsets));
    MOX_TRY(mox_check_array(c, g->w2 ? "gate" : "w", g->w, g->n, (int64_t)sizeof *g->w));
    MOX_TRY(check_shapes(c, g->w2 ? "gate" : "w", g->w, g));
    if (g->w2) MOX_TRY(check_shapes(c, "up", g->w2, g));
    if (g->offsets[0] != 0) return mox_refuse(c, MOX_E_ARG, "offsets do not begin with 0");
    int64_t most = 0; /* pairs of a group */
    for (int64_t i = 0; i < g->n; i++) {
        if (g->offsets[i + 1] < g->offsets[i])
            return mox_refuse(c, MOX_E_ARG, "offsets[%lld] is less than the one before it", (long long)i + 1);
        most = mox_max_i64(most, g->offsets[i + 1] - g->offsets[i]);
    }
    const int64_t n_pairs = g->offsets[g->n], rows = g->w[0].rows, cols = g->w[0].cols;
    MOX_TRY(mox_check_rows(c, "x", g->x, g->n_x_rows, cols, g->x_stride));
    MOX_TRY(mox_check_rows(c, "y", g->y, g->n_y_rows, rows, g->y_stride));
    MOX_TRY(check_row_list(c, "x_row", g->x_row, n_pairs, g->n_x_rows));
    MOX_TRY(check_row_list(c, "y_row", g->y_row, n_pairs, g->n_y_rows));
    MOX_TRY(mox_check_product(c, "w", g->n, rows, units));
    /* Groups that mostly stream take long runs of memory.  Groups that compute are cut by
     * the largest of them, so that a popular expert at the end keeps no thread waiting. */
    const int64_t mean = n_pairs / g->n;
    if (largest) *largest = most;
    *grain = mox_matmul_grain(&g->w[0], mean <= FEW_TOKENS ? mean : most);
    if (n_pairs == 0) *units = 0;
    return MOX_OK;
}

mox_status mox_op_matmul_grouped(const mox_exec *e, const mox_matmul_grouped_args *a, mox_err *err)
{
    const mox_check c = {"matmul_grouped", err};
    const groups g = {a->n_groups, a->w,        NULL,        a->offsets,  a->x_row,   a->y_row,
                      a->x,        a->y,        a->x_stride, a->y_stride, a->n_x_rows, a->n_y_rows};
    int64_t units, grain;
    MOX_TRY(check_groups(&c, &g, &units, &grain, NULL));
    if (units == 0) return MOX_OK;
    const int64_t n_pairs = a->offsets[a->n_groups];
    MOX_TRY(check_scratch(&c, e->kern->matmul_grouped_prepare != NULL, a->scratch, n_pairs));
    mox_matmul_grouped_args args = *a;
    args.how = how_of(e);
    if (e->kern->matmul_grouped_prepare) mox_run_matmul_grouped_prepare(e, &args, n_pairs, prepare_grain(n_pairs));
    mox_run_matmul_grouped(e, &args, units, grain);
    return MOX_OK;
}

static bool all_alike(const mox_mat *w, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (!are_alike(&w[i].layout, &w[0].layout)) return false;
    return true;
}

mox_status mox_op_gate_up_swiglu(const mox_exec *e, const mox_gate_up_swiglu_args *a, mox_err *err)
{
    const mox_check c = {"gate_up_swiglu", err};
    MOX_TRY(mox_check_size(&c, "n_groups", a->n_groups, 0));
    MOX_TRY(mox_check_array(&c, "up", a->up, a->n_groups, (int64_t)sizeof *a->up));
    const groups g = {a->n_groups, a->gate,     a->up,       a->offsets,  a->x_row,   a->y_row,
                      a->x,        a->y,        a->x_stride, a->y_stride, a->n_x_rows, a->n_y_rows};
    int64_t units, grain, largest;
    MOX_TRY(check_groups(&c, &g, &units, &grain, &largest));
    if (units == 0) return MOX_OK;
    const int64_t n_pairs = a->offsets[a->n_groups];
    MOX_TRY(check_scratch(&c, e->kern->gate_up_swiglu_prepare != NULL, a->scratch, n_pairs));
    mox_gate_up_swiglu_args args = *a;
    args.how = how_of(e);
    args.most_alike = all_alike(a->gate, a->n_groups) ? largest : 0;
    if (e->kern->gate_up_swiglu_prepare) mox_run_gate_up_swiglu_prepare(e, &args, n_pairs, prepare_grain(n_pairs));
    mox_run_gate_up_swiglu(e, &args, units, grain);
    return MOX_OK;
}

mox_status mox_op_embed(const mox_exec *e, const mox_embed_args *a, mox_err *err)
{
    const mox_check c = {"embed", err};
    MOX_TRY(mox_check_size(&c, "n", a->n, 0));
    MOX_TRY(mox_check_mat(&c, "table", &a->table));
    MOX_TRY(mox_check_i32(&c, "ids", a->ids, a->n));
    MOX_TRY(mox_check_rows(&c, "out", a->out, a->n, a->table.cols, a->out_stride));
    MOX_TRY(mox_check_ids(&c, "ids", a->ids, a->n, a->table.rows));
    if (a->table.cols > 0) mox_run_embed(e, a, a->n, 1);
    return MOX_OK;
}
