/* text/grammar_dfa.h -- sets of strings, as deterministic automata over characters.
 *
 * They say which strings a schema's `pattern` or `format` allows, which names an object's
 * other properties may have, and what text may stand in a tag.  Characters are Unicode scalar
 * values; those that no automaton tells apart share a class.
 *
 * Transitions into states from which no end can be reached are not there, so what the
 * automaton takes can always be completed.  Memory comes from the caller's region. */
#ifndef MOX_TEXT_GRAMMAR_DFA_H
#define MOX_TEXT_GRAMMAR_DFA_H

#include "base/err.h"
#include "text/region.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOX_DFA_DEAD = 0xFFFF, MOX_DFA_VARIOUS = 0xFFFE, MOX_DFA_STATES_MAX = 8191, MOX_DFA_CHAR_MAX = 0x10FFFF };
enum { MOX_DFA_STAYS_COMMON = 1, MOX_DFA_STAYS_WORD = 2 }; /* such characters (text/token_trie.h) lead back to the state */
#define MOX_DFA_ENDLESS UINT32_MAX

typedef struct mox_dfa {
    uint32_t n_states, n_classes, n_cuts;
    const uint32_t *cuts;       /* [n_cuts] first characters of runs, the first one 0 */
    const uint16_t *classes;    /* [n_cuts] the class of each run */
    const uint16_t *next;       /* [n_states, n_classes] */
    const unsigned char *ends;  /* [n_states] the string may end here */
    const uint32_t *longest;    /* [n_states] characters that can still follow, or MOX_DFA_ENDLESS */
    const unsigned char *stays; /* [n_states] MOX_DFA_STAYS_... */
    const uint16_t *bytes;      /* [n_states, 256] the same as next for the first bytes of characters, or
                                 * MOX_DFA_VARIOUS; bytes inside of one lead back */
    uint16_t start;             /* MOX_DFA_DEAD: no string at all */
} mox_dfa;

/* Work that may still be done; what would take more fails with MOX_E_LIMIT. */
typedef struct mox_dfa_budget {
    int64_t left;
} mox_dfa_budget;

/* The run that holds a character. */
uint32_t mox_dfa_run(const mox_dfa *d, uint32_t c);
static inline uint16_t mox_dfa_step(const mox_dfa *d, uint32_t state, uint32_t c)
{
    return d->next[(size_t)state * d->n_classes + d->classes[mox_dfa_run(d, c)]];
}

/* What a regular expression of ECMAScript finds something in.  MOX_E_ARG: it is wrong, or has
 * something that is not supported; the sentence continues "the pattern ...". */
mox_status mox_dfa_pattern(mox_region *m, const char *pattern, size_t n, mox_dfa_budget *work, const mox_dfa **out,
                           mox_err *err);

typedef struct mox_dfa_words {
    const char *const *v; /* UTF-8 */
    const size_t *n;
    size_t n_words;
} mox_dfa_words;
/* All strings but these. */
mox_status mox_dfa_other_than(mox_region *m, const mox_dfa_words *words, mox_dfa_budget *work, const mox_dfa **out,
                              mox_err *err);
/* All strings in which none of these stands, of characters that text has. */
mox_status mox_dfa_without(mox_region *m, const mox_dfa_words *words, mox_dfa_budget *work, const mox_dfa **out,
                           mox_err *err);
/* Strings that both allow. */
mox_status mox_dfa_both(mox_region *m, const mox_dfa *a, const mox_dfa *b, mox_dfa_budget *work, const mox_dfa **out,
                        mox_err *err);

/* The table of mox_gstring: bit state * (max + 1) + count is set when a string that has count
 * characters so far can end with min to max of them.  MOX_E_LIMIT: it would be too large. */
mox_status mox_dfa_reach(mox_region *m, const mox_dfa *d, uint32_t min, uint32_t max, mox_dfa_budget *work,
                         const uint64_t **out, mox_err *err);

/* ---- inside (grammar_regex.c makes the nodes, grammar_dfa.c the automaton) ---- */

typedef enum mox_nfa_op { MOX_NFA_CHARS, MOX_NFA_SPLIT, MOX_NFA_BEGIN, MOX_NFA_END, MOX_NFA_MATCH } mox_nfa_op;

typedef struct mox_nfa_node {
    uint8_t op;
    uint32_t a; /* index of a set of characters; or the other way of a split */
    uint32_t next;
} mox_nfa_node;

typedef struct mox_nfa_set { /* runs [v[0], v[1]], [v[2], v[3]], ... in order and apart */
    const uint32_t *v;
    uint32_t n; /* numbers, two for each run */
} mox_nfa_set;

enum { MOX_NFA_NODES_MAX = 1 << 15, MOX_NFA_SETS_MAX = 1 << 11 };

typedef struct mox_nfa {
    mox_region *memory;
    mox_nfa_node *nodes;
    mox_nfa_set *sets;
    uint32_t n_nodes, n_sets;
} mox_nfa;

mox_status mox_nfa_init(mox_nfa *n, mox_region *m, mox_err *err);
mox_status mox_nfa_add(mox_nfa *n, mox_nfa_op op, uint32_t a, uint32_t next, uint32_t *out, mox_err *err);
/* v is any runs; they are brought into order.  Surrogates and nothing else are left out. */
mox_status mox_nfa_add_set(mox_nfa *n, const uint32_t *v, uint32_t count, bool negated, uint32_t *out, mox_err *err);
/* Nodes for the regular expression; they lead on to `next`. */
mox_status mox_nfa_parse(mox_nfa *n, const char *pattern, size_t length, uint32_t next, uint32_t *out, mox_err *err);

#endif
