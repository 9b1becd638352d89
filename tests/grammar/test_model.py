"""test_model.py MOXIE -- the demo model at temperature 1, held to 200 schemas by a server: what it says is valid."""
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))

from judge import report
from kit import Server
from schemas import all_schemas

AT_ONCE = 8
QUESTION = [{"role": "user", "content": "Tell me something as JSON."}]


def reply(server, schema, seed):
    form = {"type": "json_schema", "json_schema": {"name": "form", "strict": True, "schema": schema}}
    # The field takes objects alone, so true stands for what it means.
    status, answer = server.chat(QUESTION, temperature=1, seed=seed, max_tokens=300,
                                 response_format=form if isinstance(schema, dict) else {**form, "json_schema": {"name": "form", "schema": {}}})
    if status != 200:
        return ValueError(f"status {status}: {answer}")
    choice = answer["choices"][0]
    return None if choice["finish_reason"] == "length" else choice["message"]["content"]


def main():
    schemas = all_schemas()
    with Server("--parallel", AT_ONCE, "--queue", len(schemas), "-q") as server, ThreadPoolExecutor(AT_ONCE) as people:
        texts = list(people.map(lambda pair: reply(server, pair[1], pair[0]), enumerate(schemas)))
    return report(zip(schemas, texts), 0.2)


sys.exit(main())
