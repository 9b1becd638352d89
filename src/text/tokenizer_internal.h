/* text/tokenizer_internal.h -- a tokenizer from inside, for its own files and
 * for tests that read files from memory. */
#ifndef MOX_TEXT_TOKENIZER_INTERNAL_H
#define MOX_TEXT_TOKENIZER_INTERNAL_H

#include "moxie/text.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/unicode.h"
#include "text/vocab.h"

struct mox_tokenizer {
    mox_unicode unicode;
    mox_vocab vocab;
    mox_bpe bpe;
    mox_added_set added;            /* looked for in the text as it is */
    mox_added_set added_normalized; /* looked for after normalization; none of them special */
    bool nfc;
    mox_split split;
    int32_t bos_id, eos_id; /* -1: none */
    bool adds_bos;
};

/* Fills a zeroed tokenizer from the text of tokenizer.json.  name is for errors.
 * After a failure the tokenizer can only be deinitialised. */
mox_status mox_tokenizer_parse(mox_tokenizer *t, const char *name, const char *text, size_t n, mox_err *err);
/* Then, when there is one, the text of tokenizer_config.json. */
mox_status mox_tokenizer_parse_config(mox_tokenizer *t, const char *name, const char *text, size_t n, mox_err *err);

/* Both from memory; config may be NULL.  On failure *out is NULL. */
mox_status mox_tokenizer_open_memory(mox_tokenizer **out, const char *name, const char *text, size_t n,
                                     const char *config, size_t n_config, mox_err *err);

#endif
