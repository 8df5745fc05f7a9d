"""Which functions a task can call with the context alone, by their source and as they are in memory."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

import pytest

from raydist.entry.definition import define_from_object
from raydist.entry.job_source import note_on_params, problem_of_function, problem_of_source
from raydist.errors import JobFileError
from raydist.spec.settings.resolution import JobDefinition
from tests.entry.test_job_file import Read, error_of, read

__all__ = ["read"]  # the fixture


@pytest.mark.parametrize(
    ("source", "beginning"),
    [
        ("def train(ctx): ...", None),
        ("def train(ctx, /): ...", None),
        ("def train(ctx=None): ...", None),
        ("def train(*args): ...", None),
        ("def train(ctx, *args, rate=1, **more): ...", None),
        ("def train(ctx, rate=1): ...", None),
        ("def train(): ...", "takes no positional argument"),
        ("def train(**more): ...", "takes no positional argument"),
        ("def train(*, ctx=None): ...", "takes no positional argument"),
        ("def train(ctx, rate, *args): ...", "requires rate, but each task calls it with the context alone"),
        ("def train(ctx, /, rate, size=1, *, seed): ...", "requires rate, seed, but"),
        ("def train(*args, seed): ...", "requires seed, but"),
        ("async def train(ctx): ...", "is an async function"),
        ("async def train(ctx): yield 1", "is an async function"),
        ("def train(ctx): yield 1", "is a generator function"),
        ("def train(ctx):\n  for i in ctx:\n    j = yield from i", "is a generator function"),
        ("def train(ctx):\n  def data(): yield 1\n  other = lambda: (yield)", None),
        ("def train(ctx):\n  class Data:\n    def rows(self): yield 1", None),
    ],
)
def test_source_and_function_give_the_same_answer(source: str, beginning: str | None) -> None:
    [node] = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    found: dict[str, Any] = {}
    exec(source, found)
    for problem in (problem_of_source(node), problem_of_function(found["train"])):
        assert problem == beginning or (beginning is not None and str(problem).startswith(beginning))


def test_params_that_are_also_arguments_are_told_as_no_task_fills_them() -> None:
    def train(ctx: object, rate: float = 0.1, size: int | None = None, *, seed: int = 1) -> None: ...

    assert note_on_params(train, ["epochs", "size", "ctx"]) is None
    assert note_on_params(train, ["rate", "seed"]) == (
        "train has arguments that are also params, and they keep their defaults, because raydist passes "
        "the context alone: rate, seed; use ctx.params"
    )


class Trainer:
    def __init__(self, ctx: object = None) -> None: ...

    def __call__(self, ctx: object) -> None: ...

    def method(self, ctx: object) -> None: ...

    def bare(self) -> None: ...

    @staticmethod
    def static() -> None: ...


class AsyncTrainer:
    async def __call__(self, ctx: object) -> None: ...


def wraps_with_the_context(function: Callable[[], None]) -> Callable[[object], None]:
    @functools.wraps(function)
    def called(ctx: object) -> None:
        function()

    return called


@pytest.mark.parametrize(
    ("function", "is_fine"),
    [
        (Trainer(), True),
        (Trainer, True),
        (Trainer().method, True),
        (Trainer().bare, False),
        (Trainer.static, False),
        (AsyncTrainer(), False),
        (wraps_with_the_context(Trainer().bare), True),
        (functools.partial(lambda rate, ctx: None, 1), True),
        (functools.partial(lambda: None), False),
        (print, True),
        (int, True),
        (lambda ctx: None, True),
        (lambda: None, False),
    ],
)
def test_other_callables_are_checked_by_what_is_called(function: Callable[..., Any], is_fine: bool) -> None:
    assert (problem_of_function(function) is None) is is_fine


def test_function_of_python_code_is_refused() -> None:
    async def train(ctx: object) -> None: ...

    with pytest.raises(JobFileError, match=r"^the job train is an async function, so a call"):
        define_from_object(train, pickle=lambda function: b"")


HEAD = "import functools, raydist\ndef wrap(f): return functools.wraps(f)(lambda ctx: f())\n"


@pytest.mark.parametrize(
    "source",
    [
        "@raydist.job\n@wrap\ndef train(): ...\n",
        "@raydist.job\n@wrap\nasync def train(): ...\n",
        "@wrap\ndef train(): ...\n",
        "def train(): ...\ntrain = raydist.job(wrap(train))\n",
        "if raydist:\n  @raydist.job\n  def train(ctx): ...\nelse:\n  def train(): ...\n",
    ],
)
def test_function_that_something_else_is_made_of_is_not_checked(read: Read, source: str) -> None:
    definition: JobDefinition = read(HEAD + source, "jobs/a.py:train")
    assert definition.entry_point.function == "train"


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("@raydist.job(workers=2)\nasync def train(ctx): ...\n", "jobs/a.py, line 3: train is an async"),
        ("async def train(ctx): ...\n", "jobs/a.py: train is an async"),
        ("@raydist.job\ndef train(ctx, rate): ...\n", "jobs/a.py, line 3: train requires rate"),
        ("def f(): ...\ntrain = raydist.job(ps=1)(f)\n", "jobs/a.py:train takes no positional argument"),
    ],
)
def test_job_file_is_refused_with_its_line(read: Read, source: str, place: str) -> None:
    assert error_of(lambda: read(HEAD + source, "jobs/a.py:train")).startswith(place)


def test_file_with_an_undecorated_async_function_is_no_script(read: Read) -> None:
    assert error_of(lambda: read("import raydist\nasync def train(ctx): ...\n")).startswith(
        "jobs/a.py has no job"
    )
