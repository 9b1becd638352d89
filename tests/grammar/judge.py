"""judge.py -- whether texts are JSON and valid, says python3-jsonschema; without it the test is skipped."""
import json
import sys
import warnings

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is missing")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(77)

warnings.filterwarnings("ignore")


def judge(schema, text):
    """What is wrong with a text; None: nothing."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text[:200]} is no JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if error is None else f"{text[:200]}: {error.message[:200]}"


def report(pairs, cut_share):
    """Judges (schema, text) pairs, says what is wrong and ends in the line that counts; returns the exit status.

    A text that is None was cut by the limit of its length, which is nobody's fault as long as it is no more than
    that share of all; one that is an Exception was refused."""
    passed = failed = cut = 0
    for schema, text in pairs:
        if text is None:
            cut += 1
            continue
        problem = str(text) if isinstance(text, Exception) else judge(schema, text)
        passed += problem is None
        failed += problem is not None
        if problem:
            print(f"FAIL {json.dumps(schema)[:300]}\n     {problem}")
    if cut > cut_share * (passed + failed + cut):
        failed += 1
        print(f"FAIL {cut} texts did not end")
    print(f"{passed} texts are valid, {cut} were cut")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not passed else 0


# It can say no.
assert judge({"type": "integer"}, "1.5") and judge({"maxLength": 1}, '"ab"') and judge({"format": "date"}, '"2024-13-01"')
assert judge({}, "{") and not judge({"minimum": 2}, "2")
