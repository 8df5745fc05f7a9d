"""The page of a run and the list of runs in a real Chromium."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.metrics.curves import Series
from raydist.outcome.status import Scope
from raydist.page.curves import pack_curves
from raydist.page.gathering import Problems, gather_curves, gather_facts
from raydist.page.html import report_html
from raydist.storage.run_storage import RunStorage, open_run
from tests.support import browser as browsers
from tests.support.browser import Browser
from tests.support.page_runs import (
    BEGUN_S,
    record_facts,
    store_comparison,
    store_metrics,
    store_record,
    store_run,
    store_study,
)
from tests.support.serving import serving

pytestmark = pytest.mark.skipif(
    browsers.why_unavailable() is not None, reason=str(browsers.why_unavailable())
)

EVIL = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">'
SHOTS = [(True, 375), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((False, 1280), (True, 2000)))]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browsers.running_browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Chromium; what a test opens in it may say nothing on the console."""
    chromium.said.clear()
    chromium.requested.clear()
    before = chromium.chromium.contexts
    yield chromium
    for context in chromium.chromium.contexts:
        if context not in before:
            context.close()
    assert chromium.said == []


def write_report(run: RunStorage, file: Path, *, curves: dict[str, Any] | None = None) -> str:
    """Writes a run's report and returns the address to open."""
    problems = Problems()
    facts = gather_facts(run, problems, now_s=BEGUN_S + 99)
    curves = curves or gather_curves(run, problems, facts["record"])
    file.write_text(report_html({**facts, "raydist": "1.2.3", "problems": problems.sentences}, curves))
    return file.as_uri()


@pytest.fixture
def report(run: RunStorage, tmp_path: Path) -> str:
    return write_report(run, tmp_path / "digits-1.html")


@pytest.fixture(scope="module")
def whole_page(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A report's page that tests share."""
    folder = tmp_path_factory.mktemp("whole")
    run = open_run(str(folder / "runs"), run="digits-1")
    store_run(run)
    return opened(chromium, write_report(run, folder / "digits-1.html"))


@pytest.fixture
def page(whole_page: Any, browser: Browser) -> Any:
    """What a test changes of this page it changes back."""
    return whole_page


def opened(browser: Browser, url: str, **look: Any) -> Any:
    page = browser.open(url, **look)
    page.wait_for_selector("body[data-ready]")
    page.wait_for_selector(".chart canvas", state="attached")
    return page


def drag(page: Any, *, begin: float, end: float) -> None:
    """Draws a rectangle over the first chart, from one share of its width to another."""
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + begin * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()


def x_range(page: Any, chart: int = 0) -> list[float]:
    x = f"shownRun.board.charts[{chart}].plot.scales.x"
    shown: list[float] = page.evaluate(f"[{x}.min, {x}.max]")
    return shown


def painted(page: Any) -> int:
    """Returns how many pixels of the first chart are not transparent."""
    count: int = page.evaluate(
        """() => {
            const canvas = document.querySelector(".chart canvas");
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return pixels.filter((_, place) => place % 4 === 3).filter((alpha) => alpha > 0).length;
        }"""
    )
    return count


def constant_series(*, task: str, num_steps: int) -> Series:
    steps = np.arange(num_steps)
    return Series(
        scope=Scope.LOCAL,
        name="loss",
        task=task,
        steps=steps,
        times=BEGUN_S + steps * 0.01,
        values=np.ones(num_steps),
        attempts=np.zeros(num_steps, int),
    )


class TestReport:
    """`raydist download RUN page`: one file."""

    @pytest.mark.parametrize(("is_dark", "width"), SHOTS)
    def test_page_fits_each_width_and_scheme(
        self, browser: Browser, report: str, tmp_path: Path, is_dark: bool, width: int
    ) -> None:
        page = opened(browser, report, is_dark=is_dark, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.screenshot(path=tmp_path / "shot.png", full_page=True)
        assert (tmp_path / "shot.png").stat().st_size > 20_000
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(",")))
        assert (brightness < 200) == is_dark
        assert painted(page) > 1000

    def test_tasks_without_curves_are_counted(
        self, browser: Browser, run: RunStorage, tmp_path: Path
    ) -> None:
        record = gather_facts(run, Problems(), now_s=BEGUN_S)["record"]
        curves = {**gather_curves(run, Problems(), record), "tasks_left_out": 900}
        page = opened(browser, write_report(run, tmp_path / "large.html", curves=curves))
        assert "points; without those of 900 more tasks" in page.inner_text("main")

    def test_everything_of_the_run_is_there_and_nothing_is_fetched(
        self, browser: Browser, report: str
    ) -> None:
        page = opened(browser, report)
        assert browser.requested == [report]
        text = page.inner_text("main")
        for sentence in (
            *("digits-1", "SUCCEEDED", "killed by SIGKILL", "trained on digits", "learning_rate"),
            *("multi_worker_mirrored: workers is 2", "7 s until the first step", "attempt 1", "step_time"),
            *("no task is 1.5 times slower than the median", "step-200-a1"),
        ):
            assert sentence in text
        code = page.locator("#code").inner_text()
        assert all(each in code for each in ("c0ffee", "trunk", "true", ".env", "5e5e"))
        environment = page.locator("#environment")
        shown = environment.inner_text()
        assert all(
            each in shown for each in ("h0 (10.0.0.1), h1 (10.0.0.2)", "Some CPU", "17.2 GB", "2.21.0")
        )
        assert "Linux 6.1 x86_64" in shown
        # Nothing is cut off at the edge of the section.
        assert environment.evaluate("(one) => one.querySelector('.hosts').scrollWidth <= one.clientWidth")
        assert "some-package" not in shown
        environment.locator("summary", has_text="all packages").click()
        assert "some-package" in environment.inner_text()
        environment.locator("summary", has_text="all options").click()
        assert all(each in page.inner_text("main") for each in ("checkpoint-every", "ps.cpus", "2.5"))
        page.click("summary:has-text('end of its log')")
        assert page.locator("pre").inner_text().endswith("last words of worker/1 in attempt 0\n")

    def test_run_that_ended_before_its_first_step_is_not_said_to_have_made_one(
        self, browser: Browser, run: RunStorage, tmp_path: Path
    ) -> None:
        timings = {"ray": 1.0, "placement": 1.5, "tasks_ready": 6.0, "first_step": None, "total": 9.0}
        store_record(run, state="FAILED", steps=0, timings=timings)
        text = opened(browser, write_report(run, tmp_path / "failed.html")).locator("main").inner_text()
        assert "6 s without a step" in text
        assert "until the first step" not in text
        assert "training" not in text.split("Timeline")[1].split("Launch")[0]

    def test_run_of_an_older_raydist_is_shown_without_what_ran(
        self, browser: Browser, run: RunStorage, tmp_path: Path
    ) -> None:
        store_record(run, code=None, environment={"hosts": []}, versions={})
        page = opened(browser, write_report(run, tmp_path / "old.html"))
        assert page.locator("#code").count() == 0
        assert "1.2.3" in page.locator("#environment").inner_text()

    def test_tasks_on_a_slow_link_are_marked(self, browser: Browser, run: RunStorage, tmp_path: Path) -> None:
        ends = [
            {
                "task": f"worker/{index}",
                "cause": "network",
                "times_slower": 1.0,
                "message": "",
                "is_over": False,
            }
            for index in range(2)
        ]
        store_record(run, stragglers=ends)
        page = opened(browser, write_report(run, tmp_path / "slow.html"))
        assert page.locator("#workers .slow").all_inner_texts() == ["worker/0", "worker/1"]
        assert "the network of worker/0 and worker/1 is slow" in page.locator("#workers").inner_text()

    def test_workers_without_series_have_the_step_time_of_the_record(
        self, browser: Browser, run: RunStorage, tmp_path: Path
    ) -> None:
        slow = {"task": "worker/7", "cause": "unknown", "times_slower": 4.0, "message": "", "is_over": False}
        tasks = [*record_facts()["tasks"], {**record_facts()["tasks"][0], "task": "worker/7", "step_s": 0.4}]
        store_record(run, tasks=tasks, stragglers=[slow])
        page = opened(browser, write_report(run, tmp_path / "ps.html"))
        assert page.locator("#workers .slow").all_inner_texts() == ["worker/7"]
        shown = page.locator("#workers").inner_text()
        assert "worker/7 is 4.0 times slower than the median (likely cause: unknown)" in shown
        assert "400 ms" in shown

    def test_drag_zooms_all_charts_and_double_click_shows_all_again(self, page: Any) -> None:
        whole = x_range(page)
        drag(page, begin=0.25, end=0.5)
        low, high = x_range(page)
        assert low == pytest.approx(whole[0] + 0.25 * (whole[1] - whole[0]), abs=2)
        assert high == pytest.approx(whole[0] + 0.5 * (whole[1] - whole[0]), abs=2)
        assert x_range(page, chart=1) == [low, high]
        page.locator(".u-over").first.dblclick()
        assert x_range(page) == whole

    def test_log_scale_and_time_axis_change_what_is_drawn(self, page: Any) -> None:
        assert page.evaluate("shownRun.board.charts[0].plot.scales.y.distr") == 1
        page.click("button:has-text('log scale')")
        assert page.evaluate("shownRun.board.charts[0].plot.scales.y.distr") == 3
        assert painted(page) > 1000
        page.click("button:has-text('time')")
        low, high = x_range(page)
        assert (low, high) == (pytest.approx(8.1, abs=0.1), pytest.approx(50.0, abs=0.1))
        page.click("button:has-text('step')")
        page.click("button:has-text('log scale')")

    def test_ticks_of_an_axis_differ(self, page: Any) -> None:
        for values, told in (
            ("0.1, 0.10001", ["100 ms", "100.01 ms"]),
            ("0.5, 1", ["500 ms", "1 s"]),
            ("null, 7200, 7201", ["", "2 h", "2.0003 h"]),
        ):
            assert page.evaluate(f"distinctLabels([{values}], shortSeconds)") == told
        assert page.evaluate("distinctLabels([0.69315, 0.693151], shortNumber)") == ["0.69315", "0.693151"]

    def test_line_is_hidden_and_shown_by_its_name(self, page: Any) -> None:
        num_values = "shownRun.board.charts[0].plot.data[1].filter((y) => y !== undefined).length"
        page.locator(".chip").first.click()
        assert page.evaluate(f"[{num_values}, shownRun.board.charts[0].plot.series[1].show]") == [0, False]
        page.locator(".chip").first.click()
        assert page.evaluate(f"[{num_values}, shownRun.board.charts[0].plot.series[1].show]") == [200, True]

    def test_what_was_repeated_is_a_dashed_line_that_is_hidden_with_its_curve(self, page: Any) -> None:
        chips = page.locator(".chart").last.locator(".chip")
        names = ["worker/0", "worker/1", "worker/0, attempt 0", "worker/1, attempt 0"]
        assert chips.all_inner_texts() == names
        shown = """() => {
            const { plot } = shownRun.board.charts.at(-1);
            return plot.series.slice(1).map((one) => [one.show, one.stroke(), one.dash !== undefined]);
        }"""
        before = page.evaluate(shown)
        assert [is_dashed for _, _, is_dashed in before] == [False, False, True, True]
        assert [color for _, color, _ in before[2:]] == [color for _, color, _ in before[:2]]
        chips.nth(1).click()
        assert [is_on for is_on, _, _ in page.evaluate(shown)] == [True, False, True, False]
        chips.nth(2).click()
        assert [is_on for is_on, _, _ in page.evaluate(shown)] == [True, False, False, False]
        chips.nth(2).click()
        chips.nth(1).click()
        assert page.evaluate(shown) == before

    def test_second_fit_and_attempt_are_marked_with_their_names(self, page: Any) -> None:
        names, marks = page.evaluate(
            """async () => {
                const { plot } = shownRun.board.charts[0];
                const said = [];
                plot.ctx.fillText = (text) => said.push(text);
                plot.redraw(false);
                await new Promise(requestAnimationFrame);
                delete plot.ctx.fillText;
                const marked = said.filter((text) => /attempt|fit/.test(text));
                return [marked, shownRun.board.charts[0].marks];
            }"""
        )
        assert names == ["attempt 1", "fit 2"]
        assert [(mark["name"], mark["step"]) for mark in marks["trainings"]] == [("fit 2", 150)]
        assert "another training begins" in page.locator(".key").inner_text()

    def test_of_many_tasks_some_are_shown_at_first(
        self, browser: Browser, run: RunStorage, tmp_path: Path
    ) -> None:
        many = [constant_series(task=f"worker/{index}", num_steps=20) for index in range(60)]
        curves = {**pack_curves(many, num_points=10**6), "attempts": [], "workers": []}
        page = opened(browser, write_report(run, tmp_path / "wide.html", curves=curves))
        pressed = page.locator(".chip").evaluate_all("all => all.map((one) => one.ariaPressed)")
        assert pressed == ["true"] * 8 + ["false"] * 52

    def test_cursor_tells_the_values(self, page: Any) -> None:
        page.locator(".u-over").first.hover()
        assert page.locator(".where").first.inner_text().startswith("step 10")
        assert float(page.locator(".chip .value").first.inner_text()) == pytest.approx(0.2, abs=0.01)

    def test_keyboard_reaches_all_that_can_be_used_in_its_order_and_shows_where_it_is(
        self, page: Any
    ) -> None:
        page.locator("h1").click()  # and away from the charts
        usable = "button:not(:disabled), summary, a[href], input"
        wanted = page.locator(usable).evaluate_all(
            "all => all.filter((one) => one.checkVisibility()).map((one) => one.textContent)"
        )
        found = []
        for _ in range(len(wanted)):
            page.keyboard.press("Tab")
            found.append(
                page.evaluate(
                    """() => {
                        const one = document.activeElement;
                        const { outlineStyle, outlineWidth } = getComputedStyle(one);
                        return [one.textContent, outlineStyle, outlineWidth];
                    }"""
                )
            )
        assert [text for text, *_ in found] == wanted
        assert {(kind, width) for _, kind, width in found} == {("solid", "2px")}
        chip = page.locator(".chip").first
        chip.focus()
        page.keyboard.press("Space")
        assert chip.get_attribute("aria-pressed") == "false"
        page.keyboard.press("Enter")
        assert chip.get_attribute("aria-pressed") == "true"

    def test_keyboard_zooms_and_keeps_the_focus(self, page: Any) -> None:
        low, high = x_range(page)
        focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
        page.focus("[aria-label='zoom in']")
        page.keyboard.press("Enter")
        assert page.evaluate(focused) == "zoom in"
        quarter = (high - low) / 4
        assert x_range(page) == pytest.approx([low + quarter, high - quarter])
        page.focus("[aria-label='later']")
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")  # not beyond the end
        assert x_range(page) == pytest.approx([low + 2 * quarter, high])
        page.focus(".reset")
        page.keyboard.press("Enter")
        assert x_range(page) == [low, high]
        assert page.evaluate(focused) == "later"  # what was pressed cannot be pressed any more
        page.focus("button:has-text('time')")
        page.keyboard.press("Space")
        assert page.evaluate(focused) == "time"
        page.click("button:has-text('step')")

    def test_names_and_values_of_a_run_are_text(self, browser: Browser, tmp_path: Path) -> None:
        run = open_run(str(tmp_path / "runs"), run="odd")
        told = [{"event": "note", "at_s": BEGUN_S, "message": EVIL}]
        told += [{"event": "task_failed", "at_s": BEGUN_S, "attempt": 0, "task": EVIL, "message": EVIL}]
        params = {EVIL: EVIL, "</script>": "</script><script>window.hacked = 3</script>"}
        store_run(
            run,
            told=told,
            spec={"params": params},
            plan={"job": EVIL, "reason": EVIL},
            notes=[EVIL],
            metrics={EVIL: 1.0},
            strategy=EVIL,
            versions={EVIL: EVIL, "python": EVIL},
            code={"digest": EVIL, "num_bytes": 1, "branch": EVIL, "omitted": [EVIL]},
            environment={"hosts": [{"machine": {"system": EVIL, "cpu": EVIL}, "hosts": {EVIL: EVIL}}]},
        )
        page = opened(browser, write_report(run, tmp_path / "odd.html"))
        assert page.evaluate("window.hacked") is None
        assert page.locator("img").count() == 0
        assert page.inner_text("#params").count(EVIL) == 2
        assert EVIL in page.inner_text("#notes")
        assert page.inner_text("#code").count(EVIL) == 3
        assert page.inner_text("#environment").count(EVIL) >= 5

    def test_policy_of_the_page_stops_a_script_that_got_in(self, browser: Browser, page: Any) -> None:
        page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.hacked = 1";
                document.body.append(script);
            }"""
        )
        assert page.evaluate("window.hacked") is None
        assert len(browser.said) == 1
        assert "Content Security Policy" in browser.said.pop()

    def test_what_cannot_be_read_is_named(self, browser: Browser, run: RunStorage, tmp_path: Path) -> None:
        run.write_text(run.record, "{")
        run.write_text(f"{run.metrics}/0-worker-0-000000.parquet", "x")
        page = opened(browser, write_report(run, tmp_path / "torn.html"))
        banner = page.inner_text(".banner.warn")
        assert "run.json is damaged" in banner
        assert "0-worker-0-000000.parquet is damaged" in banner
        assert painted(page) > 1000

    def test_of_a_million_points_only_what_pixels_can_show_is_drawn(
        self, browser: Browser, run: RunStorage, tmp_path: Path
    ) -> None:
        many = [constant_series(task=f"worker/{index}", num_steps=250_000) for index in range(4)]
        many[0].values[123_456] = 50.0
        curves = {**pack_curves(many, num_points=10**6), "attempts": [], "workers": []}
        page = opened(browser, write_report(run, tmp_path / "many.html", curves=curves))
        page.evaluate("shownRun.board.zoomTo([1000, 200000])")
        assert page.evaluate("shownRun.board.charts[0].plot.data[0].length") <= 2400  # what pixels can show
        highest = page.evaluate("Math.max(...shownRun.board.charts[0].plot.data[1].filter((y) => y))")
        assert highest == 50.0
        page.evaluate("shownRun.board.zoomTo([123450, 123460])")
        assert page.evaluate("shownRun.board.charts[0].plot.data[0].includes(123456)")


class TestLivePage:
    """`raydist ui`: the list, and pages that stay up to date."""

    @pytest.fixture
    def url(self, runs: Path) -> Iterator[str]:
        for number, (rate, loss) in enumerate(((0.1, 0.5), (0.01, 0.125))):
            run = open_run(str(runs), run=f"tuned-{number}")
            store_run(run, spec={"params": {"learning_rate": rate}}, metrics={"loss": loss})
        with serving(str(runs)) as server:
            yield server.url

    @pytest.mark.slow
    def test_list_of_long_names_fits_and_has_validation_and_best_values(
        self, browser: Browser, runs: Path
    ) -> None:
        run = open_run(str(runs), run="recommender-of-movies-20261121-093012-1f3a")
        values = {
            "accuracy": 0.5,
            "auc": 0.25,
            "recall": 0.125,
            "loss": 1.5,
            "val_auc": 0.75,
            "val_loss": 2.5,
        }
        plan = {"job": "jobs/recommender_of_movies.py:train_and_evaluate"}
        best = {"name": "val_auc", "value": 0.875, "step": 40}
        store_run(run, metrics=values, plan=plan, best=best, strategy="multi_worker_mirrored")
        with serving(str(runs)) as server:
            for width in (375, 1200):
                page = browser.open(server.url, width=width)
                page.wait_for_selector("text=recommender-of-movies")
                scrolled = page.locator(".scroll")
                assert scrolled.evaluate("({ scrollWidth, clientWidth }) => scrollWidth - clientWidth") == 0
            shown = page.locator("tr", has_text="recommender-of-movies").locator(".values").all_inner_texts()
            assert [text.split() for text in shown] == [
                ["loss", "1.5", "val_loss", "2.5", "val_auc", "0.75"],
                ["val_auc", "0.875"],
            ]

    @pytest.mark.slow
    def test_list_fits_each_width_and_is_filtered_and_sorted(self, browser: Browser, url: str) -> None:
        for is_dark, width in ((True, 375), (True, 2000), (False, 1280)):
            page = browser.open(url, is_dark=is_dark, width=width)
            page.wait_for_selector("text=tuned-1")
            assert page.evaluate("document.documentElement.scrollWidth") == width
        assert all(address.startswith(url) for address in browser.requested)

        def names() -> list[str]:
            shown: list[str] = page.locator("tbody a").all_inner_texts()
            return shown

        page.click("th button:has-text('metrics')")
        assert names() == ["tuned-1", "digits-1", "tuned-0"]
        page.keyboard.press("Enter")  # what was clicked has the focus
        assert names() == ["tuned-0", "digits-1", "tuned-1"]
        page.fill("input[type=search]", "tuned learning_rate=0.01")
        assert names() == ["tuned-1"]

    @pytest.mark.slow
    def test_what_has_the_focus_keeps_it_when_runs_are_read_anew(
        self, browser: Browser, url: str, runs: Path
    ) -> None:
        page = browser.open(url)
        page.focus("[aria-label='compare tuned-1']")
        store_run(open_run(str(runs), run="later"))
        page.wait_for_selector("text=later")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "compare tuned-1"

    @pytest.mark.slow
    def test_runs_are_compared_side_by_side(self, browser: Browser, url: str) -> None:
        page = browser.open(url)
        page.check("[aria-label='compare tuned-0']")
        assert page.locator(".primary").is_disabled()
        page.check("[aria-label='compare tuned-1']")
        page.click("text=compare 2")
        page.wait_for_selector(".chart canvas", state="attached")
        assert page.locator(".chart").count() == 2
        assert page.locator(".chip").all_inner_texts()[:2] == ["tuned-0", "tuned-1"]
        differing = page.locator("tr.differs").all_inner_texts()
        assert [line.split() for line in differing] == [
            ["loss", "0.5", "0.125"],
            ["param", "learning_rate", "0.1", "0.01"],
        ]

    @pytest.mark.slow
    def test_study_has_its_runs_the_best_first_and_their_curves(self, browser: Browser, runs: Path) -> None:
        store_study(runs)
        with serving(str(runs)) as server:
            page = browser.open(server.url, width=375)
            page.click("a:text-is('rates') >> nth=0")
            page.wait_for_selector(".chart canvas", state="attached")
            lefts = page.locator("section").evaluate_all(
                "all => all.map((one) => one.getBoundingClientRect().x)"
            )
            assert len(lefts) == 3
            assert len({*lefts}) == 1
            boxes = page.locator("main header, section").evaluate_all(
                "all => all.map((one) => one.getBoundingClientRect())"
            )
            gaps = [lower["y"] - upper["bottom"] for upper, lower in itertools.pairwise(boxes)]
            assert gaps == pytest.approx([14, 14, 14], abs=0.5)
            assert page.locator("h1").count() == 1
            assert page.locator("h1").first.inner_text() == "Study rates val_accuracy, highest first"
            [headers, *rows] = page.locator("table").first.locator("tr").all_inner_texts()
            assert headers.split() == ["run", "state", "learning_rate", "val_accuracy", "steps", "duration"]
            assert [row.split()[:5] for row in rows] == [
                ["1", "rates-1", "SUCCEEDED", "0.01", "0.75"],
                ["2", "rates-0", "SUCCEEDED", "0.1", "0.5"],
                ["3", "rates-2", "FAILED", "1", "\N{EN DASH}"],
            ]
            assert page.locator(".chip").all_inner_texts()[:3] == ["rates-1", "rates-0", "rates-2"]
            assert page.locator("img.picture").count() == 0
            store_comparison(runs)
            page.wait_for_selector("text=2 workers train 1.5 times as fast")
            assert page.locator("table").first.locator("tr").all_inner_texts()[1].split() == [
                *("one", "device", "1", "000")
            ]
            assert page.evaluate("document.querySelector('img.picture').naturalWidth") == 80
            page.click("a:has-text('rates-0') >> nth=0")
            page.wait_for_selector("text=worker/1")

    @pytest.mark.slow
    def test_page_goes_on_with_its_run_and_keeps_its_zoom(
        self, browser: Browser, url: str, run: RunStorage
    ) -> None:
        store_record(run, state="RUNNING", steps=200)
        page = opened(browser, f"{url}#run=digits-1")
        assert page.locator(".badge").first.inner_text() == "RUNNING"
        drag(page, begin=0.25, end=0.5)
        zoomed = x_range(page)
        page.click("summary:has-text('end of its log')")
        page.click(".chip:has-text('worker/1') >> nth=0")
        store_metrics(run, steps=range(201, 301), attempt=1)
        store_record(run, state="RUNNING", steps=300)
        page.wait_for_selector(".figure:has-text('steps') b:text('300')")
        assert x_range(page) == zoomed
        assert page.locator("pre").is_visible()
        assert page.locator(".chip:has-text('worker/1')").first.get_attribute("aria-pressed") == "false"
        page.click("text=reset zoom")
        assert x_range(page)[1] == 300
        store_record(run, state="SUCCEEDED", steps=300)
        page.wait_for_selector(".badge:text('SUCCEEDED')")

    @pytest.mark.slow
    def test_storage_that_goes_away_is_told_and_comes_back(
        self, browser: Browser, url: str, runs: Path, run: RunStorage
    ) -> None:
        store_record(run, state="RUNNING")
        page = opened(browser, f"{url}#run=digits-1")
        other = opened(browser, f"{url}#run=digits-1")
        shutil.move(runs, runs.with_name("elsewhere"))
        for one in (page, other):
            one.wait_for_selector(".banner.bad:not([hidden])")
            assert "no run named 'digits-1'" in one.inner_text(".banner.bad")
            assert "digits-1" in one.inner_text("h1")
        shutil.move(runs.with_name("elsewhere"), runs)
        for one in (page, other):
            one.wait_for_selector(".banner.bad", state="hidden")
        # Chromium tells of each answer that is not a success.
        assert all("404" in sentence for sentence in browser.said)
        browser.said.clear()

    @pytest.mark.slow
    def test_run_named_as_a_script_does_nothing(self, browser: Browser, url: str, runs: Path) -> None:
        run = open_run(str(runs), run="odd")
        store_run(run, spec={"params": {EVIL: EVIL}}, metrics={EVIL: 1.0}, plan={"job": EVIL}, strategy=EVIL)
        page = browser.open(url)
        page.wait_for_selector("text=odd")
        assert EVIL in page.inner_text("tbody")
        page.goto(f"{url}#compare=odd,digits-1")
        page.wait_for_selector("table.compare")
        assert page.locator("img").count() == 0
        assert page.evaluate("window.hacked") is None
