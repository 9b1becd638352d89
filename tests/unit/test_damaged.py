"""Damaged checkpoints from outside: each ends in one sentence that names the file or
key, with exit code 3, quickly, and without memory for what the file only claims.

usage: test_damaged.py PROGRAM MODEL [unittest arguments]
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
MODEL = os.path.abspath(sys.argv[2])
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


class Damaged(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        for name in os.listdir(MODEL):
            if not name.startswith("golden"):
                shutil.copy(os.path.join(MODEL, name), self.dir)
        self.weights = os.path.join(self.dir, "model.safetensors")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def run_model(self):
        return subprocess.run([PROGRAM, "run", "-m", self.dir, "--raw", "-p", "Once", "-n", "2", "-q"], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=60, preexec_fn=limit_memory)

    def refused(self, *words):
        """Exit 3, one sentence on stderr that has these words, nothing on stdout."""
        start = time.monotonic()
        done = self.run_model()
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
        for key, value in changes.items():
            if value is None:
                config.pop(key, None)
            else:
                config[key] = value
        write_file(self.path("config.json"), json.dumps(config).encode())

    def header(self):
        data = read_file(self.weights)
        n = struct.unpack("<Q", data[:8])[0]
        return json.loads(data[8:8 + n]), data[8 + n:]

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
        for key, value in (("num_hidden_layers", 10 ** 9), ("num_hidden_layers", 0), ("num_attention_heads", 0),
                           ("num_attention_heads", "4"), ("hidden_size", -1), ("vocab_size", 2.5), ("head_dim", 10 ** 9),
                           ("rms_norm_eps", -1), ("rms_norm_eps", "small"), ("intermediate_size", 0), ("rope_theta", 0),
                           ("hidden_act", "gelu"), ("num_key_value_heads", 3)):
            with self.subTest(key=key, value=value):
                original = read_file(self.path("config.json"))
                self.change_config(**{key: value})
                self.refused("config.json", key)
                write_file(self.path("config.json"), original)

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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
