"""Whatever bytes a file has: a shorter run, or FormatError, in bounded memory."""

import os
import pathlib
import random
import struct
import subprocess
import sys
import unittest

import profinfer
from profinfer.crc32c import crc32c
from writer import file_header, block, header, pair, plan, predicted, run, small, tensor, trace, varint

GOLDEN = sorted((pathlib.Path(__file__).resolve().parents[2] / "tests/golden").glob("*.pfi"))
MUTANTS = int(os.environ.get("PROFINFER_MUTANTS", "300"))


def read_all(data):
    """Reads everything that there is; returns the run, or None if it is no trace."""
    try:
        found = profinfer.open(data)
    except profinfer.FormatError:
        return None
    for table in found.tables().values():
        assert len(table.to_dicts()) == len(table)
        assert all(len(column) == len(table) for column in table.columns.values())
    str(found.damage), str(found.incomplete), str(found.header), str(found.footer), repr(found)
    return found


def mended(data):
    """The same with right checksums, so that changed bytes are read."""
    data, at = bytearray(data), 16
    data[12:16] = struct.pack("<I", crc32c(bytes(data[:12])))
    while at + 40 <= len(data):
        size = struct.unpack_from("<I", data, at + 12)[0]
        if size > len(data) - at - 40:
            break
        struct.pack_into("<I", data, at + 32, crc32c(bytes(data[at + 40:at + 40 + size])))
        struct.pack_into("<I", data, at + 36, crc32c(bytes(data[at:at + 36])))
        at += 40 + size
    return bytes(data)


class Hostile(unittest.TestCase):
    def cut(self, data, sizes):
        whole, ends, at = read_all(data), [], 16
        while at < len(data):
            at += 40 + struct.unpack_from("<I", data, at + 12)[0]
            ends.append(at)
        starts = list(whole.ops["start_ns"])
        for size in sizes:
            found = read_all(data[:size])
            self.assertEqual(found._all.blocks, sum(end <= size for end in ends), size)
            self.assertFalse(found.complete)
            if size not in ends and size > 16:
                self.assertEqual(found.damage[-1].kind, "torn_tail", size)
            # Starts do not depend on what is lost.
            told = list(found.ops["start_ns"])
            self.assertEqual(told, starts[:len(told)])

    def test_cut_at_every_byte(self):
        data = small()
        for size in range(16):
            self.assertIsNone(read_all(data[:size]))
        self.cut(data, range(16, len(data)))

    def test_recordings_cut_anywhere(self):
        for path in GOLDEN:
            data = path.read_bytes()
            self.cut(data, range(16, len(data), 211))

    def test_random_changes(self):
        chance = random.Random(1)
        for _ in range(MUTANTS):
            data = bytearray(chance.choice(GOLDEN).read_bytes())
            for _ in range(chance.choice((1, 1, 2, 5, 30))):
                at = chance.randrange(len(data))
                what = chance.randrange(4)
                if what == 0:
                    data[at] ^= 1 << chance.randrange(8)
                elif what == 1:
                    data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                elif what == 2:
                    del data[at:at + chance.randrange(8)]
                else:
                    data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(8)))
            read_all(bytes(data))
            if len(data) > 56:
                read_all(mended(data))

    def test_random_records(self):
        chance = random.Random(2)
        for _ in range(MUTANTS):
            payload = header() if chance.random() < 0.5 else b""
            for _ in range(chance.randrange(1, 30)):
                body = bytes([chance.randrange(40)]) + bytes(
                    chance.choice((chance.randrange(256), chance.randrange(4), 255)) for _ in range(chance.randrange(40)))
                payload += varint(len(body)) + body
            self.assertIsNotNone(read_all(trace(payload)))

    def test_extreme_numbers(self):
        for t in ((1 << 63) - 1, -(1 << 63), (1 << 62)):
            for rest in (pair((1 << 64) - 2, (1 << 64) - 1) * 3, b"\xff" * 9 + b"\1"):
                for barrier in (0, 1):
                    data = header(mono=0, boot=(1 << 64) - 1) + run(rest, 0xFFFFFFFF, t=t, barrier=barrier)
                    self.assertIsNotNone(read_all(trace(data)))
        for bit in range(15):
            data = {bit: -1, 5: 1}
            self.assertIsNotNone(read_all(trace(header() + b"".join(predicted(kind, data) for kind in (10, 11, 12, 13, 14)))))


# Reads a trace in a process that may use this much memory more than Python itself.
LIMITED = """
import resource, sys
import profinfer
data = open(sys.argv[1], "rb").read()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (int(sys.argv[2]) << 20),) * 2)
run = profinfer.open(data)
run.header, run.damage
for table in (run.calls, run.tensors):
    len(table)
print(sum(1 for _ in zip(range(1000000), run.ops)))
"""


@unittest.skipUnless(sys.platform == "linux", "memory is limited by Linux")
class Memory(unittest.TestCase):
    def read(self, payload, megabytes):
        path = pathlib.Path(self.id() + ".pfi")
        path.write_bytes(file_header() + b"".join(block(payload, seq) for seq in range(1)))
        try:
            subprocess.run([sys.executable, "-c", LIMITED, path, str(megabytes)], check=True, stdout=subprocess.DEVNULL)
        finally:
            path.unlink()

    def test_many_tensors_of_three_bytes(self):
        # Each is the one before with the next number in a long name.
        first = tensor(0, "x" * 240 + "1")
        step = predicted(7, {0: 1, 1: 1})
        self.read(header() + first + step + predicted(7, {}) * (1 << 16), 200)

    def test_many_calls_of_three_bytes(self):
        self.read(header() + predicted(10, {}) * (1 << 16), 200)

    def test_slices_that_claim_to_be_many(self):
        self.read(header() + plan(0, [0] * 9) + b"".join(run(b"\1", 0xFFFFFFFF, barrier=0) for _ in range(1 << 12)), 200)

    def test_lists_that_claim_to_be_long(self):
        liar = b"".join(varint(len(body)) + body for body in (bytes([kind]) + b"\xff\xff\xff\xff\x0f" * 12 for kind in range(40)))
        self.read(header() + liar * 100, 100)


if __name__ == "__main__":
    unittest.main()
