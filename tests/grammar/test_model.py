"""test_model.py PROGRAM MODEL -- the demo model at temperature 1, held to schemas: what it says is valid."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from judge import judge
from schemas import HAND, random_schema


def reply(program, model, folder, schema, seed):
    path = Path(folder) / "schema.json"
    path.write_text(json.dumps(schema))
    done = subprocess.run([program, "run", "-m", model, "-p", "Tell me something as JSON.", "--json-schema", path, "--temp", "1", "--seed",
                           str(seed), "-n", "700", "--json", "-q"], capture_output=True, text=True)
    if done.returncode != 0:
        return f"exit {done.returncode}: {done.stderr}"
    answer = json.loads(done.stdout)
    return "cut" if answer["stop_reason"] == "length" else judge(schema, answer["text"])


def main():
    program, model = sys.argv[1:3]
    schemas = HAND[7:47:2] + [random_schema(seed) for seed in range(20)]
    passed = failed = cut = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed, schema in enumerate(schemas):
            problem = reply(program, model, folder, schema, seed)
            passed += problem is None
            cut += problem == "cut"
            if problem not in (None, "cut"):
                failed += 1
                print(f"FAIL {json.dumps(schema)[:300]}\n     {problem}")
    if cut * 4 > passed:
        failed += 1
        print(f"FAIL {cut} of {len(schemas)} replies did not end")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
