"""Changes to checkpoints: settings that no stored golden has, and mistakes that the suite must notice.

Each takes (config, tensors) of a copy and returns them; its name is the case's name.
"""
import re

import numpy as np

from checkpoint import Tensor, encode
from quantize import pack_codes, unpack_codes


def noise(shape, scale, seed=1):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def recoded(tensors, dtype):
    return {n: encode(t.values(), dtype) for n, t in tensors.items()}


def only(tensors, pattern):
    """The one name that matches."""
    names = [n for n in tensors if re.search(pattern, n)]
    if len(names) != 1:
        raise ValueError(f"{pattern} matches {len(names)} tensors")
    return names[0]


def changed(tensors, pattern, change):
    """The tensor in float32, after change(values)."""
    name = only(tensors, pattern)
    values = tensors[name].values().astype(np.float32)
    return {**tensors, name: encode(change(values), "F32")}


def at(index, change):
    def apply(values):
        values = values.copy()
        values.flat[index] = change(values.flat[index])
        return values
    return apply


# ======== settings =========================================================================================

def weights_in_f16(config, tensors):
    return config, recoded(tensors, "F16")


def weights_in_f32(config, tensors):
    return config, recoded(tensors, "F32")


def attention_biases(config, tensors):
    for name in [n for n in tensors if re.search(r"self_attn\.[qkvo]_proj\.weight$", n)]:
        bias = noise(len(tensors[name].array), 0.3, len(name))
        tensors[name.replace(".weight", ".bias")] = encode(bias, "BF16")
    return {**config, "attention_bias": True}, tensors


def window_by_layer_types(config, tensors):
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    return {**config, "use_sliding_window": True, "sliding_window": 9, "layer_types": types}, tensors


def window_by_first_layer(config, tensors):
    config = {k: v for k, v in config.items() if k != "layer_types"}
    return {**config, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, tensors


def weights_not_renormalized(config, tensors):
    return {**config, "norm_topk_prob": False}, tensors


def every_second_layer_sparse(config, tensors):
    """Layers 1 (dense) and 0 (experts) of the fixture change places, the third goes."""
    swap = {"0": "1", "1": "0"}
    renamed = {}
    for name, t in tensors.items():
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer and layer[1] not in swap:
            continue
        renamed[name.replace(layer[0], f"layers.{swap[layer[1]]}.") if layer else name] = t
    config = {k: v for k, v in config.items() if k != "layer_types"}
    return {**config, "num_hidden_layers": 2, "mlp_only_layers": [], "decoder_sparse_step": 2}, renamed


def experts_that_tie(config, tensors):
    """Router rows (and selection biases) in equal pairs, an odd number of experts per token: the lower index wins."""
    for name in [n for n in tensors if n.endswith(("mlp.gate.weight", "e_score_correction_bias"))]:
        rows = tensors[name].array.copy()
        rows[1::2] = rows[0::2]
        tensors[name] = Tensor(tensors[name].dtype, rows)
    return config, tensors


def yarn(config, tensors, **more):
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32, **more}
    return {**config, "rope_parameters": rope}, tensors


def yarn_on_half_split_pairs(config, tensors):
    return yarn(config, tensors)


def yarn_with_attention_factor(config, tensors):
    return yarn(config, tensors, attention_factor=1.25)


def yarn_without_original_length(config, tensors):
    return yarn(config, tensors, original_max_position_embeddings=None)


def yarn_not_truncated(config, tensors):
    return yarn(config, tensors, truncate=False, beta_fast=4.0)


def yarn_with_two_scales(config, tensors):
    rope = {**config["rope_parameters"], "mscale": 0.7, "mscale_all_dim": 1.3}
    return {**config, "rope_parameters": rope}, tensors


def old_style_rope(config, tensors):
    rope = dict(config["rope_parameters"])
    config = {k: v for k, v in config.items() if k != "rope_parameters"}
    config |= {"rope_theta": rope.pop("rope_theta"), "partial_rotary_factor": rope.pop("partial_rotary_factor", None)}
    kind = rope.pop("rope_type")
    config["rope_scaling"] = {**rope, "type": kind} if kind != "default" else None
    return config, tensors


def rope_on_half_split_pairs(config, tensors):
    return {**config, "rope_interleave": False}, tensors


def another_norm_epsilon(config, tensors):
    """The norms inside latent attention keep theirs."""
    return {**config, "rms_norm_eps": 1e-2}, tensors


def two_shared_experts(config, tensors):
    for name in [n for n in tensors if ".shared_experts." in n]:
        axis = 1 if "down_proj" in name else 0
        w = tensors[name].values()
        more = noise(w.shape, w.std(), len(name))
        tensors[name] = encode(np.concatenate([w, more], axis), "BF16")
    return {**config, "n_shared_experts": 2}, tensors


def negative_selection_scores(config, tensors):
    """All biased scores below zero: groups that are out must not come back as zeros."""
    for name in [n for n in tensors if n.endswith("e_score_correction_bias")]:
        tensors[name] = encode(tensors[name].values() - np.float32(2), "F32")
    return config, tensors


def one_group(config, tensors):
    return {**config, "n_group": 1, "topk_group": 1}, tensors


def full_attention_by_interval(config, tensors):
    config = {k: v for k, v in config.items() if k != "layer_types"}
    return {**config, "full_attention_interval": 4}, tensors


VARIANTS = [
    ("qwen3", weights_in_f16), ("qwen3_5_moe", weights_in_f16), ("deepseek_v3", weights_in_f32),
    ("qwen3_next", weights_in_f32), ("qwen3", attention_biases), ("qwen3_5", attention_biases),
    ("qwen3", window_by_layer_types), ("qwen3", window_by_first_layer), ("qwen3_moe", weights_not_renormalized),
    ("qwen3_next", weights_not_renormalized), ("deepseek_v3", weights_not_renormalized),
    ("qwen3_moe", every_second_layer_sparse), ("qwen3_moe", experts_that_tie), ("deepseek_v3", experts_that_tie),
    ("qwen3", yarn_on_half_split_pairs), ("qwen3_moe", yarn_with_attention_factor),
    ("qwen3", yarn_without_original_length), ("qwen3", yarn_not_truncated), ("deepseek_v3", yarn_with_two_scales),
    ("deepseek_v3", old_style_rope), ("qwen3_5_moe", old_style_rope), ("deepseek_v3", rope_on_half_split_pairs),
    ("deepseek_v3", another_norm_epsilon), ("qwen3_5", another_norm_epsilon), ("deepseek_v3", two_shared_experts),
    ("deepseek_v3", negative_selection_scores), ("deepseek_v3", one_group),
    ("qwen3_next", full_attention_by_interval),
]

SAME_NUMBERS = (weights_in_f16, weights_in_f32, old_style_rope, full_attention_by_interval,     # said another way, or
                negative_selection_scores)                  # a shift that keeps the order of all scores


# ======== mistakes =========================================================================================

def query_norm_gain_off(config, tensors):
    """All gains of one layer's query norm 0.1 % too large."""
    return config, changed(tensors, r"layers\.1\.self_attn\.q_norm\.weight$", lambda w: w * np.float32(1.001))


def key_norm_gain_off(config, tensors):
    return config, changed(tensors, r"layers\.3\.self_attn\.k_norm\.weight$", lambda w: w * np.float32(1.001))


def one_scale_off(config, tensors):
    """One scale of one group of one projection times 1.001; biases follow into float32."""
    tensors = changed(tensors, r"layers\.0\.mlp\.down_proj\.scales$", at(5, lambda s: s * np.float32(1.001)))
    return config, changed(tensors, r"layers\.0\.mlp\.down_proj\.biases$", lambda b: b)


def all_scales_of_a_matrix_off(config, tensors):
    tensors = changed(tensors, r"layers\.2\.self_attn\.o_proj\.scales$", lambda s: s * np.float32(1.001))
    return config, changed(tensors, r"layers\.2\.self_attn\.o_proj\.biases$", lambda b: b)


def one_selection_bias_off(config, tensors):
    bias = r"layers\.1\.mlp\.gate\.e_score_correction_bias$"
    return config, changed(tensors, bias, at(2, lambda b: b + np.float32(0.05)))


def norm_shifted_twice(config, tensors):
    return config, changed(tensors, r"layers\.1\.input_layernorm\.weight$", lambda w: w + np.float32(1))


def norm_not_shifted(config, tensors):
    return config, changed(tensors, r"layers\.1\.post_attention_layernorm\.weight$", lambda w: w - np.float32(1))


def one_tap_off(config, tensors):
    """One tap of one channel of a convolution 1 % off."""
    conv = r"layers\.0\.linear_attn\.conv1d\.weight$"
    return config, changed(tensors, conv, at(3, lambda w: w * np.float32(1.01)))


def experts_exchanged(config, tensors):
    down = sorted(n for n in tensors if re.search(r"layers\.0\.mlp\.experts\.[12]\.down_proj\.weight$", n))
    tensors[down[0]], tensors[down[1]] = tensors[down[1]], tensors[down[0]]
    return config, tensors


def norm_epsilon_off(config, tensors):
    """Ten times too large."""
    return {**config, "rms_norm_eps": 1e-5}, tensors


MISTAKES = [  # those that --exact must show
    ("qwen3", query_norm_gain_off), ("demo-qwen3", query_norm_gain_off),
    ("demo-deepseek-v3", all_scales_of_a_matrix_off), ("deepseek_v3", one_selection_bias_off),
    ("qwen3_5", norm_shifted_twice), ("demo", norm_not_shifted), ("qwen3_5_moe", one_tap_off),
    ("qwen3_moe", experts_exchanged), ("qwen3_5_moe", norm_epsilon_off),
]
# below what --exact shows: those that the reference kernels must show
SMALL_MISTAKES = [("qwen3_next", key_norm_gain_off), ("demo-qwen3", one_scale_off)]


def exchange_rows(tensors, module, a, b):
    """Rows a and b of every tensor of a module."""
    for name in [n for n in tensors if module in n]:
        array = tensors[name].array.copy()
        array[[a, b]] = array[[b, a]]
        tensors[name] = Tensor(tensors[name].dtype, array)
    return tensors


def one_code_off(tensors):
    name = only(tensors, r"layers\.1\.mlp\.up_proj\.weight$")
    codes = unpack_codes(tensors[name].array, 4)
    codes[7, 11] ^= 1
    return {**tensors, name: encode(pack_codes(codes, 4), "U32")}


def one_block_off(tensors):
    scale = r"layers\.0\.self_attn\.o_proj\.weight_scale_inv$"
    return changed(tensors, scale, at(1, lambda s: s * np.float32(1.001)))
