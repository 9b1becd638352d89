"""judge.py -- whether a text is JSON and valid, says python3-jsonschema; without it the test is skipped."""
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


# It can say no.
assert judge({"type": "integer"}, "1.5") and judge({"maxLength": 1}, '"ab"') and judge({"format": "date"}, '"2024-13-01"')
assert judge({}, "{") and not judge({"minimum": 2}, "2")
