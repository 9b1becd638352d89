#!/usr/bin/env python3
"""soak.py MOXIE [--minutes N] [--report FILE] -- hours of people in short: does anything grow, slow down or fail?

The people of load.py, a tenth of whom leave in the middle, beside visitors who use everything else: conversations that
go on, tools, forms, other APIs, requests that are wrong; and somebody who asks every second whether the server is well.
Memory, threads, descriptors and gaps between tokens are written down all the time.  What was seen at the end is
compared with what was seen after the first quarter, and written to a Markdown file."""
import argparse
import http.client
import multiprocessing
import random
import re
import statistics
import sys
import threading
import time
from pathlib import Path

from kit import MOXIE, QUESTION, WEATHER, Server
from load import QUESTIONS, Load, body, shape

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 3, "maximum": 7}},
          "required": ["city", "n"], "additionalProperties": False}
WARM_SHARE = 0.25  # of the time, before which nothing is compared


class Soak(Load):
    def __init__(self, server, seconds, alone):
        super().__init__(server, seconds, alone)
        self.visits, self.health = 0, []  # health: seconds that /health took

    def visit(self, rng):
        """One visit of somebody who wants something else; what must come back is checked where it is known."""
        s, weather = self.server, [{"role": "user", "content": "What is the weather in Paris?"}]
        history = []
        for question in rng.sample(QUESTIONS, 3):  # each turn goes on where the last one ended
            history.append({"role": "user", "content": question})
            status, answer = s.chat(history, max_tokens=60)
            yield status, {200, 429}
            if status == 200:
                history.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        status, answer = s.chat(weather, tools=[WEATHER])
        yield status, {200, 429}
        yield s.post("/v1/messages", {"max_tokens": 20, "messages": QUESTION})[0], {200, 429}
        yield s.post("/v1/responses", {"input": "Who are you?", "max_output_tokens": 20})[0], {200, 429}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        yield s.chat(temperature=1, seed=rng.randrange(1000), max_tokens=100, response_format=form)[0], {200, 429}
        yield s.chat(temperature=-1)[0], {400}
        yield s.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}})[0], {400}
        yield s.post("/tokenize", {"content": "word " * rng.randrange(1, 2000)})[0], {200}
        yield s.ask("GET", "/nothing")[0], {404}
        yield s.chat([{"role": "user", "content": "word " * 1000}])[0], {400}

    def visitor(self, seed):
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            try:
                for status, expected in self.visit(rng):
                    self.visits += 1
                    if status not in expected:
                        self.complain(f"a visitor got {status} instead of one of {sorted(expected)}")
                    if status == 429:
                        time.sleep(0.2)
            except OSError as error:
                self.complain(f"a visitor: {error}")

    def forget(self):
        """Looks at the answers of the last interval, so that this program does not grow itself."""
        with self.lock:
            answers, self.answers = self.answers, []
        for question, data in answers:
            self.check_answer(question, data)


def probe(host, port, seconds, results):
    """Asks every second whether the server is well; a process of its own, because this one is busy reading."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.monotonic()
        c = http.client.HTTPConnection(host, port, timeout=30)
        c.request("GET", "/health")
        well = c.getresponse().status == 200
        times.append(time.monotonic() - started if well else float("inf"))
        c.close()
        time.sleep(1)
    results.put(times)


def p99(values):
    return sorted(values)[int(len(values) * 0.99)] if values else 0.0


def sample(soak, since):
    """A row of the report: minutes, memory, threads, descriptors, replies so far, median and p99 of recent gaps, failures."""
    memory, threads, files = shape(soak.server)
    with soak.lock:
        gaps = [gap for when, gap in soak.gaps if when >= since]
        soak.gaps = []
        replies = sum(soak.n.values()) + soak.visits
    text = soak.server.ask("GET", "/metrics")[2].decode()
    errors = sum(float(n) for n in re.findall(r'http_requests_total\{status="5\d\d"\} (\d+)', text))
    return {"memory": memory, "threads": threads, "files": files, "replies": replies, "median": statistics.median(gaps) if gaps else 0.0, "p99": p99(gaps),
            "errors": errors + len(soak.problems)}


def slope(rows, key):
    """What is added per minute, by least squares."""
    xs, ys = [r["minute"] for r in rows], [r[key] for r in rows]
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / max(sum((x - mx) ** 2 for x in xs), 1e-9)


def judge(soak, rows, minutes):
    late = [r for r in rows if r["minute"] >= minutes * WARM_SHARE]
    half = len(late) // 2
    growth = slope(late, "memory")
    grown = growth * minutes * (1 - WARM_SHARE)
    gap = [statistics.median(r["p99"] for r in part) for part in (late[:half], late[half:])]
    return [("no request failed, no text was lost or crossed", not soak.problems, soak.problems[:5]),
            ("no answer of class 5xx", rows[-1]["errors"] == 0, rows[-1]["errors"]),
            ("memory is flat", grown < 0.05 * late[0]["memory"] + 4, f"{growth:+.3f} MB a minute, {late[0]['memory']:.1f} MB after the first quarter"),
            ("threads are flat", late[0]["threads"] == late[-1]["threads"], [r["threads"] for r in late]),
            ("descriptors are flat", abs(slope(late, "files")) * minutes * (1 - WARM_SHARE) < 8, f"{slope(late, 'files'):+.3f} a minute"),
            ("gaps between tokens are stable", gap[1] < 2 * gap[0] + 0.005, f"p99 {gap[0] * 1e3:.1f} ms, then {gap[1] * 1e3:.1f} ms"),
            ("/health answers within 100 ms", p99(soak.health) < 0.1, f"p99 {p99(soak.health) * 1e3:.1f} ms")]


def report(path, soak, rows, checks, minutes):
    shown = rows[::max(1, len(rows) // 24)]
    lines = ["# Soak", "", f"`make soak`: {minutes:g} minutes of mixed traffic on the demo model, 8 replies at once, on the machine of [machine.md](machine.md).",
             f"Replies read to the end: {soak.n['whole']}, read slowly: {soak.n['slow']}, left in the middle: {soak.n['left']}, too large: {soak.n['too much']},",
             f"told to come back: {soak.n['busy']}, other requests: {soak.visits}.", "",
             "| minute | anonymous memory, MB | threads | descriptors | requests | gap median, ms | gap p99, ms | failures |", "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {r['minute']:.1f} | {r['memory']:.1f} | {r['threads']} | {r['files']:.0f} | {r['replies']} | {r['median'] * 1e3:.1f} | {r['p99'] * 1e3:.1f} | "
              f"{r['errors']:.0f} |" for r in shown]
    lines += ["", "| what must hold | seen | |", "|---|---|---|"]
    lines += [f"| {name} | {seen if isinstance(seen, str) else '' if good else seen} | {'yes' if good else '**no**'} |" for name, good, seen in checks]
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("moxie")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--report", type=Path, default=Path("soak.md"))
    o = parser.parse_args()
    sys.setswitchinterval(0.0005)
    interval = max(2.0, o.minutes * 60 / 96)
    with Server("--deterministic", "--parallel", "8", "--queue", "64", "-c", "512", "--prefix-cache", "8M", "-q") as server:
        alone = {q: server.chat(body(q)["messages"], max_tokens=60)[1]["choices"][0]["message"]["content"] for q in QUESTIONS}
        started = time.monotonic()
        soak = Soak(server, o.minutes * 60, alone)
        people = [threading.Thread(target=soak.person, args=(i,)) for i in range(16)]
        people += [threading.Thread(target=soak.visitor, args=(i,)) for i in range(4)]
        results = multiprocessing.Queue()
        prober = multiprocessing.Process(target=probe, args=(server.host, server.port, o.minutes * 60, results))
        prober.start()
        for p in people:
            p.start()
        rows, since = [], started
        while time.monotonic() < soak.end - interval / 2:
            time.sleep(interval)
            now = time.monotonic()
            soak.forget()
            rows.append({"minute": (now - started) / 60, **sample(soak, since)})
            since = now
        for p in people:
            p.join()
        soak.health = results.get(timeout=60)
        prober.join()
        soak.forget()
        checks = judge(soak, rows, o.minutes) + [("it came to rest", server.until(server.idle, 5), None)]
    report(o.report, soak, rows, checks, o.minutes)
    for name, good, seen in checks:
        print(f"{'ok  ' if good else 'FAIL'} {name}: {seen}")
    failed = sum(not good for _, good, _ in checks)
    print(f"{MOXIE}: {o.minutes:g} minutes, the report is {o.report}")
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
