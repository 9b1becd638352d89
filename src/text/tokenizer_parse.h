/* text/tokenizer_parse.h -- what the two files that read tokenizer.json share. */
#ifndef MOX_TEXT_TOKENIZER_PARSE_H
#define MOX_TEXT_TOKENIZER_PARSE_H

#include "base/json_fields.h"
#include "text/tokenizer_internal.h"

typedef struct mox_tokenizer_parser {
    mox_tokenizer *t;
    const char *name;        /* of the file */
    bool byte_level;         /* the pre-tokenizer ends in ByteLevel */
    int32_t template_bos;    /* what the post-processor puts in front, or -1 */
    bool template_text_seen; /* the post-processor's template has come to the text */
} mox_tokenizer_parser;

/* Each reads one part of the file into the tokenizer; user is the parser.  They
 * are mox_json_each_fn because sequences hold more of the same. */
mox_json_each_fn mox_parse_normalizer, mox_parse_pre_tokenizer, mox_parse_decoder;
mox_json_each_fn mox_parse_post_processor; /* when all tokens are known */

#endif
