#!/usr/bin/env python3
"""tree.py -- what must hold of the tree itself: size, layers, manners of the library,
no leftovers, tests that documents speak of.  Looks at the files that git tracks or would track, or, outside git, at
everything but build folders."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 45 << 20
LAYERS = {"base": 0, "tensor": 1, "format": 2, "text": 2, "ops": 2, "dev": 3, "model": 4, "runtime": 5, "tools": 6}
NOT_OURS = ("tests/data/", "models/", "tests/fuzz/corpus/")  # data: any byte may be in there
LEFTOVERS = (".profraw", ".profdata", ".o", ".pyc", ".orig", ".rej", ".swp", ".log")
# Spelled in two parts so that this file passes its own test.
WORDS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(" + "|".join(["work", "ro" + "ot", "ho" + "me", "Us" + "ers"]) + r")/\w")

# Functions that library code may not call, and the files whose job they are.
FORBIDDEN = {
    "prints": ("printf fprintf vprintf vfprintf puts fputs putchar putc fputc perror", ()),
    "reads the environment": ("getenv secure_getenv setenv", ()),
    "ends the process": ("exit _exit _Exit quick_exit abort raise kill", ("base/arena.c",)),
    "installs signal handlers or starts processes": ("signal sigaction fork system popen", ()),
    "goes around base/alloc.h": ("malloc calloc realloc free strdup strndup aligned_alloc posix_memalign",
                                 ("base/alloc.c",)),
    "goes around base/file.h": ("fopen open openat read pread mmap fread", ("base/file.c", "base/alloc.c")),
}

problems = []
n_checks = 0


def expect(condition, sentence):
    global n_checks
    n_checks += 1
    if not condition:
        problems.append(sentence)


def list_files():
    done = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True,
                          text=True) if (ROOT / ".git").exists() else None
    if done and done.returncode == 0:
        names = [name for name in done.stdout.split("\0") if name]
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
        names = [name for name in names if not name.startswith((".git/", "build"))]
    return sorted(name for name in names if (ROOT / name).is_file() and "__pycache__" not in name)


def text_of(name):
    data = (ROOT / name).read_bytes()
    return None if b"\0" in data else data.decode("utf-8", "replace")


def code_of(text):
    """C without comments and without what is inside string literals."""
    def keep(match):
        return '""' if match.group(0).startswith('"') else " "
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', keep, text, flags=re.S)


def includes_of(text):
    return re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, flags=re.M)


def check_text(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        expect(not WORDS.search(line), f"{name}:{number}: unfinished: {line.strip()}")
        expect(not MACHINE_PATHS.search(line), f"{name}:{number}: a path of one machine: {line.strip()}")
    if text.startswith("#!"):
        expect((ROOT / name).stat().st_mode & 0o100, f"{name}: a script that cannot be executed")
    if name.endswith((".c", ".h")):
        expect(text.startswith("/*"), f"{name}: does not begin with a comment that says what it is for")


def check_includes(name, text):
    public = name.startswith("include/")
    layer = name.split("/")[1] if name.startswith("src/") else None
    for target in includes_of(text):
        where = f"{name}: includes {target}"
        is_public = (ROOT / "include" / target).is_file()
        if public:
            expect(is_public, f"{where}, which is not public")
        elif layer == "app":
            expect(is_public or target.startswith(("base/", "app/")), f"{where}: the program sees the public headers and base")
        elif layer in LAYERS and not is_public:
            own = target.split("/")[0]
            expect(own in LAYERS, f"{where}, which is no layer")
            allowed = own == layer or LAYERS.get(own, 99) < LAYERS[layer]
            expect(allowed, f"{where}: dependencies point down only")


def check_manners(name, text):
    layer, _, path = name.removeprefix("src/").partition("/")
    if not name.startswith("src/") or layer not in LAYERS:
        return
    code = code_of(text)
    for what, (functions, owners) in FORBIDDEN.items():
        if f"{layer}/{path}" in owners:
            continue
        for call in re.findall(r"(?<![\w.>])(" + "|".join(functions.split()) + r")\s*\(", code):
            expect(False, f"{name}: calls {call}(): library code never {what}" if " around " not in what
                   else f"{name}: calls {call}(), which {what}")
        expect(True, "")
    expect(not re.search(r"(?<![\w.>])(stdout|stderr)\b", code), f"{name}: uses the standard streams")


def check_readme():
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.S | re.M)
    commands = [line.split("#")[0].strip() for line in blocks[0].splitlines() if line.strip()] if blocks else []
    expect(commands == ["make run", "make test"],
           f"README.md: its first block is for newcomers and has `make run` and `make test`, not {commands}")


def check_shown_by(names):
    """docs/faults.md says which test shows what: `FILE` and names of its tests, or "titles"; all of them must exist."""
    rows = [line.split("|") for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("| ")]
    for cells in rows:
        for part in cells[-2].split(";"):
            file = re.match(r"\s*`([^`]+)`", part)
            if not file:
                continue
            path = next((name for name in names if name == file[1] or (name.startswith("tests/") and Path(name).name in (file[1], file[1] + ".c"))), None)
            expect(path is not None or (ROOT / file[1]).is_dir(), f"docs/faults.md: there is no test {file[1]}")
            text = text_of(path) if path else ""
            for name in re.split(r",\s*", part[file.end():].strip()):
                title = re.fullmatch(r'"(.+)"', name)
                if title or re.fullmatch(r"\w+", name):
                    expect(re.search(rf"\b(test_)?{re.escape(title[1] if title else name)}\b", text), f"docs/faults.md: {file[1]} has no {name}")


def main():
    names = list_files()
    size = sum((ROOT / name).stat().st_size for name in names)
    expect(size < MAX_BYTES, f"the tree has {size / 2**20:.1f} MiB; {MAX_BYTES >> 20} is the limit")
    for name in names:
        expect(not name.endswith(LEFTOVERS), f"{name}: a leftover of a tool")
        if name.startswith(NOT_OURS):
            continue
        text = text_of(name)
        if text is None:
            continue
        check_text(name, text)
        if name.endswith((".c", ".h")):
            check_includes(name, text)
            check_manners(name, text)
    check_readme()
    check_shown_by(names)
    for problem in problems:
        print(f"FAIL {problem}")
    print(f"{len(names)} files, {size / 2**20:.1f} MiB, {n_checks} checks")
    print(f"{0 if problems else 1} passed, {len(problems)} failed, 0 skipped")
    return 1 if problems else 0


sys.exit(main())
