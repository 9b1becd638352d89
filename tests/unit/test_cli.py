"""The program `moxie` from outside: exit codes, streams, signals, options.

usage: test_cli.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import array
import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

from cli_kit import BASE_ENV, DEMO, ENDLESS, PROGRAM, QUESTION, WAIT_S, Case, full_after, in_terminal, moxie, spawn


class Usage(Case):
    def test_no_command(self):
        r = moxie()
        self.assertEqual((r.returncode, r.stdout), (2, b""))
        self.assertIn(b"usage: moxie COMMAND", r.stderr)

    def test_help(self):
        overview = self.good(moxie("--help"))
        self.assertEqual(overview, self.good(moxie("help")))
        self.assertEqual(overview, self.good(moxie("-h")))
        commands = re.findall(rb"^  (\w+) ", overview, re.M)
        self.assertGreaterEqual(set(commands), {b"run", b"eval", b"inspect", b"tokenize", b"logits", b"bench", b"synth", b"version"})
        for c in commands:
            page = self.good(moxie(c.decode(), "--help"))
            self.assertEqual(page, self.good(moxie("help", c.decode())))
            self.assertIn(b"usage: moxie " + c, page)
            self.assertIn(b"--help", page)
            self.assertLessEqual(max(map(len, page.splitlines())), 100)
        self.assertIn(b"--top-k N", self.good(moxie("run", "--help")))
        self.assertNotIn(b"--top-k N ", self.good(moxie("logits", "--help")))

    def test_help_needs_no_model_and_beats_other_errors(self):
        self.good(moxie("run", "-m", "/nowhere", "--help"))

    def test_version(self):
        text = self.good(moxie("--version"))
        self.assertEqual(text, self.good(moxie("version")))
        self.assertEqual(text, self.good(moxie("run", "--version")))
        devices = re.search(rb"^devices +(.*)$", text, re.M).group(1)
        self.assertEqual(re.sub(rb" \(not on this machine\)", b"", devices), b"cpu emu cuda metal")
        self.assertTrue(devices.startswith(b"cpu emu "))
        self.assertRegex(text, rb"\Amoxie \d+\.\d+\.\d+\n")
        for word in (b"compiler", b"build", b"kernels", b"ref", b"jansson", b"pcre2", b"utf8proc"):
            self.assertIn(word, text)

    def test_unknown_commands_suggest_the_nearest(self):
        self.says(moxie("rnu"), 2, "'rnu'", "did you mean run?")
        self.says(moxie("tokenise"), 2, "did you mean tokenize?")
        self.says(moxie("help", "evil"), 2, "did you mean eval?")
        self.says(moxie("help", "run", "extra"), 2, "one command", "'extra'")
        self.says(moxie("quatsch"), 2, "'quatsch'", "--help")
        self.says(moxie("x" * 5000), 2)
        self.says(moxie(""), 2)
        self.says(moxie("-m", DEMO, "run"), 2, "the command comes before '-m'")

    def test_unknown_options_suggest_the_nearest(self):
        self.says(moxie("run", "--tmep", "1"), 2, "--tmep", "did you mean --temp?")
        self.says(moxie("run", "--top_k=3"), 2, "--top_k", "did you mean --top-k?")
        self.says(moxie("inspect", "--temp", "1"), 2, "inspect has no option --temp")
        self.says(moxie("run", "--warp-nine"), 2, "`moxie run --help`")
        self.says(moxie("run", "-Z"), 2, "-Z")
        self.says(moxie("run", "--" + "y" * 5000), 2)

    def test_values(self):
        for args, words in [
            (["--temp"], "--temp needs a value"),
            (["-n"], "-n needs a value"),
            (["--temp", "warm"], "a number from 0 to 100, not 'warm'"),
            (["--temp", ""], "not ''"),
            (["--temp", "1x"], "not '1x'"),
            (["--temp", " 1"], "not ' 1'"),
            (["--temp", "nan"], "'nan'"),
            (["--temp", "inf"], "'inf'"),
            (["--temp", "0x1p3"], "'0x1p3'"),
            (["--temp", "-1"], "'-1'"),
            (["--temp", "1e999"], "'1e999'"),
            (["--temp=101"], "'101'"),
            (["--top-p", "1.01"], "from 0 to 1"),
            (["--min-p", "-0.1"], "from 0 to 1"),
            (["--top-k", "-1"], "a whole number from 0"),
            (["--top-k", "1.5"], "'1.5'"),
            (["--top-k", "99999999999999999999"], "a whole number"),
            (["-n", "12k"], "'12k'"),
            (["-n-5"], "'-5'"),
            (["-c", "0"], "from 1"),
            (["-c", "32kk"], "'32kk'"),
            (["-c", "9007199254740993k"], "a whole number"),
            (["-t", "0"], "from 1 to 1024"),
            (["--seed", "-1"], "from 0"),
            (["--repeat-penalty", "0"], "from 0.1 to 10"),
            (["--presence-penalty", "1e9"], "from -100 to 100"),
            (["--kv-type", "q4"], "f32|f16|q8, not 'q4'"),
            (["--kv-type", "f"], "not 'f'"),
            (["--kv-type", ""], "not ''"),
            (["--color", "maybe"], "auto|on|off"),
            (["--device", "abacus"], "not 'abacus'"),
            (["--isa", "z80", "--raw", "-p", "x"], "'z80' is not a level that this processor and build have; they "),
            (["--ram", "12"], "a size from 1M to 8192T, such as 512M or 0.5G, not '12'"),
            (["--ram", "1K"], "from 1M"),
            (["--raw=yes"], "--raw takes no value"),
            (["-qx"], "-q takes no value"),
            (["word"], "'word'"),
            (["-p", "a", "-f", "b", "--raw"], "one text only"),
            (["-p", "a", "-", "--raw"], "one text only"),
        ]:
            with self.subTest(args=args):
                self.says(moxie("run", "-m", DEMO, *args), 2, words)
        self.says(moxie("serve", "-m", DEMO, "--body-limit", "2G"), 2, "a size from 1K to 1G")
        self.says(moxie("serve", "-m", DEMO, "--prefix-cache", "0"), 2, "a size from 0M to")
        self.says(moxie("list", "--names", "--json"), 2, "--names and --json")

    def test_no_gpu(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("this machine has one")
        words = ["run", "-m", DEMO, "--raw", "--temp", "0", "-n", "4", "-q", "-p", "x"]
        done = moxie(*words, "--device", "cuda")  # one line that says so, and the processor computes
        self.assertEqual((done.returncode, done.stdout), (0, self.good(moxie(*words))))
        self.assertIn(b"NVIDIA", done.stderr)
        self.assertIn(b"; the cpu computes\n", done.stderr)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)

    def test_no_metal(self):
        if sys.platform == "darwin":
            self.skipTest("this machine has one")
        words = ("run", "-m", DEMO, "-q", "--raw", "--temp", "0", "-n", "4", "-p", "x")
        done = moxie(*words, "--device", "metal")
        self.assertEqual((done.returncode, done.stdout), (0, self.good(moxie(*words))))
        self.assertIn(b"no Metal", done.stderr)
        self.assertIn(b"; the cpu computes\n", done.stderr)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)

    def test_environment_stands_behind_flags(self):
        ids = self.good(moxie("tokenize", "-p", "abc", env={"MOXIE_MODEL": DEMO}))
        self.assertEqual(ids, self.good(moxie("tokenize", "-m", DEMO, "-p", "abc", env={"MOXIE_MODEL": "/nowhere"})))
        self.says(moxie("tokenize", "-p", "abc", env={"MOXIE_MODEL": "/nowhere"}), 3, "/nowhere")
        self.says(moxie("run", env={"MOXIE_TOP_K": "many"}), 2, "MOXIE_TOP_K", "'many'")
        self.says(moxie("run", env={"MOXIE_RAW": "perhaps"}), 2, "MOXIE_RAW takes 0 or 1")
        self.good(moxie("version", env={"MOXIE_TOP_K": "many"}))  # not an option of this command
        special = {"MOXIE_SPECIAL": "1"}
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "-p", "<|im_end|>", env=special)),
                         self.good(moxie("tokenize", "-m", DEMO, "-p", "<|im_end|>", "--special")))
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "-p", "abc", env={"MOXIE_PROMPT": "other"})), ids)
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "-p", "abc", env={"MOXIE_FILE": "/nowhere"})), ids)


class Models(Case):
    def test_missing_and_invalid(self):
        for command in (["run", "--raw", "-p", "x"], ["inspect"], ["tokenize", "-p", "x"], ["eval", "-p", "x y z"],
                        ["logits", "--tokens", self.path("ids", b"1 2"), "--out", self.path("out")]):
            with self.subTest(command=command):
                self.says(moxie(*command, "-m", self.path("none")), 3, "none", "no such folder")
                self.says(moxie(*command, "-m", self.path("file", b"x")), 3, "no such folder")
                empty = self.path("empty")
                os.makedirs(empty, exist_ok=True)
                self.says(moxie(*command, "-m", empty), 3, "empty/config.json", "a model is a folder with")
        self.assertFalse(os.path.exists(self.path("out")))

    def test_demo_beside_the_program(self):
        os.makedirs(self.path("build"))
        os.makedirs(self.path("models"))
        shutil.copy(PROGRAM, self.path("build/moxie"))
        run = lambda: subprocess.run([self.path("build/moxie"), "tokenize", "-p", "abc"], capture_output=True,
                                     env=BASE_ENV, timeout=WAIT_S)
        r = run()
        if r.returncode:  # not installed on this machine either
            self.says(r, 3, "demo model", "-m")
        os.symlink(DEMO, self.path("models/demo"))
        self.assertEqual(self.good(run()), self.good(moxie("tokenize", "-m", DEMO, "-p", "abc")))

    def test_a_folder_whose_name_is_no_utf8(self):
        folder = os.fsencode(self.path("caf")) + b"\xe9"
        os.symlink(DEMO, folder)
        page = self.good(moxie("bench", "-m", folder, "-q", "-t", "1", "-o", "json", "-p", "1", "-n", "0", "-r", "1"))
        self.assertEqual(json.loads(page.decode())["model"], self.path("caf\ufffd"))

    def test_inspect(self):
        page = self.good(moxie("inspect", "-m", DEMO)).decode()
        for word in ("family", "parameters", "vocabulary", "types", "stop ids", "1k tokens", "tokenizer"):
            self.assertIn(word, page)
        self.assertNotIn("\x1b", page)
        self.assertIn("\x1b[1m", self.good(moxie("inspect", "-m", DEMO, "--color", "on")).decode())
        facts = json.loads(self.good(moxie("inspect", "-m", DEMO, "--json")))
        with open(os.path.join(DEMO, "config.json")) as f:
            config = json.load(f)
        text = config.get("text_config", config)
        self.assertEqual(facts["n_layers"], text["num_hidden_layers"])
        self.assertEqual(facts["n_vocab"], text["vocab_size"])
        self.assertEqual(facts["d_model"], text["hidden_size"])
        self.assertEqual(facts["n_layers"], facts["n_layers_dense"] + facts["n_layers_moe"])
        self.assertEqual(sum(t["params"] for t in facts["types"]), facts["params_total"])
        self.assertEqual(sum(t["bytes"] for t in facts["types"]), facts["bytes_total"])
        self.assertLessEqual(facts["params_active"], facts["params_total"])
        with open(os.path.join(DEMO, "generation_config.json")) as f:
            generation = json.load(f)
        self.assertEqual(facts["generation"]["stop_ids"], generation["eos_token_id"])
        self.assertAlmostEqual(facts["generation"]["temperature"], generation["temperature"], places=6)

    def test_stop_ids_are_those_of_all_files(self):
        def ids(folder):
            return json.loads(self.good(moxie("inspect", "-m", folder, "--json")))["generation"]["stop_ids"]
        folder = self.copy_demo(tokenizer_config=lambda c: c.update(eos_token="<think>"))
        own = int(self.good(moxie("tokenize", "-m", folder, "--special", "-p", "<think>")))
        self.assertNotIn(own, ids(DEMO))
        self.assertEqual(ids(folder), ids(DEMO) + [own])
        self.assertIn("%d <think>" % own, self.good(moxie("inspect", "-m", folder)).decode().split("stop ids")[1])

    def checkpoint(self, name, config, shapes):
        """A checkpoint of zeros in BF16."""
        folder = self.path(name)
        os.makedirs(folder)
        header, at = {}, 0
        for tensor, shape in shapes.items():
            size = 2
            for n in shape:
                size *= n
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        self.path(name + "/model.safetensors", struct.pack("<Q", len(text)) + text + bytes(at))
        self.path(name + "/config.json", json.dumps(config).encode())
        return folder

    def test_the_layout_is_that_of_the_tensors(self):
        sizes = {"vocab_size": 8, "num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 1, "head_dim": 4,
                 "intermediate_size": 4, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 1e4}
        experts = {**sizes, "model_type": "qwen3_moe", "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 4}
        linear = {**sizes, "model_type": "qwen3_5", "head_dim": 8, "layer_types": ["linear_attention"], "linear_num_key_heads": 1,
                  "linear_num_value_heads": 1, "linear_key_head_dim": 4, "linear_value_head_dim": 4,
                  "linear_conv_kernel_dim": 2}
        square, row = [4, 4], [4]
        common = {"embed_tokens.weight": [8, 4], "norm.weight": row, "layers.0.input_layernorm.weight": row,
                  "layers.0.post_attention_layernorm.weight": row}
        attention = {"layers.0.self_attn.%s.weight" % n: square for n in ("q_proj", "k_proj", "v_proj", "o_proj")}
        attention |= {"layers.0.self_attn.%s_norm.weight" % n: row for n in "qk"}
        dense = {"layers.0.mlp.%s_proj.weight" % n: square for n in ("gate", "up", "down")}
        single = {"layers.0.mlp.experts.%d.%s_proj.weight" % (e, n): square for e in (0, 1) for n in ("gate", "up", "down")}
        stacked = {"layers.0.mlp.switch_mlp.%s_proj.weight" % n: [2, 4, 4] for n in ("gate", "up", "down")}
        router = {"layers.0.mlp.gate.weight": [2, 4]}
        delta = {"in_proj_qkv.weight": [12, 4], "in_proj_z.weight": square, "in_proj_b.weight": [1, 4], "in_proj_a.weight": [1, 4],
                 "A_log": [1], "dt_bias": [1], "norm.weight": row, "out_proj.weight": square}
        delta = {"layers.0.linear_attn." + n: shape for n, shape in delta.items()} | dense
        conv = "layers.0.linear_attn.conv1d.weight"
        plain = {**sizes, "model_type": "qwen3"}
        for name, prefix, layout, config, shapes in (
                ("dense", "model.", "Hugging Face", plain, attention | dense),
                ("prefix", "language_model.model.", "MLX", plain, attention | dense),
                ("experts", "model.", "Hugging Face", experts, attention | router | single),
                ("stacked", "model.", "MLX", experts, attention | router | stacked),
                ("linear", "model.language_model.", "Hugging Face", linear, delta | {conv: [12, 1, 2]}),
                ("turned", "model.language_model.", "MLX", linear, delta | {conv: [12, 2, 1]})):
            with self.subTest(name=name):
                folder = self.checkpoint(name, config, {prefix + n: shape for n, shape in (common | shapes).items()})
                r = moxie("inspect", "-m", folder, "--json")
                self.assertEqual((json.loads(self.good(r))["layout"], r.stderr), (layout, b""))
        self.assertIn(b"tensors, all used\n", self.good(moxie("inspect", "-m", folder)))
        more = {"layers.0.strange.weight": row, "strange.weight": row}
        shapes = {"model." + n: shape for n, shape in (common | attention | dense | more).items()}
        r = moxie("inspect", "-m", self.checkpoint("strange", plain, shapes))
        page = self.good(r).decode()
        self.assertRegex(page, r"with 15 tensors\n +2 of them not used")
        self.assertIn(" 1 head and 1 key-value head of 4\n", page)
        self.assertIn(b"not used (", r.stderr)

    def test_inspect_without_a_tokenizer(self):
        for name in os.listdir(DEMO):
            if not name.startswith("tokenizer"):
                os.symlink(os.path.join(DEMO, name), self.path(name))
        self.assertIn(b"no tokenizer.json", self.good(moxie("inspect", "-m", self.dir)))
        self.assertIsNone(json.loads(self.good(moxie("inspect", "-m", self.dir, "--json")))["tokenizer"])
        self.says(moxie("run", "-m", self.dir, "--raw", "-p", "x"), 3, "tokenizer.json")


class Tokenize(Case):
    def encode(self, data, *args):
        r = moxie("tokenize", "-m", DEMO, "-", *args, stdin=data)
        return self.good(r)

    def test_round_trips(self):
        texts = [b"", b"Hello, world!\n", "Grüße, 你好, 🙂 é".encode(), b"  two  blanks\t\ttabs\n\n\nlines ",
                 b"nul \0 inside", b"\xff\xfe broken \xe2\x82", bytes(range(256)), QUESTION.encode(),
                 b"x" * 20000, b"\n" * 20000]
        for text in texts:
            for special in ([], ["--special"]):
                with self.subTest(text=text[:30], special=special):
                    ids = self.encode(text, *special)
                    self.assertRegex(ids, rb"\A(\d+( \d+)*)?\n\Z")
                    self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "--decode", stdin=ids)), text)
                    array = self.encode(text, "--json", *special)
                    self.assertEqual(json.loads(array), {"ids": [int(i) for i in ids.split()]})
                    again = json.dumps(json.loads(array)["ids"]).encode()
                    self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "--decode", "-p", again)), text)

    def test_sources_agree(self):
        text = "one text\n"
        ids = self.encode(text.encode())
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, stdin=text.encode())), ids)  # piped, no "-"
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "-p", text)), ids)
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "-f", self.path("t", text.encode()))), ids)
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "-f", "-", stdin=text.encode())), ids)
        self.says(moxie("tokenize", "-m", DEMO, "-f", self.path("none")), 2, "none")
        self.says(moxie("tokenize", "-m", DEMO, "-f", self.dir), 5, "read error")

    def test_special_tokens_only_when_asked(self):
        plain, special = self.encode(b"<|im_end|>"), self.encode(b"<|im_end|>", "--special")
        self.assertEqual(len(special.split()), 1)
        self.assertGreater(len(plain.split()), 1)

    def test_a_pattern_without_a_scanner(self):
        def slow(content):
            content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = \
                r"[a-z]+(?=X)|\s*[\r\n]+|\s+(?!\S)|\s+|."
        folder = self.copy_demo(tokenizer=slow)
        spaces = b" " * (1 << 20)
        ids = self.good(moxie("tokenize", "-m", folder, stdin=spaces))
        self.assertEqual(self.good(moxie("tokenize", "-m", folder, "--decode", stdin=ids)), spaces)
        start = time.monotonic()
        self.says(moxie("tokenize", "-m", folder, stdin=b"a" * 20000), 1, "split pattern", "too slow")
        self.assertLess(time.monotonic() - start, 5)

    def test_a_folder_with_only_the_tokenizer(self):
        shutil.copy(os.path.join(DEMO, "tokenizer.json"), self.dir)
        self.assertEqual(self.good(moxie("tokenize", "-m", self.dir, "-p", "abc")),
                         self.good(moxie("tokenize", "-m", DEMO, "-p", "abc")))

    def test_bad_ids(self):
        for ids, words in [(b"1 2 x", "'x' where token 2"), (b"1,2", "'1,2' where token 0"), (b"-1", "'-1'"),
                           (b"1.5", "'1.5'"), (b"99999999999", "token 0"), (b"[1, 2", "token 2"), (b"[1 2]", "token 1"),
                           (b"[1,]", "token 1"), (b"[1] 2", "token 1"), (b"]", "token 0"), (b"1 \0 2", "token 1"),
                           (b"1 2000000000", "token 1 is 2000000000")]:
            with self.subTest(ids=ids):
                r = moxie("tokenize", "-m", DEMO, "--decode", stdin=ids)
                self.assertEqual(r.returncode, 2, r.stderr)
                self.assertEqual(r.stdout, b"")
                self.assertRegex(r.stderr.decode(), r"\Amoxie: [^\n]+\n\Z")
                self.assertIn(words, r.stderr.decode())
        self.says(moxie("tokenize", "-m", DEMO, "--decode", "--json", stdin=b"1"), 2, "--json")


class Streams(Case):
    def test_full_and_closed_stdout(self):
        for args in (ENDLESS, ["inspect", "-m", DEMO], ["tokenize", "-m", DEMO, "-p", "abc"], ["--help"], ["version"],
                     ["run", "--help"]):
            with self.subTest(args=args[0]):
                with open("/dev/full", "wb") as full:
                    r = subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=full,
                                       stderr=subprocess.PIPE, env=BASE_ENV, timeout=WAIT_S)
                self.assertEqual(r.returncode, 5)
                self.assertEqual(r.stderr.count(b"cannot write to standard output"), 1, r.stderr)
                r = subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=BASE_ENV,
                                   timeout=WAIT_S, preexec_fn=lambda: os.close(1))
                self.assertEqual(r.returncode, 5)
                self.assertEqual(r.stderr.count(b"cannot write to standard output"), 1, r.stderr)

    def test_a_reader_that_leaves(self):
        child = spawn(*ENDLESS, "-c", "4096", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertNotEqual(child.stdout.read(1), b"")
        child.stdout.close()
        err = child.stderr.read()
        child.stderr.close()
        self.assertEqual(child.wait(WAIT_S), 5)
        self.assertIn(b"moxie: cannot write to standard output", err)

    def test_closed_stdin_and_stderr(self):
        r = subprocess.run([PROGRAM, "run", "-m", DEMO, "--raw", "--special", "--temp", "0", "-p", QUESTION],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=BASE_ENV, timeout=WAIT_S,
                           preexec_fn=lambda: os.close(2))
        self.assertEqual((r.returncode, r.stdout), (0, b"The capital of France is Paris.\n"))
        r = subprocess.run([PROGRAM, "tokenize", "-m", DEMO], capture_output=True, env=BASE_ENV, timeout=WAIT_S,
                           preexec_fn=lambda: os.close(0))
        self.says(r, 5, "standard input")

    def test_terminal(self):
        nasty = "a\x1b[31mb\x07\rc\x7f\u009bd\te\n"
        ids = self.good(moxie("tokenize", "-m", DEMO, "-p", nasty)).decode()
        shown, code = in_terminal("tokenize", "-m", DEMO, "--decode", "-p", ids)
        self.assertEqual((shown.decode(), code), ("a[31mbcd\te\n", 0))
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "--decode", "-p", ids)).decode(), nasty)

    def test_color(self):
        page = ["inspect", "-m", DEMO]
        self.assertIn(b"\x1b[1m", in_terminal(*page)[0])
        for env, args in [({"TERM": "dumb"}, []), ({"TERM": ""}, []), ({"NO_COLOR": "1"}, []),
                          ({}, ["--color", "off"])]:
            self.assertNotIn(b"\x1b", in_terminal(*page, *args, env=env)[0])
        self.assertIn(b"\x1b[1m", self.good(moxie(*page, env={"CLICOLOR_FORCE": "1"})))
        env = {k: v for k, v in BASE_ENV.items() if k != "TERM"}
        r = subprocess.run([PROGRAM, *page], stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=WAIT_S)
        self.assertNotIn(b"\x1b", self.good(r))


class Signals(Case):
    def start(self, *extra, **how):
        child = spawn(*ENDLESS, "-c", "4096", *extra, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.stderr.close)
        return child

    def end(self, child, *codes):
        out, err = child.stdout.read(), child.stderr.read()
        self.assertIn(child.wait(WAIT_S), codes, err)
        return out, err

    def catches(self, child, number):
        self.assertIsNone(child.poll())
        with open(f"/proc/{child.pid}/status") as status:
            return int(re.search(r"SigCgt:\s*(\w+)", status.read())[1], 16) >> (number - 1) & 1

    def test_ctrl_c_ends_the_reply(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            child = self.start()
            self.assertNotEqual(child.stdout.read(1), b"")  # it is generating
            child.send_signal(number)
            out, err = self.end(child, code)
            self.assertTrue(out.endswith(b"\n"))
            self.assertIn(b"moxie: prompt", err)

    def test_ctrl_c_with_json(self):
        child = self.start("--json", "--isa", "ref", "-t", "1")
        while not self.catches(child, signal.SIGINT):  # there is no output to wait for
            time.sleep(0.01)
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
        out, _ = self.end(child, 130)
        self.assertEqual(json.loads(out)["stop_reason"], "cancelled")

    def test_ctrl_c_while_nobody_reads(self):
        """A write that waits goes on when somebody reads again, and nothing of it is lost."""
        for extra in ((), ("--json",)):
            child = self.start("-n", "3000", *extra, pipesize=4096)
            size, full = fcntl.fcntl(child.stdout, fcntl.F_GETPIPE_SZ), array.array("i", [0])
            self.assertLessEqual(size, 4096 * 4, "the pages of this machine are large: ask for a longer reply")
            while full[0] < size - 256:  # a token is written whole or not at all
                self.assertIsNone(child.poll())
                time.sleep(0.01)
                fcntl.ioctl(child.stdout, termios.FIONREAD, full)
            time.sleep(0.3)
            child.send_signal(signal.SIGINT)
            time.sleep(0.1)
            out, err = self.end(child, 130)
            self.assertNotIn(b"cannot write", err)
            self.assertTrue(out.endswith(b"\n"))
            if extra:
                self.assertIn("stop_reason", json.loads(out))

    def test_the_second_signal_ends_it_at_once(self):
        # Each may be given to a thread of its own, and late, so the first must not end it meanwhile: a layer takes long.
        child = self.start("--isa", "ref", "-p", "word " * 400)
        while not self.catches(child, signal.SIGINT):  # there is no output to wait for
            time.sleep(0.01)
        time.sleep(0.3)
        child.send_signal(signal.SIGSTOP)  # so that both wait and are delivered together
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        _, err = self.end(child, 130, 143)  # whichever handler ran last
        self.assertEqual(err, b"")  # no statistics: it did not end by itself


class Logits(Case):
    IDS = b"1 2 3 4 5\n6 7 8 9 10 11\n"

    def rows(self, *args, ids=IDS):
        out = self.path("out")
        self.good(moxie("logits", "-m", DEMO, "--tokens", self.path("ids", ids), "--out", out, *args))
        with open(out, "rb") as f:
            data = f.read()
        os.remove(out)
        self.assertEqual(os.listdir(self.dir), ["ids"])  # no temporary left
        row_bytes = len(data) // len(ids.split())
        return [struct.unpack_from("<%df" % (row_bytes // 4), data, i) for i in range(0, len(data), row_bytes)]

    def test_rows(self):
        whole = self.rows("--exact")
        n_vocab = json.loads(self.good(moxie("inspect", "-m", DEMO, "--json")))["n_vocab"]
        self.assertEqual([len(r) for r in whole], [n_vocab] * 11)
        for args in (["--chunk", "4"], ["--step"], ["--chunk", "1k"]):
            for a, b in zip(whole, self.rows("--exact", *args)):
                scale = max(a) - min(a)
                self.assertLess(max(abs(x - y) for x, y in zip(a, b)), 5e-5 * scale)
        self.assertGreater(max(abs(x - y) for x, y in zip(whole[3], whole[4])), 0.1)  # rows do differ
        r = moxie("logits", "-m", DEMO, "--tokens", "-", "--out", "-", "--exact", stdin=self.IDS)
        self.assertEqual(self.good(r), b"".join(struct.pack("<%df" % n_vocab, *row) for row in whole))

    def test_refusals(self):
        ids, out = self.path("ids", b"1 2 3"), self.path("out")
        run = lambda *args, **kw: moxie("logits", "-m", DEMO, *args, **kw)
        self.says(run("--tokens", ids), 2, "--out")
        self.says(run("--out", out), 2, "--tokens")
        self.says(run("--tokens", ids, "--out", out, "--step", "--chunk", "2"), 2, "--step")
        self.says(run("--tokens", self.path("none"), "--out", out), 2, "none")
        self.says(run("--tokens", ids, "--out", out, "-c", "2"), 4, "3 tokens")
        self.says(run("--tokens", ids, "--out", self.path("no/folder")), 5, "no/folder")
        for bad, words in [(b"", "no token ids"), (b"  \n", "no token ids"), (b"1 two 3", "'two' where token 1"),
                           (b"1 -2", "'-2'"), (b"5 999999", "token 1 is 999999")]:
            self.says(run("--tokens", self.path("bad", bad), "--out", out), 2, words)
        self.assertFalse(os.path.exists(out))

    def test_a_full_disk(self):
        ids = self.path("ids", self.IDS)
        self.says(moxie("logits", "-m", DEMO, "--tokens", ids, "--out", "/dev/full"), 5, "/dev/full")
        self.assertTrue(os.path.exists("/dev/full"))  # a device is not replaced
        out = self.path("out", b"precious")
        r = moxie("logits", "-m", DEMO, "--tokens", ids, "--out", out, preexec_fn=full_after(5000))
        self.says(r, 5, out, "after 5000 bytes")
        self.assertEqual(sorted(os.listdir(self.dir)), ["ids", "out"])  # no temporary left
        with open("/dev/full", "wb") as full:
            r = subprocess.run([PROGRAM, "logits", "-m", DEMO, "--tokens", ids, "--out", "-"], stdin=subprocess.DEVNULL,
                               stdout=full, stderr=subprocess.PIPE, env=BASE_ENV, timeout=WAIT_S)
        self.assertEqual((r.returncode, r.stderr.count(b"\n")), (5, 1))

    def test_an_existing_file_survives_a_failure(self):
        out = self.path("out", b"precious")
        self.says(moxie("logits", "-m", DEMO, "--tokens", self.path("ids", b"1 2"), "--out", out, "-c", "1"), 4)
        with open(out, "rb") as f:
            self.assertEqual(f.read(), b"precious")


class Eval(Case):
    BOS = "ing"
    TEXT = (QUESTION + "The capital of France is Paris.<|im_end|>\n") * 3

    def evaluate(self, *args, text=TEXT):
        r = moxie("eval", "-m", DEMO, "--special", "-q", "--json", "-p", text, *args)
        self.assertEqual(r.stderr, b"")
        return json.loads(self.good(r))

    def test_perplexity_from_the_logits(self):
        ids = self.good(moxie("tokenize", "-m", DEMO, "--special", "-p", self.TEXT))
        tokens = [int(i) for i in ids.split()]
        raw = self.good(moxie("logits", "-m", DEMO, "--tokens", "-", "--out", "-", "--exact", stdin=ids))
        n_vocab = len(raw) // len(tokens) // 4
        from math import exp, log
        losses = []
        for i, token in enumerate(tokens[1:]):
            row = struct.unpack_from("<%df" % n_vocab, raw, i * n_vocab * 4)
            top = max(row)
            losses.append(top + log(sum(exp(x - top) for x in row)) - row[token])
        mean = sum(losses) / len(losses)
        error = (sum((x - mean) ** 2 for x in losses) / (len(losses) - 1) / len(losses)) ** 0.5
        o = self.evaluate("--exact", "-t", "2")
        self.assertEqual({k: o["kernels"][k] for k in ("precision", "kv_type", "threads")},
                         {"precision": "exact", "kv_type": "f32", "threads": 2})
        narrow = json.loads(self.good(moxie("eval", "-m", DEMO, "-p", "a b c", "--kv-type", "q8", "--json", "-q")))
        self.assertEqual(narrow["kernels"]["kv_type"], "q8")
        self.assertEqual((o["tokens"], o["predicted"], o["windows"]), (len(tokens), len(losses), 1))
        self.assertAlmostEqual(o["nll"], mean, delta=1e-4)
        self.assertAlmostEqual(o["nll_stderr"], error, delta=1e-4)
        self.assertAlmostEqual(o["perplexity"], exp(mean), delta=1e-3 * exp(mean))

    def test_windows(self):
        n = self.evaluate()["tokens"]
        o = self.evaluate("-c", "16")
        self.assertEqual(o["windows"], -(-n // 16) - (n % 16 == 1))
        self.assertEqual(o["predicted"], n - -(-n // 16))

    def test_against(self):
        o = self.evaluate("--against", "exact")["against"]
        self.assertEqual(o["setting"], "exact")
        self.assertTrue(0 < o["kl_mean"] <= o["kl_max"] < 1e-3, o)
        self.assertGreater(o["top1_agreement"], 0.98)
        same = self.evaluate("--against", "exact", "--exact")["against"]
        self.assertLess(abs(same["kl_max"]), 1e-12)
        self.assertEqual(same["top1_agreement"], 1)
        page = self.good(moxie("eval", "-m", DEMO, "-q", "-p", "one two three", "--against", "exact")).decode()
        for word in ("perplexity", "against exact", "KL", "top-1", " kernels, default precision, f16 cache, ",
                     " kernels, exact precision, f32 cache, "):
            self.assertIn(word, page)

    def test_a_bos_that_merging_does_not_make(self):
        """It is one id all the same, once in front of every window."""
        def unmerge(content):
            content["model"]["merges"] = [m for m in content["model"]["merges"] if "".join(m) != self.BOS]
        folder = self.copy_demo(tokenizer=unmerge, tokenizer_config=lambda c: c.update(bos_token=self.BOS, add_bos_token=True))
        with open(os.path.join(folder, "tokenizer.json")) as f:
            bos = json.load(f)["model"]["vocab"][self.BOS]
        pieces = self.good(moxie("tokenize", "-m", folder, "-p", self.BOS)).split()
        self.assertGreater(len(pieces), 1)
        text = "one two three four five"
        n = len(self.good(moxie("tokenize", "-m", folder, "-p", text)).split())
        self.says(moxie("eval", "-m", folder, "-p", text, "-c", "1"), 2, "at least 2")
        for c in (2, 4, 1000):
            o = json.loads(self.good(moxie("eval", "-m", folder, "-p", text, "-q", "--json", "-c", str(c))))
            self.assertEqual((o["tokens"], o["predicted"], o["windows"]), (n, n, -(-n // (c - 1))))
        o = json.loads(self.good(moxie("run", "-m", folder, "--raw", "-p", text, "-q", "--json", "-n", "0")))
        self.assertEqual(o["prompt_tokens"], n + 1)
        # the first window of 2 is what `logits` says of BOS and the first token
        first = self.good(moxie("tokenize", "-m", folder, "-p", "one")).split()[0]
        raw = self.good(moxie("logits", "-m", folder, "--tokens", "-", "--out", "-", stdin=b"%d %s" % (bos, first)))
        row = struct.unpack_from("<%df" % (len(raw) // 8), raw)
        from math import exp, log
        top = max(row)
        nll = top + log(sum(exp(x - top) for x in row)) - row[int(first)]
        o = json.loads(self.good(moxie("eval", "-m", folder, "-p", self.good(moxie(
            "tokenize", "-m", folder, "--decode", "-p", first.decode())).decode(), "-q", "--json", "-c", "2")))
        self.assertEqual(o["predicted"], 1)
        self.assertAlmostEqual(o["nll"], nll, delta=1e-4)

    def test_refusals(self):
        self.says(moxie("eval", "-m", DEMO, "-p", ""), 2, "has 0 tokens: there is nothing to predict")
        self.says(moxie("eval", "-m", DEMO, "-p", "a"), 2, "has 1 token: ")
        self.says(moxie("eval", "-m", DEMO, "-p", "one two three", "-c", "1"), 2, "at least 2")
        self.says(moxie("eval", "-m", DEMO, "-p", "x", "--against", "best"), 2, "exact|default")


class Machine(Case):
    """Few cores and many threads change no byte and break nothing."""

    def test_threads(self):
        args = ["run", "-m", DEMO, "--raw", "-p", "Once there was", "-n", "12", "--temp", "0", "-q"]
        want = self.good(moxie(*args, "-t", "1"))
        one = sorted(os.sched_getaffinity(0))[:1]
        for extra in (["-t", "2"], ["-t", "33"], ["--pin"], ["--pin", "-t", "5"], ["--weights", "copy"]):
            self.assertEqual(self.good(moxie(*args, *extra)), want, extra)
            self.assertEqual(self.good(moxie(*args, *extra, preexec_fn=lambda: os.sched_setaffinity(0, one))), want, extra)

    def test_one_processor_is_one_thread(self):
        one = sorted(os.sched_getaffinity(0))[:1]
        r = moxie("eval", "-m", DEMO, "-q", "--json", "-p", "Once there was a girl", preexec_fn=lambda: os.sched_setaffinity(0, one))
        self.assertEqual(json.loads(self.good(r))["kernels"]["threads"], 1)


class Bench(Case):
    QUICK = ["-r", "2", "-p", "8,40", "-d", "0,100", "-n", "4"]

    def bench(self, *args, model=("-m", DEMO)):
        return json.loads(self.good(moxie("bench", *model, "-q", "-o", "json", *self.QUICK, *args)))

    def test_rows(self):
        rows = self.bench("-t", "1,2")["rows"]
        self.assertEqual([(r["test"], r["threads"]) for r in rows],
                         [(test, t) for t in (1, 2) for test in ("pp8", "pp40", "tg4", "tg4@100")])
        for r in rows:
            self.assertEqual(r["samples"], 2)
            self.assertTrue(0 < r["tokens_per_s_min"] <= r["tokens_per_s"] <= r["tokens_per_s_max"], r)
            for name in ("bytes_per_token", "probe_gbytes_per_s", "peak_gmac_per_s", "macs_per_token"):
                self.assertGreater(r[name], 0)
            self.assertAlmostEqual(r["gbytes_per_s"], r["bytes_per_token"] * r["tokens_per_s"] / 1e9, delta=1e-6 * r["gbytes_per_s"])
            self.assertAlmostEqual(r["gmac_per_s"], r["macs_per_token"] * r["tokens_per_s"] / 1e9, delta=1e-6 * r["gmac_per_s"])
        facts = json.loads(self.good(moxie("inspect", "-m", DEMO, "--json")))
        by_test = {r["test"]: r for r in rows}
        # generating reads less than the whole model, and 100 positions more at depth 100
        self.assertLess(by_test["tg4"]["bytes_per_token"], facts["bytes_total"])
        self.assertGreater(by_test["tg4"]["bytes_per_token"], facts["bytes_total"] - facts["bytes_experts"] - 2 * 2048 * 256)
        deeper = by_test["tg4@100"]["bytes_per_token"] - by_test["tg4"]["bytes_per_token"]
        self.assertAlmostEqual(deeper, 100 * facts["kv_bytes_per_token"], delta=1)
        self.assertLess(by_test["pp40"]["bytes_per_token"], by_test["pp8"]["bytes_per_token"])

    def test_streams(self):
        one, both = self.bench("-t", "1", "-p", "0", "-d", "50", "--streams", "1,6")["rows"]
        self.assertEqual([(r["test"], r["streams"], r["tokens"]) for r in (one, both)], [("tg4@50", 1, 4), ("tg4x6@50", 6, 24)])
        # every token multiplies as much; weights that several need are read once for all
        self.assertAlmostEqual(one["macs_per_token"], both["macs_per_token"], delta=1e-6 * one["macs_per_token"])
        self.assertLess(both["bytes_per_token"], one["bytes_per_token"] / 1.5)

    def test_settings(self):
        for args, level, precision in ((("--isa", "ref"), "ref", "default"), (("--exact",), None, "exact"),
                                       (("--fast",), None, "fast")):
            for r in self.bench("-t", "1", *args)["rows"]:
                self.assertEqual(r["precision"], precision)
                self.assertTrue(level is None or r["level"] == level)

    def test_forms(self):
        table = self.good(moxie("bench", "-m", DEMO, "-q", "-t", "1", *self.QUICK)).decode().splitlines()
        self.assertEqual([line.split()[0] for line in table[2:-1]], ["pp8", "pp40", "tg4", "tg4@100"])
        self.assertIn(" kernels, default precision, f16 cache (peak of ", table[0])
        self.assertRegex(table[-1], "^weights: mapped")
        csv = [line.split(",") for line in
               self.good(moxie("bench", "-m", DEMO, "-q", "-t", "1", "-o", "csv", *self.QUICK)).decode().splitlines()]
        self.assertEqual({len(line) for line in csv}, {len(csv[0])})
        self.assertIn("tokens_per_s", csv[0])
        for form in ("table", "json", "csv"):  # what cannot begin prints nothing, not even an end
            r = moxie("bench", "-m", DEMO, "-o", form, "--ram", "20M", *self.QUICK)
            self.says(r, 4, "--ram 20M is too small")
            self.assertEqual(r.stdout, b"")

    def test_narrow_terminals(self):
        """What can be spared goes first; a pipe, and a terminal with room, get all of it."""
        args = ["bench", "-m", DEMO, "-q", "-t", "1", "-r", "1", "-p", "8", "-n", "4", "-d", "0", "--color", "off"]
        for more in ([], ["--expert-slots", "20"]):
            whole = self.good(moxie(*args, *more)).decode().splitlines()[1].split()
            for columns in (240, 110, 80, 60, 40):
                out, code = in_terminal(*args, *more, columns=columns)
                heading, *rows = out.decode().splitlines()[1:4]
                self.assertEqual((code, [row.split()[0] for row in rows]), (0, ["pp8", "tg4"]))
                self.assertEqual({len(row) for row in rows}, {len(heading)})
                self.assertTrue(len(heading) <= max(columns, 44 if more else 0), heading)
                self.assertEqual(heading.split() == whole, columns == 240)
                self.assertEqual(heading.split()[0], "test")
                self.assertIn("t/s", heading)
            for columns, kept in ((110, ["MB/tok", "MMAC/tok"]), (80, ["GB/s", "GMAC/s"])) if not more else ():
                words = in_terminal(*args, columns=columns)[0].decode().splitlines()[1].split()
                self.assertEqual(words, [w for w in whole if w != "least..most" and (w in kept or "/tok" not in w)])

    def test_weights(self):
        size = os.path.getsize(os.path.join(DEMO, "model.safetensors"))
        mapped, copied = (self.bench("-t", "1", "--weights", how)["weights"] for how in ("map", "copy"))
        self.assertEqual((mapped["bytes"], mapped["bytes_copied"]), (size, 0))
        self.assertEqual((copied["bytes"], copied["bytes_copied"]), (size, size))
        self.assertTrue(0 <= mapped["bytes_mapped_huge"] <= mapped["bytes_mapped"] and mapped["bytes_mapped"] > 0)
        table = self.good(moxie("bench", "-m", DEMO, "-q", "-t", "1", "--weights", "copy", *self.QUICK)).decode()
        self.assertRegex(table, r"\nweights: copied, 10\.3 MB of memory\n\Z")

    def test_a_synthetic_model_and_its_picture(self):
        args = ["bench", "--synthetic", "Qwen3-30B-A3B:layers=1", "-q", "-t", "1", "-r", "1", "-p", "4", "-n", "2", "-d", "0",
                "-o", "json"]
        text = self.good(moxie(*args))
        row = json.loads(text)["rows"][1]
        # head, 8 of 128 experts, attention, router, norms, a row of the embedding, 1.5 cached positions
        want = 175030272 + 8 * 2654208 + 10616832 + 278528 + 3 * 4096 + 2 * 256 + 175030272 // 151936 + 1.5 * 2048
        self.assertAlmostEqual(row["bytes_per_token"], want, delta=1)
        plot = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "plot")
        out = self.path("bench.svg")
        subprocess.run([plot, self.path("bench.json", text), "-o", out], check=True, timeout=WAIT_S)
        with open(out, encoding="utf-8") as f:
            picture = f.read()
        self.assertTrue(picture.startswith("<svg") and picture.endswith("</svg>\n") and "tg2" in picture)

    def test_refusals(self):
        self.says(moxie("bench", "-m", DEMO, "--synthetic", "qwen3-30b-a3b"), 2, "--synthetic")
        self.says(moxie("bench", "--synthetic", "gpt"), 2, "gpt", "deepseek-v3")
        self.says(moxie("bench", "-m", DEMO, "-p", "1,,2"), 2, "-p", "1,,2")
        self.says(moxie("bench", "-m", DEMO, "-p", "0", "-n", "0"), 2, "nothing to measure: -p leaves", "and -n 0 ")
        self.says(moxie("bench", "-m", DEMO, "-q", "-p", "0", "-n", "5000"), 2, "nothing to measure: -p ",
                  "the tokens of -n fit behind no depth")
        self.says(moxie("bench", "-m", DEMO, "-d", "1000000"), 4, "1000000", "4096")
        self.says(moxie("bench", "-m", DEMO, "-t", "0"), 2, "-t")
        self.says(moxie("bench", "-m", DEMO, "--streams", "257"), 2, "--streams", "257")
        self.says(moxie("bench", "-m", DEMO, "more"), 2, "more")


class Synth(Case):
    def test_refusals(self):
        full = self.path("full")
        os.mkdir(full)
        with open(os.path.join(full, "x"), "w", encoding="utf-8"):
            pass
        self.says(moxie("synth", "qwen3-30b-a3b:layers=1", full), 2, full, "not empty")
        self.assertEqual(os.listdir(full), ["x"])
        self.says(moxie("synth", "qwen3-30b", self.path("new")), 2, "qwen3-30b-a3b")
        self.assertFalse(os.path.exists(self.path("new")))
        self.says(moxie("synth", "qwen3-30b-a3b:layers=1", os.path.join(full, "a", "b")), 5, "cannot make the folder")
        self.says(moxie("synth", "qwen3-30b-a3b"), 2, "usage: moxie synth")
        self.says(moxie("synth", "qwen3-30b-a3b", "a", "b"), 2, "'b'")
        self.says(moxie("synth", "qwen3-30b-a3b", "a", "--skew", "9"), 2, "--skew")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
