/* app/server/fingerprint.h -- what tells one model, computed in one way, from all others. */
#ifndef MOX_APP_SERVER_FINGERPRINT_H
#define MOX_APP_SERVER_FINGERPRINT_H

#include "base/sha256.h"
#include "moxie.h"

/* For states that are kept on disk: they hold numbers that these weights gave with these kernels, and
 * nothing else must ever take them up.  The digits stand for config.json, for name, size, time of
 * change and samples of every weight file in dir, and for what of opts changes numbers.  Prompts are
 * compared token by token where the states are found, so neither tokenizer nor template is in it. */
mox_status mox_fingerprint(const char *dir, const mox_context_opts *opts, const char *isa,
                           char out[MOX_SHA256_HEX + 1], mox_err *err);

#endif
