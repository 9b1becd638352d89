"""The same model in other layouts: Hugging Face to MLX affine, MLX back to Hugging Face, Hugging Face to FP8.

What to_mlx makes and what to_hf makes of that hold exactly the same numbers, so that a reader of both layouts can be
compared with itself.
Every function takes and returns (config, {name: Tensor}) and leaves its arguments alone.
"""
import copy
import re
from dataclasses import dataclass, field

import numpy as np

from checkpoint import Tensor, encode
from quantize import affine_dequantize, affine_quantize, fp8_quantize

HYBRID = ("qwen3_next", "qwen3_5", "qwen3_5_moe")
SHIFTED = (".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight", ".q_norm.weight",
           ".k_norm.weight")        # of hybrid models: Hugging Face stores these gains minus one
PARTS = ("gate", "up", "down")


@dataclass
class Recipe:
    """How an MLX converter was run."""
    bits: int = 4
    group: int = 64
    scales: str = "BF16"
    overrides: dict = field(default_factory=dict)    # regex on the path -> (bits, group) or False; first match
    split_kv: bool = False                           # deepseek_v3: embed_q and unembed_out instead of kv_b_proj
    junk: bool = False                               # tensors of parts that a text model does not run


def text_config(config):
    return config.get("text_config") or config


def family(config):
    return text_config(config)["model_type"].replace("_text", "")


def is_tied(config):
    return text_config(config).get("tie_word_embeddings", False)


def concatenated(tensors, axis=0):
    return Tensor(tensors[0].dtype, np.concatenate([t.array for t in tensors], axis))


# ---- junk: tensors that must be skipped

def junk_for(config, mlx):
    """What real checkpoints carry beside the text model, filled with numbers that would ruin it."""
    text, kind = text_config(config), family(config)
    h = text["hidden_size"]
    big = lambda *shape: encode(np.full(shape, 1e3), "BF16")
    if kind in HYBRID:
        vision = "vision_tower." if mlx else "model.visual."
        junk = {"mtp.fc.weight": big(h, 2 * h), "mtp.norm.weight": big(h),
                "mtp.layers.0.input_layernorm.weight": big(h)}
        if kind != "qwen3_next":
            junk |= {vision + "patch_embed.proj.weight": big(8, 3, 2, 4, 4),
                     vision + "blocks.0.norm1.bias": big(8)}
        return junk
    if kind == "deepseek_v3":
        last = text["num_hidden_layers"]
        return {f"model.layers.{last}.eh_proj.weight": big(h, 2 * h), f"model.layers.{last}.enorm.weight": big(h),
                f"model.layers.{last}.input_layernorm.weight": big(h),
                "model.layers.0.self_attn.rotary_emb.inv_freq": encode(np.ones(8), "F32")}
    return {"model.layers.0.self_attn.rotary_emb.inv_freq": encode(np.ones(16), "F32")}


# ---- Hugging Face -> MLX

def to_mlx(config, tensors, recipe):
    config, kind = copy.deepcopy(config), family(config)
    out = stack_experts(tensors)
    if kind in HYBRID:
        out = {n: mlx_hybrid_tensor(n, t) for n, t in out.items()}
    if recipe.split_kv:
        out = split_kv_b(config, out)
    if is_tied(config):
        out.pop("lm_head.weight", None)
    if kind in ("qwen3_5", "qwen3_5_moe"):
        out = {"language_model." + n: t for n, t in out.items()}
        text = {**config, "model_type": kind + "_text"}
        config = {"model_type": kind, "text_config": text, "tie_word_embeddings": is_tied(config)}
    out, entries = quantize_modules(kind, out, recipe)
    config["quantization"] = {"bits": recipe.bits, "group_size": recipe.group, "mode": "affine", **entries}
    config["quantization_config"] = config["quantization"]
    return config, out | (junk_for(config, mlx=True) if recipe.junk else {})


def stack_experts(tensors):
    out = {n: t for n, t in tensors.items() if ".mlp.experts." not in n}
    for prefix in sorted({n.split("experts.")[0] for n in tensors if ".mlp.experts." in n}):
        count = sum(n.startswith(prefix + "experts.") and n.endswith("gate_proj.weight") for n in tensors)
        for part in PARTS:
            members = [tensors[f"{prefix}experts.{e}.{part}_proj.weight"] for e in range(count)]
            stack = Tensor(members[0].dtype, np.stack([m.array for m in members]))
            out[f"{prefix}switch_mlp.{part}_proj.weight"] = stack
    return out


def mlx_hybrid_tensor(name, t):
    if name.endswith("conv1d.weight"):
        return Tensor(t.dtype, t.array.transpose(0, 2, 1))
    if name.endswith(SHIFTED) and not name.startswith("mtp."):
        return encode(np.float32(1) + t.values(), "F32")        # F32, so that no bit of 1 + w is lost
    return t


def split_kv_b(config, tensors):
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    out = dict(tensors)
    for name in [n for n in out if n.endswith("kv_b_proj.weight")]:
        t = out.pop(name)
        both = t.array.reshape(heads, nope + config["v_head_dim"], -1)
        out[name.replace("kv_b_proj", "embed_q")] = Tensor(t.dtype, both[:, :nope].transpose(0, 2, 1))
        out[name.replace("kv_b_proj", "unembed_out")] = Tensor(t.dtype, both[:, nope:])
    return out


def quantize_modules(kind, tensors, recipe):
    """-> tensors, per-module entries of config.json."""
    out, entries = {}, {}
    for name, t in tensors.items():
        module = name.removesuffix(".weight")
        custom = name.endswith("conv1d.weight") or (kind == "deepseek_v3" and name.endswith("mlp.gate.weight"))
        if t.array.ndim < 2 or not name.endswith(".weight") or custom:
            out[name] = t
            continue
        chosen = next((v for pattern, v in recipe.overrides.items() if re.search(pattern, module)), None)
        bits, group = chosen or (recipe.bits, recipe.group)
        if chosen is False or t.array.shape[-1] % group:          # a converter leaves what does not divide
            out[name] = t
            if chosen is False:
                entries[module] = False
            continue
        if chosen:
            entries[module] = {"bits": bits, "group_size": group}
        parts = affine_quantize(t.values(), bits, group, recipe.scales)
        out |= {f"{module}.{part}": p for part, p in zip(("weight", "scales", "biases"), parts)}
    return out, entries


# ---- MLX -> Hugging Face: the decoded weights in float32

def to_hf(config, tensors, fused=False, multimodal=False, junk=False):
    """fused: experts as gate_up_proj and down_proj stacks. multimodal: the names and the nested configuration of a
    model with a vision part. junk: see junk_for; a tied model also gets an lm_head that must not be used."""
    quantization, text, kind = config["quantization"], copy.deepcopy(text_config(config)), family(config)
    text.pop("quantization", None), text.pop("quantization_config", None)
    out = {}
    for name, t in decoded(quantization, tensors).items():
        name = name.removeprefix("language_model.")
        if kind in HYBRID and name.endswith("conv1d.weight"):
            t = Tensor(t.dtype, t.array.transpose(0, 2, 1))
        elif kind in HYBRID and name.endswith(SHIFTED):
            t = encode(t.values() - np.float32(1), "F32")
        out |= unstacked(name, t, fused) if ".switch_mlp." in name else {name: t}
    if fused:
        out = join_gate_up(out)
    out = join_kv_b(out)
    text["model_type"] = kind
    config = text
    if junk and is_tied(config):
        out["lm_head.weight"] = encode(np.zeros_like(out["model.embed_tokens.weight"].array), "BF16")
    if multimodal:
        out = {n.replace("model.", "model.language_model.", 1): t for n, t in out.items()}
        config = {"model_type": kind, "text_config": {**text, "model_type": kind + "_text"}}
    return config, out | (junk_for(config, mlx=False) if junk else {})


def decoded(quantization, tensors):
    """Every module in float32, what belongs to no text model left out."""
    out = {}
    for name, t in tensors.items():
        module, _, last = name.rpartition(".")
        if last in ("scales", "biases") or re.search(r"vision_tower|mtp\.|inv_freq|\.eh_proj|\.enorm", name):
            continue
        if last == "weight" and module + ".scales" in tensors:
            entry = quantization.get(module) or quantization
            scales, biases = (tensors[f"{module}.{part}"].values() for part in ("scales", "biases"))
            t = encode(affine_dequantize(t.array, scales, biases, entry["bits"], entry["group_size"]), "F32")
        out[name] = t
    return out


def unstacked(name, stack, fused):
    if fused:
        return {name.replace("switch_mlp", "experts").removesuffix(".weight"): stack}
    return {name.replace("switch_mlp", f"experts.{e}"): Tensor(stack.dtype, m) for e, m in enumerate(stack.array)}


def join_gate_up(tensors):
    out = dict(tensors)
    for name in [n for n in out if n.endswith("experts.gate_proj")]:
        up = out.pop(name.replace("gate_proj", "up_proj"))
        out[name.replace("gate_proj", "gate_up_proj")] = concatenated([out.pop(name), up], axis=1)
    return out


def join_kv_b(tensors):
    out = dict(tensors)
    for name in [n for n in out if n.endswith("embed_q.weight")]:
        key, value = out.pop(name).values(), out.pop(name.replace("embed_q", "unembed_out")).values()
        both = np.concatenate([key.transpose(0, 2, 1), value], axis=1)
        out[name.replace("embed_q", "kv_b_proj")] = encode(both.reshape(-1, both.shape[-1]), "F32")
    return out


# ---- Hugging Face -> FP8 blocks

def to_fp8(config, tensors, block, scale_type):
    """Every projection of the layers; embeddings, head, router and norms stay."""
    config, out = copy.deepcopy(config), {}
    for name, t in tensors.items():
        if name.endswith("_proj.weight") or name.endswith("proj_with_mqa.weight"):
            weight, scale = fp8_quantize(t.values().astype(np.float64), block, scale_type)
            out |= {name: weight, name + "_scale_inv": scale}
        else:
            out[name] = t
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": list(block)}
    if scale_type in ("F8_E8M0", "U8"):
        config["quantization_config"]["scale_fmt"] = "ue8m0"
    return config, out
