/* app/server/quotes.c -- see quotes.h.  A quote is one piece of memory, and changes only in its links and
 * its count, under the lock. */
#include "app/server/quotes.h"

#include "base/alloc.h"
#include "base/err.h"

#include <pthread.h>
#include <string.h>

enum { QUOTES_MAX = 256, BYTES_MAX = 32 << 20 };

struct mox_quotes {
    pthread_mutex_t lock;
    mox_quote *newest, *oldest;
    int n;
    size_t bytes;
};

mox_status mox_quotes_create(mox_quotes **out, mox_err *err)
{
    mox_quotes *q = *out = mox_alloc_array(1, sizeof *q);
    if (!q) return mox_fail_memory(err, sizeof *q, "the last replies");
    pthread_mutex_init(&q->lock, NULL);
    return MOX_OK;
}

/* ---- the list; all under the lock ---- */

static void drop(mox_quote *k)
{
    if (--k->refs == 0) mox_free(k);
}

static void unlink_quote(mox_quotes *q, mox_quote *k)
{
    if (k->newer) k->newer->older = k->older;
    else q->newest = k->older;
    if (k->older) k->older->newer = k->newer;
    else q->oldest = k->newer;
    q->n--;
    q->bytes -= k->bytes;
}

static void link_newest(mox_quotes *q, mox_quote *k)
{
    k->newer = NULL;
    k->older = q->newest;
    if (q->newest) q->newest->newer = k;
    else q->oldest = k;
    q->newest = k;
    q->n++;
    q->bytes += k->bytes;
}

static void shrink(mox_quotes *q, int n, size_t bytes)
{
    while (q->oldest && (q->n > n || q->bytes > bytes)) {
        mox_quote *k = q->oldest;
        unlink_quote(q, k);
        drop(k);
    }
}

void mox_quotes_destroy(mox_quotes **quotes)
{
    mox_quotes *q = *quotes;
    if (!q) return;
    shrink(q, 0, 0);
    pthread_mutex_destroy(&q->lock);
    mox_free(q);
    *quotes = NULL;
}

/* ---- quotes ---- */

static void trim(const char **text, size_t *n)
{
    while (*n > 0 && strchr(" \t\r\n", **text)) ++*text, --*n;
    while (*n > 0 && strchr(" \t\r\n", (*text)[*n - 1])) --*n;
}

static void *put(char **at, const void *from, size_t n)
{
    void *to = *at;
    if (n > 0) memcpy(to, from, n);
    *at += n;
    return to;
}

void mox_quotes_add(mox_quotes *q, const mox_prompt *prompt, const mox_tokens *ids, const mox_turn *turn)
{
    mox_message m;
    mox_marked_text said;
    int64_t n_reply;
    const int32_t *reply = mox_turn_tokens(turn, &n_reply);
    mox_turn_get_message(turn, &m);
    mox_turn_get_said(turn, &said);
    const char *call = m.n_calls > 0 ? m.calls[0].id : "";
    const size_t n_opening = prompt->n - prompt->generation_at, n_plain = said.n_plain * sizeof *said.plain;
    const size_t n_ids = (size_t)(ids->n + n_reply) * sizeof *reply;
    trim(&m.text, &m.n_text);
    if (n_reply == 0) return;
    const size_t bytes = sizeof(mox_quote) + n_plain + n_ids + n_opening + said.n + m.n_text + strlen(call);
    mox_quote *k = bytes <= BYTES_MAX ? mox_alloc_array(bytes, 1) : NULL;
    if (!k) return;
    char *at = (char *)(k + 1);
    *k = (mox_quote){
        .refs = 1, .bytes = bytes, .n_text = m.n_text, .n_call = strlen(call), .n_ids = ids->n + n_reply};
    k->said = (mox_said){.n_opening = n_opening, .text = {.n = said.n, .n_plain = said.n_plain}};
    k->said.text.plain = put(&at, said.plain, n_plain); /* what must be aligned comes first */
    k->ids = put(&at, ids->ids, (size_t)ids->n * sizeof *reply);
    (void)put(&at, reply, (size_t)n_reply * sizeof *reply);
    k->said.opening = put(&at, prompt->text + prompt->generation_at, n_opening);
    k->said.text.text = put(&at, said.text, said.n);
    k->text = put(&at, m.text, m.n_text);
    k->call = put(&at, call, k->n_call);
    pthread_mutex_lock(&q->lock);
    link_newest(q, k);
    shrink(q, QUOTES_MAX, BYTES_MAX);
    pthread_mutex_unlock(&q->lock);
}

static bool is_same(const char *a, size_t n_a, const char *b, size_t n_b)
{
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a) == 0);
}

const mox_quote *mox_quotes_find(mox_quotes *q, const char *text, size_t n, const char *call, size_t n_call)
{
    trim(&text, &n);
    pthread_mutex_lock(&q->lock);
    mox_quote *k = q->newest;
    while (k && !(is_same(k->text, k->n_text, text, n) && is_same(k->call, k->n_call, call, n_call)))
        k = k->older;
    if (k) {
        k->refs++;
        unlink_quote(q, k);
        link_newest(q, k);
    }
    pthread_mutex_unlock(&q->lock);
    return k;
}

void mox_quotes_release(mox_quotes *q, const mox_quote *quote)
{
    if (!quote) return;
    pthread_mutex_lock(&q->lock);
    drop((mox_quote *)(uintptr_t)quote);
    pthread_mutex_unlock(&q->lock);
}
