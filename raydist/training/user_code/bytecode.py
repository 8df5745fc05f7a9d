"""What a Python function names, reads and holds: the only module that looks into code of the user's.

In come functions and methods; out go names, values that a function has from outside, copies of it with other
values, and whether it can reach a model. Nothing is run. code_names.py, captured_numbers.py and stepping/ ask
it.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

_OF_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")
_SINGLE_LOADS = frozenset(
    "LOAD_CONST LOAD_SMALL_INT LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_DEREF".split()
)
_OF_EMPTY_BODY = frozenset("RESUME NOP LOAD_CONST RETURN_VALUE RETURN_CONST".split())
_SUBSCRIPTS = ("BINARY_SUBSCR", "BINARY_SLICE")


def names_in(function: Any) -> frozenset[str]:
    """Returns the globals and attributes that a function, and those inside of it, use; none without code."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):  # an object may have an attribute for each name
        return frozenset()
    return frozenset(name for one in _codes(code) for name in one.co_names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def may_read_after(function: Any, count: int) -> bool:
    """Whether a function may read an argument beyond the first `count`."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_code or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return True
    arguments = set(code.co_varnames[count : code.co_argcount + code.co_kwonlyargcount])
    loads = (one.argval for one in dis.get_instructions(code) if "LOAD" in one.opname)
    # Python 3.13 loads two variables at once.
    read = {name for one in loads for name in (one if isinstance(one, tuple) else (one,))}
    return not arguments or not arguments.isdisjoint(read | {*code.co_cellvars})


def does_nothing(function: Any) -> bool:
    """Whether a function's body is empty: `pass`, or a docstring alone."""
    code = getattr(function, "__code__", None)
    return code is not None and {one.opname for one in dis.get_instructions(code)} <= _OF_EMPTY_BODY


def held_by(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    """Yields what a function has from outside: how (see `holding`), by which name, and the value."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield "cell", name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    yield from (("default", name, one) for name, one in zip(arguments, defaults, strict=True))
    yield from (("keyword default", name, one) for name, one in (function.__kwdefaults__ or {}).items())
    names = names_in(function)
    yield from (("global", name, one) for name, one in function.__globals__.items() if name in names)


def holding(function: FunctionType, kind: str, name: str, change: Callable[[Any], Any]) -> FunctionType:
    """Returns a copy of a function that has from outside what `change` makes of one of its values.

    Args:
      kind: `cell`, `default`, `keyword default` or `global`.
    """
    code, closure = function.__code__, function.__closure__
    names, defaults = function.__globals__, function.__defaults__
    keyword_defaults = dict(function.__kwdefaults__ or {})
    if kind == "cell":
        closure = tuple(
            CellType(change(cell.cell_contents)) if one == name else cell
            for one, cell in zip(code.co_freevars, closure or (), strict=True)
        )
    elif kind == "global":
        names = {**names, name: change(names[name])}
    elif kind == "default" and defaults is not None:
        index = code.co_varnames[: code.co_argcount].index(name) - code.co_argcount
        changed = list(defaults)
        changed[index] = change(changed[index])
        defaults = tuple(changed)
    elif kind == "keyword default":
        keyword_defaults[name] = change(keyword_defaults[name])
    copied = FunctionType(code, names, function.__name__, defaults, closure)
    copied.__kwdefaults__ = keyword_defaults or None
    copied.__dict__.update(vars(function))
    copied.__qualname__, copied.__module__ = function.__qualname__, function.__module__
    return copied


def operations_of(function: FunctionType) -> tuple[set[str], set[str]]:
    """Returns the names that a method uses, also from around it, and the attributes of `self`.

    Subscripts of what may be tensors are `[]` among the names, and a matrix multiplication is `@`.
    """
    names, attributes = _operations_in(function.__code__)
    return names.union(function.__code__.co_freevars), attributes


def _operations_in(code: CodeType) -> tuple[set[str], set[str]]:
    names, attributes = set[str](), set[str]()
    steps = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for index, step in enumerate(steps):
        if _is_of_self(steps, index):
            attributes.add(step.argval)
        elif step.opcode in dis.hasname:
            names.add(step.argval)
        elif _is_subscript(step) and not _is_of_no_tensor(steps, index):
            names.add("[]")
        elif "MATRIX_MULTIPLY" in step.opname or step.argrepr in ("@", "@="):
            names.add("@")
    for inner in (one for one in code.co_consts if isinstance(one, CodeType)):
        found, of_self = _operations_in(inner)
        names |= found
        attributes |= of_self
    return names, attributes


def _is_of_self(steps: Sequence[dis.Instruction], index: int) -> bool:
    """Whether an instruction reads or writes an attribute of `self`."""
    if index < 1 or steps[index].opname not in _OF_ATTRIBUTES:
        return False
    before = steps[index - 1]
    # Python 3.13 loads two variables at once, or stores one and loads another.
    name = before.argval[-1] if isinstance(before.argval, tuple) else before.argval
    return name == "self" and ("LOAD_FAST" in before.opname or before.opname == "LOAD_DEREF")


def _is_subscript(step: dis.Instruction) -> bool:
    # Python 3.14 has it as an operator.
    return step.opname in _SUBSCRIPTS or (step.opname == "BINARY_OP" and step.argrepr == "[]")


def _is_of_no_tensor(steps: Sequence[dis.Instruction], index: int) -> bool:
    """Whether a subscript is a key, as in `inputs["text"]`, or one of `self.blocks[i]`."""
    if steps[index].opname == "BINARY_SLICE":
        return False
    of = steps[index - 1]
    if of.opname == "LOAD_CONST" and isinstance(of.argval, str):
        return True
    return of.opname in _SINGLE_LOADS and _is_of_self(steps, index - 2)


# More than this are not looked through.
_MOST_HELD = 1000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)
_HARMLESS_PACKAGES = frozenset({*sys.stdlib_module_names, "numpy"})


def may_reach_model(function: Any) -> bool:
    """Whether a function may use a model, variables, a strategy or the context.

    Anything that is not known to be harmless counts: objects of classes besides Python's own and NumPy's, and
    modules besides theirs.
    """
    pending, seen = [function], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        held = _held_by(value)
        if held is None or len(seen) > _MOST_HELD:
            return True
        pending.extend(held)
    return False


def _held_by(value: Any) -> list[Any] | None:
    """Returns what a value gives access to; None where that is not known."""
    if isinstance(value, FunctionType):
        return _held_by_function(value)
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.ModuleType):
        return [] if _is_harmless(value.__name__) else None
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return [value.__self__]
    if isinstance(value, type):
        return [] if _is_harmless(value.__module__) else None
    if isinstance(value, Mapping):
        return _some([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return _some(value)
    return [] if _is_harmless(type(value).__module__) else None


def _held_by_function(function: FunctionType) -> list[Any]:
    names, known = names_in(function), function.__globals__
    inside = names - known.keys() - vars(builtins).keys()
    imported = [sys.modules[one] for one in inside if one in sys.modules]
    every = [known] if names & {"globals", "eval", "exec"} else []
    return [*(value for _, _, value in held_by(function)), *imported, *every]


def _some(values: Iterable[Any]) -> list[Any] | None:
    found = list(values)
    return found if len(found) <= _MOST_HELD else None


def _is_harmless(module: str) -> bool:
    return module.partition(".")[0] in _HARMLESS_PACKAGES
