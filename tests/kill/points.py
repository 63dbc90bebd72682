#!/usr/bin/env python3
"""Kills recorders and services at one system call after another, and checks what each leaves.

usage: points.py [NUMBER] [--part I/N] [--at-once N] [--only NAME[,NAME]] [--keep FILE]

NUMBER (60) of kills are spread over recordings of each kind (trials.py) and over the phases of each. If there are enough,
they include every system call of attaching and detaching. From point to point, the process is killed before, after or during
the call. Afterwards the file must be readable, no event older than a second may be missing, the engine must continue and
reach the right counts, and nothing of the recorder may remain in the kernel. Needs root, cc, `profinfer` and the fake
engine. Exit code 1: a check failed; 3: the trials cannot run here. --part runs the I-th of N parts (from 0). FILE receives
one line of JSON per trial. The table shows: failures, file contents, kills after which breakpoints stayed in functions (as
logged by the kernel), the maximum loss in seconds, the maximum time in seconds from the recorder's end until nothing
remained, and how often that time was over two seconds.
"""

import collections

import trials
import world

HOWS = ("entry", "exit", "inside")
# Share of a way's points for each phase; points that a phase has no calls for go to the next phase.
SHARES = (("attach", 0.34), ("detach", 0.34), ("begin", 0.04), ("close", 0.08), ("record", 0.10), ("load", 1.0))
# Seconds that a recording continues after its first probe: long enough to lose events where the loss is checked.
SHORT, LONG = 1.3, 3.0
# The loss is checked only if the last probe was attached at least this long before.
SETTLED = 1.05
# The recorder receives an event after at most this time.
LATENCY = 0.2


def verdict(bench, way, spec, state, files, figures):
    """Failure if too much of the time before the kill is missing, provided that the recording had run long enough."""
    if spec and state["end"] != "killed":
        # This run made fewer calls than the reference.
        figures["beyond"] = True
    # A recording ends with the signal, and its probes are removed after that.
    killed, until = state["killed"], min(t for t in (state["sent"], state["detaching"], state["killed"]) if t)
    recording = state.get("at", {}).get("phase") in ("record", "detach", "close")
    looked_at = recording and trials.WAYS[way][2] is not None and way != "budget" and state["last_probe"]
    if not looked_at or until - state["last_probe"] < SETTLED:
        return []
    # Without any event, everything since the last probe is lost.
    last = max([state["last_probe"], *(world.Trace(f).last() or 0 for f in files)])
    figures["loss"] = round(until - last, 3)
    # While it detaches, fewer and fewer events are recorded.
    lost = killed - last >= 1 and until - last >= LATENCY
    return [f"the last event is of {killed - last:.2f} s before the kill"] if lost else []


def spread(n, count):
    """`count` of the numbers 1 to n, evenly."""
    count = min(n, count)
    return [1 + i * n // count for i in range(count)]


def points(reference, n):
    """The points to try on one way of recording, as jobs."""
    chosen, rest = [], n
    for phase, share in SHARES:
        calls = reference[phase]
        count = min(calls, rest, max(1, round(n * share)))
        length = LONG if phase == "record" else SHORT
        places = enumerate(spread(calls, count) if count else [])
        chosen += [("-k", f"{phase}:{k}:{HOWS[i % 3]}", length) for i, k in places]
        rest -= count
    return chosen


def table(killed, names):
    """Prints the results, one line per way and phase."""
    rows = collections.defaultdict(list)
    for way, spec, wrong, figures, state in killed:
        if figures is not None and spec:
            rows[way, state.get("at", {}).get("phase", "beyond the end")].append((wrong, figures))
    print(f"{'':14}{'phase':16}{'killed':>7}{'wrong':>7}{'no file':>9}{'header':>8}{'blocks':>8}{'stale':>7}"
          f"{'loss':>7}{'gone':>7}{'late':>6}")
    for (way, phase), all_of in sorted(rows.items()):
        kinds = collections.Counter(f.get("file") for _, f in all_of)
        losses = [f["loss"] for _, f in all_of if "loss" in f]
        gone = [f["gone"] for _, f in all_of if "gone" in f]
        print(f"{way:14}{phase:16}{len(all_of):7}{sum(bool(w) for w, _ in all_of):7}{kinds['no file']:9}"
              f"{kinds['empty'] + kinds['header']:8}{kinds['blocks']:8}{sum(bool(f.get('stale')) for _, f in all_of):7}"
              f"{max(losses, default=0):7.2f}{max(gone, default=0):7.2f}{sum(g > world.PROMISED for g in gone):6}")
    calls = {state["at"]["call"] for _, _, _, _, state in killed if "at" in state}
    print(f"at {len(calls)} different calls: {', '.join(sorted(names.get(c, str(c)) for c in calls))}")


def main():
    series = trials.Series(__doc__, verdict)
    total, jobs = sum(trials.WAYS[way][0] for way in series.ways), []
    for way, reference in series.undisturbed(lambda _: LONG):
        print(f"{way}: {reference['all']} calls, " + ", ".join(f"{phase} {reference[phase]}" for phase, _ in SHARES))
        jobs += [(way, *place) for place in points(reference, max(6, round(series.number * trials.WAYS[way][0] / total)))]
    leaked = world.leaks()
    series.run(jobs)
    killed, names = series.done, series.names
    table(killed, names)
    threads = {t: (way, state["at"]) for way, _, _, _, state in killed if "at" in state for t in state["threads"]}
    by = collections.Counter()
    for (tid, what), n in (world.leaks() - leaked).items():
        if tid in threads:
            way, at = threads[tid]
            by[way, at["phase"], names.get(at["call"]), what] += n
    for (way, phase, call, what), n in sorted(by.items(), key=str):
        print(f"kernel: failed to {what}: {n} in {way}, {phase}, killed at {call}")
    series.end("kills")


if __name__ == "__main__":
    main()
