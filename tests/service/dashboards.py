#!/usr/bin/env python3
"""The dashboards of conf/grafana and the alerts of conf/prometheus, asked by a Prometheus that scrapes a service while it
records an engine: every query has an answer and names only metrics that there are. Each alert fires when it should."""

import json
import re
import subprocess
import unittest

import yaml
from common import CONF, PROFINFER, ROOT
from readers import DURATION, TPOT, TTFT, Metrics, Prometheus, Services, of, until

RULES = CONF / "prometheus" / "profinfer.rules.yml"
DASHBOARDS = sorted((CONF / "grafana").glob("*.json"))
# Metrics that may have no values, and why.
MAY_LACK = {
    "hw_energy_joules_total": "this machine counts no energy",
    "profinfer_requests_unobserved_total": "all requests were observed",
}
# What Grafana replaces.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$rule": ".*", "$model": ".*", "$pid": ".*"}
WORDS = {"and", "or", "unless"}


def metrics(query):
    """Names of the metrics in a query."""
    query = re.sub(r'"(?:[^"\\]|\\.)*"', "", query)
    query = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", query)
    return set(re.findall(r"\b[a-zA-Z_]\w*\b(?!\s*\()", query)) - WORDS


def panels():
    """Dashboard, panel and query of each target."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                yield path.stem, panel["title"], query


def alerts():
    """Each alert, as Prometheus reads it."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


class Files(unittest.TestCase):
    def test_dashboards_can_be_imported(self):
        uids = set()
        for path in DASHBOARDS:
            board = json.loads(path.read_text())
            uids.add(board["uid"])
            variables = [v["name"] for v in board["templating"]["list"]]
            self.assertEqual(variables[0], "datasource", path)
            self.assertEqual([p["id"] for p in board["panels"]], list(range(1, len(board["panels"]) + 1)), path)
            taken = set()
            for panel in board["panels"]:
                where = f"{path}: {panel['title']}"
                self.assertEqual(panel["datasource"], {"type": "prometheus", "uid": "${datasource}"}, where)
                at = panel["gridPos"]
                cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
                self.assertTrue(at["x"] + at["w"] <= 24 and not cells & taken, where)
                taken |= cells
                for target in panel["targets"]:
                    used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
                    self.assertLessEqual(used, set(variables), where)
        self.assertEqual(len(uids), len(DASHBOARDS))

    def test_names_of_metrics_are_found_in_queries(self):
        found = metrics('sum by (le) (rate(a_bucket{b=~"c{d"}[5m])) / on (x) group_left (y) (e_total or vector(0)) > 0.5 and f')
        self.assertEqual(found, {"a_bucket", "e_total", "f"})

    def test_every_metric_is_described(self):
        page = (ROOT / "docs/METRICS.md").read_text()
        for _, _, query in panels():
            for name in metrics(query):
                self.assertIn(f"`{re.sub('_(bucket|count|sum)$', '', name)}`", page)


class Alerts(Metrics):
    def test_each_fires_on_the_service_that_has_it_and_on_no_other(self):
        self.need("promtool")
        self.run_it("promtool", "check", "rules", RULES)
        # Of a service with every fault, and of one without: per minute.
        series = [
            ("up", "", "0x60", "1x60"),
            ("profinfer_up", "", "1x5 _x55", "1x60"),
            ("profinfer_configuration_errors", "", "2x60", "0x60"),
            ("profinfer_runs_total", 'outcome="missed"', "0+1x60", "3x60"),
            ("profinfer_events_total", 'rule="r"', "0+1000x60", "0+1000x60"),
            ("profinfer_events_lost_total", 'rule="r"', "0+100x60", "0+1x60"),
            ("profinfer_quota_bytes", "", "100x60", "100x60"),
            ("profinfer_quota_used_bytes", "", "95x60", "95x60"),
            ("profinfer_files", "", "2x60", "9x60"),
            ("profinfer_files_writing", "", "2x60", "2x60"),
            ("profinfer_cpu_seconds_total", "", "0+45x60", "0+3x60"),
            ("profinfer_requests_unobserved_total", 'rule="r", reason="several sequences"', "0+10x60", "0+1x60"),
            (f"{DURATION}_count", 'rule="r"', "0+10x60", "0+10x60"),
            ("process_paging_faults_total", 'system_paging_fault_type="major"', "0+60000x60", "0+60x60"),
            ("process_paging_faults_total", 'system_paging_fault_type="minor"', "0+60000x60", "0+60000x60"),
        ]
        for name, short, long in [(TTFT, "1", "10"), (TPOT, "0.1", "1")]:
            for le, slow in [(short, "0x60"), (long, "0+10x60"), ("+Inf", "0+10x60")]:
                series.append((f"{name}_bucket", f'rule="r", gen_ai_request_model="m", le="{le}"', slow, "0+10x60"))
        shown = [
            {"series": f'{name}{{job="j", instance="{instance}"{", " if labels else ""}{labels}}}', "values": values}
            for name, labels, *both in series for instance, values in zip(["faulty", "fine"], both, strict=True)
        ]
        names = [rule["alert"] for rule in alerts()]
        firing = [{"labels": f'{{alertname="{name}", instance="faulty"}}', "value": 1} for name in names]
        query = 'count by (alertname, instance) (ALERTS{alertstate="firing"})'
        case = {"expr": query, "eval_time": "40m", "exp_samples": firing}
        tests = self.dir / "alerts.yml"
        test = {"interval": "1m", "input_series": shown, "promql_expr_test": [case]}
        tests.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
        self.run_it("promtool", "test", "rules", tests)
        for rule in alerts():
            self.assertLessEqual({"summary", "description"}, set(rule["annotations"]), rule)


class Live(Services):
    """With an engine that is being recorded. Needs root and BPF."""

    def recorded(self):
        """The address of a service that has recorded a run and records another one, which goes on."""
        runner = PROFINFER.parent / "ggml-runner"
        if not runner.is_file():
            self.skip(f"{runner} does not exist: run cargo build")
        model = self.dir / "tiny-q8_0.gguf"
        self.run_it(runner, "synth", "tiny", model, "--type", "q8_0")
        rule = f'\n[[rule]]\nname = "own"\nexe = "{runner}"\nbudget = "20%"\n\n[[rule]]\nname = "others"\nignore = true\n'
        # The beginning of its request is not seen: it is in no histogram.
        engine = self.engine(runner, model, "-n", "2000")
        service, own, address = self.start("a", "per-process = true\n", rules=rule)
        until("it is recorded", lambda: of(self.get(address)[1], f"{TPOT}_count"))
        engine.kill()
        until("its run is counted", lambda: of(self.get(address)[1], "profinfer_runs_total", ("outcome", "recorded")))
        self.engine(runner, model, "-n", "30")
        return address

    def engine(self, runner, model, *more):
        """An engine that processes prompts and decodes until it is killed."""
        command = [runner, "run", "-m", model, "-t", "1", "-p", "40", "-r", "1000000", *more]
        engine = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.addCleanup(engine.wait)
        self.addCleanup(engine.kill)
        return engine

    def names(self, prometheus, query):
        """Fails if the query names a metric that there is not; returns why it has none here."""
        why = None
        for name in metrics(query):
            if not prometheus.data("query", query=f'count({{__name__="{name}"}})')["result"]:
                self.assertIn(name, MAY_LACK, f"no metric {name}: {query}")
                why = MAY_LACK[name]
        return why

    def test_every_query_has_an_answer(self):
        self.need_root()
        self.need("prometheus")
        prometheus = Prometheus(self, [self.recorded()], [RULES])
        prometheus.scrape(1)
        # A rate needs two scrapes of a histogram, and its request to have ended between them.
        for name in [f"{TTFT}_count", f"{TPOT}_count", f"{DURATION}_count", "profinfer_events_total"]:
            until(f"{name} grows", lambda: (prometheus.ask(f"sum(rate({name}[1m]))") or 0) > 0)
        for board, title, query in panels():
            def answer():
                return prometheus.data("query", query=query)["result"]

            first = answer()
            why = None if first else self.names(prometheus, query)
            result = first or (not why and until(f"{board}, {title}: {query} has an answer", answer))
            print(f"{board}, {title}: {query} = {self.shown(result) if result else f'none: {why}'}")
        for path in DASHBOARDS:
            for variable in json.loads(path.read_text())["templating"]["list"][1:]:
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
                for name, value in VARIABLES.items():
                    series = series.replace(name, value)
                values = prometheus.data(f"label/{label}/values", **{"match[]": series})
                self.assertTrue(values, f"{path}: {variable['query']}")
                print(f"{path.stem}, {variable['label']}: {', '.join(values)}")
        for rule in alerts():
            self.names(prometheus, rule["expr"])
            print(f"{rule['alert']}: {rule['expr']} = {self.shown(prometheus.data('query', query=rule['expr'])['result'])}")
        loaded = [rule for group in prometheus.data("rules")["groups"] for rule in group["rules"]]
        self.assertEqual([rule["name"] for rule in loaded], [rule["alert"] for rule in alerts()])
        until("all alerts are evaluated", lambda: {"ok"} == {
            rule["health"] for group in prometheus.data("rules")["groups"] for rule in group["rules"]})
        # They would be found.
        with self.assertRaises(AssertionError):
            self.names(prometheus, "sum(rate(profinfer_token_total[1m]))")
        with self.assertRaises(AssertionError):
            prometheus.data("query", query="sum(rate(profinfer_tokens_total)")

    def shown(self, result):
        values = [f"{float(series['value'][1]):.6g}" for series in result]
        return ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "") or "no series"


if __name__ == "__main__":
    unittest.main()
