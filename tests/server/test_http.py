#!/usr/bin/env python3
"""test_http.py MOXIE [TEST...] -- HTTP that no honest client sends, and clients that leave."""
import json
import time

from kit import *

BODY = json.dumps({"messages": QUESTION, "temperature": 0, "max_tokens": 3}).encode()
ENDLESS_STREAM = {"messages": QUESTION, "stream": True, **ENDLESS}


def head(*lines, first="POST /v1/chat/completions HTTP/1.1"):
    return ("\r\n".join([first, *lines]) + "\r\n\r\n").encode()


def test_framing():
    """Messages that could be read in two ways are refused, the connection is closed, and nothing is read twice."""
    common = ["Host: localhost", "Content-Type: application/json"]
    second = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    size = f"Content-Length: {len(BODY)}"
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    cases = {
        "both": (head(*common, size, "Transfer-Encoding: chunked") + chunked, {400}),
        "neither": (head(*common) + BODY, {411}),
        "two lengths": (head(*common, size, f"Content-Length: {len(BODY) + 1}") + BODY, {400}),
        "the same length twice": (head(*common, size, size) + BODY, {400}),
        "plus": (head(*common, f"Content-Length: +{len(BODY)}") + BODY, {400}),
        "negative": (head(*common, "Content-Length: -1") + BODY, {400}),
        "huge": (head(*common, "Content-Length: 99999999999999999999") + BODY, {400, 413}),
        "other coding": (head(*common, "Transfer-Encoding: gzip, chunked") + chunked, {400}),
        "negative chunk": (head(*common, "Transfer-Encoding: chunked") + b"-2\r\nxx\r\n0\r\n\r\n", {400, 0}),
        "endless chunk size": (head(*common, "Transfer-Encoding: chunked") + b"f" * 20 + b"\r\nxx\r\n0\r\n\r\n", {400, 413, 0}),
        "blank before the colon": (head(*common, f"Content-Length : {len(BODY)}") + BODY, {400, 411}),
        "no host": (head("Content-Type: application/json", size) + BODY, {400}),
        "two hosts": (head(*common, "Host: localhost", size) + BODY, {400}),
        "absolute target": (head(*common, size, first="POST http://localhost/v1/chat/completions HTTP/1.1") + BODY, {400}),
        "HTTP/0.9": (b"GET /health\r\n\r\n", {400, 0, 505}),
        "HTTP/2.0": (head(*common, first="GET /health HTTP/2.0"), {400, 505}),
        "a body for GET": (head("Host: localhost", "Content-Length: 5", first="GET /health HTTP/1.1") + b"hello", {400}),
        "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", {400, 0}),
    }
    with Server() as s:
        for name, (data, expected) in cases.items():
            answer = s.raw(data + second, timeout=15)
            assert status_of(answer) in expected, (name, answer[:200])
            assert b"HTTP/1.1 200" not in answer, (name, "what followed was read, too", answer[:600])
        assert s.chat()[1]["choices"][0]["message"]["content"] == ANSWER


def test_odd_requests():
    with Server() as s:
        for method, path, expected in [("CONNECT", "localhost:80", {400, 404, 405}), ("PUT", "/v1/chat/completions", {405}),
                                       ("GET", "/v1/chat/completions", {405}), ("POST", "/health", {405}), ("TRACE", "/", {405}),
                                       ("GET", "/../etc/passwd", {404}), ("GET", "/%2e%2e/etc/passwd", {404}), ("GET", "/%00", {404}),
                                       ("GET", "/v1/models/..%2f..%2fx", {404}), ("GET", "/v1/models/%zz", {404}), ("GET", "//", {404}),
                                       ("GET", "/nothing", {404}), ("GET", "*", {400})]:
            answer = s.raw(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert status_of(answer) in expected, (method, path, answer[:200])
        for method, path in [("HEAD", "/"), ("GET", "/"), ("HEAD", "/api/hello"), ("HEAD", "/health"), ("GET", "/health?x=1&y"), ("OPTIONS", "/v1/chat/completions")]:
            status, _, body = s.ask(method, path)
            assert status in (200, 204), (method, path, status)
            assert method != "HEAD" or body == b""
        assert s.ask("POST", "/v1/messages?beta=true", {"max_tokens": 5, "messages": QUESTION})[0] == 200


def test_large_headers():
    with Server() as s:
        assert status_of(s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20))) in (0, 400, 413, 431)
        many = b"".join(b"X-%d: y\r\n" % i for i in range(10000))
        assert status_of(s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")) in (0, 400, 413, 431)
        some = b"".join(b"X-%d: %s\r\n" % (i, b"z" * 900) for i in range(40))
        assert status_of(s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + some + b"\r\n")) in (413, 431)
        assert status_of(s.raw(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")) in (0, 400, 404, 413, 414, 431)
        assert s.ask("GET", "/health")[0] == 200


def test_bodies():
    deep = b'{"messages":' + b"[" * 10000 + b"]" * 10000 + b"}"
    with Server("--body-limit", "1M") as s:
        for name, body, expected, headers in [
                ("not JSON", b"hello", {400}, {}), ("empty", b"", {400}, {}), ("cut", b'{"messages": [', {400}, {}),
                ("an array", b"[]", {400}, {}), ("deep", deep, {400}, {}), ("byte order mark", b"\xef\xbb\xbf" + BODY, {400}, {}),
                ("no UTF-8", BODY.replace(b"capital", b"capit\xff"), {400}, {}), ("infinite", b'{"messages":[],"temperature":1e999}', {400}, {}),
                ("twice", b'{"messages":[],"messages":[]}', {400}, {}), ("twice, unknown", b'{"x":1,"x":2,' + BODY[1:], {400}, {}),
                ("twice, inside", b'{"metadata":{"a":{"b":1,"b":2}},' + BODY[1:], {400}, {}),
                ("twice, by an escape", b'{"ab":1,"\\u0061b":2,' + BODY[1:], {400}, {}),
                ("NaN", b'{"temperature":NaN,' + BODY[1:], {400}, {}), ("lone surrogate", b'{"user":"\\ud800",' + BODY[1:], {400}, {}),
                ("gzip", b"\x1f\x8b\x08\x00", {415}, {"Content-Encoding": "gzip"}),
                ("form", b"a=b", {415}, {"Content-Type": "application/x-www-form-urlencoded"}),
                ("text", BODY, {415}, {"Content-Type": "text/plain"})]:
            status, got, answer = s.ask("POST", "/v1/chat/completions", body, {"Content-Type": "application/json", **headers})
            assert status in expected, (name, status, answer)
            assert isinstance(answer, dict) and answer["error"]["message"], (name, answer)
            assert got["Content-Type"] == "application/json"
        large = json.dumps({"messages": [{"role": "user", "content": "x" * (2 << 20)}]}).encode()
        assert status_of(s.raw(request_bytes()[:0] + head("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(large)}"))) == 413
        chunks = b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(24)) + b"0\r\n\r\n"
        answer = s.raw(head("Host: localhost", "Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close") + chunks)
        assert status_of(answer) == 413, answer[:200]
        good = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (10, BODY[:10], len(BODY) - 10, BODY[10:])
        answer = s.raw(head("Host: localhost", "Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close") + good)
        assert status_of(answer) == 200, answer[:300]


def test_two_types():
    """Which of two types a proxy has looked at nobody knows."""
    with Server() as s:
        for second in ["application/json", "text/plain"]:
            lines = ["Host: localhost", "Content-Type: application/json", f"Content-Type: {second}", f"Content-Length: {len(BODY)}", "Connection: close"]
            assert status_of(s.raw(head(*lines) + BODY)) == 415, second
        assert status_of(s.raw(head("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(BODY)}", "Connection: close") + BODY)) == 200


def test_bodies_at_once():
    """Bodies that are on their way have a limit together, and give it back when they are gone."""
    size = 1000000
    with Server("--body-limit", "1M") as s:
        crowd = [s.connect() for _ in range(9)]
        for c in crowd:
            c.sendall(head("Host: localhost", "Content-Type: application/json", f"Content-Length: {size + 10}") + b" " * size)
        assert s.until(lambda: s.chat()[0] == 503, 20), "there is no limit"
        assert s.chat()[0] == 503 and s.ask("GET", "/health")[0] == 200
        for c in crowd:
            c.close()
        assert s.until(lambda: s.chat()[0] == 200)


def test_floods():
    """Answers that cost nothing are rationed when there is no end of them; each comes soon all the same."""
    with Server() as s:
        for path, expected in [("/health", 200), ("/nothing", 404)]:
            end = time.monotonic() + 2
            waits = []

            def ask():
                with s.connect() as c:
                    while time.monotonic() < end:
                        began = time.monotonic()
                        c.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                        assert status_of(c.recv(4096)) == expected
                        waits.append(time.monotonic() - began)
            in_threads([ask] * 16)
            assert 100 / SLOW < len(waits) < 2 * 500, len(waits)
            waits.sort()
            assert waits[len(waits) * 9 // 10] < 0.2 * SLOW, waits[-100:]  # a busy machine may pause once
        waits = []
        for _ in range(6):
            began = time.monotonic()
            assert s.ask("GET", "/health")[0] == 200
            waits.append(time.monotonic() - began)
        assert sum(sorted(waits)[:5]) < 0.5 * SLOW, waits  # and once a busy machine may pause


def test_keep_alive():
    """Many requests on one connection, refused ones among them, and two that come at once."""
    import http.client
    with Server() as s:
        c = http.client.HTTPConnection(s.host, s.port, timeout=30)
        for path, body, expected in [("/v1/chat/completions", BODY, 200), ("/nothing", BODY, 404), ("/v1/chat/completions", b"{", 400),
                                     ("/v1/chat/completions", BODY, 200)] * 5:
            c.request("POST", path, body, {"Content-Type": "application/json"})
            r = c.getresponse()
            r.read()
            assert r.status == expected and not r.will_close, (path, r.status)
        c.close()
        answer = s.raw(request_bytes(body=json.loads(BODY)) + request_bytes(body=json.loads(BODY), Connection="close"))
        assert answer.count(b"HTTP/1.1 200") == 2, answer


def test_slow_senders():
    """Headers that never end are given 10 seconds; others are served meanwhile."""
    with Server() as s:
        idle = [s.connect() for _ in range(300)]
        slow = s.connect()
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        started = time.monotonic()
        closed_after = None
        while time.monotonic() - started < 20:
            assert s.ask("GET", "/health")[0] == 200
            try:
                slow.settimeout(1)
                slow.sendall(b"X: y\r\n")
                if slow.recv(1000) == b"":
                    closed_after = time.monotonic() - started
                    break
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                closed_after = time.monotonic() - started
                break
        assert closed_after and 8 < closed_after < 15, closed_after
        assert s.until(lambda: s.metric("process_open_fds") < 60, 10), "idle connections were not closed"
        for c in idle + [slow]:
            c.close()


def test_many_short_connections():
    with Server() as s:
        before = s.metric("process_open_fds")
        for i in range(300):
            c = s.connect()
            if i % 3 == 1:
                c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: lo")
            if i % 3 == 2:
                c.sendall(request_bytes()[:-10])
            c.close()
        assert s.until(lambda: s.metric("process_open_fds") <= before + 2)
        assert s.chat()[0] == 200


def left(s, data, wait_for, after):
    """Sends a request, waits until it is where it should be, and leaves; the server must be idle at once."""
    with s.connect() as c:
        c.sendall(data)
        assert s.until(wait_for), "it never got there"
    assert s.until(s.idle, 3), "still at work for nobody"
    assert s.until(after, 2), "cancelled requests are counted"


def test_gone_clients():
    """Clients that leave in the queue, in prefill and while a reply is made, streamed or not."""
    with Server("--parallel", "1", "-n", "3900", "-c", "4k", *SLOWLY) as s:
        def cancelled():
            _, _, text = s.ask("GET", "/metrics")
            return int([x for x in text.decode().splitlines() if 'reason="cancelled"' in x][0].split()[-1])
        running = lambda: s.metric("num_requests_running") == 1
        for i, stream in enumerate([True, False]):
            left(s, request_bytes(body={**ENDLESS_STREAM, "stream": stream}), running, lambda n=i: cancelled() == n + 1)
        long_prompt = [{"role": "user", "content": "word " * 3000}]
        left(s, request_bytes(body={**ENDLESS_STREAM, "messages": long_prompt}), running, lambda: cancelled() == 3)
        with s.connect() as first:  # keeps the one slot
            first.sendall(request_bytes(body=ENDLESS_STREAM))
            assert s.until(running)
            with s.connect() as second:
                second.sendall(request_bytes(body=ENDLESS_STREAM))
                assert s.until(lambda: s.metric("num_requests_waiting") == 1)
            assert s.until(lambda: s.metric("num_requests_waiting") == 0, 1), "it still waits"
            assert s.metric("num_requests_running") == 1, "the neighbour was cut off, too"
        assert s.until(s.idle, 2)
        assert s.chat()[1]["choices"][0]["message"]["content"] == ANSWER
        assert "finish=cancelled" in s.errors()


def test_half_close():
    """A client that stops sending is taken to have left only where a reply would take long: short answers still come."""
    with Server() as s:
        answer = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", half_close=True)
        assert status_of(answer) == 200, answer
        assert s.chat()[0] == 200


run_tests(globals())
