/* tests/grammar/walk.c -- writes random texts that a grammar allows, for others to check.
 *
 *     walk TOKENIZER_DIR N < requests
 *
 * A request is a line: `schema SEED JSON`, `lenient SEED JSON`, `object SEED`, or `calls SEED JSON` with
 * an object of format, tools, name and parallel.  The answer is a line for each of N texts,
 * a JSON string, or `refused WORDS` or `limit` when a text did not end in time.
 *
 * Logits are random, which is the hardest adversary: nothing that the grammar allows is
 * unlikely.  Tokens that can bring a text to its end gain weight as it grows.  Half of the
 * texts are cut into bytes instead of tokens, and every token is checked against the mask. */
#include "base/rng.h"
#include "base/writer.h"
#include "moxie/grammar.h"
#include "base/json_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 1500 };

static mox_tokenizer *tokenizer;
static mox_token_trie *trie;
static int32_t n_vocab, eos;
static unsigned char *mask, *closing;

static void die(const char *what)
{
    fprintf(stderr, "walk: %s\n", what);
    exit(1);
}

/* Tokens of nothing but what ends strings, containers and numbers. */
static void find_closing(void)
{
    for (int32_t i = 0; i < n_vocab; i++) {
        size_t n;
        const char *bytes = mox_tokenizer_bytes(tokenizer, i, &n);
        closing[i] = bytes && n > 0;
        for (size_t k = 0; bytes && k < n; k++)
            if (!strchr("\"]},:</>", bytes[k])) closing[i] = 0;
    }
    closing[eos] = 1;
}

/* A token of the mask; hurry is how much likelier those of closing are than others. */
static int32_t draw(mox_rng *rng, double hurry)
{
    double total = 0.0, passed = 0.0;
    for (int32_t i = 0; i < n_vocab; i++) total += mask[i] ? (closing[i] ? 1.0 + hurry : 1.0) : 0.0;
    const double target = mox_rng_unit(rng) * total;
    int32_t last = -1;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (!mask[i]) continue;
        last = i;
        passed += closing[i] ? 1.0 + hurry : 1.0;
        if (passed > target) break;
    }
    return last;
}

/* The mask says of some tokens what asking for each would say. */
static void check_mask(mox_constraint *c, mox_rng *rng, int n)
{
    mox_err err;
    for (int i = 0; i < n; i++) {
        const int32_t id = (int32_t)(mox_rng_u64(rng) % (uint64_t)n_vocab);
        bool allowed;
        if (mox_constraint_allows(c, id, &allowed, &err) != MOX_OK) die(err.msg);
        if (allowed != (mask[id] != 0)) die("the mask and the single question disagree");
    }
}

static bool write_one(const mox_grammar *g, uint64_t seed, mox_writer *out, mox_err *err)
{
    mox_constraint *c;
    mox_rng rng;
    bool ended = false;
    mox_rng_init(&rng, seed);
    if (mox_constraint_create(&c, g, trie, &eos, 1, err) != MOX_OK) die(err->msg);
    for (int i = 0; i < STEPS_MAX && !ended; i++) {
        size_t n;
        if (mox_constraint_must_end(c)) {
            ended = true;
            break;
        }
        if (mox_constraint_mask(c, mask, n_vocab, err) != MOX_OK) die(err->msg);
        check_mask(c, &rng, 8);
        const int32_t id = draw(&rng, (double)n_vocab * (i < 20 ? 0.02 : 0.02 * (i - 19)));
        if (id == eos) {
            ended = true;
            break;
        }
        const char *bytes = mox_tokenizer_bytes(tokenizer, id, &n);
        for (size_t k = 0; (seed & 1) && k < n; k++)
            if (mox_constraint_accept_bytes(c, bytes + k, 1, err) != MOX_OK) die("a byte of an allowed token is refused");
        if (!(seed & 1) && mox_constraint_accept(c, id, err) != MOX_OK) die(err->msg);
        if (mox_write(out, bytes, n, err) != MOX_OK) die(err->msg);
    }
    mox_constraint_destroy(&c);
    return ended;
}

static mox_status read_calls(char *text, mox_grammar **g, mox_err *err)
{
    static const char *const names[] = {"format", "tools", "name", "parallel"};
    mox_json_span fields[4];
    mox_calls_opts o = {0};
    char *format = NULL, *name = NULL;
    const mox_json_span all = {"request", text, strlen(text), 0};
    mox_status status = mox_json_fields(all, "request", names, 4, fields, err);
    if (status == MOX_OK) status = mox_json_get_string(fields[0], "format", &format, NULL, err);
    if (status == MOX_OK) status = mox_json_get_string(fields[2], "name", &name, NULL, err);
    if (status == MOX_OK) status = mox_json_get_bool(fields[3], "parallel", &o.parallel, err);
    o.format = format;
    o.name = name;
    o.tools = (mox_json_text){fields[1].text, fields[1].n};
    if (status == MOX_OK) status = mox_grammar_create_calls(g, &o, err);
    mox_free(format);
    mox_free(name);
    return status;
}

static mox_status read_request(char *line, mox_grammar **g, uint64_t *seed, mox_err *err)
{
    char *rest;
    const bool lenient = strncmp(line, "lenient ", 8) == 0;
    char *number = strchr(line, ' ');
    if (!number) die("a line is no request");
    *seed = strtoull(number, &rest, 10);
    while (*rest == ' ') rest++;
    if (strncmp(line, "object ", 7) == 0) return mox_grammar_create_object(g, err);
    if (strncmp(line, "calls ", 6) == 0) return read_calls(rest, g, err);
    const mox_schema_opts opts = {.lenient = lenient};
    return mox_grammar_create_schema(g, (mox_json_text){rest, strlen(rest)}, &opts, err);
}

static void answer(char *line, int n)
{
    mox_grammar *g;
    uint64_t seed = 0;
    mox_err err = {0};
    if (read_request(line, &g, &seed, &err) != MOX_OK) {
        for (int i = 0; i < n; i++) printf("refused %s\n", err.msg);
        return;
    }
    for (int i = 0; i < n; i++) {
        mox_writer text = {0}, json = {0};
        if (write_one(g, seed * 1000 + (uint64_t)i, &text, &err)) {
            if (mox_write_json(&json, mox_writer_text(&text), text.n, &err) != MOX_OK) die(err.msg);
            printf("%s\n", mox_writer_text(&json));
        } else {
            printf("limit\n");
        }
        mox_writer_deinit(&text);
        mox_writer_deinit(&json);
    }
    mox_grammar_destroy(&g);
}

int main(int argc, char **argv)
{
    mox_err err;
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (argc != 3) die("usage: walk TOKENIZER_DIR N");
    if (mox_tokenizer_open(&tokenizer, argv[1], &err) != MOX_OK || mox_token_trie_create(&trie, tokenizer, &err) != MOX_OK) die(err.msg);
    n_vocab = mox_tokenizer_size(tokenizer);
    eos = mox_tokenizer_eos_id(tokenizer);
    if (eos < 0) eos = n_vocab++;
    mask = calloc((size_t)n_vocab, 1);
    closing = calloc((size_t)n_vocab, 1);
    if (!mask || !closing) die("out of memory");
    find_closing();
    while ((n = getline(&line, &room, stdin)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = '\0';
        answer(line, atoi(argv[2]));
        fflush(stdout);
    }
    free(line);
    free(mask);
    free(closing);
    mox_token_trie_destroy(&trie);
    mox_tokenizer_close(&tokenizer);
    return 0;
}
