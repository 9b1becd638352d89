#!/usr/bin/env python3
"""promise.py -- a model that is larger than its memory budget keeps to it.

    promise.py [--moxie build/moxie] [--full] [--model DIR] [--trace FILE]

Makes a synthetic Qwen3-30B-A3B, 12 of its 48 layers or with --full all (17 GB), in the folder for
temporary files, and removes it; --model takes one that is there.  `moxie bench` runs it inside a
memory control group a little larger than --ram: a prompt of 2048 tokens, then 64 tokens one by one.
Every 10 ms VmRSS and VmLck are looked at, every second the page cache (fincore).  The trace keeps
the largest values of every second.  Then somebody else takes memory of the group while tokens are
generated: slots are given up, nobody is killed, and when the other has gone they come back.

One line per promise, then "N passed, N failed, N skipped"; without room on the disk all is skipped.
Where no control group can be made, the budget is still held against the samples."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MB, GB = 1 << 20, 1 << 30
SHAPES = {  # name, bytes on disk, --ram, limit of the group: the same parts of the model
    False: ("qwen3-30b-a3b:layers=12", 5 * GB, "1.75G", int(1.9 * GB)),
    True: ("qwen3-30b-a3b", 17 * GB, "6G", int(6.5 * GB)),
}
CACHED_MOST = 256 * MB
LONGEST_S = 600  # for what ends as soon as it is seen
PROMPT, TOKENS = 2048, 64


class Group:
    """A memory control group below our own, version 1 or 2; `at` is None where none can be made."""

    def __init__(self, limit):
        self.at = None
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        places = [("/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes") for _, names, path in lines if "memory" in names.split(",")]
        places += [("/sys/fs/cgroup" + path, "memory.max") for _, names, path in lines if names == ""]
        for folder, file in places:
            at = Path(folder) / f"moxie-test-{os.getpid()}"
            try:
                at.mkdir()
            except OSError:
                continue
            try:
                (at / file).write_text(str(limit))
                self.at = at
                return
            except OSError:  # the controller is not handed down to it
                at.rmdir()

    def add(self):
        """Of a child, before it becomes another program."""
        if self.at:
            (self.at / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for _ in range(50):
            try:
                if self.at:
                    self.at.rmdir()
                return
            except OSError:  # the last process is still on its way out
                time.sleep(0.1)


def status_bytes(pid):
    """VmRSS and VmLck, and the anonymous part; zeros when the process is gone."""
    found = {"VmRSS": 0, "VmLck": 0, "RssAnon": 0}
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in found:
                found[key] = int(rest.split()[0]) << 10
    except (OSError, IndexError):
        pass
    return found["VmRSS"], found["VmLck"], found["RssAnon"]


def cached_bytes(files):
    out = subprocess.run(["fincore", "-b", "-n", "-o", "RES", *files], capture_output=True, text=True, check=True).stdout
    return sum(map(int, out.split()))


def forget(files):
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Watch:
    """Looks at a process until it ends."""

    def __init__(self, child, files):
        self.child, self.files = child, files
        self.start = time.monotonic()
        self.rows = []  # [second, VmRSS, VmLck, RssAnon, page cache]: the largest of each second
        self.most = self.cached = self.looks = self.now = 0

    def look(self):
        rss, locked, anon = status_bytes(self.child.pid)
        second = int(time.monotonic() - self.start)
        self.looks += 1
        self.now = rss + locked
        self.most = max(self.most, self.now)
        if not self.rows or self.rows[-1][0] != second:
            cached = cached_bytes(self.files)
            self.cached = max(self.cached, cached)
            self.rows.append([second, 0, 0, 0, cached])
        row = self.rows[-1]
        row[1:4] = [max(a, b) for a, b in zip(row[1:4], (rss, locked, anon))]

    def until(self, done, seconds):
        end = time.monotonic() + seconds
        while self.child.poll() is None and not done() and time.monotonic() < end:
            self.look()
            time.sleep(0.01)


HOG = """
import sys, time
held = []
for _ in range(int(sys.argv[1])):
    held.append(bytearray(b"x") * (16 << 20))
    time.sleep(float(sys.argv[2]))
print("all", flush=True)
sys.stdin.read()
"""


class Promise:
    def __init__(self, args, model, ram, limit):
        self.args, self.model, self.ram = args, model, ram
        self.budget = int(float(ram[:-1]) * GB)
        self.limit = limit
        self.files = sorted(map(str, Path(model).glob("*.safetensors")))
        self.failed = self.passed = 0
        self.token_s = 0.0  # seconds per token, once they are known

    def check(self, good, sentence):
        self.passed += bool(good)
        self.failed += not good
        print(f"{'ok' if good else 'FAIL':<4} {sentence}", flush=True)

    def start(self, group, *words):
        words = [self.args.moxie, "bench", "-m", self.model, "--experts", "stream", "--ram", self.ram, "-o", "json", "-d", 0,
                 "-t", os.cpu_count(), *words]
        return subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=group.add)

    def budget_is_kept(self, group):
        forget(self.files)
        child = self.start(group, "-p", PROMPT, "-n", TOKENS, "-r", 1)
        watch = Watch(child, self.files)
        watch.until(lambda: False, 3600)
        out, err = child.communicate()
        self.check(child.returncode == 0, f"prompt of {PROMPT} and {TOKENS} tokens with --ram {self.ram}"
                   + (f" in a group of {self.limit / GB:.2f} GiB" if group.at else ", without a control group"))
        if child.returncode:
            print(err)
            return
        for row in json.loads(out)["rows"]:
            print(f"     {row['test']}: {row['tokens_per_s']:.2f} tokens/s, {row['expert_hit_percent']:.0f} % hits, "
                  f"{row['disk_bytes_per_token'] / 1e6:.0f} MB read per token")
            self.token_s = max(self.token_s, 1 / row["tokens_per_s"])
        self.check(watch.most <= self.budget, f"memory never above the budget: {watch.most / MB:.0f} of {self.budget / MB:.0f} MiB "
                   f"in {watch.looks} samples")
        self.check(watch.most > 0.9 * self.budget, "and most of it is used")
        self.check(watch.cached < CACHED_MOST, f"page cache of the model's files: {watch.cached / MB:.0f} MiB at most")
        if self.args.trace:
            with open(self.args.trace, "w") as f:
                f.write("second,vmrss_mib,vmlck_mib,rssanon_mib,page_cache_mib\n")
                for row in watch.rows:
                    f.write(",".join([str(row[0]), *(f"{n / MB:.0f}" for n in row[1:])]) + "\n")

    def pressure_is_felt(self, group):
        """Another process of the group takes more than the limit leaves, no faster than tokens come: slots are
        given up between them."""
        child = self.start(group, "-p", 0, "-n", 64, "-r", 1000)
        watch = Watch(child, self.files)
        watch.until(lambda: watch.now > 0.9 * self.budget, LONGEST_S)
        full = watch.now
        wanted = self.limit - full + self.budget // 4
        hog = subprocess.Popen([sys.executable, "-c", HOG, str(wanted // (16 * MB)), str(max(0.1, 2 * self.token_s))],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=group.add)
        os.set_blocking(hog.stdout.fileno(), False)
        watch.until(lambda: hog.poll() is not None or hog.stdout.read(1), LONGEST_S)
        less = watch.now
        self.check(child.poll() is None and hog.poll() is None, f"a neighbour that takes {wanted / MB:.0f} MiB: nobody is killed")
        self.check(less < full - self.budget // 8, f"slots are given up: {full / MB:.0f} MiB before, {less / MB:.0f} MiB now")
        if hog.poll() is None:
            hog.stdin.close()
        hog.wait()
        watch.until(lambda: watch.now > 0.95 * full, LONGEST_S)
        self.check(watch.now > 0.95 * full, f"and taken again: {watch.now / MB:.0f} MiB")
        child.terminate()
        child.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moxie", type=Path, default=ROOT / "build/moxie")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--trace", type=Path)
    args = parser.parse_args()
    name, disk, ram, limit = SHAPES[args.full]
    if not args.model and shutil.disk_usage(tempfile.gettempdir()).free < disk + 2 * GB or not shutil.which("fincore"):
        print("0 passed, 0 failed, 1 skipped")
        return 0
    with tempfile.TemporaryDirectory(prefix="moxie-promise-") as scratch:
        model = args.model or Path(scratch) / "model"
        if not args.model:
            subprocess.run([str(args.moxie), "synth", name, str(model), "-q"], check=True)
        group = Group(limit)
        promise = Promise(args, model, ram, limit)
        try:
            promise.budget_is_kept(group)
            if group.at:
                promise.pressure_is_felt(group)
        finally:
            group.remove()
    print(f"{promise.passed} passed, {promise.failed} failed, {0 if group.at else 1} skipped")
    return 1 if promise.failed else 0


if __name__ == "__main__":
    sys.exit(main())
