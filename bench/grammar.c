/* bench/grammar.c -- what a grammar costs per token: the mask of all tokens, and the question
 * after one.
 *
 *     bench/grammar DIR
 *
 * DIR holds a tokenizer.json.  Each line is a place in a reply: a schema, and the text before.
 * Times are medians of 51, in microseconds of wall time. */
#include "base/clock.h"
#include "moxie/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 51 };

static const struct {
    const char *name, *schema, *before;
} places[] = {
    {"object, before its first key", "{\"properties\": {\"name\": {}, \"age\": {}}, \"required\": [\"name\"]}", "{"},
    {"any value", "true", ""},
    {"any object, before a key", "{\"type\": \"object\"}", "{"},
    {"string", "{\"type\": \"string\"}", "\"The "},
    {"string of at most 2000", "{\"type\": \"string\", \"maxLength\": 2000}", "\"The "},
    {"string of at most 20", "{\"type\": \"string\", \"maxLength\": 20}", "\"The "},
    {"string, other names", "{\"properties\": {\"a\": {}}, \"additionalProperties\": true}", "{\"b"},
    {"pattern of letters", "{\"type\": \"string\", \"pattern\": \"^[A-Za-z ]+$\"}", "\"The"},
    {"pattern, anything but <", "{\"type\": \"string\", \"pattern\": \"^[^<]*$\"}", "\"The"},
    {"pattern of words", "{\"type\": \"string\", \"pattern\": \"^\\\\w+( \\\\w+)*$\"}", "\"The"},
    {"pattern with a length", "{\"type\": \"string\", \"pattern\": \"^.*$\", \"maxLength\": 300}", "\"The"},
    {"date", "{\"type\": \"string\", \"format\": \"date\"}", "\"202"},
    {"number", "{\"type\": \"number\"}", "1"},
    {"integer between bounds", "{\"type\": \"integer\", \"minimum\": 17, \"maximum\": 123456}", "1"},
    {"choice of 200 words", NULL, "\"w"},
};

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static double measure(mox_constraint *c, unsigned char *mask, int64_t n, int32_t token)
{
    double times[ROUNDS];
    mox_err err;
    for (int i = 0; i < ROUNDS; i++) {
        bool yes;
        const double begin = mox_clock_now();
        const mox_status status = mask ? mox_constraint_mask(c, mask, n, &err) : mox_constraint_allows(c, token, &yes, &err);
        times[i] = (mox_clock_now() - begin) * 1e6;
        if (status != MOX_OK) die(err.msg);
    }
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    mox_tokenizer *t;
    mox_token_trie *trie;
    mox_err err;
    if (argc != 2) die("usage: bench/grammar DIR");
    if (mox_tokenizer_open(&t, argv[1], &err) != MOX_OK) die(err.msg);
    const double begin = mox_clock_now();
    if (mox_token_trie_create(&trie, t, &err) != MOX_OK) die(err.msg);
    const int64_t n = mox_tokenizer_size(t);
    printf("%lld tokens, trie made in %.0f ms\n%-32s %8s %10s %10s\n", (long long)n, (mox_clock_now() - begin) * 1e3, "place", "allowed", "mask us", "token us");
    unsigned char *mask = malloc((size_t)n);
    char *words = malloc(4096), *p = stpcpy(words, "{\"enum\": [\"w\"");
    for (int i = 0; i < 200; i++) p += sprintf(p, ", \"word%d\"", i);
    strcpy(p, "]}");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *schema = places[i].schema ? places[i].schema : words;
        mox_grammar *g;
        mox_constraint *c;
        int64_t allowed = 0;
        int32_t some = 0;
        if (mox_grammar_create_schema(&g, (mox_json_text){schema, strlen(schema)}, NULL, &err) != MOX_OK) die(err.msg);
        if (mox_constraint_create(&c, g, trie, NULL, 0, &err) != MOX_OK) die(err.msg);
        if (mox_constraint_accept_bytes(c, places[i].before, strlen(places[i].before), &err) != MOX_OK) die(err.msg);
        const double mask_us = measure(c, mask, n, 0);
        for (int64_t k = 0; k < n; k++) {
            allowed += mask[k];
            if (mask[k]) some = (int32_t)k;
        }
        printf("%-32s %8lld %10.1f %10.2f\n", places[i].name, (long long)allowed, mask_us, measure(c, NULL, 0, some));
        mox_constraint_destroy(&c);
        mox_grammar_destroy(&g);
    }
    free(words);
    free(mask);
    mox_token_trie_destroy(&trie);
    mox_tokenizer_close(&t);
    return 0;
}
