#!/usr/bin/env python3
"""The overhead of the idle service, and what it survives.

usage: service.py idle [SECONDS]             resident memory, and share of a core, while it waits
       service.py finder [SECONDS]           share of a core while programs start that are no engines
       service.py churn [SECONDS]            ten engines a second, each alive for more than a second
       service.py soak [MINUTES] [--clock]   engines and service killed, disk full, endless configuration reloads;
                                             with --clock, the machine's clock is set too: do not run with other work
       service.py soak [MINUTES] --attackers another user attacks (tests/hostile/attack.py) while root's engines start: none
                                             of them may be missed, and `status` must answer within a second

Needs root, `profinfer` and the fake engine: PROFINFER and ENGINE select others than those in target/. ATTACKS selects
some of the attacks. The service's log is kept in the file named by LOG. Exits with 1 if any check fails.
"""

import atexit
import ctypes
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROFINFER = os.environ.get("PROFINFER", ROOT / "target/release/profinfer")
ENGINE = pathlib.Path(os.environ.get("ENGINE", ROOT / "target/tests/fixtures/modern/fakellama"))
MIB = 1 << 20
PATIENCE = 60
wrong = []


def check(holds, what):
    """Records a failed check."""
    if not holds:
        wrong.append(what)
        print("WRONG:", what, flush=True)


def bpf_objects():
    """Programs, maps and links in the kernel, by its own listing (BPF_*_GET_NEXT_ID of bpf(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    counts = []
    for command in (11, 12, 31):
        n, attr = 0, (ctypes.c_uint32 * 32)()
        while libc.syscall(number, command, attr, ctypes.sizeof(attr)) == 0:
            attr[0] = attr[1]
            n += 1
        counts.append(n)
    return counts


class Service:
    """The service with a private directory, and engines that nothing else uses."""

    def __init__(self, own="", rule="", memory=None):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="profinfer-service."))
        self.traces = self.dir / "d"
        self.traces.mkdir(mode=0o700)
        if memory:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={memory},mode=700", "tmpfs", self.traces], check=True)
        self.mounted = bool(memory)
        shutil.copytree(ENGINE.parent, self.dir / "engine")
        self.engine = self.dir / "engine" / ENGINE.name
        self.configure(own, rule)
        self.start()

    def configure(self, own, rule):
        text = f'[service]\ndirectory = "{self.traces}"\nstatus = "{self.dir}/status.json"\n'
        text += f'socket = "{self.dir}/control"\n{own}\n[[rule]]\nname = "all"\nexe = "{self.engine}"\n{rule}\n'
        text += '[[rule]]\nname = "others"\nignore = true\n'
        (self.dir / "conf.toml").write_text(text)

    def start(self):
        log = open(self.dir / "log", "a")
        command = [PROFINFER, "serve", "--conf", self.dir / "conf.toml"]
        self.process = subprocess.Popen(command, stderr=log, start_new_session=True)
        self.wait_for(lambda s: s, "the service answers")

    def state(self):
        asked = [PROFINFER, "status", "--json", "--socket", self.dir / "control"]
        said = subprocess.run(asked, capture_output=True)
        return json.loads(said.stdout) if said.returncode == 0 else None

    def wait_for(self, done, what, patience=PATIENCE):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            state = self.state()
            if state and done(state):
                return state
            time.sleep(0.05)
        check(False, f"in vain: {what}")
        return self.state() or {}

    def run(self, tokens, op_ns=300000, hold=0.0):
        """An engine: about 35 ops per token, each a sleep; waits `hold` seconds first, as if loading a model."""
        command = [self.engine, "--hold", str(hold), "-t", "1", "-p", "4", "-n", str(tokens), "--op-ns", str(op_ns), "--sleep"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def reports(self):
        """Every trace with its report; None if it cannot be read."""
        for trace in sorted(self.traces.glob("*.pfi")):
            said = subprocess.run([PROFINFER, "report", "--json", trace], capture_output=True)
            yield trace, json.loads(said.stdout) if said.returncode == 0 else None, said.stderr.decode()

    def bytes(self):
        return sum(f.stat().st_size for f in self.traces.glob("*.pfi"))

    def said(self, text):
        """Lines of the log that contain this text."""
        return [line for line in (self.dir / "log").read_text().splitlines() if text in line]

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            check(self.process.wait(PATIENCE) == 0, "the service ends when it is told to")
        if self.mounted:
            subprocess.run(["umount", "-l", self.traces], check=False)
        log = (self.dir / "log").read_text()
        print(log[-3000:] if wrong else "", end="")
        if kept := os.environ.get("LOG"):
            pathlib.Path(kept).write_text(log)
        shutil.rmtree(self.dir, ignore_errors=True)


def cpu_and_memory(pid):
    """CPU seconds and resident bytes of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    memory = {l.split(":")[0]: int(l.split()[1]) for l in status.splitlines() if l.startswith(("VmRSS", "RssAnon"))}
    return cpu, memory["VmRSS"] * 1024, memory["RssAnon"] * 1024


def exact_cpu(pid):
    """CPU seconds of a process: the kernel's own sum, as ticks are too coarse."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def idle(seconds):
    service = Service("idle-timeout = \"1s\"")
    time.sleep(15)  # calibration is done and its recorder has exited
    pid = service.process.pid
    before = exact_cpu(pid)
    time.sleep(seconds)
    took, (_, resident, anonymous) = exact_cpu(pid) - before, cpu_and_memory(pid)
    share = 100 * took / seconds
    print(f"idle for {seconds} s: {share:.4f} % of a core; {resident / 1e6:.2f} MB resident, {anonymous / 1e6:.2f} MB of it its own")
    check(share <= 0.1, "at most 0.1 % of a core")
    check(resident <= 5e6, "at most 5 MB resident")
    service.end()


def finder(seconds):
    """Each mapped file and exec is a notice of the kernel to the service."""
    service = Service("idle-timeout = \"1s\"")
    time.sleep(15)  # calibration is done and its recorder has exited
    for what, pause in (("50 programs a second", 0.02), ("programs one after the other", 0)):
        before, begin, started = exact_cpu(service.process.pid), time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            started += 1
            subprocess.run(["true"], check=True)
            time.sleep(max(0, begin + started * pause - time.monotonic()))
        took = time.monotonic() - begin
        share = 100 * (exact_cpu(service.process.pid) - before) / took
        print(f"{what}, {started / took:.0f} a second: {share:.3f} % of a core")
    service.end()


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def calls_in(trace, pid):
    """Engine calls that a trace contains for a process."""
    command = [PROFINFER, "export", "--chrome", "-", "--pid", str(pid), trace]
    said = subprocess.run(command, capture_output=True)
    if said.returncode:
        check("no engine call" in said.stderr.decode(), f"{trace.name}: {said.stderr.decode()}")
        return 0
    calls = [e for e in json.loads(said.stdout)["traceEvents"] if e["ph"] == "B" and "token" in e["args"]]
    return len(calls)


def churn(seconds):
    objects = bpf_objects()
    service = Service('max-concurrent = 64\nidle-timeout = "20s"', 'level = "graph"\nbudget = "100%"')
    service.wait_for(lambda s: s["rules"][0]["recorder"], "a recorder learns what hits cost")
    time.sleep(6)
    before = descriptors(service.process.pid), cpu_and_memory(service.process.pid)
    engines, lives, begin = [], [], time.time()
    for i in range(10 * seconds):
        engines.append((time.time(), service.run(70, hold=0.3)))
        time.sleep(max(0, begin + (i + 1) / 10 - time.time()))
    calls = {}
    for started, engine in engines:
        out = json.loads(engine.communicate()[0])
        calls[engine.pid] = out["calls"]["llama_decode"]
    state = service.wait_for(lambda s: s["state"] == "waiting", "all runs have ended")
    counts = state["counts"]
    check(counts["seen"] == len(engines), f"{counts['seen']} of {len(engines)} engines were seen")
    check(counts["recorded"] == len(engines), f"{counts['recorded']} of {len(engines)} were recorded: {counts}")
    recorded, lost = {}, 0
    for trace, report, why in service.reports():
        check(report, f"{trace}: {why}")
        for kind in report["quality"]["events"] if report else []:
            check(kind["closes"], f"{trace.name}: the counts of {kind['kind']} do not agree")
            lost += kind["lost"]
        for process in report["run"]["processes"] if report else []:
            recorded[process["pid"]] = recorded.get(process["pid"], 0) + calls_in(trace, process["pid"])
    whole = sum(recorded.get(pid, 0) >= n for pid, n in calls.items())
    none = sum(recorded.get(pid, 0) == 0 for pid in calls)
    check(none == 0, f"{none} engines have no call in any trace")
    service.wait_for(lambda s: all(r["recorder"] is None for r in s["rules"]), "recorders have gone")
    time.sleep(1)
    after = descriptors(service.process.pid), cpu_and_memory(service.process.pid)
    check(after[0] <= before[0], f"descriptors: {before[0]} before, {after[0]} after")
    print(
        f"{len(engines)} engines in {seconds} s: {counts['recorded']} recorded, {whole} of them from the first call to the "
        f"last, {lost} events lost; the service: {before[0]} descriptors before and {after[0]} after, "
        f"{before[1][1] / 1e6:.2f} MB before and {after[1][1] / 1e6:.2f} MB after"
    )
    service.end()
    time.sleep(1)
    check(bpf_objects() == objects, f"the kernel's BPF programs, maps, links: {objects} before, {bpf_objects()} after")


def soak(minutes, clock):
    quota = 16 * MIB
    own = f'max-concurrent = 64\nquota = {quota}\nfile-size = {3 * MIB}\nidle-timeout = "2s"'
    rules = ['budget = "90%"', 'level = "graph"', 'budget = "100%"\nsample-one-in = 2', 'ring = "1min"\nring-size = "1MiB"']
    service = Service(own, rules[0], memory="40m")
    engines, most, kills, full, reloads = [], 0, [0, 0], 0, 0
    filler = service.traces / "filler"
    end, offset = time.monotonic() + 60 * minutes, time.time() - time.monotonic()
    while time.monotonic() < end:
        engines = [e for e in engines if e.poll() is None]
        if len(engines) < 6:
            fast = random.random() < 0.3
            engines.append(service.run(random.randint(5, 400), 5000 if fast else 300000))
        # Ten rounds per second: an engine is killed every five seconds, the service every minute, and so on.
        chance = random.random() / 4
        if chance < 0.005 and engines:
            random.choice(engines).kill()
            kills[0] += 1
        elif chance < 0.0055:
            service.process.kill()
            service.process.wait()
            kills[1] += 1
            service.start()
        elif chance < 0.0065:
            reloads += 1
            service.configure(own, random.choice(rules))
            for _ in range(random.randint(1, 50)):
                service.process.send_signal(signal.SIGHUP)
        elif chance < 0.007 and not filler.exists():
            full += 1
            with open(filler, "wb") as f:
                try:
                    while True:
                        f.write(b"x" * MIB)
                        f.flush()
                except OSError:
                    pass
        elif chance < 0.010 and filler.exists():
            filler.unlink()
        elif chance < 0.012 and clock:
            step = random.choice((-3600, -5, 5, 3600))
            time.clock_settime(time.CLOCK_REALTIME, time.time() + step)
        most = max(most, service.bytes())
        check(service.process.poll() is None, "the service goes on")
        if wrong:
            break
        time.sleep(0.1)
    if clock:
        time.clock_settime(time.CLOCK_REALTIME, offset + time.monotonic())
    filler.unlink(missing_ok=True)
    for engine in engines:
        engine.kill()
        engine.wait()
    state = service.wait_for(lambda s: s["state"] == "waiting", "all runs have ended")
    check(most <= quota, f"{most} bytes of traces, the quota is {quota}")
    # Only the service and engines were killed; recorders end with a reason, the first one that occurred.
    for text in ("has died", "was ended by signal", "ended with code", "earlier write error", "panicked"):
        check(not service.said(text), f"{text}: {service.said(text)[:1]}")
    finished = unfinished = 0
    for trace, report, why in service.reports():
        check(report, f"{trace.name}: {why}")
        damage = (report or {}).get("quality", {}).get("damage") or []
        # A full disk or a kill leaves a torn tail; complete blocks before it are never damaged.
        check(all("the file ends inside" in str(d) for d in damage), f"{trace.name}: {damage}")
        kinds = (report or {}).get("quality", {}).get("events") or []
        finished += bool(kinds)
        unfinished += not kinds
        check(all(k["closes"] for k in kinds), f"{trace.name}: {[k for k in kinds if not k['closes']]}")
    print(
        f"{minutes} min: {kills[0]} engines and {kills[1]} services killed, {full} times disk full, {reloads} storms of "
        f"reloads; at most {most / MIB:.1f} MiB of {quota / MIB:.0f}; of the traces left {finished} have counts that agree, "
        f"{unfinished} were cut; counts {state.get('counts')}"
    )
    service.end()


ATTACKS = os.environ.get("ATTACKS", "sparse cut pipe hold flood twin pointing").split()
NOBODY = 65534


class Attackers:
    """Processes of another user, one for each attack, in a directory of that user."""

    def __init__(self, service):
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="profinfer-attack."))
        service.dir.chmod(0o711)
        shutil.copytree(ENGINE.parent, self.place / "engine")
        # Trace file names contain the program's name; this one keeps them apart from root's traces.
        engine = (self.place / "engine" / ENGINE.name).rename(self.place / "engine/other")
        shutil.copy(ROOT / "tests/hostile/attack.py", self.place)
        # The file that `pointing` names, and a process that runs it.
        self.victim = service.dir / "victim"
        shutil.copy("/bin/sleep", self.victim)
        self.runs = subprocess.Popen([self.victim, "1000000"])
        library = self.place / "engine/libfakeggml.so"
        # Only for this engine are functions located through the target's memory.
        shutil.copytree(ENGINE.parent.with_name("dead-barrier-stripped"), self.place / "pointing-engine")
        self.place.chmod(0o755)
        self.all = []
        # An interpreter that every user may run.
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
        for name in ATTACKS:
            own = self.place / name
            own.mkdir()
            os.chown(own, NOBODY, NOBODY)
            victim = service.engine.parent / "libfakeggml.so" if name == "twin" else self.victim
            command = [python, self.place / "attack.py", name, own, library, engine, victim]
            self.all.append(subprocess.Popen(
                command, user=NOBODY, group=NOBODY, extra_groups=[], start_new_session=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def stop(self):
        for attacker in self.all:
            try:
                os.killpg(attacker.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            attacker.wait()
        self.all = []

    def end(self):
        """Stops the attackers and checks that they have not changed the text of another user's process."""
        self.stop()
        changed = changed_text(self.runs.pid, self.victim)
        check(not changed, f"{changed} bytes of the text of another user's process were changed")
        self.runs.kill()
        self.runs.wait()
        shutil.rmtree(self.place, ignore_errors=True)


def changed_text(pid, program):
    """Number of bytes of a program's text in memory that differ from its file."""
    changed, file = 0, pathlib.Path(program).read_bytes()
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, how, offset, *_ = line.split()
        if line.endswith(str(program)) and "x" in how:
            begin, end = (int(x, 16) for x in span.split("-"))
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                memory.seek(begin)
                changed += sum(a != b for a, b in zip(memory.read(end - begin), file[int(offset, 16):]))
    return changed


class Asker(threading.Thread):
    """Requests the status repeatedly; keeps the slowest response time, and the memory and descriptors of the recorders."""

    def __init__(self, service):
        super().__init__(daemon=True)
        self.service, self.slowest, self.unanswered, self.samples, self.done = service, 0.0, 0, [], False

    def run(self):
        while not self.done:
            begin = time.monotonic()
            state = self.service.state()
            took = time.monotonic() - begin
            self.slowest = max(self.slowest, took)
            self.unanswered += state is None
            self.samples.append(self.sample())
            time.sleep(0.25)

    def sample(self):
        """Bytes and descriptors of the service, and of its child process with the most memory."""
        pid, most = self.service.process.pid, (0, 0)
        try:
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                most = max(most, (cpu_and_memory(child)[2], descriptors(child)))
            return cpu_and_memory(pid)[2], descriptors(pid), *most
        except (OSError, KeyError, IndexError):
            return 0, 0, 0, 0


def keep(service):
    """Links traces of root's engines into a directory that the quota does not cover; returns all of them."""
    kept = service.dir / "kept"
    kept.mkdir(exist_ok=True)
    for trace in service.traces.glob(f"*-{ENGINE.name}-*.pfi"):
        if not (kept / trace.name).exists():
            os.link(trace, kept / trace.name)
    return sorted(kept.glob("*.pfi"))


def of_processes(traces, pids):
    """Number of recorded calls for each of these processes."""
    recorded = dict.fromkeys(pids, 0)
    for trace in traces:
        said = subprocess.run([PROFINFER, "report", "--json", trace], capture_output=True)
        for process in json.loads(said.stdout)["run"]["processes"] if said.returncode == 0 else []:
            if process["pid"] in recorded:
                recorded[process["pid"]] += calls_in(trace, process["pid"])
    return recorded


def grown(asker):
    """Maximum (bytes, descriptors) of a recorder in the second and in the last fifth of the time."""
    samples = asker.samples or [(0, 0, 0, 0)]
    fifth = max(1, len(samples) // 5)
    most = lambda part: tuple(max(column) for column in zip(*part))[2:]
    return most(samples[fifth:2 * fifth] or samples), most(samples[-fifth:])


def attacked(minutes):
    """Starts root's engines continuously while another user attacks."""
    other = '\n[[rule]]\nname = "nobody"\nexe = "**"\nuser = "nobody"\n'
    rule = 'level = "graph"\nbudget = "100%"\nuser = "root"\n' + other
    service = Service('quota = "1GiB"\nfile-size = "8MiB"\nidle-timeout = "2s"', rule)
    service.wait_for(lambda s: s["state"] == "waiting", "it waits")
    before = descriptors(service.process.pid), cpu_and_memory(service.process.pid)[2]
    attackers, asker = Attackers(service), Asker(service)
    # Both must end with this script.
    atexit.register(service.process.kill)
    atexit.register(attackers.stop)
    asker.start()
    end, engines, running = time.monotonic() + 60 * minutes, [], []
    while time.monotonic() < end and service.process.poll() is None:
        running = [e for e in running if e.poll() is None]
        if len(running) < 4:
            engines.append(service.run(70, hold=1.0))
            running.append(engines[-1])
        keep(service)
        time.sleep(1)
    check(service.process.poll() is None, "the service goes on")
    # PIDs are reused during a long run: add up the calls of all engines with the same PID.
    calls = {}
    for engine in engines:
        made = json.loads(engine.communicate()[0])["calls"]["llama_decode"]
        calls[engine.pid] = calls.get(engine.pid, 0) + made
    asker.done = True
    asker.join(PATIENCE)
    attackers.end()
    service.wait_for(lambda s: all(r["recorder"] is None for r in s["rules"]), "recorders have gone")
    recorded = of_processes(keep(service), calls)
    missed = sum(n == 0 for n in recorded.values())
    more = sum(n > calls[pid] for pid, n in recorded.items())
    whole = sum(n == calls[pid] for pid, n in recorded.items())
    after = descriptors(service.process.pid), cpu_and_memory(service.process.pid)[2]
    early, late = grown(asker)
    mb = lambda n: f"{n / 1e6:.1f} MB"
    check(not missed, f"{missed} of root's {len(calls)} runs have no call in any trace")
    check(not more, f"{more} of root's runs have more calls in their traces than they made")
    check(asker.slowest <= 1, f"an answer took {asker.slowest:.1f} s")
    check(not asker.unanswered, f"{asker.unanswered} times there was no answer")
    check(after[0] <= before[0], f"descriptors of the service: {before[0]} before, {after[0]} after")
    check(after[1] <= before[1] + 2 * MIB, f"the service: {mb(before[1])} before, {mb(after[1])} after")
    check(late[0] <= 1.5 * early[0] + 8 * MIB, f"a recorder: {mb(early[0])} early, {mb(late[0])} late")
    check(late[1] <= early[1] + 64, f"descriptors of a recorder: {early[1]} early, {late[1]} late")
    print(
        f"{minutes} min with {len(ATTACKS)} attackers: of {len(calls)} runs of root's {len(calls) - missed} recorded, {whole} of "
        f"them from the first call to the last; slowest answer {asker.slowest:.2f} s; the service: {mb(before[1])} and "
        f"{before[0]} descriptors before, {mb(after[1])} and {after[0]} after; a recorder: at most {mb(early[0])} and "
        f"{early[1]} descriptors early, {mb(late[0])} and {late[1]} late"
    )
    service.end()


def main():
    what, *rest = sys.argv[1:] or ["help"]
    number = next((float(a) for a in rest if not a.startswith("-")), None)
    jobs = {
        "idle": lambda: idle(int(number or 60)),
        "finder": lambda: finder(int(number or 10)),
        "churn": lambda: churn(int(number or 60)),
        "soak": lambda: soak(number or 30, "--clock" in rest),
        "attacked": lambda: attacked(number or 20),
    }
    if what == "soak" and "--attackers" in rest:
        what = "attacked"
    if what not in jobs:
        sys.exit(__doc__)
    jobs[what]()
    sys.exit(1 if wrong else 0)


main()
