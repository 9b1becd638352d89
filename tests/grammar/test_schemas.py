"""test_schemas.py WALK TOKENIZER_DIR [TEXTS] -- 200 schemas, several random texts each: every one is
JSON and valid, says python3-jsonschema.  Schemas that were refused, or texts that did not end, are failures too."""
import json
import subprocess
import sys

from judge import report
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


def text_of(line):
    if line.startswith("refused"):
        return ValueError(line)
    return None if line == "limit" else json.loads(line)


def main():
    n_texts = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    schemas = all_schemas()
    answers = run(sys.argv[1:3], schemas, n_texts)
    return report([(schema, text_of(line)) for schema, lines in zip(schemas, answers) for line in lines], 0.05)


sys.exit(main())
