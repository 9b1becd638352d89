#!/usr/bin/env python3
"""embed.py ROOT EMBED MOXIE -- examples/embed.c, on the shared library, says what the
program says; wrong arguments, models and lengths end in one sentence."""
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPT, TOKENS = "Once there was a", "24"


def call(*command):
    return subprocess.run(command, capture_output=True, text=True)


def stops_where_the_model_says(demo, embed, moxie):
    """A stop id that only generation_config.json names ends the reply of both."""
    run = [moxie, "run", "--raw", "--temp", "0", "-n", TOKENS, "-q", "-p", PROMPT, "--json", "-m"]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(demo, folder, dirs_exist_ok=True)
        whole = json.loads(call(*run, demo).stdout)
        path = Path(folder) / "generation_config.json"
        settings = json.loads(path.read_text())
        path.chmod(0o644)
        path.write_text(json.dumps({**settings, "eos_token_id": whole["tokens"][5]}))
        cut, said = json.loads(call(*run, folder).stdout), call(embed, folder, PROMPT, TOKENS).stdout
        return cut["stop_reason"] == "stop" and len(cut["text"]) < len(whole["text"]) and said.strip() == cut["text"].strip()


def main():
    root, embed, moxie = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    demo = str(root / "models/demo")
    said = call(embed, demo, PROMPT, TOKENS)
    expected = call(moxie, "run", "-m", demo, "--raw", "--temp", "0", "-n", TOKENS, "-q", "-p", PROMPT)
    missing = call(embed, str(root / "models/none"), PROMPT, TOKENS)
    tests = {
        "it runs": said.returncode == 0 and len(said.stdout) > 20 and not said.stderr,
        "it says what moxie run says": expected.returncode == 0 and said.stdout.strip() == expected.stdout.strip(),
        "it stops where the model's files say": stops_where_the_model_says(demo, embed, moxie),
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
