#!/usr/bin/env python3
"""A model of real size whose experts are read from disk as they are needed: the same bytes as mapped.

    streamed.py --moxie build/moxie [--name qwen3.5-35b-a3b:layers=4]

Makes a synthetic checkpoint in the folder for temporary files, some gigabytes, and removes it. One line per case,
then "N passed, N failed, N skipped"; without room on the disk everything is skipped."""
import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED_BYTES = 8 << 30
PROMPT, STEPS = 300, 32
MODES = {"prefill": (PROMPT, ()), "steps": (STEPS, ("--step",))}


def digest(program, model, tokens, flags):
    """Of the logits, which are too many to keep."""
    words = [program, "logits", "-m", model, "--tokens", tokens, "--out", "-", "-q", *flags]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE) as child:
        found = hashlib.sha256()
        while block := child.stdout.read(1 << 20):
            found.update(block)
    if child.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit {child.returncode}")
    return found.hexdigest()


def settings(n_experts, active):
    for slots in (n_experts, n_experts // 2, n_experts // 10, active, 1):
        yield slots, 8
    yield n_experts // 10, 1
    yield n_experts // 10, 16


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moxie", type=Path, default=ROOT / "build/moxie")
    parser.add_argument("--name", default="qwen3.5-35b-a3b:layers=4")
    args = parser.parse_args()
    count = {True: 0, False: 0}
    if shutil.disk_usage(tempfile.gettempdir()).free < NEEDED_BYTES:
        print("0 passed, 0 failed, 1 skipped")
        return 0
    with tempfile.TemporaryDirectory(prefix="moxie-stream-") as scratch:
        model = Path(scratch) / "model"
        subprocess.run([str(args.moxie), "synth", args.name, str(model), "-q"], check=True)
        page = json.loads(subprocess.run([str(args.moxie), "inspect", "-m", str(model), "--json", "-q"], check=True,
                                         capture_output=True).stdout)
        n_experts = page["n_layers_moe"] * page["n_experts"]
        chance = random.Random(1)
        for mode, (n, flags) in MODES.items():
            tokens = Path(scratch) / mode
            tokens.write_text(" ".join(str(chance.randrange(page["n_vocab"])) for _ in range(n)))
            want = digest(args.moxie, model, tokens, flags)
            for slots, readers in settings(n_experts, page["n_experts_active"]):
                same = want == digest(args.moxie, model, tokens,
                                      (*flags, "--experts", "stream", "--expert-slots", slots, "--readers", readers))
                count[same] += 1
                print(f"{'ok' if same else 'FAIL':<4} {mode} of {n}: {slots} of {n_experts} slots, {readers} readers", flush=True)
    print(f"{count[True]} passed, {count[False]} failed, 0 skipped")
    return 1 if count[False] else 0


sys.exit(main())
