"""Finds out how the losses of a user's own training step are written: for one device, or for several
replicas.

Keras adds up the gradients of the replicas. That is right for Keras's own losses, which scale themselves,
and for losses that divide by the global batch size. It is N times too much for `tf.reduce_mean(losses)`,
which is what nearly every custom `train_step` has, because it is right on one device. TensorFlow cannot
tell them apart; this check can: before the first step it computes the gradients of a batch, and those of two
parts of it, both ways.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.replicas import dependence, linearity, slices
from raydist.training.replicas.gradient_probe import Probe, Statistics, Update
from raydist.training.replicas.gradients import with_unique_rows
from raydist.training.replicas.loss_verdict import (
    TOLERANCE,
    TOLERANCE_OF_DOUBLES,
    TOLERANCE_OF_HALVES,
    UNKNOWN,
)
from raydist.training.replicas.replica_share import use_share

# By rule, scaled, local mean and sum: what losses are scaled by on each of two parts, and their gradients.
_WEIGHTS = ((0.5, 1.0), (1.0, 0.5), (1.0, 1.0))
# Metrics of a step whose scalars are compared, and numbers that a loop's step returns.
MOST_MEANS = 16
MOST_RETURNED = 64
# A variable's gradient counts as at least this part of its update's.
_LEAST_PART = 1e-2
# Scalars that are smaller may be zero but for rounding.
_LEAST_SHOWN = 1e-6
# What calls the user's code, and TensorFlow on its behalf.
_LIBRARIES = ("keras", "tf_keras", "raydist")
# Gradients of parts that miss as much of the batch's, with any weights, compare examples.
_MISSED_PART = 1e-2


class _Outputs(NamedTuple):
    """What a step is traced to, under a rule: of a batch, and added up over its two halves.

    Attributes:
      differences, references: Squared norms by variable, see `_squared_difference`.
      tape_differences, tape_references: Those of the gradients before they were processed.
      given, given_parts: What `Mean`s are given without a weight.
      weighted, weighted_parts: What they are given with one.
      returned, returned_parts: What the step returns.
    """

    differences: Any
    references: Any
    tape_differences: Any
    tape_references: Any
    given: Any
    given_parts: Any
    weighted: Any
    weighted_parts: Any
    returned: Any
    returned_parts: Any


class Division(enum.Enum):
    """What of the gradients is divided by a number: all, a part, or nothing."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"


class Shown(Protocol):
    """Takes what a step returns."""

    def own_scalars(self, outputs: Any) -> list[tf.Tensor]:
        """Returns the numbers in it that are to be compared."""


class StepCheck:
    """Compares the gradients of a training step on a batch with those on two parts of it.

    The step is traced three times, outside of the strategy, and none of its effects are executed: no variable
    changes, and nothing is written.

    Attributes:
      errors: The relative difference to one device under each rule: scaled, local mean, sum; `UNKNOWN` before
        `measure`.
      tape_errors: Those of the gradients as tapes give them, before the step clips them, for example.
      asks_for_replicas: Whether the user's code asks how many replicas there are, itself or by TensorFlow's
        functions such as `tf.nn.compute_average_loss`.
      reduces_itself: Whether the step adds up its gradients over replicas before it gives them to an
        optimizer of tf_keras, with `skip_gradients_aggregation`.
      reduces_twice: Whether it reduces something over replicas, outside of layers, and an optimizer adds up
        its gradients again.
      processes_gradients: Whether it clips its gradients, or does something else that is not linear.
      processes_sums: Whether those are the sums over its batch that tapes give, and not each example's.
      normalising: The layers that normalise by statistics of the batch. The check takes those of the whole
        batch for its parts too.
      is_without_updates: Whether it gives nothing to an optimizer.
      means: The `Mean` metrics that it gives scalars, in order, MOST_MEANS at most.
      takes_sums: Of each of `means`, by the rules scaled, local mean and sum, whether the scalar of a batch
        is the sum of those of its parts.
      shows_batch: By the same rules, whether one device's values are shown: what a `Mean` is given for a
        batch is the mean or the sum of what it is given for the parts, and what the step returns is the mean.
      returned: Of each number that the step returns, by the same rules: 1 if that of a batch is the sum of
        those of its parts, 0 if it is their mean, NaN if it is 0 and so may be both, and -1 if neither.
      is_additive: Whether the gradients are sums over the examples of each batch, and not of this one alone,
        as a mean over a mask is that has no padding yet.
      dependences: Of each number that it returns, how it depends on a batch.
      effects: What has effects and is needed for gradients, such as Python that it calls: it was not run.
      tolerance: Relative difference of gradients that are equal up to rounding, in their types.
      drawing: The layers and metrics of the model that draw random numbers.
      drawing_function: A method of the model's that draws some by itself; None where none does.
      draws_elsewhere: Whether something else does, such as a loss.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        *,
        strategy: tf.distribute.Strategy,
        spec: Any,
        model: Any = None,
        shown: Shown | None = None,
        compares: bool = True,
        variants: Mapping[int, Callable[[Any], Any]] = MappingProxyType({}),
    ) -> None:
        """Traces `step(batch)` for batches of `spec`, the structure of one replica's batch.

        Args:
          model: Whose step it is; None for that of a loop.
          shown: What its logs show of metrics, which the step itself notes.
          compares: Whether the gradients are wanted; without them the step is traced once.
          variants: By the number of replicas, what `step` is where it has that number from outside.

        Raises:
          Exception: What the step raises on a part of a batch.
        """
        self.errors = [UNKNOWN] * len(_WEIGHTS)
        self.tape_errors = [UNKNOWN] * len(_WEIGHTS)
        self.asks_for_replicas = False
        self.reduces_itself = False
        self.reduces_twice = False
        self.processes_gradients = False
        self.processes_sums = False
        self.normalising: list[Any] = []
        self.is_without_updates = False
        self.means: list[Any] = []
        self.takes_sums: list[list[bool]] = []
        self.shows_batch: list[bool] = []
        self.returned: list[np.ndarray] = []
        self.is_additive = True
        self.dependences: list[linearity.Dependence] = []
        self.tolerance = TOLERANCE
        # Of `means`, of what has weights, and of what is returned.
        self._tolerances: list[list[float]] = [[], [], []]
        self._whole_returned: list[tf.Tensor] = []
        self._returned: list[tf.Tensor] = []  # of the step that was traced last
        self._whole: list[tf.Tensor] = []  # its gradients for the batch
        self._step = step
        self._variants = variants
        self.drawing: list[Any] = []
        self.drawing_function: Any = None
        self.draws_elsewhere = False
        self._model = model
        self._shown = shown
        self._owners: set[int] = set()
        if model is not None:
            operations = getattr(model, "operations", ())  # of a functional one of Keras 3
            owners = (*model._flatten_layers(include_self=False), *model.metrics, *operations)
            self._owners = {id(one) for one in owners}
        self._probe = Probe(strategy)
        self._spec = spec
        self._compares = compares
        scalar = tf.TensorSpec([], tf.float32)
        self._run = tf_private.WithoutEffects(self._errors, scalar, scalar, spec)
        self._find_dependences()

    @property
    def effects(self) -> list[str]:
        return self._run.effects if self._compares else []

    def gradients_depend_on(self, variable: Any) -> bool:
        """Whether the gradients of a batch depend on the value of a variable."""
        return any(tf_private.reads_any(one, [variable]) for one in self._whole)

    @property
    def fed(self) -> list[Any]:
        """The variables to which the step assigns what depends on its batch, of metrics and layers too."""
        graph, (_, _, *of_batch) = self._run.graph, self._run.inputs
        nodes = dependence.fed_variables(graph.as_graph_def(), {one.op.name for one in of_batch})
        return tf_private.variables_named(graph, nodes)

    @property
    def is_random(self) -> bool:
        """Whether its gradients depend on random numbers for which no constant could be put."""
        return dependence.draws(self._run.needed.as_graph_def())

    @property
    def has_compared(self) -> bool:
        """Whether `measure` has found `takes_sums` and `shows_batch`."""
        return len(self.takes_sums) == len(_WEIGHTS)

    def measure(self, batch: Any) -> None:
        """Finds `errors`, `takes_sums`, `shows_batch` and `returned` for a batch.

        Raises:
          ValueError: There are `effects`.
        """
        errors, tape_errors = [], []
        self.takes_sums, self.shows_batch, self.returned = [], [], []
        of_given, of_weighted, of_returned = self._tolerances
        for scale, weight in _WEIGHTS:
            run = self._run(tf.constant(scale), tf.constant(weight), batch)
            found = _Outputs(*(value.numpy() for value in run))
            sums = _are_equal(found.given, found.given_parts, of_given)
            sums &= np.abs(found.given) >= _LEAST_SHOWN  # zero shows nothing
            means = _are_equal(found.given, found.given_parts / 2, of_given)
            # Keras weighs what it unscales, which makes a sum of it where losses are sums.
            weighted_parts = found.weighted_parts * (1 if scale == weight else 0.5)
            returned = _kinds_of(found.returned, found.returned_parts, of_returned)
            others = (
                _are_equal(found.weighted, weighted_parts, of_weighted),
                # Those of a loop are told one by one.
                np.isnan(returned) | (returned == 0) | (self._model is None),
            )
            self.takes_sums.append([*sums])
            self.returned.append(returned)
            self.shows_batch.append(bool((sums | means).all() and all(one.all() for one in others)))
            errors.append(_error(found.differences, found.references))
            tape_errors.append(_error(found.tape_differences, found.tape_references))
        self.errors, self.tape_errors = errors, tape_errors
        if max(errors) < UNKNOWN:
            self._measure_with_other_scalars(batch)

    def _measure_with_other_scalars(self, batch: Any) -> None:
        """Takes the larger errors: a term may have a weight that is 0 before training, and not later."""
        errors, tape_errors = [], []
        try:
            for scale, weight in _WEIGHTS:
                run = self._run.with_other_scalars(tf.constant(scale), tf.constant(weight), batch)
                if run is None:
                    return
                found = _Outputs(*(value.numpy() for value in run))
                errors.append(_error(found.differences, found.references))
                tape_errors.append(_error(found.tape_differences, found.tape_references))
        except tf.errors.OpError:  # another number of steps may be out of range
            return
        if max(errors) < UNKNOWN:
            self.errors = [max(pair) for pair in zip(self.errors, errors, strict=True)]
            self.tape_errors = [max(pair) for pair in zip(self.tape_errors, tape_errors, strict=True)]

    def divides_by(self, steps: Sequence[Callable[[Any], Any]], batch: Any) -> Division:
        """Returns what a number does to the gradients, by steps that have it once, twice and four times.

        Raises:
          Exception: What the steps raise. Most numbers are none that could be any other.
        """

        def norms(given: Any) -> list[tf.Tensor]:
            updates = []
            for step in steps:
                self._probe = Probe(self._probe.strategy)
                with tf_private.changed(self, _step=step, _variants={}, _shown=None):
                    updates.append(self._updates(given, num_replicas=1, share=None))
            weights = ((1.0, 0.0, 0.0), (1.0, -1.0, 0.0), (1.0, -3.0, 2.0), (1.0, -2.0, 0.0))
            return [_squared_norm_of(list(zip(updates, one, strict=True))) for one in weights]

        found = tf_private.WithoutEffects(norms, self._spec)(batch)
        whole, moved, bent, halved = (float(one.numpy()) ** 0.5 for one in found)
        if not moved > self.tolerance * whole or bent > self.tolerance * moved:
            return Division.NONE
        return Division.WHOLE if halved <= self.tolerance * whole else Division.PART

    def compares_examples(self, batch: Any) -> bool:
        """Returns whether it matters which examples of a batch are together, and no weights make up for it.

        A mean over the valid entries of a mask depends on how a batch is divided, too, but its gradients are
        a weighted sum of those of the parts.
        """
        if int(slices.num_rows(batch)) < 4:
            return False
        found = tf_private.WithoutEffects(self._groupings, self._spec)(batch)
        moved, halves, whole, *products = (float(value.numpy()) for value in found)
        first, second, both, of_first, of_second = products
        matrix = np.array([[first, both], [both, second]])
        projected = np.array([of_first, of_second])
        missed = whole - projected @ np.linalg.pinv(matrix, rcond=1e-6) @ projected
        return moved > TOLERANCE**2 * halves and missed > _MISSED_PART**2 * whole

    def _groupings(self, batch: Any) -> list[tf.Tensor]:
        size = slices.num_rows(batch) // 2
        parts = [
            slices.rows(batch, 0, 2 * size),
            *(slices.rows(batch, start, size) for start in (0, size)),
            *(
                tf.nest.map_structure(lambda one, first=first: one[first : 2 * size : 2], batch)
                for first in (0, 1)
            ),
        ]
        statistics, updates = Statistics(), []
        for part in parts:
            self._probe = Probe(self._probe.strategy, statistics=statistics)
            updates.append(self._updates(part, num_replicas=1, share=None))
            statistics.begin_part()

        def norm(*weights: float) -> tf.Tensor:
            return _squared_norm_of(list(zip(updates, weights, strict=False)))

        def product(one: int, other: int) -> tf.Tensor:
            plus, minus = (
                [float(index == one) + sign * (index == other) for index in range(3)] for sign in (1, -1)
            )
            return (norm(*plus) - norm(*minus)) / 4

        return [
            norm(0, 1, 1, -1, -1),  # what moves if other examples are together
            norm(0, 1, 1),
            norm(1),
            norm(0, 1),
            norm(0, 0, 1),
            product(1, 2),
            product(0, 1),
            product(0, 2),
        ]

    def _errors(self, scale: tf.Tensor, weight: tf.Tensor, batch: Any) -> list[tf.Tensor]:
        if not self._compares:
            self._updates(batch, num_replicas=1, share=None)
            return [tf.constant([0.0])] * len(_Outputs._fields)
        # Parts of one size: a loss that divides by the number of replicas is right for them.
        size, statistics = slices.num_rows(batch) // 2, Statistics()
        self._probe = Probe(self._probe.strategy, statistics=statistics)
        whole = self._updates(slices.rows(batch, 0, 2 * size), num_replicas=1, share=None)
        of_whole, returned = self._probe, [self._returned]
        self._whole = [
            one.values if isinstance(one, tf.IndexedSlices) else one
            for update in whole
            for one in update.gradients
            if tf.is_tensor(one)
        ]
        self._whole_returned = self._returned
        self.is_without_updates = not whole
        parts, of_parts = [], []
        for start in (0, size):
            self._probe = Probe(of_whole.strategy, statistics=statistics)
            statistics.begin_part()
            parts.append(self._updates(slices.rows(batch, start, size), num_replicas=2, share=scale))
            of_parts.append(self._probe)
            returned.append(self._returned)
        probes = (of_whole, *of_parts)
        shown = [
            _in_common([one.means[:MOST_MEANS] for one in probes]),
            _in_common([one.weighted_means for one in probes]),
            _in_common([[(None, value) for value in values] for values in returned]),
        ]
        self.means = [metric for metric, _ in shown[0][0]]
        self.reduces_itself = any(update.is_reduced for update in whole)
        self.normalising = statistics.layers
        self.processes_gradients = any(update.is_processed for update in whole)
        self.processes_sums = any(one is not None for update in whole for one in update.unprocessed)
        gradients = [one for update in whole for one in update.gradients if one is not None]
        self.tolerance = max(map(_tolerance_of, gradients), default=TOLERANCE)
        self._tolerances = [[_tolerance_of(value) for _, value in of_batch] for of_batch, *_ in shown]
        differences = of_tapes = _squared_difference(whole, parts, weight)
        if self.processes_sums:
            of_tapes = _squared_difference(_of_tapes(whole), list(map(_of_tapes, parts)), weight)
        return [
            *differences,
            *of_tapes,
            *(
                one
                for of_batch, *rest in shown
                for one in (_scalars(of_batch), tf.add_n([_scalars(of_part) for of_part in rest]))
            ),
        ]

    def _find_dependences(self) -> None:
        _, _, *tensors = self._run.inputs
        is_sized = [
            not isinstance(component, tf.TensorSpec)
            for component in tf.nest.flatten(self._spec)
            for _ in tf.nest.flatten(component, expand_composites=True)
        ]
        sources = list(zip(tensors, is_sized, strict=True))
        found = linearity.dependences(self._run.graph, sources, [*self._whole, *self._whole_returned])
        num_gradients = len(self._whole)
        self.is_additive = all(one.is_additive for one in found[:num_gradients])
        self.dependences = found[num_gradients:]

    def _updates(self, batch: Any, *, num_replicas: int, share: tf.Tensor | None) -> list[Update]:
        with (
            tf_private.as_one_of(
                num_replicas, on_question=self._note_question, on_reduction=self._note_reduction
            ),
            use_share(share, is_model_step=self._model is not None),
            tf_private.constant_draws(self._note_draw),
        ):
            step = self._variants.get(num_replicas, self._step)
            return self._probe.collect(lambda: self._run_step(step, batch))

    def _run_step(self, step: Callable[[Any], Any], batch: Any) -> None:
        outputs = step(batch)
        self._returned = [] if self._shown is None else self._shown.own_scalars(outputs)

    def _note_question(self) -> None:
        self.asks_for_replicas = self.asks_for_replicas or not _is_of_library(sys._getframe(2))

    def _note_reduction(self) -> None:
        frame = sys._getframe(2)
        is_of_step = not (_is_of_library(frame) or _is_gradient(frame) or _is_in_layer(frame))
        self.reduces_twice = self.reduces_twice or is_of_step

    def _note_draw(self) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not self._is_drawing(frame):
            frame = frame.f_back
        self.draws_elsewhere = self.draws_elsewhere or frame is None

    def _is_drawing(self, frame: FrameType) -> bool:
        """Whether a call is one of a layer, a metric or a method of the model's; notes it if so."""
        owner = frame.f_locals.get("self")
        if id(owner) in self._owners:
            self.drawing += [owner] if all(one is not owner for one in self.drawing) else []
        elif owner is not None and owner is self._model and _package_of(frame) not in _LIBRARIES:
            name = frame.f_code.co_name.removeprefix("tf__")  # what AutoGraph makes of it
            self.drawing_function = getattr(type(owner), name, type(owner))
        else:
            return False
        return True


def _is_of_library(frame: FrameType | None) -> bool:
    """Whether it is Keras or raydist that called TensorFlow from here, and not the user's code."""
    while frame is not None:
        package = _package_of(frame)
        if package != "tensorflow":
            return package in _LIBRARIES
        frame = frame.f_back
    return True


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


def _error(differences: np.ndarray, references: np.ndarray) -> float:
    """Returns the largest relative difference of a variable's gradient.

    Of each variable by itself: a large gradient would hide what is wrong in a small one. An update that is
    zero, or overflows, shows nothing.
    """
    ratios = differences / np.where(references > 0, references, np.nan)
    known = ratios[np.isfinite(ratios)]
    return float(known.max()) ** 0.5 if known.size else UNKNOWN


def _of_tapes(updates: Sequence[Update]) -> list[Update]:
    """Returns updates with the gradients that tapes gave, where they were processed since."""
    return [
        replace(
            one,
            gradients=tuple(
                given if unprocessed is None else unprocessed
                for given, unprocessed in zip(one.gradients, one.unprocessed, strict=True)
            ),
        )
        for one in updates
    ]


def _are_equal(whole: np.ndarray, parts: np.ndarray, tolerances: Sequence[float]) -> np.ndarray:
    # Where values cancel out, as those of a layer behind BatchNormalization, only their rounding is left.
    return np.abs(whole - parts) <= np.maximum(np.abs(whole) * tolerances, _LEAST_SHOWN / 4)


def _kinds_of(whole: np.ndarray, parts: np.ndarray, tolerances: Sequence[float]) -> np.ndarray:
    """Returns of each number whether it is a sum, a mean, or both, see `StepCheck.returned`."""
    is_sum, is_mean = _are_equal(whole, parts, tolerances), _are_equal(whole, parts / 2, tolerances)
    is_zero = (np.abs(whole) < _LEAST_SHOWN) & (np.abs(parts) < _LEAST_SHOWN)
    return np.select([is_zero, is_mean, is_sum], [np.nan, 0.0, 1.0], -1.0)


def _in_common(shown: list[list[tuple[Any, Any]]]) -> list[list[tuple[Any, Any]]]:
    """Returns metrics with their scalars for a batch and its parts; none where a part has more, or fewer."""
    is_same = all(len(one) == len(shown[0]) for one in shown)
    return shown if is_same else [[] for _ in shown]


def _scalars(shown: Sequence[tuple[Any, Any]]) -> tf.Tensor:
    """Returns the scalars of metrics as one vector."""
    return tf.stack([_zero(), *(tf.cast(value, tf.float64) for _, value in shown)])[1:]


def _tolerance_of(value: Any) -> float:
    tensor = value.values if isinstance(value, tf.IndexedSlices) else value
    behind = {one.dtype.name for op in tf_private.ops_behind(tensor) for one in op.outputs}
    of_type = TOLERANCE_OF_DOUBLES if tensor.dtype == tf.float64 else TOLERANCE
    return max([of_type, *(TOLERANCE_OF_HALVES[one] for one in behind & {*TOLERANCE_OF_HALVES})])


def _zero() -> tf.Tensor:
    return tf.constant(0.0, tf.float64)


def _squared_difference(
    whole: Sequence[Update], parts: Sequence[Sequence[Update]], weight: tf.Tensor
) -> list[tf.Tensor]:
    """Returns, by variable, the squared norms of the whole less its parts' weighted sum, and of the whole.

    That of the whole is at least that of a small part of its update.
    """
    if any(len(part) != len(whole) for part in parts):
        raise ValueError("the step gave its optimizers something more often for a part of the batch")
    differences, references = [], []
    for index, update in enumerate(whole):
        own_references = []
        for position, gradient in enumerate(update.gradients):
            if gradient is None:
                continue
            own = [part[index].gradients[position] for part in parts]
            terms = [(gradient, tf.constant(-1.0)), *((one, weight) for one in own)]
            differences.append(_squared_norm([(one, weight) for one, weight in terms if one is not None]))
            own_references.append(_squared_norm([(gradient, tf.constant(1.0))]))
        if own_references:
            # What is zero up to rounding would show nothing but rounding.
            least = _LEAST_PART**2 * tf.add_n(own_references)
            references += [tf.maximum(reference, least) for reference in own_references]
    return [tf.stack([_zero(), *differences]), tf.stack([_zero(), *references])]


def _squared_norm_of(updates: Sequence[tuple[Sequence[Update], float]]) -> tf.Tensor:
    """Returns the squared norm of the weighted sum of what optimizers were given for several parts."""
    gradients = [[one for update in part for one in update.gradients] for part, _ in updates]
    weights = [tf.constant(float(weight)) for _, weight in updates]
    norms = [
        _squared_norm(
            [(one, weight) for one, weight in zip(of_parts, weights, strict=True) if one is not None]
        )
        for of_parts in zip(*gradients, strict=True)
        if any(one is not None for one in of_parts)
    ]
    return tf.add_n(norms)


def _squared_norm(terms: Sequence[tuple[Any, tf.Tensor]]) -> tf.Tensor:
    """Returns the squared norm of a weighted sum of gradients, without making sparse ones dense."""
    if all(isinstance(gradient, tf.IndexedSlices) for gradient, _ in terms):
        values = [
            tf.cast(gradient.values, tf.float64) * tf.cast(weight, tf.float64) for gradient, weight in terms
        ]
        indices = [tf.cast(gradient.indices, tf.int64) for gradient, _ in terms]
        joined = tf.IndexedSlices(tf.concat(values, axis=0), tf.concat(indices, axis=0))
        return tf.reduce_sum(tf.square(with_unique_rows(joined).values))
    total = tf.add_n(
        [
            tf.cast(tf.convert_to_tensor(gradient), tf.float64) * tf.cast(weight, tf.float64)
            for gradient, weight in terms
        ]
    )
    return tf.reduce_sum(tf.square(total))
