#!/usr/bin/env python3
"""fake_server.py [--port N] [--key KEY] [--rate TOKENS_PER_SECOND] -- the page without a model.

Serves the files of the web chat with their policy and speaks as much of the API as they use.
Every answer is fixed by words in the last message, so tests know what to expect:

  think, tool, code, table, markdown, attack, long, slow   kinds of answers
  read        progress of a long prompt first
  busy        429 the first time, then an answer
  full        the prompt does not fit
  broken      the connection ends inside of an answer
  fails       an error inside of the stream

Prints its address and serves until it is ended.  GET /log is what tests ask about: how many
requests came, how many ended early, and the body of the last."""
import argparse
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WEB = Path(__file__).resolve().parents[2] / "src" / "app" / "server" / "web"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
         ".js": "text/javascript; charset=utf-8"}
POLICY = (WEB / "policy.txt").read_text().strip()
N_CTX = 32768

CODE = """Here is a small one:

```python
def primes(limit):
    sieve = bytearray([1]) * (limit + 1)
    for n in range(2, int(limit ** 0.5) + 1):
        if sieve[n]:
            sieve[n * n::n] = bytes(len(sieve[n * n::n]))
    return [n for n in range(2, limit + 1) if sieve[n]]
```

It crosses out multiples, beginning at the square of each prime, so `limit` may be large.
"""
TABLE = """Three planets, nearest first:

| Planet | Distance | Moons |
|:-------|---------:|:-----:|
| Mercury | 0.39 au | 0 |
| Venus | 0.72 au | 0 |
| **Earth** | 1.00 au | 1 |

All distances are from the Sun.
"""
MARKDOWN = """# One

Some *soft*, **strong** and ~~gone~~ words with `code` and [a link](https://example.org/a?b=c).

1. First
   - nested
     - deeper
2. Second

> A quotation.

---

- [x] done
- [ ] open
"""
ATTACK = """<script>window.hacked = 1</script>

<img src=x onerror="window.hacked = 2"> and <a href="javascript:window.hacked=3">raw</a>

[click](javascript:window.hacked=4) [click](JaVaScRiPt:window.hacked=5) [click](data:text/html,<script>window.hacked=6</script>)
![p](https://evil.example/pixel.png) [spaced]( java\tscript:window.hacked=7 ) <javascript:window.hacked=8>

<svg onload="window.hacked=9"></svg><iframe src="https://evil.example/"></iframe><style>body{display:none}</style>

```html"><script>window.hacked=10</script>
</code></pre><script>window.hacked = 11</script>
```

| <script>window.hacked=12</script> | [x](vbscript:a) |
|---|---|
| <img src=x onerror=window.hacked=13> | \x1b[31mred\x1b[0m |
"""
TALE = "The river took its time. " * 12


def huge_table():
    head = "| " + " | ".join(f"c{i}" for i in range(20)) + " |\n|" + "---|" * 20 + "\n"
    return head + "".join("| " + " | ".join(str(r * 20 + c) for c in range(20)) + " |\n" for r in range(400))


def long_answer():
    """Ten thousand tokens of mixed blocks, the last of them one long list."""
    part = "\n\n".join([TALE.strip(), "- one\n- two\n  - three", CODE.strip(), TABLE.strip()]) + "\n\n"
    text = part * 20
    while len(pieces(text)) < 9000:
        text += part
    i = 0
    while len(pieces(text)) < 10000:
        text += f"- item number {i} of a list that goes on\n"
        i += 1
    return text


def pieces(text):
    return re.findall(r"\s?\S+|\s", text)


def answer_for(said):
    """(reasoning, content, tool calls) for a message."""
    thought = "The reader asks for something. " * 12 if "think" in said else ""
    for word, text in (("code", CODE), ("huge", huge_table()), ("table", TABLE), ("markdown", MARKDOWN), ("attack", ATTACK)):
        if word in said:
            return thought, text, []
    if "long" in said:
        return thought, long_answer(), []
    if "tool" in said:
        calls = [("call_1", "get_weather", '{"city": "Oslo", "days": 2}')]
        if "two" in said:
            calls.append(("call_2", "get_time", '{"zone": "Europe/Oslo"}'))
        return thought, "Let me look that up.", calls
    if "slow" in said:
        return thought, TALE * 4, []
    return thought, f"You said: {said}", []


class State:
    lock = threading.Lock()
    requests = ended_early = busy = hits = misses = 0
    last = None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json", **more):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **more}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, message, code, headers=None, **more):
        self.reply(status, {"error": {"message": message, "type": code, "param": None, "code": code, **more}}, **(headers or {}))

    def refused(self):
        key = self.server.options.key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            self.fail(401, "A key is needed.", "authentication_error")
            return True
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        name = "index.html" if path == "/" else path[1:]
        if re.fullmatch(r"\w+\.(html|css|js|svg)", name) and (WEB / name).is_file():
            kind = TYPES[Path(name).suffix]
            return self.reply(200, (WEB / name).read_bytes(), kind, Content_Security_Policy=POLICY,
                              X_Content_Type_Options="nosniff", Cache_Control="no-cache")
        if path == "/health":
            return self.reply(200, {"status": "ok"})
        if path == "/log":
            return self.reply(200, {"requests": State.requests, "ended_early": State.ended_early, "last": State.last})
        if self.refused():
            return None
        if path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [
                {"id": "Qwen3-30B-A3B-4bit", "object": "model", "created": 0, "owned_by": "moxie", "meta": {"n_ctx": N_CTX}}]})
        if path == "/props":
            defaults = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "n_ctx": N_CTX}
            return self.reply(200, {"default_generation_settings": defaults})
        if path == "/metrics":
            text = (f"# TYPE moxie_expert_cache_hits_total counter\nmoxie_expert_cache_hits_total {State.hits}\n"
                    f"moxie_expert_cache_misses_total {State.misses}\nprocess_resident_memory_bytes 18213000000\n")
            return self.reply(200, text.encode(), "text/plain; version=0.0.4")
        return self.fail(404, "There is nothing here.", "not_found_error")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return None
        if self.path != "/v1/chat/completions":
            return self.fail(404, "There is nothing here.", "not_found_error")
        said = next((m["content"] for m in reversed(body["messages"]) if m["role"] in ("user", "tool")), "")
        with State.lock:
            State.requests += 1
            State.last = body
            State.busy += "busy" in said
            turned_away = "busy" in said and State.busy == 1
        if turned_away:
            return self.fail(429, "The queue is full.", "rate_limit_exceeded", {"Retry_After": 2})
        if "full" in said:
            return self.fail(400, "The prompt is too long.", "context_length_exceeded", n_prompt_tokens=40960, n_ctx=N_CTX)
        if said.startswith("{"):
            return self.stream(body, "", f"The tool said {said}", [], said)
        return self.stream(body, *answer_for(said), said)

    def chunk(self, delta=None, finish=None, **more):
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake",
                 "choices": [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
        self.event(json.dumps(chunk))

    def event(self, data):
        payload = f"data: {data}\n\n".encode()
        self.wfile.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        self.wfile.flush()

    def stream(self, body, reasoning, content, calls, said):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.speak(body, reasoning, content, calls, said)
        except (BrokenPipeError, ConnectionResetError):
            with State.lock:
                State.ended_early += 1
            self.close_connection = True

    def speak(self, body, reasoning, content, calls, said):
        rate = 20 if "slow" in said else 1e9 if "long" in said or "huge" in said else self.server.options.rate
        n_prompt = 24 + sum(len(pieces(m.get("content") or "")) for m in body["messages"])
        self.chunk({"role": "assistant", "content": ""})
        if "read" in said and body.get("return_progress"):
            for done in range(0, 8193, 1024):
                self.chunk({}, prompt_progress={"total": 8192, "cache": 0, "processed": done, "time_ms": done // 4})
                time.sleep(0.5)  # there must be time to look at it
        began = time.monotonic()
        n = 0
        for name, text in (("reasoning_content", reasoning), ("content", content)):
            for piece in pieces(text):
                n += 1
                self.chunk({name: piece})
                time.sleep(1 / rate if rate < 1e6 else 0)
                with State.lock:
                    State.hits += 7
                    State.misses += 1
                if n == 6 and "fails" in said:
                    self.event(json.dumps({"error": {"message": "The disk could not be read.", "type": "server_error", "code": "server_error"}}))
                    self.wfile.write(b"0\r\n\r\n")
                    return
                if n == 6 and "broken" in said:
                    self.connection.shutdown(2)
                    self.close_connection = True
                    return
        for i, (ident, name, arguments) in enumerate(calls):
            self.chunk({"tool_calls": [{"index": i, "id": ident, "type": "function", "function": {"name": name, "arguments": ""}}]})
            for part in re.findall(r".{1,6}", arguments):
                self.chunk({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
                time.sleep(1 / rate if rate < 1e6 else 0)
        ms = 1000 * (time.monotonic() - began)
        timings = {"cache_n": 16, "prompt_n": n_prompt - 16, "prompt_ms": 80.0, "prompt_per_second": 410.0, "predicted_n": n,
                   "predicted_ms": ms, "predicted_per_second": 1000 * n / ms}
        finish = "tool_calls" if calls else "length" if body.get("max_tokens") == 1 else "stop"
        self.chunk({}, finish, timings=timings)
        self.chunk(usage={"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n,
                          "prompt_tokens_details": {"cached_tokens": 16}})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A page that is closed hangs up; that is no error of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key")
    parser.add_argument("--rate", type=float, default=200)
    options = parser.parse_args()
    server = Server(("127.0.0.1", options.port), Handler)
    server.options = options
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


main()
