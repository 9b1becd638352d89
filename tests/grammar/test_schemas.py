"""test_schemas.py WALK TOKENIZER_DIR [TEXTS] -- 200 schemas, several random texts each: every one is
JSON and valid, says python3-jsonschema.  Schemas that were refused, or texts that did not end, are failures too."""
import json
import subprocess
import sys

from judge import judge
from schemas import all_schemas


def run(command, schemas, n_texts):
    """The answers of a program: [schemas][texts]."""
    requests = "".join(f"schema {i} {json.dumps(schema)}\n" for i, schema in enumerate(schemas))
    done = subprocess.run([*command, str(n_texts)], input=requests, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr)
        sys.exit(1)
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == n_texts * len(schemas), (len(lines), len(schemas))
    return [lines[i * n_texts:(i + 1) * n_texts] for i in range(len(schemas))]


def main():
    n_texts = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    schemas = all_schemas()
    passed = failed = short = 0
    for schema, lines in zip(schemas, run(sys.argv[1:3], schemas, n_texts)):
        for line in lines:
            problem = line if line == "limit" or line.startswith("refused") else judge(schema, json.loads(line))
            passed += problem is None
            # A text that the limit of its length has cut is nobody's fault, as long as it is one of many.
            short += problem == "limit"
            if problem not in (None, "limit"):
                failed += 1
                print(f"FAIL {json.dumps(schema)[:300]}\n     {problem}")
    if short * 20 > passed:
        failed += 1
        print(f"FAIL {short} texts did not end")
    print(f"{len(schemas)} schemas, {passed} texts, {short} of them cut")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
