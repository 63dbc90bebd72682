#!/usr/bin/env python3
"""The recipes of docs/CONTAINERS.md with podman, without a network: an engine's container recorded from within without root,
and from a container beside it; the service with exactly what the DaemonSet of conf/kubernetes grants.

The image is that of cross/Containerfile, with the static programs of `make dist` if they are there. Else with those of a debug
build, and the libraries that they need on top. The engine is always a debug ggml-runner with its libraries: a static program
cannot be recorded from within. Images and settings of podman are in $XDG_CACHE_HOME/profinfer/containers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "service")]
from common import CONF, PROFINFER, ROOT, Test  # noqa: E402
from podman import settings  # noqa: E402
from readers import CACHE, LONG, Services, of, until  # noqa: E402

TARGET = "x86_64-unknown-linux-musl"
IMAGE, ENGINE = "localhost/profinfer-recipes", "localhost/profinfer-recipes-engine"
ENGINE_RUN = ["/usr/local/bin/ggml-runner", "run", "-m", "/model.gguf", "-p", "8", "-t", "2", "--no-roofline"]
TRACING = "/sys/kernel/tracing"


def libraries(program):
    """The files that a program's loader needs; none for a static one."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]


class Podman(Test):
    """With the two images, which are built once."""

    # Where profinfer is that goes into both.
    own = None

    def setUp(self):
        super().setUp()
        self.need_root()
        self.need("podman")
        self.need_profinfer()
        self.runner = PROFINFER.parent / "ggml-runner"
        if not self.runner.is_file():
            self.skip(f"{self.runner} does not exist: run cargo build")
        static = ROOT / "dist" / TARGET
        self.programs = static if (static / "profinfer").is_file() else PROFINFER.parent
        self.environment = settings(CACHE / "containers")
        self.out = self.dir / "out"
        self.out.mkdir()
        if not Podman.own:
            place = Path(tempfile.mkdtemp(prefix="profinfer-test-"))
            for tidy in [lambda: shutil.rmtree(place), lambda: self.podman("image", "prune", "--force"),
                         lambda: self.podman("rmi", "--force", "--ignore", IMAGE, ENGINE)]:
                unittest.addModuleCleanup(tidy)
            Podman.own = self.images(place)
        command = ["podman", "run", "--rm", IMAGE, "--version"]
        said = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if said.returncode:
            self.skip(f"podman runs no container here: {said.stderr.strip()}")

    def podman(self, *words, code=0):
        return self.run_it("podman", *words, code=code, env=self.environment, timeout=300)

    def images(self, place):
        """Builds both images of what is put into this directory; returns profinfer there."""
        context = place / "context"
        (context / TARGET).mkdir(parents=True)
        for name in ["profinfer", "ggml-runner"]:
            self.run_it("strip", "--strip-debug", "-o", context / TARGET / name, self.programs / name)
        own = context / TARGET / "profinfer"
        target = ["--build-arg", f"TARGET={TARGET}"]
        self.podman("build", "--quiet", "-f", ROOT / "cross/Containerfile", *target, "-t", IMAGE, context)
        root = place / "root"
        (root / "usr/local/bin").mkdir(parents=True)
        for library in {path for program in [own, self.runner] for path in libraries(program)}:
            to = root / library.relative_to("/")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, to)
        if libraries(own):
            print(f"profinfer of {self.programs} is not static: its libraries are added to the image", flush=True)
            self.podman("build", "--quiet", "-f", self.script("more", f"FROM {IMAGE}\nCOPY . /\n"), "-t", IMAGE, root)
        self.run_it("strip", "--strip-debug", "-o", root / "usr/local/bin/ggml-runner", self.runner)
        self.run_it(self.runner, "synth", "tiny", root / "model.gguf", "--type", "q8_0")
        (root / "model.gguf").chmod(0o644)
        self.podman("build", "--quiet", "-f", self.script("engine", "FROM scratch\nCOPY . /\n"), "-t", ENGINE, root)
        return own

    def engine(self):
        """A container whose engine decodes until the test ends; its name and the engine's process."""
        name = f"profinfer-recipes-{os.getpid()}"
        self.podman("run", "--detach", "--rm", "--name", name, ENGINE, *ENGINE_RUN, "-n", "100", "-r", "1000000")
        self.addCleanup(self.podman, "rm", "--force", "--time", "0", name)
        return name, self.podman("inspect", "--format", "{{.State.Pid}}", name).strip()

    def complete(self, trace, source):
        """A complete recording by this source; its report."""
        report = json.loads(self.run_it(PROFINFER, "report", "--json", trace))
        self.assertEqual((report["run"]["source"], report["quality"]["complete"]), (source, True), report["quality"])
        return report


class Recipes(Podman):
    def test_within_an_engines_container_without_root(self):
        self.out.chmod(0o777)
        # podman's filter of system calls is the default one.
        said = self.podman(
            "run", "--rm", "--user", "65534:65534", "--cap-drop", "all", "--read-only", "--security-opt", "no-new-privileges",
            "-v", f"{self.own}:/usr/local/bin/profinfer:ro", "-v", f"{self.out}:/out", ENGINE,
            "/usr/local/bin/profinfer", "record", "--source", "inside", "-o", "/out/run.pfi", "--", *ENGINE_RUN, "-n", "50",
        )
        print(said)
        self.assertEqual((self.out / "run.pfi").stat().st_uid, 65534)
        self.complete(self.out / "run.pfi", "inside")

    def test_beside_an_engines_container(self):
        name, pid = self.engine()
        record = ["--cap-drop", "all", "--cap-add", "bpf,perfmon,sys_ptrace,dac_read_search", "--read-only",
                  "--security-opt", "seccomp=unconfined", "-v", f"{TRACING}:{TRACING}", "-v", f"{self.out}:/out", IMAGE, "record"]
        said = self.podman("run", "--rm", "--pid", "host", *record, "-o", "/out/beside.pfi", "--tokens", "100", "-p", pid)
        print(said)
        self.complete(self.out / "beside.pfi", "bpf")
        # The engine's own process ids are not those that the kernel reports.
        said = self.podman("run", "--rm", "--pid", f"container:{name}", *record, "-o", "/out/none.pfi", "-p", "1", code=1)
        self.assertIn("start the container with --pid=host", said)


class Service(Podman):
    """As the DaemonSet runs it."""

    get = Services.get

    def granted(self):
        """Arguments of podman with which it is what the pod would be, and the set of capabilities."""
        _, config, daemon = yaml.safe_load_all((CONF / "kubernetes/profinfer.yaml").read_text())
        pod = daemon["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        security = container["securityContext"]
        self.assertEqual(security["seccompProfile"], {"type": "Unconfined"})
        self.assertEqual(security["capabilities"]["drop"], ["ALL"])
        self.assertTrue(pod["hostPID"] and security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"])
        etc = self.dir / "etc"
        etc.mkdir()
        for name, text in config["data"].items():
            # Any port, as others may use this machine's.
            (etc / name).write_text(text.replace(":9464", ":0"))
        recordings = self.dir / "recordings"
        recordings.mkdir(mode=0o755)
        places = {"configuration": f"{etc}", "recordings": f"{recordings}", "tracing": TRACING}
        words = ["--pid", "host", "--read-only", "--cap-drop", "all",
                 "--security-opt", "no-new-privileges", "--security-opt", "seccomp=unconfined",
                 "--cap-add", ",".join(security["capabilities"]["add"]),
                 "--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
        kinds = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            if "emptyDir" in kinds[mount["name"]]:
                words += ["--tmpfs", f"{mount['mountPath']}:mode=0777"]
            else:
                words += ["-v", f"{places[mount['name']]}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
        return [*words, IMAGE, *container["args"]], security["capabilities"]["add"], recordings

    def test_the_service_with_the_capabilities_of_the_daemon_set(self):
        words, capabilities, recordings = self.granted()
        name = f"profinfer-recipes-serve-{os.getpid()}"
        log = self.dir / "log"
        with log.open("w") as to:
            command = ["podman", "run", "--rm", "--name", name, *words]
            service = subprocess.Popen(command, env=self.environment, stdout=to, stderr=to)
        self.addCleanup(service.wait)
        self.addCleanup(self.podman, "rm", "--force", "--time", "10", name)

        def ready():
            self.assertIsNone(service.poll(), log.read_text())
            return "ready to record" in log.read_text() and re.search(r"metrics at http://[^:]+:(\d+)/metrics", log.read_text())

        address = f"127.0.0.1:{until('the service is ready', ready)[1]}"
        pid = self.podman("inspect", "--format", "{{.State.Pid}}", name).strip()
        bounding = int(re.search(r"(?m)^CapBnd:\t(\w+)$", Path(f"/proc/{pid}/status").read_text())[1], 16)
        bits = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19, "PERFMON": 38, "BPF": 39}
        self.assertEqual(bounding & ~sum(1 << bits[name] for name in capabilities), 0, f"{bounding:x}")
        self.podman("run", "--rm", ENGINE, *ENGINE_RUN, "-n", "500", "-r", "3")
        recorded = lambda: of(self.get(address)[1], "profinfer_runs_total", ("outcome", "recorded"))
        until("its run is counted", lambda: recorded() == 1)
        print(self.podman("exec", name, "/usr/local/bin/profinfer", "status"))
        os.kill(int(pid), signal.SIGTERM)
        self.assertEqual(service.wait(timeout=LONG), 0, log.read_text())
        (trace,) = recordings.glob("*-ggml-runner-*.pfi")
        self.complete(trace, "bpf")


if __name__ == "__main__":
    unittest.main()
