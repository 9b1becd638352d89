"""Writes an assembler source that holds a file as mox_cuda_kernels_image.

usage: image.py FILE OUTPUT
"""

import pathlib
import sys

TEXT = """.section .rodata
.balign 64
.global mox_cuda_kernels_image
.hidden mox_cuda_kernels_image
mox_cuda_kernels_image:
.incbin "%s"
.section .note.GNU-stack,"",%%progbits
"""
pathlib.Path(sys.argv[2]).write_text(TEXT % pathlib.Path(sys.argv[1]).resolve(), encoding="utf-8")
