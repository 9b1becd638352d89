#!/usr/bin/env python3
"""headers.py ROOT CC... -- every header compiles alone, and twice.

Public headers get only include/ and no feature macros, as C11 with -Wpedantic and,
where the compiler can, as C++; the headers of src get what the library is built with."""
import platform
import subprocess
import sys
from pathlib import Path

# The headers of the vector kernels are compiled for the highest level of this machine's family.
LEVELS = {
    "x86": ["-DMOX_LEVEL=4", "-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
            "-mavx512vnni", "-mgfni", "-mamx-tile", "-mamx-int8", "-DMOX_AMX"],
    "arm": ["-DMOX_LEVEL=3", "-march=armv8.2-a+dotprod+i8mm"],
}
# Headers of GPU kernels are compiled for the emulated GPU; those that only host code includes are not.
GPU_HOST = {"backend.h", "device.h", "fill.h", "target_host.h"}
# These need the compiler or the headers of a GPU's maker, or are parts of others.
FOREIGN = {"gpu": {"target_cuda.h", "target_metal.h", "target_math.h", "rows_cuda.h", "tile_cuda.h", "tile_emu.h", "tile_metal.h", "tile_bytes.h"}, "cuda": {"driver.h", "internal.h"}}
FAMILY = {"x86_64": "x86", "aarch64": "arm"}.get(platform.machine())
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]


def compiles(cc, language, flags, header):
    text = f'#include "{header}"\n#include "{header}"\n'
    command = [*cc, "-x", language, "-fsyntax-only", *flags, "-"]
    done = subprocess.run(command, input=text, text=True, capture_output=True)
    if done.returncode != 0:
        print(f"FAIL {header} as {language} alone:\n{done.stderr}")
    return done.returncode == 0


def main():
    root, cc = Path(sys.argv[1]), sys.argv[2:]
    include, src = root / "include", root / "src"
    jobs = []
    for header in sorted(include.rglob("*.h")):
        name = str(header.relative_to(include))
        jobs.append(("c", ["-std=c11", "-Wpedantic", f"-I{include}", *WARNINGS], name))
        jobs.append(("c++", ["-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{include}"], name))
    for header in sorted(src.rglob("*.h")):
        flags = ["-std=c11", "-D_GNU_SOURCE", "-DMOX_BUILDING", f"-I{include}", f"-I{src}", *WARNINGS]
        folder = header.parent.name
        if folder in LEVELS and folder != FAMILY or folder == "simd" and not FAMILY:
            continue
        if header.name == "square.h" and FAMILY != "x86":  # no other family has a level with squares
            continue
        if folder in LEVELS or folder == "simd":
            flags += [*LEVELS[FAMILY], "-O1", "-Wno-unused-function"]  # without -O intrinsics are macros that warn
        if header.name in FOREIGN.get(folder, ()):
            continue
        if folder == "gpu" and header.name not in GPU_HOST:
            flags += ["-DMOX_GPU_EMU", "-Wno-unused-function"]
        jobs.append(("c", flags, str(header.relative_to(src))))
    has_cxx = subprocess.run([*cc, "-x", "c++", "-fsyntax-only", "-"], input="", text=True,
                             capture_output=True).returncode == 0
    passed = failed = skipped = 0
    for language, flags, name in jobs:
        if language == "c++" and not has_cxx:
            skipped += 1
        elif compiles(cc, language, flags, name):
            passed += 1
        else:
            failed += 1
    if skipped:
        print("skipped C++: the compiler has none")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
