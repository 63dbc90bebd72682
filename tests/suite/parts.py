"""The parts of the test suite: what each holds, the make targets that run it, and the paths whose change can touch it."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Part:
    name: str
    # A make target, with variables.
    make: str
    about: str
    # 0: a part of `make test`. Else its turn: parts of the rest that a change does not touch run in one of TURNS runs.
    turn: int = 0
    # About how long it takes with two processors and nothing compiled: a run of a change begins none that it cannot end.
    minutes: int = 0


PARTS = [
    Part("lint", "lint", "formats, clippy, imports, dependencies, waits, rebuilds"),
    Part("unit", "unit", "unit tests, and tests that need no live engine"),
    Part("service", "test-service", "files, installation and metrics of the service"),
    Part("live", "live", "recordings of live engines, and the service"),
    Part("guests-short", "guests-short", "record and doctor on one old and one new arm64 kernel"),
    Part("guests", "guests", "probes and events on arm64 kernels", 1, 16),
    Part("docs", "test-docs", "commands of README.md and docs/ as they are written", 1, 6),
    Part("arm", "test-arm", "kernels and ggml-runner on emulated AArch64 processors", 2, 11),
    Part("cross", "test-cross", "cross build in a container, as documented", 2, 25),
    Part("dist", "test-dist", "static files", 3, 8),
    Part("boards", "boards", "services, devices, clusters and tuning on arm64 kernels", 3, 16),
    Part("no-agent", "no-agent", "build and tests without the recorder", 3, 2),
    Part("rustdoc", "rustdoc", "links and code of the documentation comments", 3, 1),
    Part("devices", "devices", "layers and backends of devices in software", 4, 6),
    Part("server", "server", "a distribution's llama-server and Vulkan build", 4, 5),
    Part("browser", "browser", "pages in a browser", 4, 3),
    Part("spark", "spark", "docs/SQL.md in Apache Spark", 4, 3),
    Part("containers", "containers", "recording and the service in containers", 4, 2),
    Part("kill", "kill", "recorders and services killed or refused at a system call", 4, 4),
]
BY_NAME = {part.name: part for part in PARTS}
SHORT = [part for part in PARTS if not part.turn]
REST = [part for part in PARTS if part.turn]
TURNS = max(part.turn for part in PARTS)
EVERYTHING = " ".join(part.name for part in REST)

# Parts of the rest that a change of a path can touch; the first pattern that matches counts, `*` also matches `/`.
# `make test` runs in any case.
PATHS = [
    ("crates/analysis/*", "no-agent rustdoc"),
    ("crates/cli/*", "no-agent dist rustdoc docs"),
    ("crates/common/*", "no-agent rustdoc arm"),
    ("crates/dataset/*", "spark rustdoc"),
    ("crates/engine/*", "guests devices rustdoc"),
    ("crates/ggml/*", "arm no-agent rustdoc"),
    ("crates/inside/*", "guests dist"),
    ("crates/inspector/*", "guests rustdoc"),
    ("crates/kernels/*", "arm dist rustdoc"),
    ("crates/layers/*", "devices dist"),
    ("crates/machine/*", "guests boards kill rustdoc"),
    ("crates/pfi/*", "arm no-agent rustdoc kill"),
    ("crates/render/*", "browser no-agent rustdoc"),
    ("crates/requests/*", "no-agent rustdoc kill"),
    ("crates/runner/*", "arm dist rustdoc"),
    ("crates/service/*", "boards kill rustdoc"),
    ("crates/trials/*", "boards rustdoc"),
    ("crates/tune/*", "rustdoc"),
    ("programs/*", "no-agent dist rustdoc docs"),
    ("src/bpf/*", "guests dist kill devices"),
    ("src/capture/*", "guests devices kill rustdoc"),
    ("src/recorder/*", "guests devices kill server rustdoc"),
    ("src/*", EVERYTHING),
    ("cross/qemu/*", "guests boards"),
    *((f"cross/{name}", "dist cross") for name in ["Dockerfile", "image.sh"]),
    ("cross/Containerfile", "containers"),
    ("cross/*", "dist arm guests cross"),
    *((f"conf/{name}/*", "containers") for name in ["helm", "kubernetes"]),
    *((f"conf/{name}/*", "") for name in ["grafana", "prometheus"]),
    ("conf/*", "boards dist"),
    ("tests/arm/*", "arm"),
    ("tests/dist/*", "dist"),
    ("tests/docs/*", "docs"),
    ("tests/cross_image.py", "dist"),
    ("tests/cross_build.py", "cross"),
    ("tests/podman.py", "cross containers"),
    ("tests/containers/*", "containers"),
    ("tests/fixtures/*", "guests kill devices"),
    ("tests/fleet/*", "spark"),
    ("tests/gpu/debian_vulkan.py", "server"),
    ("tests/gpu/soft_gpu.*", "guests"),
    ("tests/gpu/*", "devices"),
    ("tests/html*", "browser"),
    ("tests/kernels/*", "guests boards"),
    ("tests/kill/*", "kill"),
    ("tests/live/kill.rs", "kill"),
    ("tests/live/fixtures.rs", "guests"),
    *((f"tests/live/{name}.rs", "devices") for name in ["cuda", "device", "hexagon", "layers", "opencl", "rknn", "vulkan"]),
    ("tests/plain/dataset_sql.rs", "spark"),
    ("tests/server/*", "server"),
    ("tests/common/*", "devices kill"),
    ("tests/suite/*", EVERYTHING),
    # The rest of the tests, and what only they, a reader or a user of the sources meets.
    ("tests/*", ""),
    ("benches/diagnosis/*", "server"),
    ("benches/*", ""),
    ("docs/SQL.md", "spark docs"),
    ("docs/BUILDING.md", "cross docs"),
    ("docs/*", "docs"),
    ("fuzz/*", ""),
    ("examples/*", ""),
    ("python/README.md", "docs"),
    ("python/*", ""),
    ("scripts/packages.tsv", "cross"),
    ("scripts/setup.sh", "cross"),
    ("scripts/*", ""),
    (".github/*", ""),
    (".gitignore", ""),
    ("clippy.toml", ""),
    ("deny.toml", ""),
    ("rustfmt.toml", ""),
    ("LICENSE-*", ""),
    ("CITATION.cff", ""),
    ("*.md", "docs"),
    ("Cross.toml", "dist cross"),
    ("Cargo.toml", EVERYTHING),
    ("Cargo.lock", EVERYTHING),
    ("build.rs", EVERYTHING),
    ("Makefile", EVERYTHING),
    (".ci/*", EVERYTHING),
]


def touched(path):
    """Names of the parts of the rest that a change of this path can touch; None: the table does not have it."""
    row = next((parts for pattern, parts in PATHS if fnmatchcase(path, pattern)), None)
    return None if row is None else row.split()
