"""What `moxie inspect --json` must say of a checkpoint, counted from its tensors.

Names and shapes decide wherever they can; the configuration gives what no shape shows (experts per token, heads).
"""
import math
import re

from layouts import family, is_tied, text_config
from reference import Checkpoint

BYTES_F16, BYTES_F32 = 2, 4


class Parts:
    """The tensors of a checkpoint by what they belong to."""

    def __init__(self, directory, config):
        self.ckpt = Checkpoint(directory, config)
        self.layers = text_config(config)["num_hidden_layers"]
        self.tied = is_tied(config)
        entries = self.ckpt.files.entries
        self.skipped = {n for n in entries if self.is_skipped(n)}
        self.used = {n: e for n, e in entries.items() if n not in self.skipped}

    def is_skipped(self, name):
        layer = re.match(re.escape(self.ckpt.prefix) + r"layers\.(\d+)\.", name)
        beyond = layer and int(layer[1]) >= self.layers
        other = re.search(r"^vision_tower|^model\.visual|mtp\.|rotary_emb\.inv_freq", name)
        return bool(beyond or other or (self.tied and "lm_head." in name))

    def layers_with(self, part):
        found = (re.search(r"layers\.(\d+)\." + part, n) for n in self.used)
        return len({m[1] for m in found if m})

    def shape(self, pattern):
        return next((e[1] for n, e in self.used.items() if re.search(pattern, n)), None)

    def params(self, name):
        """Of the module a tensor stands for; its scales count nothing."""
        if re.search(r"\.(scales|biases|weight_scale_inv)$", name):
            return 0
        quantization = self.ckpt.quantization_of(name.removesuffix(".weight"))
        packed = math.prod(self.used[name][1])
        return packed * 32 // quantization[0] if quantization else packed

    def sum(self, pattern, count):
        return sum(count(n) for n in self.used if re.search(pattern, n))


EXPERTS = r"\.mlp\.(switch_mlp|experts)\."


def layout(parts, config):
    conv = parts.shape(r"conv1d\.weight$")
    mlx = "quantization" in config or any("switch_mlp" in n or n.startswith("language_model.") for n in parts.used)
    return "MLX" if mlx or (conv and conv[-1] == 1) else "Hugging Face"


def expected(directory, config):
    parts, text = Parts(directory, config), text_config(config)
    size = lambda name: parts.used[name][4]
    n_moe = parts.layers_with(r"mlp\.gate\.weight")
    n_linear = parts.layers_with("linear_attn")
    n_latent = parts.layers_with("self_attn.kv_a_proj_with_mqa")
    n_attention = parts.layers_with("self_attn.k_proj")
    total, in_experts = parts.sum("", parts.params), parts.sum(EXPERTS, parts.params)
    router = parts.shape(r"mlp\.gate\.(weight|scales)$")
    n_experts = router[0] if router else 0
    active = text["num_experts_per_tok"] if router else 0
    want = {
        "family": family(config), "layout": layout(parts, config),
        "n_files": len(parts.ckpt.files.files), "n_tensors": len(parts.ckpt.files.entries),
        "n_tensors_skipped": len(parts.skipped), "n_layers": parts.layers, "n_vocab": text["vocab_size"],
        "d_model": parts.shape(re.escape(parts.ckpt.prefix) + r"norm\.weight$")[0],
        "tied_embeddings": not any("lm_head." in n for n in parts.used),
        "n_layers_attention": n_attention, "n_layers_latent": n_latent, "n_layers_linear": n_linear,
        "n_layers_moe": n_moe, "n_layers_dense": parts.layers - n_moe, "n_experts": n_experts,
        "n_experts_active": active, "params_total": total, "bytes_total": parts.sum("", size),
        "bytes_experts": parts.sum(EXPERTS, size),
        "params_active": total - in_experts + (in_experts // n_experts * active if n_experts else 0),
    }
    want["kv_bytes_per_token"] = BYTES_F16 * (n_attention * 2 * text["num_key_value_heads"] * text.get("head_dim", 0)
                                              + n_latent * (text.get("kv_lora_rank") or 0)
                                              + n_latent * (text.get("qk_rope_head_dim") or 0))
    if n_linear:
        channels = max(parts.shape(r"conv1d\.weight$"))
        matrix = text["linear_num_value_heads"] * text["linear_value_head_dim"] * text["linear_key_head_dim"]
        conv = (text["linear_conv_kernel_dim"] - 1) * channels
        want["state_bytes"] = BYTES_F32 * n_linear * (conv + matrix)
    else:
        want["state_bytes"] = 0
    return want


def differences(got, want):
    """Sentences; none when the program said the truth."""
    wrong = [f"{key} is {got.get(key)}, not {value}" for key, value in want.items() if got.get(key) != value]
    for unit in ("params", "bytes"):
        if sum(t[unit] for t in got["types"]) != want[unit + "_total"]:
            wrong.append(f"the types do not add up to all {unit}")
    return wrong
