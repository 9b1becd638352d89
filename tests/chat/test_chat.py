"""`moxie chat` in a terminal, as somebody sees and types it.

usage: test_chat.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import unittest

from terminal import Terminal

PROGRAM = os.path.abspath(sys.argv[1])
DEMO = os.path.abspath(sys.argv[2])
FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
SPAIN, MADRID = "What is the capital of Spain?", "The capital of Spain is Madrid."
# Hot enough that the model does not stop by itself for hundreds of tokens.
ENDLESS = ["--temp", "50", "--top-k", "0", "--top-p", "1", "--seed", "1", "--isa", "ref", "-t", "1"]


def waits_for_lock(pid):
    with open("/proc/locks", encoding="ascii") as f:
        return any(re.match(rf"\d+: -> FLOCK +\S+ +\S+ +{pid} ", line) for line in f)


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="moxie-chat-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.n_terminals = 0

    def path(self, name, content=None):
        path = os.path.join(self.dir, name)
        if content is not None:
            with open(path, "wb") as f:
                f.write(content)
        return path

    def chat(self, *args, env=None, columns=80, rows=24, greedy=True):
        self.n_terminals += 1
        folder = self.path(f"t{self.n_terminals}")
        os.mkdir(folder)
        env = {**{k: None for k in os.environ if k.startswith("MOXIE_")}, "XDG_STATE_HOME": self.path("state"),
               "TERM": "screen", "NO_COLOR": None, "CLICOLOR_FORCE": None, **(env or {})}
        words = [PROGRAM, "chat", "-m", DEMO, *(["--temp", "0"] if greedy else []), *args]
        terminal = Terminal(folder, words, env, columns, rows)
        self.addCleanup(terminal.close)
        terminal.wait_prompt()
        return terminal

    def saved(self, t):
        """The conversation by /save."""
        path = self.path("saved.json")
        if os.path.exists(path):
            os.remove(path)
        t.send("/save " + path)
        t.until(lambda: os.path.exists(path), path)  # renamed into place; the screen may still tell of an older save
        t.wait_prompt()
        with open(path, encoding="utf-8") as f:
            return json.load(f)

    def history(self):
        return self.path("state/moxie/history")

    def read_history(self):
        with open(self.history(), encoding="utf-8") as f:
            return f.read()


class Editing(Case):
    def test_keys(self):
        t = self.chat()
        t.type("hat is the capital of Frnce? and more")
        t.keys("C-w", "C-w", "BSpace", "Home")
        t.type("W")
        t.keys("End", "Left", "Left", "Left", "Left")
        t.type("a")
        t.wait(r"^> What is the capital of France\?$")
        t.keys("Enter")
        t.wait("^" + re.escape(PARIS))
        t.wait_prompt()
        t.type("xWhat is the capital of Spainnn?")
        t.keys("Home", "Delete", "End", "Left", "BSpace", "C-d", "BSpace")
        t.type("?")
        t.keys("M-b", "C-Left", "C-Right", "Right", "Right")
        t.wait(r"^> What is the capital of Spain\?$")
        t.keys("C-a", "C-k")
        t.wait_prompt()
        t.keys("C-y", "Enter")
        t.wait("^" + re.escape(MADRID))

    def test_wide_characters(self):
        t = self.chat()
        t.type("Grüße, 世界 😀!")
        t.keys("Left", "BSpace", "Left", "Left", "Left")
        t.type("é")
        t.wait("^> Grüße, é世界 !$")
        t.keys("Enter")
        t.wait("gen")
        self.assertEqual(self.saved(t)[0]["content"], "Grüße, é世界 !")

    def test_several_lines(self):
        t = self.chat()
        t.send("one\\")
        t.wait(r"^\. ?\Z")
        t.send("two")
        t.wait("gen")
        t.wait_prompt()
        t.send('"""three')
        t.send("  four\\")
        t.send("")
        t.send('five"""')
        t.wait(r"gen[\s\S]*gen")
        t.wait_prompt()
        t.send('"""')
        t.send("/six")
        t.send('"""')
        t.wait(r"gen[\s\S]*gen[\s\S]*gen")
        t.wait_prompt()
        t.type("seven")
        t.keys("M-Enter")
        t.send("eight")
        t.wait(r"gen[\s\S]*gen[\s\S]*gen[\s\S]*gen")
        asked = [m["content"] for m in self.saved(t) if m["role"] == "user"]
        self.assertEqual(asked, ["one\ntwo", "three\n  four\\\n\nfive", "/six", "seven\neight"])

    def test_history(self):
        t = self.chat()
        t.send(FRANCE)
        t.wait(PARIS)
        t.wait_prompt()
        t.send("one\\")
        t.send("two \\\\ three")
        t.wait(r"gen[\s\S]*gen")
        t.wait_prompt()
        t.keys("Up", "Up")
        t.wait(re.escape("> " + FRANCE) + r"\Z")
        t.keys("Down")
        t.wait(r"^> one\ntwo \\\\ three\Z")
        t.keys("C-c")
        t.wait_prompt()
        t.keys("C-d")
        self.assertEqual(t.wait_exit(), 0)
        self.assertEqual(stat.S_IMODE(os.stat(self.history()).st_mode), 0o600)
        t = self.chat()
        t.keys("Up", "Up")
        t.wait(re.escape("> " + FRANCE) + r"\Z")
        t.keys("Down")
        t.wait(r"^> one\ntwo \\\\ three\Z")

    def test_history_is_capped(self):
        os.makedirs(os.path.dirname(self.history()))
        with open(self.history(), "w", encoding="utf-8") as f:
            f.writelines(f"entry {i}\n" for i in range(5000))
            f.write("cut off")
        t = self.chat()
        t.keys("Up")
        t.wait(r"^> entry 4999\Z")
        self.assertEqual(self.read_history(), "".join(f"entry {i}\n" for i in range(4000, 5000)))
        self.assertEqual(os.listdir(os.path.dirname(self.history())), ["history"])

    def lock_history(self, entries):
        os.makedirs(os.path.dirname(self.history()), exist_ok=True)
        with open(self.history(), "w", encoding="utf-8") as f:
            f.writelines(f"{entry}\n" for entry in entries)
        held = open(self.history(), "r+b")
        self.addCleanup(held.close)
        fcntl.flock(held, fcntl.LOCK_EX)
        return held

    def test_history_is_not_shortened_while_another_chat_adds_to_it(self):
        held = self.lock_history(f"entry {i}" for i in range(3000))
        self.chat()
        held.seek(0, os.SEEK_END)
        held.write(b"from another chat\n")
        held.close()
        self.chat()  # the next one shortens it
        self.assertEqual(self.read_history(), "".join(f"entry {i}\n" for i in range(2001, 3000)) + "from another chat\n")

    def test_message_goes_into_the_history_that_another_chat_shortened(self):
        held = self.lock_history(["one", "two"])
        t = self.chat()
        t.send(FRANCE)
        t.until(lambda: waits_for_lock(t.pid()) or FRANCE in self.read_history(), "message for the history")
        shorter = self.path("shorter", b"two\n")
        os.rename(shorter, self.history())
        held.close()
        t.wait(PARIS)
        self.assertEqual(self.read_history(), f"two\n{FRANCE}\n")

    def test_no_place_for_history(self):
        for state in (self.path("file", b""), "/proc/nowhere", None):
            t = self.chat(env={"XDG_STATE_HOME": state, "HOME": None})
            t.send(FRANCE)
            t.wait(PARIS)

    def test_paste(self):
        text = "".join(f"line {i} of the paste\n" for i in range(50))
        t = self.chat()
        t.type("Read: ")
        t.paste(text.encode())
        t.wait(r"^> Read: \[paste 1: 50 lines\]\Z")
        t.keys("BSpace")
        t.wait(r"^> Read:\Z")
        t.paste(text.encode())
        t.type(" /end")
        t.keys("Enter")
        t.wait("gen")
        self.assertEqual(self.saved(t)[0]["content"], "Read: " + text[:-1] + " /end")
        t.keys("Up", "Up")  # behind the /save
        t.wait(r"^> \[paste \d: 50 lines\]\Z")
        t.keys("C-c")
        t.wait_prompt()
        t.paste(b"a\r\rb\r")  # tmux, like other terminals, sends newlines so
        t.wait(r"^> a\n\nb\Z")
        t.keys("C-c")
        t.wait_prompt()
        t.paste(b"/a\r\nb\tc\x07\x1b[31md\xc2\x9b\n", "-r")
        t.wait(r"^> /a\nb +c\[31md\Z")

    def test_paste_of_a_megabyte(self):
        t = self.chat()
        t.paste(b"0123456789abcde\n" * (1 << 16))
        t.wait(r"^> \[paste 1: 65536 lines\]\Z")
        t.keys("Enter")
        t.wait(r"^moxie: the prompt has \d{6,} tokens but the context holds 4096")
        t.wait_prompt()
        t.send(FRANCE)
        t.wait(PARIS)

    def test_completion(self):
        self.path("notes one.txt", b"x\n")
        self.path("notes two.txt", b"x\n")
        os.mkdir(self.path("folder"))
        t = self.chat(columns=200)
        t.type("/stat")
        t.keys("Tab")
        t.wait(r"^> /stats ?\Z")
        t.keys("C-c")
        t.wait_prompt()
        t.type("/re")
        t.keys("Tab")
        t.wait(r"^read  regen\n> /re\Z")
        t.type("ad " + self.path("no"))
        t.keys("Tab")
        t.wait(re.escape(self.path("notes")) + r" ?\Z")
        t.type("tw")
        t.keys("Tab")
        t.wait(re.escape(self.path("notes two.txt")) + r" ?\Z")
        t.keys("Enter")
        t.wait(r"notes two.txt: 1 line, 2 bytes")
        t.wait_prompt()
        t.type("/load " + self.path("fol"))
        t.keys("Tab")
        t.wait(re.escape(self.path("folder/")) + r"\Z")
        t.keys("C-c")
        t.type("/set max")
        t.keys("Tab")
        t.wait(r"^> /set max-tokens ?\Z")

    def test_ctrl_c(self):
        t = self.chat()
        t.type("a long line that is not wanted" * 5)
        t.keys("C-c")
        t.wait_prompt()
        t.type('"""')
        t.keys("Enter")
        t.wait(r"^\. ?\Z")
        t.keys("C-c")
        t.wait_prompt()
        t.send(FRANCE)
        t.wait(PARIS)
        t.wait_prompt()
        t.keys("C-c")
        t.wait("Ctrl-C again leaves")
        t.wait_prompt()
        t.send(SPAIN)  # the next one is a first one again
        t.wait(MADRID)
        t.wait_prompt()
        t.keys("C-c")
        t.wait(r"leaves[\s\S]*leaves")
        t.wait_prompt()
        t.keys("C-c")
        self.assertEqual(t.wait_exit(), 130)

    def test_resize(self):
        t = self.chat()
        t.type("What is the capital of France, which")
        t.resize(20)
        t.type(" is far away")
        t.resize(1)
        t.type(" or")
        t.resize(40)
        t.type(" near?")
        t.keys("Enter")
        t.wait("gen")
        t.resize(80)
        t.wait_prompt()
        self.assertEqual(self.saved(t)[0]["content"], "What is the capital of France, which is far away or near?")


class Replies(Case):
    def test_screen_of_80_columns(self):
        t = self.chat()
        t.send(FRANCE)
        t.wait("gen")
        self.assertRegex(t.wait_prompt(), r"\Ademo, 4096 tokens of context\. /help shows the commands, Ctrl-D leaves\.\n\n"
                         r"> What is the capital of France\?\nThe capital of France is Paris\.\n"
                         r"prompt \d+ tok \S+s \S+ t/s \| gen \d+ tok \S+s \S+ t/s \| ttft \S+s\n\n> ?\Z")

    def test_screen_of_40_columns(self):
        t = self.chat(columns=40)
        t.send("Say something.")
        t.wait("gen")
        screen = t.wait_prompt()
        self.assertRegex(screen, r"\Ademo\. /help helps, Ctrl-D leaves\.\n\n> Say something\.\n[\s\S]+\n"
                         r"(prompt \S+ t/s \| )?gen \d+ tok \S+ t/s\n\n> ?\Z")
        t.send("/help")
        for line in t.wait(r"brings that back")[len(screen):].splitlines():
            self.assertLessEqual(len(line), 40)

    def test_narrow_windows(self):
        for columns in (1, 2, 7):
            t = self.chat("-q", columns=columns, rows=50)
            t.send("Hi")
            t.wait(r"!")
            t.send("/exit")
            t.resize(80)
            self.assertEqual(t.wait_exit(), 0)

    def test_colors(self):
        t = self.chat()
        t.send(FRANCE)
        t.wait("gen")
        screen = t.wait(r"^\x1b\[2mprompt ", escapes=True)
        self.assertRegex(screen, r"\x1b\[36m[^>]*> What")
        for how in ({"env": {"NO_COLOR": "1"}}, {"args": ["--color", "off"]}):
            t = self.chat(*how.get("args", []), env=how.get("env"))
            t.send(FRANCE)
            t.wait("gen")
            t.wait_prompt()
            self.assertNotIn("\x1b", t.screen(escapes=True))

    def test_thinking(self):
        t = self.chat("--think", "--think-budget", "3")
        t.send(FRANCE)
        t.wait("gen")
        self.assertRegex(t.screen(escapes=True), r"(?m)^\x1b\[2m\S[^\x1b]*\n\n\x1b\[0m[^\n]*Paris")
        t = self.chat("--think", "--think-budget", "3", env={"NO_COLOR": "1"})
        t.send(FRANCE)
        t.wait("gen")
        self.assertRegex(t.screen(), r"(?m)^\[thinking\]\n\S[\s\S]*?\n\[/thinking\]\n\n\S")

    def test_ctrl_c_in_a_reply(self):
        t = self.chat(*ENDLESS, greedy=False)
        t.send("Tell me a story.")
        t.wait(r"story\.\n[\s\S]{100,}")
        t.keys("C-c")
        t.wait(r"\| stopped\n")
        t.wait_prompt()
        messages = self.saved(t)
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
        self.assertGreater(len(messages[1]["content"]), 80)
        t.send("/set temp 0")
        t.send("/undo")
        t.wait("has 0 messages")
        t.send(FRANCE)
        t.wait(PARIS)

    def test_a_file_that_does_not_fit(self):
        t = self.chat(columns=120)
        t.send("/read " + self.path("long.txt", b"The quick brown fox jumps over the lazy dog.\n" * 1000))
        t.wait("part of your next message")
        for _ in range(2):
            t.wait_prompt()
            t.send("What is this?")
            t.wait(r"^> What is this\?\nmoxie: the prompt has \d+ tokens but the context holds 4096[^>]*\n"
                   r"your message is dropped; Up brings it back, and what was read still goes in front of it until /clear\n\n>\Z")
        t.send("/clear")
        t.wait("a new conversation")
        t.wait_prompt()
        t.send(FRANCE)
        t.wait(PARIS)

    def test_ctrl_c_in_a_prompt(self):
        path = self.path("long.txt", b"The quick brown fox jumps over the lazy dog.\n" * 150)
        t = self.chat("--isa", "ref", "-t", "1", "-c", "4096", columns=120)
        t.send("/read " + path)
        t.wait("150 lines, 6750 bytes; part of your next message")
        t.send("What is this?")
        t.wait(r"^prompt \d+/\d+ tok")
        t.keys("C-c")
        stopped = (r"^prompt \d+ of (\d+) tok \S+s( \S+ t/s)? \| stopped\n"
                   r"your message is dropped; Up brings it back, and what was read still goes in front of it until /clear\n")
        n = re.search(stopped, t.wait(stopped), re.M).group(1)
        t.wait_prompt()
        self.assertNotRegex(t.screen(history=False).splitlines()[-3], r"\d/\d")  # nothing is left of the progress
        t.send("/tokens")
        t.wait("the conversation is empty")
        t.wait_prompt()
        t.keys("Up", "Up")
        t.wait(r"^> What is this\?\Z")
        t.send("")
        t.wait(rf"{stopped}[\s\S]*^prompt \d+/{n} tok")  # the file is there again
        t.keys("C-c")
        t.wait(rf"{stopped}[\s\S]*{stopped}")
        t.wait_prompt()
        t.send("/clear")
        t.send(FRANCE)
        t.wait(PARIS)

    def test_ctrl_c_keeps_the_old_reply(self):
        long = "The quick brown fox jumps over the lazy dog.\n" * 150
        messages = [{"role": "user", "content": long}, {"role": "assistant", "content": "A fox."}]
        t = self.chat("--isa", "ref", "-t", "1", "-c", "4096", columns=120)
        t.send("/load " + self.path("old.json", json.dumps(messages).encode()))
        t.wait("old.json: 2 messages")
        t.send("/regen")
        t.wait(r"^prompt \d+/\d+ tok")
        t.keys("C-c")
        t.wait(r"\| stopped\nthe reply stays as it was\n")
        t.wait_prompt()
        self.assertEqual(self.saved(t), messages)

    def test_second_signal_ends_at_once(self):
        t = self.chat(*ENDLESS, greedy=False)
        t.send("Tell me a story.")
        t.wait(r"story\.\n[\s\S]{40,}")
        t.kill(signal.SIGINT, signal.SIGTERM)
        self.assertIn(t.wait_exit(), (130, 143))

    def test_sigterm(self):
        t = self.chat()
        t.kill(signal.SIGTERM)
        self.assertEqual(t.wait_exit(), 143)
        t = self.chat(*ENDLESS, greedy=False)
        t.send("Tell me a story.")
        t.wait(r"story\.\n[\s\S]{40,}")
        t.kill(signal.SIGTERM)
        self.assertEqual(t.wait_exit(), 143)

    def test_crash_leaves_the_terminal_usable(self):
        for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGHUP):
            t = self.chat()
            t.kill(number)
            self.assertNotEqual(t.wait_exit(), 0)

    def test_quit_key(self):
        t = self.chat(*ENDLESS, greedy=False)
        t.send("Tell me a story.")
        t.wait(r"story\.\n[\s\S]{40,}")
        t.keys("C-\\")
        self.assertEqual(t.wait_exit(), 128 + signal.SIGQUIT)

    def test_suspend(self):
        t = self.chat()
        t.type("What is the capital of ")
        t.keys("C-z")
        os.kill(t.pid(), signal.SIGCONT)
        t.send("France?")
        t.wait(PARIS)

    def test_keys_during_a_reply(self):
        t = self.chat(*ENDLESS, "-n", "150", greedy=False)
        t.send("Tell me a story.")
        t.wait(r"story\.\n.{10}")
        t.type("/tokqqq")
        t.wait(r"cut at the limit")
        t.wait(r"^> /tokqqq\Z")
        self.assertEqual(t.screen().count("/tokqqq"), 1)


class Commands(Case):
    def test_help(self):
        t = self.chat()
        t.send("/help")
        screen = t.wait("brings that back")
        for name in ("help", "clear", "regen", "undo", "read", "system", "set", "stats", "tokens", "save", "load", "exit"):
            self.assertRegex(screen, rf"(?m)^/{name}\b")

    def test_unknown(self):
        t = self.chat(columns=120)
        t.send("/halp")
        t.wait(r"^moxie: there is no command /halp; did you mean /help\?")
        t.send("/qwertyuiop")
        t.wait(r"^moxie: there is no such command; /help lists them")
        t.send("/read")
        t.wait(r"^moxie: /read needs a file: /read FILE")
        t.send("/undo now")
        t.wait(r"^moxie: /undo takes no argument")
        t.send("//help")
        t.wait("gen")
        self.assertEqual(self.saved(t)[0]["content"], "/help")

    def test_leaving(self):
        for word in ("/exit", "/bye", "/quit"):
            t = self.chat()
            t.send(word)
            self.assertEqual(t.wait_exit(), 0)

    def test_undo_and_clear(self):
        t = self.chat(columns=120)
        t.send("/undo")
        t.wait("there is no message to take back")
        t.send(FRANCE)
        t.wait(PARIS)
        t.wait_prompt()
        t.send(SPAIN)
        t.wait(MADRID)
        t.wait_prompt()
        t.send("/undo")
        t.wait("the conversation has 2 messages")
        self.assertEqual([m["content"] for m in self.saved(t)], [FRANCE, PARIS])
        t.send("/system Be brief.")
        t.send("/clear")
        t.wait("a new conversation; the system prompt stays")
        self.assertEqual(self.saved(t), [{"role": "system", "content": "Be brief."}])
        t.send("/regen")
        t.wait("there is no message to reply to")

    def test_regen(self):
        t = self.chat()
        t.send(FRANCE)
        t.wait(PARIS)
        t.wait_prompt()
        t.send("/regen")
        t.wait(rf"{PARIS}[\s\S]*{PARIS}[\s\S]*\(cached \d+\)")
        t.wait_prompt()
        self.assertEqual([m["role"] for m in self.saved(t)], ["user", "assistant"])

    def test_save_and_load(self):
        t = self.chat("-s", "Be brief.", columns=200)
        t.send(FRANCE)
        t.wait("gen")
        t.wait_prompt()
        messages = self.saved(t)
        self.assertEqual([m["role"] for m in messages], ["system", "user", "assistant"])
        reply = messages[2]["content"]
        t.send("/tokens")
        count = re.search(r"(\d+) tokens of 4096", t.wait(r"\d+ tokens of 4096")).group(1)
        t.keys("C-d")
        t.wait_exit()
        t = self.chat(columns=200)
        t.send("/load " + self.path("saved.json"))
        t.wait("saved.json: 2 messages")
        t.send("/tokens")
        t.wait(rf"^{count} tokens of 4096")
        t.send("/regen")
        t.wait("^" + re.escape(reply))
        t.wait_prompt()
        self.assertEqual([m["role"] for m in self.saved(t)], ["system", "user", "assistant"])
        t.send("/load " + self.path("not.json", b"[1, 2"))
        t.wait("^moxie: .*not.json")
        t.send("/load " + self.path("nothing"))
        t.wait("^moxie: .*nothing: cannot open")
        t.send("/save " + self.path("no/such/folder"))
        t.wait("^moxie: .*no/such/folder")
        t.wait_prompt()
        self.assertEqual(len(self.saved(t)), 3)

    def test_read(self):
        t = self.chat(columns=200)
        t.send("/read " + self.path("a.txt", b"What is the capital\nof Fr\xff\n\n"))
        t.wait(r"a\.txt: 3 lines, 28 bytes; part of your next message")
        t.send("/read " + self.path("b.txt", b"second"))
        t.wait(r"b\.txt: 1 line, 6 bytes")
        t.send("my words")
        t.wait("gen")
        t.wait_prompt()
        self.assertEqual(self.saved(t)[0]["content"], "What is the capital\nof Fr\ufffd\n\nsecond\n\nmy words")
        t.send("/read " + self.path("zero.bin", b"a\0b"))
        t.wait(r"zero\.bin: this is no text")
        t.send("/read " + self.path("empty.txt", b""))
        t.wait(r"empty\.txt: the file is empty")
        t.send("/read " + self.path("missing"))
        t.wait(r"missing: cannot open")

    def test_system(self):
        t = self.chat()
        t.send("/system")
        t.wait("there is no system prompt")
        t.send("/system Be very brief.")
        t.wait_prompt()
        t.send("/system")
        t.wait(r"^Be very brief\.")
        t.wait_prompt()
        self.assertEqual(self.saved(t), [{"role": "system", "content": "Be very brief."}])
        t.send('/system ""')
        t.wait_prompt()
        self.assertEqual(self.saved(t), [])

    def test_set(self):
        t = self.chat(columns=120)
        t.send("/set temp hot")
        t.wait(r"^moxie: temp takes a number from 0 to 100, not 'hot'")
        t.send("/set tmp 1")
        t.wait(r"^moxie: there is no setting tmp; did you mean temp\?")
        t.send("/set temp")
        t.wait(r"^moxie: /set temp takes one value")
        t.send("/set think maybe")
        t.wait(r"^moxie: think takes on, off or auto, not 'maybe'")
        for name, value in (("temp", "0.25"), ("top-k", "7"), ("seed", "9"), ("max-tokens", "3"), ("think", "off"),
                            ("think-budget", "11")):
            t.send(f"/set {name} {value}")
            t.send("/set")
            t.wait(rf"^{name} +{re.escape(value)}$")
        t.send("/set top-k default")
        t.send("/set")
        t.wait(r"^top-k +20  \(the model's\)$")
        t.send("/set temp 0")
        t.send(FRANCE)
        t.wait(r"^The capital of\n.*gen 3 tok.*cut at the limit")

    def test_stats(self):
        t = self.chat(columns=120)
        t.send("/stats")
        t.wait("there was no reply yet")
        t.send(FRANCE)
        t.wait("gen")
        t.wait_prompt()
        t.send(SPAIN)
        t.wait(MADRID)
        t.wait_prompt()
        t.send("/stats")
        t.wait(r"^last   prompt \d+ tok .*ttft")
        t.wait(r"^all 2  prompt \d+ tok .*gen 16 tok")


if __name__ == "__main__":
    if not shutil.which("tmux"):
        print("tmux is not installed")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
