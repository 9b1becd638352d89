/* text/template.c -- opening and rendering: limits, variables, the finished prompt. */
#include "text/template.h"

#include "base/alloc.h"
#include "base/c_locale.h"
#include "base/utf8.h"
#include "text/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BYTES_PER_STEP = 32 };

/* ---- templates -------------------------------------------------------------------------- */

/* Line and column of a byte, both from 1; a column is a character. */
static void place(const mox_template *t, uint32_t at, size_t *line, size_t *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < at && i < t->n; i++) {
        if (t->text[i] == '\n') {
            (*line)++;
            *column = 1;
        } else if (((unsigned char)t->text[i] & 0xC0) != 0x80) {
            (*column)++;
        }
    }
}

static mox_status fail_at(const mox_template *t, uint32_t at, mox_status status, mox_err *err, const char *format,
                          va_list args)
{
    char words[400];
    size_t line, column;
    (void)vsnprintf(words, sizeof words, format, args);
    place(t, at, &line, &column);
    return mox_fail(err, status, "%s:%zu:%zu: %s", t->name, line, column, words);
}

mox_status mox_template_fail(const mox_template *t, uint32_t at, mox_err *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const mox_status status = fail_at(t, at, MOX_E_FORMAT, err, format, args);
    va_end(args);
    return status;
}

int32_t mox_template_name(const mox_template *t, const char *p, size_t n)
{
    for (size_t i = 0; i < t->n_names; i++) {
        if (t->names[i].n == n && memcmp(t->names[i].p, p, n) == 0) return (int32_t)i;
    }
    return -1;
}

bool mox_template_mentions(const mox_template *t, const char *name) { return mox_template_name(t, name, strlen(name)) >= 0; }

bool mox_template_contains(const mox_template *t, const char *bytes) { return memmem(t->text, t->n, bytes, strlen(bytes)) != NULL; }

static mox_status parse(mox_template *t, mox_err *err)
{
    mox_region region = {0}; /* of the tokens, which only the parser needs */
    mox_ttokens tokens = {0};
    mox_status status = mox_template_lex(t, &region, &tokens, err);
    if (status == MOX_OK) status = mox_template_parse(t, &tokens, err);
    mox_region_deinit(&region);
    return status;
}

mox_status mox_template_open(mox_template **out, const char *name, const char *text, size_t n, mox_err *err)
{
    *out = NULL;
    mox_template *t = mox_alloc_array(1, sizeof *t);
    if (!t) return mox_fail_memory(err, sizeof *t, "a template");
    t->name = name;
    t->text = mox_strndup(text, n);
    t->n = n;
    const locale_t before = mox_locale_enter();
    mox_status status = t->text ? parse(t, err) : mox_fail_memory(err, n, "a template");
    mox_locale_leave(before);
    if (status != MOX_OK) mox_template_close(&t);
    *out = t;
    return status;
}

void mox_template_close(mox_template **t)
{
    if (!*t) return;
    mox_region_deinit(&(*t)->region);
    mox_free((*t)->text);
    mox_free(*t);
    *t = NULL;
}

/* ---- limits ------------------------------------------------------------------------------- */

mox_status mox_render_fail(mox_render *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const mox_status status = fail_at(r->t, r->at, MOX_E_FORMAT, r->err, format, args);
    va_end(args);
    return status;
}

static mox_status fail_limit(mox_render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static mox_status fail_limit(mox_render *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const mox_status status = fail_at(r->t, r->at, MOX_E_LIMIT, r->err, format, args);
    va_end(args);
    return status;
}

mox_status mox_render_take(mox_render *r, size_t n, size_t size, void **out)
{
    *out = NULL;
    return mox_render_grow(r, out, 0, n, size);
}

mox_status mox_render_grow(mox_render *r, void **piece, size_t old, size_t n, size_t size)
{
    if (n > SIZE_MAX / size) return mox_fail_memory(r->err, SIZE_MAX, "a template");
    const mox_status status = *piece ? mox_region_grow(&r->region, piece, old * size, n * size, r->err)
                                     : mox_region_take(&r->region, n * size, piece, r->err);
    if (status != MOX_E_LIMIT) return status;
    return fail_limit(r, "the template needs more than %zu bytes of memory", r->opts.memory_bytes_max);
}

mox_status mox_render_step(mox_render *r)
{
    if (--r->steps_left >= 0) return MOX_OK;
    return fail_limit(r, "the template takes more than %lld steps", (long long)r->opts.steps_max);
}

mox_status mox_render_bytes(mox_render *r, size_t bytes)
{
    const size_t steps = bytes / BYTES_PER_STEP;
    r->steps_left -= steps > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)steps;
    return mox_render_step(r);
}

mox_status mox_render_enter(mox_render *r)
{
    if (--r->depth_left >= 0) return mox_render_step(r);
    return fail_limit(r, "the template goes more than %d evaluations deep", (int)r->opts.depth_max);
}

void mox_render_leave(mox_render *r) { r->depth_left++; }

size_t mox_render_output_max(const mox_render *r) { return r->opts.output_bytes_max; }

mox_status mox_render_too_long(mox_render *r)
{
    return fail_limit(r, "the template makes a text of more than %zu bytes", r->opts.output_bytes_max);
}

mox_status mox_render_refuse(mox_render *r, const mox_ts *message)
{
    size_t n = message->n < sizeof r->err->msg - 1 ? message->n : sizeof r->err->msg - 1;
    n = n < message->n ? mox_utf8_valid_prefix((const unsigned char *)message->p, n) : n;
    return mox_fail(r->err, MOX_E_REFUSED, "%.*s", (int)n, message->p);
}

void mox_render_time(const mox_render *r, int64_t *unix_time_s, int32_t *utc_offset_s)
{
    *unix_time_s = r->opts.unix_time_s;
    *utc_offset_s = r->opts.utc_offset_s;
}

/* ---- variables ------------------------------------------------------------------------------ */

static mox_status set_variable(mox_render *r, const char *name, size_t n, const mox_tv *v, bool *given)
{
    const int32_t number = mox_template_name(r->t, name, n);
    if (number < 0) return MOX_OK; /* the template does not mention it */
    if (given[number])
        return mox_fail(r->err, MOX_E_ARG, "the variable '%.*s' is given twice", n > 100 ? 100 : (int)n, name);
    given[number] = true;
    r->context[number] = *v;
    return MOX_OK;
}

static mox_status add_variable(mox_render *r, const mox_template_var *var, bool *given)
{
    mox_tv v;
    const char *name = var->name ? var->name : "template variables";
    if (var->text) {
        const mox_ts *s;
        if (mox_utf8_valid_prefix((const unsigned char *)var->text, var->n) < var->n) {
            return mox_fail(r->err, MOX_E_FORMAT, "%s: not UTF-8", name);
        }
        MOX_TRY(mox_ts_make(r, var->text, var->n, !var->trusted, &s));
        v = mox_tv_string(s);
    } else {
        MOX_TRY(mox_tv_from_json(r, name, var->json, var->n, !var->trusted, &v, r->err));
    }
    if (var->name) return set_variable(r, var->name, strlen(var->name), &v, given);
    if (v.type != MOX_TV_DICT) return mox_fail(r->err, MOX_E_FORMAT, "%s: not a JSON object", name);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        const mox_ts *key = v.u.dict->key[i].u.s;
        MOX_TRY(set_variable(r, key->p, key->n, &v.u.dict->value[i], given));
    }
    return MOX_OK;
}

static mox_status add_variables(mox_render *r, const mox_template_var *vars, size_t n_vars)
{
    void *memory;
    MOX_TRY(mox_render_take(r, r->t->n_names, sizeof *r->context, &memory));
    r->context = memory;
    memset(r->context, 0, r->t->n_names * sizeof *r->context); /* MOX_TV_ABSENT */
    MOX_TRY(mox_render_take(r, r->t->n_names, sizeof(bool), &memory));
    memset(memory, 0, r->t->n_names);
    for (size_t i = 0; i < n_vars; i++) MOX_TRY(add_variable(r, &vars[i], memory));
    return MOX_OK;
}

/* ---- prompts ---------------------------------------------------------------------------------- */

static mox_status finish(mox_render *r, const mox_tb *b, mox_prompt *out)
{
    size_t n_plain = 0, begin = 0;
    for (size_t i = 0; i < b->n_runs; i++) n_plain += b->runs[i].user;
    out->text = mox_strndup(b->p ? b->p : "", b->n);
    out->plain = mox_alloc_array(n_plain, sizeof *out->plain);
    if (!out->text || !out->plain) {
        mox_prompt_free(out);
        return mox_fail_memory(r->err, b->n, "a prompt");
    }
    out->n = b->n;
    for (size_t i = 0; i < b->n_runs; i++) {
        if (b->runs[i].user) out->plain[out->n_plain++] = (mox_text_span){begin, b->runs[i].end};
        begin = b->runs[i].end;
    }
    return MOX_OK;
}

void mox_prompt_free(mox_prompt *p)
{
    mox_free(p->text);
    mox_free(p->plain);
    *p = (mox_prompt){0};
}

/* So that a loop knows which of them its item is. */
static void number_messages(mox_render *r)
{
    if (r->opts.n_written == 0) return;
    memset(r->opts.written, 0, r->opts.n_written * sizeof *r->opts.written);
    const int32_t name = mox_template_name(r->t, "messages", strlen("messages"));
    if (name < 0 || r->context[name].type != MOX_TV_LIST) return;
    const mox_tlist *messages = r->context[name].u.list;
    for (size_t i = 0; i < messages->n; i++)
        if (messages->item[i].type == MOX_TV_DICT) messages->item[i].u.dict->message = i + 1;
}

static mox_status render(mox_render *r, const mox_template_var *vars, size_t n_vars, mox_tb *b)
{
    mox_tflow flow;
    MOX_TRY(add_variables(r, vars, n_vars));
    MOX_TRY(mox_frame_push(r, r->t->scope, &r->frame));
    r->out = b;
    r->prompt = b;
    number_messages(r);
    return mox_exec(r, r->t->body, &flow);
}

mox_status mox_template_render(const mox_template *t, const mox_template_var *vars, size_t n_vars,
                               const mox_template_opts *opts, mox_prompt *out, mox_err *err)
{
    mox_err unused;
    mox_render r = {.t = t, .opts = opts ? *opts : (mox_template_opts){0}, .err = err ? err : &unused};
    mox_tb text = {0};
    *out = (mox_prompt){0};
    if (r.opts.steps_max <= 0) r.opts.steps_max = 10 * 1000 * 1000;
    if (r.opts.memory_bytes_max == 0) r.opts.memory_bytes_max = (size_t)256 << 20;
    if (r.opts.output_bytes_max == 0) r.opts.output_bytes_max = (size_t)16 << 20;
    if (r.opts.depth_max <= 0) r.opts.depth_max = 600;
    r.steps_left = r.opts.steps_max;
    r.depth_left = r.opts.depth_max;
    r.region.bytes_max = r.opts.memory_bytes_max;
    const locale_t before = mox_locale_enter();
    mox_status status = render(&r, vars, n_vars, &text);
    mox_locale_leave(before);
    if (status == MOX_OK) status = finish(&r, &text, out);
    mox_region_deinit(&r.region);
    return status;
}
