/* text/grammar_formats.c -- what the formats of JSON Schema look like.
 *
 * Each is a pattern for a part of what the standard allows that every reader agrees on: years
 * have four digits and do not begin with 0, the 29th of February is not written, host names
 * are ASCII.  Formats that say nothing about how a string is spelled have no pattern. */
#include "text/grammar_schema.h"

#include <string.h>

#define DATE                                                                                                           \
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"            \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME CLOCK ":[0-5][0-9](?:[.][0-9]{1,6})?(?:Z|[+-]" CLOCK ")"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HOST LABEL "(?:[.]" LABEL "){0,6}"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "[.]" BYTE "[.]" BYTE "[.]" BYTE
#define H16 "[0-9A-Fa-f]{1,4}"
#define PATH_CHAR "[A-Za-z0-9_~.!$&'()*+,;=:@-]"

const char *mox_gschema_format(const char *name, size_t n)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration",
         "^P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
         "(?:T[0-9]{1,9}H(?:[0-9]{1,9}M)?)?|T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?"
         "|"
         "[0-9]{1,9}S))$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"email", "^[A-Za-z0-9_+-]+(?:[.][A-Za-z0-9_+-]+){0,6}@" HOST "[.][A-Za-z]{2,12}$"},
        {"idn-email", "^[A-Za-z0-9_+-]+(?:[.][A-Za-z0-9_+-]+){0,6}@" HOST "[.][A-Za-z]{2,12}$"},
        {"hostname", "^" HOST "$"},
        {"idn-hostname", "^" HOST "$"},
        {"ipv4", "^" IPV4 "$"},
        {"ipv6",
         "^(?:(?:" H16 ":){7}" H16 "|(?:" H16 ":){1,3}:" H16 "(?::" H16 "){0,2}|::(?:" H16 "(?::" H16 "){0,5})?)$"},
        {"uri", "^[a-z][a-z0-9+.-]{1,15}://" HOST "(?::[1-9][0-9]{0,3})?(?:/" PATH_CHAR "*)*(?:[?](?:" PATH_CHAR
                "|/)*)?(?:#(?:" PATH_CHAR "|/)*)?$"},
        {"iri", "^[a-z][a-z0-9+.-]{1,15}://" HOST "(?:/" PATH_CHAR "*)*$"},
        {"uri-reference", "^(?:/" PATH_CHAR "+)+(?:[?](?:" PATH_CHAR "|/)*)?$"},
        {"iri-reference", "^(?:/" PATH_CHAR "+)+$"},
        {"json-pointer", "^(?:/(?:[A-Za-z0-9_.-]|~[01])*)*$"},
        {"int32", ""},
        {"int64", ""},
        {"uint32", ""},
        {"uint64", ""},
        {"float", ""},
        {"double", ""},
        {"password", ""},
        {"binary", ""},
        {"byte", ""},
        {"text", ""},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strlen(formats[i].name) == n && memcmp(formats[i].name, name, n) == 0) return formats[i].pattern;
    return NULL;
}
