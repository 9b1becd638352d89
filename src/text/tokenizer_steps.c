/* text/tokenizer_steps.c -- the normalizer, pre-tokenizer, post-processor and
 * decoder of a tokenizer.json.
 *
 * Each is null, one step or a sequence of steps.  Steps that byte-level BPE
 * models do not use are refused by name. */
#include "text/tokenizer_parse.h"

#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static mox_status unsupported(const mox_tokenizer_parser *p, const char *what, const char *name, mox_err *err)
{
    return mox_fail(err, MOX_E_UNSUPPORTED,
                    "%s: %s \"%.60s\" is not supported; this version reads byte-level BPE "
                    "tokenizers",
                    p->name, what, name);
}

/* The fields of a step; names[0] is "type", whose string the caller frees. */
static mox_status read_step(mox_json_span step, const char *what, const char *const *names, int n_names,
                            mox_json_span *fields, char **type, mox_err *err)
{
    *type = NULL;
    MOX_TRY(mox_json_fields(step, what, names, n_names, fields, err));
    MOX_TRY(mox_json_get_string(fields[0], what, type, NULL, err));
    return *type ? MOX_OK : mox_fail(err, MOX_E_FORMAT, "%s: %s has a step without a type", step.name, what);
}

/* ---- normalizer ------------------------------------------------------------- */

mox_status mox_parse_normalizer(void *user, mox_json_span step, mox_err *err)
{
    static const char *const names[] = {"type", "normalizers"};
    mox_tokenizer_parser *p = user;
    mox_json_span fields[COUNT(names)];
    char *type;
    if (mox_json_is_null(step)) return MOX_OK;
    MOX_TRY(read_step(step, "normalizer", names, COUNT(names), fields, &type, err));
    mox_status status = MOX_OK;
    if (strcmp(type, "NFC") == 0) {
        p->t->nfc = true;
    } else if (strcmp(type, "Sequence") == 0) {
        status = mox_json_each(fields[1], "normalizer.normalizers", mox_parse_normalizer, p, err);
    } else {
        status = unsupported(p, "normalizer", type, err);
    }
    mox_free(type);
    return status;
}

/* ---- pre-tokenizer ---------------------------------------------------------- */

static mox_status parse_split_pattern(mox_tokenizer_parser *p, mox_json_span pattern, mox_err *err)
{
    static const char *const names[] = {"Regex", "String"};
    mox_json_span fields[COUNT(names)];
    MOX_TRY(mox_json_fields(pattern, "pre_tokenizer.pattern", names, COUNT(names), fields, err));
    const bool regex = !mox_json_is_null(fields[0]);
    char *text;
    size_t n;
    MOX_TRY(mox_json_get_string(fields[regex ? 0 : 1], "pre_tokenizer.pattern", &text, &n, err));
    if (!text) return mox_fail(err, MOX_E_FORMAT, "%s: a Split of the pre_tokenizer has no pattern", p->name);
    const mox_status status = regex ? mox_split_add_pattern(&p->t->split, p->name, text, n, err)
                                    : mox_split_add_literal(&p->t->split, p->name, text, n, err);
    mox_free(text);
    return status;
}

static mox_status parse_split(mox_tokenizer_parser *p, mox_json_span pattern, mox_json_span behavior,
                              mox_json_span invert, mox_err *err)
{
    char *text;
    bool inverted = false;
    MOX_TRY(mox_json_get_bool(invert, "pre_tokenizer.invert", &inverted, err));
    if (inverted) return unsupported(p, "pre_tokenizer Split with", "invert", err);
    MOX_TRY(mox_json_get_string(behavior, "pre_tokenizer.behavior", &text, NULL, err));
    const bool isolated = text && strcmp(text, "Isolated") == 0;
    const mox_status status =
        isolated ? MOX_OK : unsupported(p, "pre_tokenizer Split behavior", text ? text : "(none)", err);
    mox_free(text);
    return status == MOX_OK ? parse_split_pattern(p, pattern, err) : status;
}

static mox_status parse_byte_level(mox_tokenizer_parser *p, mox_json_span prefix, mox_json_span regex, mox_err *err)
{
    bool add_prefix_space = true, use_regex = true;
    MOX_TRY(mox_json_get_bool(prefix, "pre_tokenizer.add_prefix_space", &add_prefix_space, err));
    MOX_TRY(mox_json_get_bool(regex, "pre_tokenizer.use_regex", &use_regex, err));
    if (add_prefix_space) MOX_TRY(mox_split_add_prefix_space(&p->t->split, p->name, err));
    if (use_regex) {
        MOX_TRY(
            mox_split_add_pattern(&p->t->split, p->name, mox_scan_gpt2_pattern, strlen(mox_scan_gpt2_pattern), err));
    }
    p->byte_level = true;
    return MOX_OK;
}

mox_status mox_parse_pre_tokenizer(void *user, mox_json_span step, mox_err *err)
{
    static const char *const names[] = {"type",   "pretokenizers",    "pattern",  "behavior",
                                        "invert", "add_prefix_space", "use_regex"};
    mox_tokenizer_parser *p = user;
    mox_json_span f[COUNT(names)];
    char *type;
    if (mox_json_is_null(step)) return MOX_OK;
    MOX_TRY(read_step(step, "pre_tokenizer", names, COUNT(names), f, &type, err));
    mox_status status;
    if (p->byte_level) {
        status = unsupported(p, "a pre_tokenizer step after ByteLevel,", type, err);
    } else if (strcmp(type, "Sequence") == 0) {
        status = mox_json_each(f[1], "pre_tokenizer.pretokenizers", mox_parse_pre_tokenizer, p, err);
    } else if (strcmp(type, "Split") == 0) {
        status = parse_split(p, f[2], f[3], f[4], err);
    } else if (strcmp(type, "ByteLevel") == 0) {
        status = parse_byte_level(p, f[5], f[6], err);
    } else {
        status = unsupported(p, "pre_tokenizer", type, err);
    }
    mox_free(type);
    return status;
}

/* ---- post-processor --------------------------------------------------------- */

/* An element of a template: {"SpecialToken": {"id": TEXT}} or {"Sequence": {...}}.
 * The only template that is read is a token, then the text. */
static mox_status parse_template_part(void *user, mox_json_span part, mox_err *err)
{
    static const char *const names[] = {"SpecialToken", "Sequence"}, *const id_name[] = {"id"};
    mox_tokenizer_parser *p = user;
    mox_json_span fields[COUNT(names)], id;
    MOX_TRY(mox_json_fields(part, "post_processor.single", names, COUNT(names), fields, err));
    if (mox_json_is_null(fields[0])) {
        p->template_text_seen = true;
        return MOX_OK;
    }
    if (p->template_text_seen || p->template_bos >= 0) {
        return unsupported(p, "post_processor TemplateProcessing that adds more than", "BOS", err);
    }
    char *text;
    size_t n;
    MOX_TRY(mox_json_fields(fields[0], "post_processor.single.SpecialToken", id_name, 1, &id, err));
    MOX_TRY(mox_json_get_string(id, "post_processor.single.SpecialToken.id", &text, &n, err));
    p->template_bos = text ? mox_vocab_find_text(&p->t->vocab, text, n) : -1;
    mox_status status = MOX_OK;
    if (p->template_bos < 0) {
        status = mox_fail(err, MOX_E_FORMAT, "%s: the post_processor adds \"%.60s\", which is no token", p->name,
                          text ? text : "");
    }
    mox_free(text);
    return status;
}

mox_status mox_parse_post_processor(void *user, mox_json_span step, mox_err *err)
{
    static const char *const names[] = {"type", "processors", "single"};
    mox_tokenizer_parser *p = user;
    mox_json_span fields[COUNT(names)];
    char *type;
    if (mox_json_is_null(step)) return MOX_OK;
    MOX_TRY(read_step(step, "post_processor", names, COUNT(names), fields, &type, err));
    mox_status status = MOX_OK;
    if (strcmp(type, "Sequence") == 0) {
        status = mox_json_each(fields[1], "post_processor.processors", mox_parse_post_processor, p, err);
    } else if (strcmp(type, "TemplateProcessing") == 0) {
        status = mox_json_each(fields[2], "post_processor.single", parse_template_part, p, err);
    } else if (strcmp(type, "ByteLevel") != 0) {
        status = unsupported(p, "post_processor", type, err);
    }
    mox_free(type);
    return status;
}

/* ---- decoder ---------------------------------------------------------------- */

mox_status mox_parse_decoder(void *user, mox_json_span step, mox_err *err)
{
    static const char *const names[] = {"type", "decoders"};
    mox_tokenizer_parser *p = user;
    mox_json_span fields[COUNT(names)];
    char *type;
    if (mox_json_is_null(step)) return MOX_OK;
    MOX_TRY(read_step(step, "decoder", names, COUNT(names), fields, &type, err));
    mox_status status = MOX_OK;
    if (strcmp(type, "Sequence") == 0) {
        status = mox_json_each(fields[1], "decoder.decoders", mox_parse_decoder, p, err);
    } else if (strcmp(type, "ByteLevel") != 0) {
        status = unsupported(p, "decoder", type, err);
    }
    mox_free(type);
    return status;
}
