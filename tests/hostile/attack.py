#!/usr/bin/env python3
"""Attacks of another user on a recording service, repeated until this script is killed.

usage: attack.py NAME DIRECTORY LIBRARY ENGINE [VICTIM]

NAME is a function below. DIRECTORY belongs to the attacker. LIBRARY and ENGINE are the files of an engine, readable by all.
VICTIM is another user's file.
"""

import ctypes
import mmap
import os
import random
import struct
import subprocess
import sys
import time

EXCHANGE = 2
libc = ctypes.CDLL(None, use_errno=True)


def map_to_execute(fd, size):
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)


def sparse(place, *_):
    """Sparse files that look like engines with tables of hundreds of megabytes."""
    strings, symbols = 128 << 20, 192 << 20
    at, end = 1 << 20, (1 << 20) + strings
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 4, 0)
    section = lambda kind, offset, size, link: struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 8, 24)
    table = bytes(64) + section(2, end, symbols, 3) + section(11, end, symbols, 3) + section(3, at, strings, 0)
    maps = []
    for i in range(200):
        fd = os.open(f"{place}/sparse{i}.so", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o700)
        os.ftruncate(fd, end + symbols)
        os.pwrite(fd, head, 0)
        os.pwrite(fd, table, 64)
        os.pwrite(fd, b"\0ggml_op_name\0ggml_get_name\0", end - 64)
        maps.append(map_to_execute(fd, 4096))
        os.close(fd)
    time.sleep(5)


def cut(place, library, *_):
    """A library that is truncated while it is inspected."""
    path = f"{place}/cut{os.getpid()}.so"
    with open(path, "wb") as file, open(library, "rb") as source:
        file.write(source.read())
    fd = os.open(path, os.O_RDWR)
    mapped = map_to_execute(fd, os.fstat(fd).st_size)
    time.sleep(random.uniform(0.005, 0.6))
    os.ftruncate(fd, 4096)
    time.sleep(0.3)
    del mapped
    os.close(fd)
    os.unlink(path)


def pipe(place, library, *_):
    """A library and a named pipe that swap names."""
    path, other = f"{place}/pipe{os.getpid()}.so", f"{place}/pipe{os.getpid()}"
    with open(path, "wb") as file, open(library, "rb") as source:
        file.write(source.read())
    os.mkfifo(other)
    fd = os.open(path, os.O_RDONLY)
    mapped = map_to_execute(fd, os.fstat(fd).st_size)
    end, n = time.monotonic() + 0.8, 0
    while time.monotonic() < end or n % 2 == 0:
        libc.renameat2(-100, path.encode(), -100, other.encode(), EXCHANGE)
        n += 1
    time.sleep(0.5)
    del mapped
    os.close(fd)
    os.unlink(path), os.unlink(other)


def hold(place, library, *_):
    """Processes that map an engine and never use it."""
    for _ in range(16):
        if os.fork() == 0:
            fd = os.open(library, os.O_RDONLY)
            mapped = map_to_execute(fd, os.fstat(fd).st_size)
            time.sleep(12)
            os._exit(mapped.closed)
    for _ in range(16):
        os.wait()


def flood(place, library, engine, *_):
    """Engines that exit immediately."""
    args = [engine, "-n", "2", "--op-ns", "10"]
    running = [subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(5)]
    for process in running:
        process.wait()
    time.sleep(0.05)


def twin(place, library, engine, victim, *_):
    """Maps a private copy of an engine's library next to the shared VICTIM: a second engine that shares a file."""
    own = f"{place}/twin.so"
    with open(own, "wb") as file, open(library, "rb") as source:
        file.write(source.read())
    maps = []
    for path in (own, victim):
        fd = os.open(path, os.O_RDONLY)
        maps.append(map_to_execute(fd, os.fstat(fd).st_size))
        os.close(fd)
    time.sleep(5)


def pointing(place, library, engine, victim):
    """An engine whose backend's function pointer points into another user's file."""
    program = os.path.join(os.path.dirname(place), "pointing-engine/fakellama")
    # The code of a small program is in the middle of its file.
    quarter = os.path.getsize(victim) // 4
    at = f"{victim}:{quarter + random.randrange(quarter):#x}"
    subprocess.run([program, "-t", "1", "-p", "4", "-n", "100", "--op-ns", "300000", "--sleep", "--split", "--vtable", at],
                   check=False)


def main():
    name, *rest = sys.argv[1:]
    attack = {f.__name__: f for f in (sparse, cut, pipe, hold, flood, twin, pointing)}[name]
    while True:
        attack(*rest)


main()
