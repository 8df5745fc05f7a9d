from __future__ import annotations

import fnmatch
import json
import re
import sys
from pathlib import Path

import pytest

from raydist.page.html import SCRIPTS, STYLES, page_json, report_html, script, style

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CURVES = {"points": 0, "series": [], "blob": ""}


def test_data_of_a_report_begin_no_tag_and_come_back_as_they_were() -> None:
    facts = {"run": "r", "note": "</script><!-- <script>", "value": float("nan")}
    page = report_html(facts, CURVES)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert "<" not in data
    assert json.loads(data) == {"mode": "report", **facts, "value": None, "curves": CURVES}


def test_title_is_text() -> None:
    assert "<title>&lt;b&gt; - raydist</title>" in report_html({"run": "<b>"}, CURVES)


def test_secrets_are_taken_out() -> None:
    assert "hunter2" not in page_json({"params": {"api_key": "hunter2"}, "at": "s3://me:hunter2@bucket"})


def test_script_names_the_licence_of_what_it_carries() -> None:
    assert "Permission is hereby granted" in script()
    assert "uPlot (v1.6.32)" in script()


def test_nothing_in_script_and_style_ends_their_elements_or_loads_from_elsewhere() -> None:
    assert "</script" not in script().lower()
    assert "<!--" not in script()
    assert "\r" not in script() + style()  # a browser would drop it, and the digest would not fit
    assert re.search(r"@import|url\(", style()) is None


@pytest.mark.parametrize("name", [*SCRIPTS, *STYLES, "uplot.LICENSE"])
def test_package_holds_the_file(name: str) -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert (ROOT / "raydist/page/static" / name).exists()
    assert any(fnmatch.fnmatch(f"page/static/{name}", pattern) for pattern in patterns["raydist"])
