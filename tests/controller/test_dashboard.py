"""The Grafana dashboard shows what raydist exports, by the names that Ray gives it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from raydist.controller.gauges import GAUGES

PATH = Path(__file__).parents[2] / "cluster_configs" / "grafana" / "raydist.json"
LABELS = {f"ray_{gauge.name}": set(gauge.labels) for gauge in GAUGES}
BOARD: dict[str, Any] = json.loads(PATH.read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("query", QUERIES)
def test_query_asks_for_gauges_and_labels_that_there_are(query: str) -> None:
    asked = re.findall(r"(ray_\w+)\{([^}]*)\}", query)
    assert asked
    for name, selector in asked:
        labels = re.findall(r"(\w+)\s*=~", selector)
        assert labels
        assert set(labels) <= LABELS[name]


@pytest.mark.parametrize("panel", BOARD["panels"], ids=[panel["title"] for panel in BOARD["panels"]])
def test_legend_names_labels_of_its_query(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        (name,) = re.findall(r"ray_raydist_\w+", target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= LABELS[name]


def test_each_gauge_is_shown() -> None:
    assert set(re.findall(r"ray_raydist_\w+", " ".join(QUERIES))) == set(LABELS)


def test_variables_are_labels_that_queries_select() -> None:
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "run", "name"}
    for name in ("run", "name"):
        match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables[name]["query"]["query"])
        assert match[2] == name
        assert name in LABELS[match[1]]
        assert any(f'{name}=~"${name}"' in query for query in QUERIES)


def test_panels_do_not_overlap() -> None:
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
