/* app/cli/complete.c -- completion of commands.
 *
 * Names with control characters are never offered: the list is printed as it is.  Out of
 * memory means that there is nothing to offer. */
#include "app/cli/complete.h"

#include "app/cli/slash.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LIST_MAX = 200 };

static bool is_harmless(const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (mox_cli_control_bytes(name + i, n - i) > 0) return false;
    return true;
}

static void offer(mox_cli_candidates *c, const char *name, const char *typed)
{
    if (strncmp(name, typed, strlen(typed)) != 0 || !is_harmless(name) || c->n == LIST_MAX) return;
    if (c->n == c->capacity) {
        const size_t capacity = 2 * c->capacity + 16;
        char **bigger = mox_realloc_array(c->list, capacity, sizeof *bigger);
        if (!bigger) return;
        c->list = bigger;
        c->capacity = capacity;
    }
    c->list[c->n] = mox_strdup(name);
    if (c->list[c->n]) c->n++;
}

static void offer_all(mox_cli_candidates *c, const char *const *names, const char *typed)
{
    for (; *names; names++) offer(c, *names, typed);
}

/* Entries of the folder that typed is in; ~/ is the home folder. */
static void offer_files(mox_cli_candidates *c, const char *typed)
{
    const char *slash = strrchr(typed, '/'), *name = slash ? slash + 1 : typed;
    const char *home = getenv("HOME");
    char folder[4096], entry[8192];
    const bool at_home = strncmp(typed, "~/", 2) == 0 && home;
    if (!slash) (void)snprintf(folder, sizeof folder, ".");
    else (void)snprintf(folder, sizeof folder, "%s%.*s", at_home ? home : "", (int)(slash + 1 - typed - at_home), typed + at_home);
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (const struct dirent *d; (d = readdir(dir));) {
        struct stat st;
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 || (d->d_name[0] == '.' && name[0] != '.')) continue;
        (void)snprintf(entry, sizeof entry, "%s/%s", folder, d->d_name);
        const bool is_folder = stat(entry, &st) == 0 && S_ISDIR(st.st_mode);
        (void)snprintf(entry, sizeof entry, "%s%s", d->d_name, is_folder ? "/" : "");
        offer(c, entry, name);
    }
    closedir(dir);
}

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* What is common to the list beyond the bytes that are typed, cut between characters; a
 * single one that is complete is followed by a blank. */
static void find_common(mox_cli_candidates *c, size_t typed)
{
    if (c->n == 0) return;
    qsort(c->list, c->n, sizeof *c->list, compare);
    const char *first = c->list[0], *last = c->list[c->n - 1];
    size_t n = 0;
    while (first[n] && first[n] == last[n]) n++;
    while (n > typed && ((unsigned char)first[n] & 0xC0) == 0x80) n--;
    if (n < typed || n - typed + 2 > sizeof c->insert) return;
    memcpy(c->insert, first + typed, n - typed);
    c->insert[n - typed] = '\0';
    if (c->n == 1 && n > 0 && first[n - 1] != '/') strcat(c->insert, " ");
}

void mox_cli_complete(const char *line, size_t n, mox_cli_candidates *out)
{
    char text[4096];
    if (n == 0 || n >= sizeof text || line[0] != '/') return;
    memcpy(text, line, n);
    text[n] = '\0';
    char *word = strchr(text, ' ');
    if (!word) {
        offer_all(out, mox_cli_slash_names(), text + 1);
        find_common(out, n - 1);
        return;
    }
    *word++ = '\0';
    while (*word == ' ') word++;
    char *value = strchr(word, ' ');
    if (mox_cli_slash_takes_file(text + 1)) {
        offer_files(out, word);
        const char *slash = strrchr(word, '/');
        find_common(out, strlen(slash ? slash + 1 : word));
    } else if (strcmp(text + 1, "set") == 0 && !value) {
        offer_all(out, mox_cli_slash_settings(), word);
        find_common(out, strlen(word));
    }
}

void mox_cli_candidates_free(mox_cli_candidates *c)
{
    for (size_t i = 0; i < c->n; i++) mox_free(c->list[i]);
    mox_free(c->list);
    *c = (mox_cli_candidates){0};
}
