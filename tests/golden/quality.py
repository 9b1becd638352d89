#!/usr/bin/env python3
"""How far the faster precisions are from --exact, over a fixed text.

    quality.py --moxie build/moxie

The text (tests/data/eval.txt) is 60 chats of the kind that the four trained models know. For each model the mean
KL divergence per token must stay below 1e-5 by default and below 1e-3 with --fast, with the kernels that the
program chooses on this machine; and the limit of the default mode must be one that 8-bit activations break,
or it would prove nothing. The program's own report says which kernels ran."""
import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["models/demo", "tests/data/models/demo-qwen3", "tests/data/models/demo-qwen3-moe",
          "tests/data/models/demo-deepseek-v3"]
MIN_TOKENS = 2000
LIMITS = {"default": 1e-5, "fast": 1e-3}


def measure(moxie, model, precision):
    words = [moxie, "eval", "-m", model, "-f", "tests/data/eval.txt", "--special", "-c", "512", "--against", "exact",
             "--json", "--quiet"] + (["--fast"] if precision == "fast" else [])
    return json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moxie", required=True)
    moxie = str(Path(parser.parse_args().moxie).resolve())
    counts = {True: 0, False: 0}

    def say(ok, text):
        counts[ok] += 1
        print(("ok   " if ok else "FAIL ") + text, flush=True)

    for model in MODELS:
        for precision, limit in LIMITS.items():
            report = measure(moxie, model, precision)
            kl, kernels = report["against"]["kl_mean"], report["kernels"]
            say(report["predicted"] >= MIN_TOKENS and kernels["precision"] == precision and 0 < kl < limit,
                f"{model} {precision}: mean KL {kl:.1e}, most {report['against']['kl_max']:.1e} over "
                f"{report['predicted']} tokens ({kernels['isa']}, {kernels['kv_type']} cache), limit {limit:.0e}")
            if precision == "fast":
                say(kl > LIMITS["default"], f"{model}: 8-bit activations would break the limit of the default")
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
