"""Where raydist stands in Keras's classes, for tests."""

from __future__ import annotations

import copy
import gc
import importlib.util
import inspect
import json
import pickle
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import flat, own_step

_X = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")  # in batches that two share unevenly
_Y = _X.sum(axis=1, keepdims=True)
_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch", "compile")


def seam(ctx: Any, *, library: str) -> dict[str, Any]:
    """Patches this process's Keras and returns, by what was tried, what is wrong; "" for nothing."""
    keras = importlib.import_module(library)
    before = _dense(keras)
    with ctx.strategy.scope():
        in_scope = _dense(keras)
    early, facts = _early_class(keras), _facts(keras)
    for one in ("keras3", "tf_keras")[: 1 if library == "keras" else 2]:
        patches = importlib.import_module(f"raydist.training.keras_patches.{one}.patches")
        patches.patch(sync_batchnorm=False)
    found = {f"{what} stays": _unlike(was, _facts(keras)[what]) for what, was in facts.items()}
    expected = _train(_dense(keras))
    tries: dict[str, Callable[[], Iterator[str]]] = {
        "a model made before": lambda: _trains(before, expected),
        "a model made before in the scope": lambda: _trains(in_scope, expected),
        **{
            name: lambda make=make: _trains(make(keras, ctx.strategy), expected)
            for name, make in _MAKERS.items()
        },
        "a subclass made before": lambda: _trains(_in_scope(ctx.strategy, lambda: early(keras)), expected),
        "other methods": lambda: _other_methods(keras, ctx.strategy),
        "a model that was saved": lambda: _saved(keras, ctx.strategy, expected),
        "a clone": lambda: _clones(keras, ctx.strategy, expected),
        "a pickle": lambda: _pickles(keras, ctx.strategy, expected),
        "a deep copy": lambda: _deep_copies(before, expected),
        "what a model holds": lambda: _attributes(keras, ctx.strategy),
        "a model that is let go": lambda: _let_go(keras, ctx.strategy),
        "a fit inside of a fit": lambda: _nested(keras, ctx.strategy, expected),
        "a model inside of a model": lambda: _inner(keras, ctx.strategy, expected),
        "a fit that is set on Model": lambda: _set_on_model(keras, ctx.strategy, expected),
        "an argument that fit does not take": lambda: _mistake(keras, ctx.strategy),
    }
    if hasattr(keras, "wrappers") and importlib.util.find_spec("sklearn") is not None:
        tries["scikit-learn's wrapper"] = lambda: _wrapped(keras, ctx.strategy)
    for name, attempt in tries.items():
        try:
            found[name] = "; ".join(attempt())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return {"found": found}


def _facts(keras: Any) -> dict[str, Any]:
    """Returns what patching leaves as it is, by what it is."""
    name_of = keras.saving.get_registered_name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        _dense(keras).save(path)
        config = json.loads(zipfile.ZipFile(path).read("config.json"))
    return {
        "the registered name": [name_of(one) for one in (keras.Model, keras.Sequential)],
        "the saved class": [config[key] for key in ("module", "class_name", "registered_name")],
        **{
            f"the signature of {name}": str(inspect.signature(getattr(keras.Model, name)))
            for name in _METHODS
        },
    }


def _unlike(before: Any, after: Any) -> str:
    return "" if before == after else f"{before} is now {after}"


def _dense(keras: Any, kind: Any = None) -> Any:
    model = (kind or keras.Sequential)([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def _early_class(keras: Any) -> Any:
    class Early(keras.Model):
        def __init__(self, library: Any) -> None:
            super().__init__()
            self.dense = library.layers.Dense(1)
            self(_X[:1])
            self.compile(library.optimizers.SGD(0.05), "mse", metrics=["mae"])

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    return Early


def _in_scope(strategy: Any, make: Callable[[], Any]) -> Any:
    with strategy.scope():
        return make()


def _sequential(keras: Any, strategy: Any) -> Any:
    return _in_scope(strategy, lambda: _dense(keras))


def _functional(keras: Any, strategy: Any, kind: Any = None) -> Any:
    with strategy.scope():
        inputs = keras.Input((3,))
        model = (kind or keras.Model)(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def _functional_subclass(keras: Any, strategy: Any) -> Any:
    class Own(keras.Model):
        """Keras puts Functional into its bases when it is made of inputs and outputs."""

    return _functional(keras, strategy, Own)


def _mixed(keras: Any, strategy: Any) -> Any:
    class Mixin:
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            return super().evaluate(*args, **kwargs)  # type: ignore[misc]

    class Mixed(Mixin, keras.Sequential):
        pass

    return _in_scope(strategy, lambda: _dense(keras, Mixed))


def _own_fit(keras: Any, strategy: Any) -> Any:
    class OwnFit(keras.Sequential):
        def fit(self, x: Any, y: Any, *, batch_size: int, **kwargs: Any) -> Any:
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
            return super().fit(data, **{**kwargs, "shuffle": True})

    return _in_scope(strategy, lambda: _dense(keras, OwnFit))


def _own_functions(keras: Any, strategy: Any) -> Any:
    class OwnFunctions(keras.Sequential):
        def make_train_function(self, force: bool = False) -> Any:
            self.num_made = getattr(self, "num_made", 0) + 1
            return super().make_train_function(force)

        def make_test_function(self, force: bool = False) -> Any:
            return super().make_test_function(force)

        def make_predict_function(self, force: bool = False) -> Any:
            return super().make_predict_function(force)

    return _in_scope(strategy, lambda: _dense(keras, OwnFunctions))


_MAKERS = {
    "Sequential": _sequential,
    "a functional model": _functional,
    "a functional model of a subclass": _functional_subclass,
    "a mixin": _mixed,
    "a fit of one's own by super()": _own_fit,
    "make_train_function by super()": _own_functions,
}


def _weights(model: Any) -> np.ndarray:
    return flat(model)


def _train(model: Any, **options: Any) -> np.ndarray:
    model.set_weights([np.full_like(one, 0.1) for one in model.get_weights()])
    model.fit(_X, _Y, batch_size=5, epochs=2, shuffle=False, verbose=0, **options)
    return _weights(model)


def _trains(model: Any, expected: np.ndarray, **options: Any) -> Iterator[str]:
    got = _train(model, **options)
    if got.shape != expected.shape or not np.allclose(got, expected, atol=1e-5):
        yield f"weights {got.tolist()} in place of {expected.tolist()}"
    if not (model.compiled if hasattr(model, "compiled") else model._is_compiled):
        yield "it is not compiled"


def _other_methods(keras: Any, strategy: Any) -> Iterator[str]:
    """Calls what else a model has, on one device and on two, and compares."""
    models = _dense(keras), _sequential(keras, strategy)
    for model in models:
        _train(model)
    for name, call in {
        "evaluate": lambda one: one.evaluate(_X, _Y, batch_size=5, verbose=0),
        "predict": lambda one: one.predict(_X, batch_size=5, verbose=0),
        "test_on_batch": lambda one: one.test_on_batch(_X[:6], _Y[:6]),
        "predict_on_batch": lambda one: one.predict_on_batch(_X[:6]),
        "train_on_batch": lambda one: one.train_on_batch(_X[:6], _Y[:6]),
        "the weights": _weights,
    }.items():
        expected, got = (np.asarray(call(one)) for one in models)
        if expected.shape != got.shape or not np.allclose(got, expected, atol=1e-5):
            yield f"{name} gives {got.tolist()} in place of {expected.tolist()}"


def _saved(keras: Any, strategy: Any, expected: np.ndarray) -> Iterator[str]:
    model = _sequential(keras, strategy)
    _train(model)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.keras"))
        model.save(path)
        outside = keras.models.load_model(path)
        inside = _in_scope(strategy, lambda: keras.models.load_model(path))
    if type(outside) is not keras.Sequential:
        yield f"it is a {type(outside)}"
    predicted = [one.predict(_X, batch_size=5, verbose=0) for one in (model, outside, inside)]
    if not np.allclose(predicted[0], predicted[1:], atol=1e-5):
        yield "what it predicts is lost"
    for one in (outside, inside):
        yield from _trains(one, expected)


def _clones(keras: Any, strategy: Any, expected: np.ndarray) -> Iterator[str]:
    model = _sequential(keras, strategy)
    with strategy.scope():
        clone = keras.models.clone_model(model)
        clone.compile(keras.optimizers.SGD(0.05), "mse")
        remade = keras.Sequential.from_config(model.get_config())
        remade.compile_from_config(model.get_compile_config())
    yield from _trains(clone, expected)
    yield from _trains(remade, expected)


def _pickles(keras: Any, strategy: Any, expected: np.ndarray) -> Iterator[str]:
    for model in (_dense(keras), _sequential(keras, strategy)):
        found = pickle.loads(pickle.dumps(model))
        if type(found) is not keras.Sequential:
            yield f"it is a {type(found)}"
        yield from _trains(found, expected)


def _deep_copies(model: Any, expected: np.ndarray) -> Iterator[str]:
    found = copy.deepcopy(model)
    if type(found) is not type(model):
        yield f"it is a {type(found)}"
    yield from _trains(found, expected)


def _attributes(keras: Any, strategy: Any) -> Iterator[str]:
    model = _sequential(keras, strategy)
    _train(model)
    if not isinstance(model, keras.Model):
        yield "it is no keras.Model"
    yield from (name for name in vars(model) if "raydist" in name.lower())


def _let_go(keras: Any, strategy: Any) -> Iterator[str]:
    OwnStep = own_step(keras.Sequential)
    for kind in (keras.Sequential, OwnStep):
        model = _in_scope(strategy, lambda kind=kind: _dense(keras, kind))
        _train(model)
        left = weakref.ref(model)
        del model
        keras.backend.clear_session()
        gc.collect()
        if left() is not None:
            yield f"{kind.__name__} is still there"


def _nested(keras: Any, strategy: Any, expected: np.ndarray) -> Iterator[str]:
    outer, inner = _sequential(keras, strategy), _sequential(keras, strategy)

    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            inner.fit(_X, _Y, batch_size=5, epochs=1, shuffle=False, verbose=0)

    inner.set_weights([np.full_like(one, 0.1) for one in inner.get_weights()])
    yield from _trains(outer, expected, callbacks=[Nested()])
    if not np.allclose(_weights(inner), expected, atol=1e-5):
        yield "the inner one trains to other weights"


def _inner(keras: Any, strategy: Any, expected: np.ndarray) -> Iterator[str]:
    class Outer(keras.Model):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def call(self, inputs: Any) -> Any:
            return self.inner(inputs)

    with strategy.scope():
        model = Outer(_dense(keras))
        model(_X[:1])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    yield from _trains(model, expected)


def _set_on_model(keras: Any, strategy: Any, expected: np.ndarray) -> Iterator[str]:
    """As mlflow.autolog() does: it puts a function on the class that calls what it has found there."""
    calls = []
    found = keras.Model.fit

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return found(self, *args, **kwargs)

    own = vars(keras.Model).get("fit")
    keras.Model.fit = fit
    try:
        yield from _trains(_sequential(keras, strategy), expected)
    finally:
        if own is None:
            del keras.Model.fit
        else:
            keras.Model.fit = own
    if len(calls) != 1:
        yield f"it was called {len(calls)} times"


def _mistake(keras: Any, strategy: Any) -> Iterator[str]:
    for model in (_dense(keras), _sequential(keras, strategy)):
        try:
            model.fit(_X, _Y, epoch=2)
        except TypeError as error:
            if "fit() got an unexpected keyword argument 'epoch'" not in str(error):
                yield str(error)
        else:
            yield "it was taken"


def _wrapped(keras: Any, strategy: Any) -> Iterator[str]:
    def make(**_: Any) -> Any:
        return _sequential(keras, strategy)

    importlib.import_module("sklearn.utils.multiclass")  # which Keras 3.10 uses and does not import
    regressor = keras.wrappers.SKLearnRegressor(make, fit_kwargs={"verbose": 0})
    regressor.fit(_X, _Y)
    if regressor.predict(_X).shape[0] != len(_X):
        yield "it predicts another number of examples"
