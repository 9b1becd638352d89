/* Requests to the server's endpoints while memory runs out: every allocation fails in turn.  The answer is what it
 * would have been or says that memory ran out, whole or as a stream, and the next request is answered as ever. */
#include "../fuzz/request_kit.h"
#include "fail_nth.h"

enum { CHAT, TEXT, RESPONSES, MESSAGES, COUNT, TOKENIZE, DETOKENIZE, TEMPLATE };

#define MESSAGES_TEXT "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"},{\"role\":\"assistant\",\"content\":\"Well\"},{\"role\":\"user\",\"content\":\"Go on\"}]"
#define TOOL_SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"

static const struct {
    int endpoint;
    kit_reply reply;
    const char *body;
} requests[] = {
    {CHAT, KIT_STOP, "{" MESSAGES_TEXT ",\"logprobs\":true,\"top_logprobs\":2,\"n\":2,\"stop\":[\"a\",\"b\"]}"},
    {CHAT, KIT_STOP, "{" MESSAGES_TEXT ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logprobs\":true}"},
    {CHAT, KIT_CALLS, "{" MESSAGES_TEXT ",\"stream\":true,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" TOOL_SCHEMA "}}]}"},
    {CHAT, KIT_CALLS, "{" MESSAGES_TEXT ",\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" TOOL_SCHEMA "}}]}"},
    {CHAT, KIT_STOP, "{" MESSAGES_TEXT ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":" TOOL_SCHEMA "}}}"},
    {TEXT, KIT_LENGTH, "{\"prompt\":[\"Once\",\"Twice\"],\"echo\":true,\"logprobs\":2}"},
    {TEXT, KIT_STOP, "{\"prompt\":[1,2,3],\"stream\":true}"},
    {RESPONSES, KIT_CALLS, "{\"input\":\"Hello\",\"stream\":true,\"instructions\":\"Be brief.\"}"},
    {RESPONSES, KIT_LENGTH, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"Hi\"}]}]}"},
    {MESSAGES, KIT_CALLS, "{" MESSAGES_TEXT ",\"max_tokens\":5,\"stream\":true,\"system\":\"Be brief.\"}"},
    {MESSAGES, KIT_STOP, "{" MESSAGES_TEXT ",\"max_tokens\":5,\"tools\":[{\"name\":\"f\",\"input_schema\":" TOOL_SCHEMA "}]}"},
    {COUNT, KIT_STOP, "{" MESSAGES_TEXT "}"},
    {TOKENIZE, KIT_STOP, "{\"content\":\"Hello\",\"with_pieces\":true,\"add_special\":true}"},
    {DETOKENIZE, KIT_STOP, "{\"tokens\":[72,105]}"},
    {TEMPLATE, KIT_STOP, "{" MESSAGES_TEXT "}"},
};

/* Numbers of seconds and of unix time differ from one answer to the next. */
static bool same_answer(const char *a, const char *b)
{
    while (*a && *b) {
        if (*a != *b && !(strchr("0123456789.", *a) && strchr("0123456789.", *b))) return false;
        a++, b++;
    }
    return strspn(a, "0123456789.}") == strlen(a) || strspn(b, "0123456789.}") == strlen(b) || *a == *b;
}

static int check_request(size_t i)
{
    const char *body = requests[i].body;
    char *usual, *answer;
    nth n = {0};
    int n_bad = 0;
    kit_kind = requests[i].reply;
    if (kit_ask(requests[i].endpoint, body, strlen(body), &usual) != 200) {
        fprintf(stderr, "request %zu: %s\n", i, usual);
        return 1;
    }
    for (n.at = 1;; n.at++) {
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const int status = kit_ask(requests[i].endpoint, body, strlen(body), &answer);
        mox_alloc_set_hook(NULL, NULL);
        const bool reached = n.count >= n.at;
        const bool good = status == 200 || status == 500 || status == 503;
        if (!good && n_bad++ < 5) fprintf(stderr, "request %zu, allocation %ld: %d %s\n", i, n.at, status, answer);
        free(answer);
        if (!reached) break;
        const int next = kit_ask(requests[i].endpoint, body, strlen(body), &answer);
        if ((next != 200 || !same_answer(answer, usual)) && n_bad++ < 5) fprintf(stderr, "request %zu, after allocation %ld: %d %s\n", i, n.at, next, answer);
        free(answer);
    }
    free(usual);
    printf("request %zu: %ld allocations\n", i, n.at - 1);
    return n_bad + (n.at < 3);
}

int main(void)
{
    int n_bad = 0, n = 0;
    kit_text = "A text.";
    kit_n_text = strlen(kit_text);
    kit_open_server();
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        const int bad = check_request(i);
        n_bad += bad > 0;
        n += bad == 0;
    }
    kit_close_server();
    printf("%d passed, %d failed, 0 skipped\n", n, n_bad);
    return n_bad > 0;
}
