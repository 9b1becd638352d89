#!/usr/bin/env python3
"""A model of real size whose experts are read from disk as they are needed: the same bytes as mapped, packed or not,
around the page cache or through it.

    streamed.py --moxie build/moxie [--name qwen3.5-35b-a3b:layers=4]

Makes a synthetic checkpoint in the folder for temporary files, some gigabytes, packs it there and in memory
(/dev/shm, where files cannot be read around the page cache), and removes all of it. One line per case, then "N passed, N failed, N skipped"; without room on the disk everything is skipped."""
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
NEEDED_BYTES = 12 << 30
IN_MEMORY = Path("/dev/shm")
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


def settings(n_experts):
    """Slots and readers: all, half, a tenth and the least of the former, one and many of the latter."""
    return (n_experts, 16), (n_experts // 2, 1), (n_experts // 10, 1), (n_experts // 10, 16), (1, 16)


def has_room(folder, n_bytes):
    """In memory there must be as much again for everybody else."""
    if not folder.is_dir() or shutil.disk_usage(folder).free < 2 * n_bytes:
        return False
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(available.split()[1]) << 10 > 2 * n_bytes


class Comparison:
    def __init__(self, program, model, scratch):
        self.program, self.scratch = program, scratch
        self.count = {True: 0, False: 0}
        self.page = json.loads(subprocess.run([program, "inspect", "-m", model, "--json", "-q"], check=True,
                                              capture_output=True).stdout)
        chance = random.Random(1)
        self.modes = {}  # name: tokens, flags, digest
        for mode, (n, flags) in MODES.items():
            tokens = scratch / mode
            tokens.write_text(" ".join(str(chance.randrange(self.page["n_vocab"])) for _ in range(n)))
            self.modes[mode] = tokens, flags, digest(program, model, tokens, flags)

    def check(self, model, what):
        n_experts = self.page["n_layers_moe"] * self.page["n_experts"]
        for mode, (tokens, flags, want) in self.modes.items():
            cases = [("mapped", ())]
            for slots, readers in settings(n_experts):
                cases.append((f"{slots} of {n_experts} slots, {readers} readers",
                              ("--experts", "stream", "--expert-slots", slots, "--readers", readers)))
            for words, more in cases:
                same = want == digest(self.program, model, tokens, (*flags, *more))
                self.count[same] += 1
                print(f"{'ok' if same else 'FAIL':<4} {what}, {mode}: {words}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moxie", type=Path, default=ROOT / "build/moxie")
    parser.add_argument("--name", default="qwen3.5-35b-a3b:layers=4")
    args = parser.parse_args()
    if shutil.disk_usage(tempfile.gettempdir()).free < NEEDED_BYTES:
        print("0 passed, 0 failed, 1 skipped")
        return 0
    skipped = 0
    with tempfile.TemporaryDirectory(prefix="moxie-stream-") as name:
        scratch, program = Path(name), str(args.moxie)
        subprocess.run([program, "synth", args.name, scratch / "model", "-q"], check=True)
        comparison = Comparison(program, scratch / "model", scratch)
        comparison.check(scratch / "model", "as downloaded")
        subprocess.run([program, "pack", scratch / "model", scratch / "packed", "-q"], check=True)
        comparison.check(scratch / "packed", "packed")
        if has_room(IN_MEMORY, comparison.page["bytes_total"]):
            with tempfile.TemporaryDirectory(prefix="moxie-stream-", dir=IN_MEMORY) as memory:
                subprocess.run([program, "pack", scratch / "model", Path(memory) / "packed", "-q"], check=True)
                comparison.check(Path(memory) / "packed", "packed, through the page cache")
        else:
            print(f"skip nothing is read through the page cache: {IN_MEMORY} has no room")
            skipped = 1
    print(f"{comparison.count[True]} passed, {comparison.count[False]} failed, {skipped} skipped")
    return 1 if comparison.count[False] else 0


sys.exit(main())
