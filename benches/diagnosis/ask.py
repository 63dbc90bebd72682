"""The clients of the cases, and what shells cannot do.

usage: ask.py words N | port | busy SHARE | cold FILE
       ask.py --port PORT one|first|slots|alone|probabilities|many|drafts|rest|stop
The clients wait until llama-server answers, and print what the server says of the last request as a line of JSON.
"""

import glob
import json
import os
import random
import signal
import socket
import sys
import time
import urllib.request

# Seconds until a server has loaded its model.
START_S = 120


def words(n):
    """Some N tokens: the generated vocabularies have single letters as tokens."""
    rng = random.Random(5)
    return " ".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n // 2))


def busy(share):
    """A share of a CPU, in turns of 10 ms."""
    while True:
        end = time.perf_counter() + 0.01 * share
        while time.perf_counter() < end:
            pass
        if share < 1:
            time.sleep(0.01 * (1 - share))


def cold(path):
    with open(path, "rb") as f:
        os.fdatasync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Client:
    def __init__(self, port):
        self.port, self.rng = port, random.Random(5)

    def http(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        ask = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(ask, timeout=600) as answer:
            return json.load(answer)

    def wait(self):
        deadline = time.monotonic() + START_S
        while True:
            try:
                if self.http("/health").get("status") == "ok":
                    return
            except OSError:
                # Nobody listens yet, or the model is being loaded.
                if time.monotonic() > deadline:
                    raise SystemExit("llama-server does not answer") from None
                time.sleep(0.1)

    def complete(self, n, predict, **more):
        prompt = [self.rng.randrange(300, 3000) for _ in range(n)]
        body = {"prompt": prompt, "n_predict": predict, "ignore_eos": True, "temperature": 0, **more}
        begin = time.monotonic()
        said = self.http("/completion", body)["timings"]
        return {"prefill": said["prompt_per_second"], "decode": said.get("predicted_per_second"),
                "wall": 1 / (time.monotonic() - begin)}

    def one(self):
        """One request of a long prompt."""
        return self.complete(1500, 16)

    def first(self):
        """Two like requests: what the first one takes more."""
        first = self.complete(64, 24, cache_prompt=False)
        self.complete(64, 24, cache_prompt=False)
        return first

    def slots(self):
        """Three long prompts in three slots, then a short one in the fourth, which generates."""
        for slot in range(3):
            self.complete(3000, 1, id_slot=slot, cache_prompt=True)
        return self.complete(10, 100, id_slot=3)

    def alone(self):
        """The short one alone."""
        return self.complete(10, 100, id_slot=3)

    def probabilities(self):
        """The short one, with 2,000 probabilities for each token."""
        return self.complete(10, 100, id_slot=3, n_probs=2000)

    def many(self):
        """Requests of different prompts, one after the other."""
        for _ in range(40):
            last = self.complete(600, 4)
        return last | {"memory": 1 / self.resident()}

    def drafts(self):
        return self.complete(60, 120)

    def rest(self):
        """Two requests with ten seconds between them; the CPU time of these is what is compared."""
        self.complete(30, 16)
        time.sleep(1)
        before = self.cpu_s()
        time.sleep(8)
        used = self.cpu_s() - before
        time.sleep(1)
        return self.complete(30, 16) | {"rest": 1 / max(used, 0.01)}

    def servers(self):
        """Processes that listen at the port, by their command lines."""
        for stat in glob.glob("/proc/[0-9]*/comm"):
            try:
                with open(stat) as name, open(stat.replace("comm", "cmdline")) as line:
                    if name.read().startswith("llama-server") and str(self.port) in line.read().split("\0"):
                        yield int(stat.split("/")[2])
            except OSError:
                continue

    def resident(self):
        return sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in self.servers())

    def cpu_s(self):
        """CPU time of the servers, user and system, s."""
        fields = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split() for pid in self.servers()]
        return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        for pid in self.servers():
            os.kill(pid, signal.SIGINT)


def main(args):
    if args[0] == "--port":
        client = Client(int(args[1]))
        if args[2] == "stop":
            return client.stop()
        client.wait()
        return print(json.dumps(getattr(client, args[2])()))
    helper = {"words": lambda n: print(words(int(n))), "port": lambda: print(free_port()),
              "busy": lambda share: busy(float(share)), "cold": cold}[args[0]]
    return helper(*args[1:])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    main(sys.argv[1:])
