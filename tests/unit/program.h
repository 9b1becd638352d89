/* tests/unit/program.h -- the whole program inside a test, which can then change what lies below
 * it: the test links the program's sources, with -Dmain=program_main. */
#ifndef TESTS_PROGRAM_H
#define TESTS_PROGRAM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int main(int argc, char **argv); /* program_main */

enum { ROOM = 4096 };

typedef struct outcome {
    int code;
    char out[ROOM], err[ROOM];
} outcome;

static inline void read_back(int fd, char *text)
{
    const ssize_t n = pread(fd, text, ROOM - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
}

/* Runs the program with its two streams in files. */
static inline outcome moxie(const char *const *words)
{
    outcome o;
    char *argv[16] = {(char *)(uintptr_t) "moxie"};
    int argc = 1;
    while (words[argc - 1]) {
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
        argc++;
    }
    int kept[2], files[2];
    (void)fflush(NULL);
    for (int i = 0; i < 2; i++) {
        char name[] = "/tmp/moxie-test-XXXXXX";
        files[i] = mkstemp(name);
        assert_true(files[i] >= 0);
        (void)unlink(name);
        kept[i] = dup(i + 1);
        assert_true(dup2(files[i], i + 1) >= 0);
    }
    o.code = main(argc, argv);
    (void)fflush(NULL);
    for (int i = 0; i < 2; i++) {
        (void)dup2(kept[i], i + 1);
        (void)close(kept[i]);
    }
    read_back(files[0], o.out);
    read_back(files[1], o.err);
    for (int i = 0; i < 2; i++) (void)close(files[i]);
    return o;
}

#endif
