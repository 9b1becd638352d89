"""Safetensors files: reading, and writing with control over order, offsets and shards.

Owns the container and the plain number formats. Knows nothing of models: names are only names. A tensor is kept as
it is stored (bf16 as its 16 bits), so that reading and writing again changes no bit.
"""
import json
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U32": "<u4",
          "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1"}
PAD = "vision_tower.pad."           # and the file; names that belong to no text model, so readers skip them


class Tensor(NamedTuple):
    dtype: str
    array: np.ndarray               # of type STORED[dtype]

    def values(self):
        """The numbers; bf16 widened to float32, the upper half of which it is."""
        return (self.array.astype(np.uint32) << 16).view(np.float32) if self.dtype == "BF16" else self.array


def encode(values, dtype):
    """Numbers to a tensor; floats are rounded to nearest, ties to even."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
        return Tensor(dtype, ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2"))
    return Tensor(dtype, np.ascontiguousarray(values).astype(STORED[dtype]))


class SafeTensors:
    """Tensors of one or more files, read on demand."""

    def __init__(self, files):
        self.entries = {}                                        # name -> (dtype, shape, file, offset, size)
        self.files = list(files)
        for path in self.files:
            with open(path, "rb") as f:
                header_size = struct.unpack("<Q", f.read(8))[0]
                header = json.loads(f.read(header_size))
            for name, t in header.items():
                if name != "__metadata__":
                    begin, end = t["data_offsets"]               # counted from the end of the header
                    self.entries[name] = (t["dtype"], t["shape"], path, 8 + header_size + begin, end - begin)

    def __contains__(self, name):
        return name in self.entries

    def tensor(self, name, member=None):
        """`member` reads only that entry of the first axis, which is how one expert is taken out of a stack."""
        dtype, shape, path, offset, size = self.entries[name]
        if member is not None:
            size //= shape[0]
            offset += member * size
            shape = shape[1:]
        with open(path, "rb") as f:
            f.seek(offset)
            return Tensor(dtype, np.frombuffer(f.read(size), STORED[dtype]).reshape(shape))

    def read(self, name, member=None):
        return self.tensor(name, member).values()


def model_files(directory):
    index = Path(directory) / "model.safetensors.index.json"
    if index.exists():
        names = set(json.loads(index.read_text())["weight_map"].values())
    else:
        names = {p.name for p in Path(directory).glob("model*.safetensors")}
    return [Path(directory) / name for name in sorted(names)]


def load(directory):
    """-> config, {name: Tensor} of a whole checkpoint."""
    files = SafeTensors(model_files(directory))
    config = json.loads((Path(directory) / "config.json").read_text())
    return config, {name: files.tensor(name) for name in files.entries}


def write_file(path, tensors, odd=None):
    """The tensors in their given order, without holes. All sizes in bytes are even, so what comes first decides:

    odd = "header": the data area starts at an odd offset. odd = "pad": it starts at an even one with an odd number
    of bytes that nobody reads. Either way every tensor of the model lies at an odd offset of the file."""
    if odd == "pad":
        tensors = {PAD + Path(path).stem: Tensor("U8", np.zeros(5, "u1")), **tensors}
    header, offset = {"__metadata__": {"format": "mlx" if odd else "pt"}}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": list(t.array.shape),
                        "data_offsets": [offset, offset + t.array.nbytes]}
        offset += t.array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8) + b" " * (odd == "header")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(np.ascontiguousarray(t.array).tobytes())


def write_checkpoint(directory, config, tensors, shards=1, odd=None, order="given", seed=0):
    """Writes config.json and the tensors. order = "shuffled" is what MLX writers do; shards take turns, so that
    the parts of one matrix lie in different files."""
    directory = Path(directory)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    if order == "shuffled":
        np.random.default_rng(seed).shuffle(names)
    if shards == 1:
        write_file(directory / "model.safetensors", {n: tensors[n] for n in names}, odd)
        return directory
    files = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    for i, file in enumerate(files):
        write_file(directory / file, {n: tensors[n] for n in names[i::shards]}, odd)
    where = {n: files[i % shards] for i, n in enumerate(names)}
    index = {"metadata": {"total_size": sum(t.array.nbytes for t in tensors.values())}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def even_offsets(directory):
    """Names of tensors that start at an even offset of their file, the pad aside."""
    entries = SafeTensors(model_files(directory)).entries
    return [n for n, e in entries.items() if e[3] % 2 == 0 and not n.startswith(PAD)]
