/* bench/tokenizer.c -- how fast a tokenizer opens and encodes.
 *
 *     bench/tokenizer DIR [MEGABYTES]
 *
 * DIR holds a tokenizer.json.  The text is made here: sentences over a list of
 * common and rarer words, with punctuation, numbers and paragraphs, the same on
 * every machine; then one long run of one letter, of spaces and of combining
 * marks, where a merge that is not linear would show.  Times are processor time,
 * so that neighbours count little, and the best of five. */
#include "base/rng.h"
#include "moxie/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 5 };

static const char *const words[] = {"the",
                                    "of",
                                    "and",
                                    "to",
                                    "a",
                                    "in",
                                    "that",
                                    "it",
                                    "was",
                                    "for",
                                    "on",
                                    "with",
                                    "as",
                                    "his",
                                    "they",
                                    "be",
                                    "at",
                                    "one",
                                    "have",
                                    "this",
                                    "from",
                                    "or",
                                    "had",
                                    "by",
                                    "hot",
                                    "word",
                                    "but",
                                    "what",
                                    "some",
                                    "we",
                                    "can",
                                    "out",
                                    "other",
                                    "were",
                                    "all",
                                    "there",
                                    "when",
                                    "up",
                                    "use",
                                    "your",
                                    "how",
                                    "said",
                                    "an",
                                    "each",
                                    "she",
                                    "which",
                                    "their",
                                    "time",
                                    "will",
                                    "way",
                                    "about",
                                    "many",
                                    "then",
                                    "them",
                                    "write",
                                    "would",
                                    "like",
                                    "so",
                                    "these",
                                    "her",
                                    "long",
                                    "make",
                                    "thing",
                                    "see",
                                    "him",
                                    "two",
                                    "has",
                                    "look",
                                    "more",
                                    "day",
                                    "could",
                                    "go",
                                    "come",
                                    "did",
                                    "number",
                                    "sound",
                                    "no",
                                    "most",
                                    "people",
                                    "my",
                                    "over",
                                    "know",
                                    "water",
                                    "than",
                                    "call",
                                    "first",
                                    "who",
                                    "may",
                                    "down",
                                    "side",
                                    "been",
                                    "now",
                                    "find",
                                    "any",
                                    "new",
                                    "work",
                                    "part",
                                    "take",
                                    "get",
                                    "place",
                                    "made",
                                    "live",
                                    "where",
                                    "after",
                                    "back",
                                    "little",
                                    "only",
                                    "round",
                                    "man",
                                    "year",
                                    "came",
                                    "show",
                                    "every",
                                    "good",
                                    "me",
                                    "give",
                                    "our",
                                    "under",
                                    "name",
                                    "very",
                                    "through",
                                    "just",
                                    "form",
                                    "sentence",
                                    "great",
                                    "think",
                                    "say",
                                    "help",
                                    "low",
                                    "line",
                                    "differ",
                                    "turn",
                                    "cause",
                                    "much",
                                    "mean",
                                    "before",
                                    "move",
                                    "right",
                                    "boy",
                                    "old",
                                    "too",
                                    "lighthouse",
                                    "keeper",
                                    "archipelago",
                                    "unhurriedly",
                                    "barnacled",
                                    "quarrelsome",
                                    "fishermen",
                                    "thermodynamic",
                                    "equilibrium",
                                    "counterintuitive",
                                    "photosynthesis",
                                    "Mediterranean",
                                    "don't",
                                    "we've",
                                    "keeper's",
                                    "it's",
                                    "wheelwright",
                                    "gossamer",
                                    "half-forgotten",
                                    "Kierkegaard",
                                    "semaphore",
                                    "1914",
                                    "27",
                                    "3,500",
                                    "reconnaissance",
                                    "juxtaposition",
                                    "ombudsman",
                                    "brackish",
                                    "tessellated",
                                    "Ljubljana",
                                    "well-tempered",
                                    "flibbertigibbet"};

static size_t make_prose(char *dst, size_t size)
{
    mox_rng rng;
    mox_rng_init(&rng, 7);
    size_t n = 0, in_sentence = 0;
    while (n + 64 < size) {
        const size_t count = sizeof words / sizeof *words;
        const double unit = mox_rng_unit(&rng); /* squared: the front of the list is the common part */
        const char *word = words[(size_t)(unit * unit * (double)count)];
        const size_t length = strlen(word), at = n;
        memcpy(dst + n, word, length);
        n += length;
        if (in_sentence++ == 0 && dst[at] >= 'a' && dst[at] <= 'z') dst[at] = (char)(dst[at] - 'a' + 'A');
        const uint64_t roll = mox_rng_u64(&rng) % 100;
        if (in_sentence > 5 && roll < 12) {
            memcpy(dst + n, roll < 2 ? "!\n\n" : roll < 4 ? "?\n" : ". ", 3);
            n += roll < 2 ? 3 : 2;
            in_sentence = 0;
        } else {
            memcpy(dst + n, roll > 93 ? ", " : roll == 93 ? "; " : " ", 2);
            n += roll >= 93 ? 2 : 1;
        }
    }
    return n;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int fail(const mox_err *err)
{
    fprintf(stderr, "bench/tokenizer: %s\n", err->msg);
    return 1;
}

static int bench_text(const mox_tokenizer *t, const char *name, const char *text, size_t n)
{
    mox_err err;
    double best = 1e30;
    int64_t n_tokens = 0;
    for (int i = 0; i < ROUNDS; i++) {
        mox_tokens tokens = {0};
        const double begin = now();
        if (mox_tokenizer_encode(t, text, n, MOX_ENCODE_PLAIN, &tokens, &err) != MOX_OK) return fail(&err);
        const double seconds = now() - begin;
        if (seconds < best) best = seconds;
        n_tokens = tokens.n;
        mox_tokens_free(&tokens);
    }
    printf("%-16s %9zu bytes %9lld tokens %8.1f ms %7.1f MB/s\n", name, n, (long long)n_tokens, best * 1e3,
           (double)n / best * 1e-6);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench/tokenizer DIR [MEGABYTES]\n");
        return 2;
    }
    const size_t size = (argc > 2 ? (size_t)strtoul(argv[2], NULL, 10) : 8) << 20;
    char *text = malloc(size + 64);
    if (!text) return 1;
    mox_tokenizer *t = NULL;
    mox_err err;
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        mox_tokenizer_close(&t);
        const double begin = now();
        if (mox_tokenizer_open(&t, argv[1], &err) != MOX_OK) return fail(&err);
        if (now() - begin < best) best = now() - begin;
    }
    printf("%-16s %8.1f ms\n", "open", best * 1e3);
    int failed = bench_text(t, "prose", text, make_prose(text, size));
    const size_t mib = size < 1 << 20 ? size : 1 << 20;
    memset(text, 'Z', mib);
    failed |= bench_text(t, "one letter", text, mib);
    memset(text, ' ', mib);
    failed |= bench_text(t, "spaces", text, mib);
    for (size_t i = 0; i + 1 < mib; i += 2) memcpy(text + i, i / 2 % 2 ? "\xCC\x81" : "\xCC\xA7", 2);
    failed |= bench_text(t, "combining marks", text, mib / 2 * 2);
    mox_tokenizer_close(&t);
    free(text);
    return failed;
}
