#!/usr/bin/env python3
"""Releases: the installer against a local server, with damaged and forged files; the files that cross/release.sh makes, with
programs of a debug build; `make install`; and what `make release` refuses."""

import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import tomllib
import unittest
from pathlib import Path

from common import PROFINFER, ROOT, RUNNER, TARGET, Test

INSTALLER = ROOT / "scripts" / "install.sh"
MACHINE = os.uname().machine
NAME = f"profinfer-1.2.3-{MACHINE}-linux"
PROGRAM = "#!/bin/sh\necho profinfer 1.2.3\n"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a directory. Of those in `cut`, half is sent, announced as the whole."""

    cut = ()

    def log_message(self, *arguments):
        pass

    def copyfile(self, source, outputfile):
        data = source.read()
        outputfile.write(data[: len(data) // 2] if self.path.lstrip("/") in self.cut else data)


class Served(Test):
    """A directory `self.files` behind `self.url`."""

    def setUp(self):
        super().setUp()
        self.files = self.dir / "files"
        self.files.mkdir()
        self.prefix = self.dir / "prefix"
        self.handler = type("Own", (Handler,), {})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(self.handler, directory=self.files))
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"

    def install(self, *arguments, code=0, shell="sh", installer=INSTALLER, **env):
        env = {**os.environ, "PREFIX": str(self.prefix), "PROFINFER_URL": self.url, "http_proxy": "", **env}
        return self.run_it(shell, installer, *arguments, code=code, env=env)

    def refused(self, why, *arguments, **options):
        """The installer ends with this message and leaves the prefix alone."""
        before = self.installed()
        self.assertIn(why, self.install(*arguments, code=1, **options))
        self.assertEqual(self.installed(), before)

    def installed(self):
        return {str(path.relative_to(self.prefix)): path.read_bytes() for path in self.prefix.rglob("*") if path.is_file()}

    def key(self, name):
        self.need("ssh-keygen")
        self.run_it("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "a comment", "-f", self.dir / name)
        return self.dir / name


class Installer(Served):
    def setUp(self):
        super().setUp()
        self.need("curl")
        self.write({"bin/profinfer": PROGRAM, "bin/ggml-runner": PROGRAM, "share/man/man1/profinfer.1.gz": "page"})

    def write(self, files, link=None):
        """An archive of these files, and its sum."""
        with tarfile.open(self.files / f"{NAME}.tar.gz", "w:gz") as archive:
            for name, text in files.items():
                member = tarfile.TarInfo(f"{NAME}/{name}")
                member.size, member.mode = len(text), 0o755 if name.startswith("bin/") else 0o644
                archive.addfile(member, io.BytesIO(text.encode()))
            if link:
                member = tarfile.TarInfo(f"{NAME}/{link}")
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(member)
        self.write_sums()

    def write_sums(self, more=""):
        archives = sorted(self.files.glob("*.tar.gz"))
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in archives]
        (self.files / "SHA256SUMS").write_text("".join(sums) + more)

    def test_it_copies_what_it_has_verified(self):
        for shell in filter(shutil.which, ("dash", "bash", "mksh")):
            self.prefix = self.dir / f"of {shell}"
            said = self.install(shell=shell)
            self.assertIn(f"profinfer 1.2.3 is in {self.prefix}/bin", said)
            self.assertIn("its signature is not", said)
            names = {"bin/profinfer", "bin/ggml-runner", "share/man/man1/profinfer.1.gz"}
            self.assertEqual(set(self.installed()), names)
            for name in names:
                self.assertEqual((self.prefix / name).stat().st_mode & 0o7777, 0o755 if "bin" in name else 0o644)
        before = (self.prefix / "bin/profinfer").stat().st_ino
        self.install("--prefix", self.prefix, f"--from={self.url}", PREFIX="/nowhere", PROFINFER_URL="http://127.0.0.1:1")
        self.assertNotEqual((self.prefix / "bin/profinfer").stat().st_ino, before, "written into a file that may be running")

    def test_wget_takes_the_place_of_curl(self):
        if not shutil.which("wget"):
            self.lacking("no wget")
        tools = self.dir / "tools"
        tools.mkdir()
        for tool in ["awk", "cat", "chmod", "cp", "cut", "find", "grep", "gzip", "mkdir", "mktemp", "mv", "rm", "sed", "sh",
                     "sha256sum", "tar", "uname", "wget"]:
            (tools / tool).symlink_to(shutil.which(tool))
        self.install(PATH=str(tools))
        self.assertIn("bin/profinfer", self.installed())
        (tools / "wget").unlink()
        self.refused("neither curl nor wget", PATH=str(tools))

    def test_a_changed_archive_is_refused(self):
        archive = self.files / f"{NAME}.tar.gz"
        self.install()
        data = bytearray(archive.read_bytes())
        data[len(data) // 2] ^= 1
        archive.write_bytes(data)
        self.refused("damaged or forged")
        # Another archive, whole in itself.
        other = archive.read_bytes()
        self.write({"bin/profinfer": "#!/bin/sh\necho mine\n"})
        sums = (self.files / "SHA256SUMS").read_text()
        self.assertNotEqual(archive.read_bytes(), other)
        (self.files / "SHA256SUMS").write_text(("0" if sums[0] != "0" else "1") + sums[1:])
        self.refused("damaged or forged")

    def test_what_is_missing_or_cut_is_refused(self):
        self.handler.cut = [f"{NAME}.tar.gz"]
        self.refused("cannot be fetched")
        self.handler.cut = ["SHA256SUMS"]
        self.refused("cannot be fetched")
        self.handler.cut = []
        (self.files / f"{NAME}.tar.gz").rename(self.files / "other")
        self.refused(f"{NAME}.tar.gz cannot be fetched")
        (self.files / "SHA256SUMS").unlink()
        self.refused("SHA256SUMS cannot be fetched")
        self.refused("SHA256SUMS cannot be fetched", "--from", "http://127.0.0.1:1")

    def test_sums_that_do_not_name_one_archive_are_refused(self):
        self.write_sums(f"{'0' * 64}  profinfer-1.2.4-{MACHINE}-linux.tar.gz\n")
        self.refused("does not name one archive")
        for name in ["profinfer-1.2.3-mips-linux", f"../{NAME}", f"profinfer-1.2.3/../x-{MACHINE}-linux"]:
            (self.files / "SHA256SUMS").write_text(f"{'0' * 64}  {name}.tar.gz\n")
            self.refused("does not name one archive")

    def test_a_signature_is_verified_where_a_key_is_given(self):
        key = self.key("key")
        public = key.with_suffix(".pub")
        self.refused("SHA256SUMS.sig cannot be fetched", "--key", public)
        self.run_it("ssh-keygen", "-q", "-Y", "sign", "-n", "profinfer-release", "-f", key, self.files / "SHA256SUMS")
        self.refused("not signed by the key", "--key", self.key("other").with_suffix(".pub"))
        self.refused("not signed by the key", "--key", "ssh-ed25519 AAAA")
        self.refused("not signed by the key", "--key", '* namespaces="file"')
        self.assertNotIn("signature is not", self.install("--key", public))
        self.assertNotIn("signature is not", self.install(PROFINFER_KEY=public.read_text()))
        self.write({"bin/profinfer": "#!/bin/sh\necho mine\n"})
        self.refused("not signed by the key", "--key", public)
        # A signature for another purpose.
        (self.files / "SHA256SUMS.sig").unlink()
        self.run_it("ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", key, self.files / "SHA256SUMS")
        self.refused("not signed by the key", "--key", public)

    def test_a_machine_without_a_release_is_told(self):
        machines = [("Linux", "riscv64", "is riscv64"), ("Linux", "armv7l", "is armv7l"), ("Darwin", "arm64", "is Darwin")]
        for system, machine, why in machines:
            self.script("uname", f'#!/bin/sh\n[ "$1" = -m ] && echo {machine} || echo {system}\n')
            self.refused(why, PATH=f"{self.dir}:{os.environ['PATH']}")
        for same in {"x86_64": ["amd64"], "aarch64": ["arm64"]}.get(MACHINE, []):
            self.script("uname", f'#!/bin/sh\n[ "$1" = -m ] && echo {same} || echo Linux\n')
            self.install(PATH=f"{self.dir}:{os.environ['PATH']}")

    def test_an_archive_of_another_kind_is_refused(self):
        self.write({"bin/profinfer": PROGRAM}, link="bin/ggml-runner")
        self.refused("has more than files")
        self.write({"bin/profinfer": "#!/bin/sh\nexit 1\n"})
        self.refused("does not run here")
        (self.files / f"{NAME}.tar.gz").write_text("no archive")
        self.write_sums()
        self.refused("cannot be unpacked")

    def test_a_place_that_cannot_be_written_is_said(self):
        self.prefix.parent.joinpath("file").touch()
        said = self.install("--prefix", self.dir / "file", code=1)
        self.assertIn("cannot be written: give another --prefix", said)

    def test_usage(self):
        self.assertIn("usage: install.sh", self.install("--help"))
        self.assertIn("unexpected '--what'", self.install("--what", code=2))
        self.assertIn("--key needs a value", self.install("--key", code=2))
        self.assertIn("--key needs a value", self.install("--key=", code=2))
        piped = subprocess.run(["sh", "-s", "--", "--help"], input=INSTALLER.read_text(), capture_output=True, text=True)
        self.assertEqual((piped.returncode, piped.stdout[:18]), (0, "install.sh: usage:"), piped.stderr)
        self.assertIn("--from URL", self.install(code=1, PROFINFER_URL=""))


class Files(Served):
    def setUp(self):
        super().setUp()
        self.version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        self.dist = self.dir / "dist"
        self.out = self.dist / "release"

    def commit(self):
        done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
        if done.returncode:
            self.lacking("these sources are not in git")
        return done.stdout.strip()

    def release(self, code=0, **env):
        env = {**os.environ, "PROFINFER_DIST": str(self.dist), "PROFINFER_SIGNING_KEY": "", **env}
        return self.run_it(ROOT / "cross" / "release.sh", code=code, env=env, timeout=300)

    def made(self):
        return {path.name: path.read_bytes() for path in self.out.iterdir()}

    def test_a_release_is_whole_and_the_same_twice(self):
        self.need("dpkg-deb", "curl")
        self.made_dist(f"profinfer {self.version} ({self.commit()})")
        key = self.key("key")
        self.release(PROFINFER_SIGNING_KEY=str(key))
        first = self.made()
        name = f"profinfer-{self.version}-{MACHINE}-linux"
        arch = {"x86_64": "amd64", "aarch64": "arm64"}[MACHINE]
        deb = f"profinfer_{self.version}_{arch}.deb"
        self.assertEqual(set(first), {f"{name}.tar.gz", f"{name}.spdx.json", deb, "install.sh", "SHA256SUMS", "SHA256SUMS.sig"})
        # The sources of the programs are as old as before; the files are not.
        for path in (self.dist / TARGET).iterdir():
            os.utime(path, (0, 0))
        self.release(PROFINFER_SIGNING_KEY=str(key))
        self.assertEqual({n for n, data in self.made().items() if first.get(n) != data}, set(), "these differ in two runs")
        self.run_it("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=self.out)
        self.assertEqual(len(first["SHA256SUMS"].splitlines()), len(first) - 2)
        self.archive(name)
        self.list_of_what_is_linked(name)
        # What was made installs itself.
        for file in self.out.iterdir():
            shutil.copy(file, self.files)
        installer = self.out / "install.sh"
        self.assertNotIn("@REPOSITORY@", installer.read_text())
        self.assertIn(f"profinfer {self.version}", self.install("--key", key.with_suffix(".pub"), installer=installer))
        page = gzip.decompress(self.installed()["share/man/man1/ggml-runner-run.1.gz"]).decode()
        self.assertIn("ggml", page)
        sums = (self.files / "SHA256SUMS").read_text()
        (self.files / "SHA256SUMS").write_text(sums.replace(name, name.replace(self.version, "9.9.9")))
        self.refused("does not name one archive", installer=installer)

    def archive(self, name):
        with tarfile.open(self.out / f"{name}.tar.gz") as archive:
            members = archive.getmembers()
        self.assertTrue(all((m.uid, m.gid, m.uname) == (0, 0, "") and (m.isfile() or m.isdir()) for m in members))
        self.assertEqual(len({m.mtime for m in members}), 1)
        names = {m.name.removeprefix(f"{name}/"): m.mode for m in members}
        for file in ["bin/profinfer", "bin/ggml-runner", "lib/profinfer/libprofinfer-cl.so",
                     "share/man/man1/profinfer-record.1.gz", "share/bash-completion/completions/ggml-runner",
                     "share/zsh/site-functions/_profinfer",
                     "share/fish/vendor_completions.d/profinfer.fish", "share/doc/profinfer/copyright"]:
            self.assertEqual(names.get(file), 0o755 if file.startswith("bin/") else 0o644, file)

    def list_of_what_is_linked(self, name):
        """Mandatory fields and references of an SPDX 2.3 document, and its crates."""
        told = json.loads((self.out / f"{name}.spdx.json").read_text())
        self.assertEqual((told["spdxVersion"], told["dataLicense"]), ("SPDX-2.3", "CC0-1.0"))
        self.assertRegex(told["creationInfo"]["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        ids = ["SPDXRef-DOCUMENT", *(part["SPDXID"] for part in told["packages"] + told["files"])]
        self.assertEqual(len(set(ids)), len(ids), "an identifier stands twice")
        for one in ids:
            self.assertRegex(one, r"^SPDXRef-[A-Za-z0-9.-]+$")
        for related in told["relationships"]:
            self.assertLessEqual({related["spdxElementId"], related["relatedSpdxElement"]}, set(ids))
        for package in told["packages"]:
            self.assertLessEqual({"name", "downloadLocation", "licenseDeclared", "filesAnalyzed"}, set(package))
        names = {package["name"] for package in told["packages"]}
        linked = {"profinfer", "ggml-runner", "profinfer-vk", "inside", "libbpf-rs", "libbpf", "zlib", "musl"}
        self.assertLessEqual(linked, names)
        # Built or tested with, and not linked.
        self.assertEqual(names & {"libbpf-cargo", "proptest", "tempfile", "serde_derive", "parquet", "miniz_oxide"}, set())
        with tarfile.open(self.out / f"{name}.tar.gz") as archive:
            files = {m.name.removeprefix(f"{name}/"): archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}
        listed = {f["fileName"].removeprefix("./"): c["checksumValue"] for f in told["files"] for c in f["checksums"]
                  if c["algorithm"] == "SHA256"}
        self.assertEqual({file: hashlib.sha256(data).hexdigest() for file, data in files.items()}, listed)

    def test_programs_of_another_commit_are_refused(self):
        for of in [f"{self.version} (0123456789ab)", "0.0.1", f"{self.version} ({self.commit()}, dirty)"]:
            shutil.rmtree(self.dist, ignore_errors=True)
            self.made_dist(f"profinfer {of}")
            self.assertIn("commit, then run make dist", self.release(code=1))
        self.assertIn("nothing in", self.release(code=1, PROFINFER_DIST=str(self.dir / "empty")))

    def test_make_install_has_a_prefix_and_a_place_for_packages(self):
        built = self.made_dist()
        self.run_it("make", "install", f"FROM={built}", f"DESTDIR={self.dir}/staged", "PREFIX=/opt/x", cwd=ROOT)
        staged = self.dir / "staged/opt/x"
        names = {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}
        self.assertLessEqual({"bin/profinfer", "bin/ggml-runner", "lib/profinfer/libprofinfer-vk.so",
                              "share/man/man1/profinfer.1.gz", "share/bash-completion/completions/profinfer"}, names)
        said = self.run_it("make", "install", f"FROM={self.dir}/none", f"DESTDIR={self.dir}/no", code=2, cwd=ROOT)
        self.assertIn("make build", said)
        self.assertFalse((self.dir / "no").exists())


class Kept(Test):
    """Compiled programs that builds without clang take: crates/inside/kept.rs, in a build script of made-up sources."""

    MAIN = """mod kept;
        fn main() {
            let sources = ["build.rs", "lib", "../lib"];
            println!("{:?}", kept::instead_of_clang("kept", &sources));
            kept::keep("kept", &sources, "a.z", b"compiled");
        }"""

    def setUp(self):
        super().setUp()
        self.need("rustc")
        self.package = self.dir / "package"
        for name in ["package/build.rs", "package/lib/b.c", "package/lib/deep/a.h", "package/lib/c.o", "lib/a.S"]:
            (self.dir / name).parent.mkdir(parents=True, exist_ok=True)
            (self.dir / name).write_text(name)
        shutil.copy(ROOT / "crates/inside/kept.rs", self.dir)
        (self.dir / "main.rs").write_text(self.MAIN)
        self.run_it("rustc", "--edition", "2024", "-o", self.dir / "script", self.dir / "main.rs")

    def build(self, clang="false", code=0, **env):
        env = {**os.environ, "CLANG": clang, "CARGO_CFG_TARGET_ARCH": "aarch64", **env}
        return self.run_it(self.dir / "script", cwd=self.package, env=env, code=code)

    def test_they_are_taken_without_clang_if_they_are_of_the_sources(self):
        refused = "was not compiled from these sources: install clang, or take the sources of a release"
        self.assertIn(refused, self.build(code=101))
        self.assertIn("None", self.build(clang="true"))
        self.assertFalse((self.package / "kept").exists())
        self.assertIn("None", self.build(clang="true", PROFINFER_KEEP="1"))
        self.assertEqual((self.package / "kept/aarch64/a.z").read_text(), "compiled")
        self.assertIn('Some("kept/aarch64")', self.build())
        self.assertIn('Some("kept/aarch64")', self.build(clang="true", PROFINFER_KEPT="1"))
        (self.package / "lib/c.o").write_text("no source")
        self.build()
        for name in ["package/build.rs", "package/lib/b.c", "package/lib/deep/a.h", "lib/a.S"]:
            before = (self.dir / name).read_text()
            (self.dir / name).write_text("another source")
            self.assertIn(refused, self.build(code=101))
            (self.dir / name).write_text(before)
        self.build()

    def test_make_release_reads_the_same_sum(self):
        self.build(clang="true", PROFINFER_KEEP="1")
        program = "import pathlib, release as r; r.ROOT = pathlib.Path.cwd(); " \
                  "print(r.source_sum('package', ['build.rs', 'lib', '../lib']))"
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
        said = self.run_it("python3", "-B", "-c", program, cwd=self.dir, env=env)
        self.assertEqual(said, (self.package / "kept/SUM").read_text())


class Tag(Test):
    """`make release` in a repository with the files that it reads."""

    def setUp(self):
        super().setUp()
        self.clone = self.dir / "clone"
        for name in ["tests/release.py", "tests/suite/choose.py", "tests/suite/parts.py", "CHANGELOG.md", "CITATION.cff",
                     "Cargo.toml", "Cargo.lock", "crates/layers/Cargo.toml", "crates/layers/Cargo.lock", "fuzz/Cargo.lock",
                     "python/profinfer/__init__.py", "docs/SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"]:
            (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.clone / name)
        for folder, file in [(".", "src/bpf/a.c"), ("crates/inside", "lib/a.c")]:
            for name in [file, "build.rs"]:
                (self.clone / folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self.clone / folder / name).write_text("a source")
        self.keep()
        self.git("init", "--quiet")
        for setting in ["user.name=a", "user.email=a@b", "tag.gpgSign=false", "commit.gpgSign=false"]:
            self.git("config", *setting.split("="))
        self.git("add", ".")
        self.commit()
        self.version = (self.clone / "CITATION.cff").read_text().split("\nversion: ")[1].split("\n")[0]

    def git(self, *arguments):
        return self.run_it("git", "-C", self.clone, *arguments)

    def keep(self):
        """What cross/keep.sh does after it has compiled."""
        program = "import release as r\nfor f, k, s in r.KEPT: d = r.ROOT / f / k; d.mkdir(exist_ok=True); " \
                  "(d / 'SUM').write_text(r.source_sum(f, s))"
        self.run_it("python3", "-B", "-c", program, cwd=self.clone / "tests")

    def commit(self):
        self.git("commit", "--quiet", "--all", "--allow-empty", "--message", "a state")

    def passed(self, owed=()):
        """What the suite keeps when it has passed."""
        kept = {"passed": self.git("rev-parse", "HEAD").strip(), "run": 1, "turns": {}, "owed": list(owed)}
        (self.dir / "profinfer").mkdir(exist_ok=True)
        (self.dir / "profinfer" / "suite.json").write_text(json.dumps(kept))

    def release(self, *arguments, code=0):
        env = {**os.environ, "XDG_CACHE_HOME": str(self.dir), "PYTHONDONTWRITEBYTECODE": "1"}
        return self.run_it("python3", self.clone / "tests" / "release.py", *(arguments or ["--tag"]), code=code, env=env)

    def test_a_tested_commit_is_tagged_once(self):
        self.passed()
        self.assertIn(f"tagged v{self.version}", self.release())
        self.assertIn(f"profinfer {self.version}", self.git("tag", "--list", "--format=%(contents)", f"v{self.version}"))
        self.assertIn("already", self.release(code=1))

    def test_an_untested_commit_is_refused(self):
        self.assertIn("the suite passed here on", self.release(code=1))
        self.passed()
        self.commit()
        self.assertIn("the suite passed here on", self.release(code=1))
        self.passed(owed=["kill", "arm"])
        self.assertIn("passed without kill, arm", self.release(code=1))
        self.assertEqual(self.git("tag", "--list", f"v{self.version}"), "")

    def test_a_changed_tree_is_refused(self):
        self.passed()
        (self.clone / "new").touch()
        self.assertIn("untracked", self.release(code=1))
        (self.clone / "new").unlink()
        (self.clone / "CHANGELOG.md").write_text("changed")
        self.assertIn("has changes", self.release(code=1))

    def change(self, name, one, other):
        path = self.clone / name
        text = path.read_text()
        self.assertIn(one, text)
        path.write_text(text.replace(one, other))

    def test_a_version_that_nobody_described_is_refused(self):
        self.change("CHANGELOG.md", f"## [{self.version}] - ", "## [9.9.9] - ")
        self.commit()
        self.passed()
        self.assertIn("CHANGELOG.md has no section", self.release(code=1))

    def test_compiled_programs_of_other_sources_are_refused(self):
        (self.clone / "src/bpf/a.c").write_text("another source")
        self.commit()
        self.passed()
        said = self.release(code=1)
        self.assertIn("src/bpf/kept was not compiled from these sources", said)
        self.assertIn("crates/inside/kept was not compiled from these sources", said)
        self.keep()
        self.commit()
        self.passed()
        self.release()

    def test_files_that_disagree_are_refused(self):
        self.assertEqual(self.release("--names", f"v{self.version}"), "")
        self.assertIn("the tag is v9.9.9", self.release("--names", "v9.9.9", code=1))
        self.change("CITATION.cff", f"version: {self.version}", "version: 9.9.9")
        self.assertIn("CITATION.cff has version 9.9.9", self.release("--names", f"v{self.version}", code=1))
        self.change("CITATION.cff", "https://", "https://x.")
        self.assertIn("CITATION.cff has the address", self.release("--names", f"v{self.version}", code=1))
        self.change("crates/layers/Cargo.lock", f'version = "{self.version}"', 'version = "9.9.9"')
        said = self.release("--names", f"v{self.version}", code=1)
        self.assertIn("crates/layers/Cargo.lock has another version of handover", said)


if __name__ == "__main__":
    unittest.main()
