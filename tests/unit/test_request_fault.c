/* Requests to the server's endpoints while memory runs out: every allocation fails in turn.  The answer is what it
 * would have been, to the byte, or says that memory ran out; a stream may be what it would have been up to there, and
 * then say so or be cut off.  The next request is answered as ever. */
#include "../fuzz/request_kit.h"
#include "fail_nth.h"

enum { CHAT, TEXT, RESPONSES, MESSAGES, COUNT, TOKENIZE, DETOKENIZE, TEMPLATE };

#define MESSAGES_TEXT                                                                                   \
    "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"},{\"role\":\"assistant\",\"content\":\"Well\"},"   \
    "{\"role\":\"user\",\"content\":\"Go on\"}]"
#define TOOL_SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" TOOL_SCHEMA "}}]"
#define FORM "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":" TOOL_SCHEMA "}}"

static const struct {
    int endpoint;
    kit_reply reply;
    const char *body;
} requests[] = {
    {CHAT, KIT_STOP, "{" MESSAGES_TEXT ",\"logprobs\":true,\"top_logprobs\":2,\"n\":2,\"stop\":[\"a\",\"b\"]}"},
    {CHAT, KIT_STOP, "{" MESSAGES_TEXT ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"logprobs\":true}"},
    {CHAT, KIT_CALLS, "{" MESSAGES_TEXT ",\"stream\":true," TOOLS "}"},
    {CHAT, KIT_CALLS, "{" MESSAGES_TEXT ",\"tool_choice\":\"required\"," TOOLS "}"},
    {CHAT, KIT_STOP, "{" MESSAGES_TEXT ",\"response_format\":" FORM "}"},
    {CHAT, KIT_CALLS, "{" MESSAGES_TEXT ",\"response_format\":" FORM "," TOOLS "}"},
    {TEXT, KIT_LENGTH, "{\"prompt\":[\"Once\",\"Twice\"],\"echo\":true,\"logprobs\":2}"},
    {TEXT, KIT_STOP, "{\"prompt\":[1,2,3],\"stream\":true}"},
    {TEXT, KIT_STOP, "{\"prompt\":\"Größe\",\"stream\":true,\"echo\":true,\"logprobs\":1}"},
    {RESPONSES, KIT_CALLS, "{\"input\":\"Hello\",\"stream\":true,\"instructions\":\"Be brief.\"}"},
    {RESPONSES, KIT_LENGTH, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"Hi\"}]}]}"},
    {MESSAGES, KIT_CALLS, "{" MESSAGES_TEXT ",\"max_tokens\":5,\"stream\":true,\"system\":\"Be brief.\"}"},
    {MESSAGES, KIT_STOP, "{" MESSAGES_TEXT ",\"max_tokens\":5,\"tools\":[{\"name\":\"f\",\"input_schema\":" TOOL_SCHEMA "}]}"},
    {COUNT, KIT_STOP, "{" MESSAGES_TEXT "}"},
    {TOKENIZE, KIT_STOP, "{\"content\":\"Hello\",\"with_pieces\":true,\"add_special\":true}"},
    {DETOKENIZE, KIT_STOP, "{\"tokens\":[72,105]}"},
    {TEMPLATE, KIT_STOP, "{" MESSAGES_TEXT "}"},
    {TEMPLATE, KIT_STOP, "{" MESSAGES_TEXT ",\"chat_template_kwargs\":{\"a\\u0062\":[1],\"thinking\":true}," TOOLS "}"},
};

/* Times differ from one answer to the next; all of them are made the same. */
static void forget_times(char *text)
{
    static const char *const names[] = {"\"created\":", "\"created_at\":", "\"completed_at\":"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (char *at = text; (at = strstr(at, names[i])) != NULL;) {
            at += strlen(names[i]);
            memset(at, '0', strspn(at, "0123456789"));
        }
}

/* Whether an answer that began well may be given where the usual one would have been. */
static bool is_fair(const char *answer, const char *usual)
{
    if (strcmp(answer, usual) == 0) return true;
    size_t same = 0;
    while (answer[same] && answer[same] == usual[same]) same++;
    if (kit_cut) return answer[same] == '\0'; /* nothing in it is wrong */
    while (same > 0 && !(answer[same - 1] == '\n' && (same == 1 || answer[same - 2] == '\n'))) same--;
    return (same > 0 || strncmp(answer, "data: ", 6) == 0 || strncmp(answer, "event: ", 7) == 0) &&
           strstr(answer + same, "\"error\"") != NULL;
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
    forget_times(usual);
    for (n.at = 1;; n.at++) {
        n.count = 0;
        mox_alloc_set_hook(fail_nth_alloc, &n);
        const int status = kit_ask(requests[i].endpoint, body, strlen(body), &answer);
        mox_alloc_set_hook(NULL, NULL);
        const bool reached = n.count >= n.at;
        forget_times(answer);
        const bool good = status == 200 ? is_fair(answer, usual) : status == 500 || status == 503;
        if (!good && n_bad++ < 5) fprintf(stderr, "request %zu, allocation %ld: %d %s\n", i, n.at, status, answer);
        free(answer);
        if (!reached) break;
        const int next = kit_ask(requests[i].endpoint, body, strlen(body), &answer);
        forget_times(answer);
        if ((next != 200 || kit_cut || strcmp(answer, usual) != 0) && n_bad++ < 5)
            fprintf(stderr, "request %zu, after allocation %ld: %d %s\n", i, n.at, next, answer);
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
