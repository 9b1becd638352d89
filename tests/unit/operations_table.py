"""docs/operations.md against the sources.

The table must hold the numbers 1 to 73 once each and every operation of the kernel
table; a function it names must be declared in src/ops/*.h and defined in src/ops/*.c,
and a test it names must be in a table of tests/check.

usage: operations_table.py [source root]
"""

import pathlib
import re
import sys

LAST = 73


def text_of(paths):
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(paths))


def rows_of(markdown):
    """(number or None, operation, functions, tests) of every five-column row."""
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 5 or cells[0] == "#" or set(cells[0]) <= set("-"):
            continue
        names = [re.findall(r"`(\w+)`", cell) for cell in cells[2:4]]
        yield (int(cells[0]) if cells[0].isdigit() else None), cells[1], names[0], names[1]


def problems(root):
    ops = root / "src" / "ops"
    headers = text_of(ops.glob("*.h"))
    declared = set(re.findall(r"^mox_status (mox_op_\w+)\(", headers, re.M))
    defined = set(re.findall(r"^mox_status (mox_op_\w+)\([^;{]*\)\s*\{", text_of(ops.glob("*.c")), re.M))
    kernels = set(re.findall(r"^\s*X\((\w+), mox_\w+_args\)", headers, re.M))
    steps = ("_prepare", "_parts", "_merge")  # of an operation that has a name of its own
    kernels = {name for name in kernels if not name.endswith(steps)}
    checks = text_of((root / "tests" / "check").glob("*.c"))
    tests = set()
    for table in re.findall(r"^const ck_op \w+\[\] = \{(.*?)^\};", checks, re.M | re.S):
        tests |= set(re.findall(r"^\s*\{\s*(?:\.name = )?\"(\w+)\"", table, re.M))

    rows = list(rows_of((root / "docs" / "operations.md").read_text(encoding="utf-8")))
    numbers = [number for number, *_ in rows if number is not None]
    for number in range(1, LAST + 1):
        if numbers.count(number) != 1:
            yield f"number {number} is in the table {numbers.count(number)} times"
    for number in numbers:
        if not 1 <= number <= LAST:
            yield f"number {number} is not one of the catalogue"
    operations = [operation for _, operation, *_ in rows]
    for operation in sorted(set(operations)):
        if operations.count(operation) != 1:
            yield f"{operation} is in the table {operations.count(operation)} times"
    named = set()
    for _, operation, functions, row_tests in rows:
        if not functions or not row_tests:
            yield f"{operation} has no function or no test"
        for function in functions:
            named.add(function)
            if function not in declared:
                yield f"{operation}: {function} is not declared in src/ops"
            if function not in defined:
                yield f"{operation}: {function} is not defined in src/ops"
        for test in row_tests:
            if test not in tests:
                yield f"{operation}: there is no test {test} in tests/check"
    if not kernels:
        yield "src/ops/kern.h has no list of kernels"
    for function in sorted(declared | {"mox_op_" + kernel for kernel in kernels}):
        if function not in named:
            yield f"{function} is not in the table"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2])
    found = list(problems(root))
    for problem in found:
        print("docs/operations.md:", problem)
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
