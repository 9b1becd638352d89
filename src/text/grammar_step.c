/* text/grammar_step.c -- characters, strings and blanks, byte by byte.
 *
 * The memory of a node, from the lowest bit: 21 bits of a character's value, 2 of bytes or
 * digits that are missing or there, 2 of its length, 3 of a phase, and for strings 13 of the
 * automaton's state and 23 of the number of characters.
 *
 * A string with an automaton spells its characters in one way: as they are, and only those
 * that JSON cannot have inside a string with a backslash.  Others may use all escapes;
 * surrogates come in pairs. */
#include "text/grammar_step.h"

enum { PLAIN, ESCAPE, HEX, LOW_BACKSLASH, LOW_U, LOW_HEX }; /* phases */
enum { WS_BLANKS_MAX = 20 };

typedef struct memory {
    uint32_t value, more, length, phase, state, count;
} memory;

static memory unpack(uint64_t m)
{
    return (memory){.value = m & 0x1FFFFF,
                    .more = m >> 21 & 3,
                    .length = m >> 23 & 3,
                    .phase = m >> 25 & 7,
                    .state = m >> 28 & 0x1FFF,
                    .count = (uint32_t)(m >> 41)};
}

static uint64_t pack(const memory *m)
{
    return (uint64_t)m->value | (uint64_t)m->more << 21 | (uint64_t)m->length << 23 | (uint64_t)m->phase << 25 |
           (uint64_t)m->state << 28 | (uint64_t)m->count << 41;
}

/* ---- UTF-8 ---------------------------------------------------------------------------- */

typedef struct span { /* characters that the bytes so far may become */
    uint32_t from, to;
} span;

/* Adds a byte to a character; false when it cannot follow.  more is 0 when it is whole. */
static bool add_byte(memory *m, unsigned char byte)
{
    if (m->more > 0) {
        if ((byte & 0xC0) != 0x80) return false;
        m->value = m->value << 6 | (byte & 0x3FU);
        m->more--;
        return true;
    }
    const uint32_t length = byte >= 0xC2 && byte <= 0xDF   ? 1
                            : byte >= 0xE0 && byte <= 0xEF ? 2
                            : byte >= 0xF0 && byte <= 0xF4 ? 3
                                                           : 0;
    m->length = m->more = length;
    m->value = byte & (0x3FU >> length);
    return length > 0;
}

/* What it may become; from > to: nothing well-formed. */
static span span_of(const memory *m)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    span s = {m->value << (6 * m->more), (m->value << (6 * m->more)) | ((1U << (6 * m->more)) - 1)};
    if (s.from < least[m->length]) s.from = least[m->length];
    if (s.to > MOX_DFA_CHAR_MAX) s.to = MOX_DFA_CHAR_MAX;
    return s;
}

typedef bool fits_fn(const void *user, const memory *m, uint32_t from, uint32_t to);

/* The span holds a character that fits, surrogates aside. */
static bool any_fits(fits_fn *fits, const void *user, const memory *m, span s)
{
    const span low = {s.from, s.to < 0xD7FF ? s.to : 0xD7FF}, high = {s.from > 0xE000 ? s.from : 0xE000, s.to};
    return (low.from <= low.to && fits(user, m, low.from, low.to)) ||
           (high.from <= high.to && fits(user, m, high.from, high.to));
}

/* ---- one character --------------------------------------------------------------------- */

static bool in_ranges(const void *user, const memory *m, uint32_t from, uint32_t to)
{
    const mox_granges *r = user;
    uint32_t low = 0, high = r->n;
    (void)m;
    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        if (r->v[mid].to < from)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->n && r->v[low].from <= to;
}

mox_gstep mox_gstep_char(const mox_granges *r, unsigned char byte, uint64_t *at)
{
    memory m = unpack(*at);
    if (m.more == 0 && byte < 0x80) return in_ranges(r, &m, byte, byte) ? MOX_STEP_NEXT : MOX_STEP_NO;
    if (!add_byte(&m, byte) || !any_fits(in_ranges, r, &m, span_of(&m))) return MOX_STEP_NO;
    if (m.more == 0) return MOX_STEP_NEXT;
    *at = pack(&m);
    return MOX_STEP_STAYS;
}

/* ---- blanks ------------------------------------------------------------------------------ */

mox_gstep mox_gstep_ws(unsigned char byte, uint64_t *at)
{
    if (*at == 0 && byte == ' ') return MOX_STEP_NEXT;
    const bool line = *at == 0 && byte == '\n',
               blank = *at > 0 && *at <= WS_BLANKS_MAX && (byte == ' ' || byte == '\t');
    if (!line && !blank) return MOX_STEP_NO;
    ++*at;
    return MOX_STEP_STAYS;
}

/* ---- strings ------------------------------------------------------------------------------- */

static bool can_end(const mox_gstring *s, uint32_t state, uint32_t count)
{
    if (count > s->max) return false;
    if (!s->dfa) return true;
    if (s->reach) {
        const size_t bit = (size_t)state * ((size_t)s->max + 1) + count;
        return s->reach[bit / 64] >> (bit % 64) & 1;
    }
    return count >= s->min || s->dfa->longest[state] >= s->min - count; /* endless is more than any number */
}

static bool string_fits(const void *user, const memory *m, uint32_t from, uint32_t to)
{
    const mox_gstring *s = user;
    const uint32_t count = mox_gstep_one_more(s, m->count);
    if (!s->dfa) return count <= s->max;
    const uint32_t last = mox_dfa_run(s->dfa, to);
    for (uint32_t run = mox_dfa_run(s->dfa, from); run <= last; run++) {
        const uint16_t state = s->dfa->next[(size_t)m->state * s->dfa->n_classes + s->dfa->classes[run]];
        if (state != MOX_DFA_DEAD && can_end(s, state, count)) return true;
    }
    return false;
}

uint64_t mox_gstep_begin(const mox_gstring *s)
{
    const memory m = {.state = s->dfa ? s->dfa->start : 0};
    return pack(&m);
}

bool mox_gstep_possible(const mox_gstring *s)
{
    return s->max >= s->min && (!s->dfa || (s->dfa->start != MOX_DFA_DEAD && can_end(s, s->dfa->start, 0)));
}

bool mox_gstep_string_ends(const mox_gstring *s, uint64_t at)
{
    const memory m = unpack(at);
    return m.phase == PLAIN && m.more == 0 && m.count >= s->min && (!s->dfa || s->dfa->ends[m.state]);
}

bool mox_gstep_string_place(uint64_t at, mox_gplace *out)
{
    const memory m = unpack(at);
    *out = (mox_gplace){m.state, m.count};
    return m.phase == PLAIN && m.more == 0;
}

uint64_t mox_gstep_string_memory(mox_gplace place)
{
    const memory m = {.state = place.state, .count = place.count};
    return pack(&m);
}

bool mox_gstep_string_can_end(const mox_gstring *s, mox_gplace place) { return can_end(s, place.state, place.count); }

bool mox_gstep_string_stays(const mox_gstring *s, mox_gplace place, size_t n)
{
    if (!(s->dfa->stays[place.state] & MOX_DFA_STAYS_COMMON)) return false;
    for (size_t i = 0; s->reach && i < n; i++)
        if (!can_end(s, place.state, ++place.count)) return false;
    return true; /* in a circle, so there is no end to what may follow */
}

/* A whole character came. */
static mox_gstep take(const mox_gstring *s, memory *m, uint32_t c, uint64_t *at)
{
    const uint16_t state = s->dfa ? mox_dfa_step(s->dfa, m->state, c) : 0;
    const uint32_t count = mox_gstep_one_more(s, m->count);
    if (state == MOX_DFA_DEAD || !can_end(s, state, count)) return MOX_STEP_NO;
    const memory next = {.state = state, .count = count};
    *at = pack(&next);
    return MOX_STEP_STAYS;
}

static mox_gstep stay(const memory *m, uint64_t *at)
{
    *at = pack(m);
    return MOX_STEP_STAYS;
}

static mox_gstep step_escape(const mox_gstring *s, memory *m, unsigned char byte, uint64_t *at)
{
    switch (byte) {
    case '"':
    case '\\': return take(s, m, byte, at);
    case '/': return s->dfa ? MOX_STEP_NO : take(s, m, byte, at);
    case 'b': return take(s, m, '\b', at);
    case 'f': return take(s, m, '\f', at);
    case 'n': return take(s, m, '\n', at);
    case 'r': return take(s, m, '\r', at);
    case 't': return take(s, m, '\t', at);
    default: break;
    }
    if (byte != 'u' || !string_fits(s, m, 0, s->dfa ? 0x1F : 0xFF)) return MOX_STEP_NO;
    *m = (memory){.phase = HEX, .state = m->state, .count = m->count};
    return stay(m, at);
}

static int hex_digit(unsigned char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* One of the four digits of \u; more counts those that are there. */
static mox_gstep step_hex(const mox_gstring *s, memory *m, unsigned char byte, uint64_t *at)
{
    const int digit = hex_digit(byte);
    if (digit < 0) return MOX_STEP_NO;
    const uint32_t value = m->value << 4 | (uint32_t)digit, n = m->more + 1, shift = 4 * (4 - n);
    const uint32_t from = value << shift, to = from | ((1U << shift) - 1);
    if (m->phase == LOW_HEX && (to < 0xDC00 || from > 0xDFFF)) return MOX_STEP_NO;
    if (m->phase == HEX && from >= 0xDC00 && to <= 0xDFFF) return MOX_STEP_NO;
    if (s->dfa && (from > 0x1F || !string_fits(s, m, from, to < 0x1F ? to : 0x1F))) return MOX_STEP_NO;
    m->value = value;
    if (n < 4) {
        m->more = n;
        return stay(m, at);
    }
    if (m->phase == LOW_HEX) return take(s, m, 0x10000, at);
    if (value < 0xD800 || value > 0xDBFF) return take(s, m, value, at);
    *m = (memory){.phase = LOW_BACKSLASH, .state = m->state, .count = m->count};
    return stay(m, at);
}

static mox_gstep step_plain(const mox_gstring *s, memory *m, unsigned char byte, uint64_t *at)
{
    if (m->more == 0 && byte < 0x80) {
        if (s->raw) return byte < 0x20 && byte != '\n' && byte != '\t' ? MOX_STEP_NO : take(s, m, byte, at);
        if (byte < 0x20 || byte == '"') return MOX_STEP_NO;
        if (byte != '\\') return take(s, m, byte, at);
        const bool useful = string_fits(s, m, 0, 0x1F) || string_fits(s, m, '"', '"') || string_fits(s, m, '\\', '\\');
        m->phase = ESCAPE;
        return useful ? stay(m, at) : MOX_STEP_NO;
    }
    if (!add_byte(m, byte) || !any_fits(string_fits, s, m, span_of(m))) return MOX_STEP_NO;
    return m->more == 0 ? take(s, m, m->value, at) : stay(m, at);
}

mox_gstep mox_gstep_string(const mox_gstring *s, unsigned char byte, uint64_t *at)
{
    memory m = unpack(*at);
    switch (m.phase) {
    case PLAIN: return step_plain(s, &m, byte, at);
    case ESCAPE: return step_escape(s, &m, byte, at);
    case HEX:
    case LOW_HEX: return step_hex(s, &m, byte, at);
    default: break;
    }
    if (byte != (m.phase == LOW_BACKSLASH ? '\\' : 'u')) return MOX_STEP_NO;
    m.phase++;
    m.value = m.more = 0;
    return stay(&m, at);
}
