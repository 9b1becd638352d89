/* format/internal.h -- what the files of this folder share with each other only. */
#ifndef MOX_FORMAT_INTERNAL_H
#define MOX_FORMAT_INTERNAL_H

#include "format/config.h"
#include "format/json.h"
#include "format/safetensors.h"

/* Opens one more file and appends its tensors.  On failure out can be closed. */
mox_status mox_tensors_add_file(mox_tensors *out, const char *path, mox_err *err);

/* Sorts by name once every file is in; refuses a name that two files hold. */
mox_status mox_tensors_seal(mox_tensors *t, mox_err *err);

/* The last component of the path of files[i]. */
const char *mox_tensors_file_name(const mox_tensors *t, int32_t i);

/* A plain name that ends with .safetensors and cannot lead out of a folder. */
bool mox_is_tensor_file_name(const char *name);
int mox_by_text(const void *a, const void *b); /* qsort order of an array of strings */

/* Up to 10 names for an error sentence; the rest is counted. */
typedef struct mox_name_list {
    char text[300];
    int64_t n;
    int shown;
} mox_name_list;
void mox_name_list_add(mox_name_list *l, const char *name);
const char *mox_name_list_end(mox_name_list *l); /* adds "and N more" where needed; returns text */

/* The parts of mox_config_parse: fill c->rope and c->quant from c->root and c->text. */
mox_status mox_config_read_rope(mox_config *c, mox_err *err);
mox_status mox_config_read_quantization(mox_config *c, mox_err *err);
void mox_config_free_quantization(mox_quant_config *q);

/* The text config with the words to name its keys. */
mox_json_object mox_config_text_object(const mox_config *c);

#endif
