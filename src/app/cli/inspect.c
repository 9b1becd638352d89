/* app/cli/inspect.c -- `moxie inspect`: what a checkpoint is made of.
 *
 * One page for people, one object for programs; both from the same facts. */
#include "app/cli/commands.h"
#include "app/cli/message.h"
#include "app/cli/output.h"
#include "app/cli/session.h"
#include "app/cli/terminal.h"
#include "moxie/tools.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct facts {
    mox_inspection m;
    mox_generation g;
    const mox_tokenizer *tokenizer; /* NULL: the folder has none */
    int32_t n_special;              /* special tokens */
    bool color;
} facts;

/* ---- the page -------------------------------------------------------------- */

static void heading(const facts *f, const char *text)
{
    mox_cli_putf(f->color ? "\n\x1b[1m%s\x1b[0m\n" : "\n%s\n", text);
}

__attribute__((format(printf, 2, 3))) static void line(const char *name, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mox_cli_putf("  %-16s ", name);
    mox_cli_put_text(text, strlen(text));
    mox_cli_put("\n", 1);
}

/* 1536 -> "1.50 KiB" */
static const char *bytes_text(int64_t bytes, char out[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    int unit = 0;
    for (; x >= 1024.0 && unit < 4; unit++) x /= 1024.0;
    (void)snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.2f %s", x, units[unit]);
    return out;
}

/* "18.2 M", "30.5 B": a count as people say it. */
static const char *count_text(int64_t n, char out[16])
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " K"}, {1, ""}};
    int i = 0;
    while (i < 4 && (double)n < units[i].unit) i++;
    (void)snprintf(out, 16, "%.3g%s", (double)n / units[i].unit, units[i].name);
    return out;
}

static void page_model(const facts *f)
{
    const mox_inspection *m = &f->m;
    line("family", "%s, %s layout", m->family, m->layout);
    char total[16], active[16];
    line("parameters", "%s (%lld), %s (%lld) for each token", count_text(m->params_total, total),
         (long long)m->params_total, count_text(m->params_active, active), (long long)m->params_active);
    line("width", "%lld", (long long)m->d_model);
    line("vocabulary", "%lld%s", (long long)m->n_vocab,
         m->tied_embeddings ? ", output tied to the embeddings" : "");
    line("context", "%lld tokens", (long long)m->n_ctx_max);
    line("files", "%lld with %lld tensor%s%s", (long long)m->n_files, (long long)m->n_tensors, mox_cli_s(m->n_tensors),
         m->n_tensors_skipped ? "" : ", all used");
    if (m->n_tensors_skipped)
        line("", "%lld of them not used: of parts that moxie does not run or know", (long long)m->n_tensors_skipped);
}

static void page_layers(const facts *f)
{
    const mox_inspection *m = &f->m;
    heading(f, "layers");
    line("layers", "%lld", (long long)m->n_layers);
    if (m->n_layers_attention)
        line("attention", "%lld, %lld head%s and %lld key-value head%s of %lld", (long long)m->n_layers_attention,
             (long long)m->n_heads, mox_cli_s(m->n_heads), (long long)m->n_kv_heads, mox_cli_s(m->n_kv_heads),
             (long long)m->head_dim);
    if (m->n_layers_latent)
        line("latent attention", "%lld, %lld head%s, rank %lld for keys and values, %lld for queries",
             (long long)m->n_layers_latent, (long long)m->n_heads, mox_cli_s(m->n_heads), (long long)m->kv_lora_rank,
             (long long)m->q_lora_rank);
    if (m->n_layers_linear)
        line("linear attention", "%lld, %lld key head%s of %lld and %lld value head%s of %lld",
             (long long)m->n_layers_linear, (long long)m->linear_k_heads, mox_cli_s(m->linear_k_heads),
             (long long)m->linear_k_dim, (long long)m->linear_v_heads, mox_cli_s(m->linear_v_heads),
             (long long)m->linear_v_dim);
    line("rope", "%s, %lld dimensions", m->rope, (long long)m->rotary_dim);
    if (m->n_layers_dense)
        line("dense", "%lld of width %lld", (long long)m->n_layers_dense, (long long)m->ffn_width);
    if (!m->n_layers_moe) return;
    line("experts", "%lld layer%s of %lld expert%s of width %lld, %lld for each token", (long long)m->n_layers_moe,
         mox_cli_s(m->n_layers_moe), (long long)m->n_experts, mox_cli_s(m->n_experts),
         (long long)m->expert_width, (long long)m->n_experts_active);
    if (m->shared_expert_width) line("shared expert", "width %lld", (long long)m->shared_expert_width);
}

static void page_weights(const facts *f)
{
    const mox_inspection *m = &f->m;
    char a[32], count[16];
    heading(f, "weights");
    line("bytes", "%lld (%s)", (long long)m->bytes_total, bytes_text(m->bytes_total, a));
    if (m->bytes_experts)
        line("of experts", "%lld (%s)", (long long)m->bytes_experts, bytes_text(m->bytes_experts, a));
    for (int i = 0; i < m->n_types; i++)
        line(i == 0 ? "types" : "", "%-30s %6lld matrices %8s parameters %12s", m->types[i].name,
             (long long)m->types[i].n_matrices, count_text(m->types[i].params, count), bytes_text(m->types[i].bytes, a));
}

static void page_memory(const facts *f)
{
    char a[32], b[32];
    heading(f, "memory for each sequence");
    line("1k tokens", "%s with f16 numbers, %s with f32", bytes_text(1024 * f->m.kv_bytes_per_token, a),
         bytes_text(2048 * f->m.kv_bytes_per_token, b));
    if (f->m.state_bytes) line("recurrent state", "%s, whatever the length", bytes_text(f->m.state_bytes, a));
}

/* "151645 <|im_end|>", or "none" */
static const char *token_text(const facts *f, int32_t id, char *out, size_t size)
{
    size_t n = 0;
    const char *bytes = id >= 0 && f->tokenizer ? mox_tokenizer_bytes(f->tokenizer, id, &n) : NULL;
    if (id < 0) (void)snprintf(out, size, "none");
    else if (!bytes) (void)snprintf(out, size, "%d", (int)id);
    else (void)snprintf(out, size, "%d %.*s", (int)id, (int)(n < 64 ? n : 64), bytes);
    return out;
}

static void page_tokenizer(const facts *f)
{
    char text[96];
    heading(f, "tokenizer");
    if (!f->tokenizer) {
        line("none", "the folder has no tokenizer.json");
        return;
    }
    line("size", "%d, %d of them special", (int)mox_tokenizer_size(f->tokenizer), (int)f->n_special);
    line("eos", "%s", token_text(f, mox_tokenizer_eos_id(f->tokenizer), text, sizeof text));
    line("bos", "%s%s", token_text(f, mox_tokenizer_bos_id(f->tokenizer), text, sizeof text),
         mox_tokenizer_adds_bos(f->tokenizer) ? ", in front of every text" : "");
}

static void page_generation(const facts *f)
{
    char text[96];
    heading(f, "generation defaults");
    line("temperature", "%g", (double)f->g.temperature);
    line("top-k", f->g.top_k ? "%d" : "off", (int)f->g.top_k);
    line("top-p", f->g.top_p > 0 && f->g.top_p < 1 ? "%g" : "off", (double)f->g.top_p);
    line("min-p", f->g.min_p > 0 ? "%g" : "off", (double)f->g.min_p);
    line("repeat penalty", f->g.repeat_penalty > 0 && f->g.repeat_penalty != 1 ? "%g" : "off",
         (double)f->g.repeat_penalty);
    int32_t id = mox_stop_id(&f->g, f->tokenizer, 0);
    line("stop ids", "%s", token_text(f, id, text, sizeof text));
    for (int32_t i = 1; (id = mox_stop_id(&f->g, f->tokenizer, i)) >= 0; i++)
        line("", "%s", token_text(f, id, text, sizeof text));
}

/* ---- the object ------------------------------------------------------------ */

static void json_text(const char *name, const char *text)
{
    mox_cli_putf("\"%s\": ", name);
    mox_cli_put_json(text, strlen(text));
    mox_cli_putf(", ");
}

static void json_numbers(const facts *f)
{
    const mox_inspection *m = &f->m;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"n_files", m->n_files},
        {"n_tensors", m->n_tensors},
        {"n_tensors_skipped", m->n_tensors_skipped},
        {"n_layers", m->n_layers},
        {"n_vocab", m->n_vocab},
        {"d_model", m->d_model},
        {"n_ctx_max", m->n_ctx_max},
        {"n_layers_attention", m->n_layers_attention},
        {"n_layers_latent", m->n_layers_latent},
        {"n_layers_linear", m->n_layers_linear},
        {"n_layers_dense", m->n_layers_dense},
        {"n_layers_moe", m->n_layers_moe},
        {"n_heads", m->n_heads},
        {"n_kv_heads", m->n_kv_heads},
        {"head_dim", m->head_dim},
        {"rotary_dim", m->rotary_dim},
        {"kv_lora_rank", m->kv_lora_rank},
        {"q_lora_rank", m->q_lora_rank},
        {"linear_k_heads", m->linear_k_heads},
        {"linear_v_heads", m->linear_v_heads},
        {"linear_k_dim", m->linear_k_dim},
        {"linear_v_dim", m->linear_v_dim},
        {"ffn_width", m->ffn_width},
        {"expert_width", m->expert_width},
        {"shared_expert_width", m->shared_expert_width},
        {"n_experts", m->n_experts},
        {"n_experts_active", m->n_experts_active},
        {"params_total", m->params_total},
        {"params_active", m->params_active},
        {"bytes_total", m->bytes_total},
        {"bytes_experts", m->bytes_experts},
        {"kv_bytes_per_token", m->kv_bytes_per_token},
        {"state_bytes", m->state_bytes},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        mox_cli_putf("\"%s\": %lld, ", numbers[i].name, (long long)numbers[i].value);
    mox_cli_putf("\"tied_embeddings\": %s, ", m->tied_embeddings ? "true" : "false");
}

static void json_types(const facts *f)
{
    mox_cli_putf("\"types\": [");
    for (int i = 0; i < f->m.n_types; i++) {
        mox_cli_putf(i == 0 ? "{" : ", {");
        json_text("name", f->m.types[i].name);
        mox_cli_putf("\"n_matrices\": %lld, \"params\": %lld, \"bytes\": %lld}", (long long)f->m.types[i].n_matrices,
                     (long long)f->m.types[i].params, (long long)f->m.types[i].bytes);
    }
    mox_cli_putf("], ");
}

static void json_tokenizer(const facts *f)
{
    const mox_tokenizer *t = f->tokenizer;
    if (!t) {
        mox_cli_putf("\"tokenizer\": null, ");
        return;
    }
    mox_cli_putf("\"tokenizer\": {\"size\": %d, \"n_special\": %d, \"eos_id\": %d, \"bos_id\": %d, "
                 "\"adds_bos\": %s}, ",
                 (int)mox_tokenizer_size(t), (int)f->n_special, (int)mox_tokenizer_eos_id(t),
                 (int)mox_tokenizer_bos_id(t), mox_tokenizer_adds_bos(t) ? "true" : "false");
}

static void json_generation(const facts *f)
{
    mox_cli_putf("\"generation\": {\"temperature\": %g, \"top_k\": %d, \"top_p\": %g, \"min_p\": %g, "
                 "\"repeat_penalty\": %g, \"stop_ids\": [",
                 (double)f->g.temperature, (int)f->g.top_k, (double)f->g.top_p, (double)f->g.min_p,
                 (double)f->g.repeat_penalty);
    int32_t id;
    for (int32_t i = 0; (id = mox_stop_id(&f->g, f->tokenizer, i)) >= 0; i++)
        mox_cli_putf("%s%d", i == 0 ? "" : ", ", (int)id);
    mox_cli_putf("]}");
}

/* ---- the command ----------------------------------------------------------- */

static void print(const facts *f, bool json)
{
    if (json) {
        mox_cli_putf("{");
        json_text("family", f->m.family);
        json_text("layout", f->m.layout);
        json_text("rope", f->m.rope);
        json_numbers(f);
        json_types(f);
        json_tokenizer(f);
        json_generation(f);
        mox_cli_putf("}\n");
        return;
    }
    page_model(f);
    page_layers(f);
    page_weights(f);
    page_memory(f);
    page_tokenizer(f);
    page_generation(f);
}

/* A folder without a tokenizer is a fact; one that cannot be read is an error. */
static int open_tokenizer(mox_cli_session *s)
{
    mox_err err;
    const mox_status status = mox_tokenizer_open(&s->tokenizer, s->dir, &err);
    return status == MOX_OK || status == MOX_E_NOT_FOUND ? EXIT_OK : mox_cli_fail_opening(&err);
}

int mox_cli_inspect(const mox_cli_options *o)
{
    mox_cli_session s = {0};
    int code = mox_cli_session_find(&s, o);
    if (code == EXIT_OK) code = mox_cli_session_open_model(&s, o);
    if (code == EXIT_OK) code = open_tokenizer(&s);
    if (code == EXIT_OK) {
        facts f = {.tokenizer = s.tokenizer, .color = mox_cli_use_color(o->v[OPT_COLOR].text)};
        mox_model_inspect(s.model, &f.m);
        mox_model_get_generation(s.model, &f.g);
        for (int32_t id = 0; s.tokenizer && id < mox_tokenizer_size(s.tokenizer); id++)
            f.n_special += mox_tokenizer_is_special(s.tokenizer, id);
        print(&f, o->v[OPT_JSON].on);
    }
    mox_cli_session_close(&s);
    return code;
}
