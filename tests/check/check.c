/* tests/check/check.c -- the program: walks operations x ISA levels.
 *
 *   check [--test GLOB] [--level NAME] [--seed N] [--bench] [--planted] [--wide] [--list]
 *   check --device NAME [--test GLOB] [--seed N] [--planted]      (device.h)
 *
 * Every test runs in a process of its own, so that a crash or a hang in a kernel is
 * the failure of that test and not of the run.  --planted turns the question round:
 * with each planted bug in place of the kernel (of the reference, or of --level) the
 * tests must fail, which proves that they look closely enough. */
#include "check.h"
#ifdef CK_DEVICES
#include "device.h"
#endif

#if defined(__x86_64__)
#include "ops/x86/x86.h"
#endif

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS_MAX = 120, POOL_THREADS = 2 };

ck_state ck;

static const ck_op *const tables[] = {ck_ops_matmul, ck_ops_pointwise, ck_ops_router, ck_ops_moe,
    ck_ops_norm, ck_ops_rope, ck_ops_attention, ck_ops_cache, ck_ops_mla, ck_ops_deltanet,
    ck_ops_delta_rule, ck_ops_layer,
#ifdef CK_DEVICES
    ck_ops_sequences,
#endif
};
enum { N_TABLES = sizeof tables / sizeof *tables };

static struct {
    const char *glob, *level, *device;
    uint64_t seed;
    bool bench, planted, list, wide;
} options = {.glob = "*", .seed = 1};

static int n_passed, n_failed, n_skipped;
static ck_tally *tally; /* shared with the processes of the tests */

/* Levels of the processor have no sequences. */
static bool wanted(const ck_op *op)
{
#ifdef CK_DEVICES
    for (const ck_op *s = ck_ops_sequences; s->name && !options.device; s++)
        if (s == op) return false;
#endif
    return fnmatch(options.glob, op->name, 0) == 0;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Levels whose instructions this processor lacks, but can do without: the products of amx, in plain C. */
static bool is_emulated(int level)
{
#if defined(__x86_64__)
    return strcmp(mox_isa_name(level), "amx") == 0 && !mox_isa_available(level) && mox_isa_available(level - 1);
#else
    (void)level;
    return false;
#endif
}

/* Whether the kernel is that of the level below, and is checked there alone: all of amx but its products. */
static bool is_inherited(const ck_op *op, int level)
{
#if defined(__x86_64__)
#define NAME(kernel) #kernel,
    static const char *const kernels[] = {MOX_SIMD_LIST(NAME) NULL}, *const own[] = {MOX_SQUARES_LIST(NAME) NULL};
#undef NAME
    if (strcmp(mox_isa_name(level), "amx") != 0) return false;
    for (const char *const *name = own; *name; name++)
        if (strcmp(*name, op->name) == 0) return false;
    for (const char *const *name = kernels; *name; name++)
        if (strcmp(*name, op->name) == 0) return true;
#else
    (void)op;
    (void)level;
#endif
    return false;
}

static void init_kernels(mox_kern *k, int level)
{
    mox_kern_init(k, level);
#if defined(__x86_64__)
#define EMULATE(op) k->op = mox_##op##_squares;
    if (is_emulated(level)) { MOX_SQUARES_LIST(EMULATE) }
#undef EMULATE
#endif
}

/* In the child: the whole life of one test. */
static int run_test(const ck_op *op, int level, ck_plant_fn *plant)
{
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)alarm(SECONDS_MAX);
    mox_kern kern, below, ref;
    init_kernels(&kern, level);
    mox_kern_init(&below, level > 0 ? level - 1 : 0);
    mox_kern_init(&ref, 0);
    if (plant) plant(&kern);
    mox_pool *pool = NULL;
    if (mox_pool_create(&pool, &(mox_pool_opts){.n_threads = POOL_THREADS}, NULL) != MOX_OK) return 1;
    ck = (ck_state){.exec = {.kern = &kern, .pool = pool, .precision = MOX_PRECISION_EXACT}, .ref = {.kern = &ref}, .at_ref = level == 0,
                    .wide = options.wide, .below = level > 0 ? &below : NULL, .tally = tally};
    const ck_where where = {op->name, mox_isa_name(level), options.seed, plant != NULL, false};
    ck_begin(&where);
    op->test();
    ck_end();
    if (options.bench && op->bench && !plant && !is_emulated(level)) {
        ck_begin(&(ck_where){op->name, mox_isa_name(level), options.seed, false, true});
        op->bench();
        ck_end();
    }
    mox_pool_destroy(&pool);
    return 0;
}

/* True when the test ran to its end without a failure. */
static bool passes(const ck_op *op, int level, ck_plant_fn *plant)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) {
        printf("FAIL %s: no process: %s\n", op->name, strerror(errno));
        return false;
    }
    if (child == 0) {
        if (plant && !freopen("/dev/null", "w", stderr)) _exit(1); /* a planted crash is not news */
        exit(run_test(op, level, plant));
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (WIFSIGNALED(status) && !plant)
        printf("FAIL %s at %s, seed %llu: killed by signal %d (%s)\n", op->name, mox_isa_name(level),
               (unsigned long long)options.seed, WTERMSIG(status), strsignal(WTERMSIG(status)));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void check_level(int level)
{
    for (int t = 0; t < N_TABLES; t++)
        for (const ck_op *op = tables[t]; op->name; op++) {
            if (!wanted(op) || is_inherited(op, level)) continue;
            if (!mox_isa_available(level) && !is_emulated(level)) {
                n_skipped++;
                continue;
            }
            const double start = seconds();
            const bool passed = passes(op, level, NULL);
            *(passed ? &n_passed : &n_failed) += 1;
            printf("%-4s %-10s %-28s %6.2f s\n", passed ? "ok" : "FAIL", mox_isa_name(level), op->name,
                   seconds() - start);
        }
}

static void check_plants(int level)
{
    for (int t = 0; t < N_TABLES; t++)
        for (const ck_op *op = tables[t]; op->name; op++) {
            if (!wanted(op)) continue;
            const int most = (int)(sizeof op->plants / sizeof *op->plants);
            int n = 0;
            for (; n < most && op->plants[n]; n++) {
                const bool caught = !passes(op, level, op->plants[n]);
                *(caught ? &n_passed : &n_failed) += 1;
                if (!caught) printf("FAIL %s: planted bug %d was not caught\n", op->name, n + 1);
            }
            if (n > 0) continue;
            printf("FAIL %s: has no planted bug\n", op->name);
            n_failed++;
        }
    printf("%d of %d planted bugs caught\n", n_passed, n_passed + n_failed);
}

#ifdef CK_DEVICES

/* ---- a device as the one level ---- */

/* In the child. */
static int run_on_device(const ck_op *op, const ck_device_plant *plant)
{
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)alarm(SECONDS_MAX);
    mox_kern kern, ref;
    mox_kern_init(&kern, 0);
    mox_kern_init(&ref, 0);
    ck = (ck_state){.exec = {.kern = &kern, .precision = MOX_PRECISION_EXACT}, .ref = {.kern = &ref}, .tally = tally, .on_device = true};
    ck_begin(&(ck_where){op->name, options.device, options.seed, plant != NULL, false});
    if (!ck_device_open(options.device, &kern, plant)) return 1;
    op->test();
    ck_device_close();
    ck_end();
    return 0;
}

static bool passes_on_device(const ck_op *op, const ck_device_plant *plant)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) exit(run_on_device(op, plant));
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (child > 0 && WIFSIGNALED(status) && !plant)
        printf("FAIL %s on %s, seed %llu: killed by signal %d (%s)\n", op->name, options.device, (unsigned long long)options.seed,
               WTERMSIG(status), strsignal(WTERMSIG(status)));
    return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Each planted bug of the operation must be noticed, and there must be one. */
static void check_device_plants(const ck_op *op)
{
    int n = 0;
    for (const ck_device_plant *p = ck_device_plants; p->op; p++) {
        if (strcmp(p->op, op->name) != 0) continue;
        const bool caught = !passes_on_device(op, p);
        *(caught ? &n_passed : &n_failed) += 1;
        n++;
        if (!caught) printf("FAIL %s: planted bug %d of the device was not caught\n", op->name, n);
    }
    if (n > 0) return;
    printf("FAIL %s: has no planted bug for devices\n", op->name);
    n_failed++;
}

static void check_device(void)
{
    for (int t = 0; t < N_TABLES; t++)
        for (const ck_op *op = tables[t]; op->name; op++) {
            if (!wanted(op) || !ck_device_has(op->name)) continue;
            if (options.planted) {
                check_device_plants(op);
                continue;
            }
            const double start = seconds();
            const bool passed = passes_on_device(op, NULL);
            *(passed ? &n_passed : &n_failed) += 1;
            printf("%-4s %-10s %-28s %6.2f s\n", passed ? "ok" : "FAIL", options.device, op->name, seconds() - start);
        }
}

#endif

static bool tested(const char *name)
{
    for (int t = 0; t < N_TABLES; t++)
        for (const ck_op *op = tables[t]; op->name; op++)
            if (strcmp(op->name, name) == 0) return true;
    return false;
}

/* Every slot of the kernel table has a test. */
static void check_complete(void)
{
    static const char *const names[] = {
#define NAME(op, args) #op,
        MOX_KERN_LIST(NAME)
#undef NAME
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!tested(names[i])) {
            printf("FAIL %s: has no test\n", names[i]);
            n_failed++;
        }
}

static void list_all(void)
{
    for (int level = 0; level < mox_isa_count(); level++)
        printf("level %s%s\n", mox_isa_name(level),
               mox_isa_available(level) ? "" : is_emulated(level) ? " (emulated)" : " (not on this processor)");
    for (int t = 0; t < N_TABLES; t++)
        for (const ck_op *op = tables[t]; op->name; op++)
            if (wanted(op)) printf("%s\n", op->name);
}

static int usage(void)
{
    fprintf(stderr, "usage: check [--test GLOB] [--level NAME] [--seed N] [--bench] [--planted] [--wide] [--list]\n"
                    "       check --device NAME [--test GLOB] [--seed N] [--planted]\n");
    return 2;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        char *end = NULL;
        if (strcmp(argv[i], "--bench") == 0) options.bench = true;
        else if (strcmp(argv[i], "--planted") == 0) options.planted = true;
        else if (strcmp(argv[i], "--wide") == 0) options.wide = true;
        else if (strcmp(argv[i], "--list") == 0) options.list = true;
        else if (!value) return false;
        else if (strcmp(argv[i], "--test") == 0) options.glob = argv[++i];
        else if (strcmp(argv[i], "--level") == 0) options.level = argv[++i];
        else if (strcmp(argv[i], "--device") == 0) options.device = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0) {
            options.seed = strtoull(argv[++i], &end, 10);
            if (end == value || *end) return false;
        } else return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) return usage();
    if (options.list) {
        list_all();
        return 0;
    }
    tally = mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tally == MAP_FAILED) {
        fprintf(stderr, "check: no memory to share: %s\n", strerror(errno));
        return 2;
    }
    printf("seed %llu\n", (unsigned long long)options.seed);
    int only = -1;
    for (int level = 0; options.level && level < mox_isa_count(); level++)
        if (strcmp(options.level, mox_isa_name(level)) == 0) only = level;
    if (options.level && (only < 0 || (options.planted && !mox_isa_available(only) && !is_emulated(only)))) {
        fprintf(stderr, "check: there is no level %s\n", options.level);
        return 2;
    }
    if (options.device) {
#ifdef CK_DEVICES
        check_device();
        for (int i = 0; ck_device_untested(i, tested); i++, n_failed++) printf("FAIL %s: has no test\n", ck_device_untested(i, tested));
#else
        fprintf(stderr, "check: this build has no devices\n");
#endif
    } else if (options.planted) {
        check_plants(options.level ? only : 0);
    } else {
        for (int level = 0; level < mox_isa_count(); level++)
            if (!options.level || level == only) check_level(level);
        if (strcmp(options.glob, "*") == 0) check_complete();
    }
    if (options.bench)
        printf("%d timings compared with the level below, %d slower than it\n", tally->n_compared, tally->n_slower);
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed == 0 && n_passed > 0 ? 0 : 1;
}
