"""Memory budgets from outside: what a run takes, and what `moxie plan` says of it.

usage: test_cli_memory.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import json
import os
import re
import subprocess
import sys
import time
import unittest

from cli_kit import DEMO, Case, moxie, spawn


def peak_bytes(*args):
    """The most memory that a run has, as its parent sees it every 10 ms, and its exit code."""
    child = spawn(*args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0
    while child.poll() is None:
        try:
            with open("/proc/%d/statm" % child.pid) as f:
                most = max(most, int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE"))
        except (OSError, IndexError):  # it has just ended
            pass
        time.sleep(0.01)
    return most, child.returncode


class Memory(Case):
    TEXT = "Once there was a girl who liked to read. " * 60  # more than a context of 512
    PROGRAM_BYTES = 10 << 20  # of the plan: for all that cannot be counted
    SANITIZED = b"sanitizers none" not in moxie("version").stdout  # which take memory of their own

    def models(self):
        data = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "models")
        return [DEMO] + [os.path.join(data, name) for name in ("demo-qwen3-moe", "demo-deepseek-v3", "demo-qwen3")]

    def plan(self, *args):
        return json.loads(self.good(moxie("plan", "--json", "--disk", "1", *args)))

    def test_sizes(self):
        for bad in ("12", "G", "", "1.5.5G", "-1G", "1e3G", " 1G", "1G ", "12GB", "0x1G", "1K", "99999999T", "1111111111111G"):
            self.says(moxie("plan", "-m", DEMO, "--ram", bad), 2, "--ram", "from 1M to 8192T, such as 512M", "'%s'" % bad)
        for text, bytes_ in (("64M", 64 << 20), ("1.5G", 3 << 29), ("2g", 2 << 30), ("0.25T", 1 << 38), (".5G", 1 << 29),
                             ("70000K", 70000 << 10)):
            self.assertEqual(self.plan("-m", DEMO, "--ram", text)["budget"], bytes_)
        r = moxie("plan", "-m", DEMO, "--json", "--disk", "1", env={"MOXIE_RAM": "80M"})
        self.assertEqual(json.loads(self.good(r))["budget"], 80 << 20)
        self.says(moxie("run", "-p", "x", env={"MOXIE_RAM": "lots"}), 2, "MOXIE_RAM", "'lots'")

    def test_what_does_not_fit_is_refused_with_what_would(self):
        ids = self.path("ids", b"1 2 3")
        for args in (["run", "--raw", "-p", "x", "-n", "2", "--temp", "0"], ["eval", "-p", "one two three"],
                     ["logits", "--tokens", ids, "--out", self.path("out")], ["plan", "--disk", "1"],
                     ["eval", "-p", "one two three", "--against", "exact"],
                     ["run", "--raw", "-p", "x", "-n", "2", "--experts", "stream"]):
            r = moxie(*args, "-m", DEMO, "--ram", "3M", "-q")
            self.says(r, 4, "--ram 3M", "a context of 3 tokens" if args[0] == "logits" else "a context of 4096 tokens")
            least = re.search(rb"at least --ram (\S+)", r.stderr).group(1).decode()
            self.good(moxie(*args, "-m", DEMO, "--ram", least, "-q"))
            self.assertEqual(moxie(*args, "-m", DEMO, "--ram", "%dM" % (int(least[:-1]) - 1), "-q").returncode, 4)
        r = moxie("plan", "-m", DEMO, "--ram", "3M", "--json")
        self.assertEqual((r.returncode, json.loads(r.stdout)["fits"]), (4, False))
        self.assertGreater(json.loads(r.stdout)["least_budget"], 3 << 20)

    def test_memory_of_a_gpu(self):
        model = self.models()[1]
        args = ["-m", model, "--device", "emu", "-c", "64", "--ram", "1G"]
        r = moxie("plan", *args, "--vram", "1M")
        self.says(r, 4, "--vram 1M", "a context of 64 tokens")
        least = re.search(rb"at least --vram (\S+)", r.stderr).group(1).decode()
        o = self.plan(*args, "--vram", least)
        d = o["device"]
        self.assertTrue(o["fits"])
        self.assertLessEqual(d["total"], d["budget"])
        self.assertGreaterEqual(d["n_slots"], 16)
        self.assertEqual((o["experts"], o["n_slots"], o["cache_bytes"]), ("stream", o["n_experts"], 0))
        page = self.good(moxie("plan", *args, "--vram", least)).decode()
        self.assertIn("%d of %d experts" % (d["n_slots"], o["n_experts"]), page)
        self.assertEqual(self.plan(*args, "--vram", "1G")["device"]["n_slots"], 0)
        against = ["eval", "-p", "one two three", "--against", "exact", "-m", model, "--device", "emu", "-c", "1024", "--ram", "1G"]
        r = moxie(*against, "--vram", "1M")  # of two contexts one has a larger cache, and so a larger share
        self.says(r, 4, "--vram 1M")
        both = re.search(rb"at least --vram (\S+)", r.stderr).group(1).decode()
        self.good(moxie(*against, "--vram", both))
        self.says(moxie(*against, "--vram", "%dM" % (int(both[:-1]) - 1)), 4, "at least --vram " + both)
        ids, all_, some = self.path("ids", b"1 2"), self.path("all"), self.path("some")
        self.good(moxie("logits", *args, "--tokens", ids, "--out", all_))
        r = moxie("logits", *args, "--vram", least, "--tokens", ids, "--out", some)
        self.good(r)
        self.assertIn(b"come and go on the GPU", r.stderr)
        with open(all_, "rb") as f, open(some, "rb") as g:
            self.assertEqual(f.read(), g.read())
        for device in ("cpu", "metal"):
            self.says(moxie("plan", "-m", model, "--device", device, "--vram", "1G"), 2, "--vram", "--device cuda")
        self.says(moxie("plan", "-m", model, "--device", "emu:0,1,2,3,4,5,6", "--vram", "1G"), 2, "7 devices for a model of")
        self.says(moxie("plan", "-m", model, "--device", "abacus", "--vram", "1G"), 2, "'abacus'")
        cold = [*args, "--vram", least, "--cpu-experts"]
        self.assertEqual((d["cpu_experts"], self.plan(*cold)["device"]["cpu_experts"]), (False, True))
        self.assertIn("the cpu computes missing ones", self.good(moxie("plan", *cold)).decode())
        r = moxie("run", *cold, "--raw", "-p", "a", "-n", "2", "--temp", "0", "--json", "-q")
        experts = json.loads(self.good(r))["experts"]
        self.assertGreater(experts["device_cold"], 0)
        self.assertLess(experts["device_misses"], experts["device_cold"])
        for device in ("cpu", "emu", "metal"):
            self.says(moxie("plan", "-m", model, "--device", device, "--cpu-experts"), 2, "--cpu-experts", "--vram")
        o = json.loads(self.good(moxie("plan", "--synthetic", "qwen3-30b-a3b", "--device", "cuda", "--vram", "6G", "--ram", "20G", "--json")))
        self.assertEqual((o["experts"], o["n_slots"]), ("stream", o["n_experts"]))
        self.assertLess(o["device"]["n_slots"], o["n_experts"])
        self.assertGreater(o["device"]["total"] + o["device"]["slot_bytes"] * 2, o["device"]["budget"])

    def test_memory_of_two_gpus(self):
        model = self.models()[1]
        args = ["-m", model, "--device", "emu:0,1", "-c", "64", "--ram", "1G"]
        r = moxie("plan", *args, "--vram", "1M")
        self.says(r, 4, "--vram 1M")
        least = re.search(rb"at least --vram (\S+)", r.stderr).group(1).decode()
        self.says(moxie("plan", *args, "--vram", "%dM" % (int(least[:-1]) - 1)), 4, "at least --vram " + least)
        o = self.plan(*args, "--vram", least)
        d = o["device"]
        self.assertEqual((o["fits"], len(d["each"]), sum(e["n_slots"] for e in d["each"])), (True, 2, d["n_slots"]))
        self.assertLessEqual(max(e["total"] for e in d["each"]), int(least[:-1]) << 20)
        self.assertEqual(max(e["total"] for e in d["each"]), d["total"])
        self.assertEqual([e["first_layer"] for e in d["each"]], [0, d["each"][0]["n_layers"]])
        self.assertEqual(sum(e["n_experts"] for e in d["each"]), o["n_experts"])
        for e in d["each"]:
            self.assertEqual(e["total"] >> 12, (e["weights_bytes"] + e["experts_bytes"] + e["cache_bytes"] + e["activation_bytes"] +
                                                e["other_bytes"] + 4095) >> 12)
        page = self.good(moxie("plan", *args, "--vram", least)).decode()
        for i, e in enumerate(d["each"]):
            self.assertIn("number %d of 2, layers %d to %d: experts come and go\n" % (i + 1, e["first_layer"], e["first_layer"] + e["n_layers"] - 1), page)
            self.assertIn("%d of %d experts" % (e["n_slots"], e["n_experts"]), page)
        self.assertEqual(page.count("of each device"), 2)
        self.assertIn("the cpu computes missing ones", self.good(moxie("plan", *args, "--vram", least, "--cpu-experts")).decode())
        ids, all_, some = self.path("ids", b"1 2"), self.path("all"), self.path("some")
        self.good(moxie("logits", "-m", model, "--device", "emu", "-c", "64", "--tokens", ids, "--out", all_))
        r = moxie("logits", *args, "--vram", least, "--tokens", ids, "--out", some)
        self.good(r)
        self.assertIn(b"come and go on the GPUs: memory there for %d of %d" % (d["n_slots"], o["n_experts"]), r.stderr)
        with open(all_, "rb") as f, open(some, "rb") as g:
            self.assertEqual(f.read(), g.read())
        o = json.loads(self.good(moxie("plan", "--synthetic", "qwen3-30b-a3b", "--device", "cuda:0,1", "--vram", "6G", "--ram", "20G", "--json")))
        self.assertEqual([e["n_layers"] for e in o["device"]["each"]], [24, 24])
        for e in o["device"]["each"]:
            self.assertGreater(e["total"] + o["device"]["slot_bytes"] * 2, o["device"]["budget"])

    def test_a_context_is_never_shortened(self):
        small, large = (self.plan("-m", DEMO, "-c", c, "--ram", "300M") for c in ("256", "4096"))
        self.assertEqual((small["n_ctx"], large["n_ctx"]), (256, 4096))
        self.assertLess(small["cache_bytes"], large["cache_bytes"])
        self.says(moxie("run", "--raw", "-p", "x", "-m", DEMO, "-c", "4096", "--ram", "%dM" % (small["least_budget"] >> 20), "-q"), 4)

    def test_changes_are_said(self):
        least = self.plan("-m", DEMO)["least_budget"]
        args = ["run", "-m", DEMO, "--raw", "-p", "Once there was", "-n", "8", "--temp", "0"]
        small = moxie(*args, "--ram", "%dM" % ((least >> 20) + 1))
        self.assertIn(b"tokens at a time instead of 512", small.stderr)
        self.assertEqual(self.good(small), self.good(moxie(*args)))
        self.assertIn(b"more than the", moxie(*args, "--ram", "900T").stderr)
        stream = moxie(*args, "--experts", "stream", "--ram", "40M")
        self.assertEqual(self.good(stream), self.good(moxie(*args)))
        self.says(moxie(*args, "--expert-slots", "3", "--experts", "mmap"), 2, "--expert-slots")
        self.says(moxie(*args, "--experts", "stream", "--weights", "copy"), 2, "--weights copy")
        dense = ["run", "-m", self.models()[-1], "--raw", "-p", "x", "-n", "2"]
        self.says(moxie(*dense, "--experts", "stream"), 2, "no routed experts")
        self.good(moxie(*dense))

    def test_what_streaming_took_is_said(self):
        args = ["-m", DEMO, "--expert-slots", "20"]
        r = moxie("run", *args, "--raw", "-p", "Once there was", "-n", "8", "--temp", "0", "--json")
        o = json.loads(self.good(r))
        e, n = o["experts"], o["prompt_tokens"] + o["generated_tokens"] - 1
        self.assertEqual((e["slots"], e["slots_away"]), (20, 0))
        self.assertAlmostEqual(e["hit_rate"], e["hits"] / (e["hits"] + e["misses"]), places=6)
        self.assertAlmostEqual(e["bytes_read_per_token"] * n / e["bytes_read"], 1, places=6)
        self.assertAlmostEqual(e["wait_s_per_token"] * n, e["wait_s"], places=6)
        self.assertGreater(o["rss_anon_bytes"], 20 * e["slot_bytes"])
        said = re.search(rb"experts hit (\d+)% read .* \(([\d.]+) MB/tok, wait [\d.]+ ms/tok\) slots 20 memory ([\d.]+) MB", r.stderr)
        self.assertLess(abs(float(said[2]) * 1e6 - e["bytes_read_per_token"]), 0.06e6)
        self.assertLess(abs(float(said[3]) * 1e6 - o["rss_anon_bytes"]), 0.06e6)
        whole = json.loads(self.good(moxie("run", "-m", DEMO, "--raw", "-p", "x", "-n", "2", "--json")))
        self.assertNotIn("experts", whole)
        self.assertGreater(whole["rss_anon_bytes"], 0)
        bench = ["bench", *args, "-p", "0", "-n", "4", "-d", "0", "-t", "1", "-r", "2", "-q"]
        row = json.loads(self.good(moxie(*bench, "-o", "json")))["rows"][0]
        self.assertEqual((row["expert_slots"], row["expert_slots_away"]), (20, 0))
        self.assertGreater(row["rss_anon_bytes"], 20 * e["slot_bytes"])
        self.assertIn(b"GB memory", self.good(moxie(*bench)))

    def test_what_cannot_be_made_is_refused_first(self):
        """Before hundreds of gigabytes are computed, which would take minutes."""
        started = time.monotonic()
        self.says(moxie("bench", "--synthetic", "deepseek-v3", "-p", "8", "-n", "0"), 4, "at least --ram 3")
        self.says(moxie("bench", "--synthetic", "deepseek-v3", "--experts", "stream"), 2, "moxie synth")
        self.assertLess(time.monotonic() - started, 60)

    def test_a_run_stays_inside_its_plan(self):
        """Never above the budget; and of what is planned, all but the fixed part is used, to 15 %."""
        if self.SANITIZED:
            self.skipTest("sanitizers take memory of their own")
        text = self.path("text", self.TEXT.encode())
        for model in self.models():
            for args in ([], ["--experts", "stream"], ["--exact", "-t", "5"], ["--ram", "tight"], ["--experts", "stream", "--ram", "tight"]):
                if model.endswith("demo-qwen3") and "stream" in args or model != DEMO and "--exact" in args:
                    continue
                args = ["-m", model, "-c", "512", *args]
                if "tight" in args:
                    free = [a for a in args if a not in ("--ram", "tight")]
                    args[args.index("tight")] = "%dM" % ((self.plan(*free)["least_budget"] >> 20) + 2)
                plan = self.plan(*args)
                budget = min(plan["total"], plan["budget"])
                most, code = peak_bytes("eval", *args, "-q", "-f", text)
                with self.subTest(args=args, total=plan["total"], most=most):
                    self.assertEqual(code, 0)
                    self.assertLessEqual(most, budget)
                    self.assertLessEqual(plan["total"], 1.15 * most + self.PROGRAM_BYTES)


class Plan(Case):
    def test_shapes_need_no_files(self):
        for name, ram in (("qwen3-30b-a3b", "8G"), ("qwen3-235b-a22b", "32G"), ("qwen3-next-80b-a3b", "16G"),
                          ("Qwen3.5-35B-A3B", "8G"), ("qwen3.5-397b-a17b", "32G"), ("deepseek-v3", "64G")):
            o = json.loads(self.good(moxie("plan", "--synthetic", name, "--ram", ram, "--disk", "3", "--json")))
            self.assertEqual((o["experts"], o["fits"]), ("stream", True))
            self.assertLessEqual(o["total"], o["budget"])
            self.assertGreater(o["total"] + o["slot_bytes"] * 1.01, o["budget"])  # as many slots as fit
            alike, zipf = o["routing"]
            self.assertLessEqual(alike["hit_rate"], zipf["hit_rate"])
            self.assertGreater(alike["decode_tokens_per_s"], 0)
        o = json.loads(self.good(moxie("plan", "--synthetic", "qwen3-30b-a3b", "--ram", "8G", "--json")))
        self.assertEqual((o["disk_bytes_per_s"], o["routing"][0]["decode_tokens_per_s"]), (None, None))
        self.assertIn(b"unknown", self.good(moxie("plan", "--synthetic", "qwen3-30b-a3b", "--ram", "8G")))

    def test_pages(self):
        page = self.good(moxie("plan", "-m", DEMO)).decode()
        for word in ("experts resident", "dense weights", "all 128", "cache", "activations", "other", "total", "budget", "decode"):
            self.assertIn(word, page)
        page = self.good(moxie("plan", "-m", DEMO, "--experts", "stream", "--expert-slots", "20",
                               env={"XDG_CACHE_HOME": self.dir})).decode()
        self.assertIn("20 of 128 experts", page)
        self.assertIn("a disk of ", page)
        self.assertIn("not counted", self.good(moxie("plan", "-m", DEMO, "--experts", "mmap")).decode())

    def test_refusals(self):
        self.says(moxie("plan", "-m", DEMO, "--synthetic", "deepseek-v3"), 2, "--synthetic")
        self.says(moxie("plan", "-m", DEMO, "--weights", "copy", "--experts", "stream", "--disk", "1"), 2, "--weights copy")
        self.says(moxie("plan", "--synthetic", "gpt"), 2, "deepseek-v3")
        self.says(moxie("plan", "--synthetic", "deepseek-v3", "--ram", "8G"), 4, "--ram 8G", "4096 tokens", "at least --ram 9.")
        self.says(moxie("plan", "-m", DEMO, "--disk", "0"), 2, "--disk")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
