"""`moxie pack` and `moxie verify` from outside: packed models give the same logits to the byte, whatever layout they
had; experts lie in one piece; what is refused is refused with a sentence; damage is found and named.

usage: test_pack.py PROGRAM SOURCE_ROOT [unittest arguments]
"""
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.path.abspath(sys.argv[1])
ROOT = Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests/golden"))

import layouts                                          # noqa: E402
from checkpoint import load, write_checkpoint           # noqa: E402

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("MOXIE_", "HF_"))}
DEMOS = [ROOT / "models/demo"] + sorted((ROOT / "tests/data/models").glob("demo-*"))
MOE = ROOT / "tests/data/models/demo-qwen3-moe"
ALIGN = 4096


def moxie(*words, **more):
    return subprocess.run([PROGRAM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, env=ENVIRONMENT,
                          timeout=120, **more)


def header_of(path):
    """-> entries without metadata, where the data begins"""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
    header.pop("__metadata__", None)
    return header, 8 + n


def place_of(folder, name):
    """-> file, offset and size of a tensor"""
    for path in sorted(Path(folder).glob("model*.safetensors")):
        header, start = header_of(path)
        if name in header:
            begin, end = header[name]["data_offsets"]
            return path, start + begin, end - begin
    raise KeyError(name)


def overwrite(path, offset, data):
    """In a copy of the file: it may be a link to one that belongs to others."""
    content = bytearray(path.read_bytes())
    content[offset:offset + len(data)] = data
    path.unlink()
    path.write_bytes(content)


class Case(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="moxie-pack-"))
        self.addCleanup(shutil.rmtree, self.scratch)

    def pack(self, model, name="packed"):
        out = self.scratch / name
        done = moxie("pack", model, out, "-q")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))
        return out

    def says(self, done, code, *words):
        text = done.stderr.decode()
        self.assertEqual(done.returncode, code, text)
        self.assertEqual(text.count("\n"), 1, text)
        for word in words:
            self.assertIn(str(word), text)

    def logits(self, model):
        tokens = self.scratch / "ids"
        tokens.write_text(" ".join(str(7 * i % 250) for i in range(33)))
        done = moxie("logits", "-m", model, "--tokens", tokens, "--out", "-", "-t", 1)
        self.assertEqual((done.returncode, done.stderr), (0, b""))      # no warning either
        self.assertGreater(len(done.stdout), 1000)
        return done.stdout

    def findings(self, model, code):
        done = moxie("verify", "-m", model, "--json")
        self.assertEqual(done.returncode, code, (done.stdout, done.stderr))
        found = json.loads(done.stdout)
        self.assertEqual(found["ok"], code == 0)
        self.assertEqual(found["n_problems"], sum(f["kind"] == "problem" for f in found["findings"]))
        return found

    def copy(self, model, name="copy"):
        out = self.scratch / name
        out.mkdir()
        for path in Path(model).iterdir():
            if not path.name.startswith("golden"):
                shutil.copy(path, out)
        return out


class SameNumbers(Case):
    def check(self, model):
        packed = self.pack(model, "packed-" + Path(model).name)
        self.assertEqual(self.logits(model), self.logits(packed))
        found = self.findings(packed, 0)
        self.assertEqual(found["findings"], [])
        self.assertGreater(found["n_checksums"], 10)
        before, after = (json.loads(moxie("inspect", "-m", m, "--json").stdout) for m in (model, packed))
        for key in ("params_total", "params_active", "bytes_total", "bytes_experts", "n_tensors_skipped", "layout"):
            self.assertEqual(before[key], after[key], key)
        for types in (before["types"], after["types"]):
            for t in types:
                t.pop("n_matrices")                              # fused ones are split
        self.assertEqual(before["types"], after["types"])
        self.check_layout(packed, before["n_layers_moe"], before["n_experts"])
        return packed

    def check_layout(self, packed, n_layers, n_experts):
        """Every expert in one piece that begins at a multiple of 4096; nothing but padding between them."""
        files = sorted(packed.glob("model-experts-*.safetensors"))
        self.assertEqual(len(files), n_layers)
        for path in files:
            header, start = header_of(path)
            self.assertEqual(start % ALIGN, 0)
            experts = {}
            for name, t in header.items():
                if not name.startswith("moxie.padding."):
                    experts.setdefault(int(name.split(".experts.")[1].split(".")[0]), []).append(t["data_offsets"])
            self.assertEqual(sorted(experts), list(range(n_experts)))
            end = 0
            for e in range(n_experts):
                parts = sorted(experts[e])
                self.assertGreaterEqual(len(parts), 3)
                self.assertEqual(parts[0][0], -(-end // ALIGN) * ALIGN)
                for a, b in zip(parts, parts[1:]):
                    self.assertEqual(a[1], b[0])
                end = parts[-1][1]

    def test_demo_models(self):
        for model in DEMOS:
            with self.subTest(model.name):
                self.check(model)

    def fixtures(self):
        with tarfile.open(ROOT / "tests/data/fixtures.tar.xz") as archive:
            archive.extractall(self.scratch / "fixtures")
        return self.scratch / "fixtures"

    def test_fixtures_of_hugging_face(self):
        for model in sorted(self.fixtures().iterdir()):
            with self.subTest(model.name):
                self.check(model)

    def test_other_layouts(self):
        fixtures = self.fixtures()
        moe = load(fixtures / "qwen3_moe")
        mixed = layouts.Recipe(4, 64, overrides={r"layers\.0\..*switch_mlp\.down_proj": (8, 32),
                                                 r"layers\.2\..*switch_mlp\.gate_proj": (3, 32),
                                                 r"layers\.0\..*switch_mlp\.up_proj": False}, junk=True)
        stacks = layouts.to_mlx(*moe, mixed)
        self.assertEqual(sum("switch_mlp" in k for k in stacks[0]["quantization"]), 3)
        hybrid = layouts.to_mlx(*load(fixtures / "qwen3_5_moe"), layouts.Recipe(5, 32, "F16"))
        made = {"mixed": stacks, "hybrid": hybrid, "fused": layouts.to_hf(*stacks, fused=True),
                "multimodal": layouts.to_hf(*hybrid, fused=True, multimodal=True, junk=True),
                "fp8": layouts.to_fp8(*moe, (128, 128), "F32"),
                "fp8-bytes": layouts.to_fp8(*load(fixtures / "deepseek_v3"), (48, 80), "U8")}
        for number, (name, (config, tensors)) in enumerate(made.items()):
            with self.subTest(name):
                shards, odd = ((1, "header"), (3, None), (1, "pad"))[number % 3]
                self.check(write_checkpoint(self.scratch / name, config, tensors, shards, odd, "shuffled"))

    def test_a_swap_would_show(self):
        packed = self.check(MOE)
        places = [place_of(packed, f"model.layers.2.mlp.experts.{e}.down_proj.weight") for e in range(16)]
        data = [p[0].read_bytes()[p[1]:p[1] + p[2]] for p in places]
        for place, content in zip(places, data[1:] + data[:1]):
            overwrite(place[0], place[1], content)
        self.assertNotEqual(self.logits(MOE), self.logits(packed))

    def test_other_files(self):
        model = self.copy(MOE)
        (model / ".hidden").write_text("x")
        (model / "left.part").write_text("x")
        (model / "chat_template.jinja").write_text("{{ messages }}")
        packed = self.pack(model)
        names = {p.name for p in packed.iterdir()}
        self.assertGreaterEqual(names, {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja", "moxie.pack.json"})
        self.assertFalse(names & {".hidden", "left.part", "model.safetensors"})
        self.assertTrue(os.path.samefile(packed / "config.json", model / "config.json"))    # a link
        for name in names - {"moxie.pack.json"}:
            if (model / name).exists():
                self.assertEqual((packed / name).read_bytes(), (model / name).read_bytes())

    def test_a_model_of_the_cache(self):
        cache, blob = self.scratch / "hub", hashlib.sha256((MOE / "model.safetensors").read_bytes()).hexdigest()
        repo = cache / "models--a--b"
        commit = "0123456789" * 4
        for folder in ("blobs", "refs", f"snapshots/{commit}"):
            (repo / folder).mkdir(parents=True)
        (repo / "refs/main").write_text(commit)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
            target = blob if name == "model.safetensors" else name
            shutil.copy(MOE / name, repo / "blobs" / target)
            (repo / "snapshots" / commit / name).symlink_to(f"../../blobs/{target}")
        ENVIRONMENT["HF_HUB_CACHE"] = str(cache)
        self.addCleanup(ENVIRONMENT.pop, "HF_HUB_CACHE")
        packed = self.pack("a/b")
        self.assertTrue(all(p.is_file() and not p.is_symlink() for p in packed.iterdir()))
        self.assertEqual(self.logits(MOE), self.logits(packed))
        found = self.findings("a/b", 0)
        self.assertEqual((found["n_checksums"], found["findings"]), (1, []))
        path, offset, _ = place_of(MOE, "model.layers.3.self_attn.q_proj.weight")
        overwrite(repo / "blobs" / blob, offset, b"12")
        found = self.findings("a/b", 3)
        self.assertEqual([f["file"] for f in found["findings"]], ["model.safetensors"])
        self.assertIn("SHA-256", found["findings"][0]["what"])
        self.assertIn("download", found["findings"][0]["what"])


class Refusals(Case):
    def test_where_it_goes(self):
        model = self.copy(MOE)
        self.says(moxie("pack", model, model / "in"), 2, model, "elsewhere")
        self.says(moxie("pack", model, model), 2, model)
        (self.scratch / "link").symlink_to(model)
        self.says(moxie("pack", model, self.scratch / "link" / "in"), 2, "elsewhere")
        self.assertFalse((model / "in").exists())
        full = self.scratch / "full"
        full.mkdir()
        (full / "thing").write_text("precious")
        self.says(moxie("pack", model, full), 2, full, "not empty", "thing")
        self.assertEqual([p.name for p in full.iterdir()], ["thing"])
        self.says(moxie("pack", model, "/proc/moxie"), 5, "cannot make the folder")
        self.says(moxie("pack", self.scratch / "nothing", self.scratch / "x"), 3, "nothing")
        self.says(moxie("pack", model), 2, "usage: moxie pack")

    def test_a_folder_beside_with_a_longer_name(self):
        model = self.copy(MOE)
        self.pack(model, "copy-packed")

    def test_packed_twice(self):
        packed = self.pack(MOE)
        self.says(moxie("pack", packed, self.scratch / "again"), 2, "packed model already")
        before = {p.name: p.stat().st_mtime_ns for p in packed.iterdir()}
        self.says(moxie("pack", MOE, packed), 0, "nothing to do")
        self.assertEqual(before, {p.name: p.stat().st_mtime_ns for p in packed.iterdir()})

    def test_another_model_is_not_mixed_in(self):
        packed = self.pack(MOE)
        self.says(moxie("pack", ROOT / "models/demo", packed), 2, packed, "new folder")
        model = self.copy(MOE)
        packed = self.pack(model, "second")
        (packed / "model-experts-00001.safetensors").unlink()
        os.utime(model / "model.safetensors", (1, 1))           # it may have changed since
        self.says(moxie("pack", model, packed), 2, packed, "as it is now")

    def test_damaged_manifests(self):
        packed = self.pack(MOE)
        path = packed / "moxie.pack.json"
        good = json.loads(path.read_text())

        def without(key):
            return {k: v for k, v in good.items() if k != key}

        def with_file(name, entry):
            return {**good, "files": {name: entry}}
        sum_ = "0" * 16
        for bad in ([], {}, without("moxie_pack"), without("source"), without("files"), {**good, "moxie_pack": 2},
                    {**good, "complete": 1}, {**good, "source": "xyz"}, with_file("../x", {"bytes": 0, "pieces": []}),
                    with_file("..", {"bytes": 0, "pieces": []}), with_file("x", {"bytes": 1, "pieces": []}),
                    with_file("x", {"bytes": 1, "pieces": [["a", 1, 1, sum_]]}),
                    with_file("x", {"bytes": -1, "pieces": [["a", 0, -1, sum_]]}),
                    with_file("x", {"bytes": 1, "pieces": [["a", 0, 1, sum_.upper() + "0"]]}),
                    with_file("x", {"bytes": 1, "pieces": [["a", 0, 1]]}), with_file("x", {"bytes": 1, "pieces": ["a"]}),
                    with_file("x", 3)):
            path.unlink()
            path.write_text(json.dumps(bad))
            self.says(moxie("pack", MOE, packed), 3, "moxie.pack.json")
            found = self.findings(packed, 3)["findings"]
            self.assertEqual(found[0]["file"], "moxie.pack.json", bad)

    def test_files_that_may_not_grow(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        out = self.scratch / "out"
        done = moxie("pack", MOE, out, preexec_fn=limit, restore_signals=False)
        self.says(done, 5, "cannot write", "File too large")
        self.assertNotIn("config.json", os.listdir(out))
        self.assertFalse([n for n in os.listdir(out) if n.endswith(".part")])
        self.assertEqual(moxie("run", "-m", out, "--raw", "-p", "x").returncode, 3)
        self.assertEqual(self.findings(out, 3)["findings"][0]["file"], "moxie.pack.json")
        self.assertEqual(self.logits(self.pack(MOE, "out")), self.logits(MOE))

    def test_no_room(self):
        small = self.scratch / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small], capture_output=True)
        if mounted.returncode:
            self.skipTest("mounting a small file system needs rights")
        self.addCleanup(subprocess.run, ["umount", small])
        self.says(moxie("pack", MOE, small / "out"), 4, small, "are free")
        self.assertEqual(os.listdir(small / "out"), ["moxie.pack.json"])


class Verify(Case):
    def flip(self, packed, name):
        path, offset, size = place_of(packed, name)
        byte = path.read_bytes()[offset + size // 2]
        overwrite(path, offset + size // 2, bytes([byte ^ 1]))
        return path.name

    def test_one_bit(self):
        packed = self.pack(MOE)
        for tensor, piece in (("model.layers.3.mlp.experts.11.up_proj.weight", "model.layers.3.mlp.experts.11"),
                              ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.k_proj.weight")):
            file = self.flip(packed, tensor)
            found = self.findings(packed, 3)["findings"]
            self.assertEqual([(f["kind"], f["file"], f["tensor"]) for f in found], [("problem", file, piece)])
            self.assertIn("pack the model again", found[0]["what"])
            done = moxie("verify", "-m", packed)
            self.assertEqual(done.returncode, 3)
            line = done.stdout.decode().splitlines()[0]
            self.assertTrue(line.startswith(f"problem: {file}: {piece}: "), line)
            self.assertRegex(done.stdout, rb"\n1 problem, 0 warnings: \d+ files, ")
            self.flip(packed, tensor)                            # and back
        self.assertEqual(self.findings(packed, 0)["findings"], [])

    def test_headers_small_files_and_missing_ones(self):
        packed = self.pack(MOE)
        overwrite(packed / "config.json", 0, b"\n")              # JSON all the same
        found = self.findings(packed, 3)["findings"]
        self.assertTrue(any(f["file"] == "config.json" and f["tensor"] == "file" for f in found), found)
        packed = self.pack(MOE, "second")
        (packed / "generation_config.json").unlink()
        self.assertEqual([f["file"] for f in self.findings(packed, 3)["findings"]], ["generation_config.json"])
        packed = self.pack(MOE, "third")
        path = packed / "model-experts-00002.safetensors"
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        found = self.findings(packed, 3)["findings"]
        self.assertTrue(any(path.name in f["what"] for f in found), found)           # it cannot be opened
        self.assertTrue(any(f["file"] == path.name for f in found), found)           # and has another size
        path.unlink()
        found = self.findings(packed, 3)["findings"]
        self.assertTrue(any(f["file"] == path.name and "missing" in f["what"] for f in found), found)

    def numbers(self, changes, code):
        """Findings of a copy of the demo model with bytes of tensors replaced."""
        model = self.copy(MOE)
        for name, at, data in changes:
            path, offset, size = place_of(model, name)
            overwrite(path, offset + at, data if data else bytes(size))
        found = self.findings(model, code)["findings"]
        shutil.rmtree(model)
        return found

    def test_numbers_that_are_not_finite(self):
        nan, inf = b"\xc0\x7f", b"\x80\xff"                      # BF16
        names = ["model.layers.1.mlp.switch_mlp.up_proj.scales", "model.layers.4.mlp.switch_mlp.down_proj.biases",
                 "model.norm.weight", "model.layers.2.self_attn.k_norm.weight", "model.embed_tokens.scales"]
        for name in names:
            for value in (nan, inf):
                with self.subTest(name, value=value):
                    found = self.numbers([(name, 6, value)], 3)
                    self.assertEqual([(f["kind"], f["file"], f["tensor"]) for f in found],
                                     [("problem", "model.safetensors", name)])
                    self.assertIn("1 of its", found[0]["what"])
                    self.assertIn("number 3 first", found[0]["what"])
        self.assertEqual(len(self.numbers([(n, 0, nan * 3) for n in names], 3)), len(names))
        self.assertEqual(self.numbers([("model.norm.weight", 6, b"\x7f\x7f")], 0), [])     # the largest number there is

    def test_other_number_formats(self):
        fixture = self.scratch / "fixtures"
        with tarfile.open(ROOT / "tests/data/fixtures.tar.xz") as archive:
            archive.extractall(fixture)
        moe = load(fixture / "qwen3_moe")
        weight = "model.layers.2.mlp.experts.3.down_proj.weight"
        for name, (config, tensors), tensor, value in (
                ("f32", layouts.to_hf(*layouts.to_mlx(*moe, layouts.Recipe())), weight, struct.pack("<f", float("nan"))),
                ("e4m3", layouts.to_fp8(*moe, (128, 128), "F32"), weight, b"\x7f"),
                ("e8m0", layouts.to_fp8(*moe, (128, 128), "U8"), weight + "_scale_inv", b"\xff"),
                ("f16", layouts.to_mlx(*moe, layouts.Recipe(4, 64, "F16")), "model.layers.0.mlp.switch_mlp.up_proj.biases",
                 b"\x00\x7c")):
            with self.subTest(name):
                model = write_checkpoint(self.scratch / name, config, tensors, 1, "header", "shuffled")
                self.assertEqual(self.findings(model, 0)["findings"], [])
                path, offset, size = place_of(model, tensor)
                overwrite(path, offset + size - len(value), value)
                found = self.findings(model, 3)["findings"]
                self.assertEqual([(f["kind"], f["tensor"]) for f in found], [("problem", tensor)])

    def test_scales_of_nothing(self):
        name = "model.layers.5.self_attn.o_proj.scales"
        found = self.numbers([(name, 0, None)], 0)
        self.assertEqual([(f["kind"], f["tensor"]) for f in found], [("warning", name)])
        name = "model.layers.1.mlp.switch_mlp.up_proj.scales"
        size = place_of(MOE, name)[2] // 16
        found = self.numbers([(name, 7 * size, bytes(size)), (name, 12 * size, bytes(2 * size))], 0)
        self.assertEqual([(f["kind"], f["tensor"]) for f in found], [("warning", name)])
        self.assertIn("3 of its 16 experts", found[0]["what"])
        self.assertIn("expert 7 first", found[0]["what"])
        self.assertEqual(self.numbers([(name, 7 * size, bytes(size - 1))], 0), [])

    def test_a_tail_of_zeros(self):
        model = self.copy(MOE)
        path = model / "model.safetensors"
        size = path.stat().st_size
        with open(path, "r+b") as f:
            f.truncate(size - 100_000)
            f.truncate(size)
        found = self.findings(model, 0)["findings"]
        self.assertTrue(any(f["kind"] == "warning" and "zero (" in f["what"] for f in found), found)

    def test_a_model_that_cannot_be_opened(self):
        model = self.copy(MOE)
        (model / "config.json").write_text("{")
        found = self.findings(model, 3)["findings"]
        self.assertIn("config.json", found[0]["what"])
        model = self.copy(MOE, "second")
        (model / "tokenizer.json").write_text("{")
        found = self.findings(model, 3)["findings"]
        self.assertEqual(len(found), 1)
        self.assertIn("tokenizer.json", found[0]["what"])
        self.says(moxie("verify", "-m", self.scratch / "none"), 3, "none")

    def test_ctrl_c_leaves_the_object_whole(self):
        model = self.copy(MOE)
        names = list(header_of(model / "model.safetensors")[0])
        n = 1 << 36                                              # of zeros that take no room, and a while to read
        header = json.dumps({"visual.weight": {"dtype": "F32", "shape": [n // 4], "data_offsets": [0, n]}}).encode()
        with open(model / "more.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(header)) + header)
            f.truncate(8 + len(header) + n)
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {
            **{name: "model.safetensors" for name in names}, "visual.weight": "more.safetensors"}}))
        child = subprocess.Popen([PROGRAM, "verify", "--json", "-q", "-m", model], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
        while not self.catches(child.pid, signal.SIGINT):
            self.assertIsNone(child.poll())
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
        self.assertEqual((child.returncode, err), (128 + signal.SIGINT, b""))
        self.assertEqual(json.loads(out)["ok"], None)

    @staticmethod
    def catches(pid, number):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1

    def test_text_and_quiet(self):
        done = moxie("verify", "-m", MOE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertRegex(done.stdout, rb"^nothing wrong: 1 file, .* no checksums to compare with\n$")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
