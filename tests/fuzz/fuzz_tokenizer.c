/* Any bytes as a tokenizer.json.  When they are one, a few texts are encoded:
 * every id must have bytes, and where nothing may change the text (no
 * normalizer, no added tokens, no space in front) the bytes must be the text. */
#include "text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int condition)
{
    if (!condition) abort();
}

static bool keeps_text(const mox_tokenizer *t)
{
    for (int i = 0; i < t->split.n; i++) {
        if (t->split.stage[i].prefix_space) return false;
    }
    return !t->nfc && t->added.n_tokens == 0 && t->added_normalized.n_tokens == 0;
}

static void encode(const mox_tokenizer *t, const char *text, size_t n, unsigned flags)
{
    mox_tokens tokens = {0};
    mox_err err;
    size_t at = 0;
    const mox_status status = mox_tokenizer_encode(t, text, n, flags, &tokens, &err);
    check(status == MOX_OK || status == MOX_E_UNSUPPORTED); /* a pattern may run into its limits */
    for (int64_t i = 0; i < tokens.n; i++) {
        size_t length;
        const char *bytes = mox_tokenizer_bytes(t, tokens.ids[i], &length);
        check(bytes != NULL);
        if (keeps_text(t)) check(at + length <= n && memcmp(bytes, text + at, length) == 0);
        at += length;
    }
    if (status == MOX_OK && keeps_text(t)) check(at == n);
    mox_tokens_free(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {"Hello, world! It's 2026 <s> <think>",
                                        "aaaa  \n\n bb\tcc \xE4\xB8\xAD\xC3\xA9 e\xCC\x81",
                                        "\xFF\xC3 \xED\xA0\x80 \xF0\x9F\x98\x80"};
    mox_tokenizer *t;
    mox_err err;
    const mox_status status = mox_tokenizer_open_memory(&t, "input", (const char *)data, size, NULL, 0, &err);
    check((status == MOX_OK) == (t != NULL));
    if (status != MOX_OK) {
        check(err.status == status && strlen(err.msg) > 0);
        return 0;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        encode(t, texts[i], strlen(texts[i]), MOX_ENCODE_PLAIN);
        encode(t, texts[i], strlen(texts[i]), MOX_ENCODE_SPECIAL);
    }
    encode(t, (const char *)data, size < 4096 ? size : 4096,
           MOX_ENCODE_SPECIAL); /* its own text: added tokens are in it */
    mox_tokenizer_close(&t);
    return 0;
}
