/* app/cli/models.c -- `moxie list`: the models of this machine.
 *
 * A table where the terminal is wide enough for one line per model, two lines per model
 * where it is not.  Names are never cut: they are there to be copied.  No weight file is
 * opened, so hundreds of models take no time. */
#include "app/cli/commands.h"
#include "app/cli/describe.h"
#include "app/cli/hub.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/session.h"
#include "app/cli/terminal.h"
#include "base/alloc.h"
#include "base/file.h"
#include "moxie/text.h"
#include "moxie/tools.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { REFERENCE, REVISION, FAMILY, WEIGHTS, SIZE, STATE, N_COLUMNS, CELL = 64 };

static const char *const headings[N_COLUMNS] = {"MODEL", "REVISION", "FAMILY", "WEIGHTS", "SIZE", "STATE"};

typedef struct row {
    const char *reference, *commit, *folder; /* borrowed; commit is NULL where there is none */
    mox_glance glance;
    int64_t bytes;
    const char *state;
    char problem[sizeof((mox_err *)0)->msg]; /* "" when there is none */
    char cells[N_COLUMNS][CELL];             /* but for the reference */
} row;

/* ---- looking at a model ---------------------------------------------------- */

/* Of the files below, those that links lead to included; links to folders are left alone. */
static int64_t bytes_below(const char *folder, int depth)
{
    enum { DEEPEST = 4 };
    DIR *d = opendir(folder);
    if (!d) return 0;
    int64_t bytes = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *path = mox_path_join(folder, e->d_name);
        struct stat st;
        if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
            bytes += (int64_t)st.st_size;
        else if (path && lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && depth < DEEPEST)
            bytes += bytes_below(path, depth + 1);
        mox_free(path);
    }
    closedir(d);
    return bytes;
}

/* The sentence without the folder, which is everybody's here. */
static void set_problem(row *r, const char *sentence)
{
    const size_t n = strlen(r->folder);
    if (strncmp(sentence, r->folder, n) == 0) sentence += n + strspn(sentence + n, "/: ");
    (void)snprintf(r->problem, sizeof r->problem, "%s", sentence);
    mox_cli_make_harmless(r->problem);
}

static bool has(const row *r, const char *name)
{
    char *path = mox_path_join(r->folder, name);
    const bool found = path && mox_path_exists(path);
    mox_free(path);
    return found;
}

static void look(row *r)
{
    mox_err err;
    const mox_status status = mox_model_glance(r->folder, &r->glance, &err);
    r->bytes = bytes_below(r->folder, 0);
    const mox_hub_rest rest = r->commit ? mox_hub_unfinished(r->folder) : (mox_hub_rest){0};
    const bool unfinished = rest.n_dangling + rest.n_partial > 0;
    switch (status) {
    case MOX_OK: r->state = "complete"; break;
    case MOX_E_NOT_FOUND:
        r->state = unfinished || has(r, "config.json") ? "incomplete" : "unsupported";
        break;
    case MOX_E_UNSUPPORTED: r->state = "unsupported"; break;
    case MOX_E_IO: r->state = "unreadable"; break;
    default: r->state = "damaged"; break;
    }
    if (status != MOX_OK) set_problem(r, err.msg);
    if (status != MOX_OK || !unfinished || (rest.n_dangling == 0 && has(r, "tokenizer.json"))) return;
    r->state = "incomplete";
    if (rest.n_dangling > 0)
        (void)snprintf(r->problem, sizeof r->problem, "%s is a link to nowhere", rest.first);
    else
        (void)snprintf(r->problem, sizeof r->problem, "tokenizer.json is missing");
}

static void fill_cells(row *r)
{
    (void)snprintf(r->cells[REVISION], CELL, "%.8s", r->commit ? r->commit : "-");
    (void)snprintf(r->cells[FAMILY], CELL, "%s", r->glance.family[0] ? r->glance.family : "-");
    (void)snprintf(r->cells[WEIGHTS], CELL, "%s", r->glance.quantization[0] ? r->glance.quantization : "-");
    (void)mox_cli_describe_bytes(r->bytes, r->cells[SIZE]);
    (void)snprintf(r->cells[STATE], CELL, "%s", r->state);
    mox_cli_make_harmless(r->cells[FAMILY]);
}

static row row_of(const mox_hub_entry *e)
{
    row r = {.reference = e->reference, .commit = e->commit, .folder = e->folder};
    if (e->problem) {
        r.state = e->unreadable ? "unreadable" : "incomplete";
        set_problem(&r, e->problem);
    } else
        look(&r);
    fill_cells(&r);
    return r;
}

/* ---- the table ------------------------------------------------------------- */

typedef struct page {
    int columns; /* of the terminal; 0: as many as it takes */
    int width[N_COLUMNS];
    bool narrow; /* two lines per model */
    bool color;
} page;

static const char *cell(const row *r, int i) { return i == REFERENCE ? r->reference : r->cells[i]; }

static page page_of(const row *rows, size_t n, bool color)
{
    page p = {.columns = mox_cli_stdout_columns(), .color = color};
    int total = 2 * (N_COLUMNS - 1);
    for (int i = 0; i < N_COLUMNS; i++) {
        p.width[i] = (int)strlen(headings[i]);
        for (size_t k = 0; k < n; k++) {
            const int width = (int)strlen(cell(&rows[k], i));
            if (width > p.width[i]) p.width[i] = width;
        }
        total += p.width[i];
    }
    p.narrow = p.columns > 0 && total > p.columns;
    return p;
}

static void put_cell(const page *p, int i, const char *text)
{
    if (i == STATE)
        mox_cli_putf("%s", text); /* the last: no blanks behind it */
    else
        mox_cli_putf(i == SIZE ? "%*s  " : "%-*s  ", p->width[i], text);
}

/* One line, cut where the terminal ends: --json has all of it. */
static void put_problem(const page *p, const row *r)
{
    if (!r->problem[0]) return;
    const size_t n = strlen(r->problem), room = p->columns > 8 ? (size_t)p->columns - 2 : n;
    size_t shown = n;
    if (n > room) {
        shown = room - 3;
        while (shown > 0 && ((unsigned char)r->problem[shown] & 0xC0) == 0x80)
            shown--; /* not inside a character */
    }
    mox_cli_putf(p->color ? "\x1b[2m  %.*s%s\x1b[0m\n" : "  %.*s%s\n", (int)shown, r->problem,
                 n > room ? "..." : "");
}

/* The name on a line, and its facts below, as many on a line as there is room for. */
static void put_block(const page *p, const row *r)
{
    mox_cli_putf(p->color ? "\x1b[1m%s\x1b[0m\n" : "%s\n", r->reference);
    int column = 0;
    for (int i = REVISION; i < N_COLUMNS; i++) {
        if (strcmp(r->cells[i], "-") == 0) continue;
        const int width = (int)strlen(r->cells[i]) + 2;
        if (column > 0 && column + width > p->columns) {
            mox_cli_putf("\n");
            column = 0;
        }
        mox_cli_putf("  %s", r->cells[i]);
        column += width;
    }
    mox_cli_putf("\n");
}

static void put_row(const page *p, const row *r)
{
    if (p->narrow)
        put_block(p, r);
    else {
        for (int i = 0; i < N_COLUMNS; i++) put_cell(p, i, cell(r, i));
        mox_cli_putf("\n");
    }
    put_problem(p, r);
}

static void put_table(const row *rows, size_t n, bool color)
{
    const page p = page_of(rows, n, color);
    if (!p.narrow && n > 0) {
        if (color) mox_cli_putf("\x1b[1m");
        for (int i = 0; i < N_COLUMNS; i++) put_cell(&p, i, headings[i]);
        mox_cli_putf(color ? "\x1b[0m\n" : "\n");
    }
    for (size_t i = 0; i < n; i++) put_row(&p, &rows[i]);
}

/* ---- the object ------------------------------------------------------------ */

/* Where whole characters are gathered. */
typedef struct gathered {
    char *text;
    size_t n;
} gathered;

static void gather(void *user, const char *text, size_t n)
{
    gathered *g = user;
    memcpy(g->text + g->n, text, n);
    g->n += n;
}

/* Paths may be any bytes; JSON may not. */
static void json_text(const char *name, const char *text)
{
    mox_cli_putf("\"%s\": ", name);
    const size_t n = text ? strlen(text) : 0;
    gathered g = {.text = text ? mox_alloc_array(n + 1, 3) : NULL}; /* U+FFFD has 3 bytes */
    if (g.text) {
        mox_utf8_stream stream = {0};
        mox_utf8_stream_push(&stream, text, n, gather, &g);
        mox_utf8_stream_end(&stream, gather, &g);
        mox_cli_put_json(g.text, g.n);
    } else
        mox_cli_putf("null");
    mox_free(g.text);
}

static const char *or_null(const char *text) { return *text ? text : NULL; }

static void put_json(const char *cache, const row *rows, size_t n)
{
    mox_cli_putf("{");
    json_text("cache", cache);
    mox_cli_putf(", \"models\": [");
    for (size_t i = 0; i < n; i++) {
        const row *r = &rows[i];
        const struct {
            const char *name, *text;
        } texts[] = {{"reference", r->reference},
                     {"revision", r->commit},
                     {"family", or_null(r->glance.family)},
                     {"quantization", or_null(r->glance.quantization)},
                     {"state", r->state},
                     {"problem", or_null(r->problem)},
                     {"folder", r->folder}};
        mox_cli_putf(i == 0 ? "{" : ", {");
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            json_text(texts[k].name, texts[k].text);
            mox_cli_putf(", ");
        }
        mox_cli_putf("\"bytes\": %lld}", (long long)r->bytes);
    }
    mox_cli_putf("]}\n");
}

/* ---- the command ----------------------------------------------------------- */

static void put_names(const char *demo, const mox_hub_list *l)
{
    if (demo) mox_cli_putf("demo\n");
    for (size_t i = 0; i < l->n; i++)
        if (!l->entries[i].problem) mox_cli_putf("%s\n", l->entries[i].reference);
}

static int put_rows(const mox_cli_options *o, const char *cache, char *demo, const mox_hub_list *l)
{
    row *rows = mox_alloc_array(l->n + 1, sizeof *rows);
    if (!rows) {
        mox_cli_say("out of memory for a list of %zu models", l->n);
        return EXIT_FULL;
    }
    size_t n = 0;
    const mox_hub_entry ours = {.reference = (char[]){"demo"}, .folder = demo};
    if (demo) rows[n++] = row_of(&ours);
    for (size_t i = 0; i < l->n; i++) rows[n++] = row_of(&l->entries[i]);
    if (o->v[OPT_JSON].on)
        put_json(cache, rows, n);
    else
        put_table(rows, n, mox_cli_use_color(o->v[OPT_COLOR].text));
    mox_free(rows);
    return EXIT_OK;
}

/* Of the cache, behind what was listed all the same. */
static int say_missing(const mox_cli_options *o, const char *cache, const mox_hub_list *l, mox_status status,
                       const mox_err *err)
{
    const bool quiet = o->v[OPT_QUIET].on, known = cache != NULL;
    mox_cli_put_flush(); /* in a terminal the sentence comes after the table */
    if (status == MOX_OK) {
        if (l->n == 0 && !quiet && !o->v[OPT_NAMES].on)
            mox_cli_say("there %s %s; `hf download ORG/NAME` puts models there",
                        mox_path_exists(cache) ? "are no models in the Hugging Face cache"
                                               : "is no Hugging Face cache at",
                        cache);
        return EXIT_OK;
    }
    if (known || status == MOX_E_MEMORY || !quiet) mox_cli_say("%s", err->msg);
    if (status == MOX_E_MEMORY) return EXIT_FULL;
    return known ? EXIT_IO : EXIT_OK; /* nothing was set that could not be read */
}

int mox_cli_models(const mox_cli_options *o)
{
    mox_err err;
    mox_hub_list list = {0};
    char *cache = NULL, *demo = mox_cli_find_demo();
    const mox_hub_env env = mox_hub_environment();
    int code = EXIT_OK;
    if (o->v[OPT_NAMES].on && o->v[OPT_JSON].on) {
        mox_cli_say("--names and --json contradict each other; give one of them");
        code = EXIT_USAGE;
    } else {
        mox_status status = mox_hub_root(&env, &cache, &err);
        if (status == MOX_OK) status = mox_hub_scan(cache, &list, &err);
        if (o->v[OPT_NAMES].on) put_names(demo, &list);
        else code = put_rows(o, cache, demo, &list);
        if (code == EXIT_OK) code = say_missing(o, cache, &list, status, &err);
    }
    mox_hub_list_free(&list);
    mox_free(cache);
    mox_free(demo);
    return code;
}
