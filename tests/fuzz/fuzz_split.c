/* Any bytes through every hand-written scanner and, as the oracle, through PCRE2
 * with the scanner's pattern.  Both must cut at the same places. */
#include "../unit/split_oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static oracle the_oracle;
    if (!the_oracle.bits && oracle_init(&the_oracle)) abort();
    size_t at = 0;
    while (at < size) { /* runs of characters that both sides know */
        size_t end = at;
        uint32_t cp;
        for (size_t length; (length = mox_utf8_decode(data + end, size - end, &cp)) > 0; end += length) {
            if (!oracle_agrees(&the_oracle, cp)) break;
        }
        for (int i = 0; mox_scans[i].name; i++) {
            if (oracle_compare(&the_oracle, i, data + at, end - at) >= 0) {
                fprintf(stderr, "%s cuts differently\n", mox_scans[i].name);
                abort();
            }
        }
        at = end > at ? end : at + 1;
    }
    return 0;
}
