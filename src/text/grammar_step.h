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

/* A string between two characters, for walking over tokens of whole ones. */
typedef struct mox_gplace {
    uint32_t state, count;
} mox_gplace;

/* False: it is inside a character or an escape. */
bool mox_gstep_string_place(uint64_t memory, mox_gplace *out);
uint64_t mox_gstep_string_memory(mox_gplace place);
/* With one character more, which leads to this state of the automaton. */
static inline uint32_t mox_gstep_one_more(const mox_gstring *s, uint32_t count)
{
    /* without a greatest length, characters beyond the least are not counted */
    return s->max == MOX_GRAMMAR_NO_MAX && count >= s->min ? count : count + 1;
}
bool mox_gstep_string_can_end(const mox_gstring *s, mox_gplace place);
/* It stays where it is with up to n common characters. */
bool mox_gstep_string_stays(const mox_gstring *s, mox_gplace place, size_t n);

#endif
