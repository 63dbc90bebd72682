#!/usr/bin/env python3
"""Compares the requests that profinfer shows with what the server itself says of each: `timings` of the responses of
llama-server from Debian (tests/server/setup.sh), with 1, 4 and 8 slots, prompts of different lengths, the prompt cache on and
off, and a draft model. For prompts computed again, the report must name the slot that had their tokens. Numbers of tokens must be equal, times lie within what clients waited; how near they come to the
server's own is printed. The same for the requests that `top` shows.

usage: requests.py [--keep DIR] [--only NAME] [--profinfer FILE] [--root DIR]
Needs root and BPF. Exits 77 with "skipped: why" where the server cannot be had, unless PROFINFER_REQUIRE=1 or CI=true.
"""

import concurrent.futures
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from debian import Failure, play, sh

# Seconds after which something that is certain to happen has not.
LONG = 120
# Servers that find their port taken by somebody else are started again with another.
PORTS = 5


# The models are random, so which tokens are accepted is made up by the server: two and a half a draft on average.
DRAFTS = ["-md", "/models/draft.gguf", "--spec-type", "draft-simple", "--spec-draft-n-max", "6", "--spec-synth-len", "2.5"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def http(port, path, body=None, timeout=120):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


class Server:
    """llama-server in its root, recorded from its start, or watched by `top` from its start."""

    def __init__(self, bed, name, slots, more=(), watched=False):
        self.bed, self.trace = bed, os.path.join(bed.out, f"{name}-{os.getpid()}.pfi")
        said = None
        for _ in range(PORTS):
            self.log = open(os.path.join(bed.out, f"{name}.log"), "w")
            said = self.start(slots, more, watched)
            if said is None:
                return
            if "bind" not in said:
                break
        raise Failure(f"the server did not start:\n{said[-3000:]}")

    def start(self, slots, more, watched):
        """None once it answers; else what it said."""
        bed, self.port = self.bed, free_port()
        engine = bed.command("/usr/bin/llama-server", "-m", "/models/target.gguf", "--host", "127.0.0.1", "--port",
                             str(self.port), "-np", str(slots), "-c", str(2048 * slots), "-t", "2", "--no-webui", *more)
        how = ["top", "--json", "--interval", "100ms"] if watched else ["record", "--force", "-o", self.trace]
        self.process = subprocess.Popen(
            [bed.profinfer, *how, "--level", "token", "--", *engine], stdout=self.log,
            stderr=subprocess.DEVNULL if watched else subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + LONG
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if http(self.port, "/health", timeout=LONG).get("status") == "ok":
                    return None
            except OSError:
                # Nobody listens yet, or the model is being loaded.
                time.sleep(0.2)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        with open(self.log.name) as log:
            return log.read()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise Failure("the recording did not end after SIGINT")
        self.log.close()

    def report(self):
        self.stop()
        return json.loads(sh([self.bed.profinfer, "report", "--json", self.trace]))

    def frames(self):
        """Those that `top` has written."""
        with open(self.log.name) as log:
            return [json.loads(line) for line in log if line.startswith("{")]

    def wait_for_frame(self, told):
        """Waits until `top` has shown the request of which the server says this."""
        deadline = time.monotonic() + LONG
        with open(self.log.name) as log:
            while time.monotonic() < deadline:
                begin, line = log.tell(), log.readline()
                if not line.endswith("\n"):
                    log.seek(begin)
                    time.sleep(0.05)
                elif line.startswith("{") and server_figures(told) in map(figures, json.loads(line)["requests"]):
                    return
        raise Failure(f"no frame has the request {told}: {line}")


def figures(row):
    return row["prompt_tokens"], row["tokens"], row["drafted"], row["accepted"]


def server_figures(timings):
    return timings["prompt_n"], timings["predicted_n"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)


def complete(port, prompt, tokens, cache, **more):
    body = {"prompt": prompt, "n_predict": tokens, "cache_prompt": cache, "ignore_eos": True, "temperature": 0, **more}
    begin = time.monotonic()
    answer = http(port, "/completion", body)
    return {**answer, "waited_ms": (time.monotonic() - begin) * 1e3}


def prompts(count, seed):
    rng = random.Random(seed)
    return [[rng.randrange(300, 3000) for _ in range(rng.choice((5, 40, 130, 300, 700)))] for _ in range(count)]


def ask_all(port, jobs, at_once):
    """Responses in the order in which they came back."""
    answers = []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(complete, port, *job) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            answers.append(future.result())
    return answers


def compare(answers, report, draft=False):
    """Each answer with the row of its slot; slots have one request at a time, in the order of their ends."""
    rows = report["sequences"]["requests"] if report.get("sequences") else None
    if rows is None:
        raise Failure(f"no sequences: {report.get('sequences_unknown')}")
    # The server warms up with a request of its own.
    rows = [r for r in rows if r["tokens"] > 1]
    of_slot = {}
    for r in sorted(rows, key=lambda r: r["start_ns"]):
        of_slot.setdefault(r["seq"], []).append(r)
    problems, apart = [], []
    for answer in answers:
        slot, told = answer["id_slot"], answer["timings"]
        queue = of_slot.get(slot, [])
        if not queue:
            problems.append(f"slot {slot}: no request left for {told}")
            continue
        row = queue.pop(0)
        exact = [("prompt_tokens", "prompt_n"), ("cached_tokens", "cache_n"), ("tokens", "predicted_n")]
        if draft:
            exact += [("drafted", "draft_n"), ("accepted", "draft_n_accepted")]
        for ours, theirs in exact:
            if row[ours] != told.get(theirs, 0):
                problems.append(f"slot {slot}: {ours} {row[ours]}, the server says {theirs} {told.get(theirs, 0)}: {row}")
        if row["ttft_ns"] is None or row["decode_ns"] is None:
            problems.append(f"slot {slot}: a time is not known: {row}")
            continue
        # What we saw of a request lies within what its client waited.
        if not 0 < row["ttft_ns"] + row["decode_ns"] <= answer["waited_ms"] * 1e6:
            problems.append(f"slot {slot}: the client waited {answer['waited_ms']:.1f} ms: {row}")
        # The server's own time begins when the request has a slot.
        row = {**row, "prompt_ns": row["ttft_ns"] - (row["queued_ns"] or 0)}
        for ours, theirs in (("prompt_ns", "prompt_ms"), ("decode_ns", "predicted_ms")):
            got, want = row[ours] / 1e6, told[theirs]
            if os.environ.get("VERBOSE"):
                print(f"    slot {slot}: {ours} {got:.1f} ms, the server says {want:.1f}")
            apart.append(abs(got - want) / want)
    left = sum(map(len, of_slot.values()))
    if left:
        problems.append(f"{left} requests that the server did not answer: {[r for q in of_slot.values() for r in q][:3]}")
    if problems:
        raise Failure("\n".join(problems[:12]))
    # Other work on the machine may come between the two clocks: times are printed only.
    middle, most = sorted(apart)[len(apart) // 2], max(apart)
    return f"{len(answers)} requests: tokens equal, times within {middle:.2%} of the server's (median; at most {most:.2%})"


def slots(bed, count, cache):
    server = Server(bed, f"slots{count}{'-cache' if cache else ''}", count)
    try:
        all_prompts = prompts(3 * count + 3, count)
        if cache:
            # The same beginnings again: what is in a slot's memory is not computed twice.
            all_prompts += [p + [777, 888] for p in all_prompts[:4]] + all_prompts[:2]
        answers = ask_all(server.port, [(p, 24, cache) for p in all_prompts], count)
    finally:
        report = server.report()
    return compare(answers, report)


def drafts(bed):
    server = Server(bed, "drafts", 1, DRAFTS)
    try:
        answers = [complete(server.port, p, 24, False) for p in prompts(4, 11)]
    finally:
        report = server.report()
    said = compare(answers, report, draft=True)
    found = report["sequences"].get("speculation")
    if not found:
        raise Failure("no drafts in the report")
    wanted = (sum(a["timings"]["draft_n"] for a in answers), sum(a["timings"]["draft_n_accepted"] for a in answers))
    if (found["drafted"], found["accepted"]) != wanted:
        raise Failure(f"drafted and accepted {found['drafted']}, {found['accepted']}; the server says {wanted}")
    return f"{said}; {wanted[1]} of {wanted[0]} drafted tokens accepted"


def first_token(port, prompt):
    """Milliseconds from sending a request until the server has sent its first token."""
    body = json.dumps({"prompt": prompt, "n_predict": 24, "stream": True, "cache_prompt": False, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", body, {"content-type": "application/json"})
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.readline()
        took = (time.monotonic() - begin) * 1e3
        answer.read()
    return took


def queue(bed):
    """More clients than slots: the time in the server's queue and that to the first token are what a client waits."""
    server = Server(bed, "queue", 2)
    try:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            # The length of its prompt identifies a request.
            asked = [[300 + i] * (20 + 30 * (i * 7 % 12)) for i in range(12)]
            waited = dict(zip(map(len, asked), pool.map(lambda p: first_token(server.port, p), asked)))
    finally:
        report = server.report()
    rows = [r for r in report["sequences"]["requests"] if r["tokens"] > 1]
    if len(rows) != len(waited) or any(r["queued_ns"] is None for r in rows):
        raise Failure(f"{len(rows)} of {len(waited)} requests, queued {[r['queued_ns'] for r in rows]}")
    ours = {r["prompt_tokens"]: r["ttft_ns"] / 1e6 for r in rows}
    if ours.keys() != waited.keys():
        raise Failure(f"prompts of {sorted(ours)} tokens, and not {sorted(waited)}")
    pairs = [(ours[n], waited[n]) for n in waited]
    if any(not 0 < a <= b for a, b in pairs):
        raise Failure(f"queued and first token, and what the clients waited, ms: {pairs}")
    apart = sorted((b - a) / b for a, b in pairs)
    if any(r["queued_ns"] >= r["ttft_ns"] for r in rows):
        raise Failure(f"queued beyond the first token: {rows}")
    # The first screen has the same figures.
    text, p50 = sh([bed.profinfer, "report", server.trace]), report["sequences"]["ttft"]["p50_ns"]
    p50 = f"{p50 / 1e6:.2f} ms" if p50 < 1e9 else f"{p50 / 1e9:.2f} s"
    line = " ".join(text.split("Requests", 1)[-1].split("Decode", 1)[0].split())
    if not line.startswith(f"{len(report['sequences']['requests'])}; queued p50 ") or f"time to first token p50 {p50}," not in line:
        raise Failure(f"the verdict says {line!r}, the tables {report['sequences']['ttft']}")
    most = max(r["queued_ns"] for r in rows) / 1e6
    return (f"{len(rows)} requests, up to {most:.0f} ms in the queue: times to the first token within {apart[len(apart) // 2]:.2%} "
            f"of what the clients waited (median; at most {apart[-1]:.2%})")


def watched(bed, name, slots, more=()):
    """The requests in progress that `top` shows: the last row of each, before its sequence has another."""
    server = Server(bed, name, slots, more, watched=True)
    answers = []
    try:
        # Of different lengths, so that a frame with one's figures shows that one.
        for p in prompts(3, 24):
            answers.append(complete(server.port, p, 24, False))
            server.wait_for_frame(answers[-1]["timings"])
    finally:
        server.stop()
    frames = server.frames()
    last, ended = {}, []
    for frame in frames:
        for row in frame["requests"]:
            key = row["context"], row["seq"]
            before = last.get(key)
            if before and before["duration_ns"] > row["duration_ns"]:
                ended.append(before)
            last[key] = row
    # Until its first draft is verified, a draft model's context looks like one that has requests.
    own = {row["context"] for row in next((f["requests"] for f in reversed(frames) if f["requests"]), [])}
    rows = [r for r in ended + list(last.values()) if r["tokens"] > 1 and r["context"] in own]
    told = [a["timings"] for a in answers]
    ours, theirs = sorted(map(figures, rows)), sorted(map(server_figures, told))
    if ours != theirs:
        raise Failure(f"top has prompt, tokens, drafted, accepted {ours}; the server {theirs}")
    decode = [p["tokens_per_s"] for f in frames for p in f["run"]["phases"] if p["phase"] == "decode"]
    if not decode or decode[-1] is None:
        raise Failure(f"top has no speed of decoding: {decode[-3:]}")
    return f"{len(rows)} requests: tokens equal; {decode[-1]:.1f} tok/s"


def again(bed):
    """Prompts beside what the slots had: computed again, changed in the middle, and moved to another slot."""
    server = Server(bed, "again", 2, ("--cache-ram", "0"))
    first, other = list(range(1000, 1200)), [2500] * 80
    asked = [(first, 0, True), (first + [7] * 50, 0, True), (first + [7] * 50, 0, False), (first[:100] + other, 0, True),
             (first[:90] + other, 1, True)]
    try:
        answers = [complete(server.port, ids, 20, cache, id_slot=slot) for ids, slot, cache in asked]
    finally:
        report = server.report()
    told = compare(answers, report)
    rows = [row for row in report["sequences"]["requests"] if row["prompt_tokens"] > 16]
    found = [[row["seq"], row["cached_tokens"], *row["before"].values()] for row in rows]
    # Sequence, cached; had, again, differs at, the sequence that had more, and how much of it.
    wanted = [[0, 0, 2, 0, None, None, None], [0, 200, 219, 0, None, None, None], [0, 0, 269, 240, None, None, None],
              [0, 100, 269, 0, 100, None, None], [1, 0, 0, 0, None, 0, 80]]
    if found != wanted:
        raise Failure(f"prompts beside what was there are {found}, not {wanted}")
    return told


CHECKS = {
    "1 slot": lambda bed: slots(bed, 1, False),
    "4 slots": lambda bed: slots(bed, 4, False),
    "8 slots": lambda bed: slots(bed, 8, False),
    "4 slots, prompt cache": lambda bed: slots(bed, 4, True),
    "draft model": drafts,
    "prompts computed again": again,
    "more clients than slots": queue,
    "4 slots in top": lambda bed: watched(bed, "top", 4),
    "draft model in top": lambda bed: watched(bed, "top-drafts", 1, DRAFTS),
}


def models(bed):
    # A draft model has the vocabulary of the target.
    for name, seed in (("target", "42"), ("draft", "7")):
        bed.model(name, "llama1b-L4", seed)


if __name__ == "__main__":
    sys.exit(play(__doc__, "server", CHECKS, models))
