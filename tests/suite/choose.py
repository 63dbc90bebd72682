"""Which parts a run holds: those of `make test`, those of the rest that a change can touch, and a turn of the others; of the
rest as many as its time allows. What was left out is owed: the next run begins with it."""

import json
import os
import subprocess
from pathlib import Path

from parts import BY_NAME, EVERYTHING, REST, SHORT, TURNS, touched

ROOT = Path(__file__).resolve().parents[2]
# The commit whose parts passed last here, the run in which each turn came last, and the parts that are owed: outside the
# tree, for the next clone.
STATE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer" / "suite.json"
# Without a commit that passed: a change is what is younger than this.
RECENT = "1 day ago"


def git(*arguments):
    """Lines of a git command's output; None if it failed."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


class State:
    """What earlier runs on this machine leave for the next one."""

    def __init__(self, path=STATE):
        self.path = path
        try:
            found = json.loads(path.read_text())
            self.passed, self.run, self.turns = str(found["passed"]), int(found["run"]), dict(found["turns"])
            self.owed = [name for name in found["owed"] if name in BY_NAME]
        except (OSError, ValueError, KeyError, TypeError):
            self.passed, self.run, self.turns, self.owed = "", 0, {}, []

    def next_turn(self):
        """The turn that came longest ago."""
        return min(range(1, TURNS + 1), key=lambda turn: (int(self.turns.get(str(turn), 0)), turn))

    def keep(self, commit, turn, owed):
        """After a run that passed, without the parts in `owed`; turn 0: all parts were run."""
        run = self.run + 1
        came = dict.fromkeys([turn] if turn else range(1, TURNS + 1), run)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        found = {"passed": commit, "run": run, "turns": self.turns | {str(t): r for t, r in came.items()}, "owed": owed}
        new.write_text(json.dumps(found))
        new.rename(self.path)


def base_of(state):
    """The commit that a change is compared with, and why; (None, why) if everything counts as changed."""
    if state.passed and git("merge-base", "--is-ancestor", state.passed, "HEAD") is not None:
        return state.passed, "the last commit that passed here"
    old = git("rev-list", "-1", f"--before={RECENT}", "HEAD")
    if old:
        return old[0], f"no commit is known to have passed here: the newest that is older than {RECENT.removesuffix(' ago')}"
    return None, "no earlier commit is known"


def by_change(state):
    """The chosen parts in order, a line about why for each of the rest, and the turn."""
    base, why = base_of(state)
    changed = git("diff", "--name-only", base, "HEAD") if base else None
    turn = state.next_turn()
    reasons = {name: "left out of the last run" for name in state.owed}
    for part in REST:
        if part.turn == turn:
            reasons.setdefault(part.name, f"turn {turn} of {TURNS}")
    for path in changed if changed is not None else ["(all files)"]:
        for name in (touched(path) or []) if changed is not None else EVERYTHING.split():
            reasons.setdefault(name, path)
    number = "all" if changed is None else len(changed)
    told = [f"compared with {(base or 'nothing')[:12]} ({why}): {number} files changed"]
    told += [f"{name}: {why}" for name, why in reasons.items()]
    left = [part.name for part in REST if part.name not in reasons]
    if left:
        told.append(f"not in this run: {', '.join(left)}")
    return SHORT + [BY_NAME[name] for name in reasons], told, turn


def by_names(names):
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise LookupError(f"no part {', '.join(unknown)}; there are: {', '.join(BY_NAME)}")
    return [BY_NAME[name] for name in names]
