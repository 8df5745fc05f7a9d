"""Whether a job is a program for Keras 2: its file and its own modules are read, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raydist.entry.keras2_names import CALL_ARGUMENTS, METHOD_ARGUMENTS, MISSING_METHODS, is_missing
from raydist.entry.own_source import Part, imported_by

_KERAS = "tensorflow.keras"
# Functions whose result ends as what they are given, or names the same format.
_SAME_END = {"abspath", "expanduser", "fspath", "latest_checkpoint", "normpath", "realpath", "str"}
_WEIGHTS = (".weights.h5",)
_MODELS = (".keras", ".h5", ".hdf5")


def legacy_reason(parts: Sequence[Part], own: Sequence[Part]) -> str | None:
    """Returns why `tf.keras` has to be tf_keras for a job: one sentence. None where nothing says so.

    Args:
      parts: The job's own file.
      own: The modules of its own that it imports.
    """
    if any(_imports_tf_keras(part.tree) for part in parts):
        return "the job's source imports tf_keras"
    modules = [_Module(parts), *(_Module([part]) for part in own if part.mentions_keras)]
    if any(module.imports_keras for module in modules):
        return None
    for module in modules:
        for part in module.parts:
            if module is not modules[0] and any(map(_imports_tf_keras_here, _unguarded(part.tree))):
                return f"{part.shown} imports tf_keras"
    if not any(module.uses_tf_keras for module in modules):
        return None
    # A module without the word may save a model of another one's.
    modules = [modules[0], *(_Module([part]) for part in own)]
    defined = frozenset[str]().union(*(module.defined for module in modules))
    for module in modules:
        for part in module.parts:
            if (line := _line_of_partitioner(part.tree)) is not None:
                return f"{part.shown}, line {line}, cuts variables into shards, which Keras 3 does not have"
            found = [one for one in module.findings(part) if one.method not in defined]
            if found:
                first = min(found, key=lambda one: one.line)
                return f"{part.shown}, line {first.line}, uses {first.what}, which only Keras 2 knows"
    return None


def _imports_tf_keras(tree: ast.AST) -> bool:
    """Whether the code imports tf_keras in any form, also inside functions or by `import_module`.

    Or sets the variable by which TensorFlow makes it `tf.keras`; a task has imported TensorFlow by then.
    """
    return any(_imports_tf_keras_here(node) for node in ast.walk(tree))


def _imports_tf_keras_here(node: ast.AST) -> bool:
    match node:
        case ast.Assign(
            targets=[ast.Subscript(slice=ast.Constant(value="TF_USE_LEGACY_KERAS"))],
            value=ast.Constant(value="1" | "true" | "True"),
        ):
            return True
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            found = [module]
        case _:
            found = [name for name, level in imported_by(node) if level == 0]
    return any(name.partition(".")[0] == "tf_keras" for name in found)


def _line_of_partitioner(tree: ast.AST) -> int | None:
    """Returns where `ParameterServerStrategy` is given a `variable_partitioner`; None if nowhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ParameterServerStrategy"):
            given = [one.value for one in node.keywords if one.arg == "variable_partitioner"] or node.args[1:]
            if given and not (isinstance(given[0], ast.Constant) and given[0].value is None):
                return node.lineno
    return None


@dataclass(frozen=True)
class _Finding:
    """Something that only Keras 2 knows. `method` is a method's name that the job may define by itself."""

    line: int
    what: str
    method: str = ""


@dataclass
class _Module:
    """What the names of one module mean, as far as its source says it."""

    parts: Sequence[Part]
    # What each name was imported or assigned as, such as `tensorflow.keras.layers`.
    names: dict[str, str] = field(default_factory=dict)
    # The values that are assigned to each name.
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self._nodes():
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        bound = alias.asname or alias.name.partition(".")[0]
                        self.names[bound] = alias.name if alias.asname else bound
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    self.names.update(
                        {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
                    )
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.defined.add(name)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        if isinstance(target, ast.Name):
                            self.values.setdefault(target.id, []).append(value)
        for name, values in self.values.items():  # `layers = tf.keras.layers`
            if len(values) == 1 and name not in self.names and (path := self.path_of(values[0])) is not None:
                self.names[name] = path

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for part in self.parts for node in ast.walk(part.tree))

    @property
    def imports_keras(self) -> bool:
        """Whether it imports the package `keras`, which is Keras 3 even if `tf.keras` is not."""
        imported = (name for node in self._nodes() for name, level in imported_by(node) if level == 0)
        return any(name.partition(".")[0] == "keras" for name in imported)

    @property
    def uses_tf_keras(self) -> bool:
        return any(_KERAS in path for path in self.names.values()) or any(
            isinstance(node, ast.Attribute) and self.path_of(node) == _KERAS for node in self._nodes()
        )

    def path_of(self, node: ast.AST) -> str | None:
        """Returns the dotted name that an expression stands for, if its first part was imported."""
        match node:
            case ast.Name(id=name):
                path = self.names.get(name)
            case ast.Attribute(value=value, attr=attr):
                owner = self.path_of(value)
                path = None if owner is None else f"{owner}.{attr}"
            case _:
                return None
        return None if path is None else path.replace("tensorflow.compat.v2.", "tensorflow.")

    def below_keras(self, node: ast.AST) -> str | None:
        """Returns the name below `tf.keras`: `layers.Dense`."""
        path = self.path_of(node)
        return path.removeprefix(f"{_KERAS}.") if path is not None and path.startswith(f"{_KERAS}.") else None

    def findings(self, part: Part) -> Iterator[_Finding]:
        for node in _unguarded(part.tree):
            yield from self._findings_at(node)

    def _findings_at(self, node: ast.AST) -> Iterator[_Finding]:
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for alias in names:
                    yield from self._missing(f"{module}.{alias.name}", node.lineno)
            case ast.Import(names=names):
                for alias in names:
                    yield from self._missing(alias.name, node.lineno)
            case ast.Attribute():
                yield from self._missing(self.path_of(node) or "", node.lineno)
                if node.attr == "lr" and self._is_optimizer(node.value):
                    yield _Finding(node.lineno, "optimizer.lr")
            case ast.Call():
                yield from self._findings_in_call(node)

    def _missing(self, path: str, line: int) -> Iterator[_Finding]:
        if path.startswith(f"{_KERAS}.") and is_missing(path.removeprefix(f"{_KERAS}.")):
            yield _Finding(line, path.replace("tensorflow", "tf", 1))
        elif path.startswith("tensorflow.compat.v1.layers."):
            yield _Finding(line, path.replace("tensorflow", "tf", 1))

    def _findings_in_call(self, node: ast.Call) -> Iterator[_Finding]:
        arguments = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        below = self.below_keras(node.func)
        if below is not None:
            for name, known in CALL_ARGUMENTS.items():
                if below == name or (name.endswith(".") and below.startswith(name)):
                    yield from (
                        _Finding(node.lineno, f"{below.rpartition('.')[2]}({argument}=…)")
                        for argument in arguments
                        if argument in known
                    )
            yield from self._findings_in_paths(below, node, arguments)
            return
        if not isinstance(node.func, ast.Attribute) or self.path_of(node.func) is not None:
            return  # a function, or one of another library
        method = node.func.attr
        if method in MISSING_METHODS and not (method == "reset_states" and self._is_of_layer(node.func)):
            yield _Finding(node.lineno, method, method=method)
        elif method == "minimize" and self._is_optimizer(node.func.value):
            yield _Finding(node.lineno, "optimizer.minimize")
        for argument in arguments:
            if argument in METHOD_ARGUMENTS.get(method, ()):
                yield _Finding(node.lineno, f"{method}({argument}=…)", method=method)
        if method in ("save_weights", "load_weights") or (
            method == "save" and _named(node.func.value, "model")
        ):
            yield from self._findings_in_paths(method, node, arguments)

    def _findings_in_paths(
        self, called: str, node: ast.Call, arguments: dict[str, ast.expr]
    ) -> Iterator[_Finding]:
        """Yields a model that is stored in, or read from, a format that the end of its path does not name."""
        name = called.rpartition(".")[2]
        place, endings = _PATHS.get(called, (0, ()))
        if name == "ModelCheckpoint" and _is_true(arguments.get("save_weights_only")):
            endings = _WEIGHTS
        given = node.args[place] if len(node.args) > place else arguments.get("filepath")
        end = self._end_of(given) if endings and given is not None else None
        if end is not None and "://" not in end and not end.endswith(endings):
            what = f"{name} of {end!r}, a path without {' or '.join(endings[:2])}"
            yield _Finding(node.lineno, what, method=name)

    def _end_of(self, node: ast.expr, depth: int = 0) -> str | None:
        """Returns how a path ends; None where the source does not say it."""
        if depth > 8:
            return None
        inner: ast.expr | None = None
        match node:
            case ast.Constant(value=str(text)):
                return text or None
            case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]):
                return text
            case ast.BinOp(op=ast.Add() | ast.Div(), right=inner) | ast.BinOp(op=ast.Mod(), left=inner):
                pass
            case ast.Call(func=ast.Attribute(value=ast.Constant() as inner, attr="format")):
                pass
            case ast.Call(func=ast.Attribute(attr="join" | "joinpath"), args=[*_, inner]):
                pass
            case ast.Call(func=ast.Name(id="Path"), args=[*_, inner]):
                pass
            # The job's own functions get the path first, as `write_filepath(path, task_id)` does.
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[inner, *_]):
                inner = inner if name in self.defined | _SAME_END else None
            case ast.Name(id=name):
                ends = {self._end_of(value, depth + 1) for value in self.values.get(name, [])}
                return ends.pop() if len(ends) == 1 else None
        return None if inner is None else self._end_of(inner, depth + 1)

    def _is_optimizer(self, node: ast.expr) -> bool:
        """Whether it is an optimizer of Keras: the attribute of a model, or a name that one was given."""
        match node:
            case ast.Attribute(value=value, attr="optimizer"):
                return _named(value, "model") or _named(value, "self")
            case ast.Name(id=name):
                calls = [one for one in self.values.get(name, []) if isinstance(one, ast.Call)]
                return any((self.below_keras(one.func) or "").startswith("optimizers.") for one in calls)
            case _:
                return False

    def _is_of_layer(self, node: ast.Attribute) -> bool:
        """Whether it may be a recurrent layer, whose state Keras 3 resets by that name, too."""
        is_stateful = any(isinstance(one, ast.keyword) and one.arg == "stateful" for one in self._nodes())
        return is_stateful and not _named(node.value, "model")


# Where a path stands among the arguments, and how it has to end for Keras 3.
_PATHS: dict[str, tuple[int, tuple[str, ...]]] = {
    "save": (0, _MODELS),
    "save_weights": (0, _WEIGHTS),
    "load_weights": (0, _MODELS),
    "models.save_model": (1, _MODELS),
    "models.load_model": (0, _MODELS),
    "callbacks.ModelCheckpoint": (0, (".keras", ".h5")),
}


def _named(node: ast.expr, word: str) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return word in name.lower()


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _unguarded(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that run with every Keras."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        if isinstance(node, ast.Try) and node.handlers:
            ahead += node.finalbody
        elif not (isinstance(node, ast.If | ast.IfExp) and _asks_for_version(node.test)):
            ahead += ast.iter_child_nodes(node)


def _asks_for_version(test: ast.expr) -> bool:
    names = [
        getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
        for node in ast.walk(test)
    ]
    texts = [name for name in names if isinstance(name, str)]
    return any(text in ("hasattr", "getattr") or "version" in text.lower() for text in texts)
