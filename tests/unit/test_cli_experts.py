"""Streamed experts from outside: traces, their replay, and what is kept between runs.

usage: test_cli_experts.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import json
import os
import re
import struct
import sys
import unittest
from pathlib import Path

from cli_kit import DEMO, Case, full_after, moxie


class Replay(Case):
    """Traces, and `moxie replay` of them."""

    def record(self, *args):
        trace = self.path("trace.txt")
        self.good(moxie("bench", "-m", DEMO, "-q", "-t", "1", "-r", "1", "-p", "20", "-n", "8", "-d", "0", "--trace", trace, *args))
        return trace

    def replay(self, *args):
        return json.loads(self.good(moxie("replay", "--json", *args)))

    def test_a_run_is_reproduced(self):
        for policy in ("lru", "lfu", "2q"):
            ahead = self.replay(self.record("--expert-slots", "30", "--expert-policy", policy))
            self.assertTrue(ahead["recorded"]["reproduced"])
            self.assertGreater(ahead["ahead"], 0)
            told = self.replay(self.record("--expert-slots", "30", "--expert-policy", policy, "--prefetch", "off"))
            self.assertEqual(told["recorded"]["policy"], policy)
            self.assertTrue(told["recorded"]["reproduced"])
            self.assertEqual((told["layers"], told["experts"], told["active"], told["experts_in_all"], told["tokens"]),
                             (8, 16, 4, 128, 56))
            self.assertEqual([(r["slots"], r["policy"]) for r in told["rows"]],
                             [(n, p) for n in (13, 30, 32, 64, 96) for p in ("lfu", "lru", "2q", "belady")])
            for r in told["rows"]:
                self.assertEqual(r["hits"] + r["misses"], told["requests"])
                self.assertAlmostEqual(r["hit_percent"], 100 * r["hits"] / told["requests"], places=5)
                self.assertAlmostEqual(r["bytes_per_token"], (r["misses"] + r["ahead"]) * told["slot_bytes"] / 56, delta=1)
            row = [r for r in told["rows"] if (r["slots"], r["policy"]) == (30, policy)][0]
            self.assertEqual((row["hits"], row["misses"]), (told["recorded"]["hits"], told["recorded"]["misses"]))

    def test_what_does_not_come_out(self):
        trace = self.record("--expert-slots", "30")
        with open(trace, encoding="ascii") as f:
            lines = f.read().splitlines(keepends=True)
        hits, misses = map(int, re.search(r"hits=(\d+) misses=(\d+)", lines[-1]).groups())
        lines[-1] = lines[-1].replace(f"hits={hits} misses={misses}", f"hits={hits + 1} misses={misses - 1}")
        other = self.path("other.txt", "".join(lines).encode())
        done = moxie("replay", other)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"NOT reproduced", done.stdout)
        self.assertIn(b"damaged", done.stderr)
        self.says(moxie("replay", self.path("cut.txt", "".join(lines[:-1]).encode())), 3, "cut.txt", "without an end")
        self.says(moxie("replay", self.path("none.txt")), 3, "none.txt")
        self.says(moxie("replay"), 2, "moxie replay FILE")
        self.says(moxie("replay", trace, "--policy", "fifo"), 2, "fifo", "belady")
        self.says(moxie("replay", trace, "--slots", "0"), 2, "--slots")

    def test_a_full_disk(self):
        r = moxie("run", "-m", DEMO, "-q", "--raw", "-p", "x", "-n", "1", "--trace", "/dev/full")
        self.assertEqual((r.returncode, r.stderr.count(b"\n")), (5, 1), r.stderr)
        self.assertIn(b"/dev/full: cannot write: No space left", r.stderr)

    def test_rows_that_were_asked_for(self):
        trace = self.record()  # not streamed
        told = self.replay(trace, "--policy", "lfu", "--slots", "9,1k,5,9")
        self.assertIsNone(told["recorded"])
        self.assertEqual([(r["slots"], r["policy"]) for r in told["rows"]], [(5, "lfu"), (9, "lfu"), (128, "lfu")])
        text = self.good(moxie("replay", trace)).decode()
        self.assertIn("recorded  a run that streamed no experts", text)
        self.assertRegex(text, r"\nbelady +96 +75\.0 ")

    def test_every_command_can_record(self):
        env = {"XDG_CACHE_HOME": self.path("cache")}
        for slots, policy in (("5", "lru"), ("20", "2q"), ("20", "lfu"), ("90", "lru")):
            how = ["--expert-slots", slots, "--expert-policy", policy, "--prefetch", "off"]
            for name, args in (("run", ["-p", "Hi", "-n", "5", "--temp", "0"]), ("eval", ["-p", "one two three four"]),
                               ("logits", ["--tokens", self.path("ids", b"5 6 7 8"), "--out", self.path("out"), "--step"]),
                               ("chat", ["-n", "5"])):
                trace = self.path(f"{name}.txt")
                self.good(moxie(name, "-m", DEMO, "-q", *how, "--trace", trace, *args, stdin=b"Hello\n", env=env))
                told = self.replay(trace)
                self.assertEqual((told["recorded"]["policy"], told["recorded"]["slots"]), (policy, int(slots)))
                self.assertTrue(told["recorded"]["reproduced"], name)
                # run and chat begin with what the runs before them used
                if name == "eval":
                    self.assertEqual(told["ahead"], 0)
                elif name == "chat":
                    self.assertGreater(told["ahead"], 0)

    def test_models_without_experts_have_no_traces(self):
        dense = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "models", "demo-qwen3")
        self.says(moxie("run", "-m", dense, "-p", "Hi", "--trace", self.path("t")), 2, "--trace", "no routed experts")
        self.assertFalse(os.path.exists(self.path("t")))

    def test_failed_runs_leave_no_trace(self):
        self.says(moxie("run", "-m", DEMO, "-p", "Hi", "--trace", self.path("t"), "--ram", "2M"), 4, "--ram")
        self.says(moxie("run", "-m", DEMO, "-p", "Hi", "-q", "--trace", os.path.join(self.path("none"), "t")), 5, "none")
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_full_disk_leaves_no_trace(self):
        for room in (0, 100):
            done = moxie("run", "-m", DEMO, "-p", "Hi", "-q", "-n", "5", "--trace", self.path("t"), preexec_fn=full_after(room))
            self.assertEqual(done.returncode, 5)
            self.assertRegex(done.stderr.decode(), rf"\Amoxie: {self.path('t')}: cannot write[^\n]+File too large[^\n]*\n\Z")
            self.assertEqual(os.listdir(self.dir), [])


class Heat(Case):
    """Experts that a run used are there when the next one begins."""

    RUN = ["run", "-m", DEMO, "--json", "--temp", "0", "-p", "What is the capital of France?",
           "--readers", "8"]  # which are not measured, so that nothing else is kept

    def run_once(self, *args):
        done = moxie(*self.RUN, "-q", *args, env={"XDG_CACHE_HOME": self.path("cache")})
        self.assertEqual(done.stderr, b"")
        told = json.loads(self.good(done))
        return told["tokens"], told["experts"]

    def test_models_have_their_own(self):
        other = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "models", "demo-qwen3-moe")
        self.run_once("--expert-slots", "40")
        done = moxie("run", "-m", other, "--json", "-n", "3", "--raw", "-p", "Hi", "--expert-slots", "40", "--readers", "8",
                     env={"XDG_CACHE_HOME": self.path("cache")})
        self.assertEqual(json.loads(self.good(done))["experts"]["warmed"], 0)
        self.assertNotIn(b"warning", done.stderr)
        self.assertEqual(len(self.files()), 2)

    def files(self):
        """What is kept about experts; beside it lies what was measured of the disk."""
        folder = os.path.join(self.path("cache"), "moxie")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [os.path.join(folder, name) for name in names if name != "disk.json"]

    def test_it_is_kept(self):
        tokens, first = self.run_once("--expert-slots", "64")
        self.assertEqual(first["warmed"], 0)
        self.assertEqual(len(self.files()), 1)
        again, second = self.run_once("--expert-slots", "64")
        self.assertEqual(again, tokens)
        self.assertTrue(0 < second["warmed_used"] <= second["warmed"] <= 64, second)
        self.assertNotEqual(second["hits"], first["hits"])
        with open(self.files()[0], "rb") as f:
            data = f.read()
        magic, _, n, _ = struct.unpack("<8sQqQ", data[:32])
        counts = struct.unpack(f"<{n}I", data[32:])
        self.assertEqual((magic, n), (b"moxheat1", 128))
        self.assertEqual(sum(counts), first["hits"] + first["misses"] + second["hits"] + second["misses"])

    def test_resident_runs_leave_nothing(self):
        self.good(moxie("run", "-m", DEMO, "-q", "-n", "2", "-p", "Hi", env={"XDG_CACHE_HOME": self.path("cache")}))
        self.assertEqual(self.files(), [])

    def test_damaged_and_foreign_files_are_ignored(self):
        tokens, _ = self.run_once("--expert-slots", "40")
        path = self.files()[0]
        with open(path, "rb") as f:
            good = f.read()
        flipped = bytearray(good)
        flipped[100] ^= 1
        foreign = bytearray(good)
        foreign[8] ^= 1
        for bad in (b"", good[:-1], good[:20], good + b"x", bytes(flipped), bytes(foreign), b"\xff" * len(good)):
            with open(path, "wb") as f:
                f.write(bad)
            done = moxie(*self.RUN, "--expert-slots", "40", env={"XDG_CACHE_HOME": self.path("cache")})
            told = json.loads(self.good(done))
            self.assertEqual((told["tokens"], told["experts"]["warmed"]), (tokens, 0))
            warnings = [line for line in done.stderr.decode().splitlines() if "warning" in line]
            self.assertEqual(len(warnings), 1)
            self.assertIn(path, warnings[0])
            self.assertGreater(self.run_once("--expert-slots", "40")[1]["warmed"], 0)  # it was replaced

    def test_a_full_disk_is_no_error(self):
        tokens, _ = self.run_once("--expert-slots", "40")
        kept = {path: Path(path).read_bytes() for path in self.files()}
        measured = self.RUN[:-2]  # the disk is, which cannot be kept either
        for room, folder, words in ((0, "new", measured), (40, "new", self.RUN), (0, "cache", self.RUN), (40, "cache", self.RUN)):
            done = moxie(*words, "-q", "--expert-slots", "40", env={"XDG_CACHE_HOME": self.path(folder)}, preexec_fn=full_after(room))
            self.assertEqual((json.loads(self.good(done))["tokens"], done.stderr), (tokens, b""))
            there = os.listdir(os.path.join(self.path(folder), "moxie"))
            self.assertEqual(there, [os.path.basename(path) for path in kept] if folder == "cache" else [])
        self.assertEqual({path: Path(path).read_bytes() for path in self.files()}, kept)

    def test_no_folder_is_no_error(self):
        for env in ({"XDG_CACHE_HOME": "", "HOME": ""}, {"XDG_CACHE_HOME": self.path("file", b"x")}, {"XDG_CACHE_HOME": "relative", "HOME": ""}):
            done = moxie("run", "-m", DEMO, "-q", "-n", "2", "-p", "Hi", "--expert-slots", "20", env=env)
            self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
