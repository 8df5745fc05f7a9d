"""Whether a job distributes, or loops, by itself: its file and its own modules are read, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from raydist.entry.own_source import Part, imported_by

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_ASSIGNMENTS = ("apply", "assign", "assign_add", "assign_sub")
_PLAIN_BASES = ("object", "ABC", "Generic", "Protocol", "NamedTuple", "Enum")
_PACKAGES = ("tensorflow.distribute", "tensorflow.python.distribute", "horovod")


def strategy_use(parts: Sequence[Part], *, has_context: bool) -> str | None:
    """Returns where a job takes or builds a strategy, as `train.py, line 3, uses tf.distribute`.

    None where nothing says so: its models get the run's strategy. A library that builds a strategy while the
    job runs is not found here.

    Args:
      parts: The job's file, and the modules of its own that it imports.
      has_context: Whether it is a train function, which is given the context.
    """
    has_context = has_context or imports_raydist(parts)
    for part in parts:
        for line, what in sorted(_uses(part.tree, has_context=has_context)):
            return f"{part.shown}, line {line}, uses {what}"
    return None


def imports_raydist(parts: Sequence[Part]) -> bool:
    imported = (name for part in parts for node in ast.walk(part.tree) for name, _ in imported_by(node))
    return any(name.partition(".")[0] == "raydist" for name in imported)


def own_loop(parts: Sequence[Part]) -> str | None:
    """Returns where a job updates weights in a loop of its own, as `train.py, line 40`; None where nowhere.

    That is in code that makes a GradientTape, and in no class derived from a library's, whose train_step runs
    in `fit`. Code that only looks at gradients, as Grad-CAM does, updates nothing.

    Args:
      parts: As for `strategy_use`.
    """
    classes = [one for part in parts for one in ast.walk(part.tree) if isinstance(one, ast.ClassDef)]
    bases = {one.name: [_name_of(base) for base in one.bases] for one in classes}
    found = [(part.shown, list(_outside_of_derived(part.tree, bases))) for part in parts]
    if any(_is_tape(node) for _, nodes in found for node in nodes):
        for shown, nodes in found:
            if lines := {line for node in nodes for line in _updates_of(node)}:
                return f"{shown}, line {min(lines)}"
    return None


def _is_tape(node: ast.AST) -> bool:
    is_imported = any(name.endswith(".GradientTape") for name, _ in imported_by(node))
    return is_imported or _name_of(node) == "GradientTape"


def _updates_of(node: ast.AST) -> Iterator[int]:
    """Yields the lines of optimizers' updates, and in a function those that assign what a gradient gives."""
    if isinstance(node, ast.Call) and _is_update(node.func):
        yield node.lineno
    elif isinstance(node, _FUNCTIONS | ast.Module):
        own = list(_own_nodes(node))
        names = _names_of_gradients(own)
        calls = [one for one in own if isinstance(one, ast.Call) and _name_of(one.func) in _ASSIGNMENTS]
        yield from (one.lineno for one in calls if any(_has_gradient(each, names) for each in one.args))


def _names_of_gradients(nodes: Sequence[ast.AST]) -> set[str]:
    """Returns the names of a function that hold gradients, or what is computed from them."""
    names: set[str] = set()
    bound: list[tuple[ast.AST, ast.AST]] = []
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                bound += [(target, value) for target in targets]
            case ast.For(target=name, iter=values) | ast.comprehension(target=name, iter=values):
                bound.append((name, values))
    for _ in range(3):  # from a gradient over a name or two to what is assigned
        for to, given in bound:
            if _has_gradient(given, names):
                names |= {one.id for one in ast.walk(to) if isinstance(one, ast.Name)}
    return names


def _has_gradient(node: ast.AST, names: set[str]) -> bool:
    return any(
        (isinstance(one, ast.Call) and _name_of(one.func) == "gradient")
        or (isinstance(one, ast.Name) and one.id in names)
        for one in ast.walk(node)
    )


def _is_update(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(attr="apply_gradients"):
            return True
        case ast.Attribute(attr="minimize" | "apply", value=owner):
            return _name_of(owner).lstrip("_").startswith("opt") and _name_of(owner) != "optimize"  # SciPy's
    return False


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


def _uses(tree: ast.AST, *, has_context: bool) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute(attr="distribute") as owner):  # not ctx.distribute(data)
                yield node.lineno, ast.unparse(owner)
            case ast.Attribute(attr="strategy") if has_context:
                yield node.lineno, ast.unparse(node)
            case ast.Constant(value="TF_CONFIG"):
                yield node.lineno, "TF_CONFIG"
            case ast.Import() | ast.ImportFrom():
                for name, level in imported_by(node):
                    if level == 0 and f"{name}.".startswith(tuple(f"{one}." for one in _PACKAGES)):
                        yield node.lineno, name
