#!/usr/bin/env python3
"""load.py MOXIE [--seconds N] [--streams N] -- many people at once, some of whom leave, read slowly or send too much.

Every stream's text must be that of the same request alone (temperature 0, --deterministic); no request may fail; gaps
between tokens, memory, threads and descriptors must stay in bounds; the server's counters must agree with ours."""
import argparse
import multiprocessing
import random
import re
import statistics
import sys
import threading
import time
from pathlib import Path

from kit import DEMO, Server, drain, events_of, request_bytes, status_of

QUESTIONS = [f"What is the capital of {c}?" for c in ("France", "Italy", "Spain", "Japan", "Norway", "Peru")] + \
            ["Count from 1 to 20.", "Spell the word banana.", "What does the cow say?", "What are the days of the week?", "Who are you?"]


def body(question):
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 60, "stream": True}


def text_of(raw):
    """The text of a whole stream, or None when it is cut."""
    events = list(events_of(raw))
    if not events or events[-1][1] != "[DONE]":
        return None
    return "".join(c["delta"].get("content") or "" for _, e in events[:-1] for c in e["choices"])


class Load:
    def __init__(self, server, seconds, alone):
        self.server, self.alone, self.end = server, alone, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.gaps, self.problems = [], []  # gaps: (when, seconds)
        self.answers = []  # looked at when all is over, because taking them apart would hold up the clock
        self.n = {"whole": 0, "left": 0, "slow": 0, "too much": 0, "busy": 0}

    def count(self, what):
        with self.lock:
            self.n[what] += 1

    def complain(self, text):
        with self.lock:
            self.problems.append(text)

    def read(self, s, pause=0.0, leave_after=None):
        """Reads a chunked stream; returns its bytes and notes when pieces came."""
        data, times, n_pieces = b"", [], 0
        while True:
            piece = s.recv(512 if pause else 65536)
            if not piece:
                break
            data += piece
            n_pieces += 1
            if b'"delta":{"content":"' in data[:4000]:  # before, it may have been waiting in the queue
                times.append(time.monotonic())
            if data.endswith(b"0\r\n\r\n"):
                break
            if leave_after and n_pieces >= leave_after:
                return None
            time.sleep(pause)
        if status_of(data) == 429:
            return "busy"
        if status_of(data) != 200:
            self.complain(f"status {status_of(data)}: {data[:300]}")
            return "busy"
        if not pause:
            with self.lock:
                self.gaps += [(b, b - a) for a, b in zip(times, times[1:])]
        return data

    def check_answer(self, question, data):
        _, _, rest = data.partition(b"\r\n\r\n")
        out = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            n = int(size, 16)
            out, rest = out + rest[:n], rest[n + 2:]
        text = text_of(out.decode())
        if text != self.alone[question]:
            self.complain(f"{question!r}: {text!r} instead of {self.alone[question]!r}")

    def person(self, seed):
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            question = rng.choice(QUESTIONS)
            kind = rng.random()
            try:
                with self.server.connect(120) as s:
                    if kind < 0.02:
                        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n")
                        if status_of(drain(s)) != 413:
                            self.complain("a body that is too large was not refused")
                        self.count("too much")
                        continue
                    s.sendall(request_bytes(body=body(question)))
                    if kind < 0.12:
                        self.read(s, leave_after=rng.randint(1, 10))
                        self.count("left")
                        continue
                    slow = kind < 0.17
                    text = self.read(s, pause=0.02 if slow else 0.0)
                if text == "busy":
                    self.count("busy")
                    time.sleep(0.05)
                    continue
                with self.lock:
                    self.answers.append((question, text))
                self.count("slow" if slow else "whole")
            except OSError as error:
                self.complain(f"{question!r}: {error}")


def shape(server):
    """Memory, threads and descriptors of the server."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    anon = int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024
    return anon, int(re.search(r"Threads:\s+(\d+)", status)[1]), server.metric("process_open_fds")


def sleeper(pipe):
    """Sleeps for as long as it is told, again and again until it is to end, and says how late it woke each time: by
    so much a busy machine may lengthen a gap.  A process of its own, because this one is busy reading."""
    pause, late = pipe.recv(), []
    while not pipe.poll():
        began = time.monotonic()
        time.sleep(pause)
        late.append(time.monotonic() - began - pause)
    pipe.send(late)


def p99_of(values):
    return sorted(values)[int(len(values) * 0.99)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("moxie")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=32)
    o = parser.parse_args()
    sys.setswitchinterval(0.0005)  # so that threads see their pieces when they come
    checks = []
    with Server("--deterministic", "--parallel", "8", "--queue", "64", "-c", "512", "--prefix-cache", "8M", "-q") as server:
        alone = {q: server.chat(body(q)["messages"], max_tokens=60)[1]["choices"][0]["message"]["content"] for q in QUESTIONS}
        load = Load(server, o.seconds, alone)
        pipe, ours = multiprocessing.Pipe()
        probe = multiprocessing.Process(target=sleeper, args=(ours,), daemon=True)
        probe.start()  # before there are threads
        ours.close()
        people = [threading.Thread(target=load.person, args=(i,)) for i in range(o.streams)]
        for p in people:
            p.start()
        time.sleep(min(10.0, o.seconds / 3))
        server.until(lambda: len(load.gaps) > 1000, o.seconds / 3)
        pipe.send(statistics.median(gap for _, gap in load.gaps))
        probed = time.monotonic()
        early = shape(server)
        late = early
        while time.monotonic() < load.end - 0.5:
            time.sleep(0.2)
            late = shape(server)
        pipe.send("end")
        lateness = p99_of(pipe.recv())
        for p in people:
            p.join()
        idle = server.until(server.idle, 5)
        for question, data in load.answers:
            load.check_answer(question, data)
        text = server.ask("GET", "/metrics")[2].decode()
        value = lambda name: float(re.search(rf"^moxie_{name} (\S+)$", text, re.M)[1])
        ended = {k: int(v) for k, v in re.findall(r'requests_finished_total\{reason="(\w+)"\} (\d+)', text)}
        gaps = [gap for when, gap in load.gaps if probed + gap <= when < load.end]
        median, p99 = statistics.median(gaps), p99_of(gaps)
        computed = value("generation_tokens_total") + value("prompt_tokens_total") - value("prompt_tokens_reused_total")
        print(f"{load.n}; gaps between pieces: median {median * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, "
              f"longest {max(gaps) * 1e3:.1f} ms; a sleeper's lateness: p99 {lateness * 1e3:.1f} ms")
        print(f"anonymous memory, threads, descriptors: {early} -> {late}; replies ended: {ended}")
        print(f"cancelled work: {value('cancelled_tokens_total'):.0f} of {computed:.0f} tokens")
        done = load.n["whole"] + load.n["slow"] + len(QUESTIONS)
        checks += [("nothing failed, no text was lost or crossed", not load.problems, load.problems[:5]), ("it came to rest", idle, None),
                   ("enough was asked", load.n["whole"] > 20 and load.n["left"] > 0, load.n),
                   ("p99 of the gaps is under 5 medians and a sleeper's lateness", p99 < 5 * median + lateness,
                    (median, p99, lateness)),
                   ("cancelled work is under 1 %", value("cancelled_tokens_total") < 0.01 * computed, None),
                   ("memory is flat", late[0] < early[0] * 1.1 + 8, (early, late)), ("threads are flat", late[1] == early[1], (early, late)),
                   ("descriptors are flat", late[2] <= early[2] + o.streams, (early, late)),
                   ("the server counted what we did", done <= sum(ended[k] for k in ("stop", "length", "tool_calls")) <= done + load.n["left"] and ended["error"] == 0, (done, ended))]
    for name, good, seen in checks:
        print(f"{'ok  ' if good else 'FAIL'} {name}{'' if good else f': {seen}'}")
    failed = sum(not good for _, good, _ in checks)
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
