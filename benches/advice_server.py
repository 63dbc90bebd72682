"""Debian's llama-server as an engine of bench-advice: recorded from its start, asked by clients, ended by Ctrl-C."""

import concurrent.futures
import dataclasses
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from advice_runs import TOP
from common import ROOT, BenchError, binary, model

sys.path.append(os.path.join(ROOT, "tests", "server"))
from debian import Failure, Root  # noqa: E402

START_S = 120


@functools.cache
def root():
    """The root directory of Debian's build; None where it cannot be had."""
    try:
        return Root("server", binary("profinfer"))
    except Failure as why:
        print(f"no llama-server: {why}", file=sys.stderr)
        return None


def http(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=START_S) as answer:
        return json.load(answer)


@dataclasses.dataclass
class Clients:
    """Requests of these prompt lengths with a number of clients, or the turns of a conversation."""

    prompts: tuple
    at_once: int = 1
    tokens: int = 24
    cache: bool = False
    embed: bool = False
    turns: int = 0

    def ask(self, port):
        rng = random.Random(5)
        words = lambda n: [rng.randrange(300, 3000) for _ in range(n)]
        body = lambda prompt: {"prompt": prompt, "n_predict": self.tokens, "cache_prompt": self.cache,
                               "ignore_eos": True, "temperature": 0, "return_tokens": True}
        if self.embed:
            for n in self.prompts:
                http(port, "/v1/embeddings", {"input": words(n)})
            return
        prompt = []
        for _ in range(self.turns):
            # What the server answered is a part of the next prompt, but for what it only thought.
            prompt += words(self.prompts[0])
            prompt += http(port, "/completion", body(prompt))["tokens"][-8:]
        if not self.turns:
            with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
                list(pool.map(lambda prompt: http(port, "/completion", body(prompt)), map(words, self.prompts)))


@dataclasses.dataclass
class Serving:
    """A llama-server's run, as `Run` is an engine's."""

    model: str
    clients: Clients
    slots: int = 1
    threads_: int = 2
    args: tuple = ()
    cpus: str = None

    def but(self, **changes):
        return dataclasses.replace(self, **changes)

    def threads(self, n):
        return self.but(threads_=int(n))

    def record(self, out, env):
        bed = root()
        if bed is None:
            raise BenchError("Debian's llama-server is missing")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        inside = f"/models/{self.model}.gguf"
        if not os.path.exists(bed.path(inside)):
            bed.copy(model(self.model), inside)
        engine = bed.command("/usr/bin/llama-server", "-m", inside, "--host", "127.0.0.1", "--port", str(port), "-np",
                             str(self.slots), "-c", str(4096 * self.slots), "-t", str(self.threads_), "--no-webui",
                             *self.args)
        pin = ["taskset", "-c", self.cpus] if self.cpus else []
        record = [binary("profinfer"), "record", "-q", "--force", "-o", out, "--", "setsid", "-w", "sh", "-c", f'{TOP}exec "$@"',
                  "sh", *pin, *engine]
        process = subprocess.Popen(record, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env,
                                   start_new_session=True)
        try:
            self.wait(process, port)
            self.clients.ask(port)
            process.send_signal(signal.SIGINT)
            process.wait(START_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @staticmethod
    def wait(process, port):
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if http(port, "/health").get("status") == "ok":
                    return
            except OSError:
                # Nobody listens yet, or the model is being loaded.
                time.sleep(0.1)
        raise BenchError(f"llama-server did not start (status {process.poll()})")
