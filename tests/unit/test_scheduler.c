/* tests/unit/test_scheduler.c -- many requests at once, on the demo models.
 *
 * What a request says must be what it says alone, whoever else there is and whatever becomes of
 * them; and whoever is not wanted any more must not cost the others anything. */
#include "scheduler_kit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "runtime/logprob.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static const char *const model_dirs[] = {SOURCE_ROOT "/tests/data/models/demo-qwen3", SOURCE_ROOT "/models/demo",
                                         SOURCE_ROOT "/tests/data/models/demo-qwen3-moe",
                                         SOURCE_ROOT "/tests/data/models/demo-deepseek-v3"};
enum { N_MODELS = sizeof model_dirs / sizeof *model_dirs, N_CTX = 512 };
#ifdef __SANITIZE_THREAD__ /* some fifty times as slow: a model of attention alone and a recurrent one */
enum { N_TRIED = 2, MOST_OTHERS = 3 };
#else
enum { N_TRIED = N_MODELS, MOST_OTHERS = 8 };
#endif
static mox_model *models[N_MODELS];
static mox_tokenizer *tokenizers[N_MODELS];
static const mox_context_opts usual = {.n_ctx = N_CTX, .n_seqs = 4, .n_batch = 128, .n_threads = 2};

static int open_models(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_err err;
        if (mox_model_open(&models[i], model_dirs[i], NULL, &err) == MOX_OK &&
            mox_tokenizer_open(&tokenizers[i], model_dirs[i], &err) == MOX_OK)
            continue;
        print_error("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        mox_tokenizer_close(&tokenizers[i]);
        mox_model_close(&models[i]);
    }
    return 0;
}

static mox_scheduler *new_scheduler(int model, mox_context_opts context, int32_t n_queue)
{
    mox_scheduler *s;
    mox_err err;
    context.prefix_bytes = 4 << 20;
    context.deterministic = true;
    const mox_scheduler_opts opts = {.context = context, .n_queue = n_queue};
    if (mox_scheduler_create(&s, models[model], tokenizers[model], &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    return s;
}

static void must_submit(mox_scheduler *s, const wish *w, listener *l)
{
    mox_err err;
    if (submit(s, w, l, &err) != MOX_OK) fail_msg("%s", err.msg);
}

static mox_scheduler_stats stats_of(mox_scheduler *s)
{
    mox_scheduler_stats stats;
    mox_scheduler_get_stats(s, &stats);
    return stats;
}

/* ---- what is said ------------------------------------------------------------------------------ */

static void assert_same(const listener *a, const listener *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->n_tokens * sizeof *a->tokens);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
    assert_int_equal(a->stop, b->stop);
}

/* Alone and beside 3 and MOST_OTHERS others, at temperature 0 and 1: the same tokens, and logprobs with the
 * same bytes, which show every difference of the logits. */
static void test_others_do_not_matter(void **state)
{
    (void)state;
    for (int m = 0; m < N_TRIED; m++)
        for (int hot = 0; hot < 2; hot++) {
            const wish w = {.n_prompt = 90, .max_tokens = 24, .word = 7, .temperature = (float)hot};
            listener alone, *first = malloc(sizeof *first), *heard = malloc(9 * sizeof *heard);
            assert_true(first && heard);
            solo(models[m], tokenizers[m], usual, &w, &alone);
            for (int n_others = 0; n_others <= MOST_OTHERS; n_others = n_others == 0 ? 3 : n_others + 5) {
                mox_context_opts context = usual;
                context.n_seqs = 9;
                mox_scheduler *s = new_scheduler(m, context, 0);
                for (int i = 0; i <= n_others; i++) {
                    const wish other = {.n_prompt = 20 + 37 * i, .max_tokens = 60, .word = i, .temperature = 1};
                    listener_init(&heard[i]);
                    must_submit(s, i == n_others ? &w : &other, &heard[i]);
                }
                for (int i = 0; i <= n_others; i++) {
                    wait_done(&heard[i]);
                    assert_false(heard[i].wrong);
                }
                mox_scheduler_destroy(&s);
                assert_same(&heard[n_others], &alone);
                if (n_others == 0) *first = heard[0];
                assert_memory_equal(heard[n_others].logprobs, first->logprobs, sizeof first->logprobs);
                for (int i = 0; i <= n_others; i++) listener_deinit(&heard[i]);
            }
            listener_deinit(&alone);
            free(first);
            free(heard);
        }
}

/* ---- many, from several threads ------------------------------------------------------------------ */

enum { N_THREADS = 3, N_EACH = 8, N_WISHES = 6 };

typedef struct crowd {
    mox_scheduler *s;
    const wish *wishes;
    const listener *alone; /* [N_WISHES] */
    int number;
    int n_cancelled;
    const char *problem;
} crowd;

static const char *check_heard(const listener *l, const listener *alone)
{
    if (l->wrong) return "events came in the wrong order";
    if (l->status != MOX_OK) return l->sentence;
    const bool whole = l->stop != MOX_STOP_CANCELLED;
    if (whole && (l->n_tokens != alone->n_tokens || l->stop != alone->stop)) return "a reply has another length than alone";
    if (l->n_tokens > alone->n_tokens || memcmp(l->tokens, alone->tokens, (size_t)l->n_tokens * sizeof *l->tokens) != 0)
        return "a reply has other tokens than alone";
    if (whole && (l->n_text != alone->n_text || memcmp(l->text, alone->text, l->n_text) != 0)) return "a reply has another text than alone";
    return NULL;
}

static void *join_crowd(void *user)
{
    crowd *c = user;
    mox_rng rng;
    mox_rng_init(&rng, (uint64_t)c->number);
    listener *l = malloc(sizeof *l);
    for (int i = 0; l && i < N_EACH && !c->problem; i++) {
        const int k = (int)(mox_rng_u64(&rng) % N_WISHES);
        mox_err err;
        listener_init(l);
        switch (mox_rng_u64(&rng) % 4) {
        case 0: l->cancel_at = (int64_t)(mox_rng_u64(&rng) % 10); break;
        case 1: l->cancel_at_prompt = (int64_t)(mox_rng_u64(&rng) % 200); break;
        default: break;
        }
        if (submit(c->s, &c->wishes[k], l, &err) != MOX_OK) c->problem = "a request was refused";
        else {
            if (mox_rng_u64(&rng) % 6 == 0) { /* at a random moment */
                usleep((useconds_t)(mox_rng_u64(&rng) % 20000));
                mox_scheduler_cancel(c->s, l->id);
            }
            wait_done(l);
            c->problem = check_heard(l, &c->alone[k]);
            c->n_cancelled += l->stop == MOX_STOP_CANCELLED;
        }
        mox_slot_info slots[4];
        if (mox_scheduler_get_slots(c->s, slots, 4) != 4) c->problem = "there are not four slots";
        listener_deinit(l);
    }
    free(l);
    return NULL;
}

static void test_crowd(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) { /* attention alone, and recurrent */
        wish wishes[N_WISHES];
        listener *alone = malloc(N_WISHES * sizeof *alone);
        assert_non_null(alone);
        for (int i = 0; i < N_WISHES; i++) {
            wishes[i] = (wish){.n_prompt = 1 + 61 * i, .max_tokens = 3 + 9 * i, .word = i, .temperature = (float)(i % 2)};
            solo(models[m], tokenizers[m], usual, &wishes[i], &alone[i]);
        }
        mox_scheduler *s = new_scheduler(m, usual, 0);
        crowd crowds[N_THREADS];
        pthread_t threads[N_THREADS];
        for (int i = 0; i < N_THREADS; i++) {
            crowds[i] = (crowd){.s = s, .wishes = wishes, .alone = alone, .number = i + 10 * m};
            assert_int_equal(pthread_create(&threads[i], NULL, join_crowd, &crowds[i]), 0);
        }
        int n_cancelled = 0;
        for (int i = 0; i < N_THREADS; i++) {
            pthread_join(threads[i], NULL);
            if (crowds[i].problem) fail_msg("%s", crowds[i].problem);
            n_cancelled += crowds[i].n_cancelled;
        }
        assert_true(mox_scheduler_drain(s, 10));
        const mox_scheduler_stats stats = stats_of(s);
        assert_int_equal(stats.n_cancelled, n_cancelled);
        assert_int_equal(stats.n_finished, N_THREADS * N_EACH - n_cancelled);
        assert_int_equal(stats.n_failed + stats.n_running + stats.n_waiting, 0);
        assert_true(n_cancelled > 0 && stats.n_finished > 0);
        mox_scheduler_destroy(&s);
        for (int i = 0; i < N_WISHES; i++) listener_deinit(&alone[i]);
        free(alone);
    }
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static void test_limits(void **state)
{
    (void)state;
    mox_scheduler *s = new_scheduler(0, usual, 0);
    for (int64_t n = N_CTX - 2; n <= N_CTX + 1; n++) {
        const wish w = {.n_prompt = n, .max_tokens = 100, .word = 3, .temperature = 1};
        listener l;
        mox_err err;
        listener_init(&l);
        const mox_status status = submit(s, &w, &l, &err);
        assert_int_equal(status, n < N_CTX ? MOX_OK : MOX_E_LIMIT);
        if (status == MOX_OK) {
            wait_done(&l);
            assert_int_equal(l.status, MOX_OK);
            assert_int_equal(l.n_tokens, N_CTX - n);
            assert_int_equal(l.stop, MOX_STOP_LENGTH);
        } else {
            char count[24];
            snprintf(count, sizeof count, "%lld tokens", (long long)n);
            assert_non_null(strstr(err.msg, count));
            assert_non_null(strstr(err.msg, "512"));
            assert_int_equal(l.n_events, 0);
        }
        listener_deinit(&l);
    }
    assert_int_equal(stats_of(s).n_refused, 2);
    mox_scheduler_destroy(&s);
}

static void refuse(mox_scheduler *s, const mox_request_opts *r, const char *field)
{
    uint64_t id = 1;
    mox_err err;
    assert_int_equal(mox_scheduler_submit(s, r, &id, &err), MOX_E_ARG);
    assert_int_equal(id, 0);
    if (!strstr(err.msg, field)) fail_msg("%s is not named: %s", field, err.msg);
}

static void test_wrong_requests(void **state)
{
    (void)state;
    mox_scheduler *s = new_scheduler(0, usual, 0);
    listener l;
    listener_init(&l);
    const int32_t prompt[] = {1, 2, 3}, outside[] = {1, 2048, 3}, negative[] = {1, 2, -1};
    const mox_request_opts good = {.prompt = prompt, .n_prompt = 3, .turn = {.max_tokens = 1, .think_budget = -1}, .n_logprobs = -1,
                                   .on_event = hear, .user = &l};
    mox_request_opts r = good;
    refuse(s, (r = good, r.prompt = outside, &r), "token 1 is 2048");
    refuse(s, (r = good, r.prompt = negative, &r), "token 2 is -1");
    refuse(s, (r = good, r.n_prompt = 0, &r), "prompt");
    refuse(s, (r = good, r.n_before = 4, &r), "n_before");
    refuse(s, (r = good, r.n_logprobs = 21, &r), "n_logprobs");
    refuse(s, (r = good, r.n_logprobs = -2, &r), "n_logprobs");
    refuse(s, (r = good, r.turn.max_tokens = -1, &r), "max_tokens");
    refuse(s, (r = good, r.turn.sampling.temperature = -1, &r), "temperature");
    refuse(s, (r = good, r.turn.sampling.top_p = NAN, &r), "top_p");
    refuse(s, (r = good, r.on_event = NULL, &r), "on_event");
    refuse(s, (r = good, r.after = 1, &r), "after"); /* its own id */
    refuse(s, (r = good, r.after = 2, &r), "after");
    uint64_t id;
    mox_err err;
    assert_int_equal(mox_scheduler_submit(s, &good, &id, &err), MOX_OK);
    wait_done(&l);
    assert_int_equal(l.logprobs[0][0].logprob, 0); /* nobody asked */
    mox_scheduler_destroy(&s);
    listener_deinit(&l);
}

/* One runs, two wait, the fourth is refused; a place in the queue is free as soon as its owner
 * has gone, although the thread is held up all the time. */
static void test_full_queue(void **state)
{
    (void)state;
    mox_context_opts context = usual;
    context.n_seqs = 1;
    mox_scheduler *s = new_scheduler(0, context, 2);
    const wish w = {.n_prompt = 5, .max_tokens = 5, .word = 1};
    listener l[4];
    mox_err err;
    for (int i = 0; i < 4; i++) listener_init(&l[i]);
    l[0].hold = true;
    must_submit(s, &w, &l[0]);
    wait_started(&l[0]);
    const int64_t live = mox_alloc_live();
    must_submit(s, &w, &l[1]);
    must_submit(s, &w, &l[2]);
    assert_true(mox_alloc_live() - live < 2 * 2048 * (int64_t)sizeof(float)); /* they wait without numbers for the vocabulary */
    assert_int_equal(submit(s, &w, &l[3], &err), MOX_E_FULL);
    assert_int_equal(stats_of(s).n_waiting, 2);
    mox_scheduler_cancel(s, l[1].id);
    assert_int_equal(stats_of(s).n_waiting, 1);
    must_submit(s, &w, &l[3]);
    let_go(&l[0]);
    for (int i = 0; i < 4; i++) wait_done(&l[i]);
    assert_int_equal(l[1].stop, MOX_STOP_CANCELLED);
    assert_int_equal(l[1].n_events, 1);
    for (int i = 0; i < 4; i++) assert_int_equal(l[i].wrong || (i != 1 && l[i].n_tokens != l[0].n_tokens), 0);
    const mox_scheduler_stats stats = stats_of(s);
    assert_int_equal(stats.n_refused, 1);
    mox_scheduler_destroy(&s);
    for (int i = 0; i < 4; i++) listener_deinit(&l[i]);
}

/* ---- the end ------------------------------------------------------------------------------------------ */

static void test_drain(void **state)
{
    (void)state;
    mox_scheduler *s = new_scheduler(0, usual, 0);
    const wish w = {.n_prompt = 50, .max_tokens = 20, .word = 1};
    listener l[3];
    mox_err err;
    for (int i = 0; i < 3; i++) listener_init(&l[i]);
    l[0].hold = true;
    must_submit(s, &w, &l[0]);
    must_submit(s, &w, &l[1]);
    assert_false(mox_scheduler_drain(s, 0));
    assert_int_equal(submit(s, &w, &l[2], &err), MOX_E_STATE);
    let_go(&l[0]);
    assert_true(mox_scheduler_drain(s, 60));
    for (int i = 0; i < 2; i++) assert_true(l[i].done && l[i].stop != MOX_STOP_CANCELLED && l[i].status == MOX_OK);
    assert_true(mox_scheduler_drain(s, 0));
    mox_scheduler_destroy(&s);
    for (int i = 0; i < 3; i++) listener_deinit(&l[i]);
}

static void test_destroy_while_running(void **state)
{
    (void)state;
    enum { N = 9 };
    for (int round = 0; round < 6; round++) {
        mox_scheduler *s = new_scheduler(round % 2, usual, 0);
        const wish w = {.n_prompt = 300, .max_tokens = 200, .word = round};
        listener l[N];
        for (int i = 0; i < N; i++) {
            listener_init(&l[i]);
            must_submit(s, &w, &l[i]);
        }
        usleep((useconds_t)(round * 4000));
        mox_scheduler_destroy(&s);
        for (int i = 0; i < N; i++) {
            assert_true(l[i].done && !l[i].wrong && l[i].status == MOX_OK);
            listener_deinit(&l[i]);
        }
    }
}

/* When it has been stopped everybody has had the last event, and whoever still asks gets an answer. */
static void test_stop_before_destroy(void **state)
{
    (void)state;
    enum { N = 6 };
    static listener ears[N];
    listener late;
    mox_slot_info slots[4];
    mox_err err;
    mox_scheduler *s = new_scheduler(0, usual, 0);
    wish w = {.n_prompt = 100, .max_tokens = 400, .temperature = 50};
    for (int i = 0; i < N; i++) {
        listener_init(&ears[i]);
        w.word = i;
        must_submit(s, &w, &ears[i]);
    }
    wait_started(&ears[0]);
    mox_scheduler_stop(s);
    for (int i = 0; i < N; i++) assert_true(ears[i].done && !ears[i].wrong && ears[i].status == MOX_OK);
    assert_int_equal(ears[N - 1].stop, MOX_STOP_CANCELLED);
    listener_init(&late);
    assert_int_equal(submit(s, &w, &late, &err), MOX_E_STATE);
    mox_scheduler_cancel(s, ears[0].id);
    assert_int_equal(mox_scheduler_get_slots(s, slots, 4), 4);
    for (int i = 0; i < 4; i++) assert_int_equal(slots[i].id, 0);
    assert_true(stats_of(s).n_running == 0 && stats_of(s).n_waiting == 0 && stats_of(s).n_cancelled > 0);
    assert_true(mox_scheduler_drain(s, 0));
    mox_scheduler_destroy(&s);
    for (int i = 0; i < N; i++) listener_deinit(&ears[i]);
    listener_deinit(&late);
}

/* ---- cancelling ---------------------------------------------------------------------------------------- */

/* While others run: they say what they say alone, and what was computed in vain is at most one
 * step of the request. */
static void test_cancel_beside_others(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int in_prompt = 0; in_prompt < 2; in_prompt++) {
            const wish w = {.n_prompt = 60, .max_tokens = 60, .word = 5};
            wish gone = {.n_prompt = 400, .max_tokens = 100, .word = 39, .temperature = 1}; /* the search starts near one */
            listener alone, l[2];
            do { /* one that would go on */
                gone.word++;
                solo(models[m], tokenizers[m], usual, &gone, &alone);
                listener_deinit(&alone);
            } while (alone.n_tokens < 20);
            solo(models[m], tokenizers[m], usual, &w, &alone);
            mox_scheduler *s = new_scheduler(m, usual, 0);
            for (int i = 0; i < 2; i++) listener_init(&l[i]);
            *(in_prompt ? &l[1].cancel_at_prompt : &l[1].cancel_at) = 5;
            must_submit(s, &w, &l[0]);
            must_submit(s, &gone, &l[1]);
            for (int i = 0; i < 2; i++) wait_done(&l[i]);
            assert_same(&l[0], &alone);
            assert_int_equal(l[1].stop, MOX_STOP_CANCELLED);
            assert_true(in_prompt ? l[1].n_prefilled < gone.n_prompt : l[1].n_tokens < 8);
            const mox_scheduler_stats stats = stats_of(s);
            assert_int_equal(stats.n_cancelled, 1);
            assert_true(stats.cancelled_tokens <= 128);
            mox_scheduler_destroy(&s);
            for (int i = 0; i < 2; i++) listener_deinit(&l[i]);
            listener_deinit(&alone);
        }
}

/* Alone in a step that would take long: the step ends in one of its layers. */
static void test_cancel_ends_a_long_step(void **state)
{
    (void)state;
    enum { LONG = 1024 };
    for (int m = 0; m < 2; m++) {
        const mox_context_opts context = {.n_ctx = LONG + 1, .n_seqs = 2, .n_batch = LONG, .n_threads = 2, .isa = "ref"};
        mox_scheduler *s = new_scheduler(m, context, 0);
        const wish w = {.n_prompt = LONG, .max_tokens = 1, .word = 1}, after = {.n_prompt = 8, .max_tokens = 2, .word = 2};
        listener l[2];
        for (int i = 0; i < 2; i++) listener_init(&l[i]);
        must_submit(s, &w, &l[0]);
        wait_started(&l[0]);
        usleep(20000);
        mox_scheduler_cancel(s, l[0].id);
        const double begun = mox_clock_now();
        wait_done(&l[0]);
        assert_int_equal(l[0].stop, MOX_STOP_CANCELLED);
        assert_int_equal(l[0].n_prefilled, 0); /* the one step that it would have taken was not finished, */
        must_submit(s, &after, &l[1]);         /* and what follows is not disturbed */
        wait_done(&l[1]);
        assert_int_equal(l[1].status, MOX_OK);
        assert_int_equal(l[1].n_tokens, 2);
        assert_true(mox_clock_now() - begun < 60);
        mox_scheduler_destroy(&s);
        for (int i = 0; i < 2; i++) listener_deinit(&l[i]);
    }
}

/* ---- what stays --------------------------------------------------------------------------------------- */

static void run_one(mox_scheduler *s, const wish *w, listener *l)
{
    listener_init(l);
    must_submit(s, w, l);
    wait_done(l);
    listener_deinit(l);
}

/* A prompt that was computed before is not computed again, the reply is the same, and a request
 * that was cancelled leaves what it has. */
static void test_beginnings_stay(void **state)
{
    (void)state;
    for (int m = 0; m < N_TRIED; m++) {
        mox_model_info info;
        mox_model_get_info(models[m], &info);
        mox_scheduler *s = new_scheduler(m, usual, 0);
        wish w = {.n_prompt = 300, .max_tokens = 12, .word = 4, .temperature = 1};
        listener first, second, third;
        run_one(s, &w, &first);
        run_one(s, &w, &second);
        assert_int_equal(first.n_reused, 0);
        assert_int_equal(second.n_reused, info.recurrent ? 256 : 299); /* the last state before the end is on the grid */
        assert_same(&first, &second);
        assert_int_equal(stats_of(s).reused_tokens, second.n_reused);
        assert_true(stats_of(s).prefix_bytes > 0 && stats_of(s).n_prefixes > 0);
        w.no_reuse = true;
        run_one(s, &w, &third);
        assert_int_equal(third.n_reused, 0);
        assert_same(&first, &third);
        w = (wish){.n_prompt = 400, .max_tokens = 12, .word = 9};
        listener_init(&first);
        first.cancel_at_prompt = 1;
        must_submit(s, &w, &first);
        wait_done(&first);
        listener_deinit(&first);
        assert_int_equal(first.stop, MOX_STOP_CANCELLED);
        run_one(s, &w, &second);
        assert_int_equal(second.n_reused, first.n_prefilled);
        assert_int_equal(first.n_prefilled, 128);
        mox_scheduler_destroy(&s);
    }
}

/* Several replies to one prompt compute it once, whether they run beside the first or wait in the queue;
 * when the first is cancelled the others do without it. */
static void test_one_prompt_for_many_replies(void **state)
{
    (void)state;
    for (int m = 0; m < N_TRIED; m++) {
        for (int cancelled = 0; cancelled < 2; cancelled++) {
            enum { N = 6 };
            static listener ears[N], alone;
            wish w = {.n_prompt = 300, .max_tokens = 12, .word = 4, .temperature = 1};
            mox_scheduler *s = new_scheduler(m, usual, 0);
            solo(models[m], tokenizers[m], usual, &w, &alone);
            for (int i = 0; i < N; i++) {
                listener_init(&ears[i]);
                if (i == 0 && cancelled) ears[i].cancel_at_prompt = 1;
                must_submit(s, &w, &ears[i]);
                w.after = ears[0].id;
            }
            for (int i = 0; i < N; i++) {
                wait_done(&ears[i]);
                assert_false(ears[i].wrong);
                if (i > 0 || !cancelled) assert_same(&ears[i], &alone);
                if (i > 0 && !cancelled) assert_true(ears[i].n_reused >= 256);
            }
            if (!cancelled) assert_true(stats_of(s).step_tokens <= 300 + (N - 1) * 44 + N * 12);
            mox_scheduler_destroy(&s);
            for (int i = 0; i < N; i++) listener_deinit(&ears[i]);
            listener_deinit(&alone);
        }
    }
}

/* ---- fairness -------------------------------------------------------------------------------------------- */

static atomic_int n_ended;
typedef struct runner {
    listener ear;
    int place; /* in the order of ends */
} runner;

static void hear_place(void *user, const mox_event *e)
{
    runner *r = user;
    if (e->kind == MOX_EVENT_DONE) r->place = atomic_fetch_add(&n_ended, 1);
    hear(&r->ear, e);
}

/* One long prompt, then twenty short ones: all of them are done before the long one, although
 * each has to wait for a slot. */
static void test_short_prompts_overtake(void **state)
{
    (void)state;
    enum { N_SHORT = 20, N_LONG = 2000 };
    const mox_context_opts context = {.n_ctx = 2048, .n_seqs = 4, .n_batch = 64, .n_threads = 2};
    mox_scheduler *s = new_scheduler(0, context, 0);
    runner *runners = calloc(1 + N_SHORT, sizeof *runners);
    int32_t prompt[N_LONG];
    assert_non_null(runners);
    fill_prompt(&(wish){.n_prompt = N_LONG}, prompt);
    atomic_store(&n_ended, 0);
    for (int i = 0; i <= N_SHORT; i++) {
        listener_init(&runners[i].ear);
        runners[i].ear.hold = i == 0; /* nothing is computed before all are there */
        const mox_request_opts r = {.prompt = prompt, .n_prompt = i == 0 ? N_LONG : 20, .turn = {.max_tokens = 2, .think_budget = -1},
                                    .n_logprobs = -1, .on_event = hear_place, .user = &runners[i]};
        uint64_t id;
        mox_err err;
        assert_int_equal(mox_scheduler_submit(s, &r, &id, &err), MOX_OK);
    }
    let_go(&runners[0].ear);
    for (int i = 0; i <= N_SHORT; i++) wait_done(&runners[i].ear);
    assert_int_equal(runners[0].place, N_SHORT);
    mox_scheduler_destroy(&s);
    for (int i = 0; i <= N_SHORT; i++) listener_deinit(&runners[i].ear);
    free(runners);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

typedef struct nth_alloc {
    long at;
    atomic_long count; /* two threads allocate */
} nth_alloc;

static int fail_at(void *user, size_t bytes)
{
    (void)bytes;
    nth_alloc *n = user;
    return atomic_fetch_add(&n->count, 1) + 1 != n->at;
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    const mox_context_opts context = {.n_ctx = 64, .n_seqs = 2, .n_batch = 16, .n_threads = 1};
    const mox_scheduler_opts opts = {.context = context};
    const int64_t before = mox_alloc_live();
    mox_status status = MOX_E_MEMORY;
    mox_scheduler *s;
    mox_err err;
    for (long at = 1; status != MOX_OK; at++) {
        nth_alloc nth = {.at = at};
        mox_alloc_set_hook(fail_at, &nth);
        status = mox_scheduler_create(&s, models[0], tokenizers[0], &opts, &err);
        mox_alloc_set_hook(NULL, NULL);
        if (status == MOX_OK) break;
        assert_int_equal(status, MOX_E_MEMORY);
        assert_null(s);
        assert_int_equal(mox_alloc_live(), before);
    }
    const int64_t idle = mox_alloc_live();
    const wish w = {.n_prompt = 4, .max_tokens = 12, .word = 3, .temperature = 1};
    int n_refused = 0, n_failed = 0;
    for (long at = 1;; at++) {
        nth_alloc nth = {.at = at};
        listener l;
        listener_init(&l);
        mox_alloc_set_hook(fail_at, &nth); /* the thread sleeps */
        status = submit(s, &w, &l, &err);
        if (status == MOX_OK) wait_done(&l);
        while (stats_of(s).n_running > 0 || mox_alloc_live() != idle) usleep(100); /* its memory is given back after its last event */
        mox_alloc_set_hook(NULL, NULL);
        const bool reached = atomic_load(&nth.count) >= at;
        n_refused += status != MOX_OK;
        n_failed += status == MOX_OK && l.status != MOX_OK;
        if (reached) assert_int_equal(status == MOX_OK ? l.status : status, MOX_E_MEMORY);
        else assert_int_equal(l.status, MOX_OK);
        listener_deinit(&l);
        if (!reached) break;
    }
    assert_true(n_refused > 0 && n_failed > 0);
    mox_scheduler_destroy(&s);
    assert_int_equal(mox_alloc_live(), before);
}

/* ---- logprobs ------------------------------------------------------------------------------------------------ */

static void test_logprobs(void **state)
{
    (void)state;
    enum { V = 500 };
    mox_rng rng;
    mox_rng_init(&rng, 1);
    for (int round = 0; round < 50; round++) {
        float logits[V];
        double total = 0;
        const double spread = round % 2 ? 200 : 5;
        for (int i = 0; i < V; i++) logits[i] = (float)(spread * floor(mox_rng_unit(&rng) * 100) / 100 - spread / 2); /* with equal ones */
        if (round % 5 == 0) logits[7] = -INFINITY;
        for (int i = 0; i < V; i++) total += exp((double)logits[i]);
        mox_logprob top[TOP], token = {.token = round};
        const int32_t n_top = round % (TOP + 1);
        assert_int_equal(mox_logprobs(logits, V, &token, top, n_top), n_top);
        if (round != 7) assert_float_equal(token.logprob, (float)((double)logits[round] - log(total)), 1e-4f);
        for (int32_t k = 0; k < n_top; k++) { /* exactly k are before it */
            int n_before = 0;
            for (int i = 0; i < V; i++)
                n_before += logits[i] > logits[top[k].token] || (logits[i] == logits[top[k].token] && i < top[k].token);
            assert_int_equal(n_before, k);
            assert_float_equal(top[k].logprob, (float)((double)logits[top[k].token] - log(total)), 1e-4f);
        }
    }
}

typedef struct prompt_rows {
    const int32_t *prompt;
    int64_t n_prompt, n_vocab;
    mox_logprob found[REPLY_MAX];
} prompt_rows;

static void take_row(void *user, int32_t segment, int64_t row, const float *logits)
{
    prompt_rows *p = user;
    assert_int_equal(segment, 0);
    if (row + 1 == p->n_prompt) return;
    p->found[row].token = p->prompt[row + 1];
    (void)mox_logprobs(logits, p->n_vocab, &p->found[row], NULL, 0);
}

/* All at once and without a scheduler. */
static void compute_rows(int model, const wish *w, prompt_rows *out)
{
    static int32_t prompt[PROMPT_MAX];
    mox_context_opts context = usual;
    mox_context *c;
    mox_seq *seq;
    mox_model_info info;
    mox_err err;
    context.deterministic = true;
    mox_model_get_info(models[model], &info);
    fill_prompt(w, prompt);
    *out = (prompt_rows){.prompt = prompt, .n_prompt = w->n_prompt, .n_vocab = info.n_vocab};
    assert_int_equal(mox_context_create(&c, models[model], &context, &err), MOX_OK);
    assert_int_equal(mox_seq_create(&seq, c, &err), MOX_OK);
    const mox_segment g = {.seq = seq, .tokens = prompt, .n = w->n_prompt, .want = MOX_WANT_ALL};
    const mox_step_opts opts = {.on_logits = take_row, .on_logits_user = out};
    assert_int_equal(mox_step(c, &g, 1, &opts, &err), MOX_OK);
    mox_seq_destroy(&seq);
    mox_context_destroy(&c);
}

/* Those of a prompt: the same beside others, in several steps, and when the prompt is known; the reply is as ever. */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    const wish w = {.n_prompt = 300, .max_tokens = 5, .word = 3, .prompt_logprobs = true}, plain = {.n_prompt = 300, .max_tokens = 5, .word = 3};
    const wish other = {.n_prompt = 200, .max_tokens = 40, .word = 5};
    listener *l = malloc(4 * sizeof *l);
    assert_non_null(l);
    for (int m = 0; m < N_TRIED; m++) {
        prompt_rows rows;
        compute_rows(m, &w, &rows);
        mox_scheduler *s = new_scheduler(m, usual, 0);
        for (int i = 0; i < 4; i++) listener_init(&l[i]);
        must_submit(s, &other, &l[0]);
        must_submit(s, &w, &l[1]);
        wait_done(&l[0]);
        wait_done(&l[1]);
        must_submit(s, &w, &l[2]);
        wait_done(&l[2]);
        must_submit(s, &plain, &l[3]);
        wait_done(&l[3]);
        mox_scheduler_destroy(&s);
        for (int i = 0; i < 4; i++) assert_false(l[i].wrong);
        for (int i = 1; i < 3; i++) {
            assert_int_equal(l[i].n_reused, 0);
            assert_int_equal(l[i].n_prompt_tokens, w.n_prompt - 1);
            assert_memory_equal(l[i].prompt_logprobs, rows.found, (size_t)(w.n_prompt - 1) * sizeof *rows.found);
            assert_same(&l[i], &l[3]);
        }
        assert_int_equal(l[0].n_prompt_tokens + l[3].n_prompt_tokens, 0);
        assert_true(l[3].n_reused > 0);
        for (int i = 0; i < 4; i++) listener_deinit(&l[i]);
    }
    free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_wrong_requests),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_destroy_while_running),
        cmocka_unit_test(test_cancel_beside_others),
        cmocka_unit_test(test_cancel_ends_a_long_step),
        cmocka_unit_test(test_stop_before_destroy),
        cmocka_unit_test(test_beginnings_stay),
        cmocka_unit_test(test_one_prompt_for_many_replies),
        cmocka_unit_test(test_short_prompts_overtake),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_others_do_not_matter),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
