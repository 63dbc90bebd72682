#!/usr/bin/env python3
"""Installing and removing the service: `profinfer install`, the init script, the scripts for boards (with fake ssh
and hdc), and the Debian package."""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
import unittest
from pathlib import Path

from common import CONF, LAYERS, PROFINFER, ROOT, RUNNER, TARGET, Test

INITS = {
    "systemd": "etc/systemd/system/profinfer.service",
    "sysv": "etc/init.d/profinfer",
    "procd": "etc/init.d/profinfer",
    "openharmony": "system/etc/init/profinfer.cfg",
    "none": None,
}


def tree(root):
    """Files below a directory, with their mode and content."""
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.lstat().st_mode), path.read_bytes())
        for path in Path(root).rglob("*")
        if path.is_file() and not path.is_symlink()
    }


class Install(Test):
    def setUp(self):
        super().setUp()
        self.need_profinfer()
        self.root = self.dir / "root"
        self.root.mkdir(mode=0o755)

    def install(self, *arguments, code=0, **options):
        return self.run_it(PROFINFER, "install", "--root", self.root, *arguments, code=code, **options)

    def test_every_init_system_gets_its_file(self):
        for init, file in INITS.items():
            self.root = self.dir / init
            self.root.mkdir(mode=0o755)
            said = self.install("--init", init)
            prefix = {"openharmony": "system", "procd": "usr"}.get(init, "usr/local")
            conf = "system/etc/profinfer/profinfer.toml" if init == "openharmony" else "etc/profinfer/profinfer.toml"
            files = tree(self.root)
            self.assertEqual(set(files), {f"{prefix}/bin/profinfer", conf} | ({file} if file else set()))
            # Not compared by assertEqual: to show where two programs differ takes it hours.
            self.assertTrue(files[f"{prefix}/bin/profinfer"] == (0o755, PROFINFER.read_bytes()), "another program")
            self.assertEqual(files[conf][0], 0o600)
            if file:
                mode, content = files[file]
                self.assertEqual(mode, 0o755 if "init.d" in file else 0o644)
                self.assertIn(f"/{prefix}/bin/profinfer".encode(), content)
                self.assertIn(f"/{conf}".encode(), content)
            self.assertRegex(said.splitlines()[-1], "^next: ")
            again = self.install("--init", init)
            self.assertIn("exists, kept", again)
            self.assertTrue(tree(self.root) == files, "what is there was changed")
            self.install("--init", init, "--uninstall")
            self.assertEqual(set(tree(self.root)), {conf})

    def test_the_init_system_is_found(self):
        def found(sign):
            root = self.dir / sign.replace("/", "_")
            (root / sign).mkdir(parents=True)
            return self.run_it(PROFINFER, "install", "--dry-run", "--root", root).splitlines()[0]

        self.assertEqual(found("run/systemd/system"), "init system: systemd")
        self.assertEqual(found("usr/lib/systemd/systemd"), "init system: systemd")
        self.assertEqual(found("etc/init.d"), "init system: sysv")
        self.assertEqual(found("sbin/procd"), "init system: procd")
        self.assertEqual(found("system/etc/init"), "init system: openharmony")
        self.assertEqual(found("etc"), "init system: none")

    def test_a_dry_run_says_all_and_does_nothing(self):
        said = self.install("--dry-run", "--init", "systemd", "--prefix", "/opt/x")
        for name in ["opt/x/bin/profinfer", "etc/profinfer/profinfer.toml", INITS["systemd"]]:
            self.assertIn(f"would write {self.root / name} (", said)
        self.assertEqual(list(self.root.iterdir()), [])

    def test_the_prefix_is_in_unit_and_script(self):
        self.install("--init", "systemd", "--prefix", "/opt/x/")
        unit = (self.root / INITS["systemd"]).read_text()
        self.assertIn("ExecStart=/opt/x/bin/profinfer serve --conf /etc/profinfer/profinfer.toml", unit)
        self.assertNotIn("/usr/bin/profinfer", unit)
        for bad in ["opt", "/a b", "/a/../b", "/%n", "/$x", ""]:
            self.install("--init", "systemd", f"--prefix={bad}", code=2)

    def test_a_configuration_that_is_there_stays(self):
        conf = self.root / "etc/profinfer/profinfer.toml"
        conf.parent.mkdir(parents=True)
        conf.write_text("# mine\n")
        self.install("--init", "sysv")
        self.assertEqual(conf.read_text(), "# mine\n")

    def test_planted_links_are_refused(self):
        aim = self.dir / "aim"
        aim.write_text("untouched")
        for name in ["usr/local/bin/profinfer", "etc/profinfer/profinfer.toml", INITS["systemd"]]:
            for make in [lambda p: p.symlink_to(aim), lambda p: p.mkdir()]:
                root = self.root = Path(self.dir / f"r{len(list(self.dir.iterdir()))}")
                (root / name).parent.mkdir(parents=True)
                make(root / name)
                for more in [[], ["--dry-run"], ["--uninstall"]]:
                    if more == ["--uninstall"] and name.endswith("toml"):
                        continue
                    said = self.install("--init", "systemd", *more, code=1)
                    self.assertIn(str(root / name), said)
        # A link at the place of the new file is removed, not followed.
        self.root = self.dir / "new"
        (self.root / "etc/systemd/system").mkdir(parents=True)
        (self.root / (INITS["systemd"] + ".new")).symlink_to(aim)
        self.install("--init", "systemd")
        self.assertEqual(aim.read_text(), "untouched")

    def test_folders_that_are_not_ours_are_refused(self):
        (self.root / "usr").symlink_to(self.dir)
        self.assertIn("points outside", self.install("--init", "sysv", code=1))
        (self.root / "usr").unlink()
        (self.root / "usr").mkdir()
        (self.root / "usr").chmod(0o777)
        self.assertIn("can be changed by other users", self.install("--init", "sysv", code=1))
        if os.geteuid() == 0:
            (self.root / "usr").chmod(0o755)
            os.chown(self.root / "usr", 4242, 4242)
            self.assertIn("can be changed by other users", self.install("--init", "sysv", code=1))
        self.assertEqual(tree(self.root), {})

    def test_what_cannot_be_done_is_said(self):
        self.assertIn("the nearest is 'sysv'", self.install("--init", "sysvv", code=2))
        self.assertIn("No such file", self.run_it(PROFINFER, "install", "--root", self.dir / "not", code=1))
        self.assertIn("not a directory", self.run_it(PROFINFER, "install", "--root", __file__, code=1))

    def test_openharmony_has_its_own_places(self):
        self.install("--init", "openharmony")
        (service,) = json.loads((self.root / INITS["openharmony"]).read_text())["services"]
        self.assertEqual(service["path"], ["/system/bin/profinfer", "serve", "--conf", "/system/etc/profinfer/profinfer.toml"])
        conf = (self.root / "system/etc/profinfer/profinfer.toml").read_text()
        self.assertNotIn("/var/lib/", conf)
        self.assertNotIn('"/run/', conf)


STAND_IN = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile sig_atomic_t got;
static void on(int signal) { got = signal; }
int main(int n, char **words) {
    FILE *conf = n == 4 && !strcmp(words[1], "serve") && !strcmp(words[2], "--conf") ? fopen(words[3], "r") : NULL;
    char line[16] = "";
    if (!conf || !fgets(line, sizeof line, conf) || strncmp(line, "good", 4)) return fputs("bad configuration\n", stderr), 1;
    struct sigaction act = {.sa_handler = on};
    sigaction(SIGHUP, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    puts("started");
    for (;;) {
        fflush(stdout);
        pause();
        puts(got == SIGHUP ? "reloaded" : "stopped");
        if (got == SIGTERM) return 0;
    }
}
"""


class InitScript(Test):
    """conf/sysv/profinfer with a stand-in for the service, in a private mount namespace."""

    def setUp(self):
        super().setUp()
        self.need("cc", "unshare", "setsid")
        self.need_root()
        (self.dir / "stand-in.c").write_text(STAND_IN)
        self.run_it("cc", "-o", self.dir / "profinfer", self.dir / "stand-in.c")
        (self.dir / "conf").write_text("good\n")
        (self.dir / "default").mkdir()
        (self.dir / "default/profinfer").write_text(f"PROG={self.dir}/profinfer CONF={self.dir}/conf LOG={self.dir}/log\n")

    def play(self, *lines):
        """Runs shell lines in which $S is the script; their output."""
        setup = [
            "set -u",
            "mount --make-rprivate /",
            "mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib",
            f"mount --bind {self.dir}/default /etc/default",
            f"S={CONF}/sysv/profinfer",
            "trap '$S stop >/dev/null' EXIT",
        ]
        return self.run_it("unshare", "--mount", "sh", "-c", "\n".join([*setup, *lines]))

    def test_it_starts_reloads_and_stops(self):
        said = self.play(
            "$S status; echo $?", "$S start; echo $?", "$S start; echo $?", "$S status; echo $?", "$S reload; echo $?",
            "stat -c %a /run/profinfer /var/lib/profinfer", "$S restart; echo $?", "$S try-restart >/dev/null; echo $?",
            "$S stop; echo $?", "$S stop; echo $?", "$S reload; echo $?", "$S try-restart; echo $?", "$S status; echo $?",
            "$S what 2>/dev/null; echo $?", "ls /run/profinfer",
        )  # fmt: skip
        pids = "".join(said.split("pid ")[1:])
        self.assertTrue(pids)
        lines = [line.split(" (pid")[0] for line in said.splitlines()]
        self.assertEqual(
            lines,
            ["profinfer: does not run", "3", "profinfer: started", "0", "profinfer: runs already", "0", "profinfer: runs", "0", "0"]
            + ["700", "700", "profinfer: stopped", "profinfer: started", "0", "0", "profinfer: stopped", "0"]
            + ["profinfer: does not run", "0", "profinfer: does not run", "7", "0", "profinfer: does not run", "3", "2"],
        )
        self.assertEqual((self.dir / "log.1").read_text().splitlines(), ["started", "stopped"])

    def test_reload_reaches_the_service(self):
        self.play("$S start", "$S reload", f"until grep -q reloaded {self.dir}/log; do sleep 0.05; done", "$S stop")
        self.assertEqual((self.dir / "log").read_text().splitlines(), ["started", "reloaded", "stopped"])

    def test_what_keeps_it_from_starting_is_said(self):
        said = self.play("echo bad >$(sed -n 's/.*CONF=\\([^ ]*\\).*/\\1/p' /etc/default/profinfer)", "$S start; echo $?", "$S status; echo $?")
        self.assertEqual(said.splitlines(), ["profinfer: did not start:", "bad configuration", "1", "profinfer: does not run", "3"])
        self.assertIn("does not exist", self.play(f"rm {self.dir}/conf", "$S start; echo $?"))
        self.assertIn("is a link", self.play(f"echo good >{self.dir}/conf", "ln -s /tmp /run/profinfer", "$S start; echo $?"))

    def test_a_pid_file_of_before_is_not_believed(self):
        # The PID of another process, and an invalid one.
        said = self.play(
            "sleep 60 & other=$!", "mkdir /run/profinfer", "echo $other >/run/profinfer/pid", "$S status; echo $?", "$S stop",
            "kill -0 $other && echo alive", "echo x >/run/profinfer/pid", "$S start; $S status >/dev/null; echo $?", "kill $other",
        )  # fmt: skip
        self.assertIn("is dead", said)
        self.assertIn("alive", said)
        self.assertEqual(said.splitlines()[-1], "0")


FAKE_SSH = r"""#!/bin/sh
echo "ssh $1: $2" >>"$LOG"
case $2 in
*mktemp*) if [ -n "${ANSWER:-}" ]; then printf '%s\n' "$ANSWER"; else mktemp -d /tmp/profinfer.XXXXXX; fi ;;
*--version) [ -z "${NO_RUN:-}" ] && echo profinfer 0.1.0 ;;
'id -u') echo "${FAKE_UID:-0}" ;;
'uname -m') echo riscv64 ;;
'test -d /run/systemd/system') [ "${INIT:-systemd}" = systemd ] ;;
'test -x /etc/init.d/profinfer') [ "${INIT:-systemd}" = sysv ] ;;
'rm -rf /tmp/profinfer.'[a-zA-Z0-9]*) sh -c "$2" ;;
'rm -rf '*) echo 'touch "$LOG.ran"' ;;
*profinfer\ install*) [ -z "${NO_INSTALL:-}" ] ;;
esac
"""
FAKE_SCP = '#!/bin/sh\necho "scp $2 $3" >>"$LOG"\n'
FAKE_HDC = r"""#!/bin/sh
echo "hdc $*" >>"$LOG"
[ "$1" != -t ] || shift 2
case "$1 $2" in
'list targets') printf "${TARGETS:-board}\r\n" ;;
'shell id -u'*) printf "${FAKE_UID:-0}\r\ncode=0\r\n" ;;
'shell cd'*--version*) [ -z "${NO_RUN:-}" ] && printf 'profinfer 0.1.0\r\ncode=0\r\n' || printf 'code=126\r\n' ;;
'shell '*touch*) printf "code=${READ_ONLY:-0}\r\n" ;;
'shell test -f'*) printf "code=${NO_FILE:-0}\r\n" ;;
'shell '*) printf 'code=0\r\n' ;;
esac
# Like the real one, its exit code never shows that a command failed.
exit 0
"""


class Remote(Test):
    def setUp(self):
        super().setUp()
        self.log = self.dir / "log"
        self.binary = self.script("profinfer", "#!/bin/sh\n")
        self.conf = self.dir / "my.toml"
        self.conf.write_text("# mine\n")
        for name, text in [("ssh", FAKE_SSH), ("scp", FAKE_SCP), ("hdc", FAKE_HDC)]:
            self.script(name, text)

    def play(self, script, *arguments, code=0, shell="sh", **env):
        """Output of a script, and the commands it ran."""
        self.log.write_text("")
        env = {**os.environ, "PATH": f"{self.dir}:{os.environ['PATH']}", "LOG": str(self.log), **env}
        said = self.run_it(shell, CONF / script, *arguments, code=code, env=env)
        return said, self.log.read_text()

    def ssh(self, *arguments, **options):
        return self.play("install-ssh.sh", *arguments, **options)

    def hdc(self, *arguments, **options):
        return self.play("install-hdc.sh", *arguments, **options)

    def test_ssh_installs_and_starts(self):
        said, asked = self.ssh("--conf", self.conf, "me@board", self.binary)
        place = asked.split("scp ")[1].split("me@board:")[1].split("/profinfer\n")[0]
        self.assertIn("profinfer 0.1.0", said)
        lines = asked.splitlines()
        order = [
            "mktemp", f"scp {self.binary} me@board:{place}/profinfer", "--version", "id -u", f"scp {self.conf}", "profinfer.toml.old",
            f"{place}/profinfer install", "test -d /run/systemd", "systemctl restart profinfer", f"rm -rf {place}",
        ]  # fmt: skip
        at = -1
        for part in order:
            found = [i for i, line in enumerate(lines) if part in line and i > at]
            self.assertTrue(found, f"{part} after line {at} of:\n{asked}")
            at = found[0]
        self.assertFalse(Path(place).exists())

    def test_a_board_cannot_name_what_runs_here(self):
        for shell in filter(shutil.which, ("dash", "bash", "mksh")):
            for six in ["'|sh;'", "';id;'", "';./*'", "a b;id", "$(id)", "abcde", "abcdefg", "abcdeé", "abcde\n", "../../"]:
                said, asked = self.ssh("--dry-run", "board", self.binary, code=1, shell=shell, ANSWER=f"/tmp/profinfer.{six}")
                self.assertIn("instead of a directory name", said)
                self.assertEqual(len(asked.splitlines()), 1, asked)
                self.assertFalse(Path(f"{self.log}.ran").exists(), f"{shell}: {six}")

    def test_a_configuration_is_for_root_alone(self):
        _, asked = self.ssh("--conf", self.conf, "board", self.binary)
        self.assertRegex(asked, "umask 077; cp [^;]* profinfer.toml; chmod 0600 profinfer.toml")
        _, asked = self.hdc("--conf", self.conf, self.binary)
        self.assertRegex(asked, "umask 077 && cp profinfer.toml /system/[^ ]* && chmod 600 /system/")

    def test_ssh_passes_on_what_is_asked(self):
        _, asked = self.ssh("--init", "sysv", "--prefix", "/opt/p", "board", self.binary, INIT="sysv")
        self.assertIn("profinfer install   --init sysv --prefix /opt/p\n", asked)
        self.assertIn("/etc/init.d/profinfer restart", asked)
        _, asked = self.ssh("--dry-run", "--conf", self.conf, "board", self.binary, FAKE_UID="1000")
        self.assertIn("sudo -n /tmp/profinfer.", asked)
        self.assertIn("install --dry-run", asked)
        self.assertNotIn("systemctl", asked)
        self.assertNotIn(str(self.conf), asked)
        _, asked = self.ssh("--no-start", "board", self.binary)
        self.assertNotIn("systemctl", asked)
        _, asked = self.ssh("--uninstall", "board", self.binary)
        self.assertIn("--uninstall", asked)
        self.assertNotIn("systemctl", asked)

    def test_ssh_says_what_went_wrong(self):
        for arguments, code, why in [
            ([], 2, "HOST is needed"),
            (["board", self.binary, "x"], 2, "unexpected 'x'"),
            (["--prefix", "/a;b", "board"], 2, "letters, digits"),
            (["--init", "upstart", "board"], 2, "systemd, sysv"),
            (["--what"], 2, "unknown option"),
            (["board", self.dir / "not"], 1, "run make dist"),
            (["--conf", self.dir / "not", "board", self.binary], 1, "cannot be read"),
        ]:
            said, asked = self.ssh(*arguments, code=code)
            self.assertIn(why, said)
            self.assertEqual(asked, "")
        said, asked = self.ssh("board", self.binary, code=1, NO_RUN="1")
        self.assertIn("does not run on board (riscv64)", said)
        self.assertIn("rm -rf", asked)
        said, _ = self.ssh("board", self.binary, code=1, NO_INSTALL="1")
        self.assertIn("profinfer install failed", said)
        self.assertIn("usage: install-ssh.sh", self.ssh("--help")[0])

    def test_hdc_installs(self):
        said, asked = self.hdc("--conf", self.conf, "--target", "k1", "--reboot", self.binary)
        lines = asked.splitlines()
        self.assertTrue(all(line.startswith("hdc -t k1 ") for line in lines if "list targets" not in line), asked)
        place = asked.split("mkdir ")[1].split(";")[0]
        self.assertRegex(place, "^/data/local/tmp/profinfer[.][0-9a-f]{16}$")
        order = [
            "list targets", "id -u", f"umask 077; mkdir {place}", f"file send {self.binary} {place}/profinfer", "--version",
            "target mount", "remount", f"file send {self.conf} {place}/profinfer.toml", "mv -f", "install --init openharmony",
            "shell reboot", f"shell rm -rf {place}",
        ]  # fmt: skip
        at = -1
        for part in order:
            found = [i for i, line in enumerate(lines) if part in line and i > at]
            self.assertTrue(found, f"{part} after line {at} of:\n{asked}")
            at = found[0]
        self.assertIn("the board boots", said)

    def test_hdc_runs_nothing_from_a_directory_of_others(self):
        _, asked = self.hdc(self.binary)
        ran = [line.split(" shell ", 1)[1] for line in asked.splitlines() if "./profinfer" in line]
        self.assertEqual(len(ran), 2, asked)
        place = asked.split("mkdir ")[1].split(";")[0]
        here, other = self.dir / "here", self.dir / "other"
        other.mkdir(mode=0o755)
        other.chmod(0o1777)
        self.script("other/profinfer", "#!/bin/sh\necho runs\n")

        def exchanged():
            for command in ran:
                said = self.run_it("sh", "-c", command.replace(place, str(here)))
                self.assertRegex(said, "no longer the directory that was made\ncode=1\n$")
                self.assertNotIn("runs", said)

        here.symlink_to(other)
        exchanged()
        here.unlink()
        other.rename(here)
        exchanged()
        here.chmod(0o700)
        for command in ran:
            self.assertEqual(self.run_it("sh", "-c", command.replace(place, str(here))), "runs\ncode=0\n")
        if os.geteuid() == 0:
            os.chown(here, 2000, 2000)
            exchanged()

    def test_hdc_dry_run_leaves_the_system_alone(self):
        said, asked = self.hdc("--dry-run", "--conf", self.conf, self.binary)
        self.assertIn("install --init openharmony --dry-run", asked)
        for no in ["mount", "reboot", str(self.conf)]:
            self.assertNotIn(no, asked)

    def test_hdc_says_what_went_wrong(self):
        for env, why in [
            ({"TARGETS": "[Empty]"}, "no board"),
            ({"TARGETS": r"a\r\nb"}, "several boards"),
            ({"FAKE_UID": "2000"}, "not root"),
            ({"NO_RUN": "1"}, "does not run on the board"),
            ({"READ_ONLY": "1"}, "stays read-only"),
            ({"NO_FILE": "1"}, "did not arrive"),
            ({"HDC": "no-such-hdc"}, "OpenHarmony SDK"),
        ]:
            said, asked = self.hdc(self.binary, code=1, **env)
            self.assertIn(why, said)
            self.assertNotIn("install --init", asked)
        self.assertIn("make dist", self.hdc(self.dir / "not", code=1)[0])
        self.assertIn("usage: install-hdc.sh", self.hdc("--what", code=2)[0])


class Debian(Test):
    def setUp(self):
        super().setUp()
        self.need("dpkg-deb", "dpkg")
        self.made_dist()

    def build(self, version):
        env = {**os.environ, "PROFINFER_DIST": str(self.dir / "dist"), "PROFINFER_VERSION": version}
        return Path(self.run_it(ROOT / "cross" / "deb.sh", TARGET, env=env).strip())

    def test_the_package_holds_what_belongs_in_it(self):
        deb = self.build("1.2")
        about = self.run_it("dpkg-deb", "--info", deb)
        self.assertIn("Version: 1.2\n", about)
        self.assertNotIn("Depends:", about)
        self.assertRegex(about, r"Section: devel\n(.*\n)*? Homepage: https://\S+\n")
        names = self.run_it("dpkg-deb", "--contents", deb)
        for mode, name in [
            ("-rwxr-xr-x root/root", "./usr/bin/profinfer"),
            ("-rwxr-xr-x root/root", "./usr/bin/ggml-runner"),
            *(("-rw-r--r-- root/root", f"./usr/lib/profinfer/{file.name}") for file in LAYERS),
            ("-rw-r--r-- root/root", "./usr/lib/systemd/system/profinfer.service"),
            ("-rw------- root/root", "./etc/profinfer/profinfer.toml"),
            ("-rwxr-xr-x root/root", "./etc/init.d/profinfer"),
            ("-rw-r--r-- root/root", "./usr/share/doc/profinfer/copyright"),
        ]:
            self.assertTrue(any(line.startswith(mode) and line.endswith(name) for line in names.splitlines()), name)
        told = self.run_it("sh", "-c", f"dpkg-deb --fsys-tarfile {deb} | tar xO ./usr/share/doc/profinfer/copyright")
        # Each page is one that the program prints, and man can show it.
        pages = re.findall(r"\./usr/share/man/man1/(\S+)\.1\.gz$", names, re.MULTILINE)
        listed = {program.name: re.findall(r"^  (\S+)", self.run_it(program, "--help").split("\n\n")[2], re.MULTILINE)
                  for program in [PROFINFER, RUNNER]}
        self.assertEqual(set(pages), {*listed, *(f"{program}-{name}" for program, names in listed.items() for name in names)})
        tree = self.dir / "tree"
        self.run_it("dpkg-deb", "--extract", deb, tree)
        for page in pages:
            text = gzip.decompress((tree / f"usr/share/man/man1/{page}.1.gz").read_bytes()).decode()
            self.assertRegex(text, rf"\.SH NAME\n{page}".replace("-", r"\\?\\?-"))
        for file, shell in [
            ("bash-completion/completions/profinfer", "bash"),
            ("zsh/vendor-completions/_profinfer", "zsh"),
            ("fish/vendor_completions.d/profinfer.fish", "fish"),
        ]:
            for program in [PROFINFER, RUNNER]:
                said = (tree / "usr/share" / file.replace("profinfer", program.name)).read_text()
                self.assertEqual(said, self.run_it(program, "completions", shell))
        for linked in ["elfutils/libelf", "libbpf", "zlib", "musl", "libgcc", "rust-std", "crates/libbpf-rs"]:
            self.assertIn(f"Files: {linked}/*", told)
        for holder in ["Red Hat, Inc.", "Jean-loup Gailly and Mark Adler", "Alexei Starovoitov", "Rich Felker"]:
            self.assertIn(holder, told)
        named = set(re.findall(r"^License: (.*)", told, re.MULTILINE))
        missing = [n for line in named for n in line.split(" or ") if f"\nLicense: {n}\n " not in told]
        self.assertEqual(missing, [], "licences named and not there")
        self.assertEqual(deb.read_bytes(), self.build("1.2").read_bytes(), "twice the same commit, twice the same bytes")

    def test_lintian_finds_no_error(self):
        self.need("lintian")
        # The address is that of the package's builder; the program is meant to be statically linked.
        no_matter = "bogus-mail-host,bogus-mail-host-in-debian-changelog,statically-linked-binary"
        said = self.run_it("lintian", "--allow-root", "--fail-on", "error", "--suppress-tags", no_matter, self.build("1.2"))
        self.assertNotIn("E:", said)

    def test_a_changed_configuration_survives_an_upgrade(self):
        self.need_root()
        root = self.dir / "root"
        for name in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"]:
            (root / name).mkdir(parents=True)
        for name in ["status", "available"]:
            (root / "var/lib/dpkg" / name).touch()

        def dpkg(*arguments):
            options = ["--force-script-chrootless", "--force-confdef", "--force-confold", "--log=/dev/null"]
            return self.run_it("dpkg", f"--root={root}", *options, *arguments, stdin=subprocess.DEVNULL)

        dpkg("--install", self.build("1.2"))
        conf = root / "etc/profinfer/profinfer.toml"
        self.assertEqual(conf.read_text(), (CONF / "profinfer.toml").read_text())
        conf.write_text("# mine\n")
        recording = root / "var/lib/profinfer/a.pfi"
        recording.parent.mkdir()
        recording.touch()
        dpkg("--install", self.build("1.3"))
        self.assertEqual(conf.read_text(), "# mine\n")
        dpkg("--remove", "profinfer")
        self.assertTrue(conf.exists() and recording.exists())
        self.assertFalse((root / "usr/bin/profinfer").exists())
        dpkg("--purge", "profinfer")
        self.assertFalse(conf.exists() or recording.exists())

    def test_what_is_missing_is_said(self):
        env = {**os.environ, "PROFINFER_DIST": str(self.dir / "empty")}
        self.assertIn("make dist", self.run_it(ROOT / "cross" / "deb.sh", code=1, env=env))
        self.assertIn("no Debian architecture", self.run_it(ROOT / "cross" / "deb.sh", "mips-x", code=1, env=env))


if __name__ == "__main__":
    unittest.main()
