"""Figures in the README and the guide: each is one that a script of tests/benchmarks has printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.figures import pages
from tests.benchmarks.figures.quoted import NOT_MEASURED, QUOTED
from tests.benchmarks.figures.record import Figures, UnknownFigureError, shown
from tests.support.guide import PAGES

FIGURES = Figures(
    [
        {"figure": "launch.cold", "value": 3.91, "min": 3.6, "max": 4.14, "ratio": 0.8123},
        {"figure": "input.scan", "value": 1_234_567.0, "rounds": 5, "ratio": 12.34},
    ]
)


@pytest.mark.parametrize("page", sorted(pages.written(Figures.read())), ids=lambda page: page.stem)
def test_page_shows_the_figures_of_the_record(page: Path) -> None:
    wanted = pages.written(Figures.read())[page]
    assert page.read_text() == wanted, "run `python -m tests.benchmarks --from /dev/null`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_looks_measured_comes_from_a_script(page: Path) -> None:
    advice = (
        "let a script print it and quote it in tests/benchmarks/figures/quoted.py, or say there what it is"
    )
    assert pages.without_origin(page) == [], advice


def test_quotes_and_exceptions_are_of_pages_that_exist() -> None:
    assert {*QUOTED, *NOT_MEASURED} <= {page.name for page in PAGES}


@pytest.mark.parametrize(
    "text",
    [
        *("is 3.2 times as fast", "takes 12% longer", "takes 12 % longer", "in 40 µs", "in 7 ms", "in 0.3 s"),
        *("reads 5,000 rows/s", "takes 1.5 GB", "takes 400 MB", "0.12 of the time", "0.12 of its time"),
    ],
)
def test_number_that_looks_measured_is_found(text: str) -> None:
    assert len(pages.unaccounted(f"raydist {text}.", [], {})) == 1


@pytest.mark.parametrize(
    "text",
    [
        *("after 60 s", "`sleep 0.5 s`", "\n```\nin 40 µs\n```\n", "TensorFlow 2.21", "up to 100 MB"),
        *("is {launch.cold.ratio:.1f} times as fast", "11 to 20", "version 1.5 of it"),
    ],
)
def test_number_that_does_not_look_measured_may_stand(text: str) -> None:
    assert pages.unaccounted(text, [], {}) == []


def test_quoted_and_excepted_texts_may_stand_once() -> None:
    quotes, exceptions = ["is {launch.cold} times as slow"], {"at least 5 ms": "a threshold"}
    assert pages.unaccounted("It is 3.7 times as\nslow, at least\n5 ms.", quotes, exceptions) == []
    with pytest.raises(pages.QuoteError):
        pages.unaccounted("It is 3.7 times as slow.", quotes, exceptions)


def test_quotes_are_rewritten_where_they_stand() -> None:
    text = "Slower: 0.5 of\nthe time, 1.0 to 2.0 s. Other: 0.5 of the cake."
    quotes = ["{launch.cold.ratio:.2f} of the time, {launch.cold.min} to {launch.cold.max:.2f} s"]
    rewritten = "Slower: 0.81 of\nthe time, 3.6 to 4.14 s. Other: 0.5 of the cake."
    assert pages.with_quotes(text, quotes, FIGURES) == rewritten


@pytest.mark.parametrize("text", ["no such sentence", "5 times and 6 times"])
def test_quote_that_a_page_has_not_once_is_an_error(text: str) -> None:
    with pytest.raises(pages.QuoteError, match="not once"):
        pages.with_quotes(text, ["{launch.cold} times"], FIGURES)


@pytest.mark.parametrize("name", ["launch.hot", "launch.cold.rounds"])
def test_figure_that_nobody_printed_is_an_error(name: str) -> None:
    with pytest.raises(UnknownFigureError, match=r"python -m tests\.benchmarks launch --write"):
        FIGURES.fill(f"takes {{{name}}} s")


def test_figures_are_filled_in_as_the_template_says() -> None:
    filled = FIGURES.fill("{input.scan} rows/s, {input.scan.ratio} ({input.scan.rounds} rounds), {x}")
    assert filled == "1,230,000 rows/s, 12.3 (5 rounds), {x}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((1234567.0, "1,230,000"), (1234567, "1,234,567"), (0, "0"), (44, "44"), (43.7, "44")),
        *(
            (13.34, "13.3"),
            (1.996, "2.0"),
            (1.13, "1.13"),
            (0.6, "0.60"),
            (0.0732, "0.07"),
            (0.0061, "0.006"),
        ),
    ],
)
def test_numbers_are_shown_with_two_or_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_new_figures_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    FIGURES.with_lines([{"figure": "launch.cold", "value": 2.5}]).write(path)
    found = Figures.read(path)
    assert found.fill("{launch.cold} {input.scan}") == "2.5 1,230,000"
    assert [line.split('"')[3] for line in path.read_text().splitlines()] == ["input.scan", "launch.cold"]
