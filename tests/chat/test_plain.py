"""`moxie chat` where there is no editor: pipes, terminals that cannot move their cursor,
outputs that fail.

usage: test_plain.py PROGRAM DEMO_MODEL [unittest arguments]
"""
import fcntl
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "server"))
from kit import broken_demo  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
DEMO = os.path.abspath(sys.argv[2])
WAIT_S = 120
FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
# Hot enough that the model does not stop by itself for hundreds of tokens.
ENDLESS = ["--temp", "50", "--top-k", "0", "--top-p", "1", "--seed", "1", "--isa", "ref", "-t", "1"]
ENV = {k: v for k, v in os.environ.items() if not k.startswith("MOXIE_") and k not in ("NO_COLOR", "CLICOLOR_FORCE")}


def chat(*args, stdin=b"", env=None, **kwargs):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.run([PROGRAM, "chat", "-m", DEMO, "--temp", "0", *args], input=stdin, timeout=WAIT_S, check=False,
                          env={**ENV, **(env or {})}, **streams)


def in_terminal(steps, env, *args, room=None):
    """Runs it in a terminal: each step waits for bytes and then types some.  Returns all
    that came, and the exit code.  No file has room for more bytes than are given."""
    master, slave = pty.openpty()

    def own_terminal():  # so that Ctrl-C is a signal
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if room is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    with subprocess.Popen([PROGRAM, "chat", "-m", DEMO, "--temp", "0", *args], stdin=slave, stdout=slave, stderr=slave,
                          env={k: v for k, v in {**ENV, **env}.items() if v is not None}, preexec_fn=own_terminal) as child:
        os.close(slave)
        out, at, deadline = b"", 0, time.monotonic() + WAIT_S
        steps = list(steps)
        while time.monotonic() < deadline:
            if steps and steps[0][0] in out[at:]:
                at = out.index(steps[0][0], at) + len(steps[0][0])
                os.write(master, steps.pop(0)[1])
                continue
            if not select.select([master], [], [], 1)[0]:
                continue
            try:
                out += os.read(master, 65536)
            except OSError:  # the other end is closed
                break
        else:
            child.kill()
        code = child.wait(WAIT_S)
    os.close(master)
    return out, code


class Pipes(unittest.TestCase):
    def test_lines_are_messages(self):
        r = chat(stdin=f"{FRANCE}\n\n   \nWhat is the capital\\\nof Spain?\n/regen\n".encode())
        self.assertEqual(r.returncode, 0)
        lines = r.stdout.decode().splitlines()
        self.assertEqual(lines[0], PARIS)
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[1], lines[2])
        self.assertRegex(r.stderr.decode(), r"\A(moxie: prompt \d+ tok .* \| gen \d+ tok .*\n){3}\Z")
        self.assertNotIn(b"\x1b", r.stdout + r.stderr)

    def test_last_line_without_newline(self):
        self.assertEqual(chat("-q", stdin=FRANCE.encode()).stdout.decode(), PARIS + "\n")

    def test_windows_newlines(self):
        self.assertEqual(chat("-q", stdin=f"{FRANCE}\r\n".encode()).stdout.decode(), PARIS + "\n")

    def test_first_failure_is_the_exit_code(self):
        r = chat("-q", stdin=f"/nonsense\n/set temp x\n{FRANCE}\n".encode())
        self.assertEqual((r.returncode, r.stdout.decode()), (2, PARIS + "\n"))
        self.assertRegex(r.stderr.decode(), r"\Amoxie: there is no such command.*\nmoxie: temp takes.*\n\Z")
        r = chat("-q", "-c", "40", stdin=f"{'word ' * 200}\n{FRANCE}\n".encode())
        self.assertEqual((r.returncode, r.stdout.decode()), (4, PARIS + "\n"))

    def test_nothing(self):
        r = chat()
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, b"", b""))

    def test_any_bytes(self):
        data = bytes(range(256)) * 4 + b"\n" + b"\xff\xfe\xc3\n\xf0\x9f\x98\n"
        self.assertEqual(chat("-q", "-n", "3", stdin=data).returncode, 0)

    def test_megabyte_line(self):
        r = chat("-q", stdin=b"x" * (1 << 20) + b"\n" + FRANCE.encode() + b"\n")
        self.assertEqual((r.returncode, r.stdout.decode()), (4, PARIS + "\n"))
        self.assertRegex(r.stderr.decode(), "the prompt has .* tokens but the context holds 4096")

    def test_output_fails(self):
        with open("/dev/full", "wb") as full:
            r = chat(stdin=f"{FRANCE}\n".encode() * 50, stdout=full)
        self.assertEqual(r.returncode, 5)
        self.assertIn(b"cannot write to standard output: No space left on device", r.stderr)
        closed = subprocess.run(f"exec '{PROGRAM}' chat -q -m '{DEMO}' >&-", shell=True, input=FRANCE.encode(),
                                stderr=subprocess.PIPE, timeout=WAIT_S, check=False, env=ENV)
        self.assertEqual(closed.returncode, 5)
        quiet = subprocess.run(f"exec '{PROGRAM}' chat -m '{DEMO}' --temp 0 2>&-", shell=True, input=FRANCE.encode(),
                               stdout=subprocess.PIPE, timeout=WAIT_S, check=False, env=ENV)
        self.assertEqual((quiet.returncode, quiet.stdout.decode()), (0, PARIS + "\n"))

    def test_reader_leaves(self):
        with subprocess.Popen([PROGRAM, "chat", "-q", "-m", DEMO, *ENDLESS], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV) as child:
            child.stdin.write(b"Tell me a story.\n")
            child.stdin.flush()
            child.stdout.read(1)
            child.stdout.close()
            self.assertEqual(child.wait(WAIT_S), 5)

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for line in (b"", b"Tell me a story.\n"):
                with subprocess.Popen([PROGRAM, "chat", "-m", DEMO, *ENDLESS], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV) as child:
                    # The message is waited for in either case: signals are ours from then on.
                    child.stdin.write(line or b"/stats\n")
                    child.stdin.flush()
                    (child.stdout if line else child.stderr).read(1)
                    child.send_signal(number)
                    self.assertEqual(child.wait(WAIT_S), 128 + number)

    def test_refusals(self):
        self.assertEqual(chat("word").returncode, 2)
        self.assertEqual(chat("--think", "--no-think").returncode, 2)
        self.assertEqual(chat("-m", "/nonexistent").returncode, 3)


class PlainTerminals(unittest.TestCase):
    STEPS = [(b"> ", b"one\\\n"), (b". ", b"two\n"), (b"gen ", b""), (b"> ", FRANCE.encode() + b"\n"), (PARIS.encode(), b""),
             (b"> ", b"/exit\n")]

    def test_no_escapes(self):
        for term in ("dumb", None, ""):
            out, code = in_terminal(self.STEPS, {"TERM": term})
            self.assertEqual(code, 0, out)
            self.assertNotIn(b"\x1b", out)

    def test_ctrl_c_and_ctrl_d(self):
        out, code = in_terminal([(b"> ", b"half a line\x03"), (b"Ctrl-C again leaves", b""), (b"> ", b"\x03")], {"TERM": "dumb"})
        self.assertEqual(code, 130, out)
        _, code = in_terminal([(b"> ", b"\x04")], {"TERM": "dumb"})
        self.assertEqual(code, 0)

    def test_one_message_is_no_several(self):
        with tempfile.TemporaryDirectory() as folder:
            one = Path(folder) / "one.json"
            one.write_text('[{"role": "user", "content": "x"}]')
            done = chat(stdin=f"/load {one}\n/tokens\n/save {one}\n/undo\n".encode())
            self.assertRegex(done.stderr.decode(), r"\A.*one\.json: 1 message\n.*, 1 message\n"
                             r".*one\.json: 1 message saved\n.*has 0 messages\n\Z")

    def test_a_question_whose_reply_fails_is_dropped(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) / "kept.json"
            done = chat("-m", broken_demo(folder), stdin=f"{FRANCE}\n/save {kept}\n".encode())
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"not a number", done.stderr)
            self.assertEqual(kept.read_text().strip(), "[]")

    def test_a_full_disk_does_not_end_the_chat(self):
        """/save says what is wrong and leaves what was there; lines that are not remembered are no loss."""
        for room in (0, 30):
            with tempfile.TemporaryDirectory() as folder:
                kept = Path(folder) / "kept.json"
                kept.write_text("mine")
                steps = [(b"> ", FRANCE.encode() + b"\r"), (b"| gen ", b""), (b"> ", f"/save {kept}\r".encode()), (b"File too large", b""),
                         (b"> ", FRANCE.encode() + b"\r"), (b"| gen ", b""), (b"> ", b"\x04")]
                out, code = in_terminal(steps, {"TERM": "xterm", "NO_COLOR": "1", "XDG_STATE_HOME": folder}, room=room)
                self.assertEqual(code, 0, out)
                self.assertIn(b"cannot write", out)
                self.assertEqual(kept.read_text(), "mine")
                self.assertEqual(list(kept.parent.glob("*.part")), [])

    def test_a_full_context(self):
        """Only where there is something to take back."""
        with tempfile.TemporaryDirectory() as folder:
            env = {"TERM": "xterm", "NO_COLOR": "1", "XDG_STATE_HOME": folder}
            long = b"word " * 100 + b"\r"
            steps = [(b"> ", long), (b"is dropped", b""), (b"> ", FRANCE.encode() + b"\r"), (b"| gen ", b""),
                     (b"> ", long), (b"is dropped", b""), (b"> ", b"/undo\r"), (b"has 0 messages", b""),
                     (b"> ", b"\x04")]
            out, code = in_terminal(steps, env, "-c", "60")
        self.assertEqual(code, 0, out)
        first, second = out.split(b"| gen ")
        self.assertNotIn(b"/undo makes room", first)
        self.assertRegex(second, rb"the context holds 60[^>]*is dropped[^>]*\n/undo makes room[^>]*/clear")

    def test_no_color(self):
        with tempfile.TemporaryDirectory() as folder:
            env = {"TERM": "xterm", "XDG_STATE_HOME": folder, "NO_COLOR": "1"}
            out, code = in_terminal([(b"> ", FRANCE.encode() + b"\r"), (b"ttft", b""), (b"> ", b"\x04")], env)
            self.assertEqual(code, 0)
            self.assertFalse(re.search(rb"\x1b\[[0-9;]+m", out), out)
            out, _ = in_terminal([(b"> ", FRANCE.encode() + b"\r"), (b"ttft", b""), (b"> ", b"\x04")], {**env, "NO_COLOR": None})
            self.assertTrue(re.search(rb"\x1b\[[0-9;]+m", out), out)

    def test_pastes_are_switched_off_at_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            out, code = in_terminal([(b"> ", b"\x04")], {"TERM": "xterm", "XDG_STATE_HOME": folder})
        self.assertEqual(code, 0)
        self.assertGreater(out.rfind(b"\x1b[?2004l"), out.rfind(b"\x1b[?2004h"))
        self.assertGreater(out.rfind(b"\x1b[?2004h"), -1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
