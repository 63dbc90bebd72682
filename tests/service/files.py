#!/usr/bin/env python3
"""The files that init systems use to start the service: shell scripts without shellcheck findings, a unit that
systemd accepts and rates as restricted, and a .cfg that OpenHarmony's init accepts."""

import copy
import json
import re
import unittest

from common import CONF, ROOT, Test

# Maximum exposure according to `systemd-analyze security`: 0 is none, 10 full exposure.
EXPOSURE = 3.0


class Shell(Test):
    def test_scripts_are_clean_posix_shell(self):
        self.need("shellcheck")
        scripts = [*CONF.glob("*.sh"), CONF / "sysv/profinfer", CONF / "procd/profinfer", *CONF.glob("debian/p*")]
        self.assertGreaterEqual(len(scripts), 7)
        self.run_it("shellcheck", "--shell=sh", *scripts)
        self.run_it("shellcheck", "--shell=sh", ROOT / "scripts" / "install.sh")
        packaging = [f"cross/{name}.sh" for name in ("deb", "keep", "package", "release")]
        self.run_it("shellcheck", "--external-sources", *packaging, cwd=ROOT)


class Unit(Test):
    def setUp(self):
        super().setUp()
        self.need("systemd-analyze")
        self.text = (CONF / "systemd/profinfer.service").read_text()
        # The program is not installed here, but systemd checks that it exists.
        self.unit = self.dir / "profinfer.service"
        self.unit.write_text(self.text.replace("/usr/bin/profinfer", "/bin/true"))

    def test_systemd_takes_every_line(self):
        said = self.run_it("systemd-analyze", "verify", "--man=no", self.unit)
        self.assertEqual(said, "")

    def test_a_wrong_line_would_be_seen(self):
        self.unit.write_text(self.unit.read_text().replace("ProtectClock=", "ProtectClok="))
        self.assertIn("ProtectClok", self.run_it("systemd-analyze", "verify", "--man=no", self.unit))

    def exposure(self):
        said = self.run_it("systemd-analyze", "security", "--offline=true", "--no-pager", self.unit)
        return float(re.search(r"exposure level for profinfer.service: ([0-9.]+)", said)[1])

    def test_systemd_finds_it_tight(self):
        self.assertLessEqual(self.exposure(), EXPOSURE)

    def test_without_its_bounds_it_would_not(self):
        self.unit.write_text("[Service]\nExecStart=/bin/true\n")
        self.assertGreater(self.exposure(), EXPOSURE)

    def test_the_page_tells_what_the_unit_has(self):
        page = (ROOT / "docs" / "INSTALL.md").read_text()
        for cap in re.search(r"^CapabilityBoundingSet=(.*)$", self.text, re.MULTILINE)[1].split():
            self.assertIn(f"| {cap} |", page)
        self.assertIn(f"gives the unit {self.exposure()} ", page)


# Service Management and Job Management of OpenHarmony's documentation (openharmony/docs,
# device-dev/subsystems/subsys-boot-init-service.md and -jobs.md, tables 1), and the checks in init itself
# (openharmony/startup_init, services/init/init_service_manager.c and init_capability.c).


def text(least, most):
    return lambda value: isinstance(value, str) and least <= len(value.encode()) <= most


def number(least, most):
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def one_of(*values):
    return lambda value: value in values


def several(check, most=100):
    return lambda value: isinstance(value, list) and 0 < len(value) <= most and all(check(part) for part in value)


def either(*checks):
    return lambda value: any(check(value) for check in checks)


def path(value):
    return several(text(1, 64), 20)(value) and value[0].startswith("/")


def critical(value):
    if isinstance(value, list):
        return len(value) == 3 and value[0] in (0, 1) and value[1] > 0 and value[2] > 0
    return value in (0, 1)


# Names end with AUDIT_READ (37). For an unknown name init grants all capabilities, so none are used.
capability = number(0, 40)
user = either(number(0, 2**31 - 1), text(1, 32))
SERVICE = {
    "name": text(1, 32),
    "path": path,
    "uid": user,
    "gid": either(user, several(user)),
    "once": one_of(0, 1),
    "importance": number(-20, 19),
    "caps": several(capability),
    "critical": critical,
    "cpucore": several(number(0, 1023)),
    "d-caps": several(text(1, 64)),
    "apl": one_of("system_core", "normal", "system_basic"),
    "start-mode": one_of("boot", "normal", "condition"),
    "ondemand": one_of(True, False),
    "disabled": one_of(0, 1),
    "secon": lambda value: bool(re.fullmatch(r"u:r:[a-z_]+:s0", value)),
    "jobs": lambda value: value.keys() <= {"on-boot", "on-start", "on-stop", "on-restart"}
    and all(text(1, 64)(job) for job in value.values()),
}
MANDATORY = {"name", "path", "uid", "gid"}
COMMANDS = {
    "mkdir": r"mkdir /\S+( 0[0-7]{3}( \w+ \w+)?)?",
    "chmod": r"chmod 0[0-7]{3} /\S+",
    "chown": r"chown \w+ \w+ /\S+",
    "start": r"start \w+",
}
# The complete file, in bytes.
LARGEST = 100 * 1024


def faults(cfg):
    """Violations of the schema."""
    for key in cfg.keys() - {"jobs", "services", "import"}:
        yield f"unknown part {key}"
    for service in cfg.get("services", []):
        for key in MANDATORY - service.keys():
            yield f"service without {key}"
        for key, value in service.items():
            if key not in SERVICE:
                yield f"init refuses a service with {key}"
            elif not SERVICE[key](value):
                yield f"{key}: {value!r}"
        if service.get("ondemand") and service.get("critical") not in (None, 0):
            yield "init refuses a service that is both critical and on demand"
        named = {job["name"] for job in cfg.get("jobs", [])}
        for job in service.get("jobs", {}).values():
            if job not in named:
                yield f"there is no job {job}"
    for job in cfg.get("jobs", []):
        if job.keys() != {"name", "cmds"}:
            yield f"a job has a name and cmds: {sorted(job)}"
        for command in job.get("cmds", []):
            form = COMMANDS.get(command.split(" ")[0], r"(?!)")
            if not re.fullmatch(form, command):
                yield f"command {command!r}"


class OpenHarmony(Test):
    def setUp(self):
        super().setUp()
        self.raw = (CONF / "openharmony/profinfer.cfg").read_text()
        self.cfg = json.loads(self.raw)

    def test_it_is_as_documented(self):
        self.assertEqual(list(faults(self.cfg)), [])
        self.assertLessEqual(len(self.raw), LARGEST)
        self.assertTrue(self.raw.isascii())

    def test_a_crash_never_boots_the_board(self):
        (service,) = self.cfg["services"]
        self.assertEqual((service["critical"][0], service["importance"], service["once"]), (0, 0, 0))

    def test_what_is_wrong_is_found(self):
        def wrong(**change):
            cfg = copy.deepcopy(self.cfg)
            cfg["services"][0].update(change)
            return list(faults(cfg))

        for change in [
            {"caps": ["BPF"]},
            {"caps": [64]},
            {"path": ["profinfer"]},
            {"path": ["/" + 64 * "x"]},
            {"path": ["/x"] + 20 * ["y"]},
            {"name": ""},
            {"name": 33 * "x"},
            {"uid": None},
            {"critical": [1, 0, 5]},
            {"start-mode": "late"},
            {"secon": "profinfer"},
            {"jobs": {"on-start": "not there"}},
            {"jobs": {"on-fire": "boot"}},
            {"ondemand": True},
            {"nice": 3},
        ]:
            self.assertTrue(wrong(**change), change)
        self.assertTrue(list(faults({"jobs": [{"name": "boot", "cmds": ["mkdir  /x"]}]})))
        self.assertTrue(list(faults({"service": []})))


if __name__ == "__main__":
    unittest.main()
