"""schemas.py -- JSON schemas for tests: written by hand, and made at random from what is supported.

Only what python3-jsonschema understands in the same way is used, so `nullable` (OpenAPI) and the
classes \\D and \\W, which it reads as Python does, have their tests in C."""
import random

PATTERNS = ["^[a-z]{2,5}$", "^[A-Z][a-z]*( [A-Z][a-z]*)?$", "^(foo|bar)+[0-9]{1,3}$", "^\\d{3}-\\d{4}$", "ab", "^x", "y$", "^\\w+@\\w+$",
            "^(a|b(c|d)*){1,3}e?$", "^[^\"\\\\]{1,6}$", "^[\\u00e0-\\u00ff]{1,4}$", "^\\S+$", "^(?:[01]\\d|2[0-3]):[0-5]\\d$", "^$|^z{2}$",
            "^[\"\\\\]{1,3}$", "^\\n?\\t?!$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname", "duration", "json-pointer"]
NAMES = ["id", "name", "a b", "größe", "x\"y", "n\\m", "", "nested", "tags", "value", "kind", "日本"]

HAND = [
    {"type": "object"},
    {},
    True,
    {"type": "array"},
    {"type": "string"},
    {"type": "null"},
    {"type": "boolean"},
    {"type": ["integer", "null", "string"]},
    {"const": {"a": [1, 2.50, None], "b": "é\n"}},
    {"enum": ["red", "green", "redder", 3, None, [1], {"k": 0}]},
    {"enum": [1, 2, 3, 40, 500], "minimum": 2, "maximum": 40},
    {"enum": ["a", "bb", "ccc"], "minLength": 2},
    {"type": "integer", "minimum": -17, "maximum": 1234},
    {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    {"type": "integer", "minimum": 9223372036854775000, "maximum": 9223372036854775807},
    {"type": "integer", "minimum": 1.5, "maximum": 4.5},
    {"type": "integer", "maximum": -100},
    {"type": "number", "minimum": 0},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "number", "minimum": -0.05, "exclusiveMaximum": 0.125},
    {"type": "number", "exclusiveMinimum": 99.95, "exclusiveMaximum": 100.05},
    {"type": "number", "minimum": 1e3, "maximum": 1.5e4},
    {"type": "number", "exclusiveMaximum": -2.5},
    {"type": "number", "minimum": -1e308, "maximum": 1e308},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "minLength": 2000, "maxLength": 2001, "pattern": "^[ab]*$"},
    {"type": "string", "pattern": "^(aa)*$", "minLength": 3, "maxLength": 9},
    {"allOf": [{"pattern": "^a"}, {"pattern": "z$"}, {"type": "string", "maxLength": 6}]},
    {"type": "string", "format": "date", "pattern": "^2"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 3}, {"type": "boolean"}], "items": False, "minItems": 1},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3, "maxItems": 40},
    {"type": "array", "maxItems": 0},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "z"], "additionalProperties": True},
    {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "minProperties": 1},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {"a": False, "b": True}, "required": ["b"]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"a": {"minimum": 5, "maximum": 7}, "b": {"type": "null"}}, "required": ["b"]}]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "additionalProperties": False}, {"properties": {"a": True, "b": True}}],
     "type": "object"},
    {"type": "object", "properties": {"k": {"type": "string", "maxLength": 4}}, "required": ["k"],
     "anyOf": [{"properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"properties": {"y": {"type": "boolean"}}, "required": ["y"]}]},
    {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string", "const": "no"}, {"type": "null"}]},
    {"anyOf": [{"minimum": 3}, {"maximum": -3}], "oneOf": [{"maximum": 10}, {"minimum": 100, "maximum": 200}], "type": "integer",
     "minimum": -50},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"]}}},
    {"definitions": {"t": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/definitions/t"}, "maxItems": 2}},
                           "required": ["kids"]}}, "allOf": [{"$ref": "#/definitions/t"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/b"}]},
                                    "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 2}}},
    {"type": "object", "properties": {"self": {"$ref": "#"}, "n": {"type": "integer"}}, "required": ["n"]},
    {"type": "object", "properties": {"p/q": {"type": "integer"}, "r": {"$ref": "#/properties/p~1q"}}, "required": ["r"]},
    {"allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}], "$defs": {
        "x": {"type": "object", "properties": {"n": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["n"]},
        "y": {"type": "object", "properties": {"n": {"type": ["object", "null"]}, "m": {"type": "boolean"}}}}},
    {"title": "T", "description": "d", "default": 1, "examples": [1], "$comment": "c", "x-own": 1, "type": "integer"},
]


def string(r):
    s = {"type": "string"}
    kind = r.randrange(4)
    if kind == 0:
        s["pattern"] = r.choice(PATTERNS)
    elif kind == 1:
        s["format"] = r.choice(FORMATS)
    elif kind == 2:
        s["maxLength"] = r.randrange(0, 12)
        s["minLength"] = r.randrange(0, s["maxLength"] + 1)
    return s


def number(r):
    s = {"type": r.choice(["integer", "number"])}
    low = r.choice([-1000, -12.75, -1, 0, 0.001, 3, 99, 1e6]) if s["type"] == "number" else r.randrange(-2000, 2000)
    if r.random() < 0.7:
        s[r.choice(["minimum", "exclusiveMinimum"])] = low
    if r.random() < 0.7:
        s[r.choice(["maximum", "exclusiveMaximum"])] = low + r.choice([2, 5.5 if s["type"] == "number" else 7, 1000, 123456])
    return s


def value(r, depth=0):
    return r.choice([0, -1, 2.5, "v", "wéird \"q\"", None, True, [], [1, "x"], {"k": [None]}]) if depth == 0 else r.randrange(9)


def array(r, depth, refs):
    s = {"type": "array"}
    if r.random() < 0.3:
        s["prefixItems"] = [schema(r, depth + 1, refs) for _ in range(r.randrange(1, 3))]
    if r.random() < 0.8 or not s.get("prefixItems"):
        s["items"] = schema(r, depth + 1, refs)
    s["maxItems"] = r.randrange(1, 5)
    if r.random() < 0.5 and "items" in s:
        s["minItems"] = r.randrange(0, s["maxItems"] + 1)
    return s


def objekt(r, depth, refs):
    names = r.sample(NAMES, r.randrange(1, 5))
    s = {"type": "object", "properties": {name: schema(r, depth + 1, refs) for name in names}}
    s["required"] = [name for name in names if r.random() < 0.6]
    kind = r.randrange(4)
    if kind == 0:
        s["additionalProperties"] = False
    elif kind == 1:
        s["additionalProperties"] = schema(r, depth + 2, refs)
    return s


def schema(r, depth, refs):
    kind = r.randrange(12 if depth < 3 else 7)
    if kind <= 1:
        return string(r)
    if kind <= 3:
        return number(r)
    if kind == 4:
        return {"enum": [value(r) for _ in range(r.randrange(1, 5))]} if r.random() < 0.6 else {"const": value(r)}
    if kind == 5:
        return {"type": r.choice(["boolean", "null", ["null", "integer"], ["boolean", "string"]])}
    if kind == 6:
        return {"anyOf": [{"$ref": f"#/$defs/{r.choice(refs)}"}, {"type": "null"}]} if refs and r.random() < 0.7 else {"type": "integer"}
    if kind == 7:
        return array(r, depth, refs)
    if kind == 8:
        return {r.choice(["anyOf", "oneOf"]): [{"type": "integer"}, {"type": "string", "maxLength": 5}, {"type": "object", "properties": {
            "only": schema(r, depth + 1, refs)}, "required": ["only"]}]}
    if kind == 9:
        both = objekt(r, depth, refs)
        both.pop("additionalProperties", None)
        return {"allOf": [both, {"type": "object", "properties": {"extra": schema(r, depth + 1, refs)}, "required": ["extra"]}]}
    return objekt(r, depth, refs)


def random_schema(seed):
    r = random.Random(seed)
    refs = ["one", "two"] if r.random() < 0.5 else []
    s = objekt(r, 0, refs) if r.random() < 0.8 else schema(r, 0, refs)
    if refs:
        s["$defs"] = {name: objekt(r, 2, refs) for name in refs}
    return s


def all_schemas(n=200):
    return HAND + [random_schema(seed) for seed in range(n - len(HAND))]
