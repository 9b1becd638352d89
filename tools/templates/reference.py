#!/usr/bin/env python3
"""tools/templates/reference.py -- chat templates as the reference renders them: Jinja2 with the
settings of the library that model templates are written for.

reference.py write                 writes the cases of tests/data/templates
reference.py check                 compares those files with what would be written
reference.py random EXE N [SEED]   N random templates through EXE (template_cases)

Without Jinja2 nothing is compared, and the last line says so."""
import datetime
import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
DATA = Path(__file__).resolve().parent.parent.parent / "tests" / "data" / "templates"

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("Jinja2 is not installed here")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)

NOW = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=1755000000 + 7200)


class Refused(jinja2.exceptions.TemplateError):
    pass


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Lists may be appended to: templates in use do it."""

    def is_safe_attribute(self, obj, attr, value):
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message):
    raise Refused(message)


def environment():
    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


@functools.lru_cache(maxsize=1)
def compiled(template):
    return ENV.from_string(template)


def render(template, variables):
    """What a case expects: {"out": text}, {"raises": words} or {"fails": true}."""
    try:
        out = compiled(template).render(**variables)
        out.encode()  # half a surrogate pair is refused
        # what prints as an address or as a part of Python is refused too
        return {"fails": True} if re.search(r" at 0x[0-9a-f]+>|<class '", out) else {"out": out}
    except Refused as refused:
        return {"raises": str(refused.message)}
    except Exception:
        return {"fails": True}


def case(name, template, variables):
    # through JSON, so that both sides get the same values
    return {"name": name, "template": template, "vars": variables,
            **render(template, json.loads(json.dumps(variables)))}


def files():
    import conversations
    import small
    cases = [case(f"{i}", template, variables)
             for i, (template, variables) in enumerate(small.CASES)]
    return {"small.json": cases, **conversations.files(DATA, render)}


def text_of(cases):
    return "[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n"


def check():
    failed = 0
    for name, cases in files().items():
        if not (DATA / name).exists() or (DATA / name).read_text() != text_of(cases):
            print(f"FAIL {name} is not what the reference makes")
            failed += 1
    print(f"{1 if not failed else 0} passed, {failed} failed, 0 skipped")
    return failed


def random_cases(exe, count, seed):
    import random_templates
    cases = []
    for i in range(count):
        template, variables = random_templates.make(seed * 1000003 + i)
        cases.append(case(f"seed {seed} number {i}", template, variables))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        f.write(text_of(cases))
        f.flush()
        good = sum("out" in c for c in cases)
        print(f"{count} templates, {good} of them render")
        sys.stdout.flush()
        return subprocess.run([exe, f.name]).returncode


def main():
    if sys.argv[1] == "write":
        for name, cases in files().items():
            (DATA / name).write_text(text_of(cases))
            print(f"{name}: {len(cases)} cases, {(DATA / name).stat().st_size} bytes")
        return 0
    if sys.argv[1] == "check":
        return check()
    return random_cases(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)


sys.exit(main())
