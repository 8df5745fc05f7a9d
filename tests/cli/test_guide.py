"""The README and the guide: every link, command and snippet in them, and how `raydist guide` shows them."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

import raydist as public
import raydist.data
from raydist import errors
from raydist.cli import job_options, main
from raydist.cli.commands import guide
from raydist.cli.screen import guide_pages, output, run_view
from raydist.spec.result import RunError
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.typed import typed_values
from raydist.train_context import TrainContext
from tests.cli.conftest import Run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "raydist" / "guide"
README = ROOT / "README.md"
PAGES = [README, *sorted(FOLDER.glob("*.md"))]
# Options of programs other than raydist: pytest, pip, and the scripts of tests/benchmarks.
FOREIGN_OPTIONS = {
    "--runslow",
    "--exhaustive",
    "--exhaustive-shard",
    "--only-added",
    "--compat",
    "--compat-dir",
    "--seed",
    "--head",
    "--address",
    "--no-deps",
    "--logdir",
}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?<![\w/.-])(?:raydist|tests|jobs|cluster_configs)/[\w/.-]*\w/?")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path, *languages: str) -> list[str]:
    """Returns the fenced code blocks in one of these languages."""
    return [code for language, code in _FENCE.findall(page.read_text()) if language in languages]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def commands(page: Path) -> Iterator[list[str]]:
    """Yields the arguments of each `raydist …` in code blocks."""
    lines = [line for block in blocks(page, "bash", "console") for line in block.splitlines()]
    yield from arguments_in(part for line in lines for part in line.removeprefix("$ ").split(" && "))


def mentions(page: Path) -> Iterator[list[str]]:
    """Yields the arguments of each `raydist …` in the text, where the job may be left out."""
    yield from arguments_in(_INLINE_CODE.findall(prose(page)))


def arguments_in(texts: Iterable[str]) -> Iterator[list[str]]:
    for text in texts:
        if text.startswith("raydist "):
            yield shlex.split(text.partition("|")[0].rstrip(" \\"), comments=True)[1:]


def parsed(arguments: list[str]) -> click.Context:
    """Parses a command line as the command does, and the values of its options. Runs nothing."""
    top = click.Context(main.cli, info_name="raydist")
    name, command, rest = main.cli.resolve_command(top, arguments)
    assert command is not None
    context = command.make_context(name, rest, parent=top)
    typed_values(job_options.given_options(context.params))
    return context


def all_options() -> set[str]:
    top = click.Context(main.cli, info_name="raydist")
    found = {"--help", "--version"}
    for name in main.cli.list_commands(top):
        command = main.cli.get_command(top, name)
        assert command is not None
        found |= {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
    return found


def headings(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def public_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields (`raydist`, `run`), (`raydist.data`, `from_arrays`), (`ctx`, `fit`) for what a snippet uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner in ("raydist", "raydist.data", "ctx"):
                yield owner, node.attr


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


@every_page
def test_paths_of_the_repository_exist(page: Path) -> None:
    code = [*blocks(page, "bash"), *_INLINE_CODE.findall(prose(page))]
    missing = [path for text in code for path in _PATH.findall(text) if not (ROOT / path).exists()]
    assert missing == []


@every_page
def test_commands_parse(page: Path) -> None:
    for arguments in commands(page):
        check_command(page, arguments)
    for arguments in mentions(page):
        check_command(page, arguments, is_mention=True)


def check_command(page: Path, arguments: list[str], *, is_mention: bool = False) -> None:
    try:
        context = parsed(arguments)
    except click.exceptions.Exit:  # --help
        return
    except (click.ClickException, errors.RaydistError) as error:
        if is_mention and isinstance(error, click.MissingParameter):
            return
        pytest.fail(f"{page.name}: raydist {shlex.join(arguments)}: {error}")
    if arguments[0] == "guide":
        assert context.params["topic"] in (None, "TOPIC", *guide_pages.TOPICS)


@pytest.mark.parametrize("job", sorted((ROOT / "jobs").glob("*.py")), ids=lambda job: job.stem)
def test_commands_in_the_doc_comment_of_a_job_parse(job: Path) -> None:
    doc = ast.get_docstring(ast.parse(job.read_text())) or ""
    for arguments in arguments_in(doc.splitlines()):
        check_command(job, arguments)
    for arguments in arguments_in(_INLINE_CODE.findall(doc)):
        check_command(job, arguments, is_mention=True)


def test_gallery_has_every_job() -> None:
    linked = {
        Path(target).stem for target in _LINK.findall(prose(FOLDER / "gallery.md")) if "jobs/" in target
    }
    without_a_job = {"cifar_images", "mnist_images"}
    assert linked == {path.stem for path in (ROOT / "jobs").glob("*.py")} - without_a_job


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(["sumbit", "job.py"], click.UsageError, id="command"),
        pytest.param(["submit", "job.py", "--wrokers", "2"], click.NoSuchOption, id="option"),
        pytest.param(["submit", "job.py", "--workers", "two"], errors.SpecError, id="value"),
    ],
)
def test_a_command_that_raydist_refuses_does_not_parse(arguments: list[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        parsed(arguments)


@every_page
def test_options_exist(page: Path) -> None:
    words = {
        word for code in _INLINE_CODE.findall(prose(page)) for word in re.findall(r"(?<!\S)--[\w-]+", code)
    }
    assert words - all_options() - FOREIGN_OPTIONS == set()


@every_page
def test_snippets_compile_and_use_what_exists(page: Path) -> None:
    for code in blocks(page, "python"):
        tree = ast.parse(code)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                check_import(node)
            elif isinstance(node, ast.Call):
                check_keywords(node)
        unknown = [name for name in public_names(tree) if name[1] not in KNOWN_NAMES[name[0]]]
        assert unknown == []


@every_page
def test_names_in_the_text_exist(page: Path) -> None:
    for code in _INLINE_CODE.findall(prose(page)):
        for owner, name in re.findall(r"\b(ctx|raydist)\.([A-Za-z_]\w*)", code):
            assert name in KNOWN_NAMES[owner] or name == "json", f"{page.name}: {code}"


@every_page
def test_jobs_of_the_commands_can_be_planned(
    page: Path, raydist: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("jobs", "cluster_configs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.setenv("WANDB_API_KEY", "key")
    (tmp_path / ".env").write_text("KEY=value\n")
    for name, job, *options in (one for one in commands(page) if len(one) > 1):
        if name in ("submit", "plan") and (ROOT / job).is_file():
            code, out, err = raydist("plan", job, *options, "--address", "local")
            if "this machine has" not in err:  # too few CPUs
                assert code == 0, err
                assert "strategy" in out


def check_import(node: ast.Import | ast.ImportFrom) -> None:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
    for module in modules:
        # TensorFlow and the like are only looked for: importing them takes seconds.
        assert importlib.util.find_spec(module.partition(".")[0]) is not None, module
        if module.startswith("raydist") and isinstance(node, ast.ImportFrom):
            found = importlib.import_module(module)
            assert [alias.name for alias in node.names if not hasattr(found, alias.name)] == []


def check_keywords(node: ast.Call) -> None:
    """Checks the keywords of calls of raydist's functions and of the context's methods."""
    names = {keyword.arg for keyword in node.keywords}
    match ast.unparse(node.func).split("."):
        case ["raydist", "run" | "submit" | "plan" | "attach" as name]:
            known = {*inspect.signature(getattr(public, name)).parameters, *(each.name for each in OPTIONS)}
            assert names <= known
        case ["raydist", "job"]:
            assert names <= {"params", *(each.name for each in OPTIONS)}
        case ["ctx", name] if callable(getattr(TrainContext, name, None)):
            assert names <= set(inspect.signature(getattr(TrainContext, name)).parameters)


def test_job_of_the_readme_can_be_planned(raydist: Run, tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text(blocks(README, "python")[0])
    code, out, _ = raydist("plan", "digits.py", "--address", "local")
    assert code == 0
    assert "strategy   multi_worker_mirrored: workers is 2" in out


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


def test_guide_names_every_command() -> None:
    top = click.Context(main.cli, info_name="raydist")
    shown = {arguments[0] for arguments in commands(FOLDER / "commands.md")}
    assert set(main.cli.list_commands(top)) <= shown


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
        pytest.param("weather", "write one of writing-a-job, scripts, commands", id="far"),
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


def test_error_of_a_run_names_the_page_unless_it_is_the_users_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for exit_code in (2, 1):
        run_view.print_error(RunError(type="DataError", message="DataError: x", exit_code=exit_code))
    assert capsys.readouterr().out.splitlines() == [
        "error: DataError: x",
        "  see      raydist guide input-data",
        "error: DataError: x",
    ]


@pytest.mark.parametrize("command", ["submit", "plan", "resume", "chaos", "checkpoints", "doctor"])
def test_help_names_pages_that_exist(raydist: Run, command: str) -> None:
    code, out, _ = raydist(command, "--help")
    assert code == 0
    named = re.findall(r"`raydist guide ([\w-]+)`", out)
    assert named
    assert set(named) <= set(guide_pages.TOPICS)


def test_images_are_left_out_of_a_page_on_a_terminal() -> None:
    page = "Before.\n\n![The page](images/page.png)\n\nAfter, see [failures](failures.md).\n"
    assert guide.without_links(page) == "Before.\n\nAfter, see failures (`raydist guide failures`).\n"
