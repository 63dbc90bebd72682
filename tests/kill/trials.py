"""Trials: an engine, its recorder under a tracer that kills it or makes a call fail, and checks of what remains. Several
workers run trials, each in a separate directory. Uses `world`."""

import argparse
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import world

# Ways to record: share of the points, whether a running process is recorded, flags (None: by the service).
WAYS = {
    "pid": (0.30, True, []),
    "command": (0.14, False, ["--leave-running"]),
    "perf": (0.14, True, ["--source", "perf"]),
    "perf-command": (0.08, False, ["--source", "perf", "--leave-running"]),
    "budget": (0.10, True, ["--budget", "1%", "--tokens", "8"]),
    "sched": (0.08, True, ["--sched"]),
    "service": (0.06, True, None),
    "recorder": (0.10, True, None),
}

# Rust's standard library ends the program with a message if memory is refused to a thread that has not started yet.
NOT_OURS = re.compile(r"failed to allocate an alternative stack|failed to set up alternative stack guard page|"
                      r"cannot allocate memory for thread-local data|memory allocation of \d+ bytes failed")


def possible():
    """Whether trials can run here; if not, prints why."""
    there = not os.geteuid() and shutil.which(os.environ.get("CC", "cc")) and world.FIXTURE.exists()
    if not there:
        print("needs root, a C compiler and the fake engine", file=sys.stderr)
    return there


# With a budget the recording begins only when prices have been measured: under a tracer, that takes seconds.
LONGER = 4000


def tokens_of(way, engine):
    """Number of tokens that the engine decodes in a trial of this way."""
    return LONGER if way == "budget" else engine.tokens


class Bench:
    """One worker's directory, engine, and processes that have not ended yet."""

    def __init__(self, tool):
        world.adopt()
        self.tool, self.dir = tool, pathlib.Path(tempfile.mkdtemp(prefix="profinfer-kill."))
        self.engine = world.Engine(self.dir)
        self.account = {tokens: self.engine.account(tokens) for tokens in (self.engine.tokens, LONGER)}
        self.ending = {}
        self.n, self.target = 0, None
        self.wrong = []

    def file(self, name):
        return self.dir / f"{self.n}.{name}"

    def start_engine(self, tokens):
        # Not with subprocess, which would reap the process itself.
        args = self.engine.args(tokens)
        to = [(os.POSIX_SPAWN_OPEN, fd, path, os.O_WRONLY | os.O_CREAT, 0o600)
              for fd, path in ((1, self.file("said")), (2, "/dev/null"))]
        return os.posix_spawn(args[0], args, os.environ, file_actions=to)

    def trace(self, command, option, spec, length, child=None):
        """Runs a recorder under the tracer; returns the tracer's report."""
        asked = [self.tool, "-t", "60", "-o", self.file("state")]
        if spec:
            asked += [option, spec]
        if child:
            asked += ["-c", child]
        if length:
            asked += ["-i", f"2:{length}"]
        with open(self.file("err"), "w") as err, open(self.file("said.command"), "w") as out:
            subprocess.run([*map(str, asked), "--", *map(str, command)], stderr=err, stdout=out, check=True)
        return json.loads(self.file("state").read_text())

    def reap(self, pid, name, place):
        """Lets an engine run to its end; its result is checked later."""
        self.ending[pid] = (self.file(name), place, self.account[tokens_of(place[0], self.engine)])

    def take(self, pid):
        """Reaps a process that is not one of our engines, if it has ended; true: it is still running."""
        try:
            return pid not in self.ending and pid != self.target and not os.waitpid(pid, os.WNOHANG)[0]
        except ChildProcessError:
            return False

    def settle(self, all_of_them=False):
        """Reaps the engines that have ended and checks their results."""
        end = time.monotonic() + 180
        while self.ending:
            for pid in list(self.ending):
                found, status = os.waitpid(pid, os.WNOHANG)
                if not found:
                    continue
                path, place, account = self.ending.pop(pid)
                counts = world.said(path)
                # A command that was never released has no output.
                held_back = counts is None and path.name.endswith(".command")
                if not held_back and (status or counts != account):
                    self.wrong.append((place, f"the engine ended with {status:#x} and counts {counts}"))
                path.unlink(missing_ok=True)
            if not all_of_them or time.monotonic() > end:
                break
            time.sleep(0.02)
        if all_of_them:
            self.wrong += [(place, f"process {pid} does not end") for pid, (_, place, _) in self.ending.items()]

    def close(self):
        self.settle(True)
        world.kill_children()
        shutil.rmtree(self.dir, ignore_errors=True)


def configure(bench):
    """Configures a service for the engine, in a new directory."""
    place = bench.dir / f"service{bench.n}"
    place.mkdir()
    (place / "d").mkdir(mode=0o700)
    (place / "conf.toml").write_text(
        f'[service]\ndirectory = "{place}/d"\nstatus = "{place}/status.json"\nsocket = "{place}/control"\n'
        f'[[rule]]\nname = "all"\nexe = "{bench.engine.program}"\nbudget = "100%"\n'
        '[[rule]]\nname = "others"\nignore = true\n')
    return place


def run_one(bench, way, option, spec, length):
    """Makes one recording, with the tracer's `option` at `spec`. Returns the target engine (None: a command was recorded), the
    tracer's report, and the file or directory that was created."""
    bench.n += 1
    _, running, flags = WAYS[way]
    tokens = tokens_of(way, bench.engine)
    target = bench.target = bench.start_engine(tokens) if running else None
    if flags is None:
        place = configure(bench)
        state = bench.trace([world.PROFINFER, "serve", "--conf", place / "conf.toml"], option, spec, length + 1.5,
                            child="profinfer-rec" if way == "recorder" else None)
        return target, state, place
    trace = bench.file("pfi")
    command = [world.PROFINFER, "record", "-o", trace, *flags]
    command += ["-p", str(target)] if running else ["--", *bench.engine.args(tokens)]
    return target, bench.trace(command, option, spec, length), trace


def end_service(bench, state, way):
    """Checks that a service survives the kill of its recorder, then stops it and waits until its processes have ended."""
    wrong = []
    pid = state["program"]
    if way == "recorder":
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            wrong += [] if state["sent"] else ["the service has ended with its recorder"]
    end = time.monotonic() + world.GRACE
    while any(bench.take(child) for child, exe in world.children().items() if exe in (str(world.PROFINFER), "")):
        if time.monotonic() > end:
            wrong.append(f"service or recorder go on after {world.GRACE:.0f} s")
            break
        time.sleep(0.02)
    return wrong


def look(bench, way, spec, target, state, made):
    """Checks the state afterwards; returns failures, figures, and the files."""
    wrong, figures = [], {}
    orphans = {p: e for p, e in world.children().items() if p != target and p not in bench.ending}
    engines = [p for p, e in orphans.items() if e == str(bench.engine.program)]
    # A command that is still held runs the recorder's program; it must end.
    texts = {p: bench.engine.directory for p in [target, *engines] if p}
    before = {p: world.switches(p) for p in texts}
    if WAYS[way][2] is None:
        wrong += end_service(bench, state, way)
    found, figures["gone"] = world.wait_until_gone(state, texts, orphans)
    figures["stale"] = bool(found) and world.admitted(found, state)
    wrong += [] if figures["stale"] else [f"left after {world.GRACE} s: {what}" for what in found]
    for pid, then in before.items():
        now = world.switches(pid)
        if now is not None and then is not None and now <= then:
            time.sleep(0.2)
            now = world.switches(pid)
            if now is not None and now <= then:
                wrong.append(f"process {pid} stands still")
    if target:
        bench.reap(target, "said", (way, spec))
    for pid in orphans:
        if pid in engines:
            bench.reap(pid, "said.command", (way, spec))
            continue
        end = time.monotonic() + world.GRACE
        while (goes_on := bench.take(pid)) and time.monotonic() < end:
            time.sleep(0.01)
        wrong += [f"process {pid} ({orphans[pid]}) is left"] if goes_on else []
    said = bench.file("err").read_text()
    if "panicked" in said and not NOT_OURS.search(said):
        wrong.append(said[said.index("panicked"):][:200])
    files = sorted(made.glob("d/*.pfi")) if made.is_dir() else [made]
    figures["file"] = "no file"
    for path in files:
        trace = world.Trace(path)
        figures["file"] = trace.kind
        if why := trace.wrong():
            wrong.append(why)
    if state["end"] == "slow":
        wrong.append("it did not end")
    return wrong, figures, files


def worker(tool, verdict, jobs, results):
    try:
        work(Bench(tool), verdict, jobs, results)
    finally:
        results.put(None)


def work(bench, verdict, jobs, results):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for way, option, spec, length in iter(jobs.get, None):
        made, state = bench.dir, {}
        try:
            target, state, made = run_one(bench, way, option, spec, length)
            wrong, figures, files = look(bench, way, spec, target, state, made)
            wrong += verdict(bench, way, spec, state, files, figures)
        except Exception as e:  # noqa: BLE001: an error in the trial itself is reported as a failure
            wrong, figures = [f"trial failed: {e!r}"], {}
        for path in (made if made.is_dir() else bench.dir).glob("**/*.pfi"):
            path.unlink(missing_ok=True)
        bench.settle()
        results.put((way, spec, wrong, figures, state))
    bench.close()
    for (way, spec), what in bench.wrong:
        results.put((way, spec, [what], None, {}))


def run(tool, verdict, jobs, at_once):
    """Runs all jobs (way, tracer option, place, seconds) in workers; yields (way, place, failures, figures, state)."""
    # Workers end with this process, even if it is terminated.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    queue, results = multiprocessing.Queue(), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=worker, args=(tool, verdict, queue, results), daemon=True)
               for _ in range(at_once)]
    for job in jobs + [None] * at_once:
        queue.put(job)
    for w in workers:
        w.start()
    running = at_once
    while running:
        result = results.get()
        if result is None:
            running -= 1
        else:
            yield result
    for w in workers:
        w.join()


class Series:
    """The trials that a command line asks for, and their results."""

    def __init__(self, doc, verdict):
        """Reads the command line, described by `doc`, and ends the program if no trials can run here. `verdict` judges a
        trial."""
        asked = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        asked.add_argument("number", nargs="?", type=int, default=60)
        asked.add_argument("--part", default="0/1")
        asked.add_argument("--at-once", type=int, default=3)
        asked.add_argument("--only", default=",".join(WAYS))
        asked.add_argument("--keep")
        asked = asked.parse_args()
        if not possible():
            sys.exit(3)
        self.number, self.ways, self.at_once = asked.number, asked.only.split(","), asked.at_once
        self.part, self.parts = map(int, asked.part.split("/"))
        self.kept = open(asked.keep, "a") if asked.keep else None
        self.scratch = tempfile.mkdtemp(prefix="profinfer-trials.")
        self.tool, self.names, self.verdict = world.tool(self.scratch), world.names_of_calls(), verdict
        self.begin, self.done, self.wrong = time.monotonic(), [], 0

    def complain(self, place, bad):
        self.wrong += len(bad)
        print("".join(f"WRONG: {place}: {what}\n" for what in bad), end="", flush=True)

    def undisturbed(self, length):
        """Runs each way once as a reference, for its number of calls, each for `length(way)` seconds; returns (way, state) in
        the order of the ways."""
        states, jobs = {}, [(w, None, None, length(w)) for w in self.ways]
        for way, _, bad, _, state in run(self.tool, self.verdict, jobs, self.at_once):
            self.complain(f"{way}, undisturbed", bad)
            if state:
                states[way] = state
        return [(way, states[way]) for way in self.ways if way in states]

    def run(self, jobs):
        """Runs this part of the jobs."""
        for trial in run(self.tool, self.verdict, jobs[self.part::self.parts], self.at_once):
            self.done.append(trial)
            way, spec, bad, _, state = trial
            at = state.get("at", {})
            self.complain(f"{way} {spec} ({self.names.get(at.get('call'))}, {at.get('phase')})", bad)
            if self.kept:
                self.kept.write(json.dumps(trial) + "\n")
                self.kept.flush()

    def end(self, what):
        """Prints the total and ends the program."""
        print(f"{len(self.done)} {what} in {time.monotonic() - self.begin:.0f} s, {self.wrong} wrong")
        shutil.rmtree(self.scratch, ignore_errors=True)
        sys.exit(1 if self.wrong else 0)
