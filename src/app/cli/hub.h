/* app/cli/hub.h -- models in the Hugging Face cache of this machine.
 *
 * A reference is ORG/NAME, or ORG/NAME@REV where REV is a ref (main, refs/pr/1), a commit
 * or the unique beginning of one.  Nothing here reaches the network. */
#ifndef MOX_APP_CLI_HUB_H
#define MOX_APP_CLI_HUB_H

#include "moxie.h"

/* The environment that says where the cache is; NULL and "" are unset. */
typedef struct mox_hub_env {
    const char *hf_hub_cache, *huggingface_hub_cache, *hf_home, *xdg_cache_home, *home;
} mox_hub_env;
mox_hub_env mox_hub_environment(void);

/* The cache's folder, whether or not it is there (mox_free); the first name that is set
 * decides.  MOX_E_NOT_FOUND when not even HOME is. */
mox_status mox_hub_root(const mox_hub_env *env, char **out, mox_err *err);

/* The folder of the model (mox_free).  MOX_E_NOT_FOUND says what was looked for and what
 * is there instead. */
mox_status mox_hub_find(const mox_hub_env *env, const char *reference, char **out, mox_err *err);

/* What is left over of a download into the snapshot that was not finished. */
typedef struct mox_hub_rest {
    int64_t n_dangling; /* files of the snapshot whose contents are not there */
    int64_t n_partial;  /* files of the repository that arrived in part */
    char first[256];    /* one of the dangling, or "" */
} mox_hub_rest;
mox_hub_rest mox_hub_unfinished(const char *snapshot);

/* One model of the cache: a snapshot, or a repository without any. */
typedef struct mox_hub_entry {
    char *reference; /* what mox_hub_find takes */
    char *commit;    /* NULL without a snapshot */
    char *folder;    /* of the snapshot, or of the repository */
    char *problem;   /* why there is no snapshot; NULL when there is */
    bool unreadable; /* the system refuses to say whether there is one */
} mox_hub_entry;

typedef struct mox_hub_list {
    mox_hub_entry *entries; /* sorted by reference */
    size_t n, room;
} mox_hub_list;

/* An empty list when there is no cache. */
mox_status mox_hub_scan(const char *root, mox_hub_list *out, mox_err *err);
void mox_hub_list_free(mox_hub_list *l); /* zeroed storage is fine */

#endif
