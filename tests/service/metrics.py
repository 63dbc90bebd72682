#!/usr/bin/env python3
"""The service's metrics, read by those that they are for: Prometheus and promtool, and OpenTelemetry's own protobuf
messages. The histograms of two services are added up by Prometheus and compared with what they must be."""

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import unittest
from pathlib import Path

from common import PROFINFER, ROOT
from readers import (
    DURATION, LONG, TPOT, TTFT, Metrics, Prometheus, Server, Services, buckets, of, quantile, samples, until,
)

# What two services would expose, written by a unit test.
SAMPLES = Path(os.environ.get("PROFINFER_METRICS_SAMPLES") or ROOT / "target" / "tests" / "metrics")


class Samples(Metrics):
    """What two services would expose, written by a unit test."""

    def setUp(self):
        super().setUp()
        self.need("prometheus", "promtool")
        if not (SAMPLES / "b-1.json").is_file():
            self.skip(f"no samples in {SAMPLES}: the unit test metrics::tests::samples_for_other_programs writes them")
        self.text = {name: (SAMPLES / f"{name}.prom").read_text() for name in ["a-0", "a-1", "b-0", "b-1"]}

    def test_promtool_takes_them(self):
        for text in self.text.values():
            self.check(text)
        # It would find something.
        wrong = subprocess.run(["promtool", "check", "metrics"], input="# TYPE a_total gauge\na_total 1\n",
                               capture_output=True, text=True, timeout=60)
        self.assertNotEqual(wrong.returncode, 0)

    def test_prometheus_adds_the_histograms_of_two_services(self):
        later = threading.Event()

        def server(name):
            def answer(handler, _):
                text = self.text[f"{name}-{int(later.is_set())}"]
                return 200, {"Content-Type": "text/plain; version=0.0.4"}, text.encode()

            return Server(answer)

        servers = [server("a"), server("b")]
        prometheus = Prometheus(self, [s.address for s in servers])
        prometheus.scrape(2)
        before = until("both are up", lambda: prometheus.ask("vector(time()) and sum(profinfer_up) == 2"))
        later.set()
        for name in [TTFT, TPOT, DURATION]:
            total = sum(of(self.text[f"{service}-1"], f"{name}_count") for service in "ab")
            prometheus.until(f"sum({name}_count)", total)
            seconds = sum(of(self.text[f"{service}-1"], f"{name}_sum") for service in "ab")
            prometheus.until(f"sum({name}_sum)", seconds, 6)
            # What was counted in between, of both together.
            grown = {}
            for service in "ab":
                earlier, now = (buckets(self.text[f"{service}-{i}"], name) for i in (0, 1))
                for le, count in now.items():
                    grown[le] = grown.get(le, 0) + count - earlier.get(le, 0)
            for q in (0.5, 0.9, 0.99):
                both = f"sum by (le) ({name}_bucket)"
                query = f"histogram_quantile({q}, {both} - sum by (le) ({name}_bucket @ {before:.3f}))"
                prometheus.until(query, quantile(q, grown), 6)
                # Rates are extrapolated, more for series that were far from 0.
                query = f"histogram_quantile({q}, sum by (le) (rate({name}_bucket[1m])))"
                found = until(f"{query} has a value", lambda: prometheus.ask(query))
                self.assertGreaterEqual(found, quantile(q - 0.1, grown), query)
                self.assertLessEqual(found, quantile(min(q + 0.1, 1), grown), query)
            # One alone is not the answer.
            self.assertNotAlmostEqual(quantile(0.9, buckets(self.text["a-1"], name)), quantile(0.9, grown), places=3)
        prometheus.until("sum(hw_energy_joules_total)", 40 + 20)
        prometheus.until('sum(process_paging_faults_total{system_paging_fault_type="minor"})', 60)
        # As it is shown: the line's end in its name is escaped.
        name = 'A "model"\\of\\nmine'
        selector = json.dumps(name)
        prometheus.until(
            f"sum(profinfer_tokens_total{{gen_ai_request_model={selector}}})",
            of(self.text["a-1"], "profinfer_tokens_total", ("ggml_quantization", "Q4_K_M"))
            + of(self.text["b-1"], "profinfer_tokens_total", ("ggml_quantization", "Q4_K_M")),
        )

    def test_what_is_pushed_is_what_is_exposed(self):
        points = self.points(self.parse((SAMPLES / "a-1.json").read_text()))
        exposed = samples(self.text["a-1"])
        seen = set()
        for (name, labels), value in points.items():
            plain = name.replace(".", "_")
            names = {n for n in exposed if n.startswith(plain)}
            self.assertTrue(names, name)
            wanted = {label.replace(".", "_"): text for label, text in labels}

            def has(key):
                found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', key))
                found.pop("le", None)
                unescaped = {k: re.sub(r"\\(.)", lambda c: "\n" if c[1] == "n" else c[1], v) for k, v in found.items()}
                return unescaped == {k: v for k, v in wanted.items()} or (
                    # Characters that hide are shown in the text, and sent as they are.
                    found.keys() == wanted.keys() and "exe" in wanted
                )

            if hasattr(value, "bucket_counts"):
                total = 0
                for bound, count in zip([*value.explicit_bounds, float("inf")], value.bucket_counts, strict=True):
                    total += count
                    key = next(k for k in exposed if k.startswith(f"{plain}_seconds_bucket") and has(k)
                               and float(re.search(r'\ble="([^"]+)"', k)[1]) == bound)
                    self.assertEqual(exposed[key], total, key)
                    seen.add(key)
                for suffix, wanted_value in [("sum", value.sum), ("count", value.count)]:
                    key = next(k for k in exposed if k.startswith(f"{plain}_seconds_{suffix}") and has(k))
                    self.assertAlmostEqual(exposed[key], wanted_value)
                    seen.add(key)
            else:
                # The unit and '_total' follow the name.
                form = re.compile(rf"{plain}(_seconds|_bytes|_joules|_ratio)?(_total)?(\{{|$)")
                keys = [k for k in names if form.match(k) and has(k)]
                self.assertIn(value, [exposed[k] for k in keys], (name, labels))
                seen.update(keys)
        self.assertEqual(seen, set(exposed))


class Service(Services):
    """The service itself. What it records needs privileges; that it answers does not."""

    def test_two_services_are_scraped(self):
        self.need("prometheus", "promtool")
        all_services = [self.start("a"), self.start("b")]
        for _, own, address in all_services:
            text = self.get(address)[1]
            self.check(text)
            self.assertEqual(of(text, "profinfer_up"), 1)
            self.assertNotIn("pid=", text)
            written = until("the file is written", lambda: (own / "x.prom").is_file()) and (own / "x.prom").read_text()
            self.check(written)
            names = [{line.split()[2] for line in t.splitlines() if line.startswith("# TYPE")} for t in (text, written)]
            self.assertEqual(names[0], names[1])
        prometheus = Prometheus(self, [address for _, _, address in all_services])
        prometheus.scrape(2)
        quota = sum(of(self.get(a)[1], "profinfer_quota_bytes") for _, _, a in all_services)
        prometheus.until("sum(profinfer_quota_bytes)", quota)
        self.stop(all_services[0][0])
        prometheus.until("sum(up)", 1)
        self.assertFalse((all_services[0][1] / "x.prom").exists())

    def test_requests_are_answered_and_hostile_ones_bounded(self):
        service, own, address = self.start("a")
        status, text, headers = self.get(address)
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        head = self.get(address, "HEAD")
        self.assertEqual((head[0], head[1]), (200, ""))
        self.assertGreater(int(head[2]["Content-Length"]), 1000)
        self.assertEqual(self.get(address, path="/")[0], 404)
        self.assertEqual(self.get(address, path="/metrics/../../etc/passwd")[0], 404)
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"]:
            status, _, headers = self.get(address, method)
            self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        self.assertEqual(self.get(address, path="/" + 9000 * "a")[0], 431)
        # A name that somebody has given this machine's address.
        self.assertEqual(self.get(address, Host="rebound.example:9464")[0], 421)
        host, port = address.split(":")
        self.assertEqual(self.get(address, Host=f"localhost:{port}")[0], 200)
        silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(100)]
        self.assertEqual(self.get(address)[0], 200)
        # Most were closed to make room, the others are when their time is over.
        for client in silent:
            try:
                self.assertEqual(client.recv(1), b"")
            except ConnectionError:
                pass
            client.close()
        with socket.create_connection((host, int(port)), timeout=20) as client:
            client.sendall(os.urandom(4096) + b"\r\n\r\n")
            self.assertIn(client.recv(100)[:13], [b"HTTP/1.1 400 ", b""])
        state = json.loads(self.run_it(PROFINFER, "status", "--json", "--socket", own / "socket"))
        self.assertEqual(state["network"]["listen"], address)
        served = until("requests are counted", lambda: of(self.get(address)[1], "profinfer_scrapes_total", ("answer", "error")))
        self.assertGreaterEqual(served, 8)
        self.assertIsNone(service.poll())

    def talker(self, service):
        """The status of the process that talks."""
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                text = status.read_text()
            except OSError:
                continue
            # When it has this, it has everything else.
            if "Name:\tprofinfer-net\n" in text and f"\nPPid:\t{service.pid}\n" in text and "\nNoNewPrivs:\t1\n" in text:
                return text
        return None

    def test_a_client_that_sends_nothing_more_gets_its_answer(self):
        _, own, _ = self.start("a")
        for request, wanted in [("status", '"state":"waiting"'), ("dump", "no run is in a ring"), ("watch", '"hello"'), ("stop", "{}")]:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(20)
                client.connect(str(own / "socket"))
                client.sendall(f"{request}\n".encode())
                # As socat does when its input ends.
                client.shutdown(socket.SHUT_WR)
                line = client.makefile().readline()
            self.assertIn(wanted, line)

    def test_the_process_that_talks_has_no_privilege_and_ends_with_the_service(self):
        service, _, address = self.start("a")
        text = until("it runs", lambda: self.talker(service))
        for kind in ["CapEff", "CapPrm", "CapInh", "CapAmb"]:
            self.assertRegex(text, rf"(?m)^{kind}:\t0+$")
        # It owns nothing of root's.
        ours = int(re.search(r"(?m)^CapPrm:\t(\w+)$", Path("/proc/self/status").read_text())[1], 16)
        may_become = ours >> 6 & 3 == 3
        if os.geteuid() == 0 and may_become:
            for kind in ["Uid", "Gid", "Groups"]:
                self.assertNotRegex(text, rf"(?m)^{kind}:.*\b0\b")
        # Nothing of the service is open there.
        pid = re.search(r"(?m)^Pid:\t(\d+)$", text)[1]
        files = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if int(fd.name) > 2}
        self.assertTrue(all(re.match(r"(socket|anon_inode|pipe):", f) for f in files), files)
        os.kill(int(pid), signal.SIGKILL)
        until("it is replaced", lambda: self.answers(address))
        service.kill()
        service.wait()
        until("nobody listens", lambda: not self.answers(address))

    def test_without_the_right_to_become_another_user_it_works_too(self):
        self.need_root()
        self.need("setpriv")
        service, _, address = self.start("a", by=["setpriv", "--bounding-set=-setuid,-setgid"])
        text = until("it runs", lambda: self.talker(service))
        self.assertRegex(text, r"(?m)^CapPrm:\t0+$")
        self.assertRegex(text, r"(?m)^Uid:\t0\b")
        self.assertEqual(self.get(address)[0], 200)

    def answers(self, address):
        try:
            return self.get(address)[0] == 200
        except OSError:
            return False

    def test_other_machines_are_let_in_only_if_asked(self):
        for address in ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464"]:
            said = self.run_it(PROFINFER, "serve", "--listen", address, code=2)
            self.assertIn("listen-remote", said)
        said = self.run_it(PROFINFER, "serve", "--otlp-endpoint", "https://example.org:4318", code=2)
        self.assertIn("http://127.0.0.1:4318", said)
        self.assertIn("Collector", said)
        said = self.run_it(PROFINFER, "serve", "--otlp-endpoint", "http://127.0.0.1:4318", "--otlp-headers", "secret", code=2)
        self.assertNotIn("'secret'", said)

    def test_what_is_pushed_is_valid_and_retries_are_as_the_protocol_says(self):
        answers = [
            (503, {"Retry-After": "1"}, b"busy"),
            (200, {}, b"{}"),
            (400, {}, b'{"code": 3, "message": "no"}'),
            (200, {}, b'{"partialSuccess": {"rejectedDataPoints": "2", "errorMessage": "two are old"}}'),
        ]
        bodies = []

        def answer(handler, body):
            bodies.append((handler.path, dict(handler.headers), body))
            status, headers, text = answers.pop(0) if answers else (200, {}, b"{}")
            return status, {"Content-Type": "application/json", **headers}, text

        receiver = Server(answer)
        service, own, address = self.start(
            "a",
            f'\n[otlp]\nendpoint = "http://{receiver.address}/otlp"\ninterval = "1s"\ntimeout = "5s"\n'
            'headers = ["x-tenant=one,two"]\nattributes = ["deployment.environment.name=lab"]\n',
        )
        counted = lambda outcome: of(self.get(address)[1], "profinfer_otlp_exports_total", ("outcome", outcome))
        until("three are taken", lambda: (counted("accepted") or 0) >= 3)
        self.assertEqual((counted("failed"), counted("dropped")), (1, 0))
        self.assertEqual(of(self.get(address)[1], "profinfer_otlp_points_rejected_total"), 2)
        # The one that was told to wait came again, the one that was refused did not.
        self.assertEqual(bodies[0][2], bodies[1][2])
        self.assertNotEqual(bodies[2][2], bodies[3][2])
        log = (own / "log").read_text()
        for what in ["status 503: busy; trying again", "takes metrics again", "status 400: no; not tried again",
                     "has rejected 2 values: two are old"]:
            self.assertIn(what, log)
        self.stop(service)
        count = len(bodies)
        self.assertGreaterEqual(count, 5)
        for path, headers, body in bodies:
            self.assertEqual(path, "/otlp/v1/metrics")
            self.assertEqual(headers["Content-Type"], "application/json")
            self.assertEqual(headers["x-tenant"], "one,two")
            message = self.parse(body)
            points = self.points(message)
            self.assertEqual(points["profinfer.up", ()], 1)
            self.assertIn("profinfer.cpu", [name for name, _ in points])
            (resource,) = message.resource_metrics
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.assertEqual(attributes["service.name"], "profinfer")
            self.assertEqual(attributes["deployment.environment.name"], "lab")
            self.assertEqual(attributes["host.name"], socket.gethostname())
        # The last one, after the end: it says so.
        self.assertEqual(points["profinfer.state", (("state", "stopping"),)], 1)

    def test_a_receiver_that_hangs_holds_nothing_up(self):
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(1)
            endpoint = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            service, own, address = self.start("a", f'\n[otlp]\nendpoint = "{endpoint}"\ninterval = "1s"\ntimeout = "1s"\n')
            until("it is missed", lambda: "cannot push metrics" in (own / "log").read_text())
            self.assertEqual(self.get(address)[0], 200)
            self.run_it(PROFINFER, "status", "--socket", own / "socket")
            self.stop(service)
            self.assertEqual(service.returncode, 0)


class Live(Services):
    """With engines. Needs root and BPF."""

    def complete(self, program, service):
        """Runs the program, recorded from its first call on; returns the metrics when its run is over."""
        _, own, address = service
        before = self.get(address)[1]
        watch = subprocess.Popen([PROFINFER, "watch", "--socket", own / "socket"], stdout=subprocess.PIPE, text=True)
        patience = threading.Timer(LONG, watch.kill)
        patience.start()
        events = map(json.loads, watch.stdout)
        self.assertEqual(next(events)["event"], "hello")
        # Nobody else opens a file with a lease before it is given back (fcntl(2)), which the kernel tells us by a signal.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        with self.model.open() as model:
            fcntl.fcntl(model, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            command = [program, "run", "-m", self.model, "-p", "40", "-n", "30", "-t", "1", "-r", "20"]
            engine = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            followed = any(e["event"] == "level" and e["pid"] == engine.pid for e in events)
        self.assertEqual(engine.wait(timeout=LONG), 0)
        ended = any(e["event"] == "end" and e["pid"] == engine.pid for e in events)
        patience.cancel()
        watch.kill()
        watch.wait()
        watch.stdout.close()
        log = (own / "log").read_text()
        self.assertTrue(followed and ended, log)
        recorded = lambda text: of(text, "profinfer_runs_total", ("outcome", "recorded"))
        until("its run is counted", lambda: recorded(self.get(address)[1]) == recorded(before) + 1)
        text = self.get(address)[1]
        names = [f"{TTFT}_count", f"{DURATION}_count", f"{TPOT}_count", "profinfer_tokens_total"]
        # Before the twenty there is one of a single token, to warm up. A prefill brings the first token of each request:
        # it is among the tokens, not among the times between tokens.
        grown = [(of(text, name) or 0) - (of(before, name) or 0) for name in names]
        self.assertEqual(grown, [21, 21, 601, 601 + 21], f"{text}\n{log}")
        return text

    def test_requests_of_two_services_are_added_up(self):
        self.need_root()
        self.need("prometheus", "promtool")
        runner = PROFINFER.parent / "ggml-runner"
        if not runner.is_file():
            self.skip(f"{runner} does not exist: run cargo build")
        self.model = self.dir / "tiny-q8_0.gguf"
        self.run_it(runner, "synth", "tiny", self.model, "--type", "q8_0")
        programs = []
        for name in "ab":
            programs.append(self.dir / f"runner-{name}")
            shutil.copy(runner, programs[-1])
        rule = '\n[[rule]]\nname = "own"\nexe = "{}"\nbudget = "100%"\nlevel = "graph"\n\n[[rule]]\nname = "others"\nignore = true\n'
        all_services = [self.start(name, rules=rule.format(p)) for name, p in zip("ab", programs, strict=True)]
        for service, own, _ in all_services:
            until("it is ready", lambda: "ready to record" in (own / "log").read_text() or service.poll() is not None)
        texts = [self.complete(*pair) for pair in zip(programs, all_services, strict=True)]
        for text in texts:
            self.check(text)
            self.assertIn('gen_ai_request_model="random-tiny"', text)
        prometheus = Prometheus(self, [address for _, _, address in all_services])
        prometheus.scrape(2)
        for name in [TTFT, TPOT, DURATION]:
            together = {}
            for text in texts:
                for le, count in buckets(text, name).items():
                    together[le] = together.get(le, 0) + count
            query = f"histogram_quantile(0.9, sum by (le) ({name}_bucket))"
            prometheus.until(f"sum({name}_count)", together[float("inf")])
            prometheus.until(query, quantile(0.9, together))
        tokens = sum(of(text, "profinfer_tokens_total") for text in texts)
        prometheus.until("sum(profinfer_tokens_total)", tokens)


# The tests of a class are not to run again in one made of it.
for inherited in [name for name in dir(Service) if name.startswith("test_")]:
    setattr(Live, inherited, None)


if __name__ == "__main__":
    unittest.main()
