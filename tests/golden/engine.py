"""Runs the program under test. Every call checks its exit code and that nothing came out on standard error, where
sanitizers complain; -q keeps everything else away from there."""
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

TIMEOUT_S = 600


class EngineError(Exception):
    pass


class Engine:
    def __init__(self, program, scratch):
        self.program, self.scratch = str(program), Path(scratch)
        # what a user has set must not reach the program; UBSan reports must end it
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("MOXIE_")}
        self.environment["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"

    def call(self, *words, stdin=""):
        done = subprocess.run([self.program, *map(str, words)], input=stdin.encode(), capture_output=True,
                              env=self.environment, timeout=TIMEOUT_S)
        complaint = done.stderr.decode(errors="replace").strip()
        if done.returncode or complaint:
            raise EngineError(f"moxie {' '.join(map(str, words))}: exit {done.returncode}: {complaint[:2000]}")
        return done.stdout

    def logits(self, model, ids, *flags, threads=1):
        """-> float32 [tokens, vocabulary]"""
        with tempfile.NamedTemporaryFile("w", dir=self.scratch, suffix=".ids") as tokens:
            tokens.write(" ".join(map(str, ids)))
            tokens.flush()
            out = self.call("logits", "-m", model, "--tokens", tokens.name, "--out", "-", "-q", "-t", threads,
                            *flags)
        return np.frombuffer(out, "<f4").reshape(len(ids), -1)

    def generate(self, model, prompt, n, *flags):
        """The greedy continuation of a text, as the object of --json."""
        out = self.call("run", "-m", model, "-f", "-", "--raw", "--special", "--temp", 0, "--json", "-q", "-t", 1,
                        "-n", n, *flags, stdin=prompt)
        return json.loads(out)

    def plan(self, model, *flags):
        return json.loads(self.call("plan", "-m", model, "--json", "-q", *flags))

    def has_sanitizers(self):
        return b"undefined" in self.call("version")

    def inspect(self, model):
        return json.loads(self.call("inspect", "-m", model, "--json", "-q"))
