/* Any bytes as a template, up to the first NUL, and what follows as its variables.
 * Whatever happens is an error with words, or a prompt that is UTF-8, whose spans are
 * in order, and that comes out the same a second time. */
#include "text/template.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int condition)
{
    if (!condition) abort();
}

static mox_status render(const mox_template *t, const char *json, size_t n, mox_prompt *out)
{
    const mox_template_opts small = {
        .steps_max = 200 * 1000, .memory_bytes_max = 8 << 20, .output_bytes_max = 1 << 20, .depth_max = 200};
    const mox_template_var vars[] = {{.json = json, .n = n},
                                     {.name = "bos_token", .text = "<s>", .n = 3, .trusted = true}};
    mox_err err = {0};
    const mox_status status = mox_template_render(t, vars, n > 0 ? 2 : 0, &small, out, &err);
    check(status == MOX_OK || err.status == status);
    check((status == MOX_OK) == (out->text != NULL));
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mox_template *t;
    mox_err err = {0};
    const char *text = (const char *)data;
    const size_t n = strnlen(text, size);
    const mox_status status = mox_template_open(&t, "input", text, n, &err);
    check((status == MOX_OK) == (t != NULL));
    if (status != MOX_OK) {
        check(err.status == status && strlen(err.msg) > 0);
        return 0;
    }
    mox_prompt first, second;
    const char *json = n < size ? text + n + 1 : "";
    const size_t n_json = n < size ? size - n - 1 : 0;
    if (render(t, json, n_json, &first) == MOX_OK) {
        check(first.text[first.n] == '\0');
        check(mox_utf8_valid_prefix((const unsigned char *)first.text, first.n) == first.n);
        for (size_t i = 0; i < first.n_plain; i++) {
            check(first.plain[i].begin < first.plain[i].end && first.plain[i].end <= first.n);
            check(i == 0 || first.plain[i].begin > first.plain[i - 1].end);
        }
        check(render(t, json, n_json, &second) == MOX_OK);
        check(second.n == first.n && memcmp(second.text, first.text, first.n) == 0 && second.n_plain == first.n_plain);
        mox_prompt_free(&second);
    }
    mox_prompt_free(&first);
    mox_template_close(&t);
    return 0;
}
