#!/usr/bin/env python3
"""Counts the instructions of the innermost loops of the AArch64 kernels in a built program.

usage: listing.py PROGRAM [--limit]

For each kernel of a full tile (8 tokens by 8 rows): what the innermost loop that multiplies consists of, for each 64
multiply-accumulates. Q4_K and Q6_K have a scale for every 32 and 16 columns, and their innermost loop has the scaling in
it: it is in a column of its own, and the comparison is without it. Their panels are widened once for all tokens, outside
these loops. The reference is the innermost loop of the published W4A8 design for these processors: 16 smmla for 8 register loads, 3.0
instructions for 64 multiply-accumulates. --limit fails where an smmla kernel of 4 to 8 bits is more than 10 % above. What
whole products take, with all scaling, is counted by benches/arm-instructions.sh.
"""
import re
import shutil
import subprocess
import sys

YARDSTICK = 24 / 8
LIMIT = 1.1 * YARDSTICK
# Multiply-accumulates per instruction.
MACS = {"smmla": 32, "sdot": 16, "smull": 8, "smull2": 8}
WIDEN = {"and", "ushr", "shl", "sli", "sri", "sshr", "usra"}
# Sums that start from zero, and products with scales.
SCALING = {"movi", "mla"}
LIMITED = ("Q4_0", "Q4_1", "Q8_0", "Q4K", "Q6K")
NAME = re.compile(r"arm::tile::dot::<.*machine::(\w+), .*types::(\w+), 16, false|arm::wide::dot::<.*machine::(\w+), .*types::(\w+)>")
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")


def disassembler():
    for tool in ("llvm-objdump", "llvm-objdump-14", "aarch64-linux-gnu-objdump"):
        if shutil.which(tool):
            return [tool] + (["--mattr=+i8mm,+dotprod"] if tool.startswith("llvm") else [])
    sys.exit("listing.py: no llvm-objdump")


def functions(program):
    """(machine, type, [(address, mnemonic, operands)]) of each kernel that computes a full tile."""
    command = disassembler() + ["-d", "-C", "--no-show-raw-insn", program]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for part in text.split("\n\n"):
        head, _, body = part.partition("\n")
        name = NAME.search(head)
        if name and head.endswith(":"):
            lines = [m for m in map(LINE.match, body.splitlines()) if m]
            yield name[1] or name[3], name[2] or name[4], [(int(m[1], 16), m[2], m[3]) for m in lines]


def loops(code):
    """Bodies between a backward branch and its target, smallest first."""
    at = {address: i for i, (address, _, _) in enumerate(code)}
    found = []
    for i, (address, mnemonic, operands) in enumerate(code):
        aim = re.search(r"(?:0x)?([0-9a-f]+)(?: <|$)", operands)
        if mnemonic.startswith(("b.", "cb", "tb")) and aim and int(aim[1], 16) <= address:
            start = at.get(int(aim[1], 16))
            if start is not None:
                found.append(code[start : i + 1])
    return sorted(found, key=len)


def count(body):
    """Instruction counts by kind: products, loads (instructions and registers), widening, scaling, others; and
    multiply-accumulates."""
    kinds = dict(products=0, loads=0, registers=0, widening=0, scaling=0, others=0, macs=0)
    for _, mnemonic, _ in body:
        if mnemonic in MACS:
            kinds["products"] += 1
            kinds["macs"] += MACS[mnemonic]
        elif mnemonic.startswith("ld"):
            kinds["loads"] += 1
            kinds["registers"] += 2 if mnemonic == "ldp" else 1
        elif mnemonic in WIDEN:
            kinds["widening"] += 1
        elif mnemonic in SCALING:
            kinds["scaling"] += 1
        else:
            kinds["others"] += 1
    return kinds


def main():
    program, limit = sys.argv[1], "--limit" in sys.argv[2:]
    rows, beyond = [], []
    for machine, kind, code in functions(program):
        inner = next((loop for loop in loops(code) if count(loop)["macs"]), None)
        if inner is None:
            sys.exit(f"listing.py: no loop that multiplies in the kernel of {machine}, {kind}")
        c = count(inner)
        total = c["products"] + c["loads"] + c["widening"] + c["others"]
        each = total * 64 / c["macs"]
        rows.append((machine, kind, c, each))
        if machine == "I8mm" and kind in LIMITED and each > LIMIT:
            beyond.append(f"{kind}: {each:.2f}")
    if not {("I8mm", kind) for kind in LIMITED} <= {(m, k) for m, k, _, _ in rows}:
        sys.exit("listing.py: not all smmla kernels were found")
    print("innermost loops, 8 tokens by 8 rows      products  loads (registers)  widening  others  for 64 products  scaling")
    for machine, kind, c, each in sorted(rows, key=lambda r: r[:2]):
        print(
            f"  {machine:6} {kind:6} {c['macs']:6} multiply-adds   {c['products']:8}  {c['loads']:5} ({c['registers']:2})"
            f"         {c['widening']:8}  {c['others']:6}   {each:15.2f}  {c['scaling'] or '':>7}"
        )
    print(f"yardstick: 16 smmla and 8 loads for 512, {YARDSTICK:.2f} for 64")
    if limit and beyond:
        sys.exit(f"listing.py: more than {LIMIT:.2f} instructions for 64 multiply-accumulates: {', '.join(beyond)}")


main()
