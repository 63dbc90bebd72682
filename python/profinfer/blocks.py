"""Finds the blocks of a trace, intact or damaged. All input is untrusted."""

import errno
import os
import stat
import struct
from typing import NamedTuple

from .crc32c import crc32c

# The version up to which all records are known. A later minor version is read as far as it is known.
MAJOR, MINOR = 1, 13

FILE_MAGIC = b"\x89PFI\r\n\x1a\n"
BLOCK_MAGIC = b"\xf1PFIblk\xb7"
FILE_HEADER, BLOCK_HEADER = 16, 40
MAX_PAYLOAD = 16 << 20
# Bytes searched for a block at a time.
_PIECE = 256 << 10


class FormatError(Exception):
    """The input is not a trace, or one of a later major version."""


class Damage(NamedTuple):
    """Data that the file lost, or that cannot be read."""

    offset: int
    """First byte affected."""
    bytes: int
    """Bytes affected; 0 if no data in the file was lost."""
    kind: str
    """`file_header`, `skipped`, `torn_tail`, `checksum`, `missing`, `out_of_order`, `newer_block`, `record`,
    `left_out`."""
    text: str
    """The same in words, as `profinfer report` prints it."""

    def __str__(self):
        return self.text


def _damage(offset, size, kind, text):
    if kind not in ("missing", "left_out"):
        text = f"{size} bytes lost at offset {offset}: {text}"
    return Damage(offset, size, kind, text)


class Block(NamedTuple):
    """A block whose header is intact; its payload is checked when it is read."""

    offset: int
    size: int
    seq: int
    first: int
    """The first timestamp."""
    crc: int


class _Header(NamedTuple):
    major: int
    minor: int
    size: int
    seq: int
    first: int
    crc: int


def _header(data, at=0):
    """The block header at `at`, if there is an intact one."""
    if len(data) - at < BLOCK_HEADER or data[at:at + 8] != BLOCK_MAGIC:
        return None
    _, major, minor, size, seq, _, first, crc, own = struct.unpack_from("<8sHHIIIQII", data, at)
    if size > MAX_PAYLOAD or crc32c(bytes(data[at:at + 36])) != own:
        return None
    return _Header(major, minor, size, seq, first, crc)


class Store:
    """The bytes of a trace: of a file, or in memory. A file is read in pieces and never mapped, since it may be cut
    while it is read."""

    def __init__(self, source):
        self._memory = self._file = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._memory = bytes(source)
            self.size = len(self._memory)
            return
        file = open(source, "rb", buffering=0)
        mode = os.fstat(file.fileno())
        if stat.S_ISREG(mode.st_mode):
            self._file, self.size = file, mode.st_size
            return
        # A pipe is read to its end.
        with file:
            self._memory = file.readall()
        self.size = len(self._memory)

    def close(self):
        if self._file:
            self._file.close()

    def read(self, at, size):
        """The bytes from `at` on, `size` or as many as there are."""
        size = max(0, min(size, self.size - at))
        if self._memory is not None:
            return self._memory[at:at + size]
        self._file.seek(at)
        parts = []
        while size:
            part = self._file.read(size)
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def data_from(self, at):
        """The first position from `at` on that is not in a hole of a sparse file; None if there is none."""
        if at >= self.size:
            return None
        if self._file is None or not hasattr(os, "SEEK_DATA"):
            return at
        try:
            found = os.lseek(self._file.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            return None if error.errno == errno.ENXIO else at  # Only a hole is left.
        return found if found < self.size else None


class Scan:
    """One pass over the headers of the blocks: `blocks`, `damage` and `version`."""

    def __init__(self, store):
        self.store, self.blocks, self.damage, self._newer = store, [], [], None
        if store.size == 0:
            raise FormatError("the trace is empty: the recording wrote nothing")
        head = store.read(0, 512)
        start, self.version = self._file_header(head)
        damaged = self.version is None
        if damaged:
            lost = min(store.size, FILE_HEADER)
            self.damage.append(_damage(0, lost, "file_header", "the file header is damaged"))
        self._run(start)
        if not self.blocks and self.version is None:
            if self._newer:
                raise _too_new(*self._newer)
            raise FormatError(f"not a profinfer trace: it looks like {_looks_like(head)}")
        self.version = self.version or (MAJOR, 0)

    def _file_header(self, head):
        if not head.startswith(FILE_MAGIC):
            return 0, None
        if len(head) < FILE_HEADER:
            return FILE_HEADER, None
        major, minor, crc = struct.unpack_from("<HHI", head, 8)
        if crc32c(head[:12]) != crc:
            return FILE_HEADER, None
        if major > MAJOR:
            raise _too_new(major, minor)
        return FILE_HEADER, (major, minor)

    def _at(self, at):
        return _header(self.store.read(at, BLOCK_HEADER))

    def _find(self, at):
        """The position of the next intact block header from `at` on, or None."""
        if self._at(at):
            return at
        while True:
            at = self.store.data_from(at)
            if at is None:
                return None
            piece = self.store.read(at, _PIECE)
            found = piece.find(BLOCK_MAGIC)
            while 0 <= found <= len(piece) - BLOCK_HEADER:
                if _header(piece, found):
                    return at + found
                found = piece.find(BLOCK_MAGIC, found + 1)
            if len(piece) < _PIECE:
                return None
            at += _PIECE - BLOCK_HEADER + 1

    def _run(self, start):
        end_of_file = self.store.size
        # `lost` is where bytes begin that belong to no block.
        at = lost = start
        while True:
            at = self._find(at)
            header = self._at(at) if at is not None else None
            if not header:
                break
            self._skipped(lost, at)
            inside = at + BLOCK_HEADER
            end = inside + header.size
            # What is followed by neither a block nor the end may have lost bytes, which a header inside it shows.
            if end != end_of_file and not self._at(end):
                inner = self._find(inside)
                if inner is not None and inner >= end:
                    inner = None
                if inner is not None or end > end_of_file:
                    lost, at = at, inner if inner is not None else end_of_file
                    continue
            self._accept(at, end - at, header)
            at = lost = end
        self._tail(lost)

    def _skipped(self, start, end):
        # The damaged file header counts its own bytes.
        if self.version is None:
            start = max(start, min(end, FILE_HEADER))
        if start < end:
            self.damage.append(_damage(start, end - start, "skipped", "not a block, skipped to the next one"))

    def _tail(self, start):
        if self.version is None:
            start = max(start, FILE_HEADER)
        if start >= self.store.size:
            return
        rest = self.store.read(start, len(BLOCK_MAGIC))
        # After a block there may be more of it that its header does not count yet.
        torn = self.blocks or BLOCK_MAGIC.startswith(rest)
        kind, text = ("torn_tail", "the file ends inside a block, or before it was complete") if torn else \
            ("skipped", "not a block, skipped to the next one")
        self.damage.append(_damage(start, self.store.size - start, kind, text))

    def _accept(self, at, total, header):
        seq = header.seq
        if header.major > MAJOR:
            self._newer = (header.major, header.minor)
            text = f"block {seq} has the newer format version {header.major}"
            self.damage.append(_damage(at, total, "newer_block", text))
            return
        expected = self.blocks[-1].seq + 1 if self.blocks else 0
        if seq < expected:
            self.damage.append(_damage(at, total, "out_of_order", f"block {seq} is out of order, skipped"))
            return
        if seq > expected:
            which = f"block {expected} is" if seq == expected + 1 else f"blocks {expected} to {seq - 1} are"
            self.damage.append(_damage(at, 0, "missing", f"{which} missing before offset {at}"))
        self.version = max(self.version or (0, 0), (header.major, header.minor))
        self.blocks.append(Block(at, header.size, seq, header.first, header.crc))

    def payload(self, block):
        """The payload of a block and None, or None and what is wrong with it."""
        total = BLOCK_HEADER + block.size
        payload = self.store.read(block.offset + BLOCK_HEADER, block.size)
        if len(payload) < block.size:  # It was complete when the trace was opened.
            text = "the file ends inside a block, or before it was complete"
            return None, _damage(block.offset, total, "torn_tail", text)
        if crc32c(payload) != block.crc:
            text = f"block {block.seq} does not match its checksum"
            return None, _damage(block.offset, total, "checksum", text)
        return payload, None


def bad_record(block, at, size, why):
    """Damage to the record at `at` of a block's payload."""
    text = f"a record of block {block.seq} cannot be decoded: {why}"
    return _damage(block.offset + BLOCK_HEADER + at, size, "record", text)


def left_out(text):
    return _damage(0, 0, "left_out", text)


def _too_new(major, minor):
    return FormatError(f"the trace has format version {major}.{minor}, but this package reads up to {MAJOR}.x: use a "
                       "newer one")


_LOOKS = (
    (b"\x89PFI", "a trace that was changed in transfer (text mode?)"), (b"\x1f\x8b", "gzip data: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first"), (b"\xfd7zXZ", "xz data: unpack it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"), (b"\x7fELF", "a program or library (ELF)"),
    (b"GGUF", "a model file (GGUF)"), (b"PERFILE2", "a perf recording"), (b"{", "JSON text"), (b"[", "JSON text"),
)


def _looks_like(head):
    """What a file is that is no trace."""
    for magic, what in _LOOKS:
        if head.startswith(magic):
            return what
    text = all(byte in b"\t\n\r" or 0x20 <= byte <= 0x7E for byte in head[:512])
    return "text" if text else "some other binary data"
