/* tests/fuzz/fuzz_index.c -- model.safetensors.index.json of any bytes.  What the
 * walk reports must be plain file names, each shard once and in order, and every
 * shard before the first tensor. */
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct seen {
    char last[256];
    int64_t shards, entries;
} seen;

static void promise(int kept)
{
    if (!kept) abort();
}

static void check_name(const char *name)
{
    const size_t n = strlen(name);
    promise(n > 12 && n < 256 && strcmp(name + n - 12, ".safetensors") == 0 && !strchr(name, '/') &&
            !strstr(name, ".."));
}

static mox_status shard(void *user, const char *file_name, mox_err *err)
{
    (void)err;
    seen *s = user;
    check_name(file_name);
    promise(s->entries == 0 && (s->shards == 0 || strcmp(s->last, file_name) < 0));
    strcpy(s->last, file_name);
    s->shards++;
    return MOX_OK;
}

static mox_status entry(void *user, const char *tensor, const char *file_name, mox_err *err)
{
    seen *s = user;
    check_name(file_name);
    s->entries++;
    return strcmp(tensor, "stop") == 0 ? mox_fail(err, MOX_E_CANCELLED, "stopped") : MOX_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    seen s = {0};
    const mox_index_walk walk = {.shard = shard, .entry = entry, .user = &s}, nothing = {0};
    mox_err err = {0};
    const mox_status status = mox_index_parse("input", (const char *)data, n, &walk, &err);
    if (status == MOX_OK)
        promise(s.entries >= s.shards && s.shards > 0);
    else
        promise(err.status == status && err.msg[0] != '\0');
    const mox_status again = mox_index_parse("input", (const char *)data, n, &nothing, NULL);
    promise(again == (status == MOX_E_CANCELLED ? MOX_OK : status));
    return 0;
}
