/* app/cli/cache.h -- the folder for what can be lost at any time: $XDG_CACHE_HOME/moxie, else ~/.cache/moxie. */
#ifndef MOX_APP_CLI_CACHE_H
#define MOX_APP_CLI_CACHE_H

/* The path of a file there (mox_free); NULL when there is no such folder or no memory. */
char *mox_cli_cache_path(const char *name);
/* Makes the folder, if it can be made. */
void mox_cli_cache_make(void);

#endif
