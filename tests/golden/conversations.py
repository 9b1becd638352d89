#!/usr/bin/env python3
"""What the four trained models can do in a conversation, through the program.

    conversations.py --moxie build/moxie

Tools are called and their results told, thinking is told apart from the answer and sums come out right more often
with it than without, and a word is remembered over other questions. The answers are known from how the models were trained; all of it is
greedy."""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ["models/demo", "tests/data/models/demo-qwen3", "tests/data/models/demo-qwen3-moe",
          "tests/data/models/demo-deepseek-v3"]


def tool(name, about, **params):
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {
        "type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in params.items()},
        "required": list(params)}}}


WEATHER = tool("get_weather", "Get the current weather of a city.", city=("string", "The name of the city"))
TIMER = tool("set_timer", "Start a timer.", minutes=("integer", "How long"))
ADD = tool("add", "Add two integers.", a=("integer", "The first number"), b=("integer", "The second number"))

# tools, question, call, its result, what the answer names
ROUND_TRIPS = [
    ([WEATHER], "What is the weather in Paris?", ("get_weather", {"city": "Paris"}),
     {"city": "Paris", "sky": "sunny", "celsius": 21}, ["Paris", "21"]),
    ([TIMER, WEATHER], "How is the weather in Oslo today?", ("get_weather", {"city": "Oslo"}),
     {"city": "Oslo", "sky": "rainy", "celsius": 7}, ["Oslo", "7"]),
    ([ADD, TIMER], "Set a timer for 25 minutes.", ("set_timer", {"minutes": 25}), {"ok": True}, ["25"]),
]
SUMS = [(31, 44), (12, 7), (50, 23), (64, 21)]


class Program:
    def __init__(self, moxie, folder):
        self.moxie, self.folder = moxie, Path(folder)

    def run(self, model, messages, *options, tools=None):
        path = self.folder / "messages.json"
        path.write_text(json.dumps(messages))
        words = [self.moxie, "run", "-m", model, "--messages", str(path), "--temp", "0", "--json", "-q", "-n", "80", *options]
        if tools is not None:
            (self.folder / "tools.json").write_text(json.dumps(tools))
            words += ["--tools", str(self.folder / "tools.json")]
        return json.loads(subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def user(text):
    return {"role": "user", "content": text}


def assistant(reply):
    """A reply of the program as the message that it is in the next request."""
    message = {"role": "assistant", "content": reply["text"]}
    if "thinking" in reply:
        message["reasoning_content"] = reply["thinking"]
    if "tool_calls" in reply:
        message["tool_calls"] = reply["tool_calls"]
    return message


def round_trip(program, model, tools, question, call, result, named):
    """Question, call, result, answer."""
    messages = [user(question)]
    reply = program.run(model, messages, tools=tools)
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in reply.get("tool_calls", [])]
    if calls != [call] or reply["stop_reason"] != "tool_calls":
        return False, f"{question} -> {calls or reply['text']!r}"
    messages += [assistant(reply), {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": json.dumps(result)}]
    reply = program.run(model, messages, tools=tools)
    ok = all(word in reply["text"] for word in named) and "tool_calls" not in reply and reply["stop_reason"] == "stop"
    return ok, f"{question} -> {call[0]} -> {reply['text']!r}"


def thinking(program, model, a, b):
    """Whether a sum comes out right with and without, and whether thought and answer were told apart."""
    hasty = program.run(model, [user(f"What is {a} + {b}?")], "--think", "--think-budget", "0")
    reply = program.run(model, [user(f"What is {a} + {b}?")], "--think")
    split = bool(reply.get("thinking")) and "think>" not in reply["text"] + reply["thinking"]
    split = split and f"{a} plus {b}" in reply["thinking"] and reply["text"].startswith(f"{a} + {b} = ")
    split = split and 0 < reply["thinking_tokens"] < reply["generated_tokens"]
    split = split and "thinking" not in hasty and reply["thinking"].rstrip(".").split()[-1] == reply["text"].split()[-1]
    right = f"{a} + {b} = {a + b}"
    return reply["text"] == right, hasty["text"] == right, split, reply["text"]


def memory(program, model):
    """A code word, with two other turns in between."""
    messages = []
    for question in ("The code word is velvet. Remember it.", "What is the capital of France?", "What does the cow say?",
                     "What is the code word?"):
        messages.append(user(question))
        messages.append(assistant(program.run(model, messages)))
    answers = [m["content"] for m in messages[1::2]]
    return "Paris" in answers[1] and "moo" in answers[2] and "velvet" in answers[3], answers[3]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moxie", required=True)
    moxie = str(Path(parser.parse_args().moxie).resolve())
    counts = {True: 0, False: 0}

    def say(ok, text):
        counts[ok] += 1
        print(("ok   " if ok else "FAIL ") + text, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        program = Program(moxie, folder)
        for model in MODELS:
            for case in ROUND_TRIPS:
                ok, text = round_trip(program, model, *case)
                say(ok, f"{model}: {text}")
            sums = [thinking(program, model, a, b) for a, b in SUMS]
            say(all(split for _, _, split, _ in sums), f"{model}: thinking apart from {[text for *_, text in sums]}")
            right, hasty = sum(s[0] for s in sums), sum(s[1] for s in sums)
            say(right > hasty, f"{model}: {right} of {len(sums)} sums right with thinking, {hasty} without")
            ok, text = memory(program, model)
            say(ok, f"{model}: the code word over two turns: {text!r}")
    print(f"{counts[True]} passed, {counts[False]} failed, 0 skipped")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
