/* examples/embed.c -- the smallest useful program around libmoxie: continue a text.
 *
 *     cc embed.c $(pkg-config --cflags --libs moxie) -o embed
 *     ./embed models/demo "Once there was a" 40
 *
 * Everything that can fail returns a status and fills err with one sentence;
 * every destroy and close accepts NULL, so one way out serves all failures. */
#include <moxie.h>
#include <moxie/text.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct session {
    mox_model *model;
    mox_tokenizer *tokenizer;
    mox_context *context;
    mox_seq *seq;
    mox_sampler *sampler;
    mox_tokens prompt;
} session;

/* A token may end inside a character: the stream hands out whole ones only. */
static void print(void *user, const char *text, size_t n) { fwrite(text, 1, n, user); }

static mox_status open_all(session *s, const char *dir, const char *text, mox_err *err)
{
    mox_status status = mox_model_open(&s->model, dir, NULL, err);
    if (status == MOX_OK) status = mox_tokenizer_open(&s->tokenizer, dir, err);
    if (status == MOX_OK) status = mox_context_create(&s->context, s->model, NULL, err);
    if (status == MOX_OK) status = mox_seq_create(&s->seq, s->context, err);
    if (status != MOX_OK) return status;
    mox_model_info info;
    mox_model_get_info(s->model, &info);
    const mox_sampler_opts greedy = {.temperature = 0};
    status = mox_sampler_create(&s->sampler, info.n_vocab, &greedy, err);
    if (status != MOX_OK) return status;
    return mox_tokenizer_encode(s->tokenizer, text, strlen(text), MOX_ENCODE_PLAIN, &s->prompt, err);
}

/* The whole prompt is one segment; after that every new token is one. */
static mox_status generate(session *s, int max_tokens, mox_err *err)
{
    mox_utf8_stream stream = {0};
    mox_generation defaults; /* and the ids that end a reply */
    mox_model_get_generation(s->model, &defaults);
    int32_t id = -1;
    mox_segment segment = {.seq = s->seq, .tokens = s->prompt.ids, .n = s->prompt.n, .want = MOX_WANT_LAST};
    mox_status status = MOX_OK;
    for (int i = 0; i < max_tokens && status == MOX_OK; i++) {
        status = mox_step(s->context, &segment, 1, NULL, err);
        if (status == MOX_OK) status = mox_sampler_sample(s->sampler, mox_logits_row(s->context, 0), &id, err);
        if (status != MOX_OK || mox_is_stop(&defaults, s->tokenizer, id)) break;
        size_t n;
        const char *bytes = mox_tokenizer_bytes(s->tokenizer, id, &n);
        if (bytes) mox_utf8_stream_push(&stream, bytes, n, print, stdout);
        segment = (mox_segment){.seq = s->seq, .tokens = &id, .n = 1, .want = MOX_WANT_LAST};
    }
    mox_utf8_stream_end(&stream, print, stdout);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 4) return fprintf(stderr, "usage: embed MODEL TEXT TOKENS\n"), 2;
    session s = {0};
    mox_err err;
    mox_status status = open_all(&s, argv[1], argv[2], &err);
    if (status == MOX_OK) status = generate(&s, atoi(argv[3]), &err);
    if (status != MOX_OK) fprintf(stderr, "embed: %s\n", err.msg);
    mox_sampler_destroy(&s.sampler);
    mox_seq_destroy(&s.seq);
    mox_context_destroy(&s.context);
    mox_tokens_free(&s.prompt);
    mox_tokenizer_close(&s.tokenizer);
    mox_model_close(&s.model);
    return status == MOX_OK ? 0 : 1;
}
