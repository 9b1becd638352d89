"""The kernels as Metal gets them: the text that the build made of src/dev/gpu is accepted by a compiler
whose address spaces are types, every pointer says its space, and no kernel asks for more than a
group of an Apple GPU has.  Mistakes are planted, and each must be refused.

usage: test_msl.py KERNELS.metal CLANG
"""

import pathlib
import re
import sys

from shim import compile_text, kernels_of

SPACES = {"device", "constant", "threadgroup", "thread"}
NUMBERS = ["bool", "float", "int", "uint", "ushort", "uint4", "void"] + [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
SHARED_BYTES, THREADS = 32768, 1024

HEAD = """
typedef struct plant { const device float *x; device float *y; device plant *next; long n; } plant;
static inline float first(const device float *x) { return x[0]; }
static inline float first_shared(const threadgroup float *x) { return x[0]; }
static inline float first_own(const thread float *x) { return x[0]; }
static inline long size(constant plant *p) { return p->n; }
kernel void mox_gpu_kernel_planted(constant plant *p [[buffer(0)]], uint at [[thread_index_in_simdgroup]])
{
    threadgroup float tile[32];
    float own[2];
    own[0] = tile[at] = p->x[at];
    %s
}
"""
# (what is wrong, wrong line, right line)
PAIRS = [
    ("a device pointer taken as threadgroup", "p->y[0] = first_shared(p->x);", "p->y[0] = first_shared(tile);"),
    ("a threadgroup pointer taken as device", "p->y[0] = first(tile);", "p->y[0] = first(p->x);"),
    ("a device pointer taken as thread", "p->y[0] = first_own(p->x);", "p->y[0] = first_own(own);"),
    ("a thread pointer taken as device", "p->y[0] = first(own);", "p->y[0] = first(p->y);"),
    ("a thread pointer taken as threadgroup", "p->y[0] = first_shared(own);", "p->y[0] = first_shared(tile + 1);"),
    ("parameters taken as device", "const device plant *q = p; p->y[0] = (float)q->n;", "const device plant *q = p->next; p->y[0] = (float)q->n;"),
    ("device memory taken as parameters", "p->y[0] = (float)size(p->next);", "p->y[0] = (float)size(p);"),
    ("a store to parameters", "p->n = 1;", "p->next->n = 1;"),
    ("a store to what is read only", "p->x[0] = 1.0f;", "p->y[0] = 1.0f;"),
    ("a variable with the name of a space", "const int thread = 1; p->y[0] = (float)thread;", "const int me = 1; p->y[0] = (float)me;"),
    ("a word that Metal lacks", "p->y[0] = expm1(own[0]);", "p->y[0] = precise::exp(own[0]);"),
]


def without_space(text):
    """Declarations and casts of pointers that do not say where they point."""
    types = set(NUMBERS) | set(re.findall(r"^(?:typedef [^;{]*|\} ?)\b(\w+);", text, flags=re.M))
    found = []
    for match in re.finditer(r"\b(\w+)(?:\s+const)?\s*[*&](?![*&=])", text):
        if match[1] not in types:
            continue
        before = re.split(r"[(),;{}<>=]", text[max(0, match.start() - 80):match.start()])[-1].split()
        if not SPACES & set(before):
            found.append(text[max(0, match.start() - 30):match.end() + 20].replace("\n", " "))
    return found


def limits(text):
    """Assertions that fail where a kernel has more threads or shared memory than Metal gives."""
    lines = []
    for name, body in kernels_of(text).items():
        arrays = re.findall(r"\bthreadgroup (\w+) \w+\[([^\]]+)\];", body)
        total = " + ".join(["0"] + [f"(sizeof({kind}) * ({n}) + 15) / 16 * 16" for kind, n in arrays])
        lines.append(f'static_assert({total} <= {SHARED_BYTES}, "shared memory of {name}");')
        lines.append(f'static_assert(threads_of_{name} <= {THREADS} && threads_of_{name} % 32 == 0, "threads of {name}");')
    return "\n".join(lines) + "\n"


def main():
    text, clang = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]
    problems, n_checks = [], 0

    def expect(good, sentence):
        nonlocal n_checks
        n_checks += 1
        if not good:
            problems.append(sentence)

    def said(more=""):
        return compile_text(clang, text + more, "-fsyntax-only")

    complaint = said(limits(text))
    expect(not complaint, f"the kernels:\n{complaint}")
    expect(len(kernels_of(text)) > 20, "kernels are missing")
    for pointer in without_space(text):
        expect(False, f"a pointer without a space: {pointer}")
    for what, wrong, right in PAIRS:
        complaint = said(HEAD % right)
        expect(not complaint, f"right twin of: {what}\n{complaint}")
        expect(said(HEAD % wrong), f"compiled: {what}")
    for wrong, right in [("const gpu_f32 *x = p->x;", "const device gpu_f32 *x = p->x;"), ("float *own_too = own;", "thread float *own_too = own;")]:
        expect(without_space(text + HEAD % wrong), f"not noticed: {wrong}")
        expect(not without_space(text + HEAD % right), f"refused: {right}")
    for n, fits in [(8160, True), (8161, False)]:  # beside the 32 numbers that HEAD has
        big = HEAD % f"threadgroup float more[{n}]; more[at] = 0.0f;" + "enum { threads_of_planted = 32 };\n"
        expect((not said(big + limits(big))) == fits, f"shared memory of {n + 32} numbers")
    for n, fits in [(1024, True), (1056, False), (48, False)]:
        expect((not said(HEAD % "" + f"enum {{ threads_of_planted = {n} }};\n" + limits(HEAD))) == fits, f"{n} threads")
    for problem in problems:
        print(f"FAIL {problem}")
    print(f"{n_checks - len(problems)} passed, {len(problems)} failed, 0 skipped")
    return 1 if problems else 0


sys.exit(main())
