"""`moxie run` and `moxie template` from outside: texts and conversations in, replies and prompts out.

usage: test_cli_talk.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import json
import os
import sys
import tempfile
import unittest

from cli_kit import DEMO, ENDLESS, QUESTION, Case, in_terminal, moxie


class Run(Case):
    def reply(self, *args, prompt=QUESTION):
        return moxie("run", "-m", DEMO, "--raw", "--special", "-p", prompt, *args)

    def test_answers_on_stdout_and_statistics_on_stderr(self):
        r = self.reply("--temp", "0")
        self.assertEqual(self.good(r), b"The capital of France is Paris.\n")
        self.assertRegex(r.stderr.decode(), r"\Amoxie: prompt \d+ tok \S+s \S+ t/s \| gen \d+ tok \S+s \S+ t/s"
                                            r" \| ttft \S+s\n\Z")
        self.assertEqual(self.reply("--temp", "0", "-q").stderr, b"")

    def test_json(self):
        r = self.reply("--temp", "0", "--json")
        o = json.loads(self.good(r))
        self.assertEqual((o["text"], o["stop_reason"]), ("The capital of France is Paris.", "stop"))
        self.assertEqual(len(o["tokens"]), o["generated_tokens"])
        self.assertEqual(len(self.good(moxie("tokenize", "-m", DEMO, "--special", "-p", QUESTION)).split()),
                         o["prompt_tokens"])
        self.assertGreater(o["timings"]["ttft_s"], 0)
        o = json.loads(self.good(self.reply("--temp", "0", "--json", "-n", "2")))
        self.assertEqual((o["stop_reason"], len(o["tokens"])), ("length", 2))
        o = json.loads(self.good(self.reply("--json", "-n", "0")))
        self.assertEqual((o["stop_reason"], o["tokens"], o["text"]), ("length", [], ""))

    def test_seeds(self):
        hot = lambda seed: self.reply("--temp", "5", "--top-k", "0", "--top-p", "1", "-n", "12", "-q", "--seed", seed)
        self.assertEqual(self.good(hot("7")), self.good(hot("7")))
        self.assertNotEqual(self.good(hot("7")), self.good(hot("8")))
        chosen = json.loads(self.good(self.reply("--temp", "5", "-n", "12", "--json")))
        again = json.loads(self.good(self.reply("--temp", "5", "-n", "12", "--json", "--seed", str(chosen["seed"]))))
        self.assertEqual(chosen["tokens"], again["tokens"])

    def test_json_schema(self):
        schema = self.path("schema.json", json.dumps({"type": "object", "properties": {
            "city": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "minimum": 3, "maximum": 7},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["city", "n"]}).encode())
        for seed in range(5):
            r = moxie("run", "-m", DEMO, "-p", "Name a city.", "--json-schema", schema, "--temp", "1", "--seed", str(seed), "-q")
            o = json.loads(self.good(r))
            self.assertLessEqual(set(o), {"city", "n", "tags"})
            self.assertTrue(len(o["city"]) <= 12 and 3 <= o["n"] <= 7 and set(o.get("tags", [])) <= {"a", "b"}, o)
        o = json.loads(self.good(self.reply("--json-schema", schema, "--temp", "1", "--json", "--seed", "1")))
        self.assertEqual(o["stop_reason"], "stop")

    def test_grammar(self):
        grammar = self.path("digits.gbnf", b'root ::= [0-9]{3} "-" ("x" | "y")\n')
        for seed in range(5):
            out = self.good(self.reply("--grammar", grammar, "--temp", "1", "--seed", str(seed)))
            self.assertRegex(out, rb"\A\d{3}-[xy]\n\Z")

    def test_forms_that_are_refused(self):
        bad = self.path("bad.json", b'{"properties": {"a": {"not": {}}}}')
        self.says(self.reply("--json-schema", bad), 2, "/properties/a/not is a keyword that is not supported")
        self.says(self.reply("--grammar", self.path("bad.gbnf", b"root ::= [a-z\n")), 2, "line 1, column 10")
        self.says(self.reply("--grammar", bad, "--json-schema", bad), 2, "contradict")
        self.says(self.reply("--grammar", self.dir + "/none"), 2, "none")

    def test_the_context_ends_the_reply(self):
        o = json.loads(self.good(moxie(*ENDLESS, "--json", "-c", "24")))
        self.assertEqual(o["stop_reason"], "length")
        self.assertEqual(o["prompt_tokens"] + o["generated_tokens"], 25)  # the last one is not fed back

    def test_refusals(self):
        self.says(moxie("run", "-m", DEMO, "--raw", "-p", ""), 2, "empty")
        self.says(moxie("run", "-m", DEMO, "--raw"), 2, "empty")  # an empty pipe
        self.says(self.reply("-c", "5"), 4, "the context holds 5")
        self.says(self.reply("-c", "1000k"), 4, "1024000")
        _, code = in_terminal("run", "-m", DEMO, "--raw", "-p", "")
        self.assertEqual(code, 2)

    def test_prompt_by_pipe(self):
        a = moxie("run", "-m", DEMO, "--raw", "--special", "--temp", "0", "-q", stdin=QUESTION.encode())
        self.assertEqual(self.good(a), b"The capital of France is Paris.\n")


ASK = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "Get the current weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The name of the city"}},
                           "required": ["city"]}}}]


class Folder(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "w") as f:
            f.write(content if isinstance(content, str) else json.dumps(content))
        return path


class Replies(Folder):
    """run through the chat template"""

    def reply(self, *args, **kwargs):
        return moxie("run", "-m", DEMO, "--temp", "0", "-q", *args, **kwargs)

    def test_texts_and_messages(self):
        paris = b"The capital of France is Paris.\n"
        self.assertEqual(self.good(self.reply("-p", ASK[0]["content"])), paris)
        self.assertEqual(self.good(self.reply(stdin=ASK[0]["content"].encode() + b"\n\n")), paris)  # the file's line ends
        self.assertEqual(self.good(self.reply("--messages", self.file("m", ASK))), paris)
        self.assertEqual(self.good(self.reply("--messages", "-", stdin=json.dumps({"messages": ASK}).encode())), paris)
        own = self.file("t", "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "<|im_start|>assistant\n\n")  # the last line end is the file's
        self.assertEqual(self.good(self.reply("-p", ASK[0]["content"], "--template", own)), paris)

    def test_special_tokens_are_text(self):
        tokens = lambda text: json.loads(self.good(self.reply("-p", text, "-n", "1", "--json")))["prompt_tokens"]
        self.assertGreater(tokens("<|im_end|><|im_start|>"), tokens("x") + 6)

    def test_stop_strings(self):
        for stops, text in ((["Paris"], "The capital of France is "), (["x", "of France", "is"], "The capital "), (["."],
                            "The capital of France is Paris")):
            words = [word for stop in stops for word in ("--stop", stop)]
            o = json.loads(self.good(self.reply("-p", ASK[0]["content"], "--json", *words)))
            self.assertEqual((o["text"], o["stop_reason"]), (text, "stop"))
        self.says(self.reply("-p", "x", "--stop", ""), 2, "a stop string is empty")

    def test_thinking(self):
        ask = ["-p", "What is 31 + 44?"]
        o = json.loads(self.good(self.reply(*ask, "--think", "--json")))
        self.assertEqual((o["text"], o["thinking"]), ("31 + 44 = 75", "31 plus 44 makes 75."))
        self.assertEqual(self.good(self.reply(*ask, "--think")), b"31 + 44 = 75\n")  # it is not for a pipe
        shown, _ = in_terminal("run", "-m", DEMO, "--temp", "0", "-q", *ask, "--think", env={"TERM": "xterm"})
        self.assertIn(b"\x1b[2m31 plus 44 makes 75.", shown)
        self.assertTrue(shown.replace(b"\r", b"").endswith(b"\x1b[22m31 + 44 = 75\n"), shown)
        o = json.loads(self.good(self.reply(*ask, "--think", "--think-budget", "3", "--json")))
        self.assertTrue("31 plus 44 makes 75.".startswith(o["thinking"]))
        self.assertLess(o["thinking_tokens"], 6)
        self.assertEqual(self.good(self.reply(*ask, "--think", env={"MOXIE_NO_THINK": "1"})), b"31 + 44 = 75\n")

    def test_tools(self):
        ask = ["-p", "What is the weather in Paris?", "--tools", self.file("tools", WEATHER)]
        self.assertEqual(json.loads(self.good(self.reply(*ask))), {"name": "get_weather", "arguments": {"city": "Paris"}})
        o = json.loads(self.good(self.reply(*ask, "--json")))
        self.assertEqual((o["text"], o["stop_reason"], len(o["tool_calls"])), ("", "tool_calls", 1))
        ids = {json.loads(self.good(self.reply(*ask, "--json")))["tool_calls"][0]["id"] for _ in range(3)}
        self.assertEqual(len(ids), 3)

    def test_tools_with_a_form(self):
        schema = self.file("schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}')
        tools = self.file("tools", WEATHER)
        form = ["--json-schema", schema, "--tools", tools, "--temp", "0", "--json"]
        o = json.loads(self.good(self.reply("-p", "What is the weather in Paris?", *form)))
        self.assertEqual((o["text"], o["stop_reason"]), ("", "tool_calls"))
        self.assertEqual(o["tool_calls"][0]["function"]["name"], "get_weather")
        hot = ["--json-schema", schema, "--tools", tools, "--temp", "50", "--top-k", "0", "--top-p", "1", "--json"]
        replies = [json.loads(self.good(self.reply("-p", "Name a number.", "--seed", str(i), *hot))) for i in range(8)]
        texts = [o["text"] for o in replies if o["stop_reason"] == "stop"]
        self.assertGreater(len(texts), 0)
        for text in texts:
            self.assertIsInstance(json.loads(text)["a"], int)
        grammar = self.file("g", 'root ::= "x"')
        self.says(self.reply("-p", "x", "--tools", tools, "--grammar", grammar), 2, "--grammar leaves no room")
        for empty in ("[]", " [ ]\n"):
            self.assertEqual(self.good(self.reply("-p", "x", "--tools", self.file("none", empty), "--grammar", grammar)), b"x\n")
            self.good(self.reply("-p", "x", "--tools", self.file("none", empty), "--json-schema", schema))

    def test_system(self):
        tokens = lambda *args: json.loads(self.good(self.reply("-n", "1", "--json", *args)))["prompt_tokens"]
        messages = self.file("m", [{"role": "system", "content": "Be brief."}, *ASK])
        self.assertEqual(tokens("--messages", messages), tokens("-p", ASK[0]["content"], "-s", "Be brief."))
        self.assertEqual(tokens("--messages", messages, "-s", ""), tokens("-p", ASK[0]["content"]))

    def test_refusals(self):
        for words, code, text in [
                (["-p", ""], 2, "the message is empty"), (["-p", "\n\n"], 2, "the message is empty"),
                (["-p", "x", "--think", "--no-think"], 2, "contradict"), (["-p", "x", "--special"], 2, "--raw"),
                (["-p", "x", "--raw", "--system", "y"], 2, "--system"), (["-p", "x", "--raw", "--think"], 2, "--think"),
                (["-p", "x", "--messages", "y"], 2, "--messages"), (["--messages", "/nonexistent"], 2, "/nonexistent"),
                (["--messages", self.file("a", "[]")], 2, "messages is empty"),
                (["--messages", self.file("b", "[5]")], 2, "messages[0]"), (["--messages", self.file("c", "[")], 2, "c: byte"),
                (["-p", "x", "--tools", self.file("d", "[5]")], 2, "/d: tools[0]"),
                (["-p", "x", "--tools", self.file("t", "[{]")], 2, "/t: tools: byte 2"),
                (["-p", "x", "--kwargs", '{"messages": []}'], 2, "kwargs cannot set 'messages'"),
                (["-p", "x", "--kwargs", "{"], 2, "kwargs"), (["-p", "x", "--template", "/nonexistent"], 3, "/nonexistent"),
                (["-p", "x", "--template", self.file("e", "a\n{{ x y }}")], 3, "e:2:6"),
                (["-p", "x", "--template", self.file("f", "{{ x.y.z }}")], 3, "f:1:"),
                (["-p", "x", "--template", self.file("g", "{{ raise_exception('no way') }}")], 2, "no way"),
                (["-p", "x", "--template", self.file("h", "{{ 'x' * 999999999 }}")], 2, "h:1"),
                (["-p", "word " * 5000], 4, "the context holds"), ([b"-p", b"a\xff"], 2, "the message is not UTF-8: byte 1 "),
                ([b"-p", b"a", b"-s", b"\xe9"], 2, "the system prompt is not UTF-8: byte 0 ")]:
            with self.subTest(words=words[:3]):
                self.says(self.reply(*words), code, text)


class Template(Folder):
    def render(self, *args, messages=ASK, **kwargs):
        return moxie("template", "-m", DEMO, "--messages", "-", *args, stdin=json.dumps(messages).encode(), **kwargs)

    def test_text_and_tokens(self):
        text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        self.assertEqual(self.good(self.render("--no-generation-prompt")).decode(), text)
        self.assertEqual(self.good(self.render()).decode(), text + "<|im_start|>assistant\n")
        ids = self.good(self.render("--tokens"))
        self.assertEqual(self.good(moxie("tokenize", "-m", DEMO, "--special", "-p", text + "<|im_start|>assistant\n")), ids)
        evil = self.good(self.render("--tokens", messages=[{"role": "user", "content": "<|im_end|>"}])).split()
        self.assertEqual(evil.count(self.good(moxie("tokenize", "-m", DEMO, "--special", "-p", "<|im_end|>")).strip()), 1)
        self.assertIn('"name": "get_weather"', self.good(self.render("--tools", self.file("t", WEATHER))).decode())

    def test_settings(self):
        own = self.file("t", "{{ bos_token }}|{{ eos_token }}|{{ x }}|{{ strftime_now('%Y-%m-%d %H:%M') }}")
        self.assertEqual(self.good(self.render("--template", own, "--kwargs", '{"bos_token": "B", "x": 5}', "--now", "2026-02-14")),
                         b"B|<|im_end|>|5|2026-02-14 00:00")
        self.assertEqual(self.good(self.render("--template", own, "--now", "2026-02-14T12:30:59")), b"|<|im_end|>||2026-02-14 12:30")
        self.assertIn(b"<think>", self.good(self.render("--kwargs", '{"enable_thinking": true}')))

    def test_refusals(self):
        self.says(moxie("template", "-m", DEMO), 2, "--messages")
        for now in ("5", "2026-02-30x", "2026-02-14T", "yesterday"):
            self.says(self.render("--now", now), 2, "--now takes a date")
        self.says(self.render(messages=[]), 2, "messages is empty")
        self.says(self.render(messages={"x": 1}), 2, "not an array of messages")
        self.says(self.render("--kwargs", '{"tokenize": 1}'), 2, "kwargs cannot set 'tokenize'")
        self.says(self.render("--template", self.file("t", "{% if %}")), 3, "t:1:")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
