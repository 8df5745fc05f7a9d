"""A training step traced once, outside of the strategy, and what it makes of a batch and of parts of it.

None of the step's effects are executed: no variable changes, and nothing is written. In come a step and the
type of its batches; out go gradients and scalars for any batch of that type (`Outcome`), and facts of the
trace, such as whether it draws random numbers. step_check.py, dependence.py and metric_check.py ask it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.checks import dependence
from raydist.training.checks.findings import (
    MOST_MEANS,
    TOLERANCE,
    TOLERANCE_OF_DOUBLES,
    TOLERANCE_OF_HALVES,
)
from raydist.training.replicas.all_reduce import values_of
from raydist.training.replicas.gradient_probe import Probe, Statistics, Update
from raydist.training.replicas.replica_share import SHARE_TYPE, use_share
from raydist.training.user_code import linearity

# What calls the user's code, and TensorFlow on its behalf.
_LIBRARIES = ("keras", "tf_keras", "raydist")


class _Settings:
    is_enabled = True


def enable(is_enabled: bool) -> None:
    """Whether steps are rehearsed. Otherwise all train by `LossRule.SCALED`, as in TensorFlow."""
    _Settings.is_enabled = is_enabled


def is_enabled() -> bool:
    return _Settings.is_enabled


class Outcome(NamedTuple):
    """What a step makes of a batch, or of a part of it.

    Attributes:
      gradients: What its optimizers were given, a list for each time: tensors, `tf.IndexedSlices` and Nones.
      before_clipping: The same as tapes gave them, before the step clipped them, for example.
      given: What `Mean`s are given without a weight. `weighted`: with one. `returned`: what the step returns.
        A float64 vector each.
    """

    gradients: list[list[Any]]
    before_clipping: list[list[Any]]
    given: Any
    weighted: Any
    returned: Any
    statistics: list[Any]


@dataclass(frozen=True)
class LayerCall:
    """What a layer was given, and what it made of that: flat tensors of the trace."""

    layer: Any
    inputs: Sequence[tf.Tensor]
    outputs: Sequence[tf.Tensor]


MetricCall = tuple[tuple[Any, ...], dict[str, Any]]


class Rehearsal:
    """A training step, traced once for batches of any size, as one of some replicas.

    Attributes:
      layer_calls: The calls of the layers that are watched, in order.
      metric_calls: Of each metric that is watched, the arguments of each call of its `update_state`.
      updates: What the step gives to its optimizers: tensors of the trace.
      graph: All that it was traced to.
      means: The `Mean` metrics that it gives scalars, in order, MOST_MEANS at most.
      num_amounts: How many amounts its losses divide by that are known only from the data, such as the valid
        entries of a mask; see `replica_share.in_proportion`. 0 where they are not recorded.
      normalising: The layers that normalise by statistics of the batch.
      asks_for_replicas: Whether the user's code asks how many replicas there are, itself or by TensorFlow's
        functions such as `tf.nn.compute_average_loss`.
      depends_on_replicas: Whether anything but raydist asks: tf_keras's compiled losses do, for example.
      reduces_twice: Whether it reduces something over replicas, outside of layers, and an optimizer adds up
        its gradients again.
      averages_replicas: Whether the user's code takes the mean of something over replicas.
      asks_for_rows: Whether the user's code asks a shape for a size that is not known here, as that of the
        batch, which one device and replicas may know.
      drawing: The layers and metrics of the model that draw random numbers which the step uses.
      drawing_function: A method of the model's that draws some by itself; None where none does.
      draws_elsewhere: Whether something else does, such as a loss.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        *,
        strategy: tf.distribute.Strategy,
        spec: Any,
        num_replicas: int,
        model: Any = None,
        numbers_in: Callable[[Any], list[tf.Tensor]] = lambda returned: [],
        layers: Sequence[Any] = (),
        metrics: Sequence[Any] = (),
        records_amounts: bool = False,
    ) -> None:
        """Traces `step(batch)` for batches of `spec`, the structure of one replica's batch.

        Args:
          num_replicas: How many there are in what is traced. Losses of one of several are scaled by a number
            that `run` gets.
          model: The model whose step it is; None for the step of a loop.
          numbers_in: Returns the numbers in what the step returns that are to be compared.
          layers, metrics: Those whose calls are recorded.
          records_amounts: Whether the batch is one of several that make an update.

        Raises:
          Exception: What the step raises.
        """
        self.layer_calls: list[LayerCall] = []
        self.metric_calls: list[list[MetricCall]] = [[] for _ in metrics]
        self.asks_for_replicas = self.depends_on_replicas = False
        self.reduces_twice = self.averages_replicas = self.draws_elsewhere = False
        self.asks_for_rows = False
        self.drawing: list[Any] = []
        self._draws: list[tuple[Any, tf.Tensor | None]] = []
        self.drawing_function: Any = None
        self._model, self._spec = model, spec
        self._owners: set[int] = set()
        if model is not None:
            operations = getattr(model, "operations", ())  # of a functional one of Keras 3
            owners = (*model._flatten_layers(include_self=False), *model.metrics, *operations)
            self._owners = {id(one) for one in owners}
        self._probe = Probe(strategy)
        self.updates: list[Update] = []
        self._returned: list[tf.Tensor] = []
        self._amounts: list[tf.Tensor] = []

        def total_of(amount: tf.Tensor) -> tf.Tensor:
            self._amounts.append(tf.cast(amount, SHARE_TYPE))
            return amount

        def run_step(batch: Any) -> None:
            self._returned = numbers_in(step(batch))

        def outputs(scale: tf.Tensor, batch: Any) -> list[tf.Tensor]:
            self._statistics = self._probe.statistics = Statistics()
            with (
                tf_private.as_one_of(
                    num_replicas, on_question=self._note_question, on_reduction=self._note_reduction
                ),
                use_share(
                    scale if num_replicas > 1 or records_amounts else None,
                    is_model_step=model is not None,
                    total_of=total_of if records_amounts else None,
                ),
                tf_private.constant_draws(self._note_draw),
                tf_private.noting_unknown_sizes(self._note_unknown_size),
                tf_private.own_attributes(self._observers(layers, metrics)),
            ):
                self.updates = self._probe.collect(lambda: run_step(batch))
            self._structure = self._outcome_in_graph()
            flat = tf.nest.flatten(self._structure, expand_composites=True)
            return [tf.identity(one) for one in flat if one is not None]

        self._run = tf_private.WithoutEffects(outputs, tf.TensorSpec([], tf.float32), spec)
        self._note_used_draws()
        self._runs: dict[tuple[int, ...], Callable[..., list[tf.Tensor]]] = {}
        self.graph = self._run.graph
        self.num_amounts = len(self._amounts)
        self.means = [metric for metric, _ in self._probe.means[:MOST_MEANS]]
        self.normalising = self._statistics.layers

    def _observers(
        self, layers: Sequence[Any], metrics: Sequence[Any]
    ) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        """Yields what takes the place of methods: it calls them, and keeps what they are called with."""
        for layer in layers:
            yield layer, "call", _observed_call(layer, self.layer_calls.append)
        for metric, calls in zip(metrics, self.metric_calls, strict=True):
            yield metric, "update_state", _observed_update(metric, calls.append)

    def _scalars(self) -> tuple[list[Any], list[Any], list[Any]]:
        given = [value for _, value in self._probe.means[:MOST_MEANS]]
        return given, [value for _, value in self._probe.weighted_means], self._returned

    def _outcome_in_graph(self) -> Outcome:
        gradients = [[_as_tensor(one) for one in update.gradients] for update in self.updates]
        before_clipping = [
            [
                given if before is None else before
                for given, before in zip(of_update, update.before_clipping, strict=True)
            ]
            for of_update, update in zip(gradients, self.updates, strict=True)
        ]
        given, weighted, returned = map(_vector_of, self._scalars())
        return Outcome(
            gradients=gradients,
            before_clipping=before_clipping if self.clips_batch_gradient else [],
            given=given,
            weighted=weighted,
            returned=returned,
            statistics=list(self._statistics.of_batch),
        )

    @functools.cached_property
    def tolerance(self) -> float:
        """Relative difference of gradients that are equal up to rounding, in their types."""
        return max(map(_tolerance_of, self._flat_gradients()), default=TOLERANCE)

    @functools.cached_property
    def tolerances(self) -> list[list[float]]:
        """The same of each number in `Outcome.given`, `weighted` and `returned`."""
        return [[_tolerance_of(value) for value in values] for values in self._scalars()]

    @property
    def clips_gradients(self) -> bool:
        """Whether the step clips its gradients, or does something else to them that is not linear."""
        return any(update.is_clipped for update in self.updates)

    @property
    def clips_batch_gradient(self) -> bool:
        """Whether it clips the gradients of a whole batch, and not those of single examples."""
        return any(one is not None for update in self.updates for one in update.before_clipping)

    @property
    def reduces_itself(self) -> bool:
        """Whether the step adds up its gradients over replicas before it gives them to an optimizer of
        tf_keras, with `skip_gradients_aggregation`."""
        return any(update.is_reduced for update in self.updates)

    @property
    def effects(self) -> list[str]:
        """What has effects and is needed for what it makes of a batch, such as Python that it calls."""
        return self._run.effects

    @property
    def is_scaled(self) -> bool:
        """Whether anything depends on what losses are scaled by."""
        return bool(self._run.needed.inputs[0].consumers())

    @property
    def is_random(self) -> bool:
        """Whether it depends on random numbers that could not be replaced by constants."""
        return dependence.draws(self._run.needed.as_graph_def())

    @property
    def fed(self) -> list[Any]:
        """The variables to which the step assigns what depends on its batch, of metrics and layers too."""
        _, *of_batch = self._run.inputs
        nodes = dependence.fed_variables(self.graph.as_graph_def(), {one.op.name for one in of_batch})
        return tf_private.variables_named(self.graph, nodes)

    def gradients_depend_on(self, variable: Any) -> bool:
        """Whether the gradients of a batch depend on the value of a variable."""
        return any(tf_private.reads_any(one, [variable]) for one in self._flat_gradients())

    def returned_depends_on(self, variables: Sequence[Any]) -> list[bool]:
        """Whether each number that is returned depends on the values of variables."""
        return [tf_private.reads_any(one, variables) for one in self._returned]

    def dependences(self) -> tuple[list[linearity.Dependence], list[linearity.Dependence]]:
        """Returns how each gradient depends on the batch, and how each number that is returned."""
        _, *tensors = self._run.inputs
        is_sized = [
            not isinstance(component, tf.TensorSpec)
            for component in tf.nest.flatten(self._spec)
            for _ in tf.nest.flatten(component, expand_composites=True)
        ]
        gradients = self._flat_gradients()
        sources = list(zip(tensors, is_sized, strict=True))
        found = linearity.dependences(self.graph, sources, [*gradients, *self._returned])
        return found[: len(gradients)], found[len(gradients) :]

    def _flat_gradients(self) -> list[tf.Tensor]:
        gradients = (one for of_update in self._structure.gradients for one in of_update)
        return [values_of(one) for one in gradients if one is not None]

    def run(
        self,
        batch: Any,
        *,
        scale: float = 1.0,
        statistics: Sequence[Any] = (),
        with_other_scalars: bool = False,
    ) -> Outcome:
        """Returns what the step makes of a batch.

        Args:
          scale: What losses are multiplied by: this replica's share of a batch's examples.
          statistics: By which layers normalise, where the batch is a part of the one that has them.
          with_other_scalars: Whether scalar variables that are 0 are others, see `has_other_scalars`.

        Raises:
          ValueError: There are `effects`.
        """
        feeds = self._statistics.of_batch[: len(statistics)]
        values = list(statistics[: len(feeds)])
        if with_other_scalars:
            others, of_others = self._others
            feeds, values = [*feeds, *others], [*values, *of_others]
        key = tuple(map(id, feeds))
        if key not in self._runs:
            self._runs[key] = self._run.given(feeds)
        found = iter(self._runs[key](values, tf.constant(scale), batch))
        flat = tf.nest.flatten(self._structure, expand_composites=True)
        outcome: Outcome = tf.nest.pack_sequence_as(
            self._structure, [None if one is None else next(found) for one in flat], expand_composites=True
        )
        return outcome._replace(
            before_clipping=outcome.before_clipping or outcome.gradients,
            given=outcome.given.numpy(),
            weighted=outcome.weighted.numpy(),
            returned=outcome.returned.numpy(),
        )

    def computed(
        self, tensors: Sequence[tf.Tensor], batch: Any, *, statistics: Sequence[Any] = ()
    ) -> list[np.ndarray]:
        """Returns the values that tensors of `graph` have for a batch, and behind them its `statistics`.

        None of those where some are given.

        Args:
          statistics: As of `run`.

        Raises:
          ValueError: They need effects.
        """
        of_batch = self._statistics.of_batch
        outputs = [*tensors, *([] if statistics else of_batch)]
        key = (len(statistics), *map(id, outputs))
        if key not in self._runs:
            self._runs[key] = self._run.given(of_batch[: len(statistics)], outputs=outputs)
        return [one.numpy() for one in self._runs[key](statistics, tf.constant(1.0), batch)]

    def amounts(self, batch: Any) -> list[tf.Tensor]:
        """Returns the amounts of a batch, in the order in which its losses ask for them, also in a graph."""
        return self._run.given([], outputs=self._amounts)([], tf.constant(1.0), batch)

    @property
    def has_other_scalars(self) -> bool:
        """Whether it reads scalar variables that are 0 now, and may be others later in training.

        Real ones are then taken to be 1, and whole numbers 1000, as a count of steps is when training has
        begun.
        """
        return bool(self._others[0])

    @functools.cached_property
    def _others(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return self._run.other_scalars()

    def _note_question(self) -> None:
        asker = _asker(sys._getframe(2))
        self.asks_for_replicas = self.asks_for_replicas or asker not in _LIBRARIES
        self.depends_on_replicas = self.depends_on_replicas or asker != "raydist"

    def _note_unknown_size(self) -> None:
        if self.asks_for_rows:
            return
        frame: FrameType | None = sys._getframe(2)
        # AutoGraph calls subscripts for the user, and so does a function of tf_keras's backend.
        while frame is not None and (_is_autograph(frame) or frame.f_code.co_name == "int_shape"):
            frame = frame.f_back
        # Libraries ask and know what to do; what they read, a user may pass on.
        self.asks_for_rows = frame is not None and _package_of(frame) not in ("tensorflow", *_LIBRARIES)

    def _note_reduction(self, is_mean: bool) -> None:
        frame = sys._getframe(2)
        if _asker(frame) not in _LIBRARIES and not _is_gradient(frame):
            self.averages_replicas = self.averages_replicas or is_mean
            self.reduces_twice = self.reduces_twice or not _is_in_layer(frame)

    def _note_draw(self, constant: tf.Tensor | None) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and self._drawing_in(frame) is None:
            frame = frame.f_back
        self._draws.append((None if frame is None else self._drawing_in(frame), constant))

    def _drawing_in(self, frame: FrameType) -> Any:
        """Returns the layer, the metric or the method of the model's that a call is one of; None if none."""
        owner = frame.f_locals.get("self")
        if id(owner) in self._owners:
            return owner
        if owner is None or owner is not self._model or _package_of(frame) in _LIBRARIES:
            return None
        name = frame.f_code.co_name.removeprefix("tf__")  # what AutoGraph makes of it
        return getattr(type(owner), name, type(owner))

    def _note_used_draws(self) -> None:
        """Notes who draws what the step uses.

        TensorFlow Probability draws a sample of each distribution that a layer returns, also for a loss that
        takes the distribution.
        """
        if not self._draws:
            return
        of_metrics = [one for one in self._probe.of_metrics if getattr(one, "graph", None) is self._run.graph]
        used = {id(op) for op in self._run.used_by(of_metrics)}
        for drawing, constant in self._draws:
            # What is drawn inside of a condition or a loop counts as used.
            if constant is not None and constant.graph is self._run.graph and id(constant.op) not in used:
                continue
            if drawing is None:
                self.draws_elsewhere = True
            elif id(drawing) not in self._owners:
                self.drawing_function = drawing
            elif all(one is not drawing for one in self.drawing):
                self.drawing.append(drawing)


def _observed_call(layer: Any, record: Callable[[LayerCall], None]) -> Callable[..., Any]:
    call, graph = layer.call, tf.compat.v1.get_default_graph()

    def observed(*args: Any, **kwargs: Any) -> Any:
        outputs = call(*args, **kwargs)
        # Not those inside of a loop or a condition, which nothing outside of it can read.
        if tf.compat.v1.get_default_graph() is graph:
            record(LayerCall(layer, _tensors((args, kwargs)), _tensors(outputs)))
        return outputs

    return observed


def _observed_update(metric: Any, record: Callable[[MetricCall], None]) -> Callable[..., Any]:
    update = metric.update_state

    def observed(*args: Any, **kwargs: Any) -> Any:
        record((args, kwargs))
        return update(*args, **kwargs)

    return observed


def _tensors(structure: Any) -> list[tf.Tensor]:
    return [one for one in tf.nest.flatten(structure, expand_composites=True) if tf.is_tensor(one)]


def _as_tensor(gradient: Any) -> Any:
    is_given = gradient is None or isinstance(gradient, tf.IndexedSlices)
    return gradient if is_given else tf.convert_to_tensor(gradient)


def _vector_of(values: Sequence[Any]) -> tf.Tensor:
    zero = tf.constant(0.0, tf.float64)
    return tf.stack([zero, *(tf.cast(value, tf.float64) for value in values)])[1:]


def _tolerance_of(value: Any) -> float:
    behind = {one.dtype.name for op in tf_private.ops_behind(value) for one in op.outputs}
    of_type = TOLERANCE_OF_DOUBLES if value.dtype == tf.float64 else TOLERANCE
    return max([of_type, *(TOLERANCE_OF_HALVES[one] for one in behind & {*TOLERANCE_OF_HALVES})])


def _asker(frame: FrameType | None) -> str:
    """Returns the package that called TensorFlow from here; raydist where nothing else did."""
    while frame is not None:
        package = _package_of(frame)
        if package != "tensorflow":
            return package
        frame = frame.f_back
    return "raydist"


def _is_autograph(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("tensorflow.python.autograph")


def _is_gradient(frame: FrameType) -> bool:
    """Whether TensorFlow reduces because it computes the gradient of a reduction, which is one too."""
    # It is a lambda in `ReplicaContextBase.all_reduce` (distribute_lib.py).
    return frame.f_code.co_name == "<lambda>" and _package_of(frame) == "tensorflow"


def _is_in_layer(frame: FrameType | None) -> bool:
    """Whether a layer or a model is called, which may reduce what it computes of a batch."""
    while frame is not None:
        is_call = frame.f_code.co_name == "__call__" and _package_of(frame) in ("keras", "tf_keras")
        if is_call and hasattr(frame.f_locals.get("self"), "_flatten_layers"):
            return True
        frame = frame.f_back
    return False


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
