/* tokenizer_kit.h -- small tokenizer.json texts for tests: the 256 bytes with ids
 * 0 to 255 and whatever a test adds.  Shared with the fuzzer's neighbours. */
#ifndef TOKENIZER_KIT_H
#define TOKENIZER_KIT_H

#include "text/tokenizer_internal.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON values and list parts; NULL means the default. */
typedef struct kit {
    const char *vocab;      /* more entries: ",\"ab\":256"; default none */
    const char *merges;     /* elements: "[\"a\",\"b\"]"; default none */
    const char *added;      /* elements; default none */
    const char *normalizer; /* default null */
    const char *pre;        /* default ByteLevel without regex or space */
    const char *post;       /* default null */
    const char *decoder;    /* default ByteLevel */
    const char *model;      /* more fields: ",\"ignore_merges\":true"; default none */
} kit;

#define KIT_BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define KIT_SPLIT(pattern) "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"Isolated\",\"invert\":false}"
#define KIT_SEQUENCE(steps) "{\"type\":\"Sequence\",\"pretokenizers\":[" steps "]}"
#define KIT_QWEN2                                                                                                      \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "                                  \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"                                                                         \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* The character that spells a byte, written out from the definition: bytes that
 * print are themselves, the others count up from U+0100. */
static uint32_t kit_spelling(unsigned byte)
{
    uint32_t next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        const int prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        if (b == byte) return prints ? b : next;
        if (!prints) next++;
    }
    return 0;
}

static void kit_put(char *text, size_t size, size_t *n, const char *part)
{
    const size_t length = strlen(part);
    if (*n + length >= size) abort();
    memcpy(text + *n, part, length + 1);
    *n += length;
}

/* The text, to be freed. */
static char *kit_json(const kit *k)
{
    const size_t size = 16384 + (k->vocab ? strlen(k->vocab) : 0) + (k->added ? strlen(k->added) : 0) +
                        (k->merges ? strlen(k->merges) : 0);
    char *text = malloc(size), entry[64];
    size_t n = 0;
    if (!text) abort();
    const char *const parts[][2] = {{"{\"added_tokens\":[", k->added ? k->added : ""},
                                    {"],\"normalizer\":", k->normalizer ? k->normalizer : "null"},
                                    {",\"pre_tokenizer\":", k->pre ? k->pre : KIT_BYTE_LEVEL},
                                    {",\"post_processor\":", k->post ? k->post : "null"},
                                    {",\"decoder\":", k->decoder ? k->decoder : "{\"type\":\"ByteLevel\"}"},
                                    {",\"model\":{\"type\":\"BPE\"", k->model ? k->model : ""},
                                    {",\"merges\":[", k->merges ? k->merges : ""},
                                    {"],\"vocab\":{", ""}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        kit_put(text, size, &n, parts[i][0]);
        kit_put(text, size, &n, parts[i][1]);
    }
    for (unsigned b = 0; b < 256; b++) {
        unsigned char spelled[5] = {0};
        mox_utf8_encode(kit_spelling(b), spelled);
        snprintf(entry, sizeof entry, "%s\"%s%s\":%u", b ? "," : "", b == '"' || b == '\\' ? "\\" : "",
                 (const char *)spelled, b);
        kit_put(text, size, &n, entry);
    }
    kit_put(text, size, &n, k->vocab ? k->vocab : "");
    kit_put(text, size, &n, "}}}");
    return text;
}

static mox_status kit_open(mox_tokenizer **t, const kit *k, const char *config, mox_err *err)
{
    char *text = kit_json(k);
    const mox_status status =
        mox_tokenizer_open_memory(t, "tokenizer.json", text, strlen(text), config, config ? strlen(config) : 0, err);
    free(text);
    return status;
}

#endif
