"""What a closed loop gains: a llama.cpp engine of two threads under a load that comes and goes, alone and with
examples/adapt/adapt.py, which reads `profinfer watch`.

A run is one engine process that answers requests of 4 tokens without a pause, while a busy program on CPU 1 comes and goes.
Runs without and with the controller alternate; those without it are not recorded either, so that the cost of recording is part
of the difference. Figures are tokens/s by the client's clock over the whole run, while the load is there, and without it; and
the CPUs that the load got.

  steady   10 s of load, 10 s without it, twice
  flap     2 s and 2 s, six times: the controller is always late
  calm     no load at all: the engine gains nothing, and pays for the recording
  actions  what could be done by hand while the load stays, without any controller

Engine, load and service are in a session of highest weight (autogroup) where the kernel has those, so that other work on the
machine takes less from them.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

from common import ROOT, Bench, BenchError, Driver, Scratch, binary, engine, main, model, quartiles, spread

ADAPT = os.path.join(ROOT, "examples", "adapt", "adapt.py")
# Seconds with and without load, and how often.
PLANS = {"steady": [(10, True), (10, False)] * 2, "flap": [(2, True), (2, False)] * 6, "calm": [(20, False)]}
LABELS = {"all": "tok/s", "load": "tok/s under load", "calm": "tok/s without load", "cpus": "CPUs of the load"}
# Before the load first comes: the recorder attaches.
WARM = 8
RULES = """[service]
directory = "{dir}/d"
socket = "{dir}/sock"
status = "{dir}/status.json"
peaks-after = "never"

[[rule]]
name = "adapt"
exe = "{exe}"
level = "op"
budget = "{budget}"
"""


class Load:
    """A program that takes CPU 1."""

    def __init__(self):
        self.proc, self.used = None, 0.0

    def on(self):
        self.proc = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda: os.sched_setaffinity(0, {1}))

    def off(self):
        if self.proc:
            with open(f"/proc/{self.proc.pid}/stat") as f:
                ticks = f.read().rsplit(")", 1)[1].split()
            self.used += (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
            self.proc.kill()
            self.proc.wait()
        self.proc = None


class Loop:
    """The service, `watch`, and the controller of a process."""

    def __init__(self, scratch, pid, budget):
        at = scratch.file("service")
        os.makedirs(at + "/d", mode=0o700)
        with open(at + "/conf.toml", "w") as f:
            f.write(RULES.format(dir=at, exe=os.readlink(f"/proc/{pid}/exe"), budget=budget))
        self.events, self.log = at + "/events", open(at + "/log", "w")
        self.service = subprocess.Popen([binary("profinfer"), "serve", "--conf", at + "/conf.toml"], stdout=self.log,
                                        stderr=self.log)
        deadline = time.monotonic() + 60
        while not os.path.exists(at + "/sock"):
            if self.service.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"the service did not start: {open(at + '/log').read()[-1000:]}")
            time.sleep(0.05)
        self.watch = subprocess.Popen([binary("profinfer"), "watch", "--socket", at + "/sock"], stdout=subprocess.PIPE)
        tee = subprocess.Popen(["tee", self.events], stdin=self.watch.stdout, stdout=subprocess.PIPE)
        self.control = subprocess.Popen([sys.executable, ADAPT, "--pid", str(pid)], stdin=tee.stdout, stdout=subprocess.PIPE,
                                        text=True)
        self.tee = tee
        self.watch.stdout.close()
        tee.stdout.close()

    def end(self):
        """The controller's changes."""
        self.control.send_signal(signal.SIGTERM)
        said = self.control.communicate(timeout=30)[0]
        for proc in (self.watch, self.tee):
            proc.kill()
            proc.wait()
        self.service.send_signal(signal.SIGTERM)
        self.service.wait(60)
        self.log.close()
        return [json.loads(line) for line in said.splitlines()]

    def seconds(self):
        with open(self.events) as f:
            return [e for e in map(json.loads, f) if e["event"] == "second"]


class Client:
    """Asks an engine for 4 tokens again and again."""

    def __init__(self, driver):
        self.driver, self.answers, self.over = driver, [], False
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        try:
            self.driver.tell("prefill 16")
            while not self.over:
                self.driver.tell("run 4")
                self.answers.append(time.monotonic())
        except (BenchError, OSError, ValueError):
            pass

    def speed(self, spans):
        """Tokens/s in these spans of time; None: there are none."""
        if not spans:
            return None
        tokens = sum(4 for t in list(self.answers) for a, b in spans if a <= t < b)
        return tokens / sum(b - a for a, b in spans)

    def end(self):
        self.over = True
        self.thread.join(60)


def each_thread(pid, change):
    for at, tid in enumerate(sorted(map(int, os.listdir(f"/proc/{pid}/task")))):
        try:
            change(tid, at)
        except ProcessLookupError:
            # Some engines start new threads for every graph.
            pass


def one(plan, args, controlled):
    """Tokens/s over the run, under load, without; the load's CPUs; the changes, and the events."""
    with Scratch() as scratch:
        driver = Driver(engine(args.engine), model(args.model), 2, scratch.file("tokens"))
        load, loop, client, changes, events, spans = Load(), None, None, [], [], []
        try:
            if controlled:
                loop = Loop(scratch, driver.pid, args.budget)
            client = Client(driver)
            time.sleep(WARM)
            for span, busy in plan:
                load.on() if busy else load.off()
                begin = time.monotonic()
                time.sleep(span)
                spans.append((begin, time.monotonic(), busy))
        finally:
            load.off()
            if client:
                client.end()
            if loop:
                changes, events = loop.end(), loop.seconds()
            nice = {os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir(f"/proc/{driver.pid}/task")}
            driver.close()
        if nice != {0}:
            raise BenchError(f"the engine was left with nice values {nice}")
    spans_of = {busy: [(a, b) for a, b, there in spans if there == busy] for busy in (False, True)}
    return {"all": client.speed([(a, b) for a, b, _ in spans]), "load": client.speed(spans_of[True]),
            "calm": client.speed(spans_of[False]), "cpus": load.used / sum(b - a for a, b in spans_of[True]) if spans_of[True] else None,
            "changes": changes, "events": events}


def nice(by):
    return lambda tid, at: os.setpriority(os.PRIO_PROCESS, tid, -by)


ACTIONS = [
    ("no load", 2, False, None),
    ("nothing", 2, True, None),
    ("nice -1", 2, True, nice(1)),
    ("nice -5", 2, True, nice(5)),
    ("nice -15", 2, True, nice(15)),
    ("a CPU for each thread", 2, True, lambda tid, at: os.sched_setaffinity(tid, {at % 2})),
    ("CPU 0 for both threads", 2, True, lambda tid, at: os.sched_setaffinity(tid, {0})),
    ("restarted with one thread", 1, True, None),
]


def actions(args):
    print(f"\n== actions, {args.engine}: median tok/s [quartiles], and CPUs that the load got")
    for name, threads, busy, change in ACTIONS:
        speeds, cpus = [], []
        for _ in range(args.pairs or (2 if args.quick else 5)):
            with Scratch() as scratch:
                driver, load = Driver(engine(args.engine), model(args.model), threads, scratch.file("tokens")), Load()
                client = Client(driver)
                try:
                    time.sleep(1)
                    if busy:
                        load.on()
                    if change:
                        each_thread(driver.pid, change)
                    begin = time.monotonic()
                    time.sleep(5)
                    speeds.append(client.speed([(begin, time.monotonic())]))
                finally:
                    load.off()
                    cpus.append(load.used / 5)
                    client.end()
                    driver.close()
        print(f"  {name:26} {spread(speeds, 2):28} {quartiles(cpus)[1]:.2f}", flush=True)


def shielded():
    """Alone in a session of highest weight, if that is possible here."""
    try:
        if os.getpid() != os.getsid(0):
            os.setsid()
        with open("/proc/self/autogroup", "w") as f:
            f.write("-20")
        return True
    except OSError:
        return False


def run():
    bench = Bench("adapt", __doc__)
    add = bench.parser.add_argument
    add("--pairs", type=int, help="runs without and with the controller (5; 2 with --quick)")
    add("--plan", choices=[*PLANS, "actions"], help="only this load, or the table of actions")
    add("--engine", default="v0.5.0", help="a packaged engine (v0.5.0)")
    add("--model", default="llama1b-L4-q4_0", help="a generated model (llama1b-L4-q4_0)")
    add("--budget", default="100%", help="limit on the cost of recording (100%%: every op of every token)")
    add("--events", metavar="FILE", help="append the events of the controlled runs")
    args = bench.begin()
    if os.cpu_count() < 2:
        raise BenchError("two CPUs are needed")
    print(f"session of highest weight: {'yes' if shielded() else 'no: other work counts in full'}")
    if args.plan in (None, "actions"):
        actions(args)
    for name in [args.plan] if args.plan in PLANS else [] if args.plan else PLANS:
        all = {False: [], True: []}
        for pair in range(args.pairs or (2 if args.quick else 5)):
            for controlled in (False, True) if pair % 2 == 0 else (True, False):
                found = one(PLANS[name], args, controlled)
                all[controlled].append(found)
                figures = ", ".join(f"{what} {found[what]:.2f}" for what in LABELS if found[what] is not None)
                print(f"  {name} {'with   ' if controlled else 'without'} {figures}, {len(found['changes'])} changes", flush=True)
                if args.events and controlled:
                    with open(args.events, "a") as f:
                        f.writelines(json.dumps(e) + "\n" for e in found["events"] + found["changes"])
        print(f"\n== {name}: median [quartiles]")
        for what, label in LABELS.items():
            without, with_ = ([f[what] for f in all[c]] for c in (False, True))
            if None not in without:
                print(f"  {label:20} without {spread(without, 2):24} with {spread(with_, 2)}")
        gain = quartiles([f["all"] for f in all[True]])[1] / quartiles([f["all"] for f in all[False]])[1]
        least = {"steady": 1.2, "flap": 0.95, "calm": 0.9}[name]
        bench.judge(gain >= least, f"{name}: {gain:.2f} times the tokens/s without the controller (target: {least})")
    return bench.end()


main(run)
