"""Whether a train function can be called as a task calls it, with the context alone: found without a call."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_ASYNC = "is an async function, so a call runs nothing; define it with def"
_GENERATOR = "is a generator function, so a call runs nothing; move its yield into another function"


def problem_of_source(node: FunctionNode) -> str | None:
    """Returns why a task cannot call the function, as the rest of a sentence that begins with its name."""
    if isinstance(node, ast.AsyncFunctionDef):
        return _ASYNC
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own_nodes(node)):
        return _GENERATOR
    positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    required = positional[: len(positional) - len(node.args.defaults)]
    named = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    required_names = [each.arg for each, default in named if default is None]
    return _problem_of_parameters(
        takes_one=bool(positional) or node.args.vararg is not None, required=required, named=required_names
    )


def problem_of_function(function: Callable[..., Any]) -> str | None:
    """Returns the same for a function, or another callable, in memory; None where Python cannot tell."""
    for each in (function, type(function).__call__):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            return _ASYNC
        if inspect.isgeneratorfunction(each):
            return _GENERATOR
    try:
        # What is called counts, not the function that it wraps.
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return None
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters if each.default is each.empty]
    return _problem_of_parameters(
        takes_one=any(each.kind in (*by_place, each.VAR_POSITIONAL) for each in parameters),
        required=[each.name for each in required if each.kind in by_place],
        named=[each.name for each in required if each.kind is each.KEYWORD_ONLY],
    )


def _problem_of_parameters(*, takes_one: bool, required: list[str], named: list[str]) -> str | None:
    if not takes_one:
        return "takes no positional argument, but each task calls it with the context; add one, such as ctx"
    others = [*required[1:], *named]
    if others:
        return (
            f"requires {', '.join(others)}, but each task calls it with the context alone; give defaults, "
            "or use ctx.params"
        )
    return None


def _own_nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """Yields what is in a function's body, without the functions, lambdas and classes inside."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop()
        yield node
        if not isinstance(node, FunctionNode | ast.Lambda | ast.ClassDef):
            ahead.extend(ast.iter_child_nodes(node))
