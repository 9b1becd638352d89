#!/usr/bin/env python3
"""run.py [--url URL | --moxie PATH] [--only WORDS] -- all tests of the web chat.

First what needs no browser, then the page in Debian's Chromium: with the fixed answers of
fake_server.py, and once more with the real server when --url names a running one or the program
at --moxie has the command `serve`.  Packages (playwright-core, axe-core) come from the npm
registry into build/web-tests, once; nothing downloads a browser.  What cannot run for want of
Chromium, npm or a registry is said and counted as skipped."""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = ROOT / "build" / "web-tests"
COUNTS = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped$")

total = [0, 0, 0]


def count(passed=0, failed=0, skipped=0):
    for i, n in enumerate((passed, failed, skipped)):
        total[i] += n


def skip(sentence):
    print(f"skipped: {sentence}", flush=True)
    count(skipped=1)


def node(*words, **env):
    """Runs a script that ends in a line of counts."""
    done = subprocess.run(["node", *map(str, words)], cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="", flush=True)
    lines = done.stdout.strip().splitlines()
    said = COUNTS.match(lines[-1]) if lines else None
    if said:
        count(*map(int, said.groups()))
    if done.returncode and not (said and int(said.group(2))):
        count(failed=1)


def install():
    """The packages that the lock file names; returns why not, or None."""
    if not shutil.which("npm"):
        return "npm is not installed"
    lock = (HERE / "package-lock.json").read_bytes()
    stamp = PACKAGES / "installed-lock.json"
    if stamp.exists() and stamp.read_bytes() == lock:
        return None
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, PACKAGES / name)
    try:
        done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"], cwd=PACKAGES,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "the npm registry does not answer"
    if done.returncode:
        print(done.stdout[-2000:])
        return "npm could not install the packages"
    stamp.write_bytes(lock)
    return None


def serve(moxie):
    """Starts the real server on a free port; returns (process, url), or None without one."""
    helped = subprocess.run([moxie, "serve", "--help"], capture_output=True, text=True)
    if helped.returncode:
        return None
    process = subprocess.Popen([moxie, "serve", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        print(f"    {line}", end="")
        url = re.search(r"http://[\w.:\[\]]+", line)
        if url:
            return process, url.group(0)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--moxie", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if not shutil.which("node"):
        skip("node is not installed")
    else:
        node(HERE / "test_units.mjs")
        browse(options)
    print("{} passed, {} failed, {} skipped".format(*total))
    return 0 if total[0] and not total[1] else 1


def browse(options):
    chromium = shutil.which("chromium")
    why = "chromium is not installed" if not chromium else install()
    if why:
        skip(f"the page in a browser: {why}")
        return
    env = {"WEB_PACKAGES": str(PACKAGES), "WEB_CHROMIUM": chromium}
    page = HERE / "test_page.mjs"
    if options.url:
        node(page, options.url, "--real", "--only", options.only, **env)
        return
    node(page, "-", "--only", options.only, **env)
    if not options.moxie:
        return
    started = serve(options.moxie.resolve())
    if not started:
        skip("the page with the real server: this program has no command `serve`")
        return
    process, url = started
    try:
        node(page, url, "--real", "--only", options.only, **env)
    finally:
        process.terminate()
        process.wait()


sys.exit(main())
