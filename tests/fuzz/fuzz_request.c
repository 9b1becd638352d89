/* tests/fuzz/fuzz_request.c -- any bytes as a request to any endpoint of the server.
 *
 *   WHICH BODY NUL REPLY   the endpoint and how the reply ends; the request; what the model says
 *
 * Whatever happens is one answer in the shape of the API (request_kit.h), and 500 only where the reply itself failed. */
#include "request_kit.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!kit_server.trie) kit_open_server();
    if (size == 0) return 0;
    const char *body = (const char *)data + 1;
    const size_t n = strnlen(body, size - 1);
    kit_kind = (kit_reply)(data[0] / KIT_ENDPOINTS % KIT_REPLIES);
    kit_text = n + 1 < size ? body + n + 1 : "";
    kit_n_text = n + 1 < size ? size - n - 2 : 0;
    char *copy = malloc(kit_n_text + 1), *answer; /* messages are terminated */
    promise(copy != NULL);
    memcpy(copy, kit_text, kit_n_text);
    copy[kit_n_text] = '\0';
    kit_text = copy;
    const int status = kit_ask(data[0] % KIT_ENDPOINTS, body, n, &answer);
    promise(status == 200 || status == 400 || (status == 429 && kit_kind == KIT_FULL) || (status == 500 && kit_kind == KIT_FAILS));
    free(answer);
    free(copy);
    return 0;
}
