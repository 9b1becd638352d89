#!/usr/bin/env python3
"""installed.py ROOT BUILD EMBED CC... -- what `make install` puts down is complete:
examples/embed.c compiles against it through pkg-config, shared and static, and says
what EMBED, linked in the build folder, says."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARGUMENTS = ["Once there was a", "8"]
EXPECTED = ["bin/moxie", "lib/libmoxie.a", "lib/libmoxie.so", "lib/pkgconfig/moxie.pc", "include/moxie.h",
            "include/moxie/scheduler.h", "include/moxie/text.h", "include/moxie/tools.h", "lib/systemd/system/moxie.service", "share/moxie/models/demo/model.safetensors",
            "share/man/man1/moxie.1", "share/bash-completion/completions/moxie", "share/zsh/site-functions/_moxie",
            "share/fish/vendor_completions.d/moxie.fish", "share/doc/moxie/LICENSE", "share/doc/moxie/THIRD-PARTY.md"]


def output(*command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build_embed(root, prefix, program, cc, static):
    env = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
    flags = output("pkg-config", "--define-prefix", "--cflags", "--libs", *(["--static"] if static else []), "moxie",
                   env=env).split()
    if static:  # our archive, and whatever form the system has of the libraries behind it
        flags = [str(prefix / "lib/libmoxie.a") if flag == "-lmoxie" else flag for flag in flags]
    output(*cc, str(root / "examples/embed.c"), *flags, "-o", str(program))


def main():
    root, build, embed, cc = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    tests = {}
    with tempfile.TemporaryDirectory() as folder:
        output("meson", "install", "-C", build, "--no-rebuild", "--destdir", folder)
        prefix = next(Path(folder).rglob("bin/moxie")).parent.parent
        for name in EXPECTED:
            tests[f"{name} is installed"] = (prefix / name).exists()
        demo = str(prefix / "share/moxie/models/demo")
        expected = output(embed, demo, *ARGUMENTS)
        tests["the installed program runs"] = "moxie" in output(str(prefix / "bin/moxie"), "version")
        for kind in ("shared", "static"):
            program = Path(folder) / f"embed-{kind}"
            build_embed(root, prefix, program, cc, kind == "static")
            env = dict(os.environ, LD_LIBRARY_PATH=str(prefix / "lib"))
            tests[f"{kind}: says the same"] = output(str(program), demo, *ARGUMENTS, env=env) == expected
            uses_shared = "libmoxie" in output("ldd", str(program), env=env)
            tests[f"{kind}: is what it says"] = uses_shared == (kind == "shared")
    failed = [name for name, ok in tests.items() if not ok]
    for name in failed:
        print(f"FAIL {name}")
    print(f"{len(tests) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


sys.exit(main())
