#!/usr/bin/env python3
"""Checks the architecture: imports between directories, no import cycle of more than four files, and who starts programs.

Cargo rejects upward imports between crates; the directories of src/ are one crate, so their imports are checked here. Tests
inside a file may import anything. `--figures` prints the cycles."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Crates, and the workspace crates that each may depend on.
CRATES = {
    "common": set(),
    "pfi": {"common"},
    "kernels": set(),
    "inside": set(),
    "tune": {"common"},
    "ggml": {"common", "kernels"},
    "runner": {"common", "ggml", "kernels"},
    "analysis": {"common", "ggml", "pfi"},
    "dataset": {"analysis", "common", "ggml", "pfi"},
    "tune": {"common"},
    "render": {"analysis", "common", "pfi", "tune"},
}
# Directories of src/, lowest first, and the crates that each may use. A directory imports only earlier ones.
FOLDERS = {
    "host": {"common", "pfi"},
    "engine": {"common"},
    "capture": {"common", "inside", "pfi"},
    "recorder": {"common", "ggml", "pfi"},
    "daemon": {"common", "ggml", "pfi"},
    "tuner": {"analysis", "common", "pfi", "tune"},
    "cli": set(CRATES),
}
# Files of src/ that start programs. Under sudo a program that the user names must not run as root: what is started as the
# user calls host::child::run_as, and every other file starts only programs that root trusts already.
USERS = "a program of the user's"
STARTS = {
    "cli/html.rs": "a browser, never under sudo",
    "cli/remote/client.rs": "ssh and hdc, as the caller of profinfer",
    "cli/selftest.rs": "this program, and its ggml-runner",
    "capture/inside/measure.rs": "true, to measure a hit",
    "daemon/hook.rs": "the configuration's program, as the configuration says",
    "daemon/idle_peaks.rs": "this program",
    "host/target.rs": USERS,
    "tuner/help.rs": USERS,
    "tuner/trial.rs": "this program",
}
# Maximum number of files in an import cycle.
CIRCLE = 4
# A path, or the start of a group of paths.
PATH = re.compile(r"(?<![\w:$])(\w+)(?=::)((?:::\w+)*)(::\{)?")


def code_of(text):
    """The text without comments, visibilities and its test module, with the same line numbers."""
    text = re.sub(r"//[^\n]*|pub\(in [^)]*\)", "", text)
    return re.split(r"^#\[cfg\(test\)\]\nmod \w+ \{", text, maxsplit=1, flags=re.MULTILINE)[0]


def leaves(prefix, body):
    """All paths of a group `{a, b::{c, d}}`, without its braces."""
    depth, part = 0, ""
    for c in body + ",":
        if c == "," and depth == 0:
            part = re.sub(r"\s+as\s+\w+$", "", part.strip())
            group = re.fullmatch(r"((?:\w+::)*)\{(.*)\}", part, re.DOTALL)
            if group:
                yield from leaves(prefix + [p for p in group[1].split("::") if p], group[2])
            elif part:
                yield prefix + [p for p in part.split("::") if p != "self"]
            part = ""
        else:
            depth += {"{": 1, "}": -1}.get(c, 0)
            part += c


def paths(code):
    """(line number, path as a list) of everything imported or referenced by path."""
    for found in PATH.finditer(code):
        line = code.count("\n", 0, found.start()) + 1
        path = [found[1], *[p for p in found[2].split("::") if p]]
        if not found[3]:
            yield line, path
            continue
        end, depth = found.end(), 1
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        for leaf in leaves(path, code[found.end():end - 1]):
            yield line, leaf


def files_of(folder):
    """Modules of a crate: path below it as a tuple -> file."""
    found = {}
    for file in sorted(folder.rglob("*.rs")):
        path = file.relative_to(folder).with_suffix("").parts
        if path[0] == "bin" or "tests" in path:
            continue
        found[path[:-1] if path[-1] in ("mod", "lib") else path] = file
    return found


def absolute(path, module):
    """A path below the crate, or None if it leads outside the crate."""
    if path[0] == "crate":
        return tuple(path[1:])
    if path[0] == "self":
        return (*module, *path[1:])
    up = next((i for i, p in enumerate(path) if p != "super"), len(path))
    if path[0] == "super" and up <= len(module):
        return (*module[:len(module) - up], *path[up:])
    return None


def imports(modules, read=lambda file: file.read_text()):
    """(module, line number, path as written, module or crate that it leads to) of a crate's imports."""
    for module, file in modules.items():
        for line, path in paths(code_of(read(file))):
            child = (*module, path[0]) in modules
            if path[0] in CRATES and not child:
                yield module, line, path, path[0]
                continue
            to = absolute(["self", *path] if child else path, module)
            while to is not None and to not in modules:
                to = to[:-1] if to else None
            if to is not None and to != module:
                yield module, line, path, to


def upward(modules, found):
    """Imports in src/ that the table does not allow."""
    order = list(FOLDERS)
    for module, line, path, to in found:
        here = module[0] if module and module[0] in FOLDERS else None
        if here is None:
            continue
        if isinstance(to, str):
            wrong = to not in FOLDERS[here]
        else:
            wrong = bool(to) and to[0] in FOLDERS and order.index(to[0]) > order.index(here)
        if wrong:
            file = modules[module].relative_to(ROOT)
            yield f"{file}:{line}: `{'::'.join(path)}`: {here} may not import {to if isinstance(to, str) else to[0]}"


def circles(found):
    """Sets of modules that import each other (Tarjan's strongly connected components), of more than one."""
    edges = {}
    for module, _, _, to in found:
        if not isinstance(to, str):
            edges.setdefault(module, set()).add(to)
    index, low, stack, out = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(edges.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            circle = stack[stack.index(v):]
            del stack[stack.index(v):]
            if len(circle) > 1:
                out.append(sorted("/".join(m) or "lib" for m in circle))

    for v in sorted(edges):
        if v not in index:
            visit(v)
    return out


def crates():
    """Dependencies between crates that the table does not allow."""
    for name in sorted(p.parent.name for p in ROOT.glob("crates/*/Cargo.toml")):
        # A workspace of its own, which uses nothing here.
        if "[workspace]" in (ROOT / "crates" / name / "Cargo.toml").read_text():
            continue
        if name not in CRATES:
            yield f"crates/{name}: tests/imports.py does not say what it may depend on"
            continue
        manifest = tomllib.loads((ROOT / "crates" / name / "Cargo.toml").read_text())
        for dependency in sorted(set(manifest.get("dependencies", {})) & set(CRATES) - CRATES[name]):
            yield f"crates/{name}/Cargo.toml: it may not depend on {dependency}"


def starts(file, text):
    """What is wrong with a file of src/ that starts programs."""
    code = code_of(text)
    name = str(file.relative_to(ROOT / "src"))
    if not re.search(r"\bCommand::new\(|\bexecv", code):
        return [f"src/{name}: starts no program any more: take it from tests/imports.py"] if name in STARTS else []
    if name not in STARTS:
        return [f"src/{name}: starts a program, and tests/imports.py does not say which and as whom"]
    if STARTS[name] == USERS and "run_as(" not in code:
        return [f"src/{name}: starts {USERS} without host::child::run_as"]
    return []


def self_test(modules):
    """Deliberately wrong imports are detected; correct ones are not reported."""
    file = modules[("host", "maps")]
    wrong = ["use crate::recorder::drain::Drain;", "use crate::{host::open, engine::elf};", "fn f() { crate::cli::run(); }",
             "use super::super::capture::event::KINDS;", "use analysis::load::Loaded;"]
    right = ["use super::open;", "use crate::host::{capset, open};", "use pfi::record::Detail;", "// crate::cli::run()",
             "#[cfg(test)]\nmod tests {\n    use crate::recorder::drain::Drain;\n}"]
    for text, count in [(t, 1) for t in wrong] + [(t, 0) for t in right]:
        found = imports({**modules}, lambda f, text=text: text if f == file else "")
        assert len(list(upward(modules, found))) == count, text
    for text, name, count in [("Command::new(x)", "host/maps.rs", 1), ("", "host/maps.rs", 0), ("", "tuner/help.rs", 1),
                              ("Command::new(x)", "tuner/help.rs", 1), ("Command::new(x); run_as(x)", "tuner/help.rs", 0)]:
        assert len(starts(ROOT / "src" / name, text)) == count, (text, name)
    a, b = ("host", "maps"), ("host", "open")
    texts = {modules[a]: "use super::open;", modules[b]: "use crate::host::maps::FileId;"}
    assert circles(imports(modules, lambda f: texts.get(f, ""))) == [["host/maps", "host/open"]]


def main():
    found = list(crates())
    own = files_of(ROOT / "src")
    self_test(own)
    for folder in sorted({m[0] for m in own if len(m) > 1} - set(FOLDERS)):
        found.append(f"src/{folder}: tests/imports.py does not say what it may import")
    # Tests in files of their own may start what they like.
    for file in sorted(f for f in own.values() if f.stem != "tests"):
        found += starts(file, file.read_text())
    for folder in [ROOT / "src", *sorted(ROOT.glob("crates/*/src"))]:
        modules = files_of(folder)
        all_of = list(imports(modules))
        if folder == ROOT / "src":
            found += upward(modules, all_of)
        for circle in circles(all_of):
            if "--figures" in sys.argv:
                print(f"{folder.relative_to(ROOT)}: {len(circle)} in a circle: {' '.join(circle)}")
            if len(circle) > CIRCLE:
                found.append(f"{folder.relative_to(ROOT)}: {len(circle)} files import each other: {' '.join(circle)}")
            if len({c.split("/")[0] for c in circle} & set(FOLDERS)) > 1:
                found.append(f"{folder.relative_to(ROOT)}: a circle across folders: {' '.join(circle)}")
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
