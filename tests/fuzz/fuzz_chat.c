/* Any bytes as a request to one of four templates: the first byte chooses it and the settings,
 * then messages, tools, kwargs and what was said for the second message, each up to a NUL.
 * Whatever happens is an error with words, or a prompt whose spans are in order, whose ids spell
 * its text, and that comes out the same a second time. */
#include "text/tokenizer_internal.h"
#include "../unit/tokenizer_kit.h"
#include "moxie/chat.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* They differ in what they take: arguments as text or object, content in parts, null. */
static const char *const texts[] = {
    "{% for m in messages %}<S>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ "
    "c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<E>\n{% endfor %}"
    "{% if add_generation_prompt %}<S>assistant\n{% endif %}",
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}<S>{% if "
    "m.content is not none %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}{{ '<tool_call>{\"name\":\"' + "
    "c.function.name + '\",\"arguments\":' + c.function.arguments + '}</tool_call>' }}{% endfor %}{% else %}<E>{{ m.content + '' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<S>{% endif %}",
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text "
    "}}{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>{% endif %}{% "
    "endif %}",
    "{% for m in messages %}{{ m }}{{ '!' if not add_generation_prompt }}{% endfor %}{{ x }}",
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static mox_tokenizer *tokenizer;
static mox_chat *chats[N_TEXTS];

static void check(int condition)
{
    if (!condition) abort();
}

static void open_chats(void)
{
    const kit k = {.added = "{\"id\":300,\"content\":\"<S>\",\"special\":true},{\"id\":301,\"content\":\"<E>\",\"special\":true}"};
    check(kit_open(&tokenizer, &k, "{\"eos_token\": \"<E>\", \"bos_token\": \"<S>\"}", NULL) == MOX_OK);
    for (int i = 0; i < N_TEXTS; i++) {
        char path[] = "/tmp/moxie-fuzz-XXXXXX";
        const int fd = mkstemp(path);
        check(fd >= 0 && write(fd, texts[i], strlen(texts[i])) == (ssize_t)strlen(texts[i]) && close(fd) == 0);
        const mox_chat_opts opts = {.template_file = path};
        check(mox_chat_open(&chats[i], "", tokenizer, &opts, NULL) == MOX_OK);
        check(unlink(path) == 0);
    }
}

/* What is up to the next NUL, or to the end. */
static mox_json_text next_text(const char **p, size_t *left)
{
    const mox_json_text text = {*p, strnlen(*p, *left)};
    const size_t used = text.n < *left ? text.n + 1 : text.n;
    *p += used;
    *left -= used;
    return text.n > 0 ? text : (mox_json_text){0};
}

static void check_prompt(const mox_prompt *p)
{
    mox_tokens tokens = {0};
    int64_t n_before = -1;
    size_t at = 0;
    check(p->text[p->n] == '\0' && p->generation_at <= p->n);
    for (size_t i = 0; i < p->n_plain; i++) {
        check(p->plain[i].begin < p->plain[i].end && p->plain[i].end <= p->n);
        check(i == 0 || p->plain[i].begin > p->plain[i - 1].end);
    }
    check(mox_prompt_encode(tokenizer, p, NULL, 0, &tokens, &n_before, NULL) == MOX_OK);
    check(n_before >= 0 && n_before <= tokens.n);
    for (int64_t i = 0; i < tokens.n; i++) {
        size_t n;
        const char *bytes = mox_tokenizer_bytes(tokenizer, tokens.ids[i], &n);
        check(at + n <= p->n && memcmp(p->text + at, bytes, n) == 0);
        at += n;
    }
    check(at == p->n);
    mox_tokens again = {0}; /* with what is known, which is all of it */
    check(mox_prompt_encode(tokenizer, p, tokens.ids, tokens.n, &again, NULL, NULL) == MOX_OK && again.n == tokens.n);
    mox_tokens_free(&tokens);
    mox_tokens_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const openings[] = {"<S>assistant\n", "<S>", "[assistant]", ""};
    if (!tokenizer) open_chats();
    if (size == 0) return 0;
    const int which = data[0] % N_TEXTS;
    const char *p = (const char *)data + 1;
    size_t left = size - 1;
    mox_chat_request request = {.think = (mox_think)(data[0] / N_TEXTS % 3), .no_generation_prompt = data[0] & 0x80};
    request.messages = next_text(&p, &left);
    request.tools = next_text(&p, &left);
    request.kwargs = next_text(&p, &left);
    const mox_text_span all = {0, left};
    const mox_said said = {.message = 1, .opening = openings[which], .n_opening = strlen(openings[which]),
                           .text = {p, left, &all, left > 0}};
    if (left > 0) {
        request.said = &said;
        request.n_said = 1;
    }
    mox_prompt first, second;
    mox_err err = {0};
    const mox_status status = mox_chat_render(chats[which], &request, &first, &err);
    check((status == MOX_OK) == (first.text != NULL));
    if (status != MOX_OK) {
        check(err.status == status && strlen(err.msg) > 0);
        return 0;
    }
    check_prompt(&first);
    check(mox_chat_render(chats[which], &request, &second, &err) == MOX_OK);
    check(second.n == first.n && memcmp(second.text, first.text, first.n) == 0 && second.generation_at == first.generation_at);
    mox_prompt_free(&second);
    mox_prompt_free(&first);
    return 0;
}
