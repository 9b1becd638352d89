#!/usr/bin/env python3
"""test_clients.py MOXIE [TEST...] -- the vendors' own packages against the server.

Packages go into an environment and a node_modules of their own under the build folder; where there is no registry to
get them from, these tests say that they were skipped."""
import hashlib
import shutil
import subprocess
import sys

from kit import *

HERE = ROOT / "tests" / "server"
PLACE = ROOT / "build" / "clients"


def made(folder, locks, *commands):
    """A folder that the commands fill, made anew when the lock files change."""
    stamp = hashlib.sha256(b"".join(p.read_bytes() for p in locks)).hexdigest()
    mark = folder / "made"
    if mark.exists() and mark.read_text() == stamp:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for command in commands:
        try:
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Skip(f"{command[0]}: {error}")
        if done.returncode != 0:
            raise Skip(f"the packages could not be had: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else command}")
    mark.write_text(stamp)
    return folder


def report(done):
    print("\n".join("         " + line for line in done.stdout.splitlines()))
    assert done.returncode == 0 and done.stdout.count("ok  ") >= 8, done.stdout + done.stderr


def test_python():
    lock = HERE / "requirements.txt"
    folder = made(PLACE / "python", [lock], [sys.executable, "-m", "venv", "env"],
                  ["env/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(lock)])
    with Server("--api-key", "sesame") as s:
        report(subprocess.run([folder / "env/bin/python", HERE / "clients.py", f"http://127.0.0.1:{s.port}"], capture_output=True, text=True, timeout=300))


def test_javascript():
    if not shutil.which("node") or not shutil.which("npm"):
        raise Skip("there is no node")
    locks = [HERE / "js" / name for name in ("package.json", "package-lock.json", "client.mjs")]
    folder = made(PLACE / "js", locks, *[["cp", str(p), "."] for p in locks], ["npm", "ci", "--no-audit", "--no-fund", "--silent"])
    with Server("--api-key", "sesame") as s:
        report(subprocess.run(["node", folder / "client.mjs", f"http://127.0.0.1:{s.port}"], capture_output=True, text=True, timeout=300))
        assert s.until(lambda: "finish=cancelled" in s.errors()), "the aborted stream went on"


run_tests(globals())
