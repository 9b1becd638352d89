/* app/server/responses.h -- the two halves of /v1/responses. */
#ifndef MOX_APP_SERVER_RESPONSES_H
#define MOX_APP_SERVER_RESPONSES_H

#include "app/server/answer.h"

/* The request, into the shapes of chat completions. */
mox_status mox_responses_read(mox_answer *a, const mox_fields *f, mox_err *err);

#endif
