"""The README and the guide: every link and name in them, and how `raydist guide` shows them."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import json
import re
import sys
from pathlib import Path

import click
import pytest

import raydist as public
import raydist.data
from raydist import errors
from raydist.cli import main
from raydist.cli.commands import guide
from raydist.cli.screen import guide_pages, output, run_view
from raydist.outcome.result import RunError
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import OPTIONS
from raydist.tracking.pod_progress import ANNOTATION
from raydist.train_context import TrainContext
from tests.cli.conftest import Run
from tests.support import guide_reference
from tests.support.guide import FOLDER, INLINE_CODE, PAGES, README, ROOT, blocks, prose

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Options of programs other than raydist: pytest, pip, and the scripts of tests/benchmarks.
FOREIGN_OPTIONS = {
    "--shard",
    "--dashboard-host",  # of Ray
    "--seeds",
    "--cold",
    "--growth",
    "--quick",
    "--write",
    "--tasks",
    "--agents",
    "--shrink",
    "--parts",
    "--compat",
    "--compat-dir",
    "--libraries",
    "--seed",
    "--head",
    "--address",
    "--no-deps",
    "--logdir",
    "--min-np",  # of Horovod
    "--max-np",
}

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w/.-])(?:raydist|tests|jobs|cluster_configs)/[\w/.-]*\w/?")

NOTES = ROOT / "docs" / "tensorflow-notes.md"
# A heading of the notes on TensorFlow, and a place that they name.
_NOTE = re.compile(r"tensorflow-notes\.md#([\w-]+)")
_PLACE = re.compile(r"`((?:tensorflow|keras|tf_keras)/[\w/]+\.py):(\w+)`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def all_options() -> set[str]:
    top = click.Context(main.cli, info_name="raydist")
    found = {"--help", *(word for option in main.cli.params for word in option.opts)}
    for name in main.cli.list_commands(top):
        command = main.cli.get_command(top, name)
        assert command is not None
        found |= {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
    return found


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


KNOWN_NAMES = {
    "raydist": {*dir(public), "data"},
    "raydist.data": set(dir(raydist.data)),
    "ctx": {*dir(TrainContext), *TrainContext.__annotations__},
}


def test_every_page_is_listed() -> None:
    assert {page.stem for page in FOLDER.glob("*.md")} == set(guide_pages.TOPICS)


@pytest.mark.parametrize("topic", guide_pages.TOPICS)
def test_page_has_a_title_and_says_for_whom_it_is(topic: str) -> None:
    first, empty, second, *_ = guide_pages.page(topic).splitlines()
    assert re.fullmatch(r"# [A-Z].+", first)
    assert empty == ""
    assert second.startswith("For ")


@pytest.mark.parametrize("topic", guide_pages.TOPICS)
def test_readme_links_to_the_page(topic: str) -> None:
    assert f"[{guide_pages.title(topic)}](raydist/guide/{topic}.md)" in README.read_text()


@pytest.mark.parametrize("topic", guide_pages.TOPICS)
def test_package_holds_the_page(topic: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["raydist"]
    assert any(fnmatch.fnmatch(f"guide/{topic}.md", pattern) for pattern in patterns)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(prose(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in headings(file), f"{page.name} links to {target}"


def test_comments_point_to_headings_of_the_notes() -> None:
    known = headings(NOTES)
    sources = {path: path.read_text() for path in (ROOT / "raydist").rglob("*.py")}
    named = {(path.name, anchor) for path, text in sources.items() for anchor in _NOTE.findall(text)}
    assert len(named) >= 10
    assert {one for one in named if one[1] not in known} == set()


def test_places_that_the_notes_name_are_in_the_installed_sources() -> None:
    places = _PLACE.findall(NOTES.read_text())
    assert len(places) >= 15
    tensorflow = importlib.metadata.distribution("tensorflow")
    if tuple(map(int, tensorflow.version.split(".")[:2])) < (2, 21):
        pytest.skip(f"the notes name places of TensorFlow 2.21, and this is {tensorflow.version}")
    site = Path(str(tensorflow.locate_file("")))
    gone = [f"{file}:{name}" for file, name in places if name not in (site / file).read_text()]
    assert gone == [], "upstream has moved: look at what raydist does about it, and at the note"


@every_page
def test_paths_of_the_repository_exist(page: Path) -> None:
    code = [*blocks(page, "bash"), *INLINE_CODE.findall(prose(page))]
    missing = {path for text in code for path in _PATH.findall(text) if not (ROOT / path).exists()}
    assert missing <= {ANNOTATION}


def test_strategies_list_every_job() -> None:
    linked = {
        Path(target).stem for target in _LINK.findall(prose(FOLDER / "strategies.md")) if "jobs/" in target
    }
    without_a_job = {"cifar_images", "mnist_images"}
    assert linked == {path.stem for path in (ROOT / "jobs").glob("*.py")} - without_a_job


@every_page
def test_options_exist(page: Path) -> None:
    words = {
        word for code in INLINE_CODE.findall(prose(page)) for word in re.findall(r"(?<!\S)--[\w-]+", code)
    }
    assert words - all_options() - FOREIGN_OPTIONS == set()


@every_page
def test_names_in_the_text_exist(page: Path) -> None:
    for code in INLINE_CODE.findall(prose(page)):
        for owner, name in re.findall(r"\b(ctx|raydist)\.([A-Za-z_]\w*)", code):
            assert name in KNOWN_NAMES[owner] or name == "json", f"{page.name}: {code}"


def test_script_and_job_of_the_readme_can_be_planned(raydist: Run, tmp_path: Path) -> None:
    for name, source in zip(("train.py", "digits.py"), blocks(README, "python"), strict=True):
        (tmp_path / name).write_text(source)
        code, out, _ = raydist("plan", name, "--address", "local", "--workers", "2")
        assert code == 0
        assert "strategy   multi_worker_mirrored: workers is 2" in out
        assert (f"note: {name} builds no strategy: its models train on all 2 workers" in out) == (
            name == "train.py"
        )


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_readme_has_the_two_commands_that_do_all_set_up() -> None:
    text = README.read_text()
    assert "pip install -e '.[tensorflow]' && raydist submit jobs/cifar.py\n" in text
    assert "pip install -e '.[test]' && pytest\n" in text


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_guide_names_every_option(option: Option) -> None:
    word, text = option.name.replace("_", "-"), guide_pages.page("commands")
    if option.name == "args":
        assert "-- ARGS" in text
        return
    if option.kind is OptionKind.MAPPING:
        assert f"`{option.name}:`" in text
        return
    assert f"--{word}" in text or f"--no-{word}" in text


@pytest.mark.parametrize(
    "part", guide_reference.parts(), ids=lambda part: f"{part.page.stem}-{len(part.lines)}"
)
def test_reference_is_that_of_the_code(part: guide_reference.Part) -> None:
    wanted = part.written()
    assert part.page.read_text() == wanted, "run `python -m tests.support.guide_reference`"


def test_guide_without_a_topic_lists_them(raydist: Run) -> None:
    code, out, err = raydist("guide")
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.partition("\n\n")[0].splitlines()]
    assert listed == list(guide_pages.TOPICS)


@pytest.mark.parametrize("topic", guide_pages.TOPICS)
def test_piped_page_is_the_file(raydist: Run, topic: str) -> None:
    assert raydist("guide", topic) == (0, (FOLDER / f"{topic}.md").read_text(), "")


@pytest.mark.parametrize("topic", guide_pages.TOPICS)
def test_page_on_a_terminal_is_rendered(
    topic: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.run(["guide", topic]) == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert guide_pages.title(topic) in shown.splitlines()[0]
    assert max(map(len, shown.splitlines())) <= 100
    assert "](" not in shown


def test_narrow_terminal_shows_all_of_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main.run(["guide", "figures"]) == 0
    assert "…" not in capsys.readouterr().out


def test_link_to_a_page_becomes_its_command() -> None:
    page = "See [figures](figures.md#input), [jobs/a.py](../../jobs/a.py) and [keras](https://keras.io)."
    shown = "See figures (`raydist guide figures`), jobs/a.py and keras (https://keras.io)."
    assert guide.without_links(page) == shown


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        pytest.param("stroage", "did you mean storage?", id="near"),
        pytest.param("weather", "write one of first-hour, writing-a-job, scripts", id="far"),
    ],
)
def test_unknown_topic_is_exit_2_and_one_sentence(raydist: Run, topic: str, sentence: str) -> None:
    code, out, err = raydist("guide", topic)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"no topic {topic!r}" in err
    assert sentence in err


@pytest.mark.parametrize(
    ("error", "topic"),
    [
        pytest.param(errors.DataError("column x is missing"), "input-data", id="data"),
        pytest.param(errors.JobFileError("no job file"), "writing-a-job", id="job-file"),
        pytest.param(errors.ClusterError("9 CPUs are asked for"), "on-a-cluster", id="cluster"),
        pytest.param(errors.CheckpointError("damaged"), "storage", id="checkpoint"),
    ],
)
def test_error_names_the_page_that_helps(
    error: errors.RaydistError, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output.print_raydist_error(error, is_json=True) == error.exit_code
    printed = capsys.readouterr()
    assert printed.err == f"raydist: {error} (see `raydist guide {topic}`)\n"
    assert json.loads(printed.out)["error"]["message"] == str(error)


def test_error_of_a_run_names_the_page_unless_it_is_the_users_own(capsys: pytest.CaptureFixture[str]) -> None:
    for exit_code in (2, 1):
        run_view.print_error(RunError(type="DataError", message="DataError: x", exit_code=exit_code))
    assert capsys.readouterr().out.splitlines() == [
        "error: DataError: x",
        "  see      raydist guide input-data",
        "error: DataError: x",
    ]


@pytest.mark.parametrize("command", ["submit", "plan", "resume", "chaos", "status", "doctor"])
def test_help_names_pages_that_exist(raydist: Run, command: str) -> None:
    code, out, _ = raydist(command, "--help")
    assert code == 0
    named = re.findall(r"`raydist guide ([\w-]+)`", out)
    assert named
    assert set(named) <= set(guide_pages.TOPICS)


def test_images_are_left_out_of_a_page_on_a_terminal() -> None:
    page = "Before.\n\n![The page](images/page.png)\n\nAfter, see [failures](failures.md).\n"
    assert guide.without_links(page) == "Before.\n\nAfter, see failures (`raydist guide failures`).\n"
