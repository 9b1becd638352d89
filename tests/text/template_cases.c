/* tests/text/template_cases.c -- renders cases and compares with what the reference
 * made of them.
 *
 * template_cases FILE...: each file is a JSON list of cases:
 *
 *   name       for messages
 *   template   the text, or "file": its path beside FILE
 *   vars       an object of variables, or "shared": which one of variables.json beside FILE
 *   out        the expected prompt, or one of
 *   raises     the expected words of raise_exception
 *   fails      true: opening or rendering must fail, with a place
 *   user       spans of out, [begin, end, begin, end ...], that must be untrusted
 *   own        spans of out that must be trusted
 *
 * Cases with shared variables also have bos_token and eos_token, which are trusted.
 * The last line is `N passed, N failed, 0 skipped`. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_fields.h"
#include "text/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME, TEMPLATE, TEMPLATE_FILE, VARS, SHARED, OUT, RAISES, FAILS, USER, OWN, N_FIELDS };
static const char *const field_names[N_FIELDS] = {"name", "template", "file",  "vars", "shared",
                                                  "out",  "raises",   "fails", "user", "own"};

enum { SHARED_MAX = 256 };

typedef struct suite {
    const char *path;
    mox_json_span shared[SHARED_MAX];
    int n_shared;
    int passed, failed;
} suite;

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        const long size = ftell(f);
        rewind(f);
        text = malloc((size_t)size + 1);
        *n = text ? fread(text, 1, (size_t)size, f) : 0;
        if (text) text[*n] = '\0';
    }
    if (f) fclose(f);
    if (!text) {
        perror(path);
        exit(2);
    }
    return text;
}

static void must(mox_status status, const mox_err *err)
{
    if (status == MOX_OK) return;
    fprintf(stderr, "the cases themselves: %s\n", err->msg);
    exit(2);
}

static char *string_of(mox_json_span span, size_t *n)
{
    mox_err err;
    char *text = NULL;
    must(mox_json_get_string(span, "a case", &text, n, &err), &err);
    return text;
}

/* A file beside the one with the cases. */
static char *read_beside(const suite *s, const char *name, size_t *n)
{
    char path[4096];
    const char *slash = strrchr(s->path, '/');
    (void)snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - s->path) : 0, s->path, name);
    return read_file(path, n);
}

static char *template_text(const suite *s, const mox_json_span *f, size_t *n)
{
    if (mox_json_is_null(f[TEMPLATE_FILE])) return string_of(f[TEMPLATE], n);
    size_t length;
    char *name = string_of(f[TEMPLATE_FILE], &length);
    char *raw = read_beside(s, name, n), *text = mox_strndup(raw, *n);
    mox_free(name);
    free(raw);
    return text;
}

static mox_status add_shared(void *user, mox_json_span element, mox_err *err)
{
    suite *s = user;
    if (s->n_shared == SHARED_MAX) return mox_fail(err, MOX_E_FULL, "too many shared variables");
    s->shared[s->n_shared++] = element;
    return MOX_OK;
}

static mox_json_span variables(const suite *s, const mox_json_span *f)
{
    if (mox_json_is_null(f[SHARED])) return f[VARS];
    const mox_json_token token = {MOX_JSON_NUMBER, f[SHARED].text, f[SHARED].n};
    int64_t i;
    if (mox_json_token_int(&token, &i) && i >= 0 && i < s->n_shared) return s->shared[i];
    fprintf(stderr, "a case has variables that are not there\n");
    exit(2);
}

static bool is_plain(const mox_prompt *p, size_t at)
{
    for (size_t i = 0; i < p->n_plain; i++) {
        if (p->plain[i].begin <= at && at < p->plain[i].end) return true;
    }
    return false;
}

/* Spans are in order, apart and inside the text: what mox_tokenizer_encode_mixed asks for. */
static bool spans_in_order(const mox_prompt *p)
{
    for (size_t i = 0; i < p->n_plain; i++) {
        if (p->plain[i].begin >= p->plain[i].end || p->plain[i].end > p->n) return false;
        if (i > 0 && p->plain[i].begin <= p->plain[i - 1].end) return false;
    }
    return true;
}

static bool check_origin(const mox_prompt *p, mox_json_span list, bool plain)
{
    mox_json_reader r;
    mox_json_token token;
    mox_err err;
    int64_t bound[2];
    int n = 0;
    bool good = true;
    if (mox_json_is_null(list)) return true;
    mox_json_reader_init(&r, list);
    must(mox_json_next(&r, &token, &err), &err);
    for (;;) {
        must(mox_json_next(&r, &token, &err), &err);
        if (token.type == MOX_JSON_ARRAY_END) break;
        if (!mox_json_token_int(&token, &bound[n++ % 2]) || n % 2) continue;
        for (int64_t i = bound[0]; i < bound[1]; i++) good = good && is_plain(p, (size_t)i) == plain;
    }
    mox_json_reader_deinit(&r);
    return good;
}

static mox_status render(const suite *s, const mox_json_span *f, mox_prompt *out, mox_err *err)
{
    static const char bos[] = "<｜begin▁of▁sentence｜>", eos[] = "<｜end▁of▁sentence｜>";
    mox_template_var vars[3] = {{.name = "bos_token", .text = bos, .n = sizeof bos - 1, .trusted = true},
                                {.name = "eos_token", .text = eos, .n = sizeof eos - 1, .trusted = true}};
    const mox_json_span all = variables(s, f);
    size_t n_vars = mox_json_is_null(f[SHARED]) ? 0 : 2, n;
    mox_template *t;
    mox_template_opts opts = {.unix_time_s = 1755000000, .utc_offset_s = 7200};
    if (all.text) vars[n_vars++] = (mox_template_var){.json = all.text, .n = all.n};
    char *text = template_text(s, f, &n);
    mox_status status = mox_template_open(&t, "case", text, n, err);
    mox_free(text);
    if (status == MOX_OK) status = mox_template_render(t, vars, n_vars, &opts, out, err);
    mox_template_close(&t);
    return status;
}

/* NULL when the case is as expected. */
static const char *judge(const mox_json_span *f, mox_status status, const mox_prompt *p, const mox_err *err)
{
    const char *verdict = NULL;
    size_t n = 0;
    if (!mox_json_is_null(f[OUT])) {
        char *expected = string_of(f[OUT], &n);
        if (status != MOX_OK) {
            verdict = "failed";
        } else if (n != p->n || memcmp(expected, p->text, n) != 0) {
            verdict = "other text";
        } else if (!spans_in_order(p)) {
            verdict = "spans out of order";
        } else if (!check_origin(p, f[USER], true)) {
            verdict = "text of a user is trusted";
        } else if (!check_origin(p, f[OWN], false)) {
            verdict = "text of the template is not trusted";
        }
        mox_free(expected);
    } else if (!mox_json_is_null(f[RAISES])) {
        char *expected = string_of(f[RAISES], &n);
        if (status != MOX_E_REFUSED) {
            verdict = "did not refuse";
        } else if (strncmp(err->msg, expected, sizeof err->msg - 1) != 0) {
            verdict = "refused with other words";
        }
        mox_free(expected);
    } else if (status != MOX_E_FORMAT && status != MOX_E_LIMIT) {
        verdict = status == MOX_OK ? "did not fail" : "failed in another way";
    } else if (strncmp(err->msg, "case:", 5) != 0 || err->msg[5] < '1' || err->msg[5] > '9') {
        verdict = "failed without a place";
    }
    return verdict;
}

static mox_status run_case(void *user, mox_json_span element, mox_err *err)
{
    suite *s = user;
    mox_json_span f[N_FIELDS];
    mox_prompt prompt = {0};
    mox_err why = {0};
    size_t n;
    must(mox_json_fields(element, "a case", field_names, N_FIELDS, f, err), err);
    const mox_status status = render(s, f, &prompt, &why);
    const char *verdict = judge(f, status, &prompt, &why);
    if (verdict) {
        char *name = string_of(f[NAME], &n);
        printf("FAIL %s: %s\n", name, verdict);
        if (!mox_json_is_null(f[TEMPLATE]))
            printf("  template %.*s\n", f[TEMPLATE].n > 2000 ? 2000 : (int)f[TEMPLATE].n, f[TEMPLATE].text);
        printf("  expected %.*s\n", f[OUT].n > 2000 ? 2000 : (int)f[OUT].n, f[OUT].n ? f[OUT].text : "");
        printf("  got      %s\n", status == MOX_OK ? prompt.text : why.msg);
        mox_free(name);
        s->failed++;
    } else {
        s->passed++;
    }
    mox_prompt_free(&prompt);
    return MOX_OK;
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        suite s = {.path = argv[i]};
        mox_err err;
        size_t n, n_shared;
        char *text = read_file(argv[i], &n), *shared = NULL;
        if (strstr(text, "\"shared\":")) {
            shared = read_beside(&s, "variables.json", &n_shared);
            must(mox_json_each((mox_json_span){"variables.json", shared, n_shared, 0}, "variables", add_shared, &s,
                               &err),
                 &err);
        }
        must(mox_json_each((mox_json_span){argv[i], text, n, 0}, "cases", run_case, &s, &err), &err);
        free(text);
        free(shared);
        passed += s.passed;
        failed += s.failed;
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed || passed == 0;
}
