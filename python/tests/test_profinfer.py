"""The package has the figures of `profinfer report --json` and `profinfer export --csv ops`.

$PROFINFER is the program, $PROFINFER_TRACES a directory with traces in addition to the golden ones."""

import csv
import functools
import io
import json
import os
import struct
import subprocess
import tempfile
import unittest
from collections import Counter, defaultdict

import profinfer
from profinfer.crc32c import crc32c
from test_counts import traces
from writer import Calls, footer, header, op, pair, plan, predicted, record, tensor, text, trace, varint, zigzag

PROGRAM = os.environ.get("PROFINFER")


def output(*args):
    done = subprocess.run([PROGRAM, *args], capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr.decode())
    return done.stdout.decode()


def cell(value):
    return "" if value is None else str(value)


def for_each_trace(test):
    @functools.wraps(test)
    def run(self):
        for path in traces():
            with self.subTest(path=path.name):
                test(self, str(path), profinfer.open(path))
    return run


def odd():
    """Traces of what a recorder sees seldom."""
    ops = op(1, "MUL_MAT") + op(2, "NONE") + tensor(0, "Qcur-3") + plan(0, [0, 0, 0])
    three, start = pair(100, 10) + pair(200, 20) + pair(300, 0), header() + ops
    found = {}
    # The batch's width is known, that of the graphs is not.
    c = Calls()
    found["width of a batch"] = c.token(0, 1000, 900, 1 + 5) + c.graph(0, 1, 1010, 800, 0)
    # The first graph of the CPU says the width of the scheduler's.
    c = Calls()
    found["width of graphs"] = c.token(0, 1000, 900, 0) + c.graph(0, 1, 1010, 800, 0) + c.cpu_graph(
        0, 1, 0, 1100, 10, 7, 0, plan_=0) + c.cpu_graph(1, 1, 0, 1050, 10, 1, 0, plan_=0)
    # Graphs of no call: one within a call's time, one after it, one on another thread.
    c = Calls()
    found["graphs of no call"] = c.token(0, 1000, 900, 2) + c.graph(0, 0, 1010, 80, 1) + c.graph(1, 0, 1950, 80, 3) + c.graph(
        2, 0, 1010, 80, 1, tid=43) + c.cpu_graph(0, 0, 0, 1200, 10, 2, 0, plan_=0) + c.cpu_graph(
        1, 0, 0, 1901, 10, 4, 0, plan_=0) + c.cpu_graph(2, 0, 0, 1902, 10, 0, 0, plan_=0)
    # The level changes: graphs that were recorded in part count nowhere.
    c = Calls()
    found["levels"] = c.slices(0, three, 3, 1000) + c.slices(1, three, 3, 3000) + c.cpu_graph(
        0, 0, 0, 1000, 700, 1, 3) + c.cpu_graph(1, 0, 0, 3000, 700, 1, 3, cut=1) + record(
        26, zigzag(5), 2, 1, b"\0\0", "")
    # An op of another thread that takes longer than its graph, and graphs with fewer and more hits than expected.
    c = Calls()
    found["long op"] = c.slices(0, three, 3, 1000) + c.slices(0, pair(9000, 0), 1, 1000, ith=1) + c.cpu_graph(
        0, 0, 0, 1000, 700, 1, 4, threads=2)
    c = Calls()
    found["hits"] = c.slices(0, three, 3, 1000) + c.record("CpuGraph", 0, 0, 0, 42, 42, 1, 3, 1, 1, 1000, 700, 1 + 4, 3, 1, 0)
    c = Calls()
    found["more hits"] = c.slices(0, three, 3, 1000) + c.record(
        "CpuGraph", 0, 0, 0, 42, 42, 1, 3, 1, 1, 1000, 700, 1 + 2, 3, 1, 0) + c.cpu_graph(1, 0, 0, 3000, 5, 1, 3)
    # Its record was lost.
    c = Calls()
    found["no graph"] = c.slices(5, three, 3, 1000) + c.slices(5, three, 3, 1000, ith=1) + c.cpu_graph(0, 0, 0, 1, 2, 1, 0, plan_=0)
    # Not checked, and not within their call.
    c = Calls()
    found["unchecked"] = c.token(0, 1000, 900, 2) + c.graph(0, 1, 990, 800, 1) + c.split(0, 1, 0, 1000, 950) + c.record(
        "CpuGraph", 0, 1, 1, 42, 42, 1, 3, 1, 1, 1000, 70, 0, 0, 1, 0)
    # A device whose end was not seen, by the record and by an old file's missing field; calls without graphs.
    c, gpu = Calls(), record(9, 1, bytes(range(16)), "Vulkan") + record(9, 0, bytes(16), "CPU")
    found["device"] = gpu + c.token(0, 1000, 900, 2, device=1) + c.token(1, 2000, 900, 2, device=102) + c.token(
        2, 3000, 900, 2) + c.token(3, 4000, 900, 3, cut=1) + c.graph(0, 3, 3010, 800, 1) + c.split(
        0, 1, 1, 3020, 700) + c.split(1, 1, 0, 3720, 10) + c.token(4, 5000, 900, 2) + c.graph(1, 5, 5010, 800, 1) + c.split(
        2, 2, 1, 5020, 700, device=2 + 90) + c.token(5, 6000, 900, 2, cut=1, device=1) + record(15, 0, "cpu-graph", "x", 0, b"\0", 0, "silent")
    # An unnamed node with two weights: it is named by the first.
    # Ids count on from the tensor that each trace begins with.
    weights = tensor(0, "blk.3.attn_q.weight", 2) + predicted(7, {0: 1, 2: 1, 17: 0}, b"blk.4.attn_k.weight")
    node = predicted(7, {2: 1, 6: -1, 13: 2, 17: 0, 4: 2, 5: 1}, b"node_57")
    c = Calls()
    found["weights"] = weights + node + plan(9, [3]) + c.slices(
        0, pair(5, 0), 1, 1000, plan_=9) + c.cpu_graph(0, 0, 0, 1000, 10, 1, 1, plan_=1 + 9)
    lost = varint(2) + text("op") + varint(10) + varint(7) + varint(3) + text("tensor") + varint(10) + varint(7) + varint(1)
    out = {what: trace(start + records + footer()) for what, records in found.items()}
    out["losses"] = trace(start + footer(lost))
    out["small loss"] = trace(start + footer(varint(1) + text("op") + varint(10 ** 6) + varint(10 ** 6 - 1) + varint(1)))
    out["level token"] = trace(header(level=0) + Calls().token(0, 1000, 900, 2) + footer())
    out["a continued file"] = trace(header(mono=2000, boot=2000) + Calls().token(0, 1000, 900, 2) + footer())
    out["no header"] = trace(ops + Calls().token(0, 1000, 900, 2) + footer())
    return out


def damaged(data):
    """Copies of a trace with damage of each kind."""
    at, blocks = 16, []
    while at < len(data):
        size = 40 + struct.unpack_from("<I", data, at + 12)[0]
        blocks.append(data[at:at + size])
        at += size
    head, first = data[:16], blocks[0]
    changed = bytearray(first)
    changed[60] ^= 1
    later = struct.pack("<H", 2).join((first[:8], first[10:36]))
    later += struct.pack("<I", crc32c(later)) + first[40:]
    cut_record = bytearray(first)
    # The length of the first record: beyond the block.
    cut_record[40:42] = b"\xff\x7f"
    struct.pack_into("<I", cut_record, 32, crc32c(bytes(cut_record[40:])))
    struct.pack_into("<I", cut_record, 36, crc32c(bytes(cut_record[:36])))
    rest = b"".join(blocks[1:])
    return {
        "cut": data[:-7], "without its end": data[:-len(blocks[-1])], "header": b"\x89PFI" + bytes(12) + first + rest,
        "no header": first + rest, "checksum": head + bytes(changed) + rest, "missing": head + rest,
        "noise": head + first + b"noise" + rest, "twice": head + first + first + rest, "short": head + first[:-9] + rest,
        "newer block": head + later + rest, "record": head + bytes(cut_record) + rest, "inside": head + first[:-1] + first + rest,
    }


@unittest.skipUnless(PROGRAM, "no program to compare with: PROFINFER is not set")
class SameFigures(unittest.TestCase):
    def reports(self, path):
        """The reports of all processes and contexts; the quality is that of the whole recording."""
        report = json.loads(output("report", "--json", "--all", path))
        return report, [report] + report.get("others", [])

    @for_each_trace
    def test_quality(self, path, run):
        quality = self.reports(path)[0]["quality"]
        self.assertEqual("; ".join(run.incomplete) or "complete", quality["verdict"])
        self.assertEqual(run.complete, quality["complete"])
        self.assertEqual([str(damage) for damage in run.damage], quality["damage"])
        self.assertEqual(run.footer and run.footer["end"], quality["end"])

    def test_odd_traces(self):
        for what, data in odd().items():
            with self.subTest(trace=what), tempfile.NamedTemporaryFile(suffix=".pfi") as file:
                file.write(data)
                file.flush()
                run = profinfer.open(file.name)
                self.assertEqual(run.damage, [])
                tests = [self.test_quality, self.test_rows_of_ops, self.test_calls, self.test_threads]
                # The report leaves out what was recorded in part.
                tests += [] if what == "levels" else [self.test_times_by_op]
                for test in tests:
                    test.__wrapped__(self, file.name, run)

    def test_damage(self):
        kinds = set()
        for path in traces()[-3:] + traces()[:1]:
            for what, data in damaged(path.read_bytes()).items():
                with self.subTest(path=path.name, damage=what), tempfile.NamedTemporaryFile(suffix=".pfi") as file:
                    file.write(data)
                    file.flush()
                    run = profinfer.open(file.name)
                    self.test_quality.__wrapped__(self, file.name, run)
                    self.test_rows_of_ops.__wrapped__(self, file.name, run)
                    self.assertFalse(run.complete)
                    kinds |= {damage.kind for damage in run.damage}
        self.assertEqual(kinds, {"file_header", "skipped", "torn_tail", "checksum", "missing", "out_of_order", "newer_block",
                                 "record"})

    @for_each_trace
    def test_rows_of_ops(self, path, run):
        if not len(run.ops):
            return
        rows = list(csv.DictReader(io.StringIO(output("export", "--csv", "ops", path), newline="")))
        names = [name for name in rows[0] if name in run.ops.names]
        self.assertEqual(set(rows[0]) - set(names), {"context", "bytes", "flops"})
        self.assertEqual([{name: cell(row[name]) for name in names} for row in run.ops],
                         [{name: row[name] for name in names} for row in rows])

    @for_each_trace
    def test_times_by_op(self, path, run):
        told = Counter()
        for report in self.reports(path)[1]:
            for phase in report["phases"]:
                for row in phase["by_op"]:
                    if row["name"] not in ("(barrier wait)", "(gaps)"):
                        told[phase["phase"], row["name"], "calls"] += row["calls"]
                        told[phase["phase"], row["name"], "total_ns"] += row["total_ns"]
                        told[phase["phase"], row["name"], "all_threads_ns"] += row["all_threads_ns"]
        seen = Counter()
        for row in run.ops:
            key = (row["phase"] or "unknown", row["op"] or "(structure not recorded)")
            time = 0 if row["end_ns"] is None else row["end_ns"] - row["start_ns"]
            seen[(*key, "all_threads_ns")] += time
            if row["thread"] == 0:
                seen[(*key, "calls")] += 1
                seen[(*key, "total_ns")] += time
        self.assertEqual(+seen, +told)

    @for_each_trace
    def test_calls(self, path, run):
        told, tokens = {}, Counter()
        for report in self.reports(path)[1]:
            for phase in report["phases"]:
                tokens[phase["phase"]] += phase["calls"]
                for row in phase["by_token"]:
                    told[row["pid"], row["seq"]] = (phase["phase"], row["tokens"], row["dur_ns"], row["graphs"], row["cut"])
        seen = {(c["pid"], c["seq"]): (c["phase"] or "unknown", c["tokens"], c["dur_ns"], c["graphs"], c["cut"])
                for c in run.calls}
        self.assertEqual(seen, told)
        self.assertEqual(Counter(c["phase"] or "unknown" for c in run.calls), +tokens)

    @for_each_trace
    def test_threads(self, path, run):
        told, waits = defaultdict(Counter), set()
        for report in self.reports(path)[1]:
            for phase in report["phases"]:
                for row in phase["by_thread"]:
                    key = (phase["phase"], row["ith"])
                    told[key].update(slices=row["slices"], op_ns=row["op_ns"], wait_ns=row["wait_ns"] or 0)
                    waits |= {key} if row["wait_ns"] is not None else set()
        seen = {(t["phase"] or "unknown", t["ith"]):
                {"slices": t["slices"], "op_ns": t["op_ns"], "wait_ns": t["wait_ns"] or 0} for t in run.threads}
        self.assertEqual(seen, {key: dict(sums) for key, sums in told.items()})
        self.assertEqual({(t["phase"] or "unknown", t["ith"]) for t in run.threads if t["wait_ns"] is not None}, waits)

    @for_each_trace
    def test_graphs_and_machine(self, path, run):
        report, all_reports = self.reports(path)
        hits = report["quality"]["hits"]
        self.assertEqual((len(run.cpu_graphs), len(run.ops)), (hits["graphs"], hits["slices"]))
        told = sum(phase["graph_ns"] for one in all_reports for phase in one["phases"])
        self.assertEqual(sum(graph["dur_ns"] for graph in run.cpu_graphs), told)
        splits = Counter()
        for one in all_reports:
            for phase in one["phases"]:
                for row in phase["splits"]:
                    splits[row["backend"]] += row["total_ns"]
        seen = Counter()
        for split in run.splits:
            seen[split["backend"]] += split["dur_ns"]
        self.assertEqual(+seen, +splits)
        if run.header:
            names = ("tool", "kernel", "arch", "host", "cpu_model", "level", "structure", "source", "transport")
            self.assertEqual({name: run.header[name] for name in names}, {name: report["run"][name] for name in names})

    @for_each_trace
    def test_what_explains_times(self, path, run):
        report = self.reports(path)[0]
        facts = report.get("counters") or []
        self.assertEqual([c["name"] for c in run.counters], [fact["name"] for fact in facts])
        choices = 0
        for one in self.reports(path)[1]:
            found = one.get("experts") or {"layers": [], "out_of_range": 0}
            choices += found["out_of_range"] + sum(sum(layer["decode"] + layer["prefill"]) for layer in found["layers"])
        self.assertEqual(sum(row["expert"] is not None for row in run.experts), choices)

    @for_each_trace
    def test_cpus(self, path, run):
        told = Counter()
        for report in self.reports(path)[1]:
            for phase in report["phases"]:
                for row in (phase.get("by_cpu") or {"cpus": []})["cpus"]:
                    told[phase["phase"], row["cpu"], "ops"] += row["ops"]
                    told[phase["phase"], row["cpu"], "op_ns"] += row["op_ns"]
        seen = Counter()
        for row in run.ops:
            key = (row["phase"] or "unknown", row["cpu"])
            seen[(*key, "ops")] += 1
            seen[(*key, "op_ns")] += 0 if row["end_ns"] is None else row["end_ns"] - row["start_ns"]
        # A phase without any known CPU has no table.
        known = {phase for phase, cpu, _ in seen if cpu is not None}
        self.assertEqual({key: n for key, n in seen.items() if key[0] in known and n}, dict(+told))


if __name__ == "__main__":
    unittest.main()
