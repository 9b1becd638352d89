/* tests/unit/grammar_kit.h -- what tests of grammars share: the demo model's tokens, and
 * whether a text is one that a grammar allows. */
#ifndef TESTS_GRAMMAR_KIT_H
#define TESTS_GRAMMAR_KIT_H

#include "base/rng.h"
#include "moxie/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mox_tokenizer *kit_tokenizer;
static mox_token_trie *kit_trie;
static int32_t kit_end;

static int kit_begin(void **state)
{
    mox_err err;
    (void)state;
    if (mox_tokenizer_open(&kit_tokenizer, SOURCE_ROOT "/models/demo", &err) != MOX_OK ||
        mox_token_trie_create(&kit_trie, kit_tokenizer, &err) != MOX_OK) {
        print_error("%s\n", err.msg);
        return -1;
    }
    kit_end = mox_tokenizer_eos_id(kit_tokenizer);
    return 0;
}

static int kit_finish(void **state)
{
    (void)state;
    mox_token_trie_destroy(&kit_trie);
    mox_tokenizer_close(&kit_tokenizer);
    return 0;
}

static inline mox_json_text kit_json(const char *text) { return (mox_json_text){text, strlen(text)}; }

static inline mox_constraint *kit_constraint(const mox_grammar *g)
{
    mox_constraint *c;
    mox_err err;
    if (mox_constraint_create(&c, g, kit_trie, &kit_end, 1, &err) != MOX_OK) fail_msg("%s", err.msg);
    return c;
}

/* Whether the text is allowed and complete. */
static inline bool kit_takes(const mox_grammar *g, const char *text, size_t n)
{
    mox_constraint *c = kit_constraint(g);
    mox_err err;
    const mox_status status = mox_constraint_accept_bytes(c, text, n, &err);
    const bool takes = status == MOX_OK && mox_constraint_may_end(c);
    if (status != MOX_OK && status != MOX_E_ARG) fail_msg("%s", err.msg);
    mox_constraint_destroy(&c);
    return takes;
}

/* A random text of the grammar; false when it does not end in time. */
static inline bool kit_walk(const mox_grammar *g, uint64_t seed, char *out, size_t room, size_t *n_out)
{
    mox_constraint *c = kit_constraint(g);
    const int32_t n_vocab = mox_tokenizer_size(kit_tokenizer);
    unsigned char *mask = calloc((size_t)n_vocab, 1);
    mox_rng rng;
    mox_err err;
    bool ended = false;
    *n_out = 0;
    mox_rng_init(&rng, seed);
    for (int i = 0; i < 2000 && !ended; i++) {
        size_t n;
        int32_t id;
        ended = mox_constraint_must_end(c) || (i > 60 && mox_constraint_may_end(c));
        if (ended) break;
        if (mox_constraint_mask(c, mask, n_vocab, &err) != MOX_OK) fail_msg("%s after %.*s", err.msg, (int)*n_out, out);
        /* Closing tags are long: now and then what they begin with is tried first. */
        const char *const hints[] = {"\"", "\n</parameter>\n", "</arg_value>\n", "}", "]", ","};
        const char *hint = hints[mox_rng_u64(&rng) % 6];
        if (i > 20 && mox_rng_unit(&rng) < 0.5 && mox_constraint_accept_bytes(c, hint, strlen(hint), &err) == MOX_OK) {
            if (*n_out + 32 > room) break;
            memcpy(out + *n_out, hint, strlen(hint));
            *n_out += strlen(hint);
            continue;
        }
        do id = (int32_t)(mox_rng_u64(&rng) % (uint64_t)n_vocab);
        while (!mask[id]);
        if (id == kit_end) {
            ended = true;
            break;
        }
        if (mox_constraint_accept(c, id, &err) != MOX_OK) fail_msg("%s", err.msg);
        const char *bytes = mox_tokenizer_bytes(kit_tokenizer, id, &n);
        if (*n_out + n > room) break;
        memcpy(out + *n_out, bytes, n);
        *n_out += n;
    }
    free(mask);
    mox_constraint_destroy(&c);
    return ended;
}

#endif
