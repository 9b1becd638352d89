#!/usr/bin/env python3
"""embed.py ROOT EMBED MOXIE -- examples/embed.c, on the shared library, says what the
program says; wrong arguments, models and lengths end in one sentence."""
import subprocess
import sys
from pathlib import Path

PROMPT, TOKENS = "Once there was a", "24"


def call(*command):
    return subprocess.run(command, capture_output=True, text=True)


def main():
    root, embed, moxie = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    demo = str(root / "models/demo")
    said = call(embed, demo, PROMPT, TOKENS)
    expected = call(moxie, "run", "-m", demo, "--raw", "--temp", "0", "-n", TOKENS, "-q", "-p", PROMPT)
    missing = call(embed, str(root / "models/none"), PROMPT, TOKENS)
    tests = {
        "it runs": said.returncode == 0 and len(said.stdout) > 20 and not said.stderr,
        "it says what moxie run says": expected.returncode == 0 and said.stdout.strip() == expected.stdout.strip(),
        "a missing model is an error": missing.returncode == 1 and missing.stderr.count("\n") == 1
        and "models/none" in missing.stderr and not missing.stdout,
        "wrong usage is an error": call(embed).returncode == 2,
        "an empty text is an error": call(embed, demo, "", TOKENS).returncode == 1,
    }
    failed = [name for name, ok in tests.items() if not ok]
    for name in failed:
        print(f"FAIL {name}\n{said}\n{expected}\n{missing}")
    print(f"{len(tests) - len(failed)} passed, {len(failed)} failed, 0 skipped")
    return 1 if failed else 0


sys.exit(main())
