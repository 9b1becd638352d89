#!/usr/bin/env python3
"""embed.py FOLDER [OUTPUT] -- the files of the web chat as C arrays.

Without OUTPUT: prints their names, one to a line, for the build to depend on."""
import sys
from pathlib import Path

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def main():
    folder = Path(sys.argv[1])
    names = sorted(p.name for p in folder.iterdir() if p.suffix in TYPES or p.name == "policy.txt") if folder.is_dir() else []
    if len(sys.argv) == 2:
        print("\n".join(names))
        return
    lines = ['/* Made by embed.py from the files of the web chat. */', '#include "app/server/page.h"', ""]
    rows = []
    policy = "default-src 'none'"
    for i, name in enumerate(names):
        data = (folder / name).read_bytes()
        if name == "policy.txt":
            policy = " ".join(data.decode().split())
            continue
        lines.append(f"static const unsigned char file_{i}[] = {{")
        lines += ["    " + ",".join(map(str, data[k:k + 32])) + "," for k in range(0, len(data), 32)]
        lines.append("};")
        path = "/" if name == "index.html" else "/" + name
        rows.append(f'    {{"{path}", "{TYPES[Path(name).suffix]}", file_{i}, sizeof file_{i}}},')
    lines += ["", "const mox_page_file mox_page_files[] = {", *rows, "    {0},", "};", "",
              f'const char mox_page_policy[] = "{policy}";', ""]
    Path(sys.argv[2]).write_text("\n".join(lines))


main()
