/* tests/unit/made_up_machine.h -- files of /proc and /sys below a folder of the test's own, for
 * the functions of base/machine.h.  Included once, behind cmocka. */
#ifndef MADE_UP_MACHINE_H
#define MADE_UP_MACHINE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char root[64];

static inline int new_machine(void **state)
{
    (void)state;
    strcpy(root, "/tmp/moxie-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static inline int remove_machine(void **state)
{
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

/* A file of the machine, with the folders above it. */
static void put(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0700) != 0) assert_int_equal(errno, EEXIST);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

#endif
