#!/usr/bin/env python3
"""test_waiting.py MOXIE [TEST...] -- the server's time limits, waited for: a minute of little work, all at once.

Servers that have to generate all the time have one thread and slow kernels: no reply comes to its end before that
of the test, and others have room."""
import tempfile
import threading
import time
from pathlib import Path

from kit import *

LOUD = {"messages": QUESTION, "stream": True, "logprobs": True, "top_logprobs": 20, **ENDLESS}


def test_streams_that_nobody_reads():
    """1 MiB that waits is given up after 30 seconds; half of it waits for as long as it takes.

    Through a socket of the file system, because the kernel keeps no megabytes of those."""
    with tempfile.TemporaryDirectory() as folder, Server("--unix-socket", Path(folder) / "socket", "-c", "4k") as s:
        loud = lambda n: request_bytes(body={**LOUD, "max_tokens": n}, Connection="close")
        per_token = len(s.raw(loud(50))) / 50
        much, little = s.connect(120), s.connect(120)
        started = time.monotonic()
        much.sendall(loud(int(1.7 * 2**20 / per_token)))
        little.sendall(loud(int(0.7 * 2**20 / per_token)))
        given_up = lambda: "finish=cancelled" in s.errors()
        while not given_up() and time.monotonic() - started < 60:
            time.sleep(0.1)
        took = time.monotonic() - started
        assert 29 < took < 45 * SLOW, took
        assert b"[DONE]" not in drain(much), "all of it was there"
        time.sleep(5)
        assert b"data: [DONE]" in drain(little), "one that was not too much is cut off"
        assert s.errors().count("finish=cancelled") == 1
        much.close()
        little.close()


def ping_times(s, path, body, ping, already, times):
    """When two pings came, beside those that every stream of that API begins with."""
    with s.connect(120) as c:
        c.sendall(request_bytes(path, body))
        seen = b""
        while len(times) < 2:
            piece = c.recv(65536)
            if not piece:
                return
            seen += piece
            if seen.count(ping) > already + len(times):
                times.append(time.monotonic())


def test_pings():
    """Streams that wait in the queue say something every 15 seconds."""
    with Server("--parallel", "1", "--queue", "64", "-c", "4k", "--isa", "ref", "-t", "1") as s:
        crowd = [s.connect() for _ in range(7)]
        for c in crowd:
            c.sendall(request_bytes(body={"messages": QUESTION, "n": 8, "stream": True, **ENDLESS}))
        assert s.until(lambda: s.metric("num_requests_waiting") == 55, 20)
        started = time.monotonic()
        openai, anthropic = [], []
        in_threads([lambda: ping_times(s, "/v1/chat/completions", {"messages": QUESTION, "stream": True}, b"\r\n:\n\n", 0, openai),
                    lambda: ping_times(s, "/v1/messages", {"messages": QUESTION, "stream": True, "max_tokens": 5}, b"event: ping", 1, anthropic)])
        for times in [openai, anthropic]:
            gaps = [b - a for a, b in zip([started] + times, times)]
            assert len(gaps) == 2 and all(13 < gap < 18 * SLOW for gap in gaps), gaps
        for c in crowd:
            c.close()


def test_the_order_of_the_end():
    """30 seconds after SIGTERM replies are cut off, with a last event that says so, and whoever still asks for numbers gets
    them, because the scheduler stops first, then the network, and only then does what they asked go."""
    with Server("--parallel", "1", "--queue", "64", "-c", "4k", "--isa", "ref", "-t", "1") as s:
        crowd = [s.connect(120) for _ in range(7)]
        for c in crowd:
            c.sendall(request_bytes(body={"messages": QUESTION, "n": 8, "stream": True, **ENDLESS}, Connection="close"))
        assert s.until(lambda: s.metric("num_requests_waiting") == 55, 20)
        curious = [s.connect(10) for _ in range(300)]  # each has one more answer when the server stops
        for c in curious:
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for c in curious:
            assert status_of(c.recv(1000)) == 200
        slow = s.connect()  # the network has something to wait for
        slow.sendall(request_bytes()[:-1])
        time.sleep(0.5 * SLOW)
        heard, ended = [None] * len(crowd), [0.0] * len(crowd)

        def listen(i):
            heard[i] = drain(crowd[i])
            ended[i] = time.monotonic()
        listeners = [threading.Thread(target=listen, args=(i,)) for i in range(len(crowd))]
        for t in listeners:
            t.start()
        stopped, answered = time.monotonic(), 0.0  # before the server knows, so that none can end too soon
        s.process.send_signal(signal.SIGTERM)
        time.sleep(29.5)
        for i, c in enumerate(curious):
            try:
                c.sendall(f"GET {['/metrics', '/slots'][i % 2]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                if status_of(c.recv(65536)) != 200:
                    break
            except OSError:
                break
            answered = time.monotonic()
            time.sleep(0.005)
        for t in listeners:
            t.join()
        assert s.process.wait(20) == 0, s.errors()[-2000:]
        for text in heard:
            assert text.endswith(b"\r\n0\r\n\r\n") and b"the server is stopping" in text, text[-300:]
        assert all(30 <= t - stopped < 33 * SLOW for t in ended), [t - stopped for t in ended]
        assert answered > max(ended), "nobody asked anything of the stopped scheduler"
        for c in crowd + curious + [slow]:
            c.close()


def test_slow_bodies():
    """A body that comes by the byte is given 60 seconds; one that comes at twice the least rate is waited for."""
    head = lambda n: f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {n}\r\n\r\n".encode()
    with Server() as s:
        slow, steady = s.connect(10), s.connect(10)
        slow.sendall(head(10**6))
        steady.sendall(head(32768 * 75))
        started = time.monotonic()
        closed = threading.Event()

        def trickle():
            try:
                while not closed.is_set() and time.monotonic() - started < 90:
                    slow.sendall(b"x")
                    slow.settimeout(1)
                    try:
                        if slow.recv(1000) == b"":
                            return time.monotonic() - started
                    except TimeoutError:
                        continue
            except OSError:
                pass
            return time.monotonic() - started

        def flow():
            for i in range(75):
                time.sleep(max(0.0, started + i - time.monotonic()))
                steady.sendall(b"x" * 32768)
            return status_of(steady.recv(1000))
        took, status = in_threads([trickle, flow])
        assert 58 < took < 70 * SLOW, took
        assert status == 400, status  # it is no JSON, but it has been read
        assert s.chat()[0] == 200
        slow.close()
        steady.close()


run_tests(globals(), at_once=4)
