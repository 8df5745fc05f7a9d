"""The commands of README, guide, jobs and cluster files: all are parsed, and those that only read are run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from raydist import errors
from raydist.cli import main
from raydist.cli.screen import guide_pages
from raydist.runtime.task.code_archive import pack
from raydist.spec.tasks import ExtraTask
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_folder import RunFolder
from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.guide import (
    CLUSTER_FILES,
    FOLDER,
    INLINE_CODE,
    PAGES,
    ROOT,
    arguments_in,
    blocks,
    commands,
    commands_in,
    mentions,
    parsed,
)
from tests.support.page_runs import store_run

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
# Those that change nothing and need no Ray.
READING = (*("list", "status", "diff", "logs", "metrics", "download", "reproduce", "wait", "guide"),)
RUNS = ("digits-1", "digits-2")


@every_page
def test_commands_parse(page: Path) -> None:
    for arguments in commands(page):
        check_command(page, arguments)
    for arguments in mentions(page):
        check_command(page, arguments, is_mention=True)


@every_page
def test_no_command_stands_in_a_comment(page: Path) -> None:
    for block in blocks(page, "bash", "console"):
        assert list(hidden_in(block)) == []


def hidden_in(block: str) -> Iterator[str]:
    """Yields the lines that have a command in a comment, and the first of a block of comments only."""
    lines = [line for line in block.splitlines() if line.strip()]
    if all(line.lstrip().startswith("#") for line in lines):
        yield from lines[:1]
        return
    for line in lines:
        if re.search(rf"\braydist ({'|'.join(main.COMMANDS)}) [\w./-]+", line.partition("#")[2]):
            yield line


@pytest.mark.parametrize(
    ("block", "hidden"),
    [
        pytest.param("raydist list  # raydist is not run by this", [], id="remark"),
        pytest.param("# all of them\nraydist list", [], id="remark-above"),
        pytest.param("pip install raydist  # raydist submit job.py", [0], id="behind-another"),
        pytest.param("raydist list\n# raydist submit job.py", [1], id="line-of-its-own"),
        pytest.param("# pip install raydist\n\n# ray start --head", [0], id="all-of-a-block"),
    ],
)
def test_command_in_a_comment_is_found(block: str, hidden: list[int]) -> None:
    assert list(hidden_in(block)) == [block.splitlines()[index] for index in hidden]


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
    for arguments in arguments_in(INLINE_CODE.findall(doc)):
        check_command(job, arguments, is_mention=True)


@pytest.mark.parametrize("file", CLUSTER_FILES, ids=lambda file: file.name)
def test_commands_in_a_file_for_a_cluster_parse(file: Path) -> None:
    for arguments in commands_in(file.read_text()):
        check_command(file, arguments)


def test_commands_are_found_wherever_they_are() -> None:
    script = """
        $ raydist list
        pip install raydist && raydist plan job.py  # raydist is not run by a comment
        ray job submit --working-dir . -- raydist submit job.py -- --epochs 3
        raydist submit --name "$NAME-$ID" --workers "$NODES" \\
            "$@" &
        #   raydist status RUN \\
        #     --json
        # raydist is not run by this either
        code=1; raydist stop RUN | tail; raydist delete RUN || true
          entrypoint: >-
            raydist submit job.py
            --workers 4
    """
    lines = "\n".join(line.removeprefix(" " * 8) for line in script.splitlines()) + "\n"
    assert list(commands_in(lines)) == [
        ["list"],
        ["plan", "job.py"],
        ["submit", "job.py", "--", "--epochs", "3"],
        ["submit", "--name", "4-4", "--workers", "4", "jobs/cifar.py"],
        ["status", "RUN", "--json"],
        ["stop", "RUN"],
        ["delete", "RUN"],
        ["submit", "job.py", "--workers", "4"],
    ]


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


@pytest.mark.parametrize(("right", "wrong"), [("submit jobs", "submitt jobs"), ("--workers", "--wrokers")])
def test_mistake_in_a_command_for_rays_job_server_is_found(tmp_path: Path, right: str, wrong: str) -> None:
    begin, command, end = (FOLDER / "deploying.md").read_text().partition("ray job submit")
    page = tmp_path / "page.md"
    page.write_text(begin + command + end.replace(right, wrong, 1))
    with pytest.raises(pytest.fail.Exception, match=r"(?i)no (command|such option)"):
        test_commands_parse(page)


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


def reading(page: Path) -> Iterator[list[str]]:
    """Yields the commands of a page, its text included, that only read a run, with all that they need."""
    for arguments in (*commands(page), *mentions(page)):
        if arguments[0] in READING and not (
            arguments[0] == "reproduce" and {"--run", "--verify"} & {*arguments}
        ):
            try:
                parsed(arguments)
            except (click.exceptions.Exit, click.MissingParameter):
                continue
            yield arguments


def stored(arguments: list[str]) -> list[str]:
    """Returns the command with runs that exist, in the folder that holds them."""
    names = iter(RUNS)
    is_run = {"RUN", "NAME", "far", "again", "calm", "killed", "nightly", *RUNS}
    words = [next(names) if word in is_run else word for word in arguments]
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if word != "--storage" and before != "--storage"
    ]


@pytest.fixture
def runs(tmp_path: Path) -> None:
    """Two runs that have ended, with checkpoints, an export and their code, in the default folder."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text("import raydist\n\n\n@raydist.job\ndef train(ctx): ...\n")
    for name in RUNS:
        storage = open_run(str(tmp_path / "raydist_runs"), run=name)
        kept = RunFolder(storage, resume=False).keep_code(pack(code))
        entry_point = {"file": "job.py", "module": None, "function": "train"}
        spec = {"params": {"epochs": 3}, "workers": "2", "entry_point": entry_point, "name": name}
        store_run(storage, spec=spec, code={"digest": "d" * 64, "num_bytes": 9, "file": kept})
        CheckpointStore(storage).commit(step=450, attempt=1, files={"state.json": b"{}"}, info={})
        storage.write_bytes(storage.exported_model, b"keras")
        storage.write_text(f"{storage.output}/log.csv", "epoch")
        role = ExtraTask(role="features", index=0)
        storage.write_text(storage.log_segment(role, attempt=1, seq=0), "ready\n")


@every_page
@pytest.mark.usefixtures("runs")
def test_commands_that_read_a_run_can_be_run(page: Path, raydist: Run, tmp_path: Path) -> None:
    for arguments in reading(page):
        code, out, err = raydist(*stored(arguments))
        assert code == 0, f"raydist {shlex.join(arguments)}: {err}"
        assert out or arguments[0] == "logs"


def test_every_command_that_reads_is_in_the_guide() -> None:
    assert {arguments[0] for page in PAGES for arguments in reading(page)} == set(READING)
