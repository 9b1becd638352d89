"""What the tests of the server share: starting one, asking it, and counting what held.

A test is a function whose name begins with test_; it says what it found with assert."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
MOXIE = str(Path(sys.argv[1]).resolve()) if len(sys.argv) > 1 else str(ROOT / "build" / "moxie")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
# The model may not stop by itself for thousands of tokens.
ENDLESS = {"temperature": 50, "top_k": 0, "top_p": 1, "min_p": 0, "grammar": "root ::= [a-z ]{60000}"}
SLOWLY = ("--isa", "ref", "-t", "1")  # for a server whose replies must still run when the test looks
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "The name of the city"}}, "required": ["city"]}}}
SLOW = float(os.environ.get("SERVER_TEST_SLOW", "1"))  # sanitizers are slower


class Skip(Exception):
    """There is something missing that is not ours."""


class Server:
    """A running `moxie serve`; stops at the end of a with block."""

    def __init__(self, *words, model=DEMO, env=None, preexec=None, stderr=None):
        self.log = tempfile.NamedTemporaryFile(mode="w+", prefix="moxie-log-")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MOXIE_")}
        port = [] if "--port" in words or "--unix-socket" in words else ["--port", "0"]
        self.process = subprocess.Popen([MOXIE, "serve", "-m", str(model), *port, *map(str, words)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=stderr or self.log, text=True, env={**clean, **(env or {})}, preexec_fn=preexec)
        self.said = self.process.stdout.readline()
        self.path = (re.search(r"unix:([^,]+)", self.said) or [None, None])[1]
        found = re.search(r"http://(\[?[^\],]+\]?):(\d+)", self.said)
        self.host, self.port = (found[1].strip("[]"), int(found[2])) if found else (None, None)
        if not found and not self.path:
            self.process.wait()
            raise AssertionError(f"the server did not start: {self.errors()}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the server did not end")
        code = self.process.returncode
        self.process.stdout.close()
        if exc[0] is None:
            assert code == 0, f"the server ended with {code}: {self.errors()[-3000:]}"
        return False

    def errors(self):
        self.log.flush()
        return Path(self.log.name).read_text()

    def connect(self, timeout=60):
        if self.path:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(timeout)
            s.connect(self.path)
            return s
        return socket.create_connection((self.host, self.port), timeout)

    def raw(self, data, timeout=20, half_close=False):
        """Sends bytes on a new connection and returns everything that comes until it is closed."""
        with self.connect(timeout) as s:
            try:
                s.sendall(data)
                if half_close:
                    s.shutdown(socket.SHUT_WR)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return drain(s)

    def ask(self, method, path, body=None, headers=None, timeout=120):
        """One request; returns its status, headers and parsed body (or bytes)."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            c.request(method, path, data, {**({"Content-Type": "application/json"} if data is not None else {}), **(headers or {})})
            r = c.getresponse()
            text = r.read()
            try:
                return r.status, r.headers, json.loads(text)
            except ValueError:
                return r.status, r.headers, text
        finally:
            c.close()

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, headers)

    def chat(self, messages=None, **fields):
        status, _, answer = self.post("/v1/chat/completions", {"messages": messages or QUESTION, "temperature": 0, **fields})
        return status, answer

    def stream(self, path, body, headers=None, timeout=120):
        """The events of a stream as (name, data) pairs; data is parsed unless it is [DONE]."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        assert r.status == 200, (r.status, r.read())
        assert r.headers["Content-Type"].startswith("text/event-stream")
        events = list(events_of(r.read().decode()))
        c.close()
        return events

    def metrics(self):
        """All numbers of /metrics by their names, with labels and without the prefix."""
        _, _, text = self.ask("GET", "/metrics")
        lines = (line.rsplit(" ", 1) for line in text.decode().splitlines() if line and not line.startswith("#"))
        return {name.removeprefix("moxie_"): float(value) for name, value in lines}

    def metric(self, name):
        return self.metrics()[name]

    def until(self, condition, seconds=5.0):
        """Waits until the condition holds; says whether it did."""
        end = time.monotonic() + seconds * SLOW
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    def idle(self):
        return self.metric("num_requests_running") == 0 and self.metric("num_requests_waiting") == 0


def drain(s):
    data = b""
    try:
        while piece := s.recv(65536):
            data += piece
    except (ConnectionResetError, socket.timeout):
        pass
    return data


def events_of(text):
    for block in text.split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            if line.startswith("data: "):
                data = line[6:]
        if data is not None:
            yield name, data if data == "[DONE]" else json.loads(data)


def request_bytes(path="/v1/chat/completions", body=None, **headers):
    data = json.dumps(body if body is not None else {"messages": QUESTION, "temperature": 0}).encode()
    head = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(data)), **headers}
    lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in head.items() if v is not None)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


def status_of(answer):
    found = re.match(rb"HTTP/1\.1 (\d+)", answer)
    return int(found[1]) if found else 0


def broken_demo(folder):
    """A copy of the demo model whose last norm is not a number, and so every logit."""
    model = Path(folder) / "broken"
    model.mkdir()
    for file in DEMO.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    weights = bytearray((model / "model.safetensors").read_bytes())
    n = int.from_bytes(weights[:8], "little")
    begin, end = json.loads(weights[8:8 + n])["language_model.model.norm.weight"]["data_offsets"]
    weights[8 + n + begin:8 + n + end] = b"\xc0\x7f" * ((end - begin) // 2)
    (model / "model.safetensors").write_bytes(weights)
    return model


def run_one(name, test):
    """Runs a test, says how it went, and returns the word for it."""
    started = time.monotonic()
    try:
        test()
        result, said = "passed", ""
    except Skip as why:
        result, said = "skipped", f"skipped {name}: {why}\n"
    except Exception:
        result, said = "failed", f"{traceback.format_exc()}FAIL {name}\n"
    print(f"{said}{result:8} {name} ({time.monotonic() - started:.1f} s)", flush=True)
    return result


def run_tests(namespace, at_once=1):
    """Runs every test_ function of a module, says what failed, and ends in the line that tests/run counts."""
    only = sys.argv[2:]
    known = {name: test for name, test in namespace.items() if name.startswith("test_") and callable(test)}
    if unknown := [name for name in only if name not in known]:
        sys.exit(f"there is no {unknown[0]} here, but {', '.join(known)}")
    tests = [(name, test) for name, test in known.items() if not only or name in only]
    with ThreadPoolExecutor(at_once) as some:
        results = list(some.map(lambda pair: run_one(*pair), tests))
    print(", ".join(f"{results.count(word)} {word}" for word in ("passed", "failed", "skipped")))
    sys.exit(1 if "failed" in results or not results else 0)


def in_threads(functions):
    """Runs them at once; returns their results and raises the first failure."""
    results, failures = [None] * len(functions), []

    def work(i, f):
        try:
            results[i] = f()
        except BaseException as e:  # told below
            failures.append(e)
    threads = [threading.Thread(target=work, args=(i, f)) for i, f in enumerate(functions)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]
    return results


__all__ = ["ANSWER", "DEMO", "ENDLESS", "MOXIE", "QUESTION", "ROOT", "SLOW", "SLOWLY", "Server", "Skip", "WEATHER", "broken_demo", "drain", "events_of",
           "in_threads", "request_bytes", "run_tests", "signal", "socket", "status_of"]
