"""Models of the Hugging Face cache: `-m ORG/NAME[@REVISION]` and `moxie list`.

Every test builds a cache of its own in a temporary folder.

usage: test_hub.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
DEMO = os.path.abspath(sys.argv[2])
WAIT_S = 60
CACHE_NAMES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
BASE_ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOXIE_") and k not in CACHE_NAMES}

A, B, C = "a1" * 20, "a2" * 20, "b3" * 20
NOBODY = 65534


def config(family, **more):
    return json.dumps({"model_type": family, **more})


def index(*files):
    return json.dumps({"weight_map": {"tensor.%d" % i: name for i, name in enumerate(files)}})


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="moxie-hub-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.root = os.path.join(self.dir, "hub")

    def run_moxie(self, *args, env=None, user=None):
        return subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, cwd=self.dir,
                              env={**BASE_ENV, **({"HF_HUB_CACHE": self.root} if env is None else env)}, user=user)

    def repository(self, name, root=None):
        folder = os.path.join(root or self.root, "models--" + name.replace("/", "--"))
        for part in ("blobs", "refs", "snapshots"):
            os.makedirs(os.path.join(folder, part), exist_ok=True)
        return folder

    def ref(self, name, ref, text):
        path = os.path.join(self.repository(name), "refs", ref)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)

    def snapshot(self, name, commit, files, main=True, links=True, root=None):
        """files: {name: text, number of bytes, or None for a link to nowhere}"""
        folder = self.repository(name, root)
        at = os.path.join(folder, "snapshots", commit)
        os.makedirs(at)
        for file, content in files.items():
            path = os.path.join(at, file)
            blob = os.path.join(folder, "blobs", commit[:6] + file) if links else path
            if content is not None:
                with open(blob, "w") as f:
                    f.write(content) if isinstance(content, str) else f.truncate(content)
            if links:
                os.symlink(os.path.relpath(blob, at), path)
        if main:
            with open(os.path.join(folder, "refs", "main"), "w") as f:
                f.write(commit)
        return at

    def demo(self, name, commit, main=True, root=None, without=()):
        """The demo model as a snapshot."""
        at = self.snapshot(name, commit, {}, main, root=root)
        for file in os.listdir(DEMO):
            if file not in without:
                os.symlink(os.path.join(DEMO, file), os.path.join(at, file))
        return at

    def partial(self, name, n=1):
        for i in range(n):
            open(os.path.join(self.repository(name), "blobs", "%d.incomplete" % i), "w").close()

    def good(self, result):
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout

    def fails(self, reference, *words, code=3, command=("inspect",)):
        r = self.run_moxie(*command, "-m", reference)
        text = r.stderr.decode("utf-8", "replace")
        self.assertEqual((r.returncode, r.stdout), (code, b""), text)
        self.assertRegex(text, r"\Amoxie: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, text)
        return text

    def opens(self, reference, folder, env=None):
        """The reference is that folder: its config.json, which is no valid one, is named."""
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write("[]")
        r = self.run_moxie("inspect", "-m", reference, env=env)
        self.assertEqual(r.returncode, 3)
        self.assertIn(os.path.join(folder, "config.json"), r.stderr.decode())
        os.remove(os.path.join(folder, "config.json"))


class Filled(Case):
    def list(self, *args, **kwargs):
        r = self.run_moxie("list", "--json", *args, **kwargs)
        models = json.loads(self.good(r))["models"]
        return {m["reference"]: m for m in models if m["reference"] != "demo"}

    def fill(self):
        """One model of every state."""
        four = {"bits": 4, "group_size": 64}
        shards = ["model-0000%d-of-00003.safetensors" % i for i in (1, 2, 3)]
        whole = {"config.json": config("qwen3_moe", quantization=four), "model.safetensors.index.json": index(*shards),
                 "tokenizer.json": "{}", **{s: 1000 for s in shards}}
        self.snapshot("mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit", A, whole)
        self.snapshot("real/files", A, whole, links=False)
        self.snapshot("two/commits", A, whole)
        self.snapshot("two/commits", C, whole, main=False)
        self.snapshot("no/shards", A, {k: v for k, v in whole.items() if k not in shards[1:]})
        fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        self.snapshot("dangling/weights", A, {"config.json": config("deepseek_v3", quantization_config=fp8), "model.safetensors": None})
        self.snapshot("dangling/readme", A, {**whole, "README.md": None})
        self.snapshot("no/tokenizer", A, {k: v for k, v in whole.items() if k != "tokenizer.json"})
        self.snapshot("no/tokenizer-yet", A, {k: v for k, v in whole.items() if k != "tokenizer.json"})
        self.partial("no/tokenizer-yet")
        self.snapshot("stale/partial", A, whole)
        self.partial("stale/partial")
        self.snapshot("other/family", A, {"config.json": config("llama"), "model.safetensors": 10})
        self.snapshot("other/rope", A, {"config.json": config("qwen3", rope_scaling={"rope_type": "llama3", "factor": 8.0}),
                                        "model.safetensors": 10})
        self.snapshot("some/gguf", A, {"model.gguf": 10})
        self.snapshot("bad/config", A, {"config.json": "{", "model.safetensors": 10})
        self.snapshot("bad/index", A, {"config.json": config("qwen3"), "model.safetensors.index.json": index("../../x.safetensors")})
        self.partial("just/begun", 3)
        open(os.path.join(self.root, "models--a--file"), "w").close()
        for name in ("datasets--a--b", "models--gpt2", "models--..--x", "models--a--b--c", "version.txt", ".locks"):
            os.makedirs(os.path.join(self.root, name))


class Find(Case):
    def test_a_model_runs_by_its_name(self):
        at = self.demo("Org/Demo-1.5_b", A)
        want = self.good(self.run_moxie("inspect", "-m", DEMO, "--json"))
        for reference in ("Org/Demo-1.5_b", "Org/Demo-1.5_b@main", "Org/Demo-1.5_b@" + A, "Org/Demo-1.5_b@a1", at):
            self.assertEqual(self.good(self.run_moxie("inspect", "-m", reference, "--json")), want)
        self.assertEqual(self.good(self.run_moxie("inspect", "--json", env={"HF_HUB_CACHE": self.root, "MOXIE_MODEL": "Org/Demo-1.5_b"})),
                         want)

    def test_revisions(self):
        first, second, third = (self.snapshot("o/n", c, {}, main=False) for c in (A, B, C))
        self.ref("o/n", "main", B + "\n")
        self.ref("o/n", "refs/pr/1", C)
        self.ref("o/n", "a1", B)  # a ref comes before a commit
        self.opens("o/n", second)
        self.opens("o/n@main", second)
        self.opens("o/n@refs/pr/1", third)
        self.opens("o/n@" + A, first)
        self.opens("o/n@a1a", first)
        self.opens("o/n@b", third)
        self.opens("o/n@a1", second)
        self.fails("o/n@a", "2 commits", A[:8], B[:8], "more")
        self.assertNotIn(C[:8], self.fails("o/n@a", "2 commits"))
        self.fails("o/n@v9", "no ref or commit v9", A[:8], B[:8], C[:8], "--revision v9")
        self.fails("o/n@" + A + "0", "no ref or commit")

    def test_without_main(self):
        only = self.snapshot("o/n", A, {}, main=False)
        self.opens("o/n", only)
        self.fails("o/n@main", "no ref or commit main")
        self.snapshot("o/n", C, {}, main=False)
        self.fails("o/n", "several commits", "o/n@COMMIT", A[:8], C[:8])

    def test_a_ref_to_a_commit_that_is_gone(self):
        self.snapshot("o/n", A, {}, main=False)
        self.ref("o/n", "main", C)
        self.fails("o/n", "main is commit " + C[:8], A[:8], "hf download o/n --revision main")

    def test_refs_cannot_lead_out(self):
        outside = self.demo("out/side", A)
        for text in ("../../models--out--side/snapshots/" + A, outside, "..", "", "x" * 5000, "\0" * 40, A[:-1] + "/", A.upper()):
            self.ref("o/n", "main", text)
            self.fails("o/n", "no snapshot")
        self.snapshot("o/n", C, {}, main=False)
        self.ref("o/n", "main", "../../models--out--side/snapshots/" + A)
        r = self.run_moxie("inspect", "-m", "o/n")
        self.assertEqual(r.returncode, 3)
        self.assertIn("snapshots/" + C, r.stderr.decode())

    def test_bad_names(self):
        self.demo("o/n", A)
        for name in ("o//n", "/o/n/", "o/n/x", "../o/n", "o/..", "o/.n", "o/n.", "o/n-", "-o/n", "o--x/n", "o/n--y", "o/a..b", "o n/x",
                     "o/n\n", "ö/n", "o/" + "n" * 300, "o/n@", "o/n@..", "o/n@../../x", "o/n@/main", "o/n@a@b", "@main", "o@main", "",
                     "~/x", "./none", "none/", "models--o--n/x.."):
            with self.subTest(name=name):
                self.fails(name if not name.startswith("-") else "./" + name, "no such folder")
        self.fails("", "the empty name: no such folder")
        self.fails("o/" + "n" * 254, "not in the Hugging Face cache")
        self.fails("o/" + "n" * 255, "a model is a folder")

    def test_a_folder_comes_first(self):
        self.demo("o/n", A)
        os.makedirs(os.path.join(self.dir, "o/n"))
        self.fails("o/n", "o/n/config.json")
        with open(os.path.join(self.dir, "o/file"), "w"):
            pass
        self.fails("o/file", "o/file", "a file")

    def test_what_is_there_instead(self):
        self.demo("Qwen/Qwen3-30B-A3B", A)
        self.demo("mlx-community/Qwen3-30B-A3B-4bit", A)
        self.fails("Qwen/Qwen3-30b-A3B", "did you mean Qwen/Qwen3-30B-A3B?", self.root)
        self.fails("Qwen3-30B-A3B-4bit", "did you mean mlx-community/Qwen3-30B-A3B-4bit?")
        self.fails("google/something-else", "google/something-else", self.root, "moxie list", "hf download google/something-else")
        self.fails("nonsense", "nonsense", "hf download ORG/nonsense")

    def test_no_cache(self):
        self.fails("o/n", "there is no Hugging Face cache at " + self.root, "hf download o/n")
        r = self.run_moxie("inspect", "-m", "o/n", env={})
        self.assertEqual(r.returncode, 3)
        self.assertIn(b"neither HF_HUB_CACHE nor HOME is set", r.stderr)

    def test_where_the_cache_is(self):
        """Each name wins over those behind it; empty ones do not count."""
        below = {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub",
                 "HOME": ".cache/huggingface/hub"}
        env, folders = {}, {}
        for name in CACHE_NAMES:
            env[name] = os.path.join(self.dir, name.lower())
            folders[name] = self.snapshot("o/n", A, {}, root=os.path.normpath(os.path.join(env[name], below[name])))
        for name in CACHE_NAMES:
            self.opens("o/n", folders[name], env)
            env[name] = ""
        home = os.path.join(self.dir, "home")
        self.opens("o/n", folders["HOME"], {"HOME": home, "HF_HUB_CACHE": "~/.cache/huggingface/hub"})

    def test_unfinished_downloads(self):
        self.partial("o/begun", 2)
        self.fails("o/begun", "unfinished", "2 files", "hf download o/begun")
        self.repository("o/empty")
        self.fails("o/empty", "no snapshot", "hf download o/empty")
        self.demo("o/part", A, without=["model.safetensors"])
        self.assertNotIn("unfinished", self.fails("o/part", "no weights here"))
        self.partial("o/part")
        self.fails("o/part", "the download of o/part is unfinished", "`hf download o/part`", "no weights here")
        self.fails("o/part@a1", "`hf download o/part`")
        # what needs no weights does not ask for them
        self.good(self.run_moxie("tokenize", "-m", "o/part", "-p", "x"))
        at = self.demo("o/dangling", A, without=["model.safetensors", "tokenizer.json"])
        for file in ("model.safetensors", "tokenizer.json"):
            os.symlink("../../blobs/none", os.path.join(at, file))
        self.fails("o/dangling", "the download of o/dangling is unfinished", "model.safetensors")
        self.fails("o/dangling", "unfinished", "tokenizer.json", command=("tokenize", "-p", "x"))

    def test_strange_folders(self):
        os.makedirs(self.root)
        open(os.path.join(self.root, "models--o--file"), "w").close()
        self.fails("o/file", "models--o--file", "Not a directory")
        os.symlink("nowhere", os.path.join(self.root, "models--o--link"))
        self.fails("o/link", "not in the Hugging Face cache")
        os.makedirs(os.path.join(self.repository("o/n"), "refs", "main"))
        only = self.snapshot("o/n", A, {}, main=False)
        self.opens("o/n", only)

    def test_unreadable(self):
        folder = self.repository("o/n")
        self.demo("o/n", A)
        os.chmod(self.dir, 0o755)
        os.chmod(folder, 0)
        self.addCleanup(os.chmod, folder, 0o755)
        if os.geteuid() != 0:
            self.fails("o/n", "Permission denied")
            return
        if not os.access(PROGRAM, os.X_OK) or subprocess.run(["true"], user=NOBODY).returncode:
            self.skipTest("cannot become somebody else")
        try:
            r = self.run_moxie("inspect", "-m", "o/n", user=NOBODY)
        except PermissionError:
            self.skipTest("the program is where nobody else can run it")
        self.assertEqual(r.returncode, 3)
        self.assertIn(b"Permission denied", r.stderr)
        listed = self.run_moxie("list", "--json", user=NOBODY)
        model = [m for m in json.loads(self.good(listed))["models"] if m["reference"] == "o/n"][0]
        self.assertEqual(model["state"], "unreadable")
        self.assertIn("Permission denied", model["problem"])


class List(Filled):
    def test_states(self):
        self.fill()
        models = self.list()
        short = {name: (m["state"], m["family"], m["quantization"]) for name, m in models.items()}
        self.assertEqual(short, {
            "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit": ("complete", "qwen3_moe", "4-bit"),
            "real/files": ("complete", "qwen3_moe", "4-bit"),
            "two/commits": ("complete", "qwen3_moe", "4-bit"),
            "two/commits@" + C[:8]: ("complete", "qwen3_moe", "4-bit"),
            "no/shards": ("incomplete", "qwen3_moe", "4-bit"),
            "dangling/weights": ("incomplete", "deepseek_v3", "fp8"),
            "dangling/readme": ("incomplete", "qwen3_moe", "4-bit"),
            "no/tokenizer": ("complete", "qwen3_moe", "4-bit"),
            "no/tokenizer-yet": ("incomplete", "qwen3_moe", "4-bit"),
            "stale/partial": ("complete", "qwen3_moe", "4-bit"),
            "other/family": ("unsupported", "llama", None),
            "other/rope": ("unsupported", "qwen3", None),
            "some/gguf": ("unsupported", None, None),
            "bad/config": ("damaged", None, None),
            "bad/index": ("damaged", "qwen3", None),
            "just/begun": ("incomplete", None, None),
            "a/file": ("unreadable", None, None),
        })
        self.assertEqual(list(models), sorted(models))
        for name, words in {"no/shards": "2 of 3 weight files are missing: model-00002-of-00003.safetensors, model-00003-of-00003.safetensors",
                            "dangling/weights": "model.safetensors", "dangling/readme": "README.md", "no/tokenizer-yet": "tokenizer.json",
                            "other/family": "model_type 'llama' is not supported", "some/gguf": "config.json", "bad/config": "JSON",
                            "just/begun": "3 files"}.items():
            self.assertIn(words, models[name]["problem"])
        for m in models.values():
            self.assertEqual(m["problem"] is None, m["state"] == "complete")
            self.assertTrue(os.path.lexists(m["folder"]))
        self.assertEqual(models["two/commits@" + C[:8]]["revision"], C)
        self.assertIsNone(models["just/begun"]["revision"])

    def test_every_name_can_be_given_to_m(self):
        self.fill()
        models = self.list()
        names = self.good(self.run_moxie("list", "--names")).decode().split()
        self.assertEqual([n for n in names if n != "demo"], [n for n, m in models.items() if m["revision"]])
        for name in names:
            if name != "demo":
                r = self.run_moxie("tokenize", "-m", name, "-p", "x")
                lacking = "config.json" if name == "some/gguf" else "tokenizer.json"
                self.assertIn(os.path.join(models[name]["folder"], lacking), r.stderr.decode())

    def test_size(self):
        at = self.snapshot("o/n", A, {"config.json": config("qwen3"), "model.safetensors": 5_000_000_000})
        os.makedirs(os.path.join(at, "original"))
        with open(os.path.join(at, "original", "x"), "w") as f:
            f.truncate(1000)
        os.symlink(at, os.path.join(at, "original", "loop"))
        self.assertEqual(self.list()["o/n"]["bytes"], 5_000_001_000 + len(config("qwen3")))
        self.assertIn(b"  5.0 GB  ", self.good(self.run_moxie("list")))

    def test_empty_and_missing(self):
        for make in (lambda: None, lambda: os.makedirs(self.root)):
            make()
            r = self.run_moxie("list")
            self.good(r)
            self.assertRegex(r.stderr.decode(), r"\Amoxie: there (is no|are no)[^\n]+%s[^\n]+hf download[^\n]+\n\Z" % re.escape(self.root))
            self.assertEqual(self.run_moxie("list", "-q").stderr, b"")
            self.assertEqual(self.list(), {})

    def test_a_cache_that_cannot_be_looked_at(self):
        """What else there is is listed: the demo model, where the program finds it."""
        file = os.path.join(self.dir, "file")
        open(file, "w").close()
        demo = self.run_moxie("list", "--names").stdout
        for env, code, words in (({}, 0, "neither HF_HUB_CACHE nor HOME is set"), ({"HF_HUB_CACHE": file}, 5, file)):
            for args in (["--names"], [], ["--json"]):
                r = self.run_moxie("list", *args, env=env)
                self.assertEqual(r.returncode, code)
                self.assertIn(words, r.stderr.decode())
                self.assertRegex(r.stderr.decode(), r"\Amoxie: [^\n]+\n\Z")
                if args == ["--names"]:
                    self.assertEqual(r.stdout, demo)
            told = json.loads(r.stdout)
            self.assertEqual(told["cache"], env.get("HF_HUB_CACHE"))
            self.assertEqual([m["reference"] for m in told["models"]], demo.decode().split())
        self.assertEqual(self.run_moxie("list", "-q", env={}).stderr, b"")

    def test_the_demo_model(self):
        """It is listed where the program finds it, and its name can be given to -m."""
        os.makedirs(os.path.join(self.dir, "build"))
        os.makedirs(os.path.join(self.dir, "models"))
        program = shutil.copy(PROGRAM, os.path.join(self.dir, "build/moxie"))
        os.symlink(DEMO, os.path.join(self.dir, "models/demo"))
        run = lambda *args: subprocess.run([program, *args], capture_output=True, timeout=WAIT_S,
                                           env={**BASE_ENV, "HF_HUB_CACHE": self.root}).stdout
        demo = json.loads(run("list", "-q", "--json"))["models"][0]
        self.assertEqual((demo["reference"], demo["state"], demo["revision"]), ("demo", "complete", None))
        self.assertEqual(run("list", "--names"), b"demo\n")
        self.assertEqual(run("tokenize", "-m", "demo", "-p", "abc"), run("tokenize", "-p", "abc"))

    def test_hundreds(self):
        for i in range(300):
            self.snapshot("org/model-%03d" % i, A, {"config.json": config("qwen3"), "model.safetensors": 10})
        self.assertEqual(list(self.list()), ["org/model-%03d" % i for i in range(300)])
        self.assertLess(len(self.good(self.run_moxie("list", "--names")).split()), 302)

    def test_texts_from_files_stay_texts(self):
        self.snapshot("o/n", A, {"config.json": config("\x1b[31mred\nline"), "model.safetensors": 10})
        root = os.fsencode(self.root) + b"\xff\x1b"
        os.rename(self.root, root)
        out = self.run_moxie("list", env={"HF_HUB_CACHE": os.fsdecode(root)}).stdout
        self.assertNotIn(b"\x1b", out)
        model = [m for m in json.loads(self.run_moxie("list", "--json", env={"HF_HUB_CACHE": os.fsdecode(root)}).stdout)["models"]
                 if m["reference"] == "o/n"][0]
        self.assertEqual(model["family"], "\x1b[31mred\nline")
        self.assertIn("\ufffd\x1b/models--o--n", model["folder"])


class Table(Filled):
    """The table in terminals of several widths."""

    def shown(self, columns, *args):
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        with subprocess.Popen([PROGRAM, "list", *args], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL,
                              env={**BASE_ENV, "TERM": "xterm", "HF_HUB_CACHE": self.root}) as child:
            os.close(slave)
            out = b""
            while True:
                try:
                    piece = os.read(master, 65536)
                except OSError:
                    break
                if not piece:
                    break
                out += piece
            self.assertEqual(child.wait(WAIT_S), 0)
        os.close(master)
        return out.decode().replace("\r\n", "\n")

    def test_widths(self):
        self.fill()
        names = list(self.list())
        for columns in (200, 80, 40, 20):
            lines = self.shown(columns, "--color", "off").splitlines()
            for name in names:
                self.assertEqual(sum(line.split()[:1] == [name] for line in lines), 1, (columns, name))
            for line in lines:
                self.assertTrue(len(line) <= columns or line in names, line)
        wide = self.shown(200, "--color", "off").splitlines()
        self.assertEqual(wide[0].split(), ["MODEL", "REVISION", "FAMILY", "WEIGHTS", "SIZE", "STATE"])
        row = [line for line in wide if line.startswith("mlx-")][0]
        self.assertEqual(row.split(), ["mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit", A[:8], "qwen3_moe", "4-bit", "0.0", "MB", "complete"])
        self.assertEqual(row.index("qwen3_moe"), wide[0].index("FAMILY"))
        # without a terminal nothing is folded or cut
        plain = self.good(self.run_moxie("list")).decode()
        self.assertEqual(plain.splitlines()[0].split(), wide[0].split())
        self.assertIn("model-00003-of-00003.safetensors", plain)

    def test_colour(self):
        self.fill()
        for columns in (200, 40):
            self.assertIn("\x1b[1m", self.shown(columns))
            self.assertEqual(re.sub(r"\x1b\[\d*m", "", self.shown(columns)), self.shown(columns, "--color", "off"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
