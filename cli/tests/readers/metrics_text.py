"""Reads OpenMetrics text with Prometheus' parser, and prints every family as JSON.

python3 metrics_text.py TEXT, with the package prometheus-client on PYTHONPATH.
"""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families


def main():
    """Reads the text that the command line names."""
    with open(sys.argv[1], encoding="utf-8") as file:
        families = list(text_string_to_metric_families(file.read()))
    report = {}
    for family in families:
        assert family.type in ("gauge", "counter", "info") and family.documentation, family
        assert bool(family.unit) == (family.type != "info"), family
        assert family.name not in report, f"{family.name} twice"
        samples = [{"name": sample.name, "labels": sample.labels, "value": sample.value} for sample in family.samples]
        report[family.name] = {"type": family.type, "unit": family.unit, "samples": samples}
    print(json.dumps(report))


main()
