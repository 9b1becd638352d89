/* app/server/anthropic.h -- the two halves of /v1/messages. */
#ifndef MOX_APP_SERVER_ANTHROPIC_H
#define MOX_APP_SERVER_ANTHROPIC_H

#include "app/server/answer.h"

/* The request, into OpenAI's shapes. */
mox_status mox_anthropic_read(mox_answer *a, const mox_fields *f, mox_err *err);

#endif
