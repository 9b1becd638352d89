/* tools/verify.h -- looking at the numbers of a tensor as its bytes pass by. */
#ifndef MOX_TOOLS_VERIFY_H
#define MOX_TOOLS_VERIFY_H

#include "format/safetensors.h"

/* Members are what the leading axis of a stack of three dimensions counts, experts as a
 * rule; other tensors are one member. */
typedef struct mox_number_scan {
    mox_dtype dtype;       /* NONE: its numbers are codes */
    bool is_scale;         /* of a quantized matrix */
    int64_t element_bytes; /* at least 1 */
    int64_t n_elements, n_members, member_bytes;
    int64_t at;            /* bytes that have passed */
    bool nonzero;          /* of the member at hand */
    int64_t n_odd, first_odd;   /* numbers that are not finite */
    int64_t n_zero, first_zero; /* members that are all zero, of scales */
} mox_number_scan;

void mox_number_scan_begin(mox_number_scan *s, const mox_tensor_info *t);
/* The next n bytes, whole elements. */
void mox_number_scan_add(mox_number_scan *s, const uint8_t *bytes, int64_t n);

#endif
