/* text/grammar_step.h -- what a byte does to a node that takes several.
 *
 * Characters, strings and blanks are nodes with a memory: 64 bits that say how far they have
 * come.  0 is the beginning of all of them but strings, which mox_gstep_begin knows.
 *
 * Nothing is taken that could not be completed: a byte of a character only when the character
 * can become one that is allowed here, a character only when the string can still end. */
#ifndef MOX_TEXT_GRAMMAR_STEP_H
#define MOX_TEXT_GRAMMAR_STEP_H

#include "text/grammar.h"

typedef enum mox_gstep {
    MOX_STEP_NO,
    MOX_STEP_STAYS, /* at the same node, with a new memory */
    MOX_STEP_NEXT   /* at the node that follows */
} mox_gstep;

uint64_t mox_gstep_begin(const mox_gstring *s);
/* There is such a string at all. */
bool mox_gstep_possible(const mox_gstring *s);
mox_gstep mox_gstep_char(const mox_granges *r, unsigned char byte, uint64_t *memory);
mox_gstep mox_gstep_string(const mox_gstring *s, unsigned char byte, uint64_t *memory);
mox_gstep mox_gstep_ws(unsigned char byte, uint64_t *memory);
/* The string may end here. */
bool mox_gstep_string_ends(const mox_gstring *s, uint64_t memory);
/* Every token of the slice, up to so many bytes, keeps the string in it. */
bool mox_gstep_string_takes(const mox_gstring *s, uint64_t memory, int slice, size_t longest);

#endif
