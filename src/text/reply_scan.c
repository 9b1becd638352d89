/* text/reply_scan.c -- words, tags and JSON in text that is still coming: the pieces
 * that the formats of tool calls are made of.  See reply_internal.h for the rules. */
#include "text/reply_internal.h"

#include <string.h>

mox_match mox_seen_match(const mox_seen *in, size_t at, const char *marker)
{
    const size_t n = strlen(marker), there = in->n - at < n ? in->n - at : n;
    if (memcmp(in->text + at, marker, there) != 0) return MOX_MATCH_NO;
    if (there == n) return MOX_MATCH_YES;
    return in->ended ? MOX_MATCH_NO : MOX_MATCH_PART;
}

static void skip_blanks(mox_scan *s)
{
    while (s->pos < s->in.n && mox_is_blank(s->in.text[s->pos])) s->pos++;
}

int mox_scan_tag(mox_scan *s, const char *const *tags)
{
    skip_blanks(s);
    if (s->pos == s->in.n) return s->in.ended ? MOX_TAG_END : MOX_TAG_MORE;
    for (int i = 0; tags[i]; i++) {
        const mox_match match = mox_seen_match(&s->in, s->pos, tags[i]);
        if (match == MOX_MATCH_PART) return MOX_TAG_MORE;
        if (match == MOX_MATCH_NO) continue;
        s->pos += strlen(tags[i]);
        s->from = s->pos;
        return i;
    }
    return MOX_TAG_NONE;
}

mox_scan_result mox_scan_expect(mox_scan *s, const char *tag)
{
    const char *const tags[] = {tag, NULL};
    const int found = mox_scan_tag(s, tags);
    return found >= 0 ? MOX_SCAN_ON : found == MOX_TAG_MORE ? MOX_SCAN_MORE : MOX_SCAN_BROKEN;
}

static bool is_word_byte(char c) { return (unsigned char)c > ' ' && c != 0x7F && !strchr("<>{}\"`", c); }

mox_scan_result mox_scan_word(mox_scan *s, mox_span *out)
{
    if (s->pos == s->from) {
        skip_blanks(s);
        s->from = s->pos;
    }
    while (s->pos < s->in.n && is_word_byte(s->in.text[s->pos])) {
        if (s->pos - s->from == MOX_REPLY_NAME_MAX) return MOX_SCAN_BROKEN;
        s->pos++;
    }
    if (s->pos == s->in.n && !s->in.ended) return MOX_SCAN_MORE;
    *out = (mox_span){s->from, s->pos};
    return s->pos > s->from ? MOX_SCAN_ON : MOX_SCAN_BROKEN;
}

mox_scan_result mox_scan_json(mox_scan *s)
{
    if (s->pos == s->from) {
        skip_blanks(s);
        s->from = s->pos;
    }
    while (s->pos < s->in.n) {
        const mox_follow follow = mox_json_follow_byte(&s->json, s->in.text[s->pos]);
        if (follow == MOX_FOLLOW_BAD || s->in.text[s->from] == '[') return MOX_SCAN_BROKEN;
        s->pos++;
        if (follow != MOX_FOLLOW_END) continue;
        s->value = (mox_span){s->from, s->pos};
        return MOX_SCAN_ON;
    }
    return MOX_SCAN_MORE;
}

int mox_scan_seek(mox_scan *s, const char *const *tags, size_t *at)
{
    while (s->pos < s->in.n) {
        const char *angle = memchr(s->in.text + s->pos, '<', s->in.n - s->pos);
        *at = angle ? (size_t)(angle - s->in.text) : s->in.n;
        s->pos = *at;
        for (int i = 0; tags[i] && s->pos < s->in.n; i++) {
            const mox_match match = mox_seen_match(&s->in, s->pos, tags[i]);
            if (match == MOX_MATCH_PART) return MOX_TAG_MORE;
            if (match == MOX_MATCH_NO) continue;
            s->pos += strlen(tags[i]);
            return i;
        }
        if (s->pos < s->in.n) s->pos++;
    }
    return MOX_TAG_MORE;
}

mox_scan_result mox_scan_key(mox_scan *s, const char *close, mox_span *out)
{
    while (s->pos < s->in.n) {
        const mox_match match = mox_seen_match(&s->in, s->pos, close);
        const char c = s->in.text[s->pos];
        if (match == MOX_MATCH_PART) return MOX_SCAN_MORE;
        if (match == MOX_MATCH_YES) {
            *out = (mox_span){s->from, s->pos};
            while (out->begin < out->end && s->in.text[out->begin] == ' ') out->begin++;
            while (out->begin < out->end && s->in.text[out->end - 1] == ' ') out->end--;
            s->pos += strlen(close);
            s->from = s->pos;
            return out->end > out->begin ? MOX_SCAN_ON : MOX_SCAN_BROKEN;
        }
        if (c == '<' || c == '>' || (unsigned char)c < ' ' || s->pos - s->from == MOX_REPLY_NAME_MAX) {
            return MOX_SCAN_BROKEN;
        }
        s->pos++;
    }
    return MOX_SCAN_MORE;
}
