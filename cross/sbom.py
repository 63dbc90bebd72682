#!/usr/bin/env python3
"""What a release's archive contains and what is linked into its programs and layers, as an SPDX 2.3 document in JSON: the
crates that cargo links for the target with the features of cross/dist.sh, and the C libraries and Rust's standard library of
conf/debian/copyright. Printed; the same commit and the same files give the same document.

usage: sbom.py TARGET DIRECTORY          DIRECTORY: the unpacked archive, whose name is that of the package"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
import supply_chain  # noqa: E402

PROGRAMS = ("profinfer", "ggml-runner")
LAYERS = ("profinfer-cl", "profinfer-cu", "profinfer-vk")
NOT_SAID = "NOASSERTION"
# libelf is used under GPL-2.0, one of its two licences; our BPF programs are MIT or GPL-2.0.
WHOLE = "(MIT OR Apache-2.0) AND (MIT OR GPL-2.0-only) AND GPL-2.0-or-later"
# Linked, and not a crate. The first three are in the sources of crate libbpf-sys, where a file and a pattern have the version.
BUNDLED = [
    ("elfutils-libelf", "GPL-2.0-or-later OR LGPL-3.0-or-later", "elfutils/configure.ac", r"AC_INIT\(\[elfutils\],\[([\d.]+)"),
    ("libbpf", "LGPL-2.1-only OR BSD-2-Clause", None, r"\+v([\d.]+)$"),
    ("zlib", "Zlib", "zlib/zlib.h", r'define ZLIB_VERSION "([\d.]+)"'),
]
SYSTEM = [
    ("musl", "MIT"),
    ("libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
]


def features(target):
    """As cross/dist.sh has them."""
    return "board" if target.startswith("aarch64-") else "vendored"


def linked(target):
    """Packages linked into either program or a layer, with the dependencies of each by id."""
    options = ["--filter-platform", target, "--no-default-features"]
    everything = [supply_chain.metadata_of("programs/profinfer", *options, "--features", features(target)),
                  supply_chain.metadata_of("programs/ggml-runner", *options),
                  supply_chain.metadata_of("crates/layers", "--filter-platform", target)]
    packages, uses = {}, {}
    for metadata in everything:
        ids = supply_chain.shipped(metadata)
        packages |= {p["id"]: p for p in metadata["packages"] if p["id"] in ids}
        for node in metadata["resolve"]["nodes"]:
            if node["id"] in ids:
                normal = {d["pkg"] for d in node["deps"] if any(k["kind"] is None for k in d["dep_kinds"])}
                uses.setdefault(node["id"], set()).update(normal & ids)
    return packages, uses


def checksums():
    """SHA-256 of each crate, by name and version, of the lock files."""
    locks = [tomllib.loads((ROOT / name).read_text()) for name in ("Cargo.lock", "crates/layers/Cargo.lock")]
    return {(p["name"], p["version"]): p["checksum"] for lock in locks for p in lock["package"] if "checksum" in p}


def named(*words):
    """An identifier of these words."""
    return "SPDXRef-" + "-".join(re.sub(r"[^A-Za-z0-9.]", "-", word) for word in words)


def expression(licence):
    return licence.replace("/", " OR ") if licence else NOT_SAID


def package(identifier, name, version, licence, **more):
    return {"SPDXID": identifier, "name": name, "versionInfo": version, "downloadLocation": NOT_SAID, "filesAnalyzed": False,
            "licenseConcluded": NOT_SAID, "licenseDeclared": expression(licence), "copyrightText": NOT_SAID, **more}


def crate(found, sums, repository):
    name, version = found["name"], found["version"]
    if found["source"] is None:
        return package(named("Crate", name), name, version, found["license"], downloadLocation=repository)
    return package(named("Crate", name, version), name, version, found["license"],
                   downloadLocation=f"https://crates.io/api/v1/crates/{name}/{version}/download",
                   checksums=[{"algorithm": "SHA256", "checksumValue": sums[name, version]}],
                   externalRefs=[{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                  "referenceLocator": f"pkg:cargo/{name}@{version}"}])


def bundled(packages):
    """The C libraries of crate libbpf-sys, in the versions of its sources."""
    sys_crate = next(p for p in packages.values() if p["name"] == "libbpf-sys")
    sources = Path(sys_crate["manifest_path"]).parent
    for name, licence, file, pattern in BUNDLED:
        text = (sources / file).read_text() if file else sys_crate["version"]
        version = re.search(pattern, text)
        if not version:
            sys.exit(f"sbom.py: no version of {name} in {sources}: BUNDLED says where it is")
        yield package(named("Library", name), name, version[1], licence)


def compiler(directory):
    """The version of Rust that ggml-runner's file names."""
    command = ["readelf", "-p", ".comment", directory / "bin/ggml-runner"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    version = re.search(r"rustc version ([\w.+-]+)", said.stdout)
    return version[1] if version else NOT_SAID


def files_of(directory):
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        name, data = path.relative_to(directory).as_posix(), path.read_bytes()
        sums = [{"algorithm": kind, "checksumValue": hashlib.new(kind, data).hexdigest()} for kind in ("SHA1", "SHA256")]
        yield {"SPDXID": named("File", name), "fileName": f"./{name}", "checksums": sums,
               "licenseConcluded": NOT_SAID, "licenseInfoInFiles": [NOT_SAID], "copyrightText": NOT_SAID}


def git(*arguments):
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def document(target, directory):
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
    packages, uses = linked(target)
    sums, repository = checksums(), workspace["repository"]
    files = list(files_of(directory))
    whole = package("SPDXRef-Archive", directory.name, workspace["version"], WHOLE, downloadLocation=repository)
    # Section 7.9 of the specification: SHA-1 of all files' SHA-1, sorted.
    sorted_sums = sorted(c["checksumValue"] for f in files for c in f["checksums"] if c["algorithm"] == "SHA1")
    code = hashlib.sha1("".join(sorted_sums).encode()).hexdigest()
    whole |= {"filesAnalyzed": True, "packageVerificationCode": {"packageVerificationCodeValue": code}, "licenseInfoFromFiles": [NOT_SAID],
              "packageFileName": f"{directory.name}.tar.gz", "primaryPackagePurpose": "APPLICATION"}
    crates = {i: crate(p, sums, repository) for i, p in packages.items()}
    libraries = [*bundled(packages), *(package(named("Library", name), name, NOT_SAID, licence) for name, licence in SYSTEM),
                 package(named("Library", "rust-std"), "rust-std", compiler(directory), "MIT OR Apache-2.0")]
    members = sorted(crates[i]["SPDXID"] for i, p in packages.items() if p["name"] in PROGRAMS + LAYERS)
    related = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Archive")]
    related += [("SPDXRef-Archive", "CONTAINS", f["SPDXID"]) for f in files]
    related += [("SPDXRef-Archive", "CONTAINS", member) for member in members]
    related += [("SPDXRef-Archive", "STATIC_LINK", library["SPDXID"]) for library in libraries]
    related += sorted((crates[i]["SPDXID"], "STATIC_LINK", crates[to]["SPDXID"]) for i in uses for to in uses[i])
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": directory.name,
        "documentNamespace": f"{repository}/spdx/{directory.name}-{code}",
        "creationInfo": {"created": datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: profinfer-cross/sbom.py"],
                         "comment": f"commit {git('rev-parse', 'HEAD') or 'unknown'}"},
        "packages": [whole, *sorted(crates.values(), key=lambda p: p["SPDXID"]), *libraries],
        "files": files,
        "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
                          for one, kind, other in related],
    }


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    json.dump(document(sys.argv[1], Path(sys.argv[2]).resolve()), sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
