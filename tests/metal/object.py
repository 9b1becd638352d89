"""Compiles the kernels that Metal gets for this processor, each with an entry that C can call, for fake.c.

usage: object.py KERNELS.metal CLANG OUTPUT.o
"""

import pathlib
import sys

from shim import compile_text, kernels_of

ENTRY = """extern "C" void shim_run_%s(constant mox_gpu_%s *p, uint x, uint y, uint z, uint wave, uint place)
{
    mox_gpu_kernel_%s(p, (uint3)(x, y, z), wave, place);
}
"""
text = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
entries = "".join(ENTRY % (name, name, name) for name in kernels_of(text))
sys.exit(compile_text(sys.argv[2], text + entries, "-O2", "-fPIC", "-c", "-o", sys.argv[3]) or 0)
