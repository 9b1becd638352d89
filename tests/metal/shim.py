"""Kernels in Metal's language through clang, with shim/ in the place of Metal's own headers."""

import pathlib
import re
import subprocess

SHIM = pathlib.Path(__file__).resolve().parent / "shim"
# Metal lets parameters go unused, takes `const constant`, has attributes of its own, and unrolls loops as it likes.
FLAGS = ["-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-attributes",
         "-Wno-pass-failed", "-Wno-unused-function", "-Wno-unused-parameter", "-Wno-duplicate-decl-specifier", f"-I{SHIM}"]


def kernels_of(text):
    """Names of kernels, each with the text from its beginning to the next one's."""
    parts = re.split(r"kernel void mox_gpu_kernel_(\w+)\(", text)
    return dict(zip(parts[1::2], parts[2::2]))


def compile_text(clang, text, *more):
    """What clang complains about; nothing when it accepts the text."""
    done = subprocess.run([clang, *FLAGS, *more, "-"], input=text, capture_output=True, text=True)
    return done.stderr if done.returncode else ""
