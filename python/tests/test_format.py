"""What docs/FORMAT.md says of damage, of later versions, and of records that cannot be read."""

import os
import pathlib
import re
import tempfile
import threading
import unittest

import profinfer
from profinfer import crc32c, kinds
from profinfer.wire import Malformed, varint
from writer import (Calls, block, cpu_graph, file_header, footer, header, op, pair, plan, predicted, record, run, small, tensor,
                    trace, varint as coded, zigzag)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def kinds_of(damage):
    return [one.kind for one in damage]


class Checksums(unittest.TestCase):
    def test_known_values(self):
        for compute in (crc32c.pure, crc32c.crc32c):
            self.assertEqual(compute(b"123456789"), 0xE3069283)
            self.assertEqual(compute(b""), 0)
            self.assertEqual(compute(bytes(32)), 0x8A9136AA)

    def test_lanes_and_loop_agree(self):
        data = bytes(i * i % 251 for i in range(5000))
        for size in (1023, 1024, 1025, 1151, 1152, 4096, 5000):
            state = 0xFFFFFFFF
            for byte in data[:size]:
                state = state >> 8 ^ crc32c._TABLE[(state ^ byte) & 0xFF]
            self.assertEqual(crc32c.pure(data[:size]), state ^ 0xFFFFFFFF, size)


class Numbers(unittest.TestCase):
    def test_varints(self):
        for value in (0, 1, 127, 128, 300, 1 << 32, (1 << 64) - 1):
            self.assertEqual(varint(coded(value), 0), (value, len(coded(value))))
        for bad in (coded(1 << 64), b"\x80" * 10 + b"\1"):
            with self.assertRaises(Malformed):
                varint(bad, 0)
        with self.assertRaises(IndexError):
            varint(b"\x80", 0)


class Damaged(unittest.TestCase):
    def test_not_a_trace(self):
        for data, what in ((b"", "empty"), (b"GGUF....", "a model file"), (b"hello\n", "text"), (b"\x00\xff" * 30, "binary")):
            with self.assertRaisesRegex(profinfer.FormatError, what):
                profinfer.open(data)

    def test_a_later_major_version(self):
        with self.assertRaisesRegex(profinfer.FormatError, r"version 2\.3"):
            profinfer.open(file_header(2, 3) + block(header()))
        # The file header is lost: the block tells.
        with self.assertRaisesRegex(profinfer.FormatError, r"version 2\.0"):
            profinfer.open(bytes(16) + block(header(), major=2, minor=0))

    def test_the_file_header_is_damaged(self):
        data = bytearray(small())
        data[9] ^= 1
        found = profinfer.open(bytes(data))
        self.assertEqual((kinds_of(found.damage), len(found.ops), found.version), (["file_header"], 3, (1, 7)))

    def test_a_damaged_payload_loses_its_block(self):
        data = bytearray(small())
        data[16 + 40 + 5] ^= 1
        found = profinfer.open(bytes(data))
        self.assertEqual((kinds_of(found.damage), len(found.ops), len(found.cpu_graphs)), (["checksum"], 0, 1))
        self.assertIn("file damaged in 1 place", found.incomplete)
        self.assertFalse(found.complete)

    def test_bytes_between_blocks(self):
        first, second = block(header(), 0), block(header() + footer(), 1)
        found = profinfer.open(file_header() + first + b"noise" + second)
        self.assertEqual([(d.kind, d.offset, d.bytes) for d in found.damage], [("skipped", 16 + len(first), 5)])
        self.assertIsNotNone(found.footer)

    def test_a_block_that_lost_bytes_gives_way_to_the_one_inside_it(self):
        whole = block(header() + bytes(200), 0)
        found = profinfer.open(file_header() + whole[:-120] + block(header() + footer(), 1))
        self.assertEqual(kinds_of(found.damage), ["skipped", "missing"])
        self.assertEqual(str(found.damage[1]), f"block 0 is missing before offset {16 + len(whole) - 120}")

    def test_a_block_may_contain_what_looks_like_one(self):
        inner = block(header(), 7)
        data = file_header() + block(header() + record(99, inner) + footer(), 0)
        found = profinfer.open(data)
        self.assertEqual((found.damage, found.complete), ([], True))

    def test_numbers_of_blocks(self):
        found = profinfer.open(file_header() + block(header(), 0) + block(footer(), 4))
        self.assertEqual(found.damage[0].text, f"blocks 1 to 3 are missing before offset {16 + len(block(header()))}")
        found = profinfer.open(file_header() + block(header(), 3) + block(footer(), 3))
        self.assertEqual((kinds_of(found.damage), found.footer), (["missing", "out_of_order"], None))

    def test_a_block_still_growing(self):
        data = file_header() + block(header(), 0) + b"more bytes of it"
        found = profinfer.open(data)
        self.assertEqual((kinds_of(found.damage), found.header["mono_ns"]), (["torn_tail"], 500))

    def test_padding_means_nothing(self):
        found = profinfer.open(trace(b"\0\0" + header() + b"\0\0\0" + footer()))
        self.assertEqual((found.damage, found.complete), ([], True))

    def test_a_length_beyond_the_block(self):
        found = profinfer.open(trace(header() + coded(1000) + b"abc"))
        self.assertEqual([d.text for d in found.damage], [
            f"5 bytes lost at offset {16 + 40 + len(header())}: a record of block 0 cannot be decoded: its length exceeds the "
            "block"])


class Versions(unittest.TestCase):
    def test_unknown_kinds_are_skipped(self):
        unknown = record(max(kinds.BY_NUMBER) + 1, "text", 12345) + record(1 << 40, 1)
        data = file_header(1, 99) + block(header() + unknown + footer(), minor=99)
        found = profinfer.open(data)
        self.assertEqual((found.damage, found.newer, found.complete), ([], True, True))

    def test_fields_beyond_those_known_are_ignored(self):
        data = trace(header()[:0] + record(21, 7, "name", 99, "more"))
        self.assertEqual(profinfer.open(data).records("Task").to_dicts(), [{"tid": 7, "comm": "name"}])

    def test_missing_fields_are_zero(self):
        found = profinfer.open(trace(record(24, 7, "soc", 3) + record(35, "all") + record(36, 42)))
        self.assertEqual(found.records("Sensor").to_dicts(), [
            {"id": 7, "name": "soc", "kind": "temperature", "path": "", "interval_ns": 0, "cpus": "", "origin": "unknown"}])
        peaks = found.records("Peaks").to_dicts()[0]
        self.assertEqual((peaks["cluster"], peaks["cpus"], peaks["read"], peaks["f32"]), ("all", "", 0, None))
        self.assertEqual(found.records("TargetState").to_dicts()[0]["quota_us"], None)

    def test_bits_of_later_fields(self):
        # Bits 8 and 9 are unknown: one number each is skipped, and the data follows them.
        later = predicted(14, {2: 42, 5: 2, 6: 5, 8: 77, 9: -3}, b"\5\7")
        found = profinfer.open(trace(header() + later + predicted(14, {}, b"\1\1")))
        self.assertEqual([list(found.ops[name]) for name in ("start_ns", "end_ns", "tid")],
                         [[1005, 1010, 1005, 1006], [1010, 1017, 1006, 1007], [42] * 4])

    def test_an_unknown_value_is_reported_and_skipped(self):
        bad, good = record(24, 1, "x", 99), record(24, 2, "y", 0)
        found = profinfer.open(trace(header() + bad + good + footer()))
        self.assertEqual((kinds_of(found.damage), list(found.sensors["name"])), (["record"], ["y"]))

    def test_a_number_out_of_range_is_still_what_the_next_is_predicted_from(self):
        # pid has 33 bits, then 1.
        first = predicted(10, {0: -1, 1: 1 << 32, 3: 1, 5: 10, 6: 20})
        second = predicted(10, {1: 1 - (1 << 32), 5: 100})
        found = profinfer.open(trace(header() + first + second))
        self.assertEqual(kinds_of(found.damage), ["record"])
        self.assertEqual([{key: row[key] for key in ("seq", "pid", "start_ns", "dur_ns", "call")} for row in found.calls],
                         [{"seq": 1, "pid": 1, "start_ns": 1110, "dur_ns": 20, "call": "llama_decode"}])

    def test_times_are_those_of_the_boot_clock(self):
        found = profinfer.open(trace(header(mono=500, boot=10_500) + predicted(10, {5: 1, 6: 2})))
        self.assertEqual(list(found.calls["start_ns"]), [11_001])
        self.assertEqual(list(found.records("Token")["t"]), [1001])


class Slices(unittest.TestCase):
    def ops(self, *payloads):
        found = profinfer.open(trace(*payloads))
        self.assertEqual(found.damage, [])
        return [(row["start_ns"], row["end_ns"], row["wait_ns"]) for row in found.ops]

    def test_an_end_that_was_not_seen(self):
        data = b"\7\0" + coded(50) + pair(10, 5) + b"\7\0" + coded(0)
        graph = cpu_graph(500, 3)
        self.assertEqual(self.ops(header() + run(data, 3), header() + graph),
                         [(1000, 1050, None), (1050, 1060, 5), (1065, 1500, None)])
        # Without the graph's record the last end is not known.
        self.assertEqual(self.ops(header() + run(data, 3))[2], (1065, None, None))

    def test_records_that_join(self):
        one, two = run(pair(10, 0), 1), predicted(14, {4: 1, 6: 40}, pair(20, 0))
        self.assertEqual(self.ops(header() + one + two), [(1000, 1010, 30), (1040, 1060, None)])
        lost = predicted(14, {4: 2, 6: 40}, pair(20, 0))
        self.assertEqual(self.ops(header() + one + lost), [(1000, 1010, None), (1040, 1060, None)])

    def test_without_a_barrier(self):
        self.assertEqual(self.ops(header() + run(b"\5\7", 2, barrier=0)), [(1000, 1005, None), (1005, 1012, None)])
        self.assertEqual(self.ops(header() + run(b"\5\0", 2, barrier=0)), [(1000, 1005, None), (1005, None, None)])

    def test_no_end_of_a_graph_that_was_cut(self):
        for cut, end in ((0, 1500), (1, None)):
            graph = Calls().cpu_graph(0, 0, 0, 1000, 500, 1, 2, cut=cut)
            self.assertEqual(self.ops(header() + run(b"\5\0", 2, barrier=0), header() + graph)[1], (1005, end, None))

    def test_fewer_slices_than_claimed(self):
        # The last one is not the record's last, so that a length of 0 is its length.
        self.assertEqual(self.ops(header() + run(b"\5\0", 3, barrier=0)), [(1000, 1005, None), (1005, 1005, None)])
        self.assertEqual(self.ops(header() + run(pair(5, 7), 3)), [(1000, 1005, 7)])

    def test_positions_outside_the_plan(self):
        start = header() + op(1, "ADD") + tensor(0, "x") + plan(0, [0])
        found = profinfer.open(trace(start + run(pair(1, 1) * 2, 2)))
        self.assertEqual([(row["op"], row["layer"], row["position"]) for row in found.ops],
                         [("ADD", None, 0), (None, None, 1)])

    def test_cpus(self):
        data = coded(3) + coded(15) + coded(2) + coded(100) + coded(0)
        cpus = record(37, 42, zigzag(5), len(data), data)
        found = profinfer.open(trace(header() + run(pair(9, 1) * 12, 12) + cpus))
        # From 1005 on CPU 2, from 1020 on CPU 1, from 1120 on unknown.
        told = [row["cpu"] for row in found.ops]
        self.assertEqual(told, [None, 2] + [1] * 10)


class Tensors(unittest.TestCase):
    def names(self, payload):
        found = profinfer.open(trace(header() + payload))
        return kinds_of(found.damage), list(found.tensors["name"])

    def test_references_reach_256_records_back(self):
        # Each takes the "x" of the one before it.
        many = tensor(0, "x0") + b"".join(predicted(7, {0: 1 if i == 1 else 0, 2: 2}, b"%d" % i) for i in range(1, 1500))
        damage, names = self.names(many + predicted(7, {0: 255}))
        self.assertEqual((damage, len(names), names[-1]), ([], 1501, f"x{1500 - 256}"))
        # Also past the point at which the reader forgets older ones.
        for n in (1024, 1025, 1279):
            many_of = tensor(0, "x0") + b"".join(predicted(7, {0: 1 if i == 1 else 0, 2: 2}, b"%d" % i) for i in range(1, n))
            self.assertEqual(self.names(many_of + predicted(7, {0: 255}))[1][-1], f"x{n - 256}")
        damage, names = self.names(many + predicted(7, {0: 256}))
        self.assertEqual((damage, len(names)), (["record"], 1500))

    def test_numbers_in_names(self):
        # Like the one before, with its number moved.
        for name, shift, moved in (("a9b", 1, "a10b"), ("a9", -10, "a9"), ("a0", 5, "a5"), ("a05", 1, "a05"), ("ab", 1, "ab"),
                                   ("a1234567890", 1, "a1234567890"), ("9" * 9, 1, "1" + "0" * 9), ("x" * 254 + "9", 1, None)):
            damage, names = self.names(tensor(0, name) + predicted(7, {0: 1, 1: shift, 17: 0}))
            self.assertEqual((damage, names[1]), ([], moved or name), name)

    def test_names_that_cannot_be(self):
        for name in (b"\xff", b"x" * 256):
            self.assertEqual(self.names(predicted(7, {2: 1, 19: 1}, name)), (["record"], []))
        self.assertEqual(self.names(tensor(0, "abc") + predicted(7, {0: 1, 2: 5}, b"x"))[0], ["record"])

    def test_a_tensor_keeps_its_meaning(self):
        again = tensor(0, "x") + predicted(7, {2: 1, 17: -1}, b"y")
        self.assertEqual(self.names(again), ([], ["x"]))
        start = header() + op(1, "ADD") + tensor(0, "x")
        found = profinfer.open(trace(start + plan(0, [0]) + plan(0, [7]) + run(pair(1, 1), 1)))
        self.assertEqual(list(found.ops["name"]), ["x"])


class Sources(unittest.TestCase):
    def test_a_path_bytes_and_a_pipe(self):
        with tempfile.TemporaryDirectory() as place:
            path = pathlib.Path(place) / "run.pfi"
            path.write_bytes(small())
            fifo = os.path.join(place, "pipe")
            os.mkfifo(fifo)
            feed = threading.Thread(target=lambda: pathlib.Path(fifo).write_bytes(small()))
            feed.start()
            told = [profinfer.open(source).ops.to_dicts() for source in (path, str(path), small(), fifo)]
            feed.join()
            self.assertTrue(told[0] and all(one == told[0] for one in told))
            with self.assertRaises(FileNotFoundError):
                profinfer.open(path.with_name("none.pfi"))

    def test_a_file_that_shrinks_loses_blocks(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(small())
            file.flush()
            found = profinfer.open(file.name)
            os.truncate(file.name, 70)
            self.assertEqual((kinds_of(found.damage), len(found.ops)), (["torn_tail", "torn_tail"], 0))

    def test_a_sparse_file_is_not_read(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(small())
            file.flush()
            os.truncate(file.name, 1 << 40)
            found = profinfer.open(file.name)
            self.assertEqual((kinds_of(found.damage), len(found.ops)), (["torn_tail"], 3))


class Page(unittest.TestCase):
    def test_versions(self):
        told = re.search(r"version (\d+)\.(\d+)", (ROOT / "docs/FORMAT.md").read_text())
        self.assertEqual((profinfer.MAJOR, profinfer.MINOR), (int(told[1]), int(told[2])))
        self.assertIn(f'\nversion = "{profinfer.__version__}"\n', (ROOT / "Cargo.toml").read_text())

    def test_kinds(self):
        page = (ROOT / "docs/FORMAT.md").read_text()
        rows = [line.split("|")[1:4] for line in page.splitlines() if re.match(r"\| \d+ \| [A-Z]", line)]
        told = {int(number): (name.strip(), fields) for number, name, fields in rows}
        self.assertEqual({number: name for number, (name, _) in told.items()},
                         {**{kind.number: kind.name for kind in kinds.BY_NUMBER.values()}, kinds.TENSOR: "Tensor"})
        for number, (_, fields) in told.items():
            kind = kinds.BY_NUMBER.get(number)
            if isinstance(kind, kinds.Plain):
                self.assertEqual(fields_of(fields), list(kind.fields), kind.name)


class Records(unittest.TestCase):
    def test_later_records_replace_those_with_their_key(self):
        found = profinfer.open(trace(header() + record(1, 42, 0, "a", "") + record(1, 43, 0, "b", ""),
                                     header() + record(1, 42, 0, "c", "")))
        self.assertEqual(list(found.records("Process")["exe"]), ["c", "b"])

    def test_names_of_threads_apply_to_what_follows(self):
        away = record(20, 42, 43, zigzag(1), 9, b"\0", b"\1", 0, 0, 0, 0, 7, 0, 0, b"\0")
        found = profinfer.open(trace(record(21, 7, "one") + away + record(21, 7, "two") + away))
        self.assertEqual(list(found.offcpu["by_name"]), ["one", "two"])

    def test_an_unknown_kind_says_what_there_is(self):
        with self.assertRaisesRegex(KeyError, "Peaks"):
            profinfer.open(small()).records("Peak")


def fields_of(cell):
    """The names of the fields of a row of the page."""
    depth, out, part = 0, [], ""
    for c in cell.strip() + ",":
        if c == "," and not depth:
            out.append(part.split()[0])
            part = ""
        else:
            depth += {"(": 1, ")": -1}.get(c, 0)
            part += c
    return out


if __name__ == "__main__":
    unittest.main()
