/* app/cli/cache.c -- see cache.h.  A variable that is no absolute path counts as not set. */
#include "app/cli/cache.h"

#include "base/alloc.h"
#include "base/file.h"

#include <stdlib.h>
#include <sys/stat.h>

/* Where folders of programs are; owned. */
static char *find_base(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') return mox_strdup(cache);
    return home && *home == '/' ? mox_path_join(home, ".cache") : NULL;
}

static char *find_folder(const char *base) { return base ? mox_path_join(base, "moxie") : NULL; }

char *mox_cli_cache_path(const char *name)
{
    char *base = find_base(), *folder = find_folder(base);
    char *path = folder ? mox_path_join(folder, name) : NULL;
    mox_free(folder);
    mox_free(base);
    return path;
}

void mox_cli_cache_make(void)
{
    char *base = find_base(), *folder = find_folder(base);
    if (folder) {
        (void)mkdir(base, 0700);
        (void)mkdir(folder, 0700);
    }
    mox_free(folder);
    mox_free(base);
}
