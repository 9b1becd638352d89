/* tools/popularity.h -- how often the experts of a layer are chosen, by rank.
 *
 * A token needs k of n experts.  The i-th most popular one weighs 1 / i^zipf; with zipf 0
 * all are alike.  Drawn without putting back, an expert of weight w is among the k with a
 * chance of about 1 - exp(-scale w), where scale makes the chances add up to k. */
#ifndef MOX_TOOLS_POPULARITY_H
#define MOX_TOOLS_POPULARITY_H

#include <stdint.h>

typedef struct mox_popularity {
    double zipf, scale;
    int64_t n;
} mox_popularity;

mox_popularity mox_popularity_of(int64_t n, int64_t k, double zipf);
/* Of being needed by any of so many tokens; rank from 1. */
double mox_popularity_chance(const mox_popularity *q, int64_t rank, double tokens);
double mox_popularity_sum(const mox_popularity *q, double tokens); /* over all ranks */

#endif
