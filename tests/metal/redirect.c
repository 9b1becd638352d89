/* tests/metal/redirect.c -- a program that this is linked into finds the made-up Metal (fake.h) where it
 * looks for Apple's. */
#include <dlfcn.h>
#include <string.h>

void *dlopen(const char *path, int mode)
{
    void *(*real)(const char *, int) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    const int is_metal = path && strcmp(path, "/System/Library/Frameworks/Metal.framework/Metal") == 0;
    return real(is_metal ? FAKE_METAL : path, mode);
}
