/* tests/unit/turn_kit.h -- what tests of turns share: the small model, its tokenizer and template, logits to speak
 * with, and turns. */
#ifndef TESTS_TURN_KIT_H
#define TESTS_TURN_KIT_H

#include "moxie/chat.h"

#include <stdlib.h>

static mox_model *model;
static mox_tokenizer *tokenizer;
static mox_chat *chat;
static int64_t n_vocab;
static int32_t eos;
static float *logits; /* all 0 */

static inline int begin(void **state)
{
    static const char dir[] = SOURCE_ROOT "/tests/data/models/demo-qwen3";
    mox_err err = {0};
    mox_model_info info;
    (void)state;
    if (mox_model_open(&model, dir, NULL, &err) != MOX_OK || mox_tokenizer_open(&tokenizer, dir, &err) != MOX_OK ||
        mox_chat_open(&chat, dir, tokenizer, NULL, &err) != MOX_OK) {
        print_error("%s\n", err.msg);
        return -1;
    }
    mox_model_get_info(model, &info);
    n_vocab = info.n_vocab;
    eos = mox_tokenizer_eos_id(tokenizer);
    logits = calloc((size_t)n_vocab, sizeof *logits);
    return logits ? 0 : -1;
}

static inline int end(void **state)
{
    (void)state;
    free(logits);
    mox_chat_close(&chat);
    mox_tokenizer_close(&tokenizer);
    mox_model_close(&model);
    return 0;
}

static inline mox_turn *open_turn(const mox_turn_opts *opts, const mox_chat *with)
{
    mox_turn *t;
    mox_err err;
    if (mox_turn_create(&t, model, tokenizer, with, opts, &err) != MOX_OK) fail_msg("%s", err.msg);
    return t;
}

#endif
