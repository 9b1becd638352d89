/* tests/fuzz/run_corpus.c -- runs every file of the folders given as arguments
 * through a fuzz target, with any compiler.  What a fuzzer once found stays in
 * the corpus and is tried here on every test run. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    enum { MAX = 1 << 20 };
    uint8_t *big = malloc(MAX);
    if (!big) abort();
    const size_t n = fread(big, 1, MAX, f);
    fclose(f);
    /* A buffer of the exact size, so that a sanitizer sees a read past its end. */
    uint8_t *data = malloc(n ? n : 1);
    if (!data) abort();
    for (size_t i = 0; i < n; i++) data[i] = big[i];
    free(big);
    (void)LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int failures = 0, files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            perror(argv[i]);
            return 1;
        }
        const struct dirent *entry;
        while ((entry = readdir(d)) != NULL) {
            if (entry->d_name[0] == '.') continue;
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            failures += run_file(path);
            files++;
        }
        closedir(d);
    }
    printf("%d files\n", files);
    return failures || files == 0;
}
