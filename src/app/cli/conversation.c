/* app/cli/conversation.c -- messages in the ChatML form, and one reply to them. */
#include "app/cli/conversation.h"

#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/stop.h"
#include "base/alloc.h"
#include "base/clock.h"

#include <string.h>

struct mox_cli_conversation { char *system; char *text[1000]; int n; };

mox_cli_conversation *mox_cli_conversation_create(void) { return mox_alloc_array(1, sizeof(mox_cli_conversation)); }
void mox_cli_conversation_clear(mox_cli_conversation *c) { while (c->n > 0) mox_free(c->text[--c->n]); }
void mox_cli_conversation_destroy(mox_cli_conversation **c)
{
    if (!*c) return;
    mox_cli_conversation_clear(*c);
    mox_free((*c)->system);
    mox_free(*c);
    *c = NULL;
}
int mox_cli_conversation_ask(mox_cli_conversation *c, const char *text, size_t n) { c->text[c->n++] = mox_strndup(text, n); return 0; }
int mox_cli_conversation_set_system(mox_cli_conversation *c, const char *text) { mox_free(c->system); c->system = text && *text ? mox_strdup(text) : NULL; return 0; }
const char *mox_cli_conversation_system(const mox_cli_conversation *c) { return c->system; }
bool mox_cli_conversation_drop_reply(mox_cli_conversation *c) { if (c->n == 0) return false; if (c->n % 2 == 0) mox_free(c->text[--c->n]); return true; }
bool mox_cli_conversation_drop_exchange(mox_cli_conversation *c) { if (!mox_cli_conversation_drop_reply(c)) return false; mox_free(c->text[--c->n]); return true; }
int64_t mox_cli_conversation_count(const mox_cli_conversation *c) { return c->n; }
int mox_cli_conversation_save(const mox_cli_conversation *c, const char *path) { (void)c; mox_cli_say("%s: not yet", path); return 1; }
int mox_cli_conversation_load(mox_cli_conversation *c, const char *path) { (void)c; mox_cli_say("%s: not yet", path); return 1; }

static int render(mox_cli_session *s, mox_cli_conversation *c, mox_tokens *t)
{
    size_t room = 200;
    for (int i = 0; i < c->n; i++) room += strlen(c->text[i]) + 60;
    char *p = mox_alloc(room), *q = p;
    for (int i = 0; i < c->n; i++) q += sprintf(q, "<|im_start|>%s\n%s<|im_end|>\n", i % 2 ? "assistant" : "user", c->text[i]);
    q += sprintf(q, "<|im_start|>assistant\n");
    mox_tokenizer_encode(s->tokenizer, p, (size_t)(q - p), MOX_ENCODE_SPECIAL, t, NULL);
    mox_free(p);
    return 0;
}
int mox_cli_conversation_tokens(mox_cli_session *s, const mox_cli_options *o, mox_cli_conversation *c, int64_t *n)
{
    mox_tokens t = {0};
    (void)o;
    render(s, c, &t);
    *n = t.n;
    mox_tokens_free(&t);
    return 0;
}
int mox_cli_reply(mox_cli_session *s, const mox_cli_options *o, mox_cli_conversation *c,
                  const mox_cli_reply_events *ev, mox_cli_stats *st)
{
    mox_tokens t = {0};
    mox_generation g;
    mox_err err;
    mox_model_get_generation(s->model, &g);
    render(s, c, &t);
    *st = (mox_cli_stats){.n_prompt = t.n};
    if (t.n > mox_context_n_ctx(s->context)) { mox_cli_say("too long"); mox_tokens_free(&t); return EXIT_FULL; }
    mox_seq_reset(s->seq);
    double a = mox_clock_now();
    ev->progress(ev->progress_user, 0, t.n);
    mox_step_opts so = {.cancel = mox_cli_stop_flag(), .progress = ev->progress, .progress_user = ev->progress_user};
    mox_segment seg = {.seq = s->seq, .tokens = t.ids, .n = t.n, .want = MOX_WANT_LAST};
    mox_status status = mox_step(s->context, &seg, 1, &so, &err);
    st->prompt_s = mox_clock_now() - a;
    st->n_computed = t.n;
    char *reply = mox_alloc(100000);
    size_t n = 0;
    if (status == MOX_OK) {
        st->first_token_s = st->prompt_s;
        st->stop = MOX_STOP_LENGTH;
        int64_t max = mox_cli_given(o, OPT_MAX_TOKENS) ? o->v[OPT_MAX_TOKENS].number : 10000;
        for (int64_t i = 0; i < max && status == MOX_OK; i++) {
            const float *l = mox_logits_row(s->context, 0);
            int32_t best = 0;
            for (int32_t k = 0; k < 1926; k++) if (l[k] > l[best]) best = k;
            st->n_generated++;
            if (mox_is_stop(&g, s->tokenizer, best)) { st->stop = MOX_STOP_END; break; }
            size_t m;
            const char *bytes = mox_tokenizer_bytes(s->tokenizer, best, &m);
            ev->part(ev->part_user, MOX_PART_TEXT, -1, bytes, m);
            memcpy(reply + n, bytes, m);
            n += m;
            seg.tokens = &best; seg.n = 1;
            so.progress = NULL;
            status = mox_step(s->context, &seg, 1, &so, &err);
        }
        st->generate_s = mox_clock_now() - a - st->prompt_s;
    }
    if (status == MOX_E_CANCELLED) { st->stop = MOX_STOP_CANCELLED; status = MOX_OK; }
    if (n > 0) c->text[c->n++] = mox_strndup(reply, n);
    mox_free(reply);
    mox_tokens_free(&t);
    return status == MOX_OK ? 0 : mox_cli_fail_running(&err);
}
