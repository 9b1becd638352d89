"""What is generated from the table of options: help, manual page, completions.

The table is read back from the help pages; everything in it must be in all the others,
and bash's completion is tried out word by word.

usage: test_completion.py PROGRAM [unittest arguments]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.path.abspath(sys.argv[1])
WAIT_S = 60
BASE_ENV = {k: v for k, v in os.environ.items() if not k.startswith(("MOXIE_", "HF_", "HUGGINGFACE_"))}


def moxie(*args, env=None):
    return subprocess.run([PROGRAM, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, text=True,
                          env={**BASE_ENV, **(env or {})})


def good(result):
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return result.stdout


class Option:
    def __init__(self, letter, name, value):
        self.letter, self.name, self.value = letter, name, value
        self.choices = value.split("|") if value and "|" in value else None

    def spellings(self):
        return {"--" + self.name} | ({"-" + self.letter} if self.letter else set())


def read_table():
    """{command: [Option]} as help tells it."""
    commands = re.findall(r"^  (\w+) ", good(moxie("--help")), re.M)
    line = re.compile(r"^  (?:-(\w),|   ) --([\w-]+)(?: (\S+))?(?: |$)", re.M)
    # a value is one word behind one blank; in front of an explanation there are two or more
    return {c: [Option(letter, name, value) for letter, name, value in line.findall(good(moxie(c, "--help")))]
            for c in commands}


TABLE = read_table()


class Help(unittest.TestCase):
    def test_the_table_was_read(self):
        self.assertGreaterEqual(set(TABLE), {"run", "list", "bench", "completion", "version"})
        names = {o.name: o for o in TABLE["bench"]}
        self.assertEqual((names["model"].letter, names["model"].value), ("m", "MODEL"))
        self.assertEqual(names["output"].choices, ["table", "csv", "json"])
        self.assertEqual((names["pin"].letter, names["pin"].value), ("", ""))
        self.assertTrue(all({"help", "version"} <= {o.name for o in options} for options in TABLE.values()))

    def widest(self, columns, *args):
        """The longest line in a terminal of that width, but for words that are longer than it."""
        script = ("import fcntl, os, pty, struct, sys, termios\n"
                  "pid, fd = pty.fork()\n"
                  "if pid == 0:\n"
                  "    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, %d, 0, 0))\n"
                  "    os.execv(sys.argv[1], sys.argv[1:])\n"
                  "out = b''\n"
                  "while True:\n"
                  "    try: piece = os.read(fd, 65536)\n"
                  "    except OSError: break\n"
                  "    if not piece: break\n"
                  "    out += piece\n"
                  "sys.stdout.buffer.write(out.replace(b'\\r', b''))\n"
                  "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n" % columns)
        done = subprocess.run([sys.executable, "-c", script, PROGRAM, *args], capture_output=True, timeout=WAIT_S,
                              text=True, env=BASE_ENV)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stdout.splitlines() if len(line.split()) > 1 and not line.startswith("  -")]
        return max(map(len, lines))

    def test_help_fits_the_terminal(self):
        for columns in (40, 80, 200):
            for command in TABLE:
                width = self.widest(columns, command, "--help")
                self.assertLessEqual(width, min(columns, 96), (columns, command))
            self.assertLessEqual(self.widest(columns, "--help"), columns)
        # a terminal that is closed may lose its last bytes
        self.assertGreater(max(self.widest(200, "bench", "--help") for _ in range(3)), 80)


class Manual(unittest.TestCase):
    def setUp(self):
        self.page = good(moxie("completion", "man"))
        self.assertNotRegex(self.page, r"(?<!\\)-")  # hyphens would be no minus signs for copying
        self.plain = re.sub(r"\\f[BIR]", "", self.page).replace("\\-", "-")

    def test_sections(self):
        self.assertEqual(re.findall(r"^\.SH (.+)$", self.page, re.M),
                         ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "COMMON OPTIONS", "ENVIRONMENT", "EXIT STATUS", "FILES",
                          "EXAMPLES"])
        status = self.page.split(".SH EXIT STATUS")[1].split(".SH")[0]
        self.assertEqual(re.findall(r"^\.B (\d+)$", status, re.M), ["0", "1", "2", "3", "4", "5", "6", "130", "143"])
        for name in ("NO_COLOR", "CLICOLOR_FORCE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
            self.assertIn(name, self.page.split(".SH ENVIRONMENT")[1])

    def test_every_command_and_option(self):
        commands = self.plain.split(".SH COMMANDS")[1].split(".SH COMMON OPTIONS")
        sections = dict(re.findall(r"^\.SS (\w+)\n(.*?)(?=^\.SS |\Z)", commands[0], re.M | re.S))
        self.assertEqual(list(sections), list(TABLE))
        common = commands[1].split(".SH")[0]
        environment = commands[1].split(".SH ENVIRONMENT")[1]
        for command, options in TABLE.items():
            self.assertIn("moxie " + command, self.plain.split(".SH SYNOPSIS")[1].split(".SH")[0])
            for o in options:
                with self.subTest(command=command, option=o.name):
                    shown = (f"-{o.letter}, " if o.letter else "") + "--" + o.name + (" " + o.value if o.value else "")
                    own = f".TP 7\n{shown}\n" in sections[command]
                    named = re.search(rf"^--{o.name}[,.]$", sections[command], re.M)
                    self.assertTrue(own or (named and f".TP 7\n{shown}\n" in common))
                    if o.name not in ("help", "version"):
                        self.assertRegex(environment, r"\bMOXIE_%s[,.]" % o.name.upper().replace("-", "_"))

    def test_no_complaints(self):
        tools = {"groff": ["-man", "-Tutf8", "-ww", "-z"], "man": ["--warnings", "-E", "UTF-8", "-l", "-"],
                 "mandoc": ["-Tlint", "-Wwarning"]}
        found = [name for name in tools if shutil.which(name)]
        if not found:
            self.skipTest("neither groff nor man nor mandoc is here")
        for name in found:
            done = subprocess.run([name, *tools[name]], input=self.page, capture_output=True, text=True, timeout=WAIT_S,
                                  env={**BASE_ENV, "LC_ALL": "C.UTF-8"})
            said = done.stderr + (done.stdout if name == "mandoc" else "")
            # the page has no date on purpose: the same sources make the same page
            said = [line for line in said.splitlines() if "missing date" not in line]
            self.assertEqual(said, [], name)
            if name == "man":
                self.assertIn("EXIT STATUS", done.stdout)


class Bash(unittest.TestCase):
    """The script in a real bash, with COMP_WORDS as readline would split them."""

    @classmethod
    def setUpClass(cls):
        if not shutil.which("bash"):
            raise unittest.SkipTest("bash is not here")

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="moxie-completion-")
        self.addCleanup(shutil.rmtree, self.dir)
        self.script = os.path.join(self.dir, "moxie.bash")
        with open(self.script, "w") as f:
            f.write(good(moxie("completion", "bash")))
        for name in ("folder", "file.txt", "two words"):
            path = os.path.join(self.dir, "at", name)
            os.makedirs(os.path.dirname(path) if "." in name else path, exist_ok=True)
            if "." in name:
                open(path, "w").close()
        self.cache = os.path.join(self.dir, "hub")
        for folder in ("models--Org--One/snapshots/aaaa1111", "models--Org--Two/snapshots/bbbb2222",
                       "models--Org--Two/snapshots/cccc3333"):
            os.makedirs(os.path.join(self.cache, folder))

    def complete(self, line, replaced=None, program=PROGRAM, env=None):
        """What the line would be completed to; replaced: what readline calls the word."""
        words = [piece for piece in re.split(r"([=:@])|\s", line) if piece]
        if line.endswith(" "):
            words.append("")
        words[0] = program
        line = program + line[line.index(" "):]
        if replaced is None:
            replaced = "" if words[-1] in list("=:") else "@" + words[-1] if words[-2:-1] == ["@"] else words[-1]
        driver = ('source "$1" || exit 9; declare -F _moxie >/dev/null || exit 8; complete -p moxie >/dev/null || exit 7\n'
                  'cd "$2"; COMP_LINE=$3; COMP_POINT=${#3}; COMP_WORDS=("${@:5}"); COMP_CWORD=$(($# - 5))\n'
                  '_moxie "${COMP_WORDS[0]}" "$4" || exit 6; for r in "${COMPREPLY[@]}"; do printf "%s\\n" "$r"; done\n')
        done = subprocess.run(["bash", "--norc", "-c", driver, "bash", self.script, os.path.join(self.dir, "at"), line,
                               replaced, *words], capture_output=True, text=True, timeout=WAIT_S,
                              env={**BASE_ENV, "HF_HUB_CACHE": self.cache, **(env or {})})
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return set(done.stdout.splitlines())

    def test_syntax(self):
        subprocess.run(["bash", "-n", self.script], check=True, timeout=WAIT_S)

    def test_commands(self):
        self.assertEqual(self.complete("moxie "), set(TABLE) | {"help", "--help", "--version"})
        self.assertEqual(self.complete("moxie tok"), {"tokenize"})
        self.assertEqual(self.complete("moxie help "), set(TABLE))
        self.assertEqual(self.complete("moxie nonsense --"), set())

    def test_every_option(self):
        for command, options in TABLE.items():
            want = set().union(*(o.spellings() for o in options))
            self.assertEqual(self.complete(f"moxie {command} -"), want)
            for o in options:
                for spelling in o.spellings():
                    if o.choices:
                        self.assertEqual(self.complete(f"moxie {command} {spelling} "), set(o.choices))
            self.assertEqual(self.complete(f"moxie {command} --he"), {"--help"})

    def test_values(self):
        self.assertEqual(self.complete("moxie run --kv-type=q"), {"q8"})
        self.assertEqual(self.complete("moxie run --kv-type="), {"f32", "f16", "q8"})
        self.assertEqual(self.complete("moxie run -n "), set())
        self.assertEqual(self.complete("moxie run -p "), set())  # the same letter means another thing in bench
        self.assertEqual(self.complete("moxie run -f f"), {"file.txt", "folder"})
        self.assertEqual(self.complete("moxie logits --out=f"), {"file.txt", "folder"})
        self.assertEqual(self.complete("moxie run -f t"), {"two words"})
        self.assertEqual(self.complete("moxie run -p x: -f fi"), {"file.txt"})
        levels = self.complete("moxie run --isa ")
        self.assertIn("ref", levels)
        self.assertEqual(self.complete("moxie completion "), {"bash", "zsh", "fish", "man"})
        shapes = self.complete("moxie synth ")
        self.assertIn("qwen3-30b-a3b", shapes)
        self.assertEqual(self.complete("moxie bench --synthetic "), shapes)
        self.assertEqual(self.complete("moxie synth qwen3-30b-a3b f"), {"folder"})

    def test_models(self):
        names = {"Org/One", "Org/Two@bbbb2222", "Org/Two@cccc3333"}
        self.assertEqual(self.complete("moxie run -m Or"), names)
        self.assertEqual(self.complete("moxie inspect --model=Org/O"), {"Org/One"})
        self.assertEqual(self.complete("moxie run -m Org/Two@c"), {"@cccc3333"})
        self.assertEqual(self.complete("moxie run -m Org/Two@"), {"@bbbb2222", "@cccc3333"})
        self.assertLessEqual({"folder", "two words"} | names, self.complete("moxie run -m "))
        self.assertNotIn("file.txt", self.complete("moxie run -m f"))

    def test_silent_when_there_is_nobody_to_ask(self):
        self.assertEqual(self.complete("moxie run -m fo", program=os.path.join(self.dir, "none")), {"folder"})
        self.assertEqual(self.complete("moxie run -m fo", env={"MOXIE_COLOR": "nonsense"}), {"folder"})
        self.assertEqual(self.complete("moxie run -m fo", env={"HF_HUB_CACHE": self.script}), {"folder"})


class Zsh(unittest.TestCase):
    def setUp(self):
        self.script = good(moxie("completion", "zsh"))

    def test_every_command_and_option(self):
        cases = dict(re.findall(r"^    (\w+)\)\n        _arguments(.*?)\n        ;;$", self.script, re.M | re.S))
        self.assertEqual(list(cases), list(TABLE))
        for command, options in TABLE.items():
            self.assertIn(f"        '{command}:", self.script)
            for o in options:
                value = "=" if o.value else ""
                shown = rf"'\(-{o.letter} --{o.name}\)'{{-{o.letter}\+?,--{o.name}{value}}}'" if o.letter else f"--{o.name}{value}'"
                explained = r"\[(?:[^]\[\\:]|\\.)*\]" + (":" if o.value else "'")  # brackets and colons have backslashes
                self.assertRegex(cases[command], r" \\\n {12}" + shown + explained, (command, o.name))
                if o.choices:
                    self.assertIn(f":{o.name}:({' '.join(o.choices)})'", cases[command])

    def test_in_zsh(self):
        if not shutil.which("zsh"):
            self.skipTest("zsh is not here")
        # the functions of its completion system, as far as this needs them: they print what they are told
        stubs = ("compdef() { registered=$1 }\n_describe() { print -rl -- ${(P)${@[-1]}} }\n"
                 "_arguments() { if [[ $1 == -C ]]; then state=argument; return 1; fi; print -rl -- \"$@\" }\n")
        for command, options in TABLE.items():
            run = stubs + self.script + f"\n[[ $registered == _moxie ]] || exit 9\nwords=({command})\n_moxie\n"
            done = subprocess.run(["zsh", "-f", "-c", run], capture_output=True, text=True, timeout=WAIT_S)
            self.assertEqual(done.stderr, "")
            told = re.findall(r"^(?:\([^)]*\))?--?([\w-]+)[+=]?\[", done.stdout, re.M)
            self.assertEqual(set(told), {o.name for o in options} | {o.letter for o in options if o.letter}, command)


class Fish(unittest.TestCase):
    def setUp(self):
        self.script = good(moxie("completion", "fish"))

    def test_every_command_and_option(self):
        for command, options in TABLE.items():
            self.assertRegex(self.script, rf"(?m)^complete -c moxie -n '[^']*' -a {command} -d '")
            for o in options:
                lines = re.findall(rf"(?m)^complete -c moxie -n '__moxie_command ([^']*)' (.*)-l {o.name} (.*)$", self.script)
                mine = [line for line in lines if command in line[0].split()]
                self.assertEqual(len(mine), 1, (command, o.name))
                self.assertEqual(mine[0][1], f"-s {o.letter} " if o.letter else "")
                if o.choices:
                    self.assertIn(f"-x -a '{' '.join(o.choices)}'", mine[0][2])

    def test_in_fish(self):
        if not shutil.which("fish"):
            self.skipTest("fish is not here")
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "moxie.fish")
            with open(script, "w") as f:
                f.write(self.script)

            def complete(line):
                done = subprocess.run(["fish", "--no-config", "-c", f"set -g fish_complete_path; source {script}; complete -C '{line}'"],
                                      capture_output=True, text=True, timeout=WAIT_S, env={**BASE_ENV, "HOME": folder})
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                return {answer.split("\t")[0] for answer in done.stdout.splitlines()}

            self.assertEqual(complete("moxie "), set(TABLE) | {"help"})
            self.assertEqual(complete("moxie run --kv-type "), {"f32", "f16", "q8"})
            for command, options in TABLE.items():
                self.assertGreaterEqual(complete(f"moxie {command} --"), {"--" + o.name for o in options})
            self.assertEqual(complete("moxie completion "), {"bash", "zsh", "fish", "man"})


class Refusals(unittest.TestCase):
    def test_words(self):
        for args in (["completion"], ["completion", "tcsh"], ["completion", "bash", "zsh"]):
            r = moxie(*args)
            self.assertEqual((r.returncode, r.stdout), (2, ""))
            self.assertRegex(r.stderr, r"\Amoxie: [^\n]+\n\Z")
        self.assertIn("bash|zsh|fish|man", moxie("completion", "tcsh").stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
