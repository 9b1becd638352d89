#!/usr/bin/env python3
"""symbols.py ROOT LIBRARY -- the shared library exports exactly the functions that the
public headers declare with MOX_API."""
import re
import subprocess
import sys
from pathlib import Path


def declared(root):
    names = set()
    for header in (root / "include").rglob("*.h"):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for declaration in re.findall(r"^MOX_API\b(.*?);", text, flags=re.S | re.M):
            names.add(re.search(r"\b(\w+)\s*\(", declaration).group(1))
    return names


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def main():
    public, real = declared(Path(sys.argv[1])), exported(sys.argv[2])
    for name in sorted(public - real):
        print(f"FAIL {name} is declared but not exported")
    for name in sorted(real - public):
        print(f"FAIL {name} is exported but not declared in include/")
    failed = len(public ^ real)
    print(f"{len(public & real)} passed, {failed} failed, 0 skipped")
    return 1 if failed or not public else 0


sys.exit(main())
