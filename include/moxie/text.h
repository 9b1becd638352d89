/* moxie/text.h -- text to token ids and back.
 *
 * A tokenizer is immutable and may be shared by threads.  The time to encode is
 * linear in the input, whatever the input, for the split patterns that moxie knows;
 * for others it is bounded in proportion to the input, and a text that would take
 * longer fails with MOX_E_LIMIT.  See moxie.h for errors and ownership. */
#ifndef MOXIE_TEXT_H
#define MOXIE_TEXT_H

#include "moxie.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mox_tokenizer mox_tokenizer;

/* Reads dir/tokenizer.json and, when there, dir/tokenizer_config.json. */
MOX_API mox_status mox_tokenizer_open(mox_tokenizer **out, const char *dir, mox_err *err);
MOX_API void mox_tokenizer_close(mox_tokenizer **t);

/* Highest id + 1. */
MOX_API int32_t mox_tokenizer_size(const mox_tokenizer *t);
/* The id of an added (special or plain) token by its exact text, or -1. */
MOX_API int32_t mox_tokenizer_added_id(const mox_tokenizer *t, const char *content);
/* Ids from tokenizer_config.json, or -1. */
MOX_API int32_t mox_tokenizer_eos_id(const mox_tokenizer *t);
MOX_API int32_t mox_tokenizer_bos_id(const mox_tokenizer *t);
/* The configuration asks for a BOS in front of every text. */
MOX_API bool mox_tokenizer_adds_bos(const mox_tokenizer *t);

/* The ids that end a reply: those of the model's files and the tokenizer's EOS.
 * The i-th of them, each once, or -1 behind the last; t may be NULL. */
MOX_API int32_t mox_stop_id(const mox_generation *g, const mox_tokenizer *t, int32_t i);
MOX_API bool mox_is_stop(const mox_generation *g, const mox_tokenizer *t, int32_t id);

typedef struct mox_tokens { /* zero-initialise; release with mox_tokens_free */
    int32_t *ids;
    int64_t n, capacity;
} mox_tokens;
MOX_API void mox_tokens_free(mox_tokens *t);

typedef enum mox_encode_flags {
    MOX_ENCODE_PLAIN = 0,       /* special tokens inside the text are plain text */
    MOX_ENCODE_SPECIAL = 1 << 0 /* recognise special tokens */
} mox_encode_flags;

/* Appends the ids of text[0, n) to out.  Added tokens that are not special are
 * always recognised; invalid UTF-8 is encoded byte by byte.  On failure out keeps what it had. */
MOX_API mox_status mox_tokenizer_encode(const mox_tokenizer *t, const char *text, size_t n,
                                        unsigned flags, mox_tokens *out, mox_err *err);

typedef struct mox_text_span { /* bytes [begin, end) of a text */
    size_t begin, end;
} mox_text_span;

/* A text that is partly somebody else's: special tokens are recognised except
 * where they touch a plain span.  Nothing else happens at the borders, so the
 * pieces are those of the whole text.  Spans are in order and do not overlap. */
MOX_API mox_status mox_tokenizer_encode_mixed(const mox_tokenizer *t, const char *text, size_t n,
                                              const mox_text_span *plain, size_t n_plain, mox_tokens *out,
                                              mox_err *err);

/* The bytes of one token, or NULL for an id without a token.  Lives as long as
 * the tokenizer; may be part of a character. */
MOX_API const char *mox_tokenizer_bytes(const mox_tokenizer *t, int32_t id, size_t *n);
MOX_API bool mox_tokenizer_is_special(const mox_tokenizer *t, int32_t id);

/* Streaming decoder: feeds whole characters only.  Zero-initialise. */
typedef struct mox_utf8_stream {
    unsigned char held[4];
    int n_held;
} mox_utf8_stream;

/* Appends n bytes to the stream and calls emit with as many whole characters as
 * are there; bytes that can never become a character come out as U+FFFD. */
typedef void mox_text_fn(void *user, const char *text, size_t n);
MOX_API void mox_utf8_stream_push(mox_utf8_stream *s, const char *bytes, size_t n,
                                  mox_text_fn *emit, void *user);
/* Emits U+FFFD for a character that was left incomplete. */
MOX_API void mox_utf8_stream_end(mox_utf8_stream *s, mox_text_fn *emit, void *user);

#ifdef __cplusplus
}
#endif
#endif
