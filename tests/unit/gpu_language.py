"""The language of src/dev/gpu/gpu.h refuses what it should, and every target takes the kernels.

Small kernels are compiled for the emulator: each wrong one must be refused for the reason
given, and its right twin accepted.  Where nvcc is installed, all kernels are compiled for CUDA.

usage: gpu_language.py [source root] [C compiler ...]
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

HEAD = """#define MOX_GPU_EMU 1
#include "dev/gpu/group.h"
typedef struct mox_gpu_k { const GPU_GLOBAL(f32) *x; GPU_GLOBAL(f32) *y; GPU_GLOBAL(i32) *ids; int64_t n; } mox_gpu_k;
GPU_FN float first(const GPU_GLOBAL(f32) *x) { return gpu_load(x, 0); }
GPU_FN float first_shared(const GPU_SHARED(f32) *x) { return gpu_load(x, 0); }
GPU_KERNEL(k, 32)
{
    GPU_SHARED_ARRAY(f32, tile, 32);
    gpu_store(tile, gpu_thread(), gpu_load(p->x, gpu_thread()));
    %s
}
"""
# (what is wrong, wrong line, right line)
PAIRS = [
    ("global memory read past the accessor", "gpu_store(p->y, 0, p->x[0]);", "gpu_store(p->y, 0, gpu_load(p->x, 0));"),
    ("global memory written past the accessor", "p->y[0] = 1.0f;", "gpu_store(p->y, 0, 1.0f);"),
    ("shared memory past the accessor", "gpu_store(p->y, 0, tile[0]);", "gpu_store(p->y, 0, gpu_load(tile, 0));"),
    ("a shared pointer taken as global", "gpu_store(p->y, 0, first(tile));", "gpu_store(p->y, 0, first(p->x));"),
    ("a global pointer taken as shared", "gpu_store(p->y, 0, first_shared(p->x));", "gpu_store(p->y, 0, first_shared(tile));"),
    ("a store to what is read only", "gpu_store(p->x, 0, 1.0f);", "gpu_store(p->y, 0, 1.0f);"),
    ("elements of another type", "gpu_store(p->y, 0, first(p->ids));", "gpu_store(p->y, 0, first(p->y));"),
    ("a number that loses bits", "gpu_store(p->ids, 0, p->n);", "gpu_store(p->ids, 0, (int32_t)p->n);"),
]


def compiles(command, text, suffix, root, folder):
    source = pathlib.Path(folder) / ("source" + suffix)
    source.write_text(text, encoding="utf-8")
    done = subprocess.run([*command, f"-I{root}/src", f"-I{root}/include", str(source)], capture_output=True, text=True, cwd=folder)
    return done.returncode == 0, done.stderr


def main():
    root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
    emu = [*compiler, "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wconversion", "-Wno-unused-function", "-Werror", "-fsyntax-only"]
    n_passed, n_failed, n_skipped = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for what, wrong, right in PAIRS:
            accepted, said = compiles(emu, HEAD % right, ".c", root, folder)
            refused = not compiles(emu, HEAD % wrong, ".c", root, folder)[0]
            if not accepted:
                print(f"FAIL right twin of: {what}\n{said}")
            if not refused:
                print(f"FAIL compiled: {what}")
            n_passed += accepted + refused
            n_failed += (not accepted) + (not refused)
        nvcc = shutil.which("nvcc")
        if nvcc:
            cuda = [nvcc, "-arch=sm_90", "-std=c++17", "-G", "-ptx", "-o", "kernels.ptx"]  # -G: quickly; the plug-in is optimized
            accepted, said = compiles(cuda, '#include "dev/gpu/kernels.h"\n', ".cu", root, folder)
            if not accepted:
                print(f"FAIL kernels for CUDA\n{said}")
            n_passed += accepted
            n_failed += not accepted
        else:
            print("no nvcc: the kernels are not compiled for CUDA")
            n_skipped += 1
    print(f"{n_passed} passed, {n_failed} failed, {n_skipped} skipped")
    return 1 if n_failed else 0


sys.exit(main())
