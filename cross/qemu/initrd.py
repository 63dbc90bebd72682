"""The guest's first file system: a newc cpio archive, written here so that no tool, root or device node is needed."""

import lzma
import os
import stat
from pathlib import Path


class Cpio:
    """Writes entries to a binary file; `close` ends the archive. Directories are created with their files."""

    def __init__(self, out):
        self.out = out
        self.number = 0
        self.folders = {""}

    def _entry(self, name, mode, data=b"", device=(0, 0)):
        self.number += 1
        name = name.encode() + b"\0"
        fields = [self.number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0]
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        self.out.write(head + b"\0" * (-len(head) % 4))
        self.out.write(data)
        self.out.write(b"\0" * (-len(data) % 4))

    def folder(self, name):
        name = name.strip("/")
        if name not in self.folders:
            self.folder(os.path.dirname(name))
            self.folders.add(name)
            self._entry(name, stat.S_IFDIR | 0o755)

    def _parent(self, name):
        name = name.strip("/")
        self.folder(os.path.dirname(name))
        return name

    def file(self, name, data, mode=0o644):
        self._entry(self._parent(name), stat.S_IFREG | mode, data)

    def link(self, name, target):
        self._entry(self._parent(name), stat.S_IFLNK | 0o777, os.fsencode(target))

    def character_device(self, name, major, minor):
        self._entry(self._parent(name), stat.S_IFCHR | 0o600, device=(major, minor))

    def tree(self, root):
        """Adds everything below `root` at the guest's root."""
        for folder, folders, files in os.walk(root):
            folders.sort()
            for name in sorted(files) + [f for f in folders if os.path.islink(os.path.join(folder, f))]:
                path = Path(folder, name)
                inside = str(path.relative_to(root))
                if path.is_symlink():
                    self.link(inside, os.readlink(path))
                else:
                    self.file(inside, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)

    def close(self):
        self._entry("TRAILER!!!", 0)


def modules_in_order(folder, wanted):
    """The modules' names and bytes, each after its dependencies. Raises LookupError for one that is neither available
    nor built in."""
    known = {path.name.split(".ko")[0].replace("-", "_"): path for path in Path(folder).rglob("*.ko*")}
    found = {}

    def visit(name):
        name = name.replace("-", "_")
        if name in found:
            return
        if name not in known:
            raise LookupError(f"no module {name} in {folder}")
        data = known[name].read_bytes()
        if known[name].suffix == ".xz":
            data = lzma.decompress(data)
        for needed in module_needs(data):
            visit(needed)
        found[name] = data

    for name in wanted:
        visit(name)
    return list(found.items())


def module_needs(data):
    """The line `depends=` of a module's .modinfo."""
    for line in data.split(b"\0"):
        if line.startswith(b"depends="):
            return [name for name in line[len(b"depends="):].decode().split(",") if name]
    return []
