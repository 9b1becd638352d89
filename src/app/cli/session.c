/* app/cli/session.c -- from options to open handles. */
#include "app/cli/session.h"

#include "app/cli/commands.h"
#include "app/cli/hub.h"
#include "app/cli/memory.h"
#include "app/cli/message.h"
#include "app/cli/stop.h"
#include "base/alloc.h"
#include "base/file.h"
#include "moxie/tools.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The demo model beside the program: in the source tree (build/moxie and
 * models/demo), or where it was installed. */
char *mox_cli_find_demo(void)
{
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) {
        program[n] = '\0';
        char *slash = strrchr(program, '/');
        if (slash) *slash = '\0';
        char *dir = mox_path_join(program, "../models/demo");
        if (dir && is_folder(dir)) return dir;
        mox_free(dir);
    }
    char *dir = mox_path_join(MOX_DATA_DIR, "models/demo");
    if (dir && is_folder(dir)) return dir;
    mox_free(dir);
    return NULL;
}

int mox_cli_session_find(mox_cli_session *s, const mox_cli_options *o)
{
    const char *name = o->v[OPT_MODEL].text;
    if (name && mox_path_exists(name)) {
        s->dir = mox_strdup(name);
        if (s->dir && is_folder(name)) return EXIT_OK;
        mox_cli_say("%s: no such folder, but a file; -m takes a folder with config.json and *.safetensors", name);
        return EXIT_MODEL;
    }
    if (!name || strcmp(name, "demo") == 0) {
        s->dir = mox_cli_find_demo();
        if (s->dir) return EXIT_OK;
        mox_cli_say("the demo model is not installed; name a model with -m FOLDER or -m ORG/NAME");
        return EXIT_MODEL;
    }
    mox_err err;
    const mox_hub_env env = mox_hub_environment();
    s->reference = name;
    return mox_hub_find(&env, name, &s->dir, &err) == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

/* Whatever is looked for first in it, a folder that is no model is said to be none. */
static bool lacks_config(const char *dir)
{
    struct stat st;
    char *path = mox_path_join(dir, "config.json");
    const bool lacking = path && stat(path, &st) != 0 && errno == ENOENT;
    mox_free(path);
    return lacking;
}

/* A model of the cache that cannot be opened may not have arrived yet. */
static int fail_opening(const mox_cli_session *s, const mox_err *err)
{
    const mox_hub_rest rest = s->reference ? mox_hub_unfinished(s->dir) : (mox_hub_rest){0};
    const bool missing = err->status == MOX_E_NOT_FOUND;
    if (rest.n_dangling + rest.n_partial == 0 || (!missing && err->status != MOX_E_FORMAT)) {
        if (!missing || !lacks_config(s->dir)) return mox_cli_fail_opening(err);
        mox_cli_say("%s/config.json: there is no such file; a model is a folder with config.json and *.safetensors", s->dir);
        return EXIT_MODEL;
    }
    mox_err unfinished;
    (void)mox_fail(&unfinished, err->status,
                   "the download of %s is unfinished, `hf download %.*s` finishes it: %s", s->reference,
                   (int)strcspn(s->reference, "@"), s->reference, err->msg);
    return mox_cli_fail_opening(&unfinished);
}

static void warn(void *user, const char *sentence)
{
    const mox_cli_options *o = user;
    if (!o->v[OPT_QUIET].on) mox_cli_say("warning: %s", sentence);
}

int mox_cli_session_open_model(mox_cli_session *s, const mox_cli_options *o)
{
    mox_err err;
    const char *weights = o->v[OPT_WEIGHTS].text; /* NULL in commands that do not compute */
    const bool copy = weights && strcmp(weights, "copy") == 0;
    const mox_model_opts opts = {.warn = warn, .warn_user = (void *)(uintptr_t)o,
                                 .weights = copy ? MOX_WEIGHTS_COPY : MOX_WEIGHTS_MAP};
    return mox_model_open(&s->model, s->dir, &opts, &err) == MOX_OK ? EXIT_OK : fail_opening(s, &err);
}

int mox_cli_session_open_tokenizer(mox_cli_session *s)
{
    mox_err err;
    return mox_tokenizer_open(&s->tokenizer, s->dir, &err) == MOX_OK ? EXIT_OK : fail_opening(s, &err);
}

int mox_cli_session_open_chat(mox_cli_session *s, const mox_cli_options *o)
{
    mox_err err;
    const mox_chat_opts opts = {.template_file = o->v[OPT_TEMPLATE].text};
    return mox_chat_open(&s->chat, s->dir, s->tokenizer, &opts, &err) == MOX_OK ? EXIT_OK : mox_cli_fail_opening(&err);
}

/* Once: speeds of the scalar kernels make people think that something is broken. */
static void say_scalar(const mox_cli_options *o)
{
    static bool said;
    for (int level = 1; level < mox_isa_count(); level++)
        if (mox_isa_available(level)) return;
    if (said || mox_isa_count() < 2 || o->v[OPT_ISA].text || o->v[OPT_QUIET].on) return;
    mox_cli_say("this processor has no %s: computing with scalar kernels, which are many times slower", mox_isa_name(1));
    said = true;
}

/* The device that was asked for; where there is none, the cpu computes and one line says why. */
static const char *find_device(const mox_cli_options *o)
{
    static bool said;
    mox_err err;
    const char *device = o->v[OPT_DEVICE].text;
    if (mox_device_find(device, &err) != MOX_E_DEVICE) return device;
    if (!said) mox_cli_say("%s; the cpu computes", err.msg);
    said = true;
    return "cpu";
}

static bool is_cpu(const char *device)
{
    mox_device_kind kind;
    return mox_device_get_kind(device, &kind, NULL) == MOX_OK && kind.is_cpu;
}

bool mox_cli_on_cpu(const mox_cli_options *o) { return is_cpu(find_device(o)); }

void mox_cli_context_opts(const mox_cli_options *o, int64_t n_ctx, mox_context_opts *out)
{
    mox_cli_context_opts_on(o, find_device(o), n_ctx, out);
    if (is_cpu(out->device)) say_scalar(o);
}

void mox_cli_context_opts_on(const mox_cli_options *o, const char *device, int64_t n_ctx, mox_context_opts *out)
{
    const char *kv = o->v[OPT_KV_TYPE].text;
    *out = (mox_context_opts){
        .n_ctx = mox_cli_given(o, OPT_CONTEXT) ? o->v[OPT_CONTEXT].number : n_ctx,
        .n_threads = (int32_t)o->v[OPT_THREADS].number,
        .pin = o->v[OPT_PIN].on,
        .exact = o->v[OPT_EXACT].on,
        .fast = o->v[OPT_FAST].on,
        .deterministic = o->v[OPT_DETERMINISTIC].on,
        .kv_type = !kv ? MOX_KV_DEFAULT : strcmp(kv, "f32") == 0 ? MOX_KV_F32 : strcmp(kv, "f16") == 0 ? MOX_KV_F16 : MOX_KV_Q8,
        .device = device,
        .cpu_experts = o->v[OPT_CPU_EXPERTS].on && !is_cpu(device),
        .isa = o->v[OPT_ISA].text,
        .expert_policy = o->v[OPT_EXPERT_POLICY].text,
        .no_prefetch = strcmp(o->v[OPT_PREFETCH].text, "off") == 0,
        .warn = warn,
        .warn_user = (void *)(uintptr_t)o,
    };
}

int mox_cli_session_open_context(mox_cli_session *s, const mox_cli_options *o, int64_t n_ctx)
{
    mox_context_opts opts;
    mox_cli_context_opts(o, n_ctx, &opts);
    int code = mox_cli_session_trace(s, o, &opts);
    if (s->keep_heat) opts.heat = mox_cli_heat_open(&s->heat, s->dir, s->model, o->v[OPT_QUIET].on);
    if (code == EXIT_OK) code = mox_cli_memory_settle(s, o, &opts, NULL, 0);
    return code == EXIT_OK ? mox_cli_session_make_context(s, &opts) : code;
}

int mox_cli_session_make_context(mox_cli_session *s, const mox_context_opts *opts)
{
    mox_err err;
    if (mox_context_create(&s->context, s->model, opts, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    if (mox_seq_create(&s->seq, s->context, &err) != MOX_OK) return mox_cli_fail_opening(&err);
    mox_cli_stop_catch();
    return EXIT_OK;
}

int mox_cli_session_trace(mox_cli_session *s, const mox_cli_options *o, mox_context_opts *opts)
{
    const char *path = o->v[OPT_TRACE].text;
    if (!path) return EXIT_OK;
    const int code = mox_cli_trace_begin(&s->trace, path, s->model);
    opts->trace = mox_cli_trace_line;
    opts->trace_user = s->trace;
    return code;
}

int mox_cli_session_end(mox_cli_session *s, int code)
{
    code = mox_cli_trace_end(&s->trace, s->context, code);
    mox_cli_heat_save(&s->heat, s->context);
    mox_cli_session_close(s);
    return code;
}

void mox_cli_session_close(mox_cli_session *s)
{
    mox_cli_heat_close(&s->heat);
    mox_seq_destroy(&s->seq);
    mox_context_destroy(&s->context);
    mox_chat_close(&s->chat);
    mox_tokenizer_close(&s->tokenizer);
    mox_model_close(&s->model);
    mox_free(s->dir);
    *s = (mox_cli_session){0};
}

int mox_cli_session_encode(const mox_cli_session *s, const mox_cli_options *o, const char *text, size_t n,
                           mox_tokens *out)
{
    mox_err err;
    const unsigned flags = o->v[OPT_SPECIAL].on ? MOX_ENCODE_SPECIAL : MOX_ENCODE_PLAIN;
    return mox_tokenizer_encode(s->tokenizer, text, n, flags, out, &err) == MOX_OK ? EXIT_OK
                                                                                   : mox_cli_fail_running(&err);
}

int mox_cli_session_begin(const mox_cli_session *s, mox_tokens *out)
{
    const int32_t bos = mox_tokenizer_bos_id(s->tokenizer);
    *out = (mox_tokens){0};
    if (!mox_tokenizer_adds_bos(s->tokenizer) || bos < 0) return EXIT_OK;
    out->ids = mox_alloc_array(1, sizeof *out->ids);
    if (!out->ids) {
        mox_cli_say("out of memory for the first token");
        return EXIT_FULL;
    }
    out->ids[0] = bos;
    out->n = out->capacity = 1;
    return EXIT_OK;
}
