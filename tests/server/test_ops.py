#!/usr/bin/env python3
"""test_ops.py MOXIE [TEST...] -- addresses, keys, origins, signals, logs."""
import contextlib
import fcntl
import json
import os
import resource
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from kit import *


def refused(*words, code, says, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MOXIE_")}
    done = subprocess.run([MOXIE, "serve", "-m", str(DEMO), *map(str, words)], capture_output=True, text=True, timeout=60, env={**clean, **(env or {})})
    assert done.returncode == code, (words, done.returncode, done.stderr)
    assert says in done.stderr and done.stderr.count("\n") == 1, (words, done.stderr)


def test_addresses():
    with tempfile.TemporaryDirectory() as folder, Server() as s:
        refused("--port", s.port, code=6, says="another program has it")
        refused("--host", "no.such.host.invalid", code=6, says="no.such.host.invalid")
        refused("--host", "203.0.113.7", "--no-auth", code=6, says="203.0.113.7")
        refused("--host", "0.0.0.0", "--port", 0, code=2, says="--api-key")
        path = Path(folder) / "socket"
        with Server("--unix-socket", path) as u:
            assert u.path == str(path)
            answer = u.raw(b"GET /health HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n")
            assert status_of(answer) == 200
            refused("--unix-socket", path, code=6, says="another server answers")
        assert not path.exists()
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(path))
        left.close()
        with Server("--unix-socket", path) as u:
            assert status_of(u.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) == 200
        first = Server("--unix-socket", path)
        path.unlink()  # by somebody who wants another server there
        with Server("--unix-socket", path) as u:
            with first:
                pass
            assert status_of(u.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) == 200
        assert not path.exists()
        # a server that stands still, and as many as wait in line there
        still = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        still[0].bind(str(path))
        still[0].listen(0)
        for client in still[1:]:
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        refused("--unix-socket", path, code=6, says="another server answers")
        for one in still:
            one.close()
        path.unlink()
        path.write_text("mine")
        refused("--unix-socket", path, code=6, says="no socket")
        assert path.read_text() == "mine"
        refused("--unix-socket", "x" * 200, code=6, says="bytes")
        refused("--unix-socket", path, "--port", 0, code=2, says="--port")
        refused("--unix-socket", path, "--host", "127.0.0.1", code=2, says="--host")
        refused("--port", 0, code=2, says="--port", env={"MOXIE_UNIX_SOCKET": str(path)})
        other = Path(folder) / "other"
        with Server("--unix-socket", other, env={"MOXIE_PORT": "8080"}) as u:  # a flag replaces what was always so
            assert u.path == str(other)
    if Path("/proc/net/if_inet6").exists() and "00000000000000000000000000000001" in Path("/proc/net/if_inet6").read_text():
        with Server("--host", "::1") as s:
            assert s.ask("GET", "/health")[0] == 200


def test_successor():
    """A server that drains has left its path or port: another takes it over, and keeps it when the first one ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        for words in (("--unix-socket", path), ("--port", "0")):
            with Server(*words, *SLOWLY) as first:
                stream = first.connect()
                stream.sendall(request_bytes(body={"messages": QUESTION, "stream": True, **ENDLESS}))
                assert status_of(stream.recv(4096)) == 200
                first.process.terminate()
                assert first.until(lambda: "stopping" in first.errors())
                assert not path.exists()
                with Server(*(words if first.path else ("--port", first.port))) as second:
                    assert first.process.poll() is None, "it did not wait for its reply"
                    stream.close()
                    assert first.process.wait(40) == 0
                    assert status_of(second.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 200
                assert not path.exists()


def test_few_files():
    """With 64 descriptors it serves, and idle connections do not take the last one."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with Server(preexec=limit) as s:
        crowd = [s.connect(5) for _ in range(60)]
        time.sleep(0.5)
        for c in crowd:
            c.close()
        assert s.until(lambda: s.ask("GET", "/health")[0] == 200)
        assert s.chat()[0] == 200


def test_keys():
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("# comment\nfrom-file\n\nsecond-of-file\n")
        with Server("--api-key", "sesame", "--api-key-file", keys, env={}) as s:
            for headers in [{}, {"Authorization": ""}, {"Authorization": "Bearer "}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"},
                            {"x-api-key": "sesam"}, {"x-api-key": "sesamesesame"}, {"x-api-key": ""}, {"Authorization": "Bearer " + "s" * 20000},
                            {"Authorization": "Bearer sesame", "x-api-key": "other"}]:
                status, got, answer = s.ask("GET", "/v1/models", headers=headers)
                assert status == 401 and answer["error"]["type"] == "authentication_error" and got["WWW-Authenticate"], (headers, status)
            status, _, answer = s.ask("POST", "/v1/messages", {"max_tokens": 5, "messages": QUESTION})
            assert status == 401 and answer == {**answer, "type": "error"} and answer["error"]["type"] == "authentication_error"
            assert s.ask("GET", "/v1/models?api-key=sesame")[0] == 401
            two = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\nAuthorization: Bearer sesame\r\nConnection: close\r\n\r\n"
            assert status_of(s.raw(two)) == 401
            for headers in [{"Authorization": "Bearer sesame"}, {"x-api-key": "sesame"}, {"Authorization": "bearer from-file"}, {"x-api-key": "second-of-file"}]:
                assert s.ask("GET", "/v1/models", headers=headers)[0] == 200, headers
            for path in ["/health", "/"]:
                assert s.ask("GET", path)[0] == 200
            assert s.ask("GET", "/metrics")[0] == 401
            assert "sesame" not in s.errors() and "from-file" not in s.errors()
        empty = Path(folder) / "empty"
        empty.write_text("\n# nothing\n")
        refused("--api-key-file", empty, code=2, says="no key")
        refused("--api-key-file", Path(folder) / "absent", code=2, says="absent")
    with Server("--host", "0.0.0.0", env={"MOXIE_API_KEY": "sesame"}) as s:
        s.host = "127.0.0.1"
        assert s.ask("GET", "/v1/models")[0] == 401 and s.ask("GET", "/v1/models", headers={"x-api-key": "sesame"})[0] == 200
    with Server("--api-key", "new", env={"MOXIE_API_KEY": "old"}) as s:  # a key that was replaced opens nothing
        for key, expected in [("old", 401), ("new", 200)]:
            assert s.ask("GET", "/v1/models", headers={"x-api-key": key})[0] == expected, key


def test_origins_that_match_nothing():
    for origin in ("chat.example.org", "https://", "://x", "https://chat.example.org/", "https://*.example.org",
                   "https://a,https://b", ""):
        words = ("--cors-origin", "https://good.example", "--cors-origin", origin)
        refused(*words, code=2, says="such as https://chat.example.org")
    for origin in ("*", "null", "http://10.0.0.5:3000", "HTTPS://[::1]:8", "chrome-extension://abc", "file://"):
        refused("--cors-origin", origin, "-m", "/nowhere", code=3, says="/nowhere")


def test_hosts_and_origins():
    with Server("--cors-origin", "https://chat.example.org", "--allow-host", "moxie.lan") as s:
        own = f"http://127.0.0.1:{s.port}"
        for host, expected in [("evil.example", 403), ("evil.example:8080", 403), ("127.0.0.1.evil.example", 403), ("localhost", 200), ("localhost:99", 200),
                               ("127.0.0.1", 200), ("[::1]:80", 200), ("moxie.lan", 200), ("MOXIE.LAN:8080", 200), ("192.0.2.1", 403), ("", 403), ("localhost:x", 403)]:
            assert s.ask("GET", "/v1/models", headers={"Host": host})[0] == expected, host
        for origin, good in [("http://evil.example", False), ("null", False), ("https://localhost.evil.example", False), (own, True), ("http://localhost:3000", True),
                             ("https://chat.example.org", True), ("http://chat.example.org", False), ("file://", False)]:
            for method in ["GET", "OPTIONS"]:
                status, headers, _ = s.ask(method, "/v1/models", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
                assert (status < 300) == good and (headers["Access-Control-Allow-Origin"] == origin if good else headers["Access-Control-Allow-Origin"] is None), (origin, status)
                assert headers["Access-Control-Allow-Credentials"] is None
        assert s.ask("POST", "/v1/chat/completions", {"messages": QUESTION}, {"Origin": "http://evil.example"})[0] == 403


def test_signals():
    """SIGTERM lets a reply finish and takes no new ones; a second one ends at once; SIGHUP opens the log anew."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        s = Server("--log-file", log, "--log-json", *SLOWLY)
        s.chat(model="gpt-4")
        assert s.until(lambda: log.read_text().count("\n") == 1)
        line = json.loads(log.read_text().splitlines()[-1])
        assert line["status"] == 200 and line["reply"] == 8 and line["finish"] == "stop" and line["asked_for"] == "gpt-4" and line["path"] == "/v1/chat/completions", line
        for key in ["time", "id", "total_s", "prompt", "reused", "queue_s", "prefill_s", "decode_s"]:
            assert key in line, line
        log.rename(Path(folder) / "log.1")
        s.process.send_signal(signal.SIGHUP)
        assert s.until(log.exists)
        s.chat()
        assert s.until(lambda: len(log.read_text().splitlines()) == 1)
        with s.connect() as c:
            c.sendall(request_bytes(body={"messages": QUESTION, "stream": True, "max_tokens": 300, **ENDLESS}))
            assert s.until(lambda: s.metric("num_requests_running") == 1)
            s.process.send_signal(signal.SIGTERM)
            answer = drain(c)
            assert answer.rstrip().endswith(b"0") and b"data: [DONE]" in answer, "it was cut off"
        assert s.process.wait(10) == 0
        s.process.stdout.close()
    s = Server("-c", "4k")
    with s.connect() as c:
        c.sendall(request_bytes(body={"messages": QUESTION, "stream": True, "n": 8, **ENDLESS}))
        assert s.until(lambda: s.metric("num_requests_running") > 0)
        s.process.send_signal(signal.SIGTERM)

        def answers():
            try:
                with s.connect(1) as late:
                    late.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    return late.recv(10) != b""
            except OSError:
                return False  # refused, or nobody answers
        assert s.until(lambda: not answers()), "it still takes new ones"
        assert s.process.poll() is None, "it did not wait for the reply"
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(5) == 143
    s.process.stdout.close()
    for number in [signal.SIGINT, signal.SIGTERM]:
        with Server() as s:
            s.process.send_signal(signal.SIGPIPE)
            assert s.chat()[0] == 200
            s.process.send_signal(number)
            assert s.process.wait(10) == 0
    child = subprocess.Popen([MOXIE, "serve", "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child.send_signal(signal.SIGTERM)  # while it loads
    assert child.wait(20) in (-15, 0)


def test_nobody_reads():
    """A stream that nobody reads ends neither the server nor the others, also when it is stopped then."""
    s = Server("-c", "4k")
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect((s.host, s.port))
    # With twenty others beside each token, so that it soon is more than is kept for anybody.
    stuck.sendall(request_bytes(body={"messages": QUESTION, "n": 8, "stream": True, "max_tokens": 3000, "logprobs": True,
                                      "top_logprobs": 20, **ENDLESS}))
    assert s.until(lambda: s.metric("num_requests_running") > 0)
    assert s.until(lambda: s.metric("num_requests_running") + s.metric("num_requests_waiting") == 0, 90)
    status, answer = s.chat()
    assert status == 200 and answer["choices"][0]["message"]["content"] == ANSWER
    assert s.until(lambda: "finish=cancelled" in s.errors())
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(45) == 0, s.errors()[-2000:]
    stuck.close()
    s.process.stdout.close()


def test_asked_while_it_stops():
    """Whoever asks for numbers while the server stops gets them, or nothing, and does it no harm."""
    for _ in range(4):
        with Server() as s:
            def ask():
                try:
                    with s.connect(5) as c:
                        for i in range(10000):
                            c.sendall(f"GET {['/metrics', '/slots'][i % 2]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                            if not c.recv(65536):
                                return
                except OSError:
                    pass

            def stop():
                time.sleep(0.3)
                s.process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            in_threads([ask] * 24 + [stop])
            assert s.process.wait(20) == 0, s.errors()[-2000:]
            assert time.monotonic() - started < 5 * SLOW, "it went on for those who would not stop asking"


def test_log_that_nobody_reads():
    """A pipe that is full costs lines of the log, not the server; what is missing is told."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 8192)
    with Server(stderr=into) as s:
        os.close(into)
        for i in range(200):
            assert s.ask("GET", f"/nothing/{i}", timeout=10)[0] == 404
        assert s.chat()[0] == 200
        os.set_blocking(out, False)
        before = os.read(out, 1 << 20).decode()
        assert all(line.startswith("20") for line in before.splitlines()) and before.endswith("\n"), before
        s.ask("GET", "/nothing/more")
        after = ""

        def told():  # lines are written behind their answers
            nonlocal after
            with contextlib.suppress(BlockingIOError):
                after += os.read(out, 1 << 20).decode()
            return "path=/nothing/more " in after
        assert s.until(told), after
        lost = s.metric("log_lines_lost_total")
        assert lost > 100 and f"lines={lost:.0f}" in after.splitlines()[0] and "path=/nothing/more " in after, (lost, after)
    os.close(out)


def test_log_on_a_full_disk():
    """A log that cannot grow costs its lines, not the server; a new file begins with how many are missing."""
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with Server("--log-file", log, preexec=full) as s:
            for i in range(20):
                assert s.chat()[0] == 200
            assert s.until(lambda: s.metric("log_lines_lost_total") > 0) and log.stat().st_size == 1000
            lines = lambda: log.read_text().count("\n") + s.metric("log_lines_lost_total")
            assert s.until(lambda: lines() == 20), lines()  # they are written behind their answers
            lost = s.metric("log_lines_lost_total")
            whole = log.read_text().count("\n")
            assert whole + lost == 20 and 1 < whole < 19, (whole, lost)
            log.rename(Path(folder) / "log.1")
            s.process.send_signal(signal.SIGHUP)
            assert s.until(log.exists)
            assert s.chat()[0] == 200
            assert s.until(lambda: log.read_text().count("\n") == 2)
            first, second = log.read_text().splitlines()
            assert f"lines={lost:.0f}" in first and "status=200" in second, (lost, first, second)
    with Server("--log-file", "/dev/full") as s:
        assert s.chat()[0] == 200 and s.until(lambda: s.metric("log_lines_lost_total") == 1)


def test_torn_line_of_the_log():
    """Where a disk was full for a while, a line may have been cut; the next one does not continue it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        limit = lambda n: resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (n, resource.RLIM_INFINITY))
        with Server("--log-file", log) as s:
            s.chat()
            assert s.until(lambda: log.read_text().count("\n") == 1)
            limit(log.stat().st_size + 50)
            s.chat()
            assert s.until(lambda: s.metric("log_lines_lost_total") == 1)
            limit(resource.RLIM_INFINITY)
            s.chat()
            assert s.until(lambda: log.read_text().count("\n") == 4)
        lines = log.read_text().splitlines()
        assert all(line.startswith("20") for line in lines) and len(lines[1]) == 50 and "lines=1" in lines[2] and "finish=stop" in lines[3], lines


def test_states_on_a_full_disk():
    """A state that cannot be written costs a warning; once there is room, states are kept again, and that is said."""
    story = lambda name: [{"role": "user", "content": f"The {name} tells a long story about the fox. " * 60}]
    with tempfile.TemporaryDirectory() as folder:
        limit = lambda n: resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (n, resource.RLIM_INFINITY))
        with Server("--state-dir", folder) as s:
            limit(20000)
            for name in ["cow", "dog"]:
                assert s.chat(story(name), max_tokens=4)[0] == 200
            assert s.until(lambda: s.chat(max_tokens=1)[0] == 200 and "File too large" in s.errors(), 10)
            limit(resource.RLIM_INFINITY)
            assert s.chat(story("cat"), max_tokens=4)[0] == 200
            assert s.until(lambda: s.chat(max_tokens=1)[0] == 200 and "states are kept across restarts again" in s.errors(), 10)
            assert s.errors().count("File too large") == 1
        assert {path.suffix for path in Path(folder).iterdir() if path.name != "lock"} == {".state"}


def test_states_of_several():
    """What requests that end together leave is written without another one, so that not even kill -9 loses it."""
    names = ["cow", "dog", "cat"]
    with tempfile.TemporaryDirectory() as folder:
        s = Server("--state-dir", folder, "--parallel", len(names))
        try:
            story = lambda name: [{"role": "user", "content": f"The {name} tells a long story about the fox. " * 60}]
            threads = [threading.Thread(target=s.chat, args=(story(name),), kwargs={"max_tokens": 4}) for name in names]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert s.until(lambda: len(list(Path(folder).glob("*.state"))) == len(names), 10), os.listdir(folder)
        finally:
            s.process.kill()
            s.process.wait()
            s.process.stdout.close()


def test_log_is_harmless():
    """What clients send cannot break lines of the log or steer a terminal."""
    with Server() as s:
        s.raw(b"GET /\x1b[31mred HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        s.ask("GET", "/with%0Anewline")
        s.post("/v1/chat/completions", {"messages": QUESTION, "model": "a\nb\x1b[2J"})
        text = s.errors()
        assert "\x1b" not in text and all(line.startswith("20") for line in text.splitlines()), text


def test_log_says_why():
    """A failure that is ours is in the request's line, also behind the headers of a stream; what clients did wrong is not."""
    with tempfile.TemporaryDirectory() as folder:
        model = broken_demo(folder)
        with Server("--log-json", model=model) as s:
            status, answer = s.chat()
            assert status == 500, answer
            events = s.stream("/v1/chat/completions", {"messages": QUESTION, "temperature": 0})
            assert "error" in events[-1][1]
            assert s.chat(reasoning_effort="secret")[0] == 400
            assert s.post("/v1/embeddings", {"input": "secret"})[0] == 501
            assert s.until(lambda: len(s.errors().splitlines()) >= 4)
            lines = [json.loads(line) for line in s.errors().splitlines()]
            problems = {(e["path"], e["status"]): e.get("problem") for e in lines if "path" in e}
            why = answer["error"]["message"]
            assert why and problems == {("/v1/chat/completions", 500): why, ("/v1/chat/completions", 200): why, ("/v1/chat/completions", 400): None,
                                        ("/v1/embeddings", 501): "embeddings are not supported by this server"}, lines
        with Server(model=model) as s:
            s.chat()
            assert s.until(lambda: f'finish=error problem="{why}"\n' in s.errors()), s.errors()
    with Server() as s:  # a client that leaves is none
        with s.connect() as c:
            c.sendall(request_bytes(body={"messages": QUESTION, "stream": True, **ENDLESS}))
            assert s.until(lambda: s.metric("num_requests_running") == 1)
        assert s.until(lambda: "finish=cancelled" in s.errors()) and "problem=" not in s.errors(), s.errors()


def test_states():
    """Long prompts are known after a restart, but only to the same weights and kernels."""
    prompt = [{"role": "user", "content": "The cow tells a long story about the fox. " * 60}]
    with tempfile.TemporaryDirectory() as folder:
        states = Path(folder) / "states"
        other = Path(folder) / "demo"  # the same name, shape, size and time, and one other weight
        other.mkdir()
        for file in DEMO.iterdir():
            (other / file.name).write_bytes(file.read_bytes())
        weights = bytearray((DEMO / "model.safetensors").read_bytes())
        at = len(weights) // 16 * 9 + 100
        weights[at] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        for file in DEMO.iterdir():
            os.utime(other / file.name, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))

        def reused(*words, model=DEMO):
            with Server("--state-dir", states, *words, model=model) as s:
                status, answer = s.chat(prompt, max_tokens=4)
                assert status == 200, answer
                return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        def foreign(*words):
            with Server("--state-dir", states, "-c", "512", "--parallel", "1", *words) as s:
                return s.until(lambda: "ignoring 1 files" in s.errors(), 0.5)

        assert reused() == 0
        assert reused() > 400
        assert not foreign() and foreign("--isa", "ref") and foreign("--device", "emu")
        assert reused("--fast") == 0 and reused("--deterministic") == 0
        assert reused(model=other) == 0
        assert reused() > 400 and reused("--prefix-cache", "0M", "--parallel", "1") > 400
        assert reused(model=other) > 400
    with Server("--state-dir", "/proc/no/such/folder") as s:
        assert s.chat(prompt, max_tokens=4)[0] == 200 and "/proc/no/such/folder" in s.errors()


def test_page():
    with Server() as s:
        status, headers, body = s.ask("GET", "/")
        assert status == 200 and headers["Content-Type"].startswith("text/html") and "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff" and b"moxie" in body


run_tests(globals())
