/* tests/metal/fake.h -- an Objective-C runtime with a made-up Metal, for machines that have neither.
 *
 * It answers the messages that dev/metal sends, and runs kernels: those of the text that Metal would
 * compile, compiled by clang against shim/.  Commands take place when they are waited for and no
 * sooner, and memory has other addresses for the GPU than for the processor, so who does not wait, or
 * follows the wrong address, is found out.  Objects are counted; misuse is noted. */
#ifndef TESTS_METAL_FAKE_H
#define TESTS_METAL_FAKE_H

#include <stdbool.h>
#include <stdint.h>

/* What goes wrong. */
typedef enum fake_wish {
    FAKE_FINE = 0,
    FAKE_NO_DEVICE,
    FAKE_OLD_DEVICE,
    FAKE_MEMORY_APART,
    FAKE_NO_QUEUE,
    FAKE_NO_STRING,
    FAKE_NO_LIBRARY,
    FAKE_NO_FUNCTION,
    FAKE_NO_PIPELINE,
    FAKE_FEW_THREADS,
    FAKE_MANY_LANES,
    FAKE_OPENING, /* up to here opening fails */
    FAKE_NO_BUFFER,
    FAKE_NO_COMMANDS,
    FAKE_NO_ENCODER,
    FAKE_LOST /* commands fail when they run */
} fake_wish;

typedef struct fake_metal_state {
    fake_wish wish;
    int64_t n_objects, n_pools; /* alive */
    int64_t n_commands, n_run;  /* command buffers that were sent; launches that took place */
    char misuse[512];           /* the first, empty: none */
} fake_metal_state;

__attribute__((visibility("default"))) extern fake_metal_state fake_metal;

#endif
