"""The cases of the golden suite; run.py says what kinds there are.

Tolerances, all relative to the largest |golden| of a prompt:
    REFERENCE  1e-5  the reference kernels; goldens are float32 and land near 4e-6
    EXACT      5e-5  --exact on any kernels
    SAME       1e-6  two layouts of the same numbers on the reference kernels, which differ by rounding alone
The planted cases show how small a mistake each of them catches. EXACT sees all norm gains of a layer off by 0.1 %,
but not one scale of one group; REFERENCE sees that too.
"""
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np

import inspection
import layouts
import variants
from checkpoint import SafeTensors, even_offsets, load, write_checkpoint
from engine import Engine, EngineError
from layouts import Recipe
from quantize import wrong_vectors
from reference import Model

REFERENCE, EXACT, SAME = 1e-5, 5e-5, 1e-6
KL_DEFAULT = 1e-5                   # per token, of the default mode
KL_GPU = 1e-4                       # the same on a GPU
SURE = 0.05                         # a greedy token with a smaller margin may fall the other way in default mode
SHORT = 64                          # tokens; where time is short only prompts below this run in small steps
REF_FLAGS = ("--isa", "ref", "--exact")
MODELS = {"demo", "demo-qwen3", "demo-qwen3-moe", "demo-deepseek-v3"}
FIXTURES = {"qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "deepseek_v3", "deepseek_v3_noqlora"}
LARGER = {"demo-qwen3-moe", "demo-deepseek-v3", "qwen3_next", "qwen3_5_moe"}  # than the smallest --vram there is
MODES = {"prefill": (), "step": ("--step",), "chunk 1": ("--chunk", 1), "chunk 7": ("--chunk", 7),
         "chunk 64": ("--chunk", 64)}


class Mismatch(Exception):
    """The program's answer is wrong."""


@dataclass
class Case:
    name: str
    run: Callable[[], str]          # -> a detail for the line; raises Mismatch


class World:
    """What all cases share."""

    def __init__(self, program, scratch, models, fixtures, quick):
        self.engine, self.scratch = Engine(program, scratch), scratch
        self.models, self.fixtures, self.quick = models, fixtures, quick
        if {m.name for m in models} != MODELS or {f.name for f in fixtures} != FIXTURES:
            raise ValueError("the checkpoints of the suite are not all there")

    def fixture(self, name):
        return next(p for p in self.fixtures if p.name == name)

    def folder(self, name):
        return self.scratch / name.replace("/", "+").replace(" ", "_")


# ======== goldens ==========================================================================================

@dataclass
class Prompt:
    name: str
    ids: np.ndarray
    logits: np.ndarray              # of the last rows of ids
    greedy: np.ndarray              # continuation, may be empty
    margin: np.ndarray              # of each greedy token over the second best

    @property
    def fed(self):
        """The prompt and its continuation, each token of which must win at the one before it."""
        return np.concatenate([self.ids, self.greedy[:-1]])


def prompts_of(directory, longest=None):
    golden = SafeTensors([directory / "golden.safetensors"])
    none = np.zeros(0, np.int32)
    prompts = []
    for p in sorted(n[:-3] for n in golden.entries if n == "ids" or n.endswith(".ids")):
        greedy, margin = ((golden.read(p + n) if p + n in golden else none) for n in ("greedy", "margin"))
        prompt = Prompt(p.rstrip("."), golden.read(p + "ids"), golden.read(p + "logits"), greedy, margin)
        if longest is None or len(prompt.fed) < longest:
            prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{directory}: no golden prompts")
    return prompts


def relative(got, want):
    """Largest error relative to the largest golden; infinite when anything is not a number."""
    error = np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()
    return error if np.isfinite(error) else np.inf


def expect(error, tolerance, what):
    if not error <= tolerance:
        raise Mismatch(f"{what}: error {error:.1e} is above {tolerance:.0e}")


def golden_rows(prompt, logits):
    n = len(prompt.ids)
    return logits[n - len(prompt.logits):n]


def check_greedy(prompt, logits, tolerance):
    answers = logits[len(prompt.ids) - 1:]
    wrong = np.nonzero(answers.argmax(axis=-1) != prompt.greedy)[0]
    if len(wrong):
        raise Mismatch(f"{prompt.name}: greedy token {wrong[0]} is {answers[wrong[0]].argmax()}, "
                       f"not {prompt.greedy[wrong[0]]} (margin {prompt.margin[wrong[0]]:.2g})")
    best = np.sort(answers, axis=-1)
    margin = best[:, -1] - best[:, -2]
    scale = np.abs(prompt.logits).max()
    expect(np.abs(margin - prompt.margin).max() / scale, 2 * tolerance, f"{prompt.name}: margins")  # of two logits


def check_golden(world, model, prompts, tolerance, flags):
    worst, tokens = 0.0, 0
    if not prompts:
        raise Mismatch("there is no prompt to run")
    for prompt in prompts:
        logits = world.engine.logits(model, prompt.fed, *flags)
        error = relative(golden_rows(prompt, logits), prompt.logits)
        expect(error, tolerance, f"{prompt.name}: logits")
        if len(prompt.greedy):
            check_greedy(prompt, logits, tolerance)
        worst, tokens = max(worst, error), tokens + len(prompt.fed)
    return f"error {worst:.1e} over {len(prompts)} prompts, {tokens} tokens"


def golden_cases(world):
    longest = SHORT if world.quick else None
    for model in world.models:
        prompts = prompts_of(model, longest)
        yield Case(f"golden/{model.name}/reference kernels",
                   lambda m=model, p=prompts: check_golden(world, m, p, REFERENCE, REF_FLAGS))
        for mode, flags in MODES.items():
            yield Case(f"golden/{model.name}/{mode}",
                       lambda m=model, p=prompts, f=flags: check_golden(world, m, p, EXACT, ("--exact", *f)))
    for fixture in world.fixtures:
        prompts = prompts_of(fixture)
        yield Case(f"golden/{fixture.name}/reference kernels",
                   lambda m=fixture, p=prompts: check_golden(world, m, p, REFERENCE, REF_FLAGS))
        for mode, flags in MODES.items():
            yield Case(f"golden/{fixture.name}/{mode}",
                       lambda m=fixture, p=prompts, f=flags: check_golden(world, m, p, EXACT, ("--exact", *f)))


# ---- default mode

def log_softmax(x):
    x = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def divergence(got, want):
    """Mean over rows of KL(want || got)."""
    p, q = log_softmax(want), log_softmax(got)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def check_default(world, model, prompts, flags=(), limit=KL_DEFAULT):
    worst, kl, sure_tokens = 0.0, [], 0
    for prompt in prompts:
        logits = world.engine.logits(model, prompt.fed, *flags)
        rows = golden_rows(prompt, logits)
        worst = max(worst, relative(rows, prompt.logits))
        kl.append(divergence(rows, prompt.logits))
        unsure = np.nonzero(prompt.margin < SURE)[0]
        n = unsure[0] if len(unsure) else len(prompt.greedy)
        chosen = logits[len(prompt.ids) - 1:].argmax(axis=-1)[:n]
        if (chosen != prompt.greedy[:n]).any():
            raise Mismatch(f"{prompt.name}: other greedy tokens before the margin falls below {SURE}")
        sure_tokens += n
    if not max(kl) <= limit:
        raise Mismatch(f"KL divergence {max(kl):.1e} per token is above {limit:.0e}")
    return f"error {worst:.1e}, KL {max(kl):.1e} per token, {sure_tokens} greedy tokens equal"


def default_cases(world):
    for model in world.models + world.fixtures:
        prompts = prompts_of(model, SHORT if world.quick and model in world.models else None)
        yield Case(f"default/{model.name}", lambda m=model, p=prompts: check_default(world, m, p))


# ---- moxie run, threads

def check_run(world, model, prompts):
    texts, tokens = json.loads((model / "golden.json").read_text()), 0
    for prompt in prompts:
        text = texts[int(prompt.name[1:])]["prompt"]
        reply = world.engine.generate(model, text, len(prompt.greedy), "--exact")
        if reply["prompt_tokens"] != len(prompt.ids):
            raise Mismatch(f"{prompt.name}: the prompt became {reply['prompt_tokens']} tokens, not {len(prompt.ids)}")
        if reply["tokens"] != prompt.greedy.tolist():
            raise Mismatch(f"{prompt.name}: generated {reply['tokens']}, not {prompt.greedy.tolist()}")
        tokens += len(prompt.greedy)
    return f"{tokens} tokens of {len(prompts)} prompts equal"


def run_cases(world):
    for model in world.models:
        prompts = prompts_of(model, SHORT if world.quick else None)
        yield Case(f"run/{model.name}", lambda m=model, p=prompts: check_run(world, m, p))


def check_threads(world, model, ids):
    for flags in ((), ("--exact",), ("--exact", "--chunk", 7)):
        one, *others = (world.engine.logits(model, ids, *flags, threads=n) for n in (1, 2, 3))
        for n, other in zip((2, 3), others):
            if one.tobytes() != other.tobytes():
                raise Mismatch(f"{n} threads and flags {flags} change the logits by {relative(other, one):.1e}")
    return "1, 2 and 3 threads: the same bytes"


def thread_cases(world):
    for model in world.models:
        prompt = prompts_of(model, SHORT)[0]
        yield Case(f"threads/{model.name}", lambda m=model, p=prompt: check_threads(world, m, p.fed))


def has_experts(model):
    return "num_experts_per_tok" in (model / "config.json").read_text()


def check_streamed(world, model, ids):
    """Experts that are read as they are needed give the bytes that mapped ones give."""
    for flags in ((), ("--exact", "--step")):
        mapped = world.engine.logits(model, ids, *flags)
        for slots in (1, 6):
            streamed = world.engine.logits(model, ids, *flags, "--experts", "stream", "--expert-slots", slots, "--readers", 8,
                                           threads=2)
            if mapped.tobytes() != streamed.tobytes():
                raise Mismatch(f"{slots} slots and flags {flags} change the logits by {relative(streamed, mapped):.1e}")
    return "1 and 6 slots: the same bytes"


def stream_cases(world):
    for model in filter(has_experts, world.models + world.fixtures):
        prompt = prompts_of(model)[0]
        yield Case(f"stream/{model.name}", lambda m=model, p=prompt: check_streamed(world, m, p.ids))


# ======== pairs ============================================================================================

COMBINATIONS = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MIXED = {r"mlp\.gate$|shared_expert_gate$": (8, 64), r"v_proj|down_proj|kv_a_proj|in_proj_z": (6, 32),
         r"o_proj|out_proj|q_b_proj|in_proj_b": False, r"embed_tokens": (8, 128), r"lm_head": (5, 32),
         r"k_proj|q_a_proj|in_proj_qkv|embed_q": (3, 32)}


@dataclass
class Pair:
    fixture: Path
    label: str
    recipe: Recipe
    fused: bool = False
    multimodal: bool = False
    shards: int = 1
    odd: str | None = None


def pair_list(world):
    """Every combination of bits and group on two families; every family plain, mixed, and with f16 and f32 scales.
    What belongs to the layout and not to the numbers takes turns."""
    plan = []
    n = len(world.fixtures)
    for i, (bits, group) in enumerate(COMBINATIONS):
        for at in (i % n, (i + 3) % n):                         # 3 apart: never two fixtures of one family
            plan.append((world.fixtures[at], f"{bits}-bit/{group}", Recipe(bits, group)))
    for i, fixture in enumerate(world.fixtures):
        bits = (3, 5, 6, 8, 2, 4, 5)[i % 7]
        plan.append((fixture, "4-bit/64 plain", Recipe(4, 64)))
        plan.append((fixture, "mixed", Recipe(2, 64, overrides=MIXED)))
        plan.append((fixture, f"{bits}-bit/32 f16 scales", Recipe(bits, 32, "F16")))
        plan.append((fixture, f"{bits}-bit/64 f32 scales", Recipe(bits, 64, "F32")))
    if world.quick:
        plan = [p for p in plan if p[1] in ("4-bit/64 plain", "mixed")]
    turn = {}
    for fixture, label, recipe in plan:
        t = turn[fixture] = turn.get(fixture, -1) + 1
        kind = fixture.name
        pair = Pair(fixture, label, recipe, shards=(1, 3)[t // 2 % 2], odd=(None, None, "header", "pad")[t % 4])
        recipe.junk = t % 2 == 1
        recipe.split_kv = kind.startswith("deepseek") and t % 2 == 0
        pair.fused = "moe" in kind and t % 2 == 1 or kind == "qwen3_next" and t % 2 == 0
        pair.multimodal = kind.startswith("qwen3_5") and t % 2 == 1
        traits = [w for w, on in (("split kv", recipe.split_kv), ("junk", recipe.junk), ("fused", pair.fused),
                                  ("multimodal", pair.multimodal), (f"{pair.shards} files", pair.shards > 1),
                                  (f"odd {pair.odd}", pair.odd)) if on]
        pair.label = ", ".join([label, *traits])
        yield pair


def write_pair(world, name, pair):
    """-> folders of the MLX and of the Hugging Face checkpoint"""
    config, tensors = load(pair.fixture)
    config, tensors = layouts.to_mlx(config, tensors, pair.recipe)
    folder = world.folder(name)
    mlx = write_checkpoint(folder / "mlx", config, tensors, pair.shards, pair.odd, "shuffled")
    config, tensors = layouts.to_hf(config, tensors, pair.fused, pair.multimodal, pair.recipe.junk)
    return mlx, write_checkpoint(folder / "hf", config, tensors, pair.shards)


def check_pair(world, name, pair):
    ids = prompts_of(pair.fixture)[0].ids
    folders = write_pair(world, name, pair)
    want, other = (world.engine.logits(m, ids, *REF_FLAGS) for m in folders)
    error = relative(other, want)
    expect(error, SAME, "MLX against Hugging Face on the reference kernels")
    exact = 0.0
    for model in folders:
        for flags in (("--exact",), ("--exact", "--step")):
            exact = max(exact, relative(world.engine.logits(model, ids, *flags), want))
    expect(exact, EXACT, "--exact against the reference kernels")
    for model in folders:
        check_inspection(world, model)
    shutil.rmtree(world.folder(name))
    return f"error {error:.1e}, --exact {exact:.1e}"


def pair_cases(world):
    for pair in pair_list(world):
        name = f"pair/{pair.fixture.name}/{pair.label}"
        yield Case(name, lambda n=name, p=pair: check_pair(world, n, p))
    for model in world.models:
        name = f"pair/{model.name}/dequantized"
        yield Case(name, lambda n=name, m=model: check_dequantized(world, n, m))


def check_dequantized(world, name, model):
    """A trained MLX model, rewritten as float32 in Hugging Face layout, meets the same goldens."""
    config, tensors = load(model)
    folder = write_checkpoint(world.folder(name), *layouts.to_hf(config, tensors))
    detail = check_golden(world, folder, prompts_of(model, SHORT), EXACT, ("--exact",))
    shutil.rmtree(folder)
    return detail


# ======== against reference.py =============================================================================

def check_against_reference(world, name, config, tensors, ids, shards=1):
    """-> the reference's logits, a detail"""
    folder = write_checkpoint(world.folder(name), config, tensors, shards)
    want, _ = Model(folder).forward(ids)
    worst = 0.0
    for flags in (REF_FLAGS, ("--exact",), ("--exact", "--step")):
        error = relative(world.engine.logits(folder, ids, *flags), want)
        expect(error, REFERENCE if flags == REF_FLAGS else EXACT, " ".join(flags))
        worst = max(worst, error)
    check_inspection(world, folder)
    if has_experts(folder):
        check_streamed(world, folder, ids)
    shutil.rmtree(folder)
    return want, f"error {worst:.1e}"


FP8 = [("deepseek_v3", (128, 128), "F32"), ("deepseek_v3", (48, 80), "F32"), ("deepseek_v3", (48, 80), "BF16"),
       ("deepseek_v3", (128, 128), "F8_E8M0"), ("deepseek_v3_noqlora", (48, 80), "F8_E8M0"),
       ("deepseek_v3", (48, 80), "U8"), ("qwen3_moe", (128, 128), "BF16"), ("qwen3_5_moe", (40, 48), "BF16")]


def check_fp8(world, name, fixture, block, scale_type):
    config, tensors = layouts.to_fp8(*load(fixture), block, scale_type)
    return check_against_reference(world, name, config, tensors, prompts_of(fixture)[0].ids, shards=2)[1]


def check_variant(world, name, fixture, change):
    config, tensors = load(fixture)
    config, tensors = change(config, dict(tensors))
    prompt = prompts_of(fixture)[0]
    want, detail = check_against_reference(world, name, config, tensors, prompt.ids)
    moved = relative(want, prompt.logits)
    if (moved <= EXACT) != (change in variants.SAME_NUMBERS):       # else the case would test nothing
        raise Mismatch(f"the setting itself changes the logits by {moved:.1e}")
    return f"{detail}, effect {moved:.0e}"


def reference_cases(world):
    for kind, block, scale_type in FP8[:2] if world.quick else FP8:
        name = f"fp8/{kind}/{block[0]}x{block[1]} {scale_type}"
        yield Case(name, lambda n=name, k=kind, b=block, s=scale_type: check_fp8(world, n, world.fixture(k), b, s))
    for kind, change in variants.VARIANTS[::4] if world.quick else variants.VARIANTS:
        name = f"variant/{kind}/{change.__name__.replace('_', ' ')}"
        yield Case(name, lambda n=name, k=kind, c=change: check_variant(world, n, world.fixture(k), c))


# ======== planted mistakes =================================================================================

def must_differ(error, tolerance):
    if not error > tolerance:
        raise Mismatch(f"the mistake changed the logits by {error:.1e} only, which {tolerance:.0e} would let pass")
    return f"seen: error {error:.1e}, tolerance {tolerance:.0e}"


def check_planted(world, name, source, change, flags, tolerance):
    config, tensors = load(source)
    folder = write_checkpoint(world.folder(name), *change(config, dict(tensors)))
    errors = [relative(golden_rows(p, world.engine.logits(folder, p.fed, *flags)), p.logits)
              for p in prompts_of(source, SHORT + 10)]
    shutil.rmtree(folder)
    return must_differ(max(errors), tolerance)


def check_planted_greedy(world, name):
    """The rows of the head of two tokens exchanged: the first answer's token must change."""
    source = world.models[0]
    prompt = prompts_of(source, SHORT)[0]
    config, tensors = load(source)
    tensors = variants.exchange_rows(dict(tensors), "lm_head.", prompt.greedy[0], prompt.greedy[1])
    folder = write_checkpoint(world.folder(name), config, tensors)
    try:
        check_greedy(prompt, world.engine.logits(folder, prompt.fed, "--exact"), EXACT)
    except Mismatch as seen:
        return f"seen: {seen}"
    finally:
        shutil.rmtree(folder)
    raise Mismatch("exchanged rows of the head went unnoticed")


def check_planted_pair(world, name):
    """One code of one weight off by one, on the MLX side only."""
    pair = Pair(world.fixture("qwen3_moe"), "", Recipe(4, 64))
    mlx, hf = write_pair(world, name, pair)
    config, tensors = load(mlx)
    wrong = write_checkpoint(world.folder(name) / "wrong", config, variants.one_code_off(tensors))
    ids = prompts_of(pair.fixture)[0].ids
    want, got = (world.engine.logits(m, ids, *REF_FLAGS) for m in (hf, wrong))
    shutil.rmtree(world.folder(name))
    return must_differ(relative(got, want), SAME)


def check_planted_fp8(world, name):
    """One block scale off by 0.1 %."""
    fixture = world.fixture("deepseek_v3")
    config, tensors = layouts.to_fp8(*load(fixture), (48, 80), "F32")
    right = write_checkpoint(world.folder(name) / "right", config, tensors)
    wrong = write_checkpoint(world.folder(name) / "wrong", config, variants.one_block_off(tensors))
    ids = prompts_of(fixture)[0].ids
    want, got = Model(right).forward(ids)[0], world.engine.logits(wrong, ids, "--exact")
    shutil.rmtree(world.folder(name))
    return must_differ(relative(got, want), EXACT)


def planted_cases(world):
    sources = {p.name: p for p in world.models + world.fixtures}
    for mistakes, flags, tolerance in ((variants.MISTAKES, ("--exact",), EXACT),
                                       (variants.SMALL_MISTAKES, REF_FLAGS, REFERENCE)):
        for kind, change in mistakes:
            name = f"planted/{kind}/{change.__name__.replace('_', ' ')}"
            yield Case(name, lambda n=name, s=sources[kind], c=change, f=flags, t=tolerance:
                       check_planted(world, n, s, c, f, t))
    for name, check in (("planted/greedy/exchanged head rows", check_planted_greedy),
                        ("planted/pair/one code off by one", check_planted_pair),
                        ("planted/fp8/one block scale off", check_planted_fp8)):
        yield Case(name, lambda n=name, c=check: c(world, n))


# ======== inspect ==========================================================================================

def check_inspection(world, model):
    config = json.loads((model / "config.json").read_text())
    wrong = inspection.differences(world.engine.inspect(model), inspection.expected(model, config))
    if wrong:
        raise Mismatch("inspect: " + "; ".join(wrong))
    return "as counted"


def inspect_cases(world):
    """Every pair, fp8 and variant case inspects its checkpoints too."""
    for model in world.models + world.fixtures:
        yield Case(f"inspect/{model.name}", lambda m=model: check_inspection(world, m))


# ======== odd offsets ======================================================================================

def check_odd(world, name, model, odd):
    """All prompts in all modes from tensors that all begin at odd offsets: what the sanitizer build runs."""
    config, tensors = load(model)
    shards = len(list(model.glob("model*.safetensors")))
    folder = write_checkpoint(world.folder(name), config, tensors, shards, odd, "shuffled")
    even = even_offsets(folder)
    if even:
        raise Mismatch(f"the copy has tensors at even offsets: {even[:3]}")
    every = prompts_of(model)
    details = [f"{mode} " + check_golden(world, folder, every, EXACT, ("--exact", *flags)) for mode, flags in MODES.items()]
    shutil.rmtree(folder)
    return f"{len(tensors)} tensors, {shards} files, {odd}; " + "; ".join(details)


def odd_cases(world):
    for i, model in enumerate(world.models + world.fixtures):
        name, odd = f"odd/{model.name}", ("header", "pad")[i % 2]
        yield Case(name, lambda n=name, m=model, o=odd: check_odd(world, n, m, o))


# ======== devices ==========================================================================================

def check_spread(world, model, device):
    """Layers on several devices give the bytes of one; the same device may be named several times."""
    n_layers = json.loads((model / "config.json").read_text())
    n_layers = n_layers.get("text_config", n_layers)["num_hidden_layers"]
    prompt, counts = prompts_of(model)[0], [n for n in (2, 3) if n <= n_layers]
    for mode, ids in (("prefill", prompt.ids), ("step", prompt.ids[:24])):
        flags = ("--exact", *MODES[mode])
        one = world.engine.logits(model, ids, "--device", device, *flags)
        for n in counts:
            several = f"{device}:{','.join('0' * n)}"
            if world.engine.logits(model, ids, "--device", several, *flags).tobytes() != one.tobytes():
                raise Mismatch(f"{several} gives other bytes than {device}: {mode}")
    return f"the same bytes on {' and '.join(map(str, counts))} devices"


def some_vram(world, model, *flags, times=1.0):
    """So many times the smallest --vram, with which experts come and go; and tokens of a batch then."""
    vram = f"{int(world.engine.plan(model, *flags, '--vram', '1T')['device']['least_budget'] * times / 1024) + 1}K"
    plan = world.engine.plan(model, *flags, "--vram", vram)
    if plan["device"]["n_slots"] == 0:
        raise Mismatch(f"with --vram {vram} all experts are on the device")
    return vram, plan["n_batch"]


def check_come(world, model, device):
    """Experts that come and go on several devices give the bytes of one device that has all, with batches of as many tokens.  Memory of a GPU
    is given in pieces so large that each of several has room for all experts of its layers: there it is one."""
    ids = prompts_of(model, SHORT)[0].ids
    counts = (2, 3) if device == "emu" else (1,)
    for n in counts:
        flags = ("--device", f"{device}:{','.join('0' * n)}", "--ram", "1G", "-c", 128)
        vram, n_batch = some_vram(world, model, *flags, times=1.3 if device == "emu" else 1.0)
        for some, mode in ((ids, ("--chunk", n_batch)), (ids[:6], ("--step",))):
            one = world.engine.logits(model, some, "--device", device, "-c", 128, *mode)
            if world.engine.logits(model, some, *flags, "--vram", vram, *mode).tobytes() != one.tobytes():
                raise Mismatch(f"{n} devices with --vram {vram} give other bytes than one with all experts: {' '.join(map(str, mode))}")
    return f"the same bytes on {' and '.join(map(str, counts))} devices"


def check_cold(world, model, prompts, device):
    """Experts that have no room are computed by the processor, token by token, as exactly as by the device."""
    flags = ("--device", device, "--ram", "1G", "-c", 128)
    flags += ("--vram", some_vram(world, model, *flags)[0], "--cpu-experts")
    if not world.engine.plan(model, *flags)["device"]["cpu_experts"]:
        raise Mismatch("--cpu-experts is not in the plan")
    return check_default(world, model, prompts, (*flags, "--step"), KL_GPU)


def device_cases(world, device):
    flags = ("--device", device)
    for model in world.fixtures:
        if device != "metal":  # of which a machine has one
            yield Case(f"{device}/{model.name}/spread", lambda m=model: check_spread(world, m, device))
    for fixture in world.fixtures:
        prompts = prompts_of(fixture)
        for mode in ("prefill", "step", "chunk 7"):
            yield Case(f"{device}/{fixture.name}/{mode}",
                       lambda m=fixture, p=prompts, f=MODES[mode]: check_golden(world, m, p, EXACT, ("--exact", *flags, *f)))
        yield Case(f"{device}/{fixture.name}/default",
                   lambda m=fixture, p=prompts: check_default(world, m, p, flags, KL_GPU))
        if fixture.name in LARGER and device == "emu":  # a GPU's budget is rounded to more than their experts have
            yield Case(f"{device}/{fixture.name}/cold",
                       lambda m=fixture, p=prompts: check_cold(world, m, p, device))
    for model in world.models:
        prompts = prompts_of(model, SHORT)
        yield Case(f"{device}/{model.name}/prefill",
                   lambda m=model, p=prompts: check_golden(world, m, p, EXACT, ("--exact", *flags)))
        # rows that are long enough for a GPU's tiles, which the fixtures' are not
        yield Case(f"{device}/{model.name}/default",
                   lambda m=model, p=prompts: check_default(world, m, p, flags, KL_GPU))
        if model.name in LARGER and device != "metal":  # whose memory is the host's
            yield Case(f"{device}/{model.name}/come", lambda m=model: check_come(world, m, device))
            yield Case(f"{device}/{model.name}/cold",
                       lambda m=model, p=prompts[:1]: check_cold(world, m, p, device))
    for kind, change in variants.MISTAKES:
        if kind in FIXTURES:
            name = f"{device}/planted/{kind}/{change.__name__.replace('_', ' ')}"
            yield Case(name, lambda n=name, s=world.fixture(kind), c=change:
                       check_planted(world, n, s, c, ("--exact", *flags), EXACT))


# ======== all ==============================================================================================

def check_tools():
    wrong = wrong_vectors()
    if wrong:
        raise Mismatch(f"the affine quantizer of this suite is wrong for {wrong} bits")
    return "affine quantizer: known answers for 2, 3, 4, 5, 6 and 8 bits"


def all_cases(world):
    yield Case("tools/quantizer", check_tools)
    for group in (golden_cases, default_cases, run_cases, thread_cases, stream_cases, pair_cases, reference_cases, planted_cases,
                  inspect_cases):
        yield from group(world)
