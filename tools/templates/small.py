"""small.py -- small templates, one behaviour each.  A case is given the variables
of VARS that it mentions."""
import re

VARS = {
    "s": "Hello World", "sp": "  padded \n", "uni": "Ünïcödé 日本 😀", "html": "<b>&\"'</b>", "empty": "", "q": "it's \"both\"",
    "n": 7, "neg": -3, "f": 2.5, "big": 123456789012345678901234567890, "tiny": 1e-7, "whole": 3.0, "huge": 1e22,
    "yes": True, "no": False, "nil": None, "nums": [3, 1, 2], "words": ["pear", "Apple", "fig"], "none_list": [],
    "d": {"b": 1, "a": [1, 2.0, None], "items": "key"}, "mixed": [1, "1", 1.0, True, None, [1], {"k": "v"}],
    "users": [{"name": "bob", "age": 30, "tags": ["x"]}, {"name": "Al", "age": 25}, {"name": "cy", "age": 30, "tags": []}],
    "nested": {"x": {"y": [{"z": "deep"}]}}, "js": "{\"a\": [1, 2.50, \"é\"], \"b\": null}", "lines": "one\ntwo\r\n\nthree",
    "control": "tab\tbell\u0007del\u007fnul\u0000end\u2028", "zero": 0, "inf": "inf", "pairs": [["a", 1], ["b", 2]],
}

# Text, tags and blanks.
BLANKS = r"""
a
§  {{ 1 }}  
§{% if yes %}
  in
{% endif %}
out
§   {% if yes %}
x
   {% endif %}
y
§a {%- if yes %} b {%- endif %} c
§a {%+ if yes %} b {%+ endif %} c
§  {%+ if yes %}keep{% endif +%}
end
§{% if yes -%}

   x
{%- endif -%}   

z
§{{- s -}}   {{ s }}
§a
{{- 1 }}
b
§{# gone #}
x
§  {# gone #}  
x
§a {#- both -#}   b
§a {#+ kept #}
b
§{# multi
line #}x{# another #}
§{% raw %}{{ not }} {% tag %}{% endraw %}
§{% raw -%}   
 {{ x }} 
{%- endraw %}
y
§  {% raw %}  {{ a }}
  {% endraw %}
z
§{%- raw %} {# x #} {% endraw -%}   end
§x{% set a = 1 %}
y{{ a }}
§x
    {% set a = 1 -%}
    y
§{% for i in nums %}
  {{ i }}
{% endfor %}
§{% for i in nums -%}
  {{ i }}
{%- endfor %}
§line  {% if yes %}tail{% endif %}
§tab	{% if yes %}
	x
	{% endif %}
§{{ "a" }}
{{ "b" }}

{{ "c" }}

§
{% if yes %}
§{{ '{{' }}{{ '%}' }}{{ "#}" }}
§{{ {'a': {'b': 1}} }}
§{{ {'a':{'b':1}}['a']['b']}}
§a{# unclosed
§{{ unclosed
§{% if yes %}
§{% raw %} never
§{ { not a tag } }
§{% if yes %}x{% endif %}

§ {%- if yes -%} x {%- endif -%} 
§ {%- set a = 1 %}  {{ a }}
§{% set a = 1 +%}
x
§a	 {%- if yes %}　 wide{% endif %}
§{{ 1 }}{%- if yes -%}{{ 2 }}{%- endif -%}{{ 3 }}
§{#-#}x
§{##}x
§{%if yes%}x{%endif%}
§{{1}}
§{% if yes %}{% endif %}
after
"""

EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 7.5 // 2, -7.5 % 2
2 ** 3 ** 2, -2 ** 2, 2 ** -1, 2.0 ** 0.5
1 / 2, 4 / 2, 1 / 3, 10 / 4.0
1 + 1.0, 0.1 + 0.2, 1e5, 1e16, 1e15, 123456789.123, 1e-4, 0.00001, 1.5e300, -0.0
1_000, 0x1F, 0o17, 0b101, 1e3, 1_0.5
9223372036854775807, 9223372036854775808, -9223372036854775808
n + f, n * neg, n - 0.5, yes + yes, no * 5
"a" + "b", "a" ~ 1 ~ none ~ 2.0 ~ true ~ [1], "ab" * 3, 3 * "ab", "x" * 0, "x" * -1
[1] + [2], [1, 2] * 2, (1,) + (2,), (1, 2)
1 ~ 2 + 3
"a" ~ "b" * 2
1 + 2 ~ 3
1 == 1.0, 1 == true, "a" == "a", [1] == [1], (1,) == [1], none == none, {"a": 1} == {"a": 1.0}
1 < 2 < 3, 1 < 3 < 2, 1 == 1 != 2, "a" < "b", [1, 2] < [1, 3], "Z" < "a", "é" > "z"
1 in [1, 2], "a" in "cat", "k" in d, "a" in d, 5 not in nums, "x" not in "abc", none in [none], "" in "abc"
1 in [1] == true
not true, not 0, not not 1, not "a" in "abc", not none
1 and 2, 0 and 2, 1 or 2, 0 or "", none or "x", "a" and "b" or "c"
1 if true else 2, 1 if false, (1 if false) is defined, "a" if 0 else "b" if 0 else "c"
-n, +n, -f, +yes, -yes, - - n
- n | abs
-1 | abs
(1), (), (1,), (1, 2), [], {}, [1, [2, (3,)]], {"a": 1, 2: "b", none: true, 1.5: ()}
"a" "b" 'c'
"\n\t\\\"\'\x41\u00e9\U0001F600\101\q\a\b\f\v\r" | tojson
'line \
joined'
"it's", 'say "x"', "both ' and \"", ["it's", 'say "x"', "both ' and \""]
["\n\t\\", "é", "\x00\x1f\x7f\x80\xa0\u200b\u2028", "😀"]
true, false, none, True, False, None
n, neg, f, big, tiny, whole, huge, yes, no, nil
[n, f, big, tiny, whole, huge, yes, nil], d
nums[0], nums[-1], nums[5], nums["x"], d["b"], d["zz"], d.b, d.zz, s[0], s[-1], uni[0], uni[-1], uni[9], (1, 2)[1]
nums.0, nums.2, users.0.name
nested.x.y[0].z, nested["x"]["y"][0]["z"], nested.x.y.0.z
nums[1:], nums[:1], nums[:], nums[::-1], nums[::2], nums[-2:], nums[5:], nums[2:0:-1], nums[-1:-4:-1]
s[1:4], s[::-1], s[::2], s[-3:], uni[2:5], uni[::-1], uni[::3], s[10:2:-3], uni[-2:], s[:-1], s[100:], empty[::-1]
(1, 2, 3)[1:], (1, 2, 3)[::-1], nums[none:2], nums[:none:none]
nums[1:2:0]
nums["a":]
d[1:]
undefined_name, undefined_name ~ "x", undefined_name | length, undefined_name | list, undefined_name == other_undefined
undefined_name is defined, undefined_name is undefined, not undefined_name, undefined_name or "fallback"
[undefined_name], {"a": undefined_name}
undefined_name.attr
undefined_name["x"]
undefined_name + 1
1 + undefined_name
undefined_name()
undefined_name < 1
-undefined_name
d.zz.yy
d.b.c, d.b.c is defined
nil.x, nil["x"], n.x, s.nope, nums.nope
d.items, 1
d["items"], d.keys() | list, d.values() | list, d.items() | list
d.get("b"), d.get("zz"), d.get("zz", 5), d.get("a")[0]
d.keys(), d.values(), d.items(), d.copy()
d.update, d.update is defined
d.pop("b")
d.update({"x": 1})
nums.sort()
{"x": nums.append(4), "y": nums}
nums.pop(), nums.pop(0), nums
nums.pop(9)
nums.index(2), nums.count(1), (1, 1).count(1), nums.copy()
nums.index(99)
"a" + 1
1 + "a"
[1] + (2,)
1 < "a"
none < 1
[] < {}
{} + {}
1 // 0
1 % 0
1.0 / 0
0 ** -1
"a" - "b"
1 in 5
1 in "abc"
[] in {}
{[]: 1}
"x".nope()
5()
s()
range(3), range(1, 4), range(0, 10, 3), range(5, 0, -2), range(0), range(3) | list, range(3)[1], range(3) | length
range(100001)
range(1, 2, 0)
range(1.5)
dict(a=1, b=2), dict({"x": 1}, y=2), dict([["k", "v"]]), dict()
namespace(a=1).a, namespace({"a": 2}).a, namespace().zz
namespace(a=1)
s.upper(), s.lower(), s.title(), s.capitalize(), s.swapcase(), uni.upper(), uni.lower(), "ǆ".title(), "straße".upper()
"they're bill's".title(), "x-y z_w".title(), "3rd place".title(), "ÉCOLE".capitalize()
sp.strip(), sp.lstrip(), sp.rstrip(), "xxaxx".strip("x"), "abcba".strip("ab"), "abc".lstrip("ab"), "abc".rstrip("cb"), "  x".strip(none)
"\u3000\u00a0x\u2003".strip(), "x\u200b".strip() | length, "ééaé".strip("é")
s.split(), s.split("o"), s.split("l", 1), "a,b,,c".split(","), " a  b ".split(), "".split(), "".split(","), " a  b  c ".split(none, 1), "abc".split("abc")
s.split(maxsplit=1), "a b c".split(" ", maxsplit=1), "a.b.c".rsplit(".", 1), " a b  c ".rsplit(none, 1), "aXbXc".rsplit("X"), "a b".rsplit()
"x".split("")
lines.splitlines(), lines.splitlines(true), "a\n".splitlines(), "".splitlines(), "a\x0bb\x0cc\x1cd\x85e\u2028f".splitlines()
s.startswith("He"), s.endswith("ld"), s.startswith(("x", "H")), s.endswith(("x",)), s.startswith(""), empty.startswith("a"), s.startswith(())
s.startswith(1)
s.replace("l", "L"), s.replace("l", "", 1), s.replace("", "-"), s.replace("zz", "y"), "aaa".replace("aa", "b"), "é".replace("", "."), s.replace("l", "L", -1)
s.find("o"), s.rfind("o"), s.find("zz"), uni.find("日"), s.index("W"), s.count("l"), s.count(""), "aaa".count("aa"), uni.rfind("日"), "abab".rfind("ab")
s.index("zz")
",".join(["a", "b"]), "".join([]), "-".join("abc"), ", ".join(d), "x".join(d.keys())
",".join([1])
"a-b-c".partition("-"), "a-b-c".rpartition("-"), "abc".partition("-"), "abc".rpartition("-")
"prefix-x".removeprefix("prefix-"), "x.txt".removesuffix(".txt"), "x".removeprefix("y")
"abc".isalpha(), "a1".isalnum(), "12".isdigit(), " ".isspace(), "ab".islower(), "AB".isupper(), "".isalpha(), "a b".isalpha(), "É1".isupper(), "日本".isalpha(), "1".islower()
"7".zfill(3), "-7".zfill(4), "x".ljust(3) ~ "|", "x".rjust(3, "."), "x".center(4, "*"), "xy".center(5, "*"), "xyz".center(2)
"{} {}".format(1, "a"), "{0}{1}{0}".format("x", "y"), "{a}-{b}".format(a=1, b=[2]), "{{}}".format(), "{:>5}|{:<5}|{:^5}|{:*^7}".format("a", "b", "c", "d")
"{:05d} {:+d} {:x} {:#x} {:b} {:o} {:,} {:c}".format(42, 5, 255, 255, 5, 8, 1234567, 65), "{:.2f} {:8.3f} {:e} {:g} {:.1%} {:,.2f}".format(3.14159, 2.5, 12345.678, 0.0001, 0.256, 12345.678)
"{0.name}".format(users[0]), "{0[name]} {0[age]}".format(users[0]), "{!r} {!s}".format("a", "b"), "{:.2}".format("abcdef"), "{:5}|".format(3), "{}".format(none)
"{} {0}".format(1)
"{}".format()
"{x}".format(y=1)
"{".format()
"%s and %d" % ("a", 3), "%s" % "x", "%5s|%-5s|%05d|%+d|%.2f|%x|%%" % ("a", "b", 42, 5, 3.14159, 255), "%r" % "it", "%(a)s %(b)d" % {"a": 1, "b": 2}, "%s" % [1]
"%d" % "x"
"%s %s" % ("a",)
"%s" % (1, 2)
strftime_now("%Y-%m-%d"), strftime_now("%d %b %Y %H:%M:%S"), strftime_now("%A, %B %-d, %y %j %p %I"), strftime_now("100%% %e")
raise_exception("stop here")
raise_exception("number " ~ 5)
raise_exception(12)
raise_exception()
"a" if yes else raise_exception("no")
users[0].tags[0] ~ users[1].tags
mixed
mixed | length
html, html ~ html
d == {"items": "key", "a": [1, 2, none], "b": 1}
1.0 == whole, whole, whole | int, whole ~ ""
big == 123456789012345678901234567890, big > 5, big < 1, -5 < big, [big], big | tojson
3 is sameas 3, none is sameas none, true is sameas 1
s is string and n is number
1,
lines | length
control
[control]
q, [q]
"日本"[0], "日本" | length, "😀😀"[1:] | length
loop is defined
(nums)[0], (s).upper(), [1, 2][0], {"a": 1}.a, "abc"[1]
nums | first + 1
1 + nums | first
not nums | length > 2
"a" in "abc" and "b" not in "xyz"
[1, 2, 3,], {"a": 1,}, (1, 2,)
1 if 2 if 0 else 3 else 4
d . b, nums [0]
true.x, 1.5.x
""
"é" * 3
[[1, 2], [3]] | length
5 .x
"\ud800"
"\N{DASH}"
"\x4"
a.b.c
x = 1
1 2
]
(1
{1: 2
"abc
1 +
* 2
@
a..b
nums[
is defined
foo(*nums)
foo(**d)
foo(a=1, 2)
foo(a=1, a=2)
1 | nosuchfilter
1 is nosuchtest
(1 | nosuchfilter) if no else "ok"
"ok" if yes else (1 is nosuchtest)
"""

FILTERS = r"""
neg | abs, f | abs, -2.5 | abs, yes | abs
s | abs
s | upper, s | lower, s | capitalize, s | title, "foo-bar (baz) {q} [z] <w> it's" | title, n | upper, nil | lower, "élan vital" | title
sp | trim, "xxaxx" | trim("x"), "  " | trim, n | trim, nil | trim, undefined_name | trim, sp | trim | length
s | replace("o", "0"), s | replace("o", "0", 1), 1.5 | replace(".", ","), s | replace("l", 1), "aXa" | replace("X", none)
s | length, nums | length, d | length, uni | length, nums | count, empty | length
n | length
nil | length
nums | first, nums | last, s | first, uni | last, d | first, d | last, [] | first, [] | last, ([] | first) is defined, range(3) | last
n | first
nums | join, nums | join("-"), words | join(", "), users | join(",", attribute="name"), "abc" | join("."), [] | join("x"), [1, none, 2.0] | join(" "), d | join("+"), nums | join(1)
n | join
nums | list, s | list, d | list, uni | list, range(2) | list, (1, 2) | list, undefined_name | list
n | list
nums | sort, words | sort, words | sort(case_sensitive=true), nums | sort(reverse=true), users | sort(attribute="age") | map(attribute="name") | list, users | sort(attribute="age,name") | map(attribute="name") | list, users | sort(attribute="age", reverse=true) | map(attribute="name") | list
mixed | sort
[3, 1, 2, 1, 3] | unique | list, ["a", "A", "b"] | unique | list, ["a", "A"] | unique(true) | list, users | unique(attribute="age") | map(attribute="name") | list
nums | min, nums | max, words | min, words | max, words | max(case_sensitive=true), users | max(attribute="age"), [] | min, "hello" | max
nums | sum, [1.5, 2] | sum, users | sum(attribute="age"), [] | sum, nums | sum(start=10), [[1], [2]] | sum(start=[])
words | sum
nums | reverse | list, s | reverse, uni | reverse, (1, 2) | reverse | list, d | reverse | list
words | map("upper") | list, users | map(attribute="name") | list, users | map(attribute="tags", default="none") | list, users | map(attribute="tags.0") | list, words | map("replace", "p", "P") | list, [[1, 2], [3]] | map("first") | list, [1, 2] | map("string") | list, nil | map("upper") | list
words | map | list
words | map("nosuch") | list
words | map(nosuch="x") | list
n | map("upper") | list
nums | select("odd") | list, nums | select("gt", 1) | list, [0, 1, "", "a"] | select | list, nums | reject("odd") | list, [0, 1, none] | reject | list, nums | select(">=", 2) | list, words | select("in", ["fig"]) | list, nums | select("divisibleby", 2) | list
users | selectattr("tags") | map(attribute="name") | list, users | selectattr("age", "equalto", 30) | map(attribute="name") | list, users | selectattr("tags", "defined") | map(attribute="name") | list, users | rejectattr("age", "eq", 30) | map(attribute="name") | list, users | rejectattr("tags") | map(attribute="name") | list, users | selectattr("age", "lt", 30) | list
users | selectattr | list
nums | select("nosuch") | list
(nums | select("odd")) is iterable, (nums | select("odd")) is sequence, (nums | select("odd")) is mapping, "yes" if (nums | select("gt", 100)) else "no"
nums | map("string") | length
nums | map("string") | first, nums | map("string") | join("+")
nums | map("string") | last
undefined_name | default("x"), nil | default("x"), nil | default("x", true), "" | default("x", true), undefined_name | default, 0 | d(5), 0 | d(5, boolean=true), undefined_name | d(none), d.zz | default("nope")
d | dictsort, {"b": 1, "A": 2, "c": 0} | dictsort, {"b": 1, "A": 2} | dictsort(case_sensitive=true), {"b": 1, "A": 2, "c": 0} | dictsort(by="value"), {"b": 1, "A": 2} | dictsort(reverse=true)
d | dictsort(by="nope")
nums | dictsort
d | items | list, undefined_name | items | list
nums | items | list
nil | items
"5" | int, "5.7" | int, "x" | int, "x" | int(9), 5.9 | int, -5.9 | int, " 7 " | int, "0x1F" | int(base=16), "ff" | int(0, 16), "101" | int(base=2), true | int, nil | int, "1_000" | int, "1__0" | int, "" | int, [] | int, "+5" | int, "-5" | int
"2.5" | float, "x" | float, "x" | float(1.5), 3 | float, "1e3" | float, inf | float, nil | float, " 2 " | float
2.567 | round, 2.567 | round(2), 2.5 | round, 3.5 | round, 2.1 | round(method="ceil"), 2.9 | round(0, "floor"), 5 | round, 2.675 | round(2), -2.5 | round, 1234.5 | round(-2), 2.151 | round(1, "ceil")
2.5 | round(method="nope")
s | round
n | string, nil | string, [1, "a"] | string, s | string, 1.0 | string, undefined_name | string, yes | string
html | e, html | escape, html | safe, (html | safe) ~ html, (html | safe) + html, html + (html | safe), html | e | e, n | e, (html | safe) is escaped, html is escaped, [html | safe], ("x" | safe).upper() + "<", (html | safe)[0:2] + ">"
(html | safe) | upper, (html | safe) | replace("b", "<"), (html | safe).replace("b", "<"), ("," | safe).join(["<", ">"]), (html | safe) * 2, (html | safe) | tojson, (html | safe) | trim + "<"
"a\nb\n\nc" | indent, "a\nb" | indent(2), "a\nb" | indent(2, true), "a\n\nb" | indent(2, blank=true), "a\nb" | indent("> "), "a\nb\n" | indent(1, first=true), "" | indent, "a" | indent(width=8, first=true)
"%s-%d" | format("a", 5), "%(x)s" | format(x=1), "%s" | format([1]), "plain" | format
"%s" | format(1, x=2)
"a b  c" | wordcount, "" | wordcount, "don't" | wordcount, uni | wordcount
d | tojson, s | tojson, n | tojson, nil | tojson, yes | tojson, f | tojson, whole | tojson, tiny | tojson, huge | tojson, uni | tojson, html | tojson, control | tojson, q | tojson, mixed | tojson, (1, 2) | tojson, [] | tojson, {} | tojson
d | tojson(indent=2), [] | tojson(indent=2), nested | tojson(indent=4), nums | tojson(indent=0), d | tojson(indent="--")
d | tojson(separators=(",", ":")), d | tojson(indent=1, separators=(";", "=")), d | tojson(sort_keys=true), uni | tojson(ensure_ascii=true), uni | tojson(true), control | tojson(ensure_ascii=True)
{1: 2, none: 3, true: 4, 1.5: 5, "a": 6} | tojson, {2: 1, 1: 2} | tojson(sort_keys=true)
{"a": 1, 2: 3} | tojson(sort_keys=true)
{(1, 2): 3} | tojson
undefined_name | tojson
[undefined_name] | tojson
range(3) | tojson
nums | map("string") | tojson
namespace(a=1) | tojson
("inf" | float) | tojson, ("nan" | float) | tojson, ("-inf" | float)
js | from_json, (js | from_json).a[1], (js | from_json) | tojson
s | from_json
users[0] | attr("name"), s | attr("upper"), (s | attr("nope")) is defined, (d | attr("keys"))() | list
s | upper | lower | title, nums | sort | reverse | join("-"), users | map(attribute="name") | map("upper") | join(",")
s | truncate_nope
s | upper(1)
s | default(1, 2, 3)
s | join(x=1)
s | replace("a")
s | replace
"""

TESTS = r"""
s is defined, undefined_name is defined, d.zz is defined, nil is defined, d.b is defined, undefined_name is not defined
undefined_name is undefined, s is undefined
nil is none, s is none, undefined_name is none, false is none, nil is not none
yes is boolean, 1 is boolean, nil is boolean, no is false, 0 is false, yes is true, 1 is true
n is integer, yes is integer, f is integer, big is integer, "1" is integer
f is float, n is float, whole is float, n is number, f is number, yes is number, "1" is number, nil is number, big is number
s is string, n is string, nil is string, undefined_name is string, (s | safe) is string
d is mapping, nums is mapping, s is mapping, undefined_name is mapping, namespace() is mapping, d.items() is mapping
s is iterable, nums is iterable, d is iterable, n is iterable, nil is iterable, undefined_name is iterable, range(3) is iterable, d.keys() is iterable
s is sequence, nums is sequence, d is sequence, (1,) is sequence, n is sequence, nil is sequence, undefined_name is sequence, range(3) is sequence, d.keys() is sequence
s.upper is callable, range is callable, n is callable, s is callable, undefined_name is callable, d.get is callable
2 is even, 3 is even, 3 is odd, 9 is divisibleby 3, 9 is divisibleby(2), 2.0 is even, yes is odd
s is even
1 is eq 1, 1 is equalto(1.0), 1 is ne 2, 1 is lt 2, 1 is lessthan 1, 1 is le 1, 2 is gt 1, 2 is greaterthan 2, 2 is ge 2
1 is lt "a"
"a" is in "abc", 1 is in nums, 9 is in(nums), 1 is not in [2]
"abc" is lower, "aBc" is lower, "ABC" is upper, "" is lower, n is lower, "a1" is lower, "É" is upper
nums is sameas nums, [] is sameas [], s is sameas s, none is sameas false
"upper" is filter, "nosuch" is filter, "odd" is test, "nosuch" is test
n is odd and f is float, n is odd or undefined_name.x, not n is odd, n is not odd
n is divisibleby 7 and n is number
n is nosuchtest
n is divisibleby
n is odd is even
n is
"""

STATEMENTS = r"""
{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}
§{% if no %}a{% elif zero %}b{% elif nil %}c{% else %}d{% endif %}
§{% if no %}a{% endif %}{% if none_list %}b{% endif %}{% if empty %}c{% endif %}{% if d %}d{% endif %}
§{% for x in nums %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}
§{% for x in nums %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.depth }}/{{ loop.depth0 }};{% endfor %}
§{% for x in nums %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %}
§{% for x in nums %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}
§{% for x in nums %}{{ loop.cycle("odd", "even") }} {% endfor %}
§{% for x in [1, 1, 2, 2, 1] %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}
§{% for x in nums %}{{ loop.nope }}{{ loop.nope is defined }}{% endfor %}
§{% for x in nums %}{{ loop.cycle() }}{% endfor %}
§{% for x in none_list %}x{% else %}none{% endfor %}
§{% for x in nums %}x{% else %}none{% endfor %}
§{% for x in undefined_name %}x{% else %}none{% endfor %}
§{% for x in nil %}x{% endfor %}
§{% for x in n %}x{% endfor %}
§{% for k in d %}{{ k }},{% endfor %}
§{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
§{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}
§{% for a, b in pairs %}{{ a }}{{ b }}{% endfor %}
§{% for (a, b) in pairs %}{{ a }}{{ b }}{% endfor %}
§{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
§{% for a, b in nums %}x{% endfor %}
§{% for a, b in [[1, 2, 3]] %}x{% endfor %}
§{% for c in uni %}[{{ c }}]{% endfor %}
§{% for x in nums if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}
§{% for x in nums if x > 100 %}x{% else %}nothing{% endfor %}
§{% for x in nums if x > 1 %}{{ x }}{{ loop.last }}{% endfor %}
§{% for u in users if u.tags is defined %}{{ u.name }}{{ loop.nextitem.name }};{% endfor %}
§{% for x in range(10) %}{% if x == 3 %}{% continue %}{% endif %}{% if x == 6 %}{% break %}{% endif %}{{ x }}{% endfor %}
§{% for x in range(3) %}{% for y in range(3) %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
§{% for x in range(3) %}{% for y in range(2) %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}
§{% break %}
§{% for x in nums %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
§{% for x in nums %}{% else %}{% break %}{% endfor %}
§{% for x in nums, %}{{ x }}{% endfor %}
§{% for x in 1, 2, 3 %}{{ x }}{% endfor %}
§{% for x in nums %}{% set y = x %}{% endfor %}{{ y is defined }}
§{% set y = 0 %}{% for x in nums %}{{ y }}{% set y = x %}{{ y }};{% endfor %}{{ y }}
§{% set ns = namespace(t=0) %}{% for x in nums %}{% set ns.t = ns.t + x %}{% endfor %}{{ ns.t }}
§{% set ns = namespace(a=1) %}{% set ns.b = 2 %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{{ ns["a"] }}
§{% set x = 5 %}{% set x.y = 1 %}
§{% set nope.y = 1 %}
§{% set a, b = 1, 2 %}{{ a }}{{ b }}
§{% set a, b = [1, 2, 3] %}{{ a }}
§{% set (a, b) = (b, 1) %}{{ a }}{{ b }}
§{% set a = 1, 2 %}{{ a }}
§{% set a = 1 if yes else 2 %}{{ a }}
§{% set a %}text {{ n }}{% endset %}{{ a }}|{{ a | length }}
§{% set a | upper %}text{% endset %}{{ a }}
§{% set a | replace("t", "T") | trim %} text {% endset %}{{ a }}
§{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b is defined }}
§{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}
§{% if yes %}{% set z = 1 %}{% endif %}{{ z }}
§{% if no %}{% set z = 1 %}{% endif %}{{ z is defined }}
§{% if no %}{% set s = 1 %}{% endif %}{{ s }}
§{% set s = s ~ "!" %}{{ s }}
§{{ s }}{% set s = 1 %}{{ s }}
§{% macro m() %}{{ s }}{% endmacro %}{{ m() }}{% set s = 1 %}{{ m() }}
§{% for x in nums %}{{ s }}{% endfor %}{% set s = 1 %}
§{% for x in nums %}{{ s }}{% set s = x %}{{ s }} {% endfor %}{{ s }}
§{% for x in [1, 2] %}{% if x == 2 %}{% set s = "in" %}{% endif %}{{ s }} {% endfor %}
§{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c=4) }} {{ m(a=5, b=6) }} {{ m() }}
§{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
§{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
§{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
§{% macro m(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ m() }}
§{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}
§{% macro m(a) %}{{ caller() }}{% endmacro %}{% call m(1) %}body {{ n }}{% endcall %}
§{% macro m(a) %}<{{ caller(a, 2) }}>{% endmacro %}{% call(x, y) m("q") %}{{ x }}{{ y }}{% endcall %}
§{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
§{% macro m() %}no caller{% endmacro %}{% call m() %}x{% endcall %}
§{% macro fact(i) %}{% if i < 2 %}1{% else %}{{ i * (fact(i - 1) | int) }}{% endif %}{% endmacro %}{{ fact(10) }}
§{% macro m() %}{% set inner = 1 %}{{ inner }}{% endmacro %}{{ m() }}{{ inner is defined }}
§{% macro m() %}  pad  {% endmacro %}[{{ m() }}][{{ m() | trim }}]{{ m() is string }}
§{% macro m(x) -%}
  {{ x }}
{%- endmacro %}
{{ m(1) }}{{ m(2) }}
§{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
§{{ late() }}{% macro late() %}x{% endmacro %}
§{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in nums %}{{ m() }}{% endfor %}
§{% macro m(x) %}{{ m }}{% endmacro %}{{ m(1) }}
§{% for x in nums %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}
§{% macro m(x, x) %}{% endmacro %}
§{% macro m(x=1, y) %}{% endmacro %}
§{% macro m(n) %}{{ n }}{% endmacro %}{{ m(1) }}{{ n }}
§{% macro m() %}{% if model is not defined %}{% set model = "default" %}{% endif %}{{ model }}{% endmacro %}{{ m() }}{{ model is defined }}
§{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
§{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a }}
§{% with %}{% set q2 = 1 %}{{ q2 }}{% endwith %}{{ q2 is defined }}
§{% filter upper %}text {{ s }}{% endfilter %}
§{% filter replace("t", "T") | trim %} text {% endfilter %}
§{% generation %}reply {{ s }}{% endgeneration %} after
§{% for x in nums %}{% generation %}{{ x }}{{ loop.index }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}{% endfor %}
§{% for x in nums %}{% set b %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endset %}{{ b }}{% endfor %}
§{% for x in nums %}{% filter upper %}a{% if x == 1 %}{% continue %}{% endif %}{% endfilter %}{% endfor %}
§{% set x = namespace(items=[]) %}{% for i in nums %}{% set _ = x["items"].append(i) %}{% endfor %}{{ x["items"] }}
§{% set l = [] %}{% for i in nums %}{{ l.append(i) or "" }}{% endfor %}{{ l }}{{ l.pop(0) }}{{ l }}
§{% set it = nums | select("odd") %}{% for x in it %}{{ x }}{% endfor %}|{% for x in it %}{{ x }}{% endfor %}
§{% set it = nums | map("string") %}{{ it | first }}{{ it | list }}{{ it | list }}
§{% for x in nums | reverse %}{{ x }}{{ loop.length }}{% endfor %}
§{% for x in "ab" %}{{ loop.length }}{{ x }}{% endfor %}
§{% for k, v in {"b": 1, "a": 2} | dictsort %}{{ k }}{{ v }}{% endfor %}
§{% for u in users %}{% for t in u.tags %}{{ t }}{% else %}-{% endfor %}{% endfor %}
§{% set loop = 1 %}{{ loop }}
§{% for x in nums %}{% set loop = 1 %}{% endfor %}
§{% for loop in nums %}x{% endfor %}
§{% set true = 1 %}
§{% set 5 = 1 %}
§{% set a.b.c = 1 %}
§{% unknown %}
§{% endif %}
§{% if %}x{% endif %}
§{% if yes %}a{% endfor %}
§{% for x nums %}{% endfor %}
§{% else %}
§{% if yes: %}colon{% endif %}
§{% set x = 1 %}{{ x }}{% set x = x + 1 %}{{ x }}
§{% if yes %}{{ 1 | nosuch }}{% endif %}
§{% if no %}{{ 1 | nosuch }}{% endif %}ok
§{% if no %}{{ 1 is nosuch }}{% endif %}ok
§{% include "x" %}
§{% set messages = nums[::-1] %}{% for m in messages %}{{ loop.index0 }}{{ m }}{% endfor %}
§{%- for x in nums -%} {{ x }} {%- endfor -%}
§{{ raise_exception("in " ~ s) if n == 7 }}
§{% set x = raise_exception("é") %}
§{% macro m() %}{{ raise_exception("deep") }}{% endmacro %}{% for x in nums %}{{ m() }}{% endfor %}
§{% if s is string and n is number or undefined_name.x %}short{% endif %}
§{% set r = range %}{{ r(2) | list }}{% set range = 5 %}{{ range }}
§{{ dict }}
§{% set dict = {"a": 1} %}{{ dict.a }}
§{% call n() %}{% endcall %}
§{% call m %}{% endcall %}
§{% set x %}{% endset %}[{{ x }}]{{ x is defined }}
§{% for x in users %}{{ x.name }}{% if loop.nextitem is defined and loop.nextitem.age == 30 %}*{% endif %}{% endfor %}
"""


def lines(text, wrap):
    for line in text.strip("\n").split("\n"):
        yield wrap(line)


def make():
    joined = EXPRESSIONS.replace("\\\njoined", "\\joined")
    templates = [t for t in BLANKS.removeprefix("\n").split("§")]
    templates += [t.strip("\n") for t in STATEMENTS.strip("\n").split("§")]
    for text in (joined, FILTERS, TESTS):
        templates += lines(text, lambda line: "{{ " + line.replace("\\joined", "\\\njoined") + " }}")
    known = {name for name in VARS}
    return [(t, {k: VARS[k] for k in VARS if k in set(re.findall(r"\w+", t)) & known}) for t in templates]


CASES = make()
