#!/usr/bin/env python3
"""Gives an engine a higher priority while other programs take its CPUs, and takes it back afterwards.

    profinfer watch | examples/adapt/adapt.py --pid PID

Reads the events of `profinfer watch` (docs/EVENTS.md). Threads of an engine wait for each other after every op, spinning. If
one of them loses its CPU, all of them wait: the share of barriers and of waiting for a CPU rises, and a small load costs most
of the speed. A higher priority (a lower nice value) of the engine's threads ends that. Only the process named by --pid is
changed; what was changed is undone at the end, also after Ctrl-C and SIGTERM. docs/ADAPT.md has the figures, and what else was
tried.

Prints a line of JSON for each change. Needs the privilege to lower a nice value (root, or CAP_SYS_NICE).
"""

import argparse
import datetime
import json
import os
import signal
import sys
from dataclasses import dataclass, replace

# Share of the time in calls that is lost: above LOST threads are in each other's way, if they also wait for a CPU for more than
# WAITING of it; below CALM they are not.
LOST, WAITING, CALM = 0.45, 0.10, 0.30
# Seconds in a row that show it.
SIGNS = 2
# Seconds between two changes; and between raising and lowering, which doubles after each time that came too soon.
PAUSE, HOLD, MOST_HOLD = 3.0, 5.0, 80.0


@dataclass(frozen=True)
class State:
    raised: bool = False
    # When the last change was, and how long a raise lasts at least, s.
    changed: float = float("-inf")
    hold: float = HOLD
    # Events in a row that speak for a change.
    signs: int = 0


def lost(event):
    """Shares of a `second`'s decoding: lost in all, and by waiting for a CPU. None if that is not known: nothing is concluded."""
    for phase in event.get("phases") or []:
        bar = phase["bar"] if phase["phase"] == "decode" else None
        if bar and bar["barrier"] is not None and bar["waiting_for_cpu"] is not None:
            # Threads that are started for every graph may have no CPU for their start: that time is in no op.
            return bar["barrier"] + bar["waiting_for_cpu"] + bar["gaps"], bar["waiting_for_cpu"]
    return None


def decide(state, event, now):
    """What follows from an event at a time, s: the next state, and "raise", "lower" or None."""
    shares = lost(event) if event.get("event") == "second" else None
    if shares is None:
        return state, None
    share, waiting = shares
    if state.raised:
        state = replace(state, signs=state.signs + 1 if share < CALM else 0)
        if state.signs >= SIGNS and now - state.changed >= state.hold:
            return replace(state, raised=False, changed=now, signs=0), "lower"
        return state, None
    state = replace(state, signs=state.signs + 1 if share > LOST and waiting > WAITING else 0)
    if state.signs < SIGNS or now - state.changed < PAUSE:
        return state, None
    # Lowered a moment ago: that was too early, or the load comes and goes.
    early = now - state.changed < 2 * HOLD
    hold = min(2 * state.hold, MOST_HOLD) if early else HOLD
    return replace(state, raised=True, changed=now, hold=hold, signs=0), "raise"


class Engine:
    """The threads of one process. Threads that come later have the priority of the one that started them."""

    def __init__(self, pid, by):
        self.pid, self.by, self.before, self.raised = pid, by, {}, False
        self.start = self.started()

    def started(self):
        """When the process began: another process may get its number."""
        try:
            with open(f"/proc/{self.pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[19]
        except OSError:
            return None

    def threads(self):
        try:
            return [int(tid) for tid in os.listdir(f"/proc/{self.pid}/task")] if self.started() == self.start else []
        except OSError:
            return []

    def set(self, of):
        for tid in self.threads():
            try:
                os.setpriority(os.PRIO_PROCESS, tid, of(tid, os.getpriority(os.PRIO_PROCESS, tid)))
            except ProcessLookupError:
                pass

    def raise_(self):
        self.raised = True
        self.set(lambda tid, nice: max(self.before.setdefault(tid, nice) - self.by, -20))

    def lower(self):
        if self.raised:
            # A thread that began since has the priority of its parent: that of the first thread, raised as it was.
            usual = self.before.get(self.pid, 0)
            self.set(lambda tid, _: self.before.get(tid, usual))
        self.raised, self.before = False, {}


def seconds(event):
    return datetime.datetime.fromisoformat(event["t"]).timestamp()


def stop(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", type=int, required=True, help="first process of the engine's run: `pid` of its events")
    parser.add_argument("--by", type=int, default=5, choices=range(1, 21), metavar="N",
                        help="lower the nice value by N (default 5: three times the weight)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be changed, and change nothing")
    args = parser.parse_args()
    engine, state = Engine(args.pid, args.by), State()
    if engine.start is None:
        parser.error(f"there is no process {args.pid}")
    signal.signal(signal.SIGTERM, stop)
    try:
        for line in sys.stdin:
            event = json.loads(line)
            if event.get("pid") != args.pid:
                continue
            if event["event"] == "end":
                break
            state, action = decide(state, event, seconds(event))
            if action:
                if not args.dry_run:
                    engine.raise_() if action == "raise" else engine.lower()
                said = {"t": event["t"], "action": action, "lost": round(lost(event)[0], 4), "tok_s": event["tok_s"]}
                print(json.dumps(said), flush=True)
    except KeyboardInterrupt:
        pass
    except ValueError as e:
        sys.exit(f"adapt.py: not an event of `profinfer watch`: {e}")
    finally:
        for signal_ in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_, signal.SIG_IGN)
        engine.lower()


if __name__ == "__main__":
    try:
        main()
    except PermissionError:
        sys.exit("adapt.py: not allowed to lower a nice value: run it as root, or with CAP_SYS_NICE")
