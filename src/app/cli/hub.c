/* app/cli/hub.c -- finding models in the Hugging Face cache.
 *
 *   ROOT/models--ORG--NAME/refs/REV                 a file with a commit
 *                          snapshots/COMMIT/FILE    links into blobs, or files
 *                          blobs/HASH[.incomplete]
 *
 * Refuses: names of repositories and revisions that are not words of letters, digits and
 * underscores between single separators, and refs whose contents are not a commit.  So
 * no text from outside can lead out of the cache. */
#include "app/cli/hub.h"

#include "app/cli/options.h"
#include "base/alloc.h"
#include "base/err.h"
#include "base/file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = 256, COMMIT_BYTES = 64, SHORT_COMMIT = 8 };

static const char prefix[] = "models--";

/* ---- names ----------------------------------------------------------------- */

/* Words of [A-Za-z0-9_] with single separators between them; returns the number of
 * slashes, -1 when it is no name. */
static int check_name(const char *s, size_t n)
{
    int slashes = 0;
    bool word = false;
    if (n > NAME_BYTES) return -1;
    for (size_t i = 0; i < n; i++) {
        const bool letter = isalnum((unsigned char)s[i]) || s[i] == '_';
        if (!letter && (!word || !strchr("/.-", s[i]))) return -1;
        slashes += s[i] == '/';
        word = letter;
    }
    return word ? slashes : -1;
}

static bool is_commit(const char *s, size_t n)
{
    return n > 0 && n <= COMMIT_BYTES && strspn(s, "0123456789abcdef") >= n;
}

/* A reference in its two parts; revision is NULL when none is named. */
typedef struct parts {
    size_t n_id;
    const char *revision;
} parts;

static bool split(const char *reference, parts *out)
{
    const char *at = strchr(reference, '@');
    out->n_id = at ? (size_t)(at - reference) : strlen(reference);
    out->revision = at ? at + 1 : NULL;
    return check_name(reference, out->n_id) == 1 && (!at || check_name(at + 1, strlen(at + 1)) >= 0);
}

/* models--ORG--NAME -> ORG/NAME; false for other folders. */
static bool id_of_folder(const char *folder, char out[NAME_BYTES + 1])
{
    if (strncmp(folder, prefix, sizeof prefix - 1) != 0) return false;
    const char *org = folder + sizeof prefix - 1, *dashes = strstr(org, "--");
    if (!dashes) return false;
    const int n = snprintf(out, NAME_BYTES + 1, "%.*s/%s", (int)(dashes - org), org, dashes + 2);
    return n > 0 && n <= NAME_BYTES && check_name(out, (size_t)n) == 1;
}

/* ---- where the cache is ---------------------------------------------------- */

mox_hub_env mox_hub_environment(void)
{
    return (mox_hub_env){.hf_hub_cache = getenv("HF_HUB_CACHE"),
                         .huggingface_hub_cache = getenv("HUGGINGFACE_HUB_CACHE"),
                         .hf_home = getenv("HF_HOME"),
                         .xdg_cache_home = getenv("XDG_CACHE_HOME"),
                         .home = getenv("HOME")};
}

mox_status mox_hub_root(const mox_hub_env *env, char **out, mox_err *err)
{
    const struct {
        const char *folder, *below;
    } places[] = {{env->hf_hub_cache, ""},
                  {env->huggingface_hub_cache, ""},
                  {env->hf_home, "/hub"},
                  {env->xdg_cache_home, "/huggingface/hub"},
                  {env->home, "/.cache/huggingface/hub"}};
    *out = NULL;
    size_t i = 0;
    while (i < 5 && !(places[i].folder && *places[i].folder)) i++;
    if (i == 5)
        return mox_fail(err, MOX_E_NOT_FOUND,
                        "the Hugging Face cache cannot be found: neither HF_HUB_CACHE nor HOME is set");
    const char *folder = places[i].folder;
    const bool tilde = folder[0] == '~' && (folder[1] == '/' || folder[1] == '\0') && env->home;
    const char *start = tilde ? env->home : "", *rest = folder + (tilde ? 1 : 0);
    const size_t n = strlen(start) + strlen(rest) + strlen(places[i].below) + 1;
    *out = mox_alloc(n);
    if (!*out) return mox_fail_memory(err, n, "a file name");
    (void)snprintf(*out, n, "%s%s%s", start, rest, places[i].below);
    return MOX_OK;
}

/* ---- folders --------------------------------------------------------------- */

/* The names in a folder that a filter wants, sorted. */
typedef struct names {
    char **list; /* ended by NULL once it is read */
    size_t n;
} names;

static void names_free(names *a)
{
    for (size_t i = 0; i < a->n; i++) mox_free(a->list[i]);
    mox_free(a->list);
    *a = (names){0};
}

static mox_status names_add(names *a, char *owned, mox_err *err)
{
    char **grown = owned ? mox_realloc_array(a->list, a->n + 2, sizeof *grown) : NULL;
    if (!grown) {
        mox_free(owned);
        return mox_fail_memory(err, (a->n + 2) * sizeof *grown, "a list of names");
    }
    a->list = grown;
    grown[a->n++] = owned;
    grown[a->n] = NULL;
    return MOX_OK;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* MOX_E_NOT_FOUND when there is no such folder, MOX_E_IO when it cannot be read. */
static mox_status read_folder(const char *path, bool (*wanted)(const char *name), names *out, mox_err *err)
{
    *out = (names){0};
    DIR *d = opendir(path);
    if (!d) {
        const int why = errno; /* a name that is too long for the file system is not there either */
        return mox_fail(err, why == ENOENT || why == ENAMETOOLONG ? MOX_E_NOT_FOUND : MOX_E_IO,
                        "%s: cannot read the folder: %s", path, strerror(why));
    }
    mox_status status = MOX_OK;
    for (const struct dirent *e; status == MOX_OK && (e = readdir(d)) != NULL;)
        if (wanted(e->d_name)) status = names_add(out, mox_strdup(e->d_name), err);
    closedir(d);
    if (status != MOX_OK)
        names_free(out);
    else if (out->n > 0)
        qsort(out->list, out->n, sizeof *out->list, by_text);
    return status;
}

static bool is_repository(const char *name)
{
    char id[NAME_BYTES + 1];
    return id_of_folder(name, id);
}

static bool is_snapshot(const char *name) { return is_commit(name, strlen(name)); }

static bool is_partial(const char *name)
{
    static const char ending[] = ".incomplete";
    const size_t n = strlen(name), m = sizeof ending - 1;
    return n > m && strcmp(name + n - m, ending) == 0;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- repositories ---------------------------------------------------------- */

typedef struct repository {
    char *folder;
    names commits;               /* of its snapshots */
    char main[COMMIT_BYTES + 1]; /* what the ref main holds, or "" */
} repository;

static void repository_close(repository *r)
{
    mox_free(r->folder);
    names_free(&r->commits);
    *r = (repository){0};
}

/* The commit that refs/NAME holds; "" when there is no such ref, or nothing sensible in it. */
static mox_status read_ref(const repository *r, const char *name, char out[COMMIT_BYTES + 1], mox_err *err)
{
    out[0] = '\0';
    char *refs = mox_path_join(r->folder, "refs"), *path = refs ? mox_path_join(refs, name) : NULL,
         *text = NULL;
    size_t n = 0;
    mox_status status = path ? mox_file_slurp(path, COMMIT_BYTES + 2, &text, &n, err)
                             : mox_fail_memory(err, strlen(r->folder), "a file name");
    if (status == MOX_OK) {
        while (n > 0 && isspace((unsigned char)text[n - 1])) n--;
        if (is_commit(text, n)) (void)snprintf(out, COMMIT_BYTES + 1, "%.*s", (int)n, text);
    } else if (status != MOX_E_MEMORY)
        status = MOX_OK;
    mox_free(text);
    mox_free(path);
    mox_free(refs);
    return status;
}

/* On failure, too, r can be closed and its folder is there unless out of memory. */
static mox_status repository_open(repository *r, const char *root, const char *name, mox_err *err)
{
    *r = (repository){.folder = mox_path_join(root, name)};
    char *snapshots = r->folder ? mox_path_join(r->folder, "snapshots") : NULL;
    mox_status status = snapshots ? MOX_OK : mox_fail_memory(err, strlen(root), "a file name");
    if (status == MOX_OK) status = read_folder(snapshots, is_snapshot, &r->commits, err);
    if (status == MOX_E_NOT_FOUND && is_folder(r->folder))
        status = MOX_OK; /* a download that has just begun */
    if (status == MOX_OK) status = read_ref(r, "main", r->main, err);
    mox_free(snapshots);
    return status;
}

static const char *find_commit(const repository *r, const char *commit)
{
    for (size_t i = 0; i < r->commits.n; i++)
        if (strcmp(r->commits.list[i], commit) == 0) return r->commits.list[i];
    return NULL;
}

/* What the repository's name alone stands for; NULL when that is not clear. */
static const char *default_commit(const repository *r)
{
    if (r->main[0]) return find_commit(r, r->main);
    return r->commits.n == 1 ? r->commits.list[0] : NULL;
}

static int64_t count_partial(const char *repository_folder)
{
    names partial = {0};
    char *blobs = mox_path_join(repository_folder, "blobs");
    if (blobs) (void)read_folder(blobs, is_partial, &partial, NULL);
    const int64_t n = (int64_t)partial.n;
    names_free(&partial);
    mox_free(blobs);
    return n;
}

/* Short commits for a sentence: "1a2b3c4d, 5e6f7a8b and 3 more". */
static const char *list_commits(const repository *r, const char *beginning, char out[128])
{
    enum { SHOWN = 5 };
    int n = 0, used = 0;
    for (size_t i = 0; i < r->commits.n; i++) {
        if (strncmp(r->commits.list[i], beginning, strlen(beginning)) != 0) continue;
        if (n++ < SHOWN)
            used += snprintf(out + used, 128 - (size_t)used, "%s%.*s", n > 1 ? ", " : "", SHORT_COMMIT,
                             r->commits.list[i]);
    }
    if (n > SHOWN) (void)snprintf(out + used, 128 - (size_t)used, " and %d more", n - SHOWN);
    return out;
}

/* ---- looking for one ------------------------------------------------------- */

static mox_status fail_empty(const repository *r, int n_id, const char *id, mox_err *err)
{
    const int64_t partial = count_partial(r->folder);
    if (partial > 0)
        return mox_fail(
            err, MOX_E_NOT_FOUND,
            "%.*s: its download is unfinished (%lld file%s arrived in part); `hf download %.*s` finishes it",
            n_id, id, (long long)partial, partial == 1 ? "" : "s", n_id, id);
    return mox_fail(err, MOX_E_NOT_FOUND, "%.*s: %s has no snapshot of it; `hf download %.*s` gets one", n_id,
                    id, r->folder, n_id, id);
}

/* The commit that a revision, or without one the name alone, stands for. */
static mox_status choose(const repository *r, const char *id, const parts *p, const char **out, mox_err *err)
{
    const int n_id = (int)p->n_id;
    char commit[COMMIT_BYTES + 1], there[128];
    const char *revision = p->revision ? p->revision : "main";
    if (r->commits.n == 0) return fail_empty(r, n_id, id, err);
    MOX_TRY(read_ref(r, revision, commit, err));
    *out = commit[0] ? find_commit(r, commit) : NULL;
    if (*out) return MOX_OK;
    if (commit[0])
        return mox_fail(err, MOX_E_NOT_FOUND,
                        "%.*s: %s is commit %.*s, which is not in the cache (there: %s); `hf download %.*s "
                        "--revision %s` gets it",
                        n_id, id, revision, SHORT_COMMIT, commit, list_commits(r, "", there), n_id, id,
                        revision);
    if (!p->revision) {
        *out = default_commit(r);
        if (*out) return MOX_OK;
        return mox_fail(
            err, MOX_E_NOT_FOUND,
            "%.*s: the cache has several commits and none is main; name one as %.*s@COMMIT (there: %s)", n_id,
            id, n_id, id, list_commits(r, "", there));
    }
    int64_t n_matches = 0;
    for (size_t i = 0; i < r->commits.n; i++) {
        if (strncmp(r->commits.list[i], revision, strlen(revision)) != 0) continue;
        *out = r->commits.list[i];
        n_matches++;
        if (strcmp(*out, revision) == 0) return MOX_OK;
    }
    if (n_matches == 1) return MOX_OK;
    if (n_matches > 1)
        return mox_fail(err, MOX_E_NOT_FOUND,
                        "%s: %lld commits begin so (%s); give more of the one that is meant", id,
                        (long long)n_matches, list_commits(r, revision, there));
    return mox_fail(
        err, MOX_E_NOT_FOUND,
        "%.*s: the cache has no ref or commit %s (there: %s); `hf download %.*s --revision %s` gets it", n_id,
        id, revision, list_commits(r, "", there), n_id, id, revision);
}

/* The repository that a word without one was most likely meant to be, or NULL; a word
 * without a slash is the second half of a name. */
static const char *nearest(const char *word, const names *ids)
{
    if (ids->n == 0 || strchr(word, '/'))
        return ids->n ? mox_cli_nearest(word, (const char *const *)ids->list) : NULL;
    const char **halves = mox_alloc_array(ids->n + 1, sizeof *halves);
    if (!halves) return NULL;
    for (size_t i = 0; i < ids->n; i++) halves[i] = strchr(ids->list[i], '/') + 1;
    const char *half = mox_cli_nearest(word, halves), *found = NULL;
    for (size_t i = 0; i < ids->n && half; i++)
        if (halves[i] == half) found = ids->list[i];
    mox_free(halves);
    return found;
}

/* No such repository: says what is nearest to it. */
static mox_status fail_unknown(const char *root, const char *word, mox_err *err)
{
    names folders = {0}, ids = {0};
    mox_status status = read_folder(root, is_repository, &folders, NULL);
    char id[NAME_BYTES + 1];
    for (size_t i = 0; i < folders.n; i++)
        if (id_of_folder(folders.list[i], id)) (void)names_add(&ids, mox_strdup(id), NULL);
    const char *near = nearest(word, &ids);
    const bool half = !strchr(word, '/');
    if (near)
        status = mox_fail(err, MOX_E_NOT_FOUND,
                          "%s: no such folder, and not in the Hugging Face cache %s; did you mean %s?", word,
                          root, near);
    else if (status == MOX_E_IO)
        status = mox_fail(err, MOX_E_IO, "%s: no such folder, and the Hugging Face cache %s cannot be read",
                          word, root);
    else if (status == MOX_E_NOT_FOUND)
        status = mox_fail(
            err, MOX_E_NOT_FOUND,
            "%s: no such folder, and there is no Hugging Face cache at %s; `hf download %s%s` gets a model",
            word, root, half ? "ORG/" : "", word);
    else
        status =
            mox_fail(err, MOX_E_NOT_FOUND,
                     "%s: no such folder, and not in the Hugging Face cache %s, which `moxie list` shows; "
                     "`hf download %s%s` gets a model",
                     word, root, half ? "ORG/" : "", word);
    names_free(&folders);
    names_free(&ids);
    return status;
}

static mox_status find_in(const char *root, const char *reference, const parts *p, char **out, mox_err *err)
{
    const char *slash = strchr(reference, '/');
    char name[sizeof prefix + NAME_BYTES + 2];
    (void)snprintf(name, sizeof name, "%s%.*s--%.*s", prefix, (int)(slash - reference), reference,
                   (int)(reference + p->n_id - slash - 1), slash + 1);
    repository r;
    mox_status status = repository_open(&r, root, name, err);
    const char *commit = NULL;
    if (status == MOX_E_NOT_FOUND) {
        (void)snprintf(name, sizeof name, "%.*s", (int)p->n_id, reference);
        status = fail_unknown(root, name, err);
    }
    if (status == MOX_OK) status = choose(&r, reference, p, &commit, err);
    if (status == MOX_OK) {
        char *snapshots = mox_path_join(r.folder, "snapshots");
        *out = snapshots ? mox_path_join(snapshots, commit) : NULL;
        mox_free(snapshots);
        if (!*out) status = mox_fail_memory(err, NAME_BYTES, "a file name");
    }
    repository_close(&r);
    return status;
}

mox_status mox_hub_find(const mox_hub_env *env, const char *reference, char **out, mox_err *err)
{
    *out = NULL;
    parts p;
    const bool whole = split(reference, &p);
    if (!whole && check_name(reference, strlen(reference)) != 0)
        return mox_fail(err, MOX_E_NOT_FOUND,
                        "%.300s: no such folder; a model is a folder with config.json and *.safetensors, "
                        "or ORG/NAME or ORG/NAME@REVISION of the Hugging Face cache",
                        *reference ? reference : "the empty name");
    char *root;
    MOX_TRY(mox_hub_root(env, &root, err));
    const mox_status status =
        whole ? find_in(root, reference, &p, out, err) : fail_unknown(root, reference, err);
    mox_free(root);
    return status;
}

/* ---- unfinished downloads -------------------------------------------------- */

static bool is_any(const char *name) { return strcmp(name, ".") != 0 && strcmp(name, "..") != 0; }

mox_hub_rest mox_hub_unfinished(const char *snapshot)
{
    mox_hub_rest rest = {0};
    names files;
    if (read_folder(snapshot, is_any, &files, NULL) != MOX_OK) return rest;
    for (size_t i = 0; i < files.n; i++) {
        char *path = mox_path_join(snapshot, files.list[i]);
        if (path && !mox_path_exists(path)) {
            if (rest.n_dangling++ == 0) (void)snprintf(rest.first, sizeof rest.first, "%s", files.list[i]);
        }
        mox_free(path);
    }
    names_free(&files);
    char *repository_folder = mox_path_join(snapshot, "../..");
    if (repository_folder) rest.n_partial = count_partial(repository_folder);
    mox_free(repository_folder);
    return rest;
}

/* ---- all of them ----------------------------------------------------------- */

/* Takes over what it is given, which may be NULL for want of memory. */
static mox_status add_entry(mox_hub_list *l, mox_hub_entry e, bool complete, mox_err *err)
{
    if (complete && l->n == l->room) {
        const size_t room = l->room ? 2 * l->room : 16;
        mox_hub_entry *grown = mox_realloc_array(l->entries, room, sizeof *grown);
        complete = grown != NULL;
        if (grown) {
            l->entries = grown;
            l->room = room;
        }
    }
    if (complete) {
        l->entries[l->n++] = e;
        return MOX_OK;
    }
    mox_free(e.reference);
    mox_free(e.commit);
    mox_free(e.folder);
    mox_free(e.problem);
    return mox_fail_memory(err, sizeof e, "the list of models");
}

static mox_status add_problem(mox_hub_list *l, const repository *r, const char *id, bool unreadable,
                              const char *problem, mox_err *err)
{
    const mox_hub_entry e = {.reference = mox_strdup(id),
                             .folder = mox_strdup(r->folder),
                             .problem = mox_strdup(problem),
                             .unreadable = unreadable};
    return add_entry(l, e, e.reference && e.folder && e.problem, err);
}

static mox_status add_snapshot(mox_hub_list *l, const repository *r, const char *id, const char *commit,
                               bool alone, mox_err *err)
{
    char reference[NAME_BYTES + COMMIT_BYTES + 2];
    (void)snprintf(reference, sizeof reference, alone ? "%s" : "%s@%.*s", id, SHORT_COMMIT, commit);
    char *snapshots = mox_path_join(r->folder, "snapshots");
    const mox_hub_entry e = {.reference = mox_strdup(reference),
                             .commit = mox_strdup(commit),
                             .folder = snapshots ? mox_path_join(snapshots, commit) : NULL};
    mox_free(snapshots);
    return add_entry(l, e, e.reference && e.commit && e.folder, err);
}

static mox_status scan_repository(mox_hub_list *l, const char *root, const char *name, mox_err *err)
{
    repository r;
    mox_err why;
    char id[NAME_BYTES + 1];
    if (!id_of_folder(name, id)) return MOX_OK;
    mox_status status = repository_open(&r, root, name, &why);
    if (status == MOX_E_MEMORY)
        status = mox_fail_memory(err, NAME_BYTES, "the list of models");
    else if (status != MOX_OK)
        status = add_problem(l, &r, id, true, why.msg, err);
    else if (r.commits.n == 0) {
        const int64_t partial = count_partial(r.folder);
        char problem[64] = "nothing was downloaded yet";
        if (partial)
            (void)snprintf(problem, sizeof problem, "%lld file%s arrived in part", (long long)partial,
                           partial == 1 ? "" : "s");
        status = add_problem(l, &r, id, false, problem, err);
    } else {
        const char *alone = default_commit(&r);
        for (size_t i = 0; i < r.commits.n && status == MOX_OK; i++)
            status = add_snapshot(l, &r, id, r.commits.list[i], r.commits.list[i] == alone, err);
    }
    repository_close(&r);
    return status;
}

static int by_reference(const void *a, const void *b)
{
    return strcmp(((const mox_hub_entry *)a)->reference, ((const mox_hub_entry *)b)->reference);
}

mox_status mox_hub_scan(const char *root, mox_hub_list *out, mox_err *err)
{
    *out = (mox_hub_list){0};
    names folders;
    mox_status status = read_folder(root, is_repository, &folders, err);
    if (status == MOX_E_NOT_FOUND) return MOX_OK;
    MOX_TRY(status);
    for (size_t i = 0; i < folders.n && status == MOX_OK; i++)
        status = scan_repository(out, root, folders.list[i], err);
    names_free(&folders);
    if (status != MOX_OK)
        mox_hub_list_free(out);
    else if (out->n > 0)
        qsort(out->entries, out->n, sizeof *out->entries, by_reference);
    return status;
}

void mox_hub_list_free(mox_hub_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        mox_free(l->entries[i].reference);
        mox_free(l->entries[i].commit);
        mox_free(l->entries[i].folder);
        mox_free(l->entries[i].problem);
    }
    mox_free(l->entries);
    *l = (mox_hub_list){0};
}
