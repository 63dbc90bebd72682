"""Those who read the service's metrics: Prometheus, promtool, and OpenTelemetry's own protobuf messages."""

import contextlib
import http.client
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from common import PROFINFER, Test

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer"
OTLP = CACHE / "otlp"
# Longest wait for something that is certain to happen.
LONG = 60
TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
DURATION = "gen_ai_server_request_duration_seconds"


def until(what, done):
    """The first true result."""
    begin = time.monotonic()
    while time.monotonic() - begin < LONG:
        result = done()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"{what}: did not happen in {LONG} s")


def samples(text):
    """Names with labels, and values, of a text that the service exposes."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def of(text, name, *labels):
    """The sum of a metric's values that have these labels."""
    parts = [f'{label}="{value}"' for label, value in labels]
    values = [v for n, v in samples(text).items() if re.split(r"[{ ]", n)[0] == name and all(p in n for p in parts)]
    return sum(values) if values else None


def buckets(text, name):
    """Cumulative counts by upper bound, over all series."""
    found = {}
    for key, value in samples(text).items():
        if key.startswith(f"{name}_bucket{{"):
            le = float(re.search(r'\ble="([^"]+)"', key)[1])
            found[le] = found.get(le, 0) + value
    return found


def quantile(q, counts):
    """As Prometheus's histogram_quantile() documents it."""
    bounds = sorted(counts)
    rank = q * counts[bounds[-1]]
    for i, bound in enumerate(bounds):
        if counts[bound] >= rank:
            if i == len(bounds) - 1:
                return bounds[i - 1]
            low, below = (bounds[i - 1], counts[bounds[i - 1]]) if i else (0.0, 0.0)
            return low + (bound - low) * (rank - below) / (counts[bound] - below)
    raise AssertionError(counts)


class Server(http.server.ThreadingHTTPServer):
    """Answers with a function's result."""

    daemon_threads = True

    def __init__(self, answer):
        self.answer = answer
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, headers, text = self.server.answer(self, body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = reply

    def log_message(self, *_):
        pass


class Prometheus:
    """A server of its own, that scrapes these addresses."""

    def __init__(self, test, addresses, rules=()):
        config = test.dir / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            f"rule_files: {json.dumps([str(path) for path in rules])}\n"
            f"scrape_configs: [{{job_name: fleet, static_configs: [{{targets: {json.dumps(addresses)}}}]}}]\n"
        )
        self.log = (test.dir / "prometheus.log").open("w")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={test.dir}/tsdb",
             "--web.listen-address=127.0.0.1:0"],
            stdout=self.log, stderr=self.log,
        )
        test.addCleanup(self.stop)
        # It says which port it has been given.
        self.address = until("Prometheus listens", lambda: re.search(r'"Listening on" address=(\S+)', self.said()))[1]
        until("Prometheus is ready", lambda: self.get("/-/ready")[0] == 200)

    def said(self):
        text = Path(self.log.name).read_text()
        assert self.process.poll() is None, text
        return text

    def get(self, path):
        with contextlib.closing(http.client.HTTPConnection(self.address, timeout=10)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def data(self, path, **parameters):
        """What the API answers to a request with these parameters."""
        status, body = self.get(f"/api/v1/{path}?" + urllib.parse.urlencode(parameters))
        assert status == 200, (parameters, body)
        return json.loads(body)["data"]

    def ask(self, query):
        """The value of a query with one result; None without any."""
        result = self.data("query", query=query)["result"]
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else None

    def until(self, query, value, places=9):
        """Waits for a value: a scrape that came too late, on a busy machine, is followed by another."""
        last = None

        def is_so():
            nonlocal last
            last = self.ask(query)
            return last is not None and round(abs(last - value), places) == 0

        try:
            until(query, is_so)
        except AssertionError as late:
            raise AssertionError(f"{query}: {last}, and not {value}") from late

    def scrape(self, n):
        """Waits until all of these targets are scraped without an error."""
        self.until("sum(profinfer_up)", n)
        until("no scrape has failed", lambda: self.targets() == n * [""])

    def targets(self):
        """Last errors of all targets that were scraped."""
        all_targets = self.data("targets")["activeTargets"]
        return [t["lastError"] for t in all_targets if t["health"] != "unknown"]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Metrics(Test):
    def check(self, text):
        """promtool finds nothing to say about it."""
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), text)

    def parse(self, body):
        """A pushed body, read strictly: an unknown field or a wrong type is an error."""
        if not OTLP.is_dir():
            self.skip(f"no {OTLP}: scripts/setup.sh installs opentelemetry-proto")
        if str(OTLP) not in sys.path:
            sys.path.insert(0, str(OTLP))
        from google.protobuf import json_format
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

        message = metrics_service_pb2.ExportMetricsServiceRequest()
        return json_format.Parse(body, message, ignore_unknown_fields=False)

    def points(self, message):
        """Values as they are exposed: name and labels -> value, or (count, sum, cumulative counts by bound)."""
        found = {}
        for resource in message.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    for point in data.data_points:
                        labels = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
                        self.assertNotIn((metric.name, labels), found)
                        self.assertGreater(point.time_unix_nano, 0)
                        if metric.WhichOneof("data") == "histogram":
                            self.assertEqual(data.aggregation_temporality, 2)
                            self.assertEqual(len(point.bucket_counts), len(point.explicit_bounds) + 1)
                            self.assertEqual(sum(point.bucket_counts), point.count)
                            found[metric.name, labels] = point
                        else:
                            kind = point.WhichOneof("value")
                            found[metric.name, labels] = getattr(point, kind)
                        if metric.WhichOneof("data") == "sum":
                            self.assertTrue(data.is_monotonic)
                            self.assertEqual(data.aggregation_temporality, 2)
                        if metric.WhichOneof("data") != "gauge":
                            self.assertLessEqual(point.start_time_unix_nano, point.time_unix_nano)
                            self.assertGreater(point.start_time_unix_nano, 0)
        return found


class Services(Metrics):
    """Starts services of its own."""

    def setUp(self):
        super().setUp()
        self.need_profinfer()

    def start(self, name, more="", rules='\n[[rule]]\nname = "none"\nignore = true\n', by=()):
        """A service in a directory of its own, started by a program or by us. Returns its process and its directory."""
        own = self.dir / name
        own.mkdir(mode=0o700)
        conf = own / "conf.toml"
        conf.write_text(
            f'[service]\ndirectory = "{own}/d"\nstatus = "{own}/status.json"\nsocket = "{own}/socket"\n'
            f'metrics = "{own}/x.prom"\n\n[metrics]\nlisten = "127.0.0.1:0"\n{more}{rules}'
        )
        log = (own / "log").open("w")
        self.addCleanup(log.close)
        service = subprocess.Popen([*by, PROFINFER, "serve", "--conf", conf], stdout=log, stderr=log, start_new_session=True)
        self.addCleanup(self.stop, service)

        def ready():
            if service.poll() is not None:
                self.skip(f"the service does not start here: {(own / 'log').read_text()}")
            return re.search(r"metrics at http://(\S+)/metrics", (own / "log").read_text())

        address = until("the service listens", ready)[1]
        until("it has metrics", lambda: self.get(address)[0] == 200)
        return service, own, address

    def stop(self, service):
        if service.poll() is None:
            service.terminate()
        service.wait(timeout=LONG)

    def get(self, address, method="GET", path="/metrics", **headers):
        with contextlib.closing(http.client.HTTPConnection(address, timeout=20)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
