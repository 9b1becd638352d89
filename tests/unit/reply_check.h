/* tests/unit/reply_check.h -- feeds replies to the parser in every way and compares.  For
 * tests with cmocka. */
#ifndef TESTS_REPLY_CHECK_H
#define TESTS_REPLY_CHECK_H

#include "base/rng.h"
#include "reply_kit.h"

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"x\":{\"type\":\"number\"},"
    "\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"string\"}},\"z\":{\"type\":[\"integer\",\"null\"]},\"sn\":{\"type\":[\"string\",\"null\"]},\"so\":{\"anyOf\":[{\"type\":"
    "\"string\"},{\"type\":\"object\"}]},\"any\":{\"oneOf\":[{\"type\":\"integer\"},{\"enum\":[1]}]},"
    "\"n\":{\"type\":\"integer\",\"nullable\":true},\"odd\":true,\"none\":{}}}}},"
    "{\"name\":\"bare\",\"input_schema\":{\"properties\":{\"i\":{\"type\":\"integer\"}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{}}},{\"type\":\"other\"}]";

typedef struct feed {
    mox_call_format format;
    bool thinking, cut_off, no_tools;
} feed;

static inline mox_reply_opts opts_of(const feed *f, notes *w)
{
    mox_reply_opts opts = {
        .format = f->format, .thinking = f->thinking, .id_seed = 0xAB, .on_part = note_part, .on_part_user = w};
    if (!f->no_tools) opts.tools = (mox_json_text){tools_json, sizeof tools_json - 1};
    return opts;
}

/* ---- invariants ------------------------------------------------------------------------- */

/* The message is what was heard of it, in parts, and its calls are sound. */
static inline void check_message(const mox_reply *r, const notes *w, const char *what)
{
    mox_message m;
    mox_reply_get_message(r, &m);
    if (w->wrong) fail_msg("parts out of order: %s", what);
    assert_int_equal(m.n_text, w->text.n);
    assert_int_equal(m.n_thinking, w->thinking.n);
    assert_memory_equal(m.text, w->text.n ? w->text.text : "", m.n_text + 1);
    assert_memory_equal(m.thinking, w->thinking.n ? w->thinking.text : "", m.n_thinking + 1);
    assert_int_equal(m.n_calls, w->n_calls);
    for (int32_t i = 0; i < m.n_calls; i++) {
        if (!is_json_object(m.calls[i].arguments)) fail_msg("no object: %s in %s", m.calls[i].arguments, what);
        assert_true(m.calls[i].id[0] != '\0' && m.calls[i].name[0] != '\0');
        for (int32_t k = 0; k < i; k++) assert_string_not_equal(m.calls[i].id, m.calls[k].id);
    }
}

/* Feeds text in pieces: ends[0, n_ends) are where they end, and the rest follows. */
static inline void take_apart(const feed *f, const char *text, size_t n, const size_t *ends, size_t n_ends, notes *out)
{
    mox_reply *r;
    mox_err err = {0};
    *out = (notes){.open = -1};
    const mox_reply_opts opts = opts_of(f, out);
    if (mox_reply_create(&r, &opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    size_t at = 0;
    for (size_t i = 0; i <= n_ends; i++) {
        const size_t end = i < n_ends ? ends[i] : n;
        if (mox_reply_push(r, text + at, end - at, &err) != MOX_OK) fail_msg("%s: %s", text, err.msg);
        at = end;
    }
    if (mox_reply_finish(r, !f->cut_off, &err) != MOX_OK) fail_msg("%s: %s", text, err.msg);
    string_puts(&out->line, out->open >= 0 ? "}" : "");
    check_message(r, out, text);
    mox_reply_destroy(&r);
    assert_null(r);
}

static inline bool is_boundary(const char *text, size_t at) { return ((unsigned char)text[at] & 0xC0) != 0x80; }

static inline void expect_same(const feed *f, const char *text, size_t n, const size_t *ends, size_t n_ends,
                               const notes *whole)
{
    notes cut;
    take_apart(f, text, n, ends, n_ends, &cut);
    if (strcmp(cut.line.text, whole->line.text) != 0) {
        fail_msg("format %d, %zu cuts at %zu..: %s\n   whole: %s\n   cut:   %s", (int)f->format, n_ends, ends[0], text,
                 whole->line.text, cut.line.text);
    }
    notes_free(&cut);
}

/* Every single cut, every character alone, and some random ones give what `whole` is. */
static inline void check_cuts(const feed *f, const char *text, size_t n, const notes *whole, mox_rng *rng)
{
    size_t *ends = malloc((n + 1) * sizeof *ends), n_ends = 0;
    assert_non_null(ends);
    for (size_t i = 1; i < n; i++) {
        if (!is_boundary(text, i)) continue;
        expect_same(f, text, n, &i, 1, whole);
        ends[n_ends++] = i;
    }
    if (n_ends > 0) expect_same(f, text, n, ends, n_ends, whole);
    for (int round = 0; round < 8; round++) {
        n_ends = 0;
        for (size_t i = 1; i < n; i++) {
            if (is_boundary(text, i) && mox_rng_u64(rng) % 6 == 0) ends[n_ends++] = i;
        }
        if (n_ends > 0) expect_same(f, text, n, ends, n_ends, whole);
    }
    free(ends);
}

#endif
