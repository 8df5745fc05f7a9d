"""The Python snippets of README and guide run: all of them in one process that has TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LEAKING_VARIABLES
from tests.support.guide import PAGES, ROOT, blocks

pytestmark = pytest.mark.slow

SNIPPETS = {
    f"{page.stem} {index}": code
    for page in PAGES
    for index, code in enumerate(blocks(page, "python"), start=1)
}
# What a page might come to say that is wrong: the page, what it says now, and the mistake.
MISTAKES = [
    ("README", "global_batch_size=128", "globl_batchsize=128"),
    ("README", "keras.layers.Dense(10)", "keras.layers.Dense(9)"),  # of ten classes
    ("README", 'ctx.params["epochs"]', 'ctx.params["epoch"]'),
    ("from-python", 'handle.result(timeout="1h")', 'handle.resultt(timeout="1h")'),
    ("from-python", "jobs/cifar.py", "jobs/cifarr.py"),
    ("from-python", 'event["error"]', 'event["errors"]'),
    ("input-data", 'features=["age", "income"]', 'features=["age", "wages"]'),
    ("input-data", '.to_tf("x", "y", batch_size=128)', '.to_tensorflow("x", "y", batch_size=128)'),
    ("scripts", "MultiWorkerMirroredStrategy()", "MultiWorkerMirorredStrategy()"),
    ("scripts", "step=first_step", "steps=first_step"),
    ("storage", 'Path("labels.txt")', 'Path("lables.txt")'),
]


def broken(page: str, right: str, wrong: str) -> dict[str, str]:
    """Returns the snippets of a page that have what is right, each with the mistake, by the mistake."""
    found = {name: code for name, code in SNIPPETS.items() if name.startswith(f"{page} ") and right in code}
    return {f"{name}: {wrong}": code.replace(right, wrong) for name, code in found.items()}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """What went wrong in each snippet, and in each with a mistake, by its name."""
    snippets = dict(SNIPPETS)
    for mistake in MISTAKES:
        snippets |= broken(*mistake)
    file: Path = tmp_path_factory.mktemp("snippets") / "snippets.json"
    file.write_text(json.dumps(snippets))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.snippets", str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if name not in LEAKING_VARIABLES},
            "CUDA_VISIBLE_DEVICES": "-1",
        },
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet_runs(errors: dict[str, str | None], name: str) -> None:
    assert errors[name] is None, errors[name]


@pytest.mark.parametrize(("page", "right", "wrong"), MISTAKES)
def test_mistake_in_a_snippet_is_found(
    errors: dict[str, str | None], page: str, right: str, wrong: str
) -> None:
    mistaken = broken(page, right, wrong)
    assert mistaken, f"{page} does not have {right!r} any more"
    for name in mistaken:
        assert errors[name] is not None, f"nobody sees {wrong!r} in {name}"


def test_readme_and_the_pages_about_python_have_snippets() -> None:
    pages = {name.split()[0] for name in SNIPPETS}
    assert {"README", "from-python", "writing-a-job", "input-data", "scripts"} <= pages
