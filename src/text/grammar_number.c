/* text/grammar_number.c -- JSON numbers between two bounds, digit by digit.
 *
 * A whole number between two others is a choice of digits in which the first ones may be
 * those of a bound: then the next one has that bound too, otherwise it is free.  That needs
 * the number of digits beforehand, so there is a branch for each number of them.  Behind the
 * point the same goes on with the fractions.
 *
 * How many digits there may be: a number without bounds has up to 16 before the point and up
 * to 16 behind it, and an exponent below 100; a whole one up to 18.  With bounds there is no
 * exponent, and no more than 15 digits in all unless a bound has more: so many survive being
 * read as a double, in which a reader will compare them with the bounds. */
#include "text/grammar.h"

#include <string.h>

enum { DIGITS_MAX = 40, FREE_WHOLE = 16, FREE_FRACTION = 16, WHOLE_MAX = 18, EXACT_DIGITS = 15 };

/* ---- bounds ------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The exponent as a number; false when it is beyond reason. */
static bool read_exponent(const char *text, size_t n, int *out)
{
    size_t i = n > 0 && (text[0] == '-' || text[0] == '+');
    int e = 0;
    for (; i < n; i++) {
        e = e * 10 + (text[i] - '0');
        if (e > 10000) return false;
    }
    *out = n > 0 && text[0] == '-' ? -e : e;
    return true;
}

bool mox_gbound_read(mox_gb *b, const char *text, size_t n, mox_gbound *out)
{
    size_t i = n > 0 && text[0] == '-', count = 0;
    int exponent = 0, point = -1;
    char digits[2 * DIGITS_MAX];
    *out = (mox_gbound){.set = true, .negative = i > 0};
    for (; i < n && (is_digit(text[i]) || text[i] == '.'); i++) {
        if (text[i] == '.') {
            point = (int)count;
            continue;
        }
        if (count == 0 && text[i] == '0' && point < 0) continue;
        if (count == sizeof digits) return false;
        digits[count++] = (char)(text[i] - '0');
    }
    if (point < 0) point = (int)count;
    if (i < n && !read_exponent(text + i + 1, n - i - 1, &exponent)) return false;
    while (count > 0 && digits[count - 1] == 0) count--;
    size_t zeros = 0; /* leading ones, of a number below 1 */
    while (zeros < count && digits[zeros] == 0) zeros++;
    if (zeros == count) { /* zero, however it is spelled */
        out->negative = false;
        out->digits = "";
        return true;
    }
    const int whole = point + exponent, last = (int)count > whole ? (int)count : whole;
    const int before = whole < 0 ? -whole : 0; /* zeros between the point and the first digit */
    if (last + before > DIGITS_MAX) return false;
    char *all = mox_gb_take(b, (size_t)(last + before));
    if (!all) return true;
    memcpy(all + before, digits, count);
    int skip = 0; /* what a negative exponent has made leading zeros of the whole part */
    while (skip < whole && all[skip] == 0) skip++;
    out->digits = all + skip;
    out->n_whole = (uint32_t)(whole > 0 ? whole - skip : 0);
    out->n_all = (uint32_t)((int)count > whole ? (int)count + before - skip : whole - skip);
    return true;
}

static int compare_sizes(const mox_gbound *x, const mox_gbound *y)
{
    if (x->n_whole != y->n_whole) return x->n_whole < y->n_whole ? -1 : 1;
    for (uint32_t i = 0; i < x->n_all || i < y->n_all; i++) {
        const int a = i < x->n_all ? x->digits[i] : 0, c = i < y->n_all ? y->digits[i] : 0;
        if (a != c) return a < c ? -1 : 1;
    }
    return 0;
}

int mox_gbound_compare(const mox_gbound *x, const mox_gbound *y)
{
    if (x->negative != y->negative) return x->negative ? -1 : 1;
    return x->negative ? compare_sizes(y, x) : compare_sizes(x, y);
}

/* ---- numbers without bounds ----------------------------------------------------- */

static uint32_t digits(mox_gb *b, uint32_t min, uint32_t max, uint32_t next)
{
    if (max == 0) return next;
    return mox_gb_repeat(b, mox_gb_set(b, "09", b->returns), min, max, next);
}

static uint32_t whole_part(mox_gb *b, uint32_t max, uint32_t next)
{
    return mox_gb_either(b, mox_gb_byte(b, '0', next), mox_gb_set(b, "19", digits(b, 0, max - 1, next)));
}

static uint32_t free_size(mox_gb *b, bool whole, uint32_t next)
{
    if (whole) return whole_part(b, WHOLE_MAX, next);
    const uint32_t power = mox_gb_either(b, mox_gb_set(b, "19", digits(b, 0, 1, next)), mox_gb_byte(b, '0', next));
    const uint32_t sign = mox_gb_either(b, power, mox_gb_set(b, "++--", power));
    const uint32_t exponent = mox_gb_either(b, next, mox_gb_set(b, "EEee", sign));
    const uint32_t fraction = mox_gb_byte(b, '.', digits(b, 1, FREE_FRACTION, exponent));
    return whole_part(b, FREE_WHOLE, mox_gb_either(b, exponent, fraction));
}

/* ---- between bounds --------------------------------------------------------------- */

typedef struct between { /* sizes: low <= x <= high, both at least 0 */
    mox_gb *b;
    const mox_gbound *low, *high; /* high NULL: none */
    bool whole;                   /* no fraction */
    uint32_t n_whole;             /* digits before the point, in this branch */
    uint32_t next;
} between;

static int digit_of(const mox_gbound *x, uint32_t i) { return i < x->n_all ? x->digits[i] : 0; }

static bool only_zeros(const mox_gbound *x, uint32_t from)
{
    for (uint32_t i = from; i < x->n_all; i++)
        if (x->digits[i] != 0) return false;
    return true;
}

/* Whether the number may stop before the fraction's digit i; at_low, at_high: it has the bound's digits so far. */
static bool may_stop(const between *k, uint32_t at, bool at_low, bool at_high)
{
    if (at_low && (!only_zeros(k->low, at) || k->low->exclusive)) return false;
    return !(at_high && k->high->exclusive && only_zeros(k->high, at));
}

/* A digit between the bounds', and what follows it: rest[low][high] by whether it is theirs. */
static uint32_t choose_digit(const between *k, int low, int high, bool at_low, bool at_high, uint32_t rest[2][2])
{
    mox_gb *b = k->b;
    uint32_t ways[3], n = 0;
    int from = low, to = high;
    if (low > high) return 0;
    if (at_low || (at_high && low == high)) {
        ways[n++] = mox_gb_byte(b, (unsigned char)('0' + low), rest[at_low][at_high && low == high]);
        from++;
    }
    if (at_high && low < high) {
        ways[n++] = mox_gb_byte(b, (unsigned char)('0' + high), rest[0][1]);
        to--;
    }
    if (from <= to) {
        const char set[] = {(char)('0' + from), (char)('0' + to), '\0'};
        ways[n++] = mox_gb_set(b, set, rest[0][0]);
    }
    return mox_gb_split(b, ways, n);
}

static uint32_t fraction_max(const between *k)
{
    uint32_t n = k->n_whole < EXACT_DIGITS ? EXACT_DIGITS - k->n_whole : 0;
    const uint32_t low = k->low->n_all - k->low->n_whole, high = k->high ? k->high->n_all - k->high->n_whole : 0;
    if (low > 0 && low >= n) n = low + 1;
    if (high > 0 && high >= n) n = high + 1;
    return n;
}

/* What may follow the whole part: fills out[low][high]. */
static void make_fractions(const between *k, uint32_t out[2][2])
{
    mox_gb *b = k->b;
    const uint32_t n = k->whole ? 0 : fraction_max(k);
    uint32_t rest[2][2] = {{0, 0}, {0, 0}};
    for (uint32_t i = n + 1; i-- > 0 && b->status == MOX_OK;) {
        /* low and high speak of the same digit here: its place behind the point */
        const uint32_t low_at = k->low->n_whole + i, high_at = k->high ? k->high->n_whole + i : 0;
        uint32_t here[2][2];
        for (int low = 0; low < 2; low++) {
            for (int high = 0; high < 2; high++) {
                const bool stop = (!low || may_stop(k, low_at, true, false)) &&
                                  (!high || (k->high && may_stop(k, high_at, false, true)));
                const int from = low ? digit_of(k->low, low_at) : 0,
                          to = high && k->high ? digit_of(k->high, high_at) : 9;
                uint32_t more = i == n || (high && !k->high) ? 0 : choose_digit(k, from, to, low, high, rest);
                if (i == 0 && more != 0) more = mox_gb_byte(b, '.', more);
                here[low][high] = !stop ? more : more == 0 ? k->next : mox_gb_either(b, more, k->next);
            }
        }
        memcpy(rest, here, sizeof rest);
    }
    memcpy(out, rest, sizeof rest);
}

/* Numbers with k->n_whole digits before the point. */
static uint32_t with_digits(const between *k)
{
    const bool low_has = k->low->n_whole == k->n_whole || (k->n_whole == 1 && k->low->n_whole == 0);
    const bool high_has = k->high && (k->high->n_whole == k->n_whole || (k->n_whole == 1 && k->high->n_whole == 0));
    uint32_t rest[2][2];
    make_fractions(k, rest);
    for (uint32_t i = k->n_whole; i-- > 0 && k->b->status == MOX_OK;) {
        uint32_t here[2][2] = {{0, 0}, {0, 0}};
        const int least = i == 0 && k->n_whole > 1;
        for (int low = 0; low < 2; low++) {
            for (int high = 0; high < 2; high++) {
                if ((low && !low_has) || (high && !high_has)) continue;
                const int from = !low ? least : k->low->n_whole == 0 ? 0 : digit_of(k->low, i);
                const int to = !high ? 9 : k->high->n_whole == 0 ? 0 : digit_of(k->high, i);
                here[low][high] = choose_digit(k, from, to, low, high, rest);
            }
        }
        memcpy(rest, here, sizeof rest);
    }
    return rest[low_has][high_has];
}

/* Sizes from low to high. */
static uint32_t between_sizes(mox_gb *b, bool whole, const mox_gbound *low, const mox_gbound *high, uint32_t next)
{
    between k = {.b = b, .low = low, .high = high, .whole = whole, .next = next};
    const uint32_t most_free = whole ? WHOLE_MAX : EXACT_DIGITS;
    uint32_t first = low->n_whole > 0 ? low->n_whole : 1,
             last = high ? (high->n_whole > 0 ? high->n_whole : 1) : most_free;
    if (!whole && last > EXACT_DIGITS && first <= EXACT_DIGITS)
        last = EXACT_DIGITS; /* numbers with more digits are not needed */
    if (last < first) last = high ? last : first;
    uint32_t ways[DIGITS_MAX + 1], n = 0;
    for (k.n_whole = first; k.n_whole <= last && n < DIGITS_MAX; k.n_whole++) ways[n++] = with_digits(&k);
    return mox_gb_split(b, ways, n);
}

uint32_t mox_gb_number(mox_gb *b, bool whole, const mox_gbound *low, const mox_gbound *high, uint32_t next)
{
    static const mox_gbound zero = {.set = true, .digits = ""},
                            above_zero = {.set = true, .exclusive = true, .digits = ""};
    uint32_t ways[2], n = 0;
    const bool from_zero = low->set && !low->exclusive && low->n_all == 0;
    if (!high->set && (!low->set || from_zero)) {
        const uint32_t size = free_size(b, whole, next);
        return low->set ? size : mox_gb_either(b, size, mox_gb_byte(b, '-', size));
    }
    if (!high->set || !high->negative) { /* there are numbers that are not negative */
        const bool has_low = low->set && !low->negative;
        ways[n++] = between_sizes(b, whole, has_low ? low : &zero, high->set ? high : NULL, next);
    }
    if (!low->set || low->negative) {
        const bool has_high = high->set && high->negative;
        const uint32_t size = between_sizes(b, whole, has_high ? high : &above_zero, low->set ? low : NULL, next);
        ways[n++] = mox_gb_byte(b, '-', size);
    }
    return mox_gb_split(b, ways, n);
}
