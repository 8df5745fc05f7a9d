"""Whether a job distributes, or loops, by itself: its file and its own modules are read, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from raydist.entry.own_source import Part, imported_by, own_modules

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_OPTIMIZERS_UPDATES = ("apply_gradients", "minimize")
_ASSIGNMENTS = ("apply", "assign", "assign_add", "assign_sub")
_PLAIN_BASES = ("object", "ABC", "Generic", "Protocol", "NamedTuple", "Enum")
_PACKAGES = ("tensorflow.distribute", "tensorflow.python.distribute", "horovod")


def strategy_use(parts: Sequence[Part], *, file: Path | None, roots: Sequence[Path]) -> str | None:
    """Returns where a job takes or builds a strategy, as `train.py, line 3, uses tf.distribute`.

    None where nothing says so: its models get the run's strategy. A library that builds a strategy while the
    job runs is not found here.

    Args:
      parts: The job's own file.
      file: Where it lies; None for code that no file has.
      roots: Folders from which the job imports modules of its own.
    """
    for part in (*parts, *own_modules(parts, file=file, roots=roots)):
        for line, what in sorted(_uses(part.tree)):
            return f"{part.shown}, line {line}, uses {what}"
    return None


def own_loop(parts: Sequence[Part], *, file: Path | None, roots: Sequence[Path]) -> str | None:
    """Returns where a job updates weights in a loop of its own, as `train.py, line 40`; None where nowhere.

    That is in code that makes a GradientTape, and in no class derived from a library's, whose train_step runs
    in `fit`. Code that only looks at gradients, as Grad-CAM does, updates nothing.

    Args:
      parts, file, roots: As for `strategy_use`.
    """
    parts = [*parts, *own_modules(parts, file=file, roots=roots)]
    classes = [one for part in parts for one in ast.walk(part.tree) if isinstance(one, ast.ClassDef)]
    bases = {one.name: [_name_of(base) for base in one.bases] for one in classes}
    for part in parts:
        nodes = list(_outside_of_derived(part.tree, bases))
        if any(_name_of(one) == "GradientTape" for one in nodes):
            lines = {line for one in nodes for line in _updates_of(one)}
            if lines:
                return f"{part.shown}, line {min(lines)}"
    return None


def _updates_of(node: ast.AST) -> Iterator[int]:
    """Yields the lines of optimizers' updates, and of assignments in a function that makes a tape itself."""
    if isinstance(node, ast.Call) and _name_of(node.func) in _OPTIMIZERS_UPDATES:
        yield node.lineno
    elif isinstance(node, _FUNCTIONS | ast.Module):
        own = list(_own_nodes(node))
        if any(_name_of(one) == "GradientTape" for one in own):
            calls = (one for one in own if isinstance(one, ast.Call))
            yield from (one.lineno for one in calls if _name_of(one.func) in _ASSIGNMENTS)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yields what is in a function, or at the top of a file, and in no function or class inside of it."""
    ahead = list(ast.iter_child_nodes(function))
    while ahead:
        node = ahead.pop()
        if not isinstance(node, _FUNCTIONS | ast.ClassDef):
            yield node
            ahead.extend(ast.iter_child_nodes(node))


def _outside_of_derived(tree: ast.Module, bases: Mapping[str, list[str]]) -> Iterator[ast.AST]:
    """Yields the nodes that are in no class derived from a library's."""
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        if not (isinstance(node, ast.ClassDef) and _is_derived(node.name, bases)):
            yield node
            ahead.extend(ast.iter_child_nodes(node))


def _is_derived(name: str, bases: Mapping[str, list[str]], *, depth: int = 20) -> bool:
    if name not in bases:
        return name not in _PLAIN_BASES
    return depth > 0 and any(_is_derived(one, bases, depth=depth - 1) for one in bases[name])


def _name_of(node: ast.AST) -> str:
    return str(getattr(node, "attr", "") or getattr(node, "id", ""))


def _uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="distribute", value=ast.Name(id=name)):
                yield node.lineno, f"{name}.distribute"
            case ast.Attribute(attr="strategy", value=ast.Name(id=name)):
                yield node.lineno, f"{name}.strategy"
            case ast.Constant(value="TF_CONFIG"):
                yield node.lineno, "TF_CONFIG"
            case ast.Import() | ast.ImportFrom():
                for name, level in imported_by(node):
                    if level == 0 and f"{name}.".startswith(tuple(f"{one}." for one in _PACKAGES)):
                        yield node.lineno, name
