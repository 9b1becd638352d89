"""random_templates.py -- random small templates from a grammar, with variables.

Expressions are made by the type they should have, so that most of them mean something;
now and then one of any type is put in, and blanks and signs around tags are arbitrary."""
import random

VARS = {
    "s": "Hello wörld", "t": " <b>x</b>\n", "e": "", "i": 7, "z": 0, "m": -2, "f": 2.5, "g": 1e-5, "y": True, "no": False, "nil": None,
    "l": [3, 1, 2], "w": ["b", "A", "", "çd"], "ll": [[1, "a"], [2, "b"]], "d": {"k": "v", "n": 5, "l": [1], "d": {"x": "deep"}},
    "us": [{"n": "bo", "a": 3, "t": ["q"]}, {"n": "Al", "a": 1}, {"n": "", "a": 2, "t": []}],
}
TEXTS = ["a", "", "\n", " x ", "é日", "<|im_end|>", "  \n  ", "b\n", "%", "'q'", "0"]
SPACES = ["", " ", "\n", "  ", "\t", "\n  ", " \n", "\n\n"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.names = []  # set by the template itself
        self.macros = []
        self.loops = 0

    def pick(self, *items):
        return self.r.choice(items)

    def chance(self, p):
        return self.r.random() < p

    # ---- expressions ----

    def string(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick("s", "t", "e", repr(self.pick(*TEXTS)), "d.k", "us[0].n", "w[1]", "'ab'")
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: f"({self.string(a)} + {self.string(b)})",
            lambda: f"({self.string(a)} ~ {self.any(b)})",
            lambda: f"{self.string(a)}.{self.pick('upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip', 'swapcase')}()",
            lambda: f"{self.string(a)}.{self.pick('strip', 'lstrip', 'rstrip')}({self.string(b)})",
            lambda: f"{self.string(a)}.replace({self.string(b)}, {self.string(b)}{self.pick('', ', 1', ', 2')})",
            lambda: f"{self.string(a)}.{self.pick('removeprefix', 'removesuffix')}({self.string(b)})",
            lambda: f"{self.string(a)}.{self.pick('ljust', 'rjust', 'center')}({self.r.randint(0, 9)}{self.pick('', ', chr'.replace('chr', repr('*')))})",
            lambda: f"({self.string(a)} | {self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'reverse', 'e', 'safe', 'indent', 'indent(2, true)', 'tojson')})",
            lambda: f"({self.any(a)} | {self.pick('string', 'tojson', 'tojson(indent=1)', 'trim', 'upper')})",
            lambda: f"({self.string(a)} | replace({self.string(b)}, {self.string(b)}))",
            lambda: f"({self.list(a)} | join({self.string(b)}))",
            lambda: f"{self.string(b)}.join({self.strings(a)})",
            lambda: f"{self.string(a)}[{self.slice()}]",
            lambda: f"{self.string(a)}.{self.pick('split', 'rsplit')}({self.pick('', repr(' '), repr('l'), 'none, 1', repr('o') + ', 1')})[{self.pick(0, -1)}]",
            lambda: f"({self.string(a)} if {self.test(b)} else {self.string(b)})",
            lambda: f"({self.string(a)} * {self.r.randint(-1, 3)})",
            lambda: f"{repr(self.pick('{} {}', '{1}{0}', '{:>4}|{:<3}', '{!r}{}'))}.format({self.string(a)}, {self.pick(self.string(b), self.int(b))})",
            lambda: f"({repr(self.pick('%s %s', '%5s|%-4s', '%r%s'))} % ({self.any(a)}, {self.any(b)}))",
            lambda: f"{self.macro_call(a)}",
            lambda: f"({self.string(a)} or {self.string(b)})",
        )()

    def int(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick("i", "z", "m", "d.n", "l[0]", str(self.r.randint(-3, 12)), "us[1].a", "y")
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: f"({self.int(a)} {self.pick('+', '-', '*', '//', '%')} {self.int(b)})",
            lambda: f"({self.any(a)} | length)",
            lambda: f"({self.string(a)} | length)",
            lambda: f"({self.list(a)} | length)",
            lambda: f"(-{self.int(a)})",
            lambda: f"({self.int(a)} | abs)",
            lambda: f"({self.any(a)} | int)",
            lambda: f"{self.string(a)}.{self.pick('find', 'rfind', 'count')}({self.string(b)})",
            lambda: f"({self.ints(a)} | {self.pick('sum', 'min', 'max', 'first', 'last')})",
            lambda: f"({self.int(a)} if {self.test(b)} else {self.int(b)})",
        )()

    def number(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick("f", "g", "1.0", "0.1", self.int(0))
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: f"({self.number(a)} {self.pick('+', '-', '*', '/', '//', '%')} {self.number(b)})",
            lambda: f"({self.number(a)} | {self.pick('round', 'round(1)', 'abs', 'float', 'int')})",
        )()

    def slice(self):
        part = lambda: self.pick("", str(self.r.randint(-6, 6)))
        return f"{part()}:{part()}" + self.pick("", "", ":" + self.pick("-1", "2", "-2", "1", "3"))

    def ints(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick("l", "[1, 2]", "range(4)", "[]", "d.l", "[5, 0, -1, 5]")
        a = depth - 1
        return self.pick(
            lambda: f"({self.ints(a)} | list)[{self.slice()}]",
            lambda: f"({self.ints(a)} | sort{self.pick('', '(reverse=true)')})",
            lambda: f"({self.ints(a)} | {self.pick('select', 'reject')}('{self.pick('odd', 'even', 'gt', 'lt', 'ne')}'{{0}}) | list)".replace("'gt'{0}", "'gt', 1").replace("'lt'{0}", "'lt', 2").replace("'ne'{0}", "'ne', 2").replace("{0}", ""),
            lambda: f"(({self.ints(a)} | list) + ({self.ints(a)} | list))",
            lambda: f"({self.ints(a)} | {self.pick('unique', 'reverse')} | list)",
            lambda: f"(us | map(attribute='a') | list)",
        )()

    def strings(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.pick("w", "['x']", "[]", "d", "'abc'", "d.keys()", "('p', 'q')")
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: f"{self.string(a)}.split({self.pick('', repr('l'), repr(' '))})",
            lambda: f"{self.string(a)}.splitlines()",
            lambda: f"({self.strings(a)} | map('{self.pick('upper', 'trim', 'string', 'title')}') | list)",
            lambda: f"({self.strings(a)} | {self.pick('sort', 'unique | list', 'list', 'reverse | list', 'select | list')})",
            lambda: f"(us | {self.pick('selectattr', 'rejectattr')}('t') | map(attribute='n') | list)",
            lambda: f"[{self.string(a)}, {self.string(b)}]",
        )()

    def list(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick("l", "w", "ll", "us", "[]", "[1, 'a', none]", "(1,)")
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: self.ints(a), lambda: self.strings(a),
            lambda: f"[{self.any(a)}, {self.any(b)}]",
            lambda: f"({self.any(a)}, {self.any(b)})",
            lambda: f"({self.list(a)} | list)[{self.slice()}]",
            lambda: f"({self.dict(a)} | {self.pick('dictsort', 'items | list', 'list')})",
            lambda: f"({self.list(a)} | map('{self.pick('string', 'tojson', 'length', 'first')}') | list)",
        )()

    def dict(self, depth):
        if depth <= 0 or self.chance(0.4):
            return self.pick("d", "us[0]", "{}", "{'a': 1}", "d.d", "dict(p=1)")
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: f"{{{self.string(a)}: {self.any(b)}, 'z': {self.any(b)}}}",
            lambda: f"dict({self.dict(a)}, q={self.any(b)})",
        )()

    def test(self, depth):
        if depth <= 0 or self.chance(0.1):
            return self.pick("y", "no", "true", "s", "e", "nil", "missing", "d.zz is defined")
        a, b = depth - 1, depth - 2
        return self.pick(
            lambda: f"({self.int(a)} {self.pick('<', '>', '<=', '>=', '==', '!=')} {self.number(b)})",
            lambda: f"({self.string(a)} {self.pick('==', '!=', '<', '>', 'in', 'not in')} {self.string(b)})",
            lambda: f"({self.any(a)} {self.pick('==', '!=')} {self.any(b)})",
            lambda: f"({self.any(a)} {self.pick('in', 'not in')} {self.list(b)})",
            lambda: f"(not {self.test(a)})",
            lambda: f"({self.test(a)} {self.pick('and', 'or')} {self.test(b)})",
            lambda: f"({self.any(a)} is {self.pick('', 'not ')}{self.pick('defined', 'undefined', 'none', 'string', 'number', 'mapping', 'iterable', 'sequence', 'boolean', 'true', 'false', 'integer', 'float', 'callable', 'escaped')})",
            lambda: f"({self.int(a)} is {self.pick('odd', 'even', 'divisibleby 3', 'gt 1', 'eq 2', 'in [1, 2]')})",
            lambda: f"{self.string(a)}.{self.pick('startswith', 'endswith')}({self.string(b)})",
            lambda: f"{self.string(a)}.{self.pick('isalpha', 'isdigit', 'islower', 'isupper', 'isspace', 'isalnum')}()",
        )()

    def any(self, depth):
        if self.names and self.chance(0.25):
            return self.pick(*self.names)
        if self.loops and self.chance(0.15):
            return "loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem", "revindex0")
        return self.pick(self.string, self.string, self.int, self.number, self.list, self.dict, self.test,
                         lambda _: self.pick("nil", "missing", "d.zz", "us[9]", "us[1].t"))(depth)

    def macro_call(self, depth):
        if not self.macros:
            return "s"
        name, count = self.pick(*self.macros)
        args = [self.any(depth - 1) for _ in range(self.r.randint(0, count))]
        return f"{name}({', '.join(args)})"

    # ---- statements ----

    def tag(self, text):
        return "{%" + self.pick("", "", "-", "-", "+") + " " + text + " " + self.pick("", "", "-", "-", "+") + "%}"

    def data(self):
        return self.pick(*SPACES) + (self.pick(*TEXTS) if self.chance(0.5) else "") + self.pick(*SPACES)

    def print(self):
        return "{{" + self.pick("", "-") + " " + self.any(3) + " " + self.pick("", "-") + "}}"

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.r.randint(1, 3)))

    def statement(self, depth):
        kind = self.r.random()
        if depth <= 0 or kind < 0.35:
            return self.data() + self.print() + self.data()
        if kind < 0.5:
            name = self.pick("v", "u", "s", "i")
            out = self.tag(f"set {name} = {self.any(3)}")
            self.names.append(name)
            return self.data() + out
        if kind < 0.65:
            out = self.tag(f"if {self.test(2)}") + self.body(depth - 1)
            if self.chance(0.3):
                out += self.tag(f"elif {self.test(2)}") + self.body(depth - 1)
            if self.chance(0.5):
                out += self.tag("else") + self.body(depth - 1)
            return self.data() + out + self.tag("endif")
        if kind < 0.8:
            return self.data() + self.loop(depth)
        if kind < 0.86:
            return self.macro(depth)
        if kind < 0.9:
            return self.data() + self.tag("set c") + self.body(depth - 1) + self.tag("endset") + "{{ c }}"
        if kind < 0.93:
            return self.data() + "{#" + self.pick("", "-") + " x " + self.pick("", "-") + "#}" + self.data()
        if kind < 0.96:
            return self.tag(f"filter {self.pick('upper', 'trim', 'replace(repr, 1)'.replace('repr', repr('a')), 'indent(1)')}") + self.body(depth - 1) + self.tag("endfilter")
        return self.tag(f"with v = {self.any(2)}") + self.body(depth - 1) + self.tag("endwith")

    def loop(self, depth):
        target, source = self.pick(("x", self.list(2)), ("x", self.ints(2)), ("x", self.strings(2)), ("k, v", self.dict(1) + ".items()"), ("k, v", f"{self.dict(1)} | items"), ("x", "us"), ("a, b", "ll"))
        known = list(self.names)
        self.names += target.split(", ")
        condition = f" if {self.test(2)}" if self.chance(0.2) else ""
        out = self.tag(f"for {target} in {source}{condition}")
        self.loops += 1
        out += self.body(depth - 1)
        if self.chance(0.15):
            out += self.tag(f"if {self.test(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif") + self.print()
        self.loops -= 1
        self.names = known
        if self.chance(0.2):
            out += self.tag("else") + self.body(depth - 1)
        return out + self.tag("endfor")

    def macro(self, depth):
        name = f"mac{len(self.macros)}"
        params = self.r.sample(["p", "q", "s"], self.r.randint(0, 2))
        shown = [p if i == 0 or self.chance(0.3) else f"{p}={self.any(1)}" for i, p in enumerate(params)]
        if len(shown) == 2 and "=" in shown[0] and "=" not in shown[1]:
            shown.reverse()
        loops, names = self.loops, list(self.names)
        self.loops = 0
        self.names += params
        out = self.tag(f"macro {name}({', '.join(shown)})") + self.body(depth - 1) + self.tag("endmacro")
        self.loops, self.names = loops, names
        self.macros.append((name, len(params)))
        return out


def make(seed):
    maker = Maker(seed)
    return "".join(maker.statement(3) for _ in range(maker.r.randint(1, 4))) + maker.pick(*SPACES), VARS
