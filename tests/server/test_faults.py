#!/usr/bin/env python3
"""test_faults.py MOXIE [TEST...] -- requests made to hurt, crowds, odd processors and odd clocks (docs/faults.md)."""
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kit import *

SCHEMA = lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
# A clock on the wall that is put back by an hour, and time() with it, once the file CLOCK_BACK is there.
WALL_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const int code = real(id, t);
    if (id == CLOCK_REALTIME && access(getenv("CLOCK_BACK"), F_OK) == 0) t->tv_sec -= 3600;
    return code;
}
time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
"""


def deep_schema(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def timed(s, limit=1 * SLOW, **fields):
    """The status, the answer and the seconds that it took; once more if that was long, for machines pause."""
    for _ in range(2):
        started = time.monotonic()
        status, answer = s.chat(**fields)
        took = time.monotonic() - started
        if took < limit:
            break
    assert took < limit, (took, limit, str(fields)[:200])
    return status, answer, took


def test_large_forms():
    """Schemas, tools and patterns beyond all measure are refused within a second; one that refers to itself works,
    and takes not much longer than a reply without any form."""
    sys.setrecursionlimit(10000)  # to write such schemas at all
    tool = lambda i, schema: {"type": "function", "function": {"name": f"tool_{i}", "parameters": schema}}
    with Server() as s:
        for fields in [{"tools": [tool(i, {"type": "object"}) for i in range(1000)]}, {"tools": [tool(0, deep_schema(1000))], "tool_choice": "required"},
                       SCHEMA(deep_schema(40)), SCHEMA(deep_schema(1000)), SCHEMA({"enum": ["x" * 1000 + str(i) for i in range(1000)]}),
                       SCHEMA({"type": "string", "pattern": "(" * 60000 + "a" + ")" * 60000}), {"grammar": "root ::= " + "(" * 60000 + '"a"' + ")" * 60000},
                       SCHEMA({"type": "string", "pattern": "(" * 60000})]:
            status, answer, _ = timed(s, max_tokens=2, **fields)
            assert status == 400 and answer["error"]["message"], (str(fields)[:200], status)
        me = {"type": "object", "properties": {"n": {"type": "integer"}, "me": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["n", "me"]}
        for schema in [me, {"type": "string", "pattern": "(a+)+$", "maxLength": 40}]:
            most = {"max_tokens": 300, "temperature": 1, "seed": 3}
            plain_s = timed(s, 60, ignore_eos=True, **most)[2]  # all of its tokens
            status, answer, _ = timed(s, 10 * plain_s, **most, **SCHEMA(schema))
            assert status == 200, answer
        assert s.chat()[1]["choices"][0]["message"]["content"] == ANSWER


def test_wrong_grammars():
    """Refused with the place where they are wrong."""
    with Server() as s:
        for grammar, place in [("root ::= root \"a\" | \"b\"", "root"), ("root ::= missing", "missing"), ('root ::= "a"{0,1000000}', "line 1"),
                               ('Root ::= "a"', "root"), ("root ::= \"a\n", "line 1"), ('root ::= "a"\nother ::= )', "line 2")]:
            status, answer, _ = timed(s, grammar=grammar)
            assert status == 400 and answer["error"]["param"] == "grammar" and place in answer["error"]["message"], (grammar, answer)
        status, answer = s.chat(grammar="")
        assert status == 200 and answer["choices"][0]["message"]["content"] == ANSWER, "an empty grammar is none"


def test_forms_at_their_ends():
    """A form that nothing fits is refused, or ends in an error that says so; one that is complete at once ends the reply."""
    with Server() as s:
        status, answer = s.chat(grammar='root ::= ""')
        assert status == 200 and answer["choices"][0]["finish_reason"] == "stop" and not answer["choices"][0]["message"]["content"], answer
        for schema in [{"type": "string", "minLength": 5, "maxLength": 2}, {"enum": [1, 2], "minimum": 3}, False]:
            status, answer = s.chat(**SCHEMA(schema))
            assert status == 400 and answer["error"]["message"], (schema, answer)
        assert s.chat()[1]["choices"][0]["message"]["content"] == ANSWER


def test_endless_replies():
    """A reply that never ends stops at its limit or at the context's; tool calls that are cut are no calls."""
    with Server("-c", "512") as s:
        status, answer = s.chat(**{**ENDLESS, "max_tokens": 50})
        assert status == 200 and answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 50
        status, answer = s.chat(**ENDLESS)
        assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["total_tokens"] == 512
        answer = s.chat([{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER], max_tokens=6)[1]["choices"][0]
        assert answer["finish_reason"] == "length" and "tool_calls" not in answer["message"]


def test_burst():
    """500 at once where 34 find room: each is answered or told to come back, and nobody is forgotten."""
    n_parallel, n_queue, n = 2, 32, 500
    with Server("--parallel", n_parallel, "--queue", n_queue) as s:
        sockets = [s.connect() for _ in range(n)]
        for c in sockets:
            c.sendall(request_bytes(Connection="close"))
        answers = in_threads([lambda c=c: drain(c) for c in sockets])
        for c in sockets:
            c.close()
        statuses = [status_of(a) for a in answers]
        assert set(statuses) == {200, 429}, {x: statuses.count(x) for x in set(statuses)}
        assert statuses.count(200) >= n_parallel + n_queue, statuses.count(200)
        for answer, status in zip(answers, statuses):
            if status == 429:
                assert b"\r\nRetry-After: " in answer and b'"queue_full"' in answer, answer
            else:
                assert ANSWER.encode() in answer, answer
        assert s.until(s.idle) and s.chat()[0] == 200


def test_small_beside_large():
    """One huge prompt, and twenty small ones behind it, all of which are answered before it is."""
    with Server("--parallel", "4", "--queue", "32", "-c", "4k", *SLOWLY) as s:
        with s.connect() as large:
            large.sendall(request_bytes(body={"messages": [{"role": "user", "content": "word " * 3000}], "stream": True, "max_tokens": 800, **ENDLESS}))
            assert s.until(lambda: s.metric("num_requests_running") == 1)
            answers = in_threads([lambda: s.chat() for _ in range(20)])
            assert all(status == 200 and answer["choices"][0]["message"]["content"] == ANSWER for status, answer in answers)
            assert s.metric("num_requests_running") == 1, "the large one was done first"


def test_same_again():
    """The same request a hundred times: the same tokens, alone, and among others with --deterministic."""
    ask = {"messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 40, "logprobs": True}
    tokens = lambda s: tuple(bytes(t["bytes"]) for t in s.chat(**ask)[1]["choices"][0]["logprobs"]["content"])
    with Server() as s:
        alone = {tokens(s) for _ in range(100)}
        assert len(alone) == 1 and len(next(iter(alone))) > 20, alone
    with Server("--deterministic", "--parallel", "4") as s:
        own = tokens(s)
        others = [s.connect() for _ in range(3)]
        again = lambda i: others[i].sendall(request_bytes(body={"messages": QUESTION, "stream": True, "seed": i, **ENDLESS}))
        for i in range(3):
            again(i)
        assert s.until(lambda: s.metric("num_requests_running") == 3)
        for i in range(100):
            assert tokens(s) == own, i
            if s.metric("num_requests_running") < 3:  # they end with the context
                for c in others:
                    c.close()
                others = [s.connect() for _ in range(3)]
                for k in range(3):
                    again(k)
                assert s.until(lambda: s.metric("num_requests_running") == 3)
        for c in others:
            c.close()


def test_processors():
    """One processor, the plainest kernels, and a processor that has nothing newer (emulated): the same answer, and no illegal instruction."""
    one = lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for words, preexec in [([], one), (["--isa", "ref"], None), (["--isa", "ref"], one)]:
        with Server(*words, preexec=preexec) as s:
            status, answer = s.chat()
            assert status == 200 and answer["choices"][0]["message"]["content"] == ANSWER, (words, answer)
    with_sanitizer = b"__asan_init" in Path(MOXIE).read_bytes() or b"__tsan_init" in Path(MOXIE).read_bytes()
    if not shutil.which("qemu-x86_64") or os.uname().machine != "x86_64" or with_sanitizer:
        raise Skip("no emulator of older processors here")
    done = subprocess.run(["qemu-x86_64", "-cpu", "Nehalem", MOXIE, "run", "-m", str(DEMO), "--temp", "0", "-t", "1", "-p", QUESTION[0]["content"]],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and ANSWER in done.stdout, (done.returncode, done.stdout, done.stderr)
    assert "scalar kernels" in done.stderr, done.stderr


def test_clocks():
    """The clock on the wall goes back by an hour, then the process is halted for a while: the stream goes on to its end."""
    with tempfile.TemporaryDirectory() as folder:
        source, library, back = Path(folder) / "clock.c", Path(folder) / "clock.so", Path(folder) / "back"
        source.write_text(WALL_CLOCK)
        if subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], capture_output=True).returncode != 0:
            raise Skip("no compiler")
        if b"__asan_init" in Path(MOXIE).read_bytes():
            raise Skip("the sanitizer wants to be loaded first")
        with Server("-c", "4k", env={"LD_PRELOAD": str(library), "CLOCK_BACK": str(back)}) as s:
            before = s.chat()[1]["created"]
            with s.connect() as c:
                c.sendall(request_bytes(body={"messages": QUESTION, "stream": True, "max_tokens": 3000, **ENDLESS}, Connection="close"))
                assert s.until(lambda: s.metric("num_requests_running") == 1)
                back.touch()
                after = s.chat()[1]["created"]
                assert -3700 < after - before < -3500, "the clock did not go back"
                s.process.send_signal(signal.SIGSTOP)
                time.sleep(3)
                s.process.send_signal(signal.SIGCONT)
                answer = drain(c)
            assert answer.endswith(b"0\r\n\r\n") and b"data: [DONE]" in answer, answer[-300:]
            numbers = s.metrics()
            assert all(v >= 0 for v in numbers.values()), {k: v for k, v in numbers.items() if v < 0}


def test_one_state_folder():
    """Two servers with one folder of states: the second serves without it, and says so, until the first ends."""
    story = lambda name: [{"role": "user", "content": f"The {name} tells a long story about the fox. " * 60}]

    def reused(s, name):
        status, answer = s.chat(story(name), max_tokens=4)
        assert status == 200, answer
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with tempfile.TemporaryDirectory() as folder:
        first = Server("--state-dir", folder)
        with Server("--state-dir", folder) as second:
            with first:
                assert reused(first, "cow") == 0
                assert first.until(lambda: list(Path(folder).glob("*.state")))
                assert reused(second, "cow") == reused(second, "dog") < 100
                assert "another process holds it" in second.errors() and "another process" not in first.errors()
                assert "from now on" not in second.errors()
                assert reused(first, "cat") < 100
            assert second.until(lambda: "from now on" in second.errors()), second.errors()
            assert reused(second, "cat") > 400
        assert second.errors().count("from now on") == second.errors().count("another process") == 1
        with Server("--state-dir", folder) as third:
            assert all(reused(third, name) > 400 for name in ["cow", "dog", "cat"])


run_tests(globals())
