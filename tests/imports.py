#!/usr/bin/env python3
"""Checks the architecture: imports between the folders of a crate, no import cycle of more than four files, who starts programs,
and the table of crates in CONTRIBUTING.md.

Cargo rejects upward imports between crates; the folders of a crate are checked here. Tests inside a file may import anything.
`--figures` prints the cycles. `--write` writes the table of crates from the manifests."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders of a crate, lowest first: each imports only those before it.
ROOMS = {
    "agent": ["capture", "recorder"],
    "analysis": ["recorded", "sums", "questions", "streams"],
}
# Files that start programs, with their crate. Under sudo a program that the user names must not run as root: what is started
# as the user calls machine::child::run_as, and every other file starts only programs that root trusts already.
USERS = "a program of the user's"
STARTS = {
    "profinfer/html.rs": "a browser, never under sudo",
    "profinfer/mcp/child.rs": "this program",
    "profinfer/remote/client.rs": "ssh and hdc, as the caller of profinfer",
    "profinfer/selftest/mod.rs": "this program, and its ggml-runner",
    "agent/capture/inside/measure.rs": "true, to measure a hit",
    "service/hook/mod.rs": "the configuration's program, as the configuration says",
    "service/resident/idle_peaks.rs": "this program",
    "machine/target.rs": USERS,
    "trials/help.rs": USERS,
    "trials/trial.rs": "this program",
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
    """(module, line number, path as written, module that it leads to) of a crate's imports."""
    names = packages()
    for module, file in modules.items():
        for line, path in paths(code_of(read(file))):
            child = (*module, path[0]) in modules
            if path[0] in names and not child:
                continue
            to = absolute(["self", *path] if child else path, module)
            while to is not None and to not in modules:
                to = to[:-1] if to else None
            if to is not None and to != module:
                yield module, line, path, to


def upward(crate, modules, found):
    """Imports between folders of a crate that ROOMS does not allow."""
    order = ROOMS.get(crate, [])
    for module, line, path, to in found:
        if not module or not to or module[0] == to[0] or not {module[0], to[0]} <= set(order):
            continue
        if order.index(to[0]) > order.index(module[0]):
            yield f"{modules[module].relative_to(ROOT)}:{line}: `{'::'.join(path)}`: {module[0]} may not import {to[0]}"


def circles(found):
    """Sets of modules that import each other (Tarjan's strongly connected components), of more than one."""
    edges = {}
    for module, _, _, to in found:
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


def packages():
    """Name -> (folder, manifest) of the packages, each after those that it depends on; tests' own are left out."""
    found = {}
    for folder in tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"] + ["."]:
        manifest = tomllib.loads((ROOT / folder / "Cargo.toml").read_text())
        if not folder.startswith("tests/"):
            found[manifest["package"]["name"]] = (folder, manifest)
    order = {}

    def add(name):
        if name not in order:
            for dependency in sorted(set(found[name][1].get("dependencies", {})) & set(found)):
                add(dependency)
            order[name] = found[name]

    for name in sorted(found):
        add(name)
    return order


def table():
    """The table of crates: folder, description, and the crates that it depends on, of its manifest."""
    all_of = packages()
    rows = ["| crate | what it is | uses |", "|---|---|---|"]
    for folder, manifest in all_of.values():
        uses = [name for name in all_of if name in manifest.get("dependencies", {})]
        rows.append(f"| `{'src' if folder == '.' else folder}` | {manifest['package']['description']} | {', '.join(uses)} |")
    return "\n".join(rows)


def page(write):
    """What is wrong with the table in CONTRIBUTING.md."""
    file, marks = ROOT / "CONTRIBUTING.md", ("<!-- crates: begin -->\n", "\n<!-- crates: end -->")
    before, _, rest = file.read_text().partition(marks[0])
    old, _, after = rest.partition(marks[1])
    if old == table():
        return []
    if write:
        file.write_text(before + marks[0] + table() + marks[1] + after)
        return []
    return ["CONTRIBUTING.md: the table of crates is not that of their manifests: python3 tests/imports.py --write"]


# Packages that build without clang and libbpf, which `machine` needs.
ANYWHERE = ["cli", "dataset", "ggml-runner"]


def anywhere():
    """What makes one of ANYWHERE depend on `machine`."""
    all_of = packages()
    for name in ANYWHERE:
        todo, seen = [name], set()
        while todo:
            at = todo.pop()
            uses = [n for n in all_of[at][1].get("dependencies", {}) if n in all_of and n not in seen]
            if "machine" in uses:
                yield f"{all_of[at][0]}/Cargo.toml: {name} depends on `machine` by it, and must build without libbpf"
            seen.update(uses)
            todo += uses


def starts(file, text):
    """What is wrong with a file that starts programs."""
    code = code_of(text)
    crate, _, name = str(file.relative_to(ROOT)).partition("src/")
    name = f"{Path(crate).name or 'agent'}/{name}"
    if not re.search(r"\bCommand::new\(|\bexecv", code):
        return [f"{file}: starts no program any more: take it from tests/imports.py"] if name in STARTS else []
    if name not in STARTS:
        return [f"{file}: starts a program, and tests/imports.py does not say which and as whom"]
    if STARTS[name] == USERS and "run_as(" not in code:
        return [f"{file}: starts {USERS} without machine::child::run_as"]
    return []


def self_test():
    """Deliberately wrong imports are detected; correct ones are not reported."""
    modules = files_of(ROOT / "src")
    low, high = modules[("capture", "source")], modules[("recorder", "qos")]
    wrong = ["use crate::recorder::drain::Drain;", "use crate::{recorder::qos, capture::event};", "use super::super::recorder::qos::Qos;"]
    right = ["use super::event;", "use crate::capture::{event, features};", "use machine::open;", "// crate::recorder::run()",
             "#[cfg(test)]\nmod tests {\n    use crate::recorder::drain::Drain;\n}"]
    for file, text, count in [*((low, t, 1) for t in wrong), *((low, t, 0) for t in right), (high, "use crate::capture::event::X;", 0)]:
        found = imports(modules, lambda f, file=file, text=text: text if f == file else "")
        assert len(list(upward("agent", modules, found))) == count, text
    for text, name, count in [("Command::new(x)", "src/capture/event.rs", 1), ("", "src/capture/event.rs", 0),
                              ("", "crates/trials/src/help.rs", 1), ("Command::new(x)", "crates/trials/src/help.rs", 1),
                              ("Command::new(x); run_as(x)", "crates/trials/src/help.rs", 0)]:
        assert len(starts(ROOT / name, text)) == count, (text, name)
    a, b = ("capture", "event"), ("capture", "features")
    texts = {modules[a]: "use super::features;", modules[b]: "use crate::capture::event::KINDS;"}
    assert circles(imports(modules, lambda f: texts.get(f, ""))) == [["capture/event", "capture/features"]]


# Crates whose files may start programs only as STARTS says: those that run where a recorder does.
WATCHED = {"agent", "engine", "inspector", "machine", "profinfer", "service", "trials"}


def main():
    self_test()
    found = page("--write" in sys.argv) + list(anywhere())
    for name, (folder, _) in packages().items():
        modules = files_of(ROOT / folder / "src")
        # Tests in files of their own may start what they like.
        for file in sorted(f for f in modules.values() if name in WATCHED and f.stem != "tests"):
            found += starts(file, file.read_text())
        all_of = list(imports(modules))
        found += upward(name, modules, all_of)
        for circle in circles(all_of):
            if "--figures" in sys.argv:
                print(f"{name}: {len(circle)} in a circle: {' '.join(circle)}")
            if len(circle) > CIRCLE:
                found.append(f"{name}: {len(circle)} files import each other: {' '.join(circle)}")
            if len({c.split("/")[0] for c in circle} & set(ROOMS.get(name, []))) > 1:
                found.append(f"{name}: a circle across folders: {' '.join(circle)}")
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
