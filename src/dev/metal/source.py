"""Makes of preprocessed kernels what Metal compiles, and a C source that holds it as mox_metal_source.

usage: source.py FILE KERNELS.metal OUTPUT.c
"""

import pathlib
import sys

HEAD = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
lines = [line for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if line.strip()]
text = HEAD + "\n".join(lines) + "\n"
pathlib.Path(sys.argv[2]).write_text(text, encoding="utf-8")
# Characters one by one: compilers need not take a string that long.
numbers = ", ".join(str(byte) for byte in text.encode("ascii")) + ", 0"
pathlib.Path(sys.argv[3]).write_text(f"extern const char mox_metal_source[];\nconst char mox_metal_source[] = {{{numbers}}};\n", encoding="ascii")
