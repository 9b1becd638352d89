/* text/template_case.c -- what Python asks about characters, and changes of case.
 *
 * One character maps to one, but for the German sharp s.  Data: libutf8proc. */
#include "text/template_value.h"
#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((utf8proc_int32_t)cp); }

bool mox_char_is_space(uint32_t cp)
{
    if (cp < 0x80) return cp == ' ' || (cp >= '\t' && cp <= '\r') || (cp >= 0x1C && cp <= 0x1F);
    const utf8proc_category_t c = category(cp);
    return cp == 0x85 || c == UTF8PROC_CATEGORY_ZS || c == UTF8PROC_CATEGORY_ZL || c == UTF8PROC_CATEGORY_ZP;
}

bool mox_char_is_printable(uint32_t cp)
{
    if (cp < 0x7F) return cp >= 0x20;
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

static bool is_letter(uint32_t cp)
{
    const utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static bool is_digit(uint32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }

static bool is_number(uint32_t cp)
{
    const utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool mox_char_is_word(uint32_t cp)
{
    if (cp < 0x80) return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 0x20) >= 'a' && (cp | 0x20) <= 'z');
    return is_letter(cp) || is_number(cp);
}

static bool is_upper(uint32_t cp) { return utf8proc_isupper((utf8proc_int32_t)cp) != 0; }
static bool is_lower(uint32_t cp) { return utf8proc_islower((utf8proc_int32_t)cp) != 0; }

static bool is_cased(uint32_t cp) { return is_upper(cp) || is_lower(cp) || category(cp) == UTF8PROC_CATEGORY_LT; }

bool mox_ts_all(const mox_ts *s, int what)
{
    bool cased = false;
    size_t length;
    for (size_t i = 0; i < s->n; i += length) {
        uint32_t cp;
        length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
        bool holds = true;
        switch (what) {
        case MOX_IS_ALNUM: holds = is_letter(cp) || is_number(cp); break;
        case MOX_IS_ALPHA: holds = is_letter(cp); break;
        case MOX_IS_DIGIT: holds = is_digit(cp); break;
        case MOX_IS_SPACE: holds = mox_char_is_space(cp); break;
        case MOX_IS_LOWER: holds = is_lower(cp) || !is_cased(cp); break;
        default: holds = is_upper(cp) || !is_cased(cp); break;
        }
        if (!holds) return false;
        cased |= is_cased(cp);
    }
    return what == MOX_IS_LOWER || what == MOX_IS_UPPER ? cased : s->n > 0;
}

static uint32_t change(uint32_t cp, int how)
{
    const utf8proc_int32_t c = (utf8proc_int32_t)cp;
    switch (how) {
    case MOX_CASE_UPPER: return (uint32_t)utf8proc_toupper(c);
    case MOX_CASE_TITLE: return (uint32_t)utf8proc_totitle(c);
    default: return (uint32_t)utf8proc_tolower(c);
    }
}

static mox_status add_changed(mox_render *r, mox_tb *b, uint32_t cp, int how, bool user)
{
    unsigned char bytes[4];
    if (cp == 0xDF && how != MOX_CASE_LOWER) return mox_tb_bytes(r, b, how == MOX_CASE_UPPER ? "SS" : "Ss", 2, user);
    return mox_tb_bytes(r, b, (const char *)bytes, mox_utf8_encode(change(cp, how), bytes), user);
}

mox_status mox_ts_case(mox_render *r, const mox_ts *s, int how, mox_tv *out)
{
    mox_tb b = {.markup = s->markup};
    bool in_word = false, user = false;
    size_t length, stretch = 0;
    for (size_t i = 0; i < s->n; i += length) {
        uint32_t cp;
        int to = how;
        if (i >= stretch) stretch = mox_ts_stretch(s, i, &user);
        length = mox_utf8_next((const unsigned char *)s->p + i, &cp);
        if (how == MOX_CASE_CAPITALIZE) to = i == 0 ? MOX_CASE_TITLE : MOX_CASE_LOWER;
        if (how == MOX_CASE_TITLE) to = in_word ? MOX_CASE_LOWER : MOX_CASE_TITLE;
        if (how == MOX_CASE_SWAP) to = is_upper(cp) ? MOX_CASE_LOWER : MOX_CASE_UPPER;
        in_word = is_cased(cp);
        if (how == MOX_CASE_SWAP && !is_upper(cp) && !is_lower(cp)) {
            MOX_TRY(mox_tb_part(r, &b, s, i, i + length));
        } else {
            MOX_TRY(add_changed(r, &b, cp, to, user));
        }
    }
    return mox_tb_done(r, &b, out);
}
