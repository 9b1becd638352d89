/* chat_kit.h -- the nine templates of tests/data/templates with what their models are like:
 * special tokens, how calls are written, what ends a reply.  And folders to open chats from. */
#ifndef CHAT_KIT_H
#define CHAT_KIT_H

#include "moxie/chat.h"
#include "tokenizer_kit.h"

#include <dirent.h>
#include <unistd.h>

enum { CHAT_KIT_SPECIALS = 12 };

typedef struct family {
    const char *file;
    const char *special[CHAT_KIT_SPECIALS]; /* ended by NULL */
    const char *bos, *eos; /* of tokenizer_config.json; NULL: none there */
    const char *ending;    /* what follows a reply in the prompt of the next turn */
    const char *format;    /* of calls; NULL: not known */
    const char *call;      /* get_weather of Paris for 2 days, as the template writes it */
    bool thinks;
    bool thinking[3]; /* the prompt ends in an open block: think default, on, off */
} family;

#define DS_BEGIN(what) "<｜tool▁" what "▁begin｜>"
#define DS_END(what) "<｜tool▁" what "▁end｜>"

static const family families[] = {
    {.file = "Qwen-Qwen3-0.6B", .special = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}, .eos = "<|im_end|>",
     .ending = "<|im_end|>", .format = "hermes", .thinks = true,
     .call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n</tool_call>"},
    {.file = "Qwen3-Coder", .special = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}, .eos = "<|im_end|>",
     .ending = "<|im_end|>", .format = "qwen-xml",
     .call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
             "</function>\n</tool_call>"},
    {.file = "Qwen3.5-4B", .special = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}, .eos = "<|im_end|>",
     .ending = "<|im_end|>", .format = "qwen-xml", .thinks = true, .thinking = {true, true, false},
     .call = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
             "</function>\n</tool_call>"},
    {.file = "deepseek-ai-DeepSeek-V3.1",
     .special = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", DS_BEGIN("calls"),
                 DS_END("calls"), DS_BEGIN("call"), DS_END("call"), DS_BEGIN("output"), DS_END("output"), "<｜tool▁sep｜>"},
     .bos = "<｜begin▁of▁sentence｜>", .eos = "<｜end▁of▁sentence｜>", .ending = "<｜end▁of▁sentence｜>",
     .format = "deepseek-v3.1", .thinks = true, .thinking = {false, true, false},
     .call = DS_BEGIN("calls") DS_BEGIN("call") "get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"days\": 2}" DS_END("call")
         DS_END("calls")},
    {.file = "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
     .special = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", DS_BEGIN("calls"),
                 DS_END("calls"), DS_BEGIN("call"), DS_END("call"), DS_BEGIN("output"), DS_END("output"), "<｜tool▁sep｜>"},
     .bos = "<｜begin▁of▁sentence｜>", .eos = "<｜end▁of▁sentence｜>", .ending = "<｜end▁of▁sentence｜>",
     .format = "deepseek-v3", .thinks = true, .thinking = {false, true, false},
     .call = DS_BEGIN("calls") DS_BEGIN("call") "function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\", \"days\": 2}\n"
         "```" DS_END("call") DS_END("calls")},
    {.file = "GLM-4.6",
     .special = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"},
     .eos = "<|endoftext|>", .ending = "<|user|>", .format = "glm", .thinks = true,
     .call = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
             "<arg_value>2</arg_value>\n</tool_call>"},
    {.file = "Kimi-K2-Instruct",
     .special = {"[BOS]", "[EOS]", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>",
                 "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
                 "<|tool_call_argument_begin|>"},
     .bos = "[BOS]", .eos = "[EOS]", .ending = "<|im_end|>", .format = "kimi-k2",
     .call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": "
             "\"Paris\", \"days\": 2}<|tool_call_end|><|tool_calls_section_end|>"},
    {.file = "MiniMax-M2", .special = {"]~b]", "[e~[", "]~!b["}, .bos = "]~!b[", .eos = "[e~[", .ending = "[e~[",
     .thinks = true, .thinking = {true, true, true},
     .call = "<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n<parameter name=\"days\">2</parameter>"},
    {.file = "openai-gpt-oss-120b",
     .special = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"}, .eos = "<|return|>",
     .ending = "<|end|>", .call = "<|message|>{\"city\": \"Paris\", \"days\": 2}<|call|>"},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

#define CHAT_KIT_TOOLS                                                                                               \
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Weather.\", "             \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"description\": "      \
    "\"Town\"}, \"days\": {\"type\": \"integer\", \"description\": \"How many\"}}, \"required\": [\"city\"]}}}]"

/* ---- folders ---- */

static char kit_folder[64];

static int kit_make_folder(void **state)
{
    (void)state;
    snprintf(kit_folder, sizeof kit_folder, "/tmp/moxie-chat-XXXXXX");
    return mkdtemp(kit_folder) ? 0 : -1;
}

static void kit_path(char *out, size_t size, const char *name)
{
    if ((size_t)snprintf(out, size, "%s/%s", kit_folder, name) >= size) abort();
}

static void kit_write(const char *name, const char *text, size_t n)
{
    char path[512];
    kit_path(path, sizeof path, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f) != 0) abort();
}

/* Nothing in the folder. */
static void kit_clear(void)
{
    DIR *d = opendir(kit_folder);
    if (!d) abort();
    for (const struct dirent *e; (e = readdir(d));) {
        char path[512];
        kit_path(path, sizeof path, e->d_name);
        if (e->d_name[0] != '.' && unlink(path) != 0) abort();
    }
    closedir(d);
}

static int kit_remove_folder(void **state)
{
    (void)state;
    kit_clear();
    return rmdir(kit_folder);
}

/* ---- opening ---- */

enum { KIT_SPECIAL_ID = 1000 }; /* of a family's first special token */

static mox_tokenizer *kit_tokenizer(const family *f)
{
    char added[2048] = "", config[256];
    size_t n = 0;
    for (int i = 0; f->special[i]; i++)
        n += (size_t)snprintf(added + n, sizeof added - n, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "",
                              KIT_SPECIAL_ID + i, f->special[i]);
    snprintf(config, sizeof config, "{\"eos_token\": \"%s\"%s%s%s}", f->eos, f->bos ? ", \"bos_token\": \"" : "",
             f->bos ? f->bos : "", f->bos ? "\"" : "");
    const kit k = {.added = added};
    mox_tokenizer *t;
    mox_err err;
    if (kit_open(&t, &k, config, &err) != MOX_OK) fail_msg("%s: %s", f->file, err.msg);
    return t;
}

static mox_chat *kit_chat(const family *f, const mox_tokenizer *t)
{
    char path[512];
    mox_chat *c;
    mox_err err;
    snprintf(path, sizeof path, "%s/tests/data/templates/%s.jinja", SOURCE_ROOT, f->file);
    const mox_chat_opts opts = {.template_file = path};
    if (mox_chat_open(&c, kit_folder, t, &opts, &err) != MOX_OK) fail_msg("%s: %s", f->file, err.msg);
    return c;
}

static mox_json_text kit_json_text(const char *text) { return (mox_json_text){text, text ? strlen(text) : 0}; }

#endif
