#!/usr/bin/env python3
"""Reference forward pass of the model families, in plain numpy.

This file is the executable form of the mathematics: it is meant to be read, not to be fast. It runs a whole sequence
at once in float64, keeps no cache, rounds nothing and decodes weights where it uses them.

    reference.py MODEL_DIR --check             compare with MODEL_DIR/golden.safetensors
    reference.py MODEL_DIR --ids 5,17,3        run these token ids, print the best next tokens

It reads Hugging Face safetensors (bf16/f16/f32, fp8 blocks) and MLX safetensors (affine 2 to 8 bits), one file or
sharded. Matrices are [out, in]; a linear layer is y = x @ W.T. In shapes, T is the number of tokens and d the size
of a head.
"""
import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

from checkpoint import SafeTensors, model_files
from quantize import affine_dequantize, fp8_dequantize

FAMILIES = ("qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "deepseek_v3")
REAL = np.float64                   # type of every decoded weight and every activation

# ======== 1. Weights =======================================================================================

class Checkpoint:
    """Weights by logical path: 'layers.0.self_attn.q_proj', 'norm', 'lm_head', whatever prefix the files use."""

    def __init__(self, directory, raw_config):
        self.files = SafeTensors(model_files(directory))
        prefixes = ("language_model.model.", "model.language_model.", "model.")     # MLX, HF multimodal; all else
        self.prefix = next(p for p in prefixes if p + "embed_tokens.weight" in self.files)
        self.head_prefix = "language_model." if "language_model.lm_head.weight" in self.files else ""
        self.mlx = raw_config.get("quantization")                                   # only MLX files have this key
        hf = raw_config.get("quantization_config") or raw_config.get("text_config", {}).get("quantization_config")
        self.fp8_block = (hf or {}).get("weight_block_size") or [128, 128]

    def name(self, path):
        return (self.head_prefix if path.startswith("lm_head") else self.prefix) + path

    def has(self, path):
        return self.name(path) in self.files

    def plain(self, path, member=None):
        """A tensor that is never quantized, by its whole name (norm gains, biases, conv1d, A_log ...)."""
        return self.files.read(self.name(path), member).astype(REAL)

    def quantization_of(self, module):
        """(bits, group size) of a module (named as in the file), or None if it is stored plainly."""
        entry = self.mlx.get(module) if self.mlx else False          # an override for this very module wins,
        if entry is None:                                            # else the presence of .scales decides
            entry = module + ".scales" in self.files and self.mlx
        return (entry.get("bits", 4), entry.get("group_size", 64)) if entry else None

    def matrix(self, path, member=None):
        """Decoded weight of a linear layer or embedding, or of one member of an expert stack."""
        module = self.name(path)
        stored = self.files.read(module + ".weight", member)
        if module + ".weight_scale_inv" in self.files:
            return fp8_dequantize(stored, self.files.read(module + ".weight_scale_inv"), self.fp8_block)
        quantization = self.quantization_of(module)
        if quantization is None:
            return stored.astype(REAL)
        scales, biases = (self.files.read(module + suffix, member) for suffix in (".scales", ".biases"))
        return affine_dequantize(stored, scales, biases, *quantization)


# ======== 2. Configuration =================================================================================

class Config(dict):
    """The text model's hyper-parameters; what several families spell differently becomes an attribute."""

    def __init__(self, raw):
        text = raw.get("text_config") or raw
        super().__init__(text)
        self.family = text.get("model_type", raw["model_type"]).replace("_text", "")    # e.g. qwen3_5_moe_text
        if self.family not in FAMILIES:
            raise ValueError("unknown model_type " + self.family)
        self.tied = text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False))
        self.heads = text["num_attention_heads"]
        self.kv_heads = text.get("num_key_value_heads") or self.heads
        self.head_dim = text.get("head_dim") or text["hidden_size"] // self.heads
        self.hybrid = self.family in ("qwen3_next", "qwen3_5", "qwen3_5_moe")        # attention + gated delta net

        rope = {key: text.get(key) for key in ("rope_theta", "partial_rotary_factor")}
        rope.update(text.get("rope_scaling") or {})                                  # old style, may be null
        rope.update(text.get("rope_parameters") or {})                               # new style
        self.rope = rope
        self.rope_type = rope.get("rope_type") or rope.get("type") or "default"
        self.rope_theta = rope["rope_theta"] or 10000.0
        part = rope["partial_rotary_factor"] or (0.25 if self.hybrid else 1.0)
        self.rotary_dim = text.get("qk_rope_head_dim") or int(self.head_dim * part)

    def full_attention(self, layer):
        """For a hybrid model: softmax attention rather than gated delta net?"""
        if self.get("layer_types"):
            return self["layer_types"][layer] == "full_attention"
        return (layer + 1) % self.get("full_attention_interval", 4) == 0

    def window(self, layer):
        """Sliding-window length of a layer's attention, or None."""
        if self.family != "qwen3" or not self.get("use_sliding_window"):
            return None
        sliding = layer >= self.get("max_window_layers", 0)
        if self.get("layer_types"):
            sliding = self["layer_types"][layer] == "sliding_attention"
        return self["sliding_window"] if sliding else None

    def is_moe(self, layer):
        if self.family == "deepseek_v3":
            return layer >= self["first_k_dense_replace"]
        if self.family in ("qwen3_moe", "qwen3_next"):
            every = self.get("decoder_sparse_step", 1)
            return layer not in (self.get("mlp_only_layers") or []) and (layer + 1) % every == 0
        return self.family == "qwen3_5_moe"


# ======== 3. Building blocks (pure functions) ==============================================================

def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))

def silu(x):
    return x * sigmoid(x)

def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))

def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)

def rms_norm(x, gain, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain

def l2_norm(x, eps=1e-6):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)

def yarn_magnitude(factor, mscale=1.0):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rotary_frequencies(dim, theta, rope_type, rope, max_positions=None):
    """-> inv_freq [dim/2], magnitude. Pair i turns by p * inv_freq[i] at position p; magnitude scales cos, sin."""
    i = np.arange(dim // 2)
    plain = theta ** (-2.0 * i / dim)
    if rope_type == "default":
        return plain, 1.0
    if rope_type != "yarn":
        raise ValueError("unknown rope type " + rope_type)
    factor, original = rope["factor"], rope.get("original_max_position_embeddings") or max_positions

    def pair_making(turns):                          # the (fractional) pair that turns this often in `original`
        return dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))
    low, high = pair_making(rope.get("beta_fast") or 32), pair_making(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slow = np.clip((i - low) / (high - low), 0, 1)   # 0: a fast pair, kept as it is; 1: a slow pair, stretched
    inv_freq = (1 - slow) * plain + slow * plain / factor

    mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    magnitude = rope.get("attention_factor")
    if magnitude is None:
        magnitude = yarn_magnitude(factor)
        if mscale and mscale_all:
            magnitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all)
    return inv_freq, magnitude


def rotate(x, rotary, interleaved=False):
    """Rotary embedding of x [T, heads, d] at positions 0..T-1; only the first D = 2*len(inv_freq) dims turn.
    Pair i is (i, i + D/2), or (2i, 2i+1) if interleaved."""
    inv_freq, magnitude = rotary
    half = len(inv_freq)
    position = np.arange(len(x), dtype=np.float32)
    angle = (position[:, None] * inv_freq.astype(np.float32)).astype(REAL)       # a float32 product, on purpose
    cos, sin = magnitude * np.cos(angle)[:, None], magnitude * np.sin(angle)[:, None]
    first, second = slice(0, half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def attend(q, k, v, scale, window=None):
    """Causal softmax attention: q [T, nq, d], k [T, nkv, d], v [T, nkv, dv] -> [T, nq, dv]. Query head h reads
    key/value head h // (nq/nkv)."""
    tokens, heads = q.shape[:2]
    group = heads // k.shape[1]
    distance = np.arange(tokens)[:, None] - np.arange(tokens)                    # query position - key position
    visible = (distance >= 0) & (distance < (window or tokens))
    out = np.empty((tokens, heads, v.shape[2]), REAL)
    for h in range(heads):
        score = np.where(visible, q[:, h] @ k[:, h // group].T * scale, -np.inf)
        out[:, h] = softmax(score) @ v[:, h // group]
    return out


def causal_conv(x, weight):
    """Depthwise, x [T, C], weight [C, K]; weight[:, K-1] meets the current token; zeros before the start."""
    taps = weight.shape[1]
    padded = np.concatenate([np.zeros((taps - 1, x.shape[1])), x])
    return sum(padded[j:j + len(x)] * weight[:, j] for j in range(taps))


def delta_rule(q, k, v, g, beta):
    """Gated delta rule: q, k [T, heads, dk] (normalised, q also scaled), v [T, heads, dv], g, beta [T, heads]
    -> outputs [T, heads, dv], final state [heads, dk, dv]."""
    state = np.zeros((q.shape[1], q.shape[2], v.shape[2]), REAL)
    out = np.empty(v.shape, REAL)
    for t in range(len(q)):
        key, query = k[t][:, :, None], q[t][:, :, None]
        state *= np.exp(g[t])[:, None, None]                                     # forget a little,
        recalled = (state * key).sum(axis=1)                                     # read what the key recalls,
        state += key * (beta[t][:, None] * (v[t] - recalled))[:, None, :]        # move it towards v,
        out[t] = (state * query).sum(axis=1)                                     # answer from the new state
    return out, state


def top_k(score, k):
    """Indices of the k largest of each row, best first; of equal values the lower index wins."""
    return np.argsort(-score, axis=-1, kind="stable")[:, :k]


def route_softmax(logits, k, renormalize):
    """Qwen: softmax over all experts, then keep k. -> expert ids [T, k], weights [T, k]"""
    p = softmax(logits)
    ids = top_k(p, k)
    weights = np.take_along_axis(p, ids, axis=-1)
    return ids, weights / weights.sum(axis=-1, keepdims=True) if renormalize else weights


def route_sigmoid(logits, bias, k, groups=1, kept_groups=1, renormalize=True, factor=1.0):
    """DeepSeek: sigmoid scores. The bias and the group limit decide which experts are taken, not their weights."""
    score = sigmoid(logits)
    choice = score + bias
    if groups > 1:
        grouped = choice.reshape(len(choice), groups, -1)                        # consecutive experts
        group_score = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)           # its two best members
        keep = np.zeros(group_score.shape, bool)
        np.put_along_axis(keep, top_k(group_score, kept_groups), True, axis=-1)
        choice = np.where(keep[..., None], grouped, -np.inf).reshape(choice.shape)
    ids = top_k(choice, k)
    weights = np.take_along_axis(score, ids, axis=-1)
    if renormalize:
        weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
    return ids, weights * factor


# ======== 4. The model =====================================================================================

class Model:
    def __init__(self, directory):
        raw = json.loads((Path(directory) / "config.json").read_text())
        self.cfg = cfg = Config(raw)
        self.ckpt = Checkpoint(Path(directory), raw)
        self.eps = cfg["rms_norm_eps"]
        longest = cfg.get("max_position_embeddings")
        self.rotary = rotary_frequencies(cfg.rotary_dim, cfg.rope_theta, cfg.rope_type, cfg.rope, longest)
        # Hugging Face files of the hybrid families store norm gains minus one, MLX files store the gains. The
        # convolution tells them apart: [C, 1, K] in the former, [C, K, 1] (same bytes) in the latter.
        conv_shapes = [e[1] for n, e in self.ckpt.files.entries.items() if n.endswith("linear_attn.conv1d.weight")]
        self.gain_offset = 1.0 if conv_shapes and conv_shapes[0][-1] != 1 else 0.0

    def forward(self, token_ids):
        """-> logits [T, vocab], hidden: hidden[0] is the embeddings, hidden[i] the output of layer i-1, but the
        last entry has been through the final norm."""
        h = self.ckpt.matrix("embed_tokens")[token_ids]
        hidden = [h]
        for i in range(self.cfg["num_hidden_layers"]):
            h = h + self.mix_tokens(i, self.norm(h, f"layers.{i}.input_layernorm"))
            h = h + self.feed_forward(i, self.norm(h, f"layers.{i}.post_attention_layernorm"))
            hidden.append(h)
        hidden[-1] = self.norm(h, "norm")
        tied = self.cfg.tied or not self.ckpt.has("lm_head.weight")
        return hidden[-1] @ self.ckpt.matrix("embed_tokens" if tied else "lm_head").T, hidden

    def norm(self, x, path):
        """Block norms, the final norm and q/k norms; always over the last axis."""
        return rms_norm(x, self.ckpt.plain(path + ".weight") + self.gain_offset, self.eps)

    def linear(self, x, path):
        y = x @ self.ckpt.matrix(path).T
        return y + self.ckpt.plain(path + ".bias") if self.ckpt.has(path + ".bias") else y

    def mix_tokens(self, i, x):
        if self.cfg.family == "deepseek_v3":
            return self.latent_attention(x, f"layers.{i}.self_attn.")
        if self.cfg.hybrid and not self.cfg.full_attention(i):
            return self.gated_delta_net(x, f"layers.{i}.linear_attn.")
        return self.attention(x, f"layers.{i}.self_attn.", self.cfg.window(i))

    # ---- attention with grouped key/value heads
    def attention(self, x, path, window):
        cfg, tokens, d = self.cfg, len(x), self.cfg.head_dim
        q, k, v = (self.linear(x, path + n) for n in ("q_proj", "k_proj", "v_proj"))
        if cfg.hybrid:                                               # per head: d query rows, then d gate rows
            q, gate = np.split(q.reshape(tokens, cfg.heads, 2 * d), 2, axis=-1)
        q = q.reshape(tokens, cfg.heads, d)
        k, v = k.reshape(tokens, cfg.kv_heads, d), v.reshape(tokens, cfg.kv_heads, d)
        q, k = self.norm(q, path + "q_norm"), self.norm(k, path + "k_norm")
        q, k = rotate(q, self.rotary), rotate(k, self.rotary)
        out = attend(q, k, v, d ** -0.5, window)
        if cfg.hybrid:
            out = out * sigmoid(gate)
        return self.linear(out.reshape(tokens, -1), path + "o_proj")

    # ---- multi-head latent attention (deepseek_v3), expanded form
    def latent_attention(self, x, path):
        cfg, tokens, heads = self.cfg, len(x), self.cfg.heads
        nope, rope, rank = cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"], cfg["kv_lora_rank"]
        if cfg.get("q_lora_rank"):
            q = rms_norm(self.linear(x, path + "q_a_proj"), self.ckpt.plain(path + "q_a_layernorm.weight"), 1e-6)
            q = self.linear(q, path + "q_b_proj")
        else:
            q = self.linear(x, path + "q_proj")
        q_nope, q_rope = np.split(q.reshape(tokens, heads, nope + rope), [nope], axis=-1)

        latent, k_rope = np.split(self.linear(x, path + "kv_a_proj_with_mqa"), [rank], axis=-1)
        latent = rms_norm(latent, self.ckpt.plain(path + "kv_a_layernorm.weight"), 1e-6)  # k_rope is not normed
        if self.ckpt.has(path + "kv_b_proj.weight"):                 # per head: nope key rows, then value rows
            both = self.ckpt.matrix(path + "kv_b_proj").reshape(heads, nope + cfg["v_head_dim"], rank)
            key_matrix, value_matrix = both[:, :nope], both[:, nope:]
        else:                                                        # newer MLX files: split, keys transposed
            key_matrix = self.ckpt.matrix(path + "embed_q").transpose(0, 2, 1)
            value_matrix = self.ckpt.matrix(path + "unembed_out")
        k_nope = np.einsum("tr,hnr->thn", latent, key_matrix)
        v = np.einsum("tr,hvr->thv", latent, value_matrix)

        interleaved = cfg.get("rope_interleave", True)
        q_rope = rotate(q_rope, self.rotary, interleaved)
        k_rope = rotate(k_rope[:, None, :], self.rotary, interleaved)                     # one head, shared by all
        q = np.concatenate([q_nope, q_rope], axis=-1)
        k = np.concatenate([k_nope, np.broadcast_to(k_rope, (tokens, heads, rope))], axis=-1)
        scale = (nope + rope) ** -0.5
        if cfg.rope.get("mscale_all_dim"):
            scale *= yarn_magnitude(cfg.rope["factor"], cfg.rope["mscale_all_dim"]) ** 2
        return self.linear(attend(q, k, v, scale).reshape(tokens, -1), path + "o_proj")

    # ---- gated delta net, the linear attention of the hybrid families
    def gated_delta_net(self, x, path):
        cfg, tokens = self.cfg, len(x)
        nk, nv = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"]
        dk, dv = cfg["linear_key_head_dim"], cfg["linear_value_head_dim"]
        share = nv // nk                                             # value heads per key head
        if self.ckpt.has(path + "in_proj_qkvz.weight"):              # qwen3_next: rows grouped by key head
            grouped = self.linear(x, path + "in_proj_qkvz").reshape(tokens, nk, -1)
            q, k, v, z = np.split(grouped, [dk, 2 * dk, 2 * dk + share * dv], axis=-1)
            qkv = np.concatenate([m.reshape(tokens, -1) for m in (q, k, v)], axis=-1)
            b, a = np.split(self.linear(x, path + "in_proj_ba").reshape(tokens, nk, 2 * share), 2, axis=-1)
        else:
            qkv, z, b, a = (self.linear(x, path + "in_proj_" + n) for n in ("qkv", "z", "b", "a"))
        z, b, a = z.reshape(tokens, nv, dv), b.reshape(tokens, nv), a.reshape(tokens, nv)

        conv = self.ckpt.plain(path + "conv1d.weight")
        qkv = silu(causal_conv(qkv, conv.reshape(len(conv), -1)))    # z, b and a do not pass through it
        q, k, v = np.split(qkv, [nk * dk, 2 * nk * dk], axis=-1)
        q = l2_norm(q.reshape(tokens, nk, dk)) * dk ** -0.5
        k = l2_norm(k.reshape(tokens, nk, dk))
        q, k = np.repeat(q, share, axis=1), np.repeat(k, share, axis=1)          # value head j: key head j//share

        g = -np.exp(self.ckpt.plain(path + "A_log")) * softplus(a + self.ckpt.plain(path + "dt_bias"))
        out, _ = delta_rule(q, k, v.reshape(tokens, nv, dv), g, sigmoid(b))
        out = rms_norm(out, self.ckpt.plain(path + "norm.weight"), self.eps) * silu(z)    # this gain has no offset
        return self.linear(out.reshape(tokens, -1), path + "out_proj")

    # ---- feed-forward
    def feed_forward(self, i, x):
        if not self.cfg.is_moe(i):
            return self.swiglu(x, f"layers.{i}.mlp.")
        path = f"layers.{i}.mlp."
        ids, weights = self.route(x, path)
        y = np.zeros(x.shape, REAL)
        for expert in np.unique(ids):
            token, slot = np.nonzero(ids == expert)
            y[token] += weights[token, slot][:, None] * self.run_expert(x[token], path, expert)
        if self.ckpt.has(path + "shared_expert.gate_proj.weight"):                # qwen3_next, qwen3_5_moe
            y += sigmoid(self.linear(x, path + "shared_expert_gate")) * self.swiglu(x, path + "shared_expert.")
        if self.ckpt.has(path + "shared_experts.gate_proj.weight"):               # deepseek_v3
            y += self.swiglu(x, path + "shared_experts.")
        return y

    def swiglu(self, x, path):
        gate, up = self.linear(x, path + "gate_proj"), self.linear(x, path + "up_proj")
        return self.linear(silu(gate) * up, path + "down_proj")

    def route(self, x, path):
        cfg, k = self.cfg, self.cfg["num_experts_per_tok"]
        logits = self.linear(x, path + "gate")
        if cfg.family == "deepseek_v3":
            return route_sigmoid(logits, self.ckpt.plain(path + "gate.e_score_correction_bias"), k, cfg["n_group"],
                                 cfg["topk_group"], cfg["norm_topk_prob"], cfg["routed_scaling_factor"])
        return route_softmax(logits, k, cfg.family == "qwen3_5_moe" or cfg["norm_topk_prob"])

    def run_expert(self, x, path, e):
        c = self.ckpt
        if c.has(path + "switch_mlp.gate_proj.weight"):                           # MLX: one stack per matrix
            gate, up, down = (c.matrix(f"{path}switch_mlp.{n}_proj", e) for n in ("gate", "up", "down"))
        elif c.has(path + "experts.gate_up_proj"):                                # fused: gate rows, then up rows
            gate, up = np.split(c.plain(path + "experts.gate_up_proj", e), 2, axis=0)
            down = c.plain(path + "experts.down_proj", e)
        else:                                                                     # one tensor each
            gate, up, down = (c.matrix(f"{path}experts.{e}.{n}_proj") for n in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T


# ======== 5. Command line ==================================================================================

TOLERANCE = 1e-5                    # allowed max |difference| / max |golden|; float32 goldens land near 1e-6


def compare(label, ours, golden):
    error, largest = np.abs(ours - golden).max(), np.abs(golden).max()
    print(f"  {label:<14} max abs error {error:9.2e}  max |golden| {largest:8.3g}  relative {error / largest:.1e}")
    return error / largest


def check(model, directory):
    """golden.safetensors holds one prompt (ids, logits, hidden.L) or several (p0.ids, p0.logits ...). Logits may
    cover the last rows only. A greedy continuation is fed back whole: each token must win at the one before it."""
    golden = SafeTensors([Path(directory) / "golden.safetensors"])
    prompts = sorted(n[:-3] for n in golden.entries if n == "ids" or n.endswith(".ids"))
    errors, greedy_ok = [], True
    for p in prompts:
        ids = golden.read(p + "ids")
        greedy = golden.read(p + "greedy") if p + "greedy" in golden else ids[:0]
        logits, hidden = model.forward(np.concatenate([ids, greedy[:-1]]))
        print(f"{p}ids: {len(ids)} tokens")
        for layer, h in enumerate(hidden):
            if f"{p}hidden.{layer}" in golden:
                errors.append(compare(f"{p}hidden.{layer}", h[:len(ids)], golden.read(f"{p}hidden.{layer}")))
        expected = golden.read(p + "logits")
        errors.append(compare(p + "logits", logits[len(ids) - len(expected):len(ids)], expected))
        if len(greedy):
            answers = logits[len(ids) - 1:]
            equal = int((answers.argmax(axis=-1) == greedy).sum())
            greedy_ok = greedy_ok and equal == len(greedy)
            print(f"  {p + 'greedy':<14} {equal} of {len(greedy)} tokens equal")
            best = np.sort(answers, axis=-1)
            errors.append(compare(p + "margin", best[:, -1] - best[:, -2], golden.read(p + "margin")))
    passed = greedy_ok and all(e <= TOLERANCE for e in errors)       # so that a NaN fails too
    print(f"{'PASS' if passed else 'FAIL'} {model.cfg.family}: worst relative error {max(errors):.1e}"
          + ("" if greedy_ok else "; greedy tokens differ"))
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model_dir")
    parser.add_argument("--check", action="store_true", help="compare with golden.safetensors")
    parser.add_argument("--ids", help="comma-separated token ids to run")
    args = parser.parse_args()
    model = Model(args.model_dir)
    if args.ids:
        logits, _ = model.forward(np.array([int(n) for n in args.ids.split(",")]))
        for token in top_k(logits[-1:], 10)[0]:
            print(f"  {token:8d}  {logits[-1, token]:.6f}")
    return 0 if not args.check or check(model, args.model_dir) else 1


if __name__ == "__main__":
    sys.exit(main())
