#!/usr/bin/env python3
"""The golden suite: what the program computes against stored reference logits and against itself.

    run.py --moxie build/moxie [--jobs 2] [--quick] [--only GLOB]
    run.py --moxie build-asan/moxie --odd
    run.py --device emu

One line per case, then "N passed, N failed, N skipped"; exit status 1 when one failed. Nothing is kept: what the
suite writes lies in a temporary folder. Skipped are the cases that --only leaves out.

Errors are max |difference| / max |golden|, per prompt. Kinds of cases:

    tools     the suite's own quantizer gives known answers
    golden    stored logits and greedy continuations; one prefill, chunks, token by token; reference kernels
    default   the default mode keeps the greedy tokens, and its KL divergence is small
    run       `moxie run` continues the prompts' texts with the stored tokens
    threads   the number of threads changes no byte
    stream    experts read from disk as they are needed change no byte; fp8 and variant cases check that, too
    pair      the same numbers in MLX and in Hugging Face layout give the same logits
    fp8       FP8 block checkpoints against reference.py
    variant   settings that no stored golden has, against reference.py
    planted   a small mistake in a checkpoint must show: these pass when the comparison would fail
    inspect   `moxie inspect` against counts taken from the tensors
    odd       (--odd only) golden, from copies whose every tensor lies at an odd offset
    DEVICE    (--device only) golden, default and planted on that device, with what an emulated one can compute; and
              the layers spread over several of them, which changes no byte, also where experts come and go there; and experts that the processor computes
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")     # the cases themselves run side by side

import argparse
import fnmatch
import multiprocessing
import resource
import signal
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

import cases

ROOT = Path(__file__).resolve().parents[2]
PLAN = []                                               # filled before the workers fork, so that they share it


def processor_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def execute(index):
    case, start = PLAN[index], processor_seconds()
    try:
        verdict, detail = "ok", case.run()
    except (cases.Mismatch, cases.EngineError) as reason:
        verdict, detail = "FAIL", str(reason)
    except Exception:                                   # a broken case must not pass for a missing one
        verdict, detail = "FAIL", traceback.format_exc().strip()
    return verdict, detail, processor_seconds() - start


def unpack_fixtures(scratch):
    with tarfile.open(ROOT / "tests/data/fixtures.tar.xz") as archive:
        archive.extractall(scratch / "fixtures")
    return sorted(p for p in (scratch / "fixtures").iterdir() if p.is_dir())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moxie", type=Path, default=ROOT / "build/moxie", help="the program (default: build/moxie)")
    parser.add_argument("--jobs", type=int, default=2, help="cases that run side by side (default: 2)")
    parser.add_argument("--quick", action="store_true", help="short prompts and one case of a kind")
    parser.add_argument("--odd", action="store_true", help="only checkpoints with odd offsets; meant for sanitizers")
    parser.add_argument("--device", help="only what computes on this device: emu, cuda")
    parser.add_argument("--only", default="*", metavar="GLOB", help="only cases whose name matches")
    args = parser.parse_args()
    if not args.moxie.is_file():
        parser.error(f"{args.moxie} is missing: build it, or name the program with --moxie")
    models = [ROOT / "models/demo"] + sorted((ROOT / "tests/data/models").glob("demo-*"))
    count, start, busy = {"ok": 0, "FAIL": 0}, time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="moxie-golden-") as scratch:
        world = cases.World(args.moxie.resolve(), Path(scratch), models, unpack_fixtures(Path(scratch)), args.quick)
        if args.odd:
            print(f"all prompts in one prefill; steps and chunks for fixtures and prompts below {cases.SHORT} tokens")
            if not world.engine.has_sanitizers():
                print("note: this program was built without sanitizers, so misaligned loads go unnoticed")
        if args.device:
            plan = list(cases.device_cases(world, args.device))
        else:
            plan = list(cases.odd_cases(world) if args.odd else cases.all_cases(world))
        PLAN.extend(c for c in plan if fnmatch.fnmatch(c.name, args.only))
        with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
            # An ordinary way out, which removes the folder.  Not for the workers: the pool ends them with this
            # signal, and a worker that then goes Python's way out can wait for ever on a lock of the pool.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            for case, (verdict, detail, seconds) in zip(PLAN, pool.imap(execute, range(len(PLAN)))):
                count[verdict] += 1
                busy += seconds
                print(f"{verdict:<4} {case.name:<48} {seconds:5.1f}s  {detail}", flush=True)
    print(f"{time.monotonic() - start:.0f} s, {busy:.0f} s of processor time (cases show theirs)")
    print(f"{count['ok']} passed, {count['FAIL']} failed, {len(plan) - len(PLAN)} skipped")
    return 1 if count["FAIL"] or not count["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
