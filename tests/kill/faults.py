#!/usr/bin/env python3
"""Makes one system call at a time fail in a recorder or a service, and checks the result.

usage: faults.py [NUMBER] [--part I/N] [--at-once N] [--only NAME[,NAME]] [--keep FILE]

NUMBER (60) of refusals are spread over recordings of each kind (trials.py) and over classes of calls: descriptors, memory,
threads, BPF, probes, writes; 0 runs all of them. After each refusal the recording must be complete or say what is missing, or
the program must end with a message that gives the reason. Panics, signals and hangs are failures. The file must be readable
up to its end, the engine must keep running, and nothing may remain in the system. A service must continue, or end with a
message. Needs root, cc, `profinfer` and the fake engine. Exit code 1: a check failed; 3: the trials cannot run here. --part
runs the I-th of N parts (from 0). FILE receives one line of JSON per trial.
"""

import collections
import errno

import trials
import world

# Errors returned for each class of calls (stops.c), in turn.
ERRORS = {
    "descriptor": ("EMFILE", "ENFILE", "EACCES"),
    "memory": ("ENOMEM",),
    "thread": ("EAGAIN",),
    "bpf": ("EPERM", "ENOMEM", "EAGAIN", "E2BIG"),
    "probe": ("EMFILE", "EPERM", "ENOSPC", "EINVAL"),
    "write": ("ENOSPC", "EINTR", "EIO", "EPIPE"),
    "sync": ("EIO", "ENOSPC", "EACCES"),
    "read": ("EIO", "EINTR", "ESRCH"),
    "wait": ("EINTR",),
}
# Seconds that a recording continues after its first probe. With a budget, probes come and go while prices are measured,
# which takes as long as the machine is busy: such a recording ends by its tokens.
LENGTH, LENGTH_BUDGET = 0.8, 20.0


def length(way):
    return LENGTH_BUDGET if way == "budget" else LENGTH


def verdict(bench, way, spec, state, files, figures):
    """Failures in its exit status and messages."""
    said = bench.file("err").read_text()
    figures["said"], figures["code"] = said[-400:], state["code"]
    if not spec:
        return [f"undisturbed it ended with {state['code']}: {said}"] if state["code"] else []
    if trials.NOT_OURS.search(said):
        figures["not ours"] = True
        return []
    wrong = [f"ended by signal {state['signal']}: {said[-300:]}"] if state["signal"] and state["end"] == "ended" else []
    wrong += [f"says: {said[-300:]}" for word in ("unwrap", "RUST_BACKTRACE", "costs 0 ns") if word in said][:1]
    service = trials.WAYS[way][2] is None
    if state["code"] and not said.strip() and not (service and way == "recorder"):
        wrong.append(f"ended with {state['code']} and without a word")
    if not state["code"] and not service:
        why = world.Trace(files[0]).unexplained() if files else "there is no file"
        # A loss reported by the recorder itself is an explanation, too.
        if why and "none lost" in said and said.count("\n") < 2:
            wrong.append(f"ended well, but {why}")
    return wrong


def refusals(way, reference, n):
    """The refusals to try on one way of recording, as jobs: all, or `n`."""
    chosen = []
    for name, errors in ERRORS.items():
        calls = reference[name]
        # Consecutive reads or waits are much alike.
        step = 7 if name in ("read", "wait") else 1
        ks = range(1, calls + 1, step)
        if n:
            count = min(len(ks), max(1, n // len(ERRORS)))
            ks = [ks[i * len(ks) // count] for i in range(count)] if ks else []
        # Every way starts with the first error of a class: that keeps the choice easy to follow.
        chosen += [("-r", f"{name}:{k}:{getattr(errno, errors[i % len(errors)])}", length(way)) for i, k in enumerate(ks)]
    return chosen


def table(made):
    rows = collections.defaultdict(list)
    for way, spec, wrong, figures, state in made:
        if figures is not None:
            rows[way, spec.split(":")[0]].append((wrong, figures, state))
    print(f"{'':14}{'refused':12}{'trials':>7}{'wrong':>7}{'went well':>11}{'a message':>11}{'not ours':>10}")
    for (way, name), all_of in sorted(rows.items()):
        well = sum(state.get("code") == 0 for _, _, state in all_of)
        theirs = sum(bool(f.get("not ours")) for _, f, _ in all_of)
        print(f"{way:14}{name:12}{len(all_of):7}{sum(bool(w) for w, _, _ in all_of):7}{well:11}"
              f"{len(all_of) - well - theirs:11}{theirs:10}")


def main():
    series, jobs = trials.Series(__doc__, verdict), []
    for way, reference in series.undisturbed(length):
        n = series.number and max(len(ERRORS), round(series.number * trials.WAYS[way][0]))
        jobs += [(way, *job) for job in refusals(way, reference, n)]
    series.run(jobs)
    table(series.done)
    series.end("refusals")


if __name__ == "__main__":
    main()
