"""What the tests of the program share: running it, and saying what it must say.

The first two words of the command line of such a test are the program and the demo model."""
import atexit
import fcntl
import json
import os
import pty
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
DEMO = os.path.abspath(sys.argv[2])
WAIT_S = 60

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
# Without the caller's own settings and caches.
CACHE = tempfile.mkdtemp(prefix="moxie-cache-")
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
# A form with so many letters that no kernel ends the reply before the context does.
LONG_FORM = os.path.join(CACHE, "long.gbnf")
with open(LONG_FORM, "w") as form:
    form.write("root ::= [a-z ]{60000}\n")
ENDLESS = ["run", "-m", DEMO, "--raw", "-p", "Once", "--temp", "50", "--top-k", "0", "--top-p", "1", "--seed", "1",
           "--grammar", LONG_FORM]
BASE_ENV = {**{k: v for k, v in os.environ.items() if not k.startswith("MOXIE_")}, "XDG_CACHE_HOME": CACHE}


def moxie(*args, stdin=b"", env=None, **kwargs):
    """Runs the program with a standard input that is no terminal."""
    return subprocess.run([PROGRAM, *args], input=stdin, capture_output=True, timeout=WAIT_S,
                          env={**BASE_ENV, **(env or {})}, **kwargs)


def full_after(n_bytes):
    """For preexec_fn: a disk on which no file has room for more."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))


def spawn(*args, **kwargs):
    return subprocess.Popen([PROGRAM, *args], stdin=subprocess.DEVNULL, env=BASE_ENV, **kwargs)


def in_terminal(*args, env=None, columns=80):
    """Runs it with standard output in a terminal; returns its bytes and exit code."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([PROGRAM, *args], stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.DEVNULL,
                          env={**BASE_ENV, "TERM": "xterm", **(env or {})}) as child:
        os.close(slave)
        out = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            out += piece
        code = child.wait(WAIT_S)
    os.close(master)
    return out.replace(b"\r\n", b"\n"), code


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="moxie-cli-")
        self.addCleanup(shutil.rmtree, self.dir)

    def path(self, name, content=None):
        path = os.path.join(self.dir, name)
        if content is not None:
            with open(path, "wb") as f:
                f.write(content)
        return path

    def copy_demo(self, **files):
        """The demo model with changed files: tokenizer=f changes tokenizer.json by f(its contents)."""
        folder = self.path("model")
        os.makedirs(folder)
        for name in os.listdir(DEMO):
            os.symlink(os.path.join(DEMO, name), os.path.join(folder, name))
        for name, change in files.items():
            path = os.path.join(folder, name + ".json")
            with open(path) as f:
                content = json.load(f)
            change(content)
            os.remove(path)
            with open(path, "w") as f:
                json.dump(content, f)
        return folder

    def says(self, result, code, *words):
        """One sentence that begins with "moxie: " and holds the words; nothing on stdout."""
        text = result.stderr.decode()
        self.assertEqual(result.returncode, code, text)
        self.assertEqual(result.stdout, b"")
        self.assertRegex(text, r"\Amoxie: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, text)

    def good(self, result):
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        return result.stdout
