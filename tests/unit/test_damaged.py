"""Damaged checkpoints from outside: each ends in one sentence that names the file or
key, with exit code 3, quickly, and without memory for what the file only claims.  Files that
are damaged or removed while the program runs end it with exit code 5, or do not matter.

usage: test_damaged.py PROGRAM SOURCE_ROOT [unittest arguments]
"""
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
ROOT = os.path.abspath(sys.argv[2])
# A sanitizer build reserves address space of its own, so only others are held to this.
SANITIZED = b"sanitizers none" not in subprocess.run([PROGRAM, "version"], capture_output=True).stdout
MEMORY_BYTES = 1 << 30


def limit_memory():
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def read_file(path):
    with open(path, "rb") as f:
        return f.read()


def write_file(path, data):
    with open(path, "wb") as f:
        f.write(data)


def pack(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Case(unittest.TestCase):
    def use(self, model):
        """self.dir becomes a copy of a model that the test may damage."""
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        for name in os.listdir(os.path.join(ROOT, model)):
            if not name.startswith("golden"):
                shutil.copy(os.path.join(ROOT, model, name), self.dir)
        self.weights = os.path.join(self.dir, "model.safetensors")

    def path(self, name):
        return os.path.join(self.dir, name)

    def run_model(self, *args):
        return subprocess.run([PROGRAM, "run", "-m", self.dir, "--raw", "-p", "Once", "-n", "2", *args],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=60, preexec_fn=limit_memory)

    def refused(self, *words):
        """Exit 3, one sentence on stderr that has these words, nothing on stdout."""
        start = time.monotonic()
        done = self.run_model("-q")
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 3, said)
        self.assertEqual(done.stdout, b"")
        self.assertEqual(said.count("\n"), 1, said)
        self.assertTrue(said.startswith("moxie: "), said)
        for word in words:
            self.assertIn(word, said)
        self.assertLess(time.monotonic() - start, 5)
        return said

    def change_config(self, **changes):
        config = json.loads(read_file(self.path("config.json")))
        inner = config.get("text_config", config)
        for key, value in changes.items():
            place = inner if key in inner else config
            if value is None:
                place.pop(key, None)
            else:
                place[key] = value
        write_file(self.path("config.json"), json.dumps(config).encode())

    def header(self):
        data = read_file(self.weights)
        n = struct.unpack("<Q", data[:8])[0]
        return json.loads(data[8:8 + n]), data[8 + n:]

    def refuse_configs(self, *changes):
        """Each (key, value) alone; the sentence names the file and the key."""
        original = read_file(self.path("config.json"))
        for key, value in changes:
            with self.subTest(key=key, value=value):
                self.change_config(**{key: value})
                self.refused("config.json", key)
            write_file(self.path("config.json"), original)


class Damaged(Case):
    def setUp(self):
        self.use("tests/data/models/demo-qwen3")

    # ---- the container

    def test_short_files_and_header_lengths(self):
        whole = read_file(self.weights)
        for data in (b"", b"1234567", struct.pack("<Q", 0), struct.pack("<Q", 1), struct.pack("<Q", 1 << 63) + b"{}",
                     struct.pack("<Q", 100_000_001) + b"{}", struct.pack("<Q", len(whole)) + whole[8:]):
            write_file(self.weights, data)
            self.refused("model.safetensors")

    def test_headers_that_are_no_header(self):
        for text in (b"\xff\xfe{}", b"[]", b'{"a": 1', b"{}x", b"{" + b'"a":{' * 10_000, b"[" * 10_000,
                     b'{"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}'):
            write_file(self.weights, pack(text, b"1234"))
            self.refused("model.safetensors")

    def test_offsets(self):
        for offsets in ([0, 5], [1, 5], [4, 0], [0, 1 << 62], [-4, 0], [0, 1e308], [0, "4"], [0], None):
            write_file(self.weights, pack({"name.of.it": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}, b"1234"))
            self.refused("model.safetensors", "name.of.it")
        two = {"one": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
               "two": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}
        write_file(self.weights, pack(two, b"1234"))  # they overlap
        self.refused("model.safetensors")
        two["two"]["data_offsets"], two["two"]["shape"] = [4, 5], [1]
        write_file(self.weights, pack(two, b"12345"))  # a hole
        self.refused("model.safetensors")

    def test_shapes_and_types(self):
        big = 1 << 32
        for shape, dtype in (([big, big], "F32"), ([big] * 3, "F32"), ([2], "F32"), ([1] * 9, "F32"), ([1], "Q4"), ([-1], "F32"),
                             ([1.5], "F32"), ("1", "F32"), ([1], 7)):
            write_file(self.weights, pack({"odd.one": {"dtype": dtype, "shape": shape, "data_offsets": [0, 4]}}, b"1234"))
            self.refused("odd.one")

    def test_an_lfs_pointer(self):
        write_file(self.weights, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
        self.refused("model.safetensors", "git lfs pull")

    def test_one_byte_missing(self):
        write_file(self.weights, read_file(self.weights)[:-1])
        self.refused("model.safetensors")

    # ---- shards and tensors

    def test_missing_and_extra_tensors(self):
        header, data = self.header()
        gone = [n for n in header if n.endswith("self_attn.q_proj.weight")]
        for name in gone:
            header[name.replace("q_proj", "renamed")] = header.pop(name)
        write_file(self.weights, pack(header, data))
        said = self.refused("missing", gone[0])
        self.assertIn(str(len(gone)), said)

    def test_an_extra_tensor_is_only_a_warning(self):
        header, data = self.header()
        header["something.else"] = {"dtype": "U8", "shape": [1], "data_offsets": [len(data), len(data) + 1]}
        write_file(self.weights, pack(header, data + b"x"))
        done = self.run_model()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, rb"(?m)^moxie: warning: .*something\.else")
        self.assertEqual(self.run_model("-q").stderr, b"")

    def test_names_cannot_steer_the_terminal(self):
        header, data = self.header()
        header["evil\x1b]0;title\x07\r\n\x7f\u009b31m.tensor"] = {"dtype": "U8", "shape": [1],
                                                              "data_offsets": [len(data), len(data) + 1]}
        write_file(self.weights, pack(header, data + b"x"))
        said = self.run_model().stderr
        self.assertIn(b"evil?]0;title??????31m.tensor", said)
        self.assertNotRegex(said.replace(b"\n", b""), rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]")

    def test_a_pipe_is_no_file(self):
        for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            with self.subTest(name=name):
                os.rename(self.path(name), self.path("kept"))
                os.mkfifo(self.path(name))
                self.refused(name, "not a regular file")
                os.replace(self.path("kept"), self.path(name))

    def test_a_bias_that_the_family_does_not_have(self):
        header, data = self.header()
        name = "model.layers.0.mlp.gate_proj.bias"
        header[name] = {"dtype": "U8", "shape": [1], "data_offsets": [len(data), len(data) + 1]}
        write_file(self.weights, pack(header, data + b"x"))
        self.refused("bias", name)

    def test_shards(self):
        header, data = self.header()
        names = sorted(n for n in header if n != "__metadata__")

        def index(weight_map):
            write_file(self.path("model.safetensors.index.json"), json.dumps({"metadata": {}, "weight_map": weight_map}).encode())
        index({n: "model-00001-of-00001.safetensors" for n in names})
        self.refused("model-00001-of-00001.safetensors")
        index({n: "model.safetensors" for n in names + ["not.there"]})
        self.refused("not.there")
        index({n: "../model.safetensors" for n in names})
        self.refused("model.safetensors.index.json")
        shutil.copy(self.weights, self.path("again.safetensors"))  # every tensor twice
        index({n: ("model.safetensors" if i % 2 else "again.safetensors") for i, n in enumerate(names)})
        self.refused(".safetensors")
        for text in (b"", b"{", b"[]", b'{"weight_map": 3}', b'{"weight_map": {"a": 3}}'):
            write_file(self.path("model.safetensors.index.json"), text)
            self.refused("model.safetensors.index.json")

    # ---- configuration

    def test_config_values(self):
        self.refuse_configs(("num_hidden_layers", 10 ** 9), ("num_hidden_layers", 0), ("num_attention_heads", 0),
                            ("num_attention_heads", "4"), ("hidden_size", -1), ("vocab_size", 2.5), ("head_dim", 10 ** 9),
                            ("rms_norm_eps", -1), ("rms_norm_eps", "small"), ("intermediate_size", 0), ("rope_theta", 0),
                            ("hidden_act", "gelu"), ("num_key_value_heads", 3))

    def test_layer_types(self):
        self.change_config(layer_types=["full_attention"] * 5 + ["chunked_attention"])
        self.refused("config.json", "layer_types[5]", "chunked_attention")

    def test_layers_that_the_config_does_not_count(self):
        self.change_config(num_hidden_layers=5, layer_types=None)
        self.assertRegex(self.run_model().stderr, rb"(?m)^moxie: warning: .*model\.layers\.5\.")
        self.change_config(num_nextn_predict_layers=1)  # then it is one that guesses tokens ahead
        self.assertNotIn(b"warning", self.run_model().stderr)

    def test_config_that_does_not_fit_the_weights(self):
        self.change_config(hidden_size=128)
        self.refused("shape")

    def test_hidden_size_that_heads_do_not_divide(self):
        self.change_config(head_dim=None, hidden_size=250)
        self.refused("config.json", "hidden_size")

    def test_config_files_that_are_none(self):
        for text in (b"", b"{", b"[]", b"null", b'{"model_type": 3}', b'{"model_type": "unheard_of"}', b'{"rms_norm_eps": NaN}',
                     b'{"a":' * 10_000):
            write_file(self.path("config.json"), text)
            self.refused("config.json")
        with open(self.path("config.json"), "wb") as f:
            f.truncate(200_000_000)
        self.refused("config.json")
        os.remove(self.path("config.json"))
        self.refused("config.json")

    def test_quantization(self):
        for quantization, word in (({"bits": 7, "group_size": 64}, "bits"), ({"bits": 4, "group_size": 0}, "group_size"),
                                   ({"bits": 4, "group_size": 48}, "group_size"), ({"bits": 4, "group_size": 128}, "shape"),
                                   ({"bits": 4, "group_size": 64, "mode": "mxfp4"}, "mxfp4"),
                                   ({"bits": 4, "group_size": 64, "model.layers.99.mlp.gate_proj": {"bits": 8, "group_size": 64}},
                                    "model.layers.99.mlp.gate_proj"), ("four", "quantization")):
            with self.subTest(quantization=quantization):
                self.change_config(quantization=quantization, quantization_config=None)
                self.refused(word)

    # ---- numbers and text

    def test_weights_that_are_not_finite(self):
        header, data = self.header()
        begin, end = header["model.norm.weight"]["data_offsets"]
        for bits in (0x7FC0, 0x7F80):  # NaN, infinity
            write_file(self.weights, pack(header, data[:begin] + struct.pack("<H", bits) * ((end - begin) // 2) + data[end:]))
            done = self.run_model()
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"logit", done.stderr)

    def test_tokenizers(self):
        tokenizer = json.loads(read_file(self.path("tokenizer.json")))

        def with_model(**changes):
            return {**tokenizer, "model": {**tokenizer["model"], **changes}}
        vocab = tokenizer["model"]["vocab"]
        first, second = list(vocab)[:2]
        chain = {"type": "NFC"}
        for _ in range(100):
            chain = {"type": "Sequence", "normalizers": [chain]}
        long_token = {**tokenizer["added_tokens"][0], "content": "x" * (1 << 20)}
        for wrong in (with_model(merges=["no such"]), with_model(vocab={}), with_model(vocab={**vocab, second: vocab[first]}),
                      with_model(vocab={**vocab, first: -1}), with_model(vocab={**vocab, first: 1 << 40}),
                      with_model(type="WordPiece"), {**tokenizer, "added_tokens": [long_token]}, {**tokenizer, "normalizer": chain},
                      {**tokenizer, "model": 5}, []):
            write_file(self.path("tokenizer.json"), json.dumps(wrong).encode())
            self.refused("tokenizer.json")
        sparse = with_model(vocab={k: (v if v < 1900 else v + 7) for k, v in vocab.items()}, merges=[])
        write_file(self.path("tokenizer.json"), json.dumps({**sparse, "added_tokens": []}).encode())  # gaps are legal
        done = subprocess.run([PROGRAM, "tokenize", "-m", self.dir, "-p", "abc"], capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Families(Case):
    """The same for the keys and tensors that dense models with plain attention do not have."""

    def lose(self, part):
        """Tensors that are gone are counted, and the first is named."""
        header, data = self.header()
        gone = [n for n in header if part in n]
        self.assertTrue(gone)
        for name in gone:
            header[name.replace(part, "other.")] = header.pop(name)
        write_file(self.weights, pack(header, data))
        self.refused("missing", part)

    def wrong_shape(self, ending):
        header, data = self.header()
        name = next(n for n in sorted(header) if n.endswith(ending))
        header[name]["shape"] = [*header[name]["shape"][:-2], header[name]["shape"][-1], header[name]["shape"][-2]]
        write_file(self.weights, pack(header, data))
        self.refused(name, "shape")

    def in_fp8(self, module, rows, cols):
        """A module as one matrix with a grid of scales, in place of what it is or beside it."""
        header, data = self.header()
        if module + ".weight" in header:
            header["other.weight"] = header.pop(module + ".weight")
        grid = [(rows + 127) // 128, (cols + 127) // 128]
        for name, dtype, shape, width in ((".weight", "F8_E4M3", [rows, cols], 1),
                                          (".weight_scale_inv", "F32", grid, 4)):
            size = width * shape[0] * shape[1]
            header[module + name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
            data += bytes(size)
        write_file(self.weights, pack(header, data))

    EXPERTS = (("num_experts_per_tok", 0), ("num_experts_per_tok", 17), ("num_experts_per_tok", "4"),
               ("num_experts_per_tok", None), ("moe_intermediate_size", 0), ("moe_intermediate_size", None))

    def test_experts(self):
        self.use("tests/data/models/demo-qwen3-moe")
        self.refuse_configs(*self.EXPERTS, ("num_experts", 0), ("num_experts", -1), ("num_experts", 10 ** 9), ("num_experts", None),
                            ("decoder_sparse_step", 0), ("mlp_only_layers", "none"))
        self.change_config(num_experts=8)  # fewer than there are
        self.refused("mlp.gate", "shape")

    def test_tensors_of_experts(self):
        self.use("tests/data/models/demo-qwen3-moe")
        self.wrong_shape("mlp.switch_mlp.up_proj.weight")
        self.use("tests/data/models/demo-qwen3-moe")
        self.lose("switch_mlp.down_proj.")

    def test_memory_for_experts_that_are_not_there(self):
        self.use("tests/data/models/demo-qwen3-moe")
        self.change_config(num_experts=1 << 16, num_hidden_layers=4096, quantization=None, quantization_config=None)
        header = {"model.embed_tokens.weight": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
        write_file(self.weights, pack(header, b"x"))
        self.refused("config.json", "at least 11 tensors are missing", "model.layers.0.")

    def test_stacks_in_fp8(self):
        self.use("tests/data/models/demo-qwen3-moe")
        stack = "model.layers.0.mlp.switch_mlp.gate_proj"
        self.in_fp8(stack, 128, 256)
        self.refused("model.safetensors", stack + ".weight", "stack in FP8", "one by one")
        self.use("tests/data/models/demo-deepseek-v3")
        self.in_fp8("model.layers.1.self_attn.embed_q", 128, 64)
        self.in_fp8("model.layers.1.self_attn.unembed_out", 64, 128)
        self.refused("model.safetensors", "model.layers.1.self_attn.embed_q.weight", "stack in FP8")

    def test_latent_attention_and_groups(self):
        self.use("tests/data/models/demo-deepseek-v3")
        self.refuse_configs(*self.EXPERTS, ("n_routed_experts", 0), ("n_group", 0), ("n_group", 3), ("topk_group", 5),
                            ("topk_group", 0), ("kv_lora_rank", 0), ("kv_lora_rank", None), ("q_lora_rank", -1),
                            ("qk_rope_head_dim", 1), ("qk_nope_head_dim", 0), ("v_head_dim", "64"), ("scoring_func", "softmax"),
                            ("n_shared_experts", -1), ("first_k_dense_replace", -1), ("routed_scaling_factor", "x"))
        self.change_config(kv_lora_rank=64)
        self.refused("shape")

    def test_tensors_of_latent_attention(self):
        self.use("tests/data/models/demo-deepseek-v3")
        self.wrong_shape("self_attn.kv_a_proj_with_mqa.weight")
        self.use("tests/data/models/demo-deepseek-v3")
        self.lose("gate.e_score_correction_bias")

    def test_linear_attention(self):
        self.use("models/demo")
        self.refuse_configs(*self.EXPERTS, ("num_experts", 0), ("linear_num_key_heads", 0), ("linear_num_key_heads", 3),
                            ("linear_num_value_heads", None), ("linear_key_head_dim", 0), ("linear_value_head_dim", 1.5),
                            ("linear_conv_kernel_dim", 0), ("linear_conv_kernel_dim", 100), ("layer_types", ["full_attention"]),
                            ("layer_types", ["linear_attention"] * 7 + ["other"]), ("shared_expert_intermediate_size", 0))
        self.change_config(linear_key_head_dim=64)
        self.refused("linear_attn")

    def test_tensors_of_linear_attention(self):
        self.use("models/demo")
        self.wrong_shape("linear_attn.out_proj.weight")
        self.use("models/demo")
        self.lose("linear_attn.A_log")


class WhileRunning(Case):
    def start(self, *args):
        """A program that would generate for minutes, once it has begun."""
        child = subprocess.Popen([PROGRAM, "bench", "-m", self.dir, "-p", "0", "-n", "200", "-d", "0", "-t", "2", "-r", "1000", *args],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.stderr.close)
        self.addCleanup(child.kill)
        child.stdout.readline()  # the head of the table: everything is loaded
        time.sleep(0.3)
        self.assertIsNone(child.poll())
        return child

    def test_a_file_that_is_cut_short(self):
        for args, words in (([], ("cut short or could not be read",)), (["--expert-slots", "9"], ("cut short while running",))):
            with self.subTest(args):
                self.use("models/demo")
                child = self.start("-q", *args)
                os.truncate(self.weights, 8192)
                said = child.communicate(timeout=60)[1].decode()
                self.assertEqual(child.returncode, 5, said)
                self.assertIn("model.safetensors", said)
                for word in words:
                    self.assertIn(word, said)
                self.assertEqual(said.count("\n"), 1, said)

    def test_a_file_that_is_removed_or_replaced(self):
        for replace in (False, True):
            for args in ([], ["--expert-slots", "9"]):
                with self.subTest(args, replace=replace):
                    self.use("models/demo")
                    child = self.start("-q", *args)
                    os.unlink(self.weights)
                    if replace:
                        write_file(self.weights, b"something else")
                    time.sleep(0.5)
                    self.assertIsNone(child.poll())
                    child.terminate()
                    self.assertEqual(child.wait(60), 128 + 15)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
