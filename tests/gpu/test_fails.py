#!/usr/bin/env python3
"""test_fails.py MOXIE MODEL FAKE -- drivers and GPUs that fail, with the driver in the folder FAKE (fake/fake_cuda.c).

Whatever fails is said in one line that names it with numbers, nothing of the GPU is left over, and a server
answers before it ends."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
import kit  # noqa: E402

MOXIE, DEMO, FAKE = sys.argv[1:4]
del sys.argv[1:]
WORDS = ("--raw", "--temp", "0", "-n", "6", "-p", "abc", "-q")


def environment(fake, folder=FAKE):
    return {**os.environ, "LD_LIBRARY_PATH": folder, "FAKE_CUDA": fake}


def moxie(*words, fake="", folder=FAKE):
    return subprocess.run([MOXIE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                          env=environment(fake, folder))


def run(fake, device="cuda", folder=FAKE):
    return moxie("run", "-m", DEMO, *WORDS, "--device", device, fake=fake, folder=folder)


def bench(vram, fake):
    return moxie("bench", "-m", DEMO, "-p", "0", "-n", "2", "-d", "0", "-r", "1", "-o", "json", "-q", "--device", "cuda", "--vram",
                 f"{vram}M", fake=fake)


class Fails(unittest.TestCase):
    def one_line(self, done, code, *words):
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, r"\Amoxie: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)

    def test_it_runs(self):
        """Nothing fails: then nothing is said, and the graph of a step is used and given back."""
        done = run("")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_no_driver(self):
        """What computes then is the processor, with its own answer."""
        cpu = moxie("run", "-m", DEMO, *WORDS).stdout
        cases = [("version=11080", "CUDA 11.8"), ("gpus=0", "no GPU"), ("init=100", "no GPU"), ("init=999", "does not start")]
        for fake, words in cases:
            with self.subTest(fake=fake):
                done = run(fake)
                self.one_line(done, 0, words, "the cpu computes")
                self.assertEqual(done.stdout, cpu)
        if not os.path.exists("/dev/nvidiactl"):
            done = run("", folder="/nowhere")
            self.one_line(done, 0, "no NVIDIA driver", "the cpu computes")
            self.assertEqual(done.stdout, cpu)

    def test_not_that_gpu(self):
        self.one_line(run("gpus=2", "cuda:2"), 4, "number 2", "has 2")
        self.one_line(run("arch=75"), 4, "7.5", "8.0")

    def test_no_memory(self):
        """With a little more of it each time, and at every single allocation."""
        said = []
        while (done := run(f"memory={1 + 3 * len(said)}")).returncode != 0:
            self.one_line(done, 4, "MiB")
            said.append(done.stderr)
        self.assertRegex(said[0], r"has \d+ MiB free")
        self.assertTrue(any("the weights take" in line for line in said), said)
        self.one_line(run("memory=5 gpus=4"), 4, "spread over 4 devices")
        n = 1
        while (done := run(f"alloc={n}")).returncode != 0:
            with self.subTest(alloc=n):
                self.one_line(done, 4, "MiB")
            n += 1
        self.assertEqual(done.stderr, "")
        self.assertGreater(n, 5)

    def test_lost(self):
        """At a launch of a prompt, at one of a reply, while waiting."""
        for fake, words in (("launch=100", "launch failure"), ("sync=6", "must be opened again"), ("sync=8", "must be opened again")):
            with self.subTest(fake=fake):
                self.one_line(run(fake), 1, "Fake GPU 0", words)
        self.one_line(run("gpus=2 sync=12", "cuda:0,1"), 1, "Fake GPU")

    def test_experts_that_come(self):
        """With the processor's help and without; the GPU is lost in any layer's wait."""
        words = ("run", "-m", DEMO, *WORDS, "--device", "cuda", "--ram", "1G", "--vram")
        least = re.search(r"at least --vram (\S+)", moxie(*words, "1M").stderr).group(1)
        for more in ((), ("--cpu-experts",)):
            done = moxie(*words, least, *more)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for n in range(6, 40, 5):
                with self.subTest(more=more, sync=n):
                    self.one_line(moxie(*words, least, *more, fake=f"sync={n}"), 1, "Fake GPU 0", "must be opened again")

    def test_experts_that_come_to_two(self):
        """Memory of the host is pinned once for both; each keeps its budget; any allocation may fail, and either GPU may be lost."""
        words = ("run", "-m", DEMO, *WORDS, "--device", "cuda:0,1", "--ram", "2G", "--vram")
        least = re.search(r"at least --vram (\d+)M", moxie(*words, "1M").stderr).group(1)
        words += (least + "M",)
        self.one_line(moxie(*words, fake="gpus=1"), 4, "number 1")
        room = int(least) - 640  # which the driver takes, and this one does not count
        for more in ((), ("--cpu-experts",)):
            done = moxie(*words, *more, fake=f"gpus=2 most={room}")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for n in range(12, 60, 7):
                with self.subTest(more=more, sync=n):
                    self.one_line(moxie(*words, *more, fake=f"gpus=2 sync={n}"), 1, "Fake GPU", "must be opened again")
        said = []
        while (done := moxie(*words, fake=f"gpus=2 alloc={len(said) + 1}")).returncode != 0:
            with self.subTest(alloc=len(said) + 1):
                self.one_line(done, 4)
                self.assertRegex(done.stderr, r"MiB|slots for \d+ experts")
            said.append(done.stderr)
        self.assertEqual(done.stderr, "")
        for words in (r"device 1 of 2: .*slots for", r"device 2 of 2: .*slots for", r"device 2 of 2: .*MiB"):
            self.assertTrue(any(re.search(words, line) for line in said), said)

    def test_no_memory_for_a_graph(self):
        """Then steps are launched one by one."""
        done = run("graph=1")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_bench_within_a_budget(self):
        """The probe, too, is inside it; where too little is left for one, there is none."""
        for vram, room in ((700, 60), (900, 260), (2048, 1408)):  # the driver's own 640 MiB are not counted here
            with self.subTest(vram=vram):
                done = bench(vram, f"most={room}")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertEqual(json.loads(done.stdout)["rows"][0]["probe_gbytes_per_s"] > 0, vram > 700)

    def test_bench_without_memory(self):
        """Of what a budget promises, the probe's part included, any may not be there: that is said, and nothing is left out."""
        n = 1
        while (done := bench(900, f"alloc={n}")).returncode != 0:
            with self.subTest(alloc=n):
                self.one_line(done, 4, "MiB")
            n += 1
        self.assertEqual(done.stderr, "")
        self.assertGreater(json.loads(done.stdout)["rows"][0]["probe_gbytes_per_s"], 0)
        self.assertGreater(n, 5)

    def test_as_few_as_needed(self):
        def evaluate(fake, device="cuda"):  # the larger the cache, the more is to be divided
            return moxie("eval", "-m", DEMO, "-f", __file__, "--json", "-q", "-c", "4096", "--kv-type", "f32", "--device", device, fake=fake)

        def devices(*words):
            done = evaluate(*words)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            return json.loads(done.stdout)["kernels"]["devices"]
        self.assertEqual(devices("gpus=3"), 1)
        self.assertEqual(devices("gpus=3", "cuda:2,0"), 2)
        self.assertEqual(devices("gpus=3", "cuda:0,0,0"), 3)
        low, high = 1, 4096  # MiB that are too little for one, and enough
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if evaluate(f"memory={middle}").returncode == 0 else (middle, high)
        self.assertEqual(devices(f"gpus=3 memory={low}"), 2)
        self.assertEqual(devices(f"gpus=3 memory={high + 16}"), 1)

    def test_bench(self):
        """A device is held against its own copies, and says how its weights came to it."""
        done = moxie("bench", "-m", DEMO, "-p", "0", "-n", "2", "-d", "0", "-r", "1", "-o", "json", "-q", "--device", "cuda")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        said = json.loads(done.stdout)
        self.assertEqual((said["device"], said["instruction"], len(said["rows"])), ("cuda", "copy", 1))
        self.assertGreater(said["rows"][0]["probe_gbytes_per_s"], 0)
        self.assertEqual(said["rows"][0]["peak_gmac_per_s"], 0)
        self.assertGreater(said["load"]["upload_bytes"], 5e6)
        self.assertGreater(said["load"]["upload_s"], 0)
        self.assertGreater(said["load"]["open_s"], 0)

    def test_server(self):
        """The request under way fails, and the server ends by itself, so that it can be started again."""
        kit.MOXIE = MOXIE
        server = kit.Server("--device", "cuda", model=DEMO, env=environment("sync=40"))
        try:
            status, answer = 200, {}
            while status == 200:
                status, answer = server.chat(max_tokens=8)
            self.assertEqual(status, 500, answer)
            self.assertIn("Fake GPU 0", json.dumps(answer))
            self.assertEqual(server.process.wait(30), 1)
            self.assertRegex(server.errors(), "the device has failed.*: .*Fake GPU 0")
            self.assertNotIn("are left", server.errors())
        finally:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait()
            server.process.stdout.close()


class States(unittest.TestCase):
    def test_whose_they_are(self):
        """States that a server kept are for the device that computed them, whatever its number."""
        kit.MOXIE = MOXIE
        prompt = [{"role": "user", "content": "The cow tells a long story about the fox. " * 60}]
        with tempfile.TemporaryDirectory() as folder:
            def reused(*words):
                with kit.Server("--state-dir", folder, *words, model=DEMO, env=environment("gpus=2")) as server:
                    status, answer = server.chat(prompt, max_tokens=4)
                    self.assertEqual(status, 200, answer)
                    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual(reused(), 0)
            self.assertEqual(reused("--device", "cuda"), 0)
            self.assertGreater(reused("--device", "cuda:1"), 400)
            self.assertGreater(reused(), 400)


if __name__ == "__main__":
    unittest.main()
