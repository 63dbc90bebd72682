#!/usr/bin/env python3
"""The Helm chart of conf/helm, rendered by Helm's own library, and the manifest of conf/kubernetes: valid by Kubernetes'
schemas of each version from 1.30, and alike. `charts.py --write` makes the manifest of the chart."""

import copy
import os
import re
import sys
import tomllib
import unittest
from pathlib import Path

import yaml

sys.path += [str(Path(__file__).resolve().parents[1] / "service")]
from common import CONF, PROFINFER, Test  # noqa: E402

CHART = CONF / "helm" / "profinfer"
MANIFEST = CONF / "kubernetes" / "profinfer.yaml"
PACKAGES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer" / "kubernetes"
HEAD = """\
# The service on every node, with the values of conf/helm/profinfer/values.yaml: `kubectl apply -f` it after changing the image.
# Made of the chart by `tests/containers/charts.py --write`.
apiVersion: v1
kind: Namespace
metadata:
  name: profinfer
  labels:
    # The process ids and two directories of the node.
    pod-security.kubernetes.io/enforce: privileged
---
"""


def render(values):
    """The chart's only file."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        (text,) = chart.render(values, name="profinfer", namespace="profinfer").values()
    return re.sub(r"(?m)[ \t]+$", "", text).strip() + "\n"


class Charts(Test):
    def setUp(self):
        super().setUp()
        if not PACKAGES.is_dir():
            self.skip(f"no {PACKAGES}: scripts/setup.sh installs what validates")

    def validated(self, text):
        """The objects of a manifest, valid in each version that Kubernetes' schemas are there for."""
        import kubernetes_validate

        objects = list(yaml.safe_load_all(text))
        versions = [v for v in kubernetes_validate.utils.all_versions() if int(v.split(".")[1]) >= 30]
        self.assertGreater(len(versions), 5)
        for version in versions:
            for one in objects:
                kubernetes_validate.validate(one, version, strict=True)
        # It would find a field that there is not, and one of another type.
        for key, value in [("hostPid", True), ("hostPID", "yes")]:
            wrong = copy.deepcopy(objects[-1])
            wrong["spec"]["template"]["spec"][key] = value
            with self.assertRaises(kubernetes_validate.ValidationError):
                kubernetes_validate.validate(wrong, versions[-1], strict=True)
        print(f"{', '.join(one['kind'] for one in objects)}: valid in {versions[0]} to {versions[-1]}")
        return objects

    def test_the_manifest_is_that_of_the_chart(self):
        import helm_python

        self.validated(MANIFEST.read_text())
        self.assertEqual(MANIFEST.read_text(), HEAD + render({}), "run tests/containers/charts.py --write")
        said = helm_python.lint(str(CHART), strict=True)
        # 2: a warning.
        self.assertEqual([m for m in said["messages"] if m["severity"] >= 2] + said["errors"], [])

    def test_values_go_where_they_belong(self):
        values = {
            "image": "r.example/p@sha256:0", "metricsPort": 9000, "recordings": "/data",
            "extraCapabilities": ["SYS_ADMIN", "SYS_NICE"],
            "tolerations": [{"operator": "Exists"}], "rules": '[[rule]]\nname = "a"\nexe = "llama-server"\nring = "2min"\n',
        }
        config, daemon = self.validated(render(values))
        text = config["data"]["profinfer.toml"]
        conf = tomllib.loads(text)
        self.assertEqual(conf["metrics"]["listen"], "0.0.0.0:9000")
        self.assertEqual(conf["rule"], [{"name": "a", "exe": "llama-server", "ring": "2min"}])
        pod = daemon["spec"]["template"]["spec"]
        security = pod["containers"][0]["securityContext"]
        self.assertEqual(security["capabilities"]["add"][-2:], ["SYS_ADMIN", "SYS_NICE"])
        # Kubernetes refuses false beside SYS_ADMIN.
        self.assertIs(security["allowPrivilegeEscalation"], True)
        self.assertEqual((pod["containers"][0]["image"], pod["tolerations"]), (values["image"], values["tolerations"]))
        self.assertIn({"path": "/data", "type": "DirectoryOrCreate"}, [v.get("hostPath") for v in pod["volumes"]])
        if PROFINFER.is_file():
            (self.dir / "p.toml").write_text(text)
            self.run_it(PROFINFER, "config", "--check", self.dir / "p.toml")


if __name__ == "__main__":
    sys.path.insert(0, str(PACKAGES))
    if sys.argv[1:] == ["--write"]:
        MANIFEST.write_text(HEAD + render({}))
    else:
        unittest.main()
