/* tools/popularity.c -- see popularity.h. */
#include "tools/popularity.h"

#include <math.h>

enum { ROUNDS = 100 };

double mox_popularity_chance(const mox_popularity *q, int64_t rank, double tokens)
{
    return -expm1(-q->scale * tokens * pow((double)rank, -q->zipf));
}

double mox_popularity_sum(const mox_popularity *q, double tokens)
{
    double sum = 0.0;
    for (int64_t i = 1; i <= q->n; i++) sum += mox_popularity_chance(q, i, tokens);
    return sum;
}

mox_popularity mox_popularity_of(int64_t n, int64_t k, double zipf)
{
    mox_popularity q = {.zipf = zipf, .scale = 1.0, .n = n};
    if (k >= n) {
        q.scale = INFINITY;
        return q;
    }
    double low = 0.0, high = 1e3 * pow((double)n, zipf); /* of tokens, which stand for the scale */
    for (int i = 0; i < ROUNDS; i++) {
        const double middle = 0.5 * (low + high);
        if (mox_popularity_sum(&q, middle) < (double)k) low = middle;
        else high = middle;
    }
    q.scale = 0.5 * (low + high);
    return q;
}
