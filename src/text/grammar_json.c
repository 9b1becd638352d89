/* text/grammar_json.c -- JSON of no particular schema.
 *
 * Blanks may stand behind {, [, a colon and a comma and before } and ]: one space, or a line
 * break with up to 20 blanks.  More would let a model write blanks for ever. */
#include "text/grammar.h"

#include "base/writer.h"

uint32_t mox_gb_json_string(mox_gb *b, const mox_dfa *dfa, uint32_t min, uint32_t max, uint32_t next)
{
    const mox_gstring s = {.dfa = dfa, .min = min, .max = max};
    return mox_gb_byte(b, '"', mox_gb_string(b, &s, mox_gb_byte(b, '"', next)));
}

uint32_t mox_gb_json_literal(mox_gb *b, const char *text, size_t n, uint32_t next)
{
    mox_writer w = {0};
    if (b->status == MOX_OK) b->status = mox_write_json(&w, text, n, b->err);
    const uint32_t node = mox_gb_text(b, mox_writer_text(&w), w.n, next);
    mox_writer_deinit(&w);
    return node;
}

uint32_t mox_gb_json_bool(mox_gb *b, uint32_t next)
{
    return mox_gb_either(b, mox_gb_word(b, "true", next), mox_gb_word(b, "false", next));
}

/* Opens and closes a container around elements that are all alike: made by element, which
 * leads on to the node that it is given. */
static uint32_t container(mox_gb *b, const char *brackets, uint32_t (*element)(mox_gb *b, uint32_t next), uint32_t next)
{
    b->nest++;
    const uint32_t close = mox_gb_byte(b, (unsigned char)brackets[1], next);
    const uint32_t more = mox_gb_byte(b, ',', mox_gb_ws(b, element(b, b->returns)));
    const uint32_t rest = mox_gb_repeat(b, more, 0, MOX_GRAMMAR_NO_MAX, mox_gb_ws(b, close));
    const uint32_t inside = mox_gb_ws(b, mox_gb_either(b, close, element(b, rest)));
    const uint32_t open = mox_gb_byte(b, (unsigned char)brackets[0], inside);
    b->nest--;
    return open;
}

static uint32_t pair(mox_gb *b, uint32_t next)
{
    const uint32_t value = mox_gb_ws(b, mox_gb_json_value(b, next));
    return mox_gb_json_string(b, NULL, 0, MOX_GRAMMAR_NO_MAX, mox_gb_byte(b, ':', value));
}

static uint32_t any_value(mox_gb *b)
{
    const uint32_t next = b->returns;
    const mox_gbound none = {0};
    const uint32_t ways[] = {
        mox_gb_json_object(b, next),
        mox_gb_json_array(b, next),
        mox_gb_json_string(b, NULL, 0, MOX_GRAMMAR_NO_MAX, next),
        mox_gb_number(b, false, &none, &none, next),
        mox_gb_json_bool(b, next),
        mox_gb_word(b, "null", next),
    };
    return mox_gb_split(b, ways, sizeof ways / sizeof *ways);
}

static uint32_t any_object(mox_gb *b) { return container(b, "{}", pair, b->returns); }
static uint32_t any_array(mox_gb *b) { return container(b, "[]", mox_gb_json_value, b->returns); }

/* Calls a rule that is made when it is first needed. */
static uint32_t call_shared(mox_gb *b, uint32_t *rule, uint32_t (*make)(mox_gb *b), uint32_t next)
{
    if (*rule == MOX_GRAMMAR_NO_MAX && b->status == MOX_OK) {
        const uint8_t nest = b->nest;
        *rule = mox_gb_rule(b);
        b->nest = 0;
        mox_gb_define(b, *rule, make(b));
        b->nest = nest;
    }
    return mox_gb_call(b, *rule, next);
}

uint32_t mox_gb_json_value(mox_gb *b, uint32_t next) { return call_shared(b, &b->any_value, any_value, next); }
uint32_t mox_gb_json_object(mox_gb *b, uint32_t next) { return call_shared(b, &b->any_object, any_object, next); }
uint32_t mox_gb_json_array(mox_gb *b, uint32_t next) { return call_shared(b, &b->any_array, any_array, next); }
