/* app/server/structure.h -- replies that must have a form: response_format, json_schema, grammar,
 * tool_choice.  The one place where they are read, for all APIs. */
#ifndef MOX_APP_SERVER_STRUCTURE_H
#define MOX_APP_SERVER_STRUCTURE_H

#include "app/server/ask.h"

mox_status mox_structure_read_openai(mox_ask *a, const mox_fields *f, mox_err *err);
/* {"type": "json_schema", "schema": {...}}, as the Responses API and Anthropic's output_config
 * have it. */
mox_status mox_structure_read_format(mox_ask *a, mox_json_span format, const char *what, mox_err *err);
/* What both kinds of tool_choice come down to; name is a string's span or empty. */
typedef enum mox_tool_choice { MOX_TOOLS_AUTO, MOX_TOOLS_NONE, MOX_TOOLS_REQUIRED } mox_tool_choice;
mox_status mox_structure_choose(mox_ask *a, mox_tool_choice choice, mox_json_span name, mox_err *err);
/* "none", "auto", "required", or an object that names one function (either shape of OpenAI's). */
mox_status mox_structure_read_tool_choice(mox_ask *a, mox_json_span choice, mox_err *err);


/* When everything is read: makes the grammar.  id is the request's, for warnings in the log. */
mox_status mox_structure_compile(mox_ask *a, struct mox_server *s, const char *id, mox_err *err);
/* What the model is told about the form, or nothing. */
void mox_structure_put_note(const mox_ask *a, mox_put *out);

#endif
