/* runtime/logprob.c -- see logprob.h. */
#include "runtime/logprob.h"

#include "base/size.h"

#include <math.h>

/* log sum exp, from the largest one down so that nothing overflows. */
static double log_total(const float *logits, int64_t n)
{
    float top = logits[0];
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > top) top = logits[i];
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += exp((double)logits[i] - (double)top);
    return (double)top + log(total);
}

int32_t mox_logprobs(const float *logits, int64_t n_vocab, mox_logprob *token, mox_logprob *top, int32_t n_top)
{
    const double total = log_total(logits, n_vocab);
    token->logprob = (float)((double)logits[token->token] - total);
    const int32_t most = (int32_t)mox_min_i64(n_top, n_vocab);
    int32_t n = 0;
    for (int64_t i = 0; i < n_vocab && most > 0; i++) { /* top[0, n) has raw logits in order */
        if (n == most && logits[i] <= top[n - 1].logprob) continue;
        int32_t at = n < most ? n++ : n - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--) top[at] = top[at - 1];
        top[at] = (mox_logprob){(int32_t)i, logits[i]};
    }
    for (int32_t i = 0; i < n; i++) top[i].logprob = (float)((double)top[i].logprob - total);
    return n;
}
