"""Writes a low-rank adapter of rank 1, with random values, for all products of a llama model's layers.

usage: adapter.py MODEL.gguf OUT.gguf
"""

import random
import struct
import sys

# Sizes of GGUF's value types (ggml-org/ggml, docs/gguf.md); 8 is a string, 9 an array.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGN = 32
PRODUCTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Head:
    """The head of a GGUF file."""

    def __init__(self, file):
        self.file = file

    def number(self, form="<Q"):
        return struct.unpack(form, self.file.read(struct.calcsize(form)))[0]

    def text(self):
        return self.file.read(self.number()).decode()

    def skip(self, kind):
        if kind == 8:
            self.file.seek(self.number(), 1)
        elif kind == 9:
            inner = self.number("<I")
            for _ in range(self.number()):
                self.skip(inner)
        else:
            self.file.seek(SIZES[kind], 1)

    def tensors(self):
        """Name and dimensions of each tensor."""
        if self.file.read(4) != b"GGUF":
            raise SystemExit("not a GGUF file")
        self.number("<I")
        count, keys = self.number(), self.number()
        for _ in range(keys):
            self.text()
            self.skip(self.number("<I"))
        for _ in range(count):
            name = self.text()
            dims = [self.number() for _ in range(self.number("<I"))]
            self.file.seek(12, 1)
            yield name, dims


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def main(model, out):
    with open(model, "rb") as f:
        found = [(n, d) for n, d in Head(f).tensors() if n.endswith(".weight") and n.split(".")[-2] in PRODUCTS]
    parts = [(f"{n}.lora_{ab}", dims) for n, (wide, high) in found for ab, dims in (("a", [wide, 1]), ("b", [1, high]))]
    keys = [("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(parts), len(keys) + 1)
    head += b"".join(text(k) + struct.pack("<I", 8) + text(v) for k, v in keys)
    head += text("adapter.lora.alpha") + struct.pack("<If", 6, 1.0)
    at, rng = 0, random.Random(3)
    for name, dims in parts:
        head += text(name) + struct.pack("<IQQIQ", 2, *dims, 0, at)
        at += -(-4 * dims[0] * dims[1] // ALIGN) * ALIGN
    with open(out, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGN))
        for _, dims in parts:
            n = dims[0] * dims[1]
            values = struct.pack(f"<{n}f", *(rng.uniform(-1e-3, 1e-3) for _ in range(n)))
            f.write(values + b"\0" * (-len(values) % ALIGN))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
