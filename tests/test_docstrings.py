"""Docstrings of the public names: each has an example, whose names and keywords exist."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import raydist

OWNERS = (raydist.TrainContext, raydist.RunHandle)
METHODS: list[Callable[..., Any]] = [
    member
    for owner in OWNERS
    for name, member in vars(owner).items()
    if inspect.isfunction(member) and not name.startswith("_")
]
PROPERTIES = {
    f"{owner.__name__}.{name}": member
    for owner in OWNERS
    for name, member in vars(owner).items()
    if isinstance(member, property)
}
PUBLIC: dict[str, Any] = {
    **{name: getattr(raydist, name) for name in raydist.__all__ if name != "__version__"},
    **{f"data.{name}": getattr(raydist.data, name) for name in raydist.data.__all__},
    **{f"tune.{name}": getattr(raydist.tune, name) for name in raydist.tune.__all__},
    **{method.__qualname__: method for method in METHODS},
    **PROPERTIES,
}
DOCUMENTED = {name: documented for name, documented in PUBLIC.items() if name not in ("data", "tune")}
# What a call in an example is checked against, by how it is written.
CALLED: dict[str, Callable[..., Any]] = {
    **{f"raydist.{name}": getattr(raydist, name) for name in ("run", "submit", "plan", "attach")},
    **{f"raydist.data.{name}": getattr(raydist.data, name) for name in raydist.data.__all__},
    **{f"raydist.tune.{name}": getattr(raydist.tune, name) for name in raydist.tune.__all__},
    **{f"ctx.{method.__name__}": method for method in METHODS if "TrainContext" in method.__qualname__},
    "source.batches": raydist.data.Source.batches,
    **{f"batches.{name}": getattr(raydist.data.Batches, name) for name in ("map", "prefetch", "dataset")},
    **{f"handle.{method.__name__}": method for method in METHODS if "RunHandle" in method.__qualname__},
}


def example_of(documented: Any) -> ast.Module:
    doc = inspect.getdoc(documented) or ""
    match = re.search(r"^Example:\n((?:    .*\n|\n)+)", doc + "\n", flags=re.MULTILINE)
    assert match is not None, "there is no example"
    return ast.parse(textwrap.dedent(match[1]))


def calls_in(example: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(example):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_name_has_an_example_that_fits_the_signatures(name: str) -> None:
    example = example_of(DOCUMENTED[name])
    for written, call in calls_in(example):
        if written in CALLED:
            signature = inspect.signature(CALLED[written])
            first = [] if written.startswith("raydist.") else ["self"]
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            signature.bind(*first, *call.args, **keywords)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_example_uses_public_names_alone(name: str) -> None:
    for node in ast.walk(example_of(DOCUMENTED[name])):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "raydist":
            assert node.attr in raydist.__all__
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("ctx", "handle", "result", "plan"):
            owner = {
                "ctx": raydist.TrainContext,
                "handle": raydist.RunHandle,
                "result": raydist.RunResult,
                "plan": raydist.Plan,
            }[ast.unparse(node.value)]
            assert node.attr in {*dir(owner), *inspect.get_annotations(owner)}


@pytest.mark.parametrize("name", PUBLIC)
def test_first_line_of_a_docstring_is_a_sentence(name: str) -> None:
    first = (inspect.getdoc(PUBLIC[name]) or "").partition("\n")[0]
    assert re.search(r"[.`]$", first), first
