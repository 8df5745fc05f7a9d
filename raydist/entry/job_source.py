"""What a job file says about its jobs, read from the source: the file itself is not run.

This includes whether a train function can be called as a task calls it, with the context alone.
"""

from __future__ import annotations

import ast
import collections
import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raydist.entry.notebook import read_cells
from raydist.entry.own_source import Part, parse
from raydist.errors import JobFileError
from raydist.spec.text import listed

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


def note_on_params(function: Callable[..., Any], params: Collection[str]) -> str | None:
    """Returns a sentence for params that the function also has as arguments, which keep their defaults."""
    try:
        parameters = [*inspect.signature(function, follow_wrapped=False).parameters.values()][1:]
    except (TypeError, ValueError):
        return None
    # None as a default stands for what the function looks up by itself.
    taken = {each.name for each in parameters if each.default is not each.empty and each.default is not None}
    told = [name for name in params if name in taken]
    if not told:
        return None
    name = getattr(function, "__name__", type(function).__name__)
    return (
        f"{name} has arguments that are also params, and they keep their defaults, because raydist passes "
        f"the context alone: {listed(told)}; use ctx.params"
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


@dataclass(frozen=True, kw_only=True)
class FoundJob:
    """One decorated function.

    Attributes:
      line: Line of the decorator.
      defaults: Its arguments; None where they are not literals and the file has to be run.
      lines: The line of each argument.
    """

    name: str
    line: int
    defaults: Mapping[str, Any] | None
    lines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobSource:
    """The names at a file's top level.

    Attributes:
      jobs: Functions decorated with `raydist.job`, by name.
      functions: All functions, by name.
      problems: Why a task could not call a function, by its name. A function that has other decorators, or
        whose name is bound again, is not checked, as something else may be called.
      other_names: What else is bound there: assignments, imports.
      is_program: Whether it does anything when it is run, besides defining functions and classes, and leaves
        no train function without a call.
      parts: The source itself.
    """

    jobs: Mapping[str, FoundJob]
    functions: frozenset[str]
    other_names: frozenset[str]
    is_program: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()


def read_notebook(content: bytes, *, shown: str) -> JobSource:
    """Returns what the code cells of a notebook say; raises JobFileError for what is none."""
    parts = tuple(Part(cell.name, parse(cell.source)) for cell in read_cells(content, shown=shown))
    return _read_tree(ast.Module([each for part in parts for each in part.tree.body], []), parts)


def read_source(source: bytes, *, shown: str) -> JobSource:
    """Returns what `source` says; raises JobFileError with file and line for a syntax error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape sequence is the user's, and shown in the task
            tree = parse(source, filename=shown)
            compile(tree, shown, "exec", dont_inherit=True)  # finds `return` outside a function, too
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        raise JobFileError(f"{shown}{line}: {error.msg}; fix the syntax error there") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobFileError(f"{shown} is not Python source: {error}; give a .py file") from error
    return _read_tree(tree, (Part(shown, tree),))


def _read_tree(tree: ast.Module, parts: tuple[Part, ...]) -> JobSource:
    packages, decorators = _names_of_raydist(tree)

    def is_job(node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in decorators
            case ast.Attribute(value=ast.Name(id=package), attr="job"):
                return package in packages
            case _:
                return False

    jobs: dict[str, FoundJob] = {}
    functions: set[str] = set()
    bound: collections.Counter[str] = collections.Counter()
    problems: dict[str, str] = {}
    others: set[str] = set()
    for statement in _top_level(tree.body):
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                functions.add(name)
                bound[name] += 1
                is_plain = True
                for decorator in statement.decorator_list:
                    call = decorator if isinstance(decorator, ast.Call) else None
                    if is_job(call.func if call else decorator):
                        jobs[name] = _found(name, decorator.lineno, call)
                    else:
                        is_plain = False
                if is_plain and (problem := problem_of_source(statement)) is not None:
                    problems[name] = problem
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                others.add(name)
                if any(is_job(node) for node in ast.walk(value) if isinstance(node, ast.expr)):
                    jobs[name] = FoundJob(name=name, line=statement.lineno, defaults=None)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                others.update((alias.asname or alias.name).partition(".")[0] for alias in names)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.ClassDef(name=name):
                others.add(name)
    return JobSource(
        jobs=jobs,
        functions=frozenset(functions),
        other_names=frozenset(others),
        is_program=_is_program(tree),
        problems={
            name: problem for name, problem in problems.items() if bound[name] == 1 and name not in others
        },
        parts=parts,
    )


def _is_program(tree: ast.Module) -> bool:
    """Whether running it does more than to define functions and classes.

    Imports count where nothing is defined: `main.py` may import what trains. A file that reads its data, and
    whose `def train(ctx)` nothing calls, lacks a decorator.
    """
    called = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, FunctionNode) and not node.decorator_list and node.name not in called:
            if [each.arg for each in node.args.args[:1]] == ["ctx"]:
                return False
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    passive = (*definitions, ast.Import, ast.ImportFrom, ast.Pass)
    rest = [one for one in tree.body if not isinstance(one, passive)]
    has_definitions = any(isinstance(one, definitions) for one in tree.body)
    has_imports = any(isinstance(one, ast.Import | ast.ImportFrom) for one in tree.body)
    return any(map(_does_something, rest)) or (has_imports and not has_definitions)


def _does_something(statement: ast.stmt) -> bool:
    inner = [node for node in ast.walk(statement) if node is not statement]
    return any(isinstance(node, ast.Call | ast.Await | ast.Raise) for node in inner)


def _names_of_raydist(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Returns the names of the package (`raydist`, `rd`) and of the decorator (`job`, `j`) in this file."""
    packages: set[str] = set()
    decorators: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                packages.update(alias.asname or alias.name for alias in names if alias.name == "raydist")
            case ast.ImportFrom(module="raydist" | "raydist.spec.settings.decorator", names=names, level=0):
                decorators.update(alias.asname or "job" for alias in names if alias.name in ("job", "*"))
    return packages, decorators


def _top_level(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields what binds names when the file is imported, also within `if`, `try` and `with`."""
    for statement in statements:
        match statement:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                continue  # does not run in a task, where the file is not __main__
            case ast.If(body=body, orelse=orelse):
                yield from _top_level(body + orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                handled = [each for handler in handlers for each in handler.body]
                yield from _top_level(body + handled + orelse + finalbody)
            case ast.With(body=body):
                yield from _top_level(body)
            case _:
                yield statement


def _found(name: str, line: int, call: ast.Call | None) -> FoundJob:
    keywords = call.keywords if call else []
    lines = {keyword.arg: keyword.value.lineno for keyword in keywords if keyword.arg}
    defaults: dict[str, Any] | None = {}
    try:
        if (call and call.args) or any(keyword.arg is None for keyword in keywords):
            raise ValueError("not literal")
        defaults = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        defaults = None
    return FoundJob(name=name, line=line, defaults=defaults, lines=lines)
