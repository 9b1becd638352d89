/* Any bytes as a form: the first one chooses between a schema, a lenient schema, GBNF and tool calls.
 * Whatever happens is an error with words, or a grammar along which a walk by the mask goes on
 * without a dead end, in which the mask says of every token what the question after it says, and of
 * which a text of JSON is JSON. */
#include "base/rng.h"
#include "moxie/grammar.h"
#include "base/json_reader.h"
#include "text/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STEPS = 40 };

static mox_tokenizer *tokenizer;
static mox_token_trie *trie;
static int32_t n_tokens;

static void check(int condition)
{
    if (!condition) abort();
}

/* A vocabulary of all bytes, as byte-level tokenizers spell them, and a few longer tokens. */
static void begin(void)
{
    static char text[1 << 16];
    char *p = text;
    mox_err err;
    int other = 256;
    p += sprintf(p, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int byte = 0; byte < 256; byte++) {
        const int shown = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD) ? byte : other++;
        p += sprintf(p, "%s\"\\u%04x\": %d", byte ? ", " : "", (unsigned)shown, byte);
    }
    static const char *const merged[] = {"ab", "{\\\"", "\\\":", "\\\"}", "12", "true", "],", "}}"};
    for (int i = 0; i < 8; i++) p += sprintf(p, ", \"%s\": %d", merged[i], 256 + i);
    p += sprintf(p, "}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "
                    "\"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": []}");
    if (mox_tokenizer_open_memory(&tokenizer, "made up", text, (size_t)(p - text), NULL, 0, &err) != MOX_OK) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    check(mox_token_trie_create(&trie, tokenizer, &err) == MOX_OK);
    n_tokens = mox_tokenizer_size(tokenizer);
}

static bool is_json(const char *text, size_t n)
{
    mox_json_reader r;
    mox_json_token token = {0};
    mox_json_reader_init(&r, (mox_json_span){"text", text, n, 0});
    mox_status status = MOX_OK;
    while (status == MOX_OK && token.type != MOX_JSON_END) status = mox_json_next(&r, &token, NULL);
    mox_json_reader_deinit(&r);
    return status == MOX_OK;
}

static void walk(const mox_grammar *g, uint64_t seed, bool json)
{
    const int32_t end = n_tokens; /* one behind the vocabulary */
    unsigned char mask[512];
    char text[STEPS * 16];
    size_t n_text = 0;
    mox_constraint *c;
    mox_rng rng;
    mox_err err = {0};
    mox_rng_init(&rng, seed);
    mox_status status = mox_constraint_create(&c, g, trie, &end, 1, &err);
    for (int i = 0; i < STEPS && status == MOX_OK && !mox_constraint_must_end(c); i++) {
        bool yes;
        status = mox_constraint_mask(c, mask, n_tokens + 1, &err);
        if (status != MOX_OK) break;
        for (int k = 0; k < 8 && status == MOX_OK; k++) {
            const int32_t id = (int32_t)(mox_rng_u64(&rng) % (uint64_t)(n_tokens + 1));
            status = mox_constraint_allows(c, id, &yes, &err);
            check(status != MOX_OK || yes == mask[id]);
        }
        if (status != MOX_OK) break;
        int32_t id;
        do id = (int32_t)(mox_rng_u64(&rng) % (uint64_t)(n_tokens + 1));
        while (!mask[id]);
        if (id == end) break;
        status = mox_constraint_accept(c, id, &err);
        size_t n;
        const char *bytes = mox_tokenizer_bytes(tokenizer, id, &n);
        check(n_text + n <= sizeof text);
        memcpy(text + n_text, bytes, n);
        n_text += n;
    }
    check(status == MOX_OK || status == MOX_E_LIMIT); /* no dead end: the vocabulary has every byte */
    if (status == MOX_OK && json && mox_constraint_may_end(c)) check(is_json(text, n_text));
    mox_constraint_destroy(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mox_grammar *g = NULL;
    mox_err err = {0};
    mox_status status;
    if (!tokenizer) begin();
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    const size_t n = size - 2;
    const mox_schema_opts lenient = {.lenient = true};
    static const char *const formats[] = {"hermes", "qwen-xml", "glm", "deepseek-v3", "kimi-k2"};
    const mox_calls_opts calls = {.format = formats[data[1] % 5], .tools = {text, n}, .parallel = data[1] & 128,
                                  .or_object = data[1] & 64};
    switch (data[0] % 4) {
    case 0: status = mox_grammar_create_schema(&g, (mox_json_text){text, n}, NULL, &err); break;
    case 1: status = mox_grammar_create_schema(&g, (mox_json_text){text, n}, &lenient, &err); break;
    case 2: status = mox_grammar_create_gbnf(&g, text, n, &err); break;
    default: status = mox_grammar_create_calls(&g, &calls, &err);
    }
    check((status == MOX_OK) == (g != NULL));
    if (status != MOX_OK) check(err.status == status && err.msg[0]);
    else walk(g, data[1], data[0] % 4 < 2);
    mox_grammar_destroy(&g);
    return 0;
}
