"""Measures whether a user's own step is written for one device or for several replicas.

In come a step and one replica's first batch. Out go the errors of its gradients under each LossRule, of which
findings.py makes the decision (`StepCheck.findings`). step_rules.py calls it.

Keras adds up the gradients of the replicas. That is right for Keras's own losses, which scale themselves,
and for losses that divide by the global batch size. It is N times too much for `tf.reduce_mean(losses)`,
which is what nearly every custom `train_step` has, because it is right on one device. TensorFlow cannot
tell them apart; this check can: before the first step it computes the gradients of a batch, and those of two
parts of it, both ways.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.checks.findings import MOST_RETURNED, NOT_COMPUTED, TOLERANCE, Division, StepFindings
from raydist.training.checks.rehearsal import Outcome, Rehearsal
from raydist.training.cluster import worker_shares
from raydist.training.replicas import batch_slices
from raydist.training.replicas.gradients import with_unique_rows
from raydist.training.user_code import linearity

# By rule, scaled, local mean and sum: whether a part's losses are scaled by its share of the batch, and
# whether its gradients are.
_WEIGHTED = ((True, False), (False, True), (False, False))
# Of a batch that workers share unequally, the rows in the first of the two parts.
_UNEQUAL_PART = 0.25
# A variable's gradient counts as at least this part of its update's.
_LEAST_PART = 1e-2
# Scalars that are smaller may be zero but for rounding.
_LEAST_SHOWN = 1e-6
# If no weighted sum of the parts' gradients comes this close to the batch's, examples are compared.
_MISSED_PART = 1e-2


class StepCheck:
    """Compares the gradients of a training step on a batch with those on two parts of it.

    Attributes:
      batch: What one replica has of a batch.
      rehearsal: The step as it is on one of several replicas.
      has_fixed_rows: Whether it is rehearsed for batches, and halves, of as many rows as training has: it
        makes something else of those that may have any number, or fails. Known after `measure`.
      needs_rows: Whether it would make something else of a batch whose shape says how many rows it has, which
        training does not.
      errors: The relative differences to one device under the rules scaled, local mean and sum: of gradients
        and of those that tapes give, before the step clips them, `[2, rules]`. `NOT_COMPUTED` before
        `measure`.
      takes_sums: Of each of the rehearsal's `means`, by the rules scaled, local mean and sum, whether the
        scalar of a batch is the sum of those of its parts.
      shows_batch: By the same rules, whether one device's values are shown: what a `Mean` is given for a
        batch is the mean or the sum of what it is given for the parts, and what the step returns is the mean.
      returned: Of each number that the step returns, by the same rules: 1 if that of a batch is the sum of
        those of its parts, 0 if it is their mean, NaN if it is 0 and so may be both, and -1 if neither.
      is_additive: Whether the gradients are sums over the examples of each batch, and not of this one alone,
        as a mean over a mask is that has no padding yet. Known after `measure`, as `dependences` is.
      dependences: Of each number that it returns, how it depends on a batch.
    """

    def __init__(
        self,
        step: Callable[[Any], Any],
        batch: Any,
        *,
        strategy: tf.distribute.Strategy,
        model: Any = None,
        variants: Mapping[int, Callable[[Any], Any]] = MappingProxyType({}),
        knows_rows: bool = False,
        **options: Any,
    ) -> None:
        """Traces `step(batch)` for batches of any number of rows, or of as many if it needs that.

        `measure` traces it once more, as it is on one device, where it may depend on how many replicas there
        are.

        Args:
          model: The model whose step it is; None for the step of a loop.
          variants: By the number of replicas, what `step` is where it has that number from outside.
          knows_rows: Whether the shapes of the batches that it trains on say how many rows they have.
          options: `numbers_in`, `layers` and `metrics` of `Rehearsal`.

        Raises:
          Exception: What the step raises.
        """
        self.batch, self.strategy, self._model = batch, strategy, model
        self._on_one_device, self._on_replica = variants.get(1, step), variants.get(2, step)
        self._has_variants, self._knows_rows = bool(variants), knows_rows
        self._options = options
        self._is_uneven = bool(worker_shares.of(strategy))
        self.has_fixed_rows = self.needs_rows = False
        # Shows best how results depend on a batch, whose rows have then a dimension of their own.
        self._of_any_rows: Rehearsal | None = None
        try:
            self.rehearsal = self._rehearsed(self._on_replica, 2)
        except Exception:  # the user's code, which may need to know the rows
            if not knows_rows:
                raise
            self.has_fixed_rows = True
            self.rehearsal = self._rehearsed(self._on_replica, 2, self._sizes[0])
        self.errors = np.full([2, len(_WEIGHTED)], NOT_COMPUTED)
        self.takes_sums: list[list[bool]] = []
        self.shows_batch: list[bool] = []
        self.returned: list[np.ndarray] = []
        self.is_additive = True
        self.dependences: list[linearity.Dependence] = []

    def _rehearsed(
        self, step: Callable[[Any], Any], num_replicas: int, num_rows: int | None = None
    ) -> Rehearsal:
        return self._trace(step, num_replicas, num_rows, **self._options)

    def _trace(
        self, step: Callable[[Any], Any], num_replicas: int, num_rows: int | None = None, **options: Any
    ) -> Rehearsal:
        """Traces a step for batches of `num_rows`; of any number for None."""
        spec = tf.nest.map_structure(lambda one: batch_slices.relaxed_spec(one, num_rows), self.batch)
        arguments = {"strategy": self.strategy, "model": self._model, "num_replicas": num_replicas}
        return Rehearsal(step, spec=spec, **arguments, **options)

    @functools.cached_property
    def of_whole(self) -> Rehearsal:
        """The step as it is on one device."""
        if self.has_fixed_rows:
            return self._rehearsed(self._on_one_device, 1, sum(self._sizes))
        # Keras may multiply by the number of replicas, and an optimizer that adds up gradients by itself may
        # take their mean.
        of_part = self.rehearsal
        if of_part.depends_on_replicas or of_part.reduces_itself or self._has_variants:
            return self._rehearsed(self._on_one_device, 1)
        return of_part

    @functools.cached_property
    def of_half(self) -> Rehearsal:
        """The same for one of the two halves of the batch."""
        if self.has_fixed_rows:
            return self._rehearsed(self._on_one_device, 1, self._sizes[0])
        return self.of_whole

    @property
    def has_compared(self) -> bool:
        """Whether `measure` has found `takes_sums` and `shows_batch`."""
        return len(self.takes_sums) == len(_WEIGHTED)

    def measure(self) -> None:
        """Finds `errors`, `takes_sums`, `shows_batch` and `returned` for the batch.

        Raises:
          ValueError: There are effects, or the step does something else for a part of a batch.
        """
        if self.rehearsal.asks_for_rows and not self.has_fixed_rows:
            self._look_at_rows()
        self._measure()
        if self.errors[0].max() < NOT_COMPUTED and self.of_whole.has_other_scalars:
            self._measure_with_other_scalars()
        if self._is_uneven and len(set(self._sizes)) == 1:  # of two rows, which show nothing of unequal parts
            self.errors[0] = NOT_COMPUTED

    def _look_at_rows(self) -> None:
        """Takes other rehearsals if the step makes something else of batches whose rows are known.

        As it does by `len(y.shape) and y.shape[0] or 32`.
        """
        known = self._rehearsed(self._on_one_device, 1, sum(self._sizes))
        whole, other = self._whole(), self._whole(known)
        if self._are_equal(whole, other):
            return
        if not self._knows_rows:
            self.needs_rows = not self.rehearsal.is_random
            return
        self.has_fixed_rows, self._of_any_rows = True, self.of_whole
        self.rehearsal = self._rehearsed(self._on_replica, 2, self._sizes[0])
        self.of_whole = known

    def _are_equal(self, one: Outcome, other: Outcome) -> bool:
        """Whether a step makes the same of a batch, up to rounding."""
        if len(one.gradients) != len(other.gradients):
            return False
        vectors = zip(one[2:5], other[2:5], self.of_whole.tolerances, strict=True)
        errors = _Differences(one).of([other], [1.0])
        return all(error <= self.of_whole.tolerance or error == NOT_COMPUTED for error in errors) and all(
            len(a) == len(b) and _are_equal(a, b, close).all() for a, b, close in vectors
        )

    def _measure(self) -> None:
        of_gradients, self.dependences = (self._of_any_rows or self.of_whole).dependences()
        self.is_additive = all(one.is_additive for one in of_gradients)
        whole = self._whole()
        differences, errors = _Differences(whole), []
        self.takes_sums, self.shows_batch, self.returned = [], [], []
        of_given, of_weighted, of_returned = self.of_whole.tolerances
        for is_of, parts in zip(_WEIGHTED, self._parts(whole), strict=True):
            given, total, mean = self._totals(whole.given, [one.given for one in parts])
            sums = _are_equal(given, total, of_given) & (np.abs(given) >= _LEAST_SHOWN)  # zero shows nothing
            means = _are_equal(given, mean, of_given)
            # A `Mean` with weights is given a sum where losses are sums.
            weighted, total, mean = self._totals(whole.weighted, [one.weighted for one in parts])
            is_weighted = _are_equal(weighted, mean if any(is_of) else total, of_weighted)
            returned = _kinds_of(*self._totals(whole.returned, [one.returned for one in parts]), of_returned)
            others = (
                is_weighted,
                # Those of a loop are told one by one.
                np.isnan(returned) | (returned == 0) | (self._model is None),
            )
            self.takes_sums.append([*sums])
            self.returned.append(returned)
            self.shows_batch.append(bool((sums | means).all() and all(one.all() for one in others)))
            errors.append(differences.of(parts, self._weights(is_of[1])))
        self.errors = np.transpose(errors)

    def _measure_with_other_scalars(self) -> None:
        """Takes the larger errors: a term may have a weight that is 0 before training, and not later."""
        try:
            whole = self._whole(with_other_scalars=True)
            differences, parts = _Differences(whole), self._parts(whole, with_other_scalars=True)
            errors = np.transpose(
                [
                    differences.of(one, self._weights(is_weighted))
                    for (_, is_weighted), one in zip(_WEIGHTED, parts, strict=True)
                ]
            )
        except tf.errors.OpError:  # another number of steps may be out of range
            return
        if errors[0].max() < NOT_COMPUTED:
            self.errors = np.maximum(self.errors, errors)

    @functools.cached_property
    def _sizes(self) -> tuple[int, int]:
        """The rows of the two parts of the batch.

        Both have as many, or a loss that divides by the number of replicas would look wrong; which it is
        where workers share batches unequally.
        """
        num_rows = int(batch_slices.num_rows(self.batch))
        if not self._is_uneven:
            return num_rows // 2, num_rows // 2
        first = max(1, int(num_rows * _UNEQUAL_PART))
        return first, num_rows - first

    def _weights(self, is_weighted: bool) -> list[float]:
        return [size / sum(self._sizes) if is_weighted else 1.0 for size in self._sizes]

    def _totals(
        self, whole: np.ndarray, parts: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns numbers of a batch, the sum of those of its parts, and their mean over the examples.

        None where a part has more, or fewer.
        """
        first, last = self._weights(is_weighted=True)
        found = whole, parts[0] + parts[1], parts[0] * first + parts[1] * last
        return found if len(found[0]) == len(found[1]) else (whole[:0], whole[:0], whole[:0])

    def _whole(self, of_whole: Rehearsal | None = None, *, with_other_scalars: bool = False) -> Outcome:
        """Returns what the step makes of the batch, but for its last row if halves leave one."""
        return (of_whole or self.of_whole).run(
            batch_slices.rows(self.batch, 0, sum(self._sizes)), with_other_scalars=with_other_scalars
        )

    def _parts(self, whole: Outcome, *, with_other_scalars: bool = False) -> Iterator[list[Outcome]]:
        """Yields, rule by rule, what the step makes of the two parts of the batch: always one list."""
        found: list[Outcome] = []
        before = None
        for is_scaled, _ in _WEIGHTED:
            scales = self._weights(is_scaled and self.rehearsal.is_scaled)
            if scales != before:
                found.clear()  # before others are computed: gradients are large
                for start, size, scale in zip((0, self._sizes[0]), self._sizes, scales, strict=True):
                    found.append(
                        self.rehearsal.run(
                            batch_slices.rows(self.batch, start, size),
                            scale=scale,
                            statistics=whole.statistics,
                            with_other_scalars=with_other_scalars,
                        )
                    )
            before = scales
            yield found

    def findings(self, division: Division = Division.NONE) -> StepFindings:
        """Returns what was measured as numbers, which workers can exchange.

        Args:
          division: What of the gradients is divided by a number from outside.
        """
        step, is_known = self.rehearsal, self.errors < NOT_COMPUTED
        found = StepFindings(
            errors=np.where(is_known, self.errors, 0.0),
            is_known=is_known,
            has_compared=self.has_compared,
            asks_for_replicas=step.asks_for_replicas,
            divides_by_replicas=step.asks_for_replicas or self._has_variants,
            averages_replicas=step.averages_replicas or any(map(_is_averaged, step.fed)),
            is_random=step.is_random,
            reduces_itself=step.reduces_itself,
            reduces_twice=step.reduces_twice,
            is_without_updates=not step.updates,
            trains_by_hand=any(one.trainable for one in step.fed),
            clips_gradients=step.clips_gradients,
            clips_batch_gradient=step.clips_batch_gradient,
            tolerance=step.tolerance,
            is_checked=True,
            holds_for_first_batch_only=not self.is_additive,
            is_of_one_size=self.has_fixed_rows and self._of_any_rows is None,
            has_effects=bool(step.effects),
            may_divide=division is Division.WHOLE,
            may_divide_part=division is Division.PART,
        )
        if self.has_compared:
            found.takes_sums[:, : len(self.takes_sums[0])] = self.takes_sums
            found.shows_batch[:] = self.shows_batch
            kinds = np.asarray(self.returned)[:, :MOST_RETURNED]
            for index, kind in enumerate((1, 0, -1)):
                found.returned[:, index, : kinds.shape[1]] = kinds == kind
            for index, one in enumerate(self.dependences[:MOST_RETURNED]):
                found.returned_varies[index], found.returned_fixed[index] = not one.is_additive, one.is_fixed
        return found

    def divides_by(self, steps: Sequence[Callable[[Any], Any]]) -> Division:
        """Returns what a number does to the gradients, by steps that have it once, twice and four times.

        Raises:
          Exception: What the steps raise. Most numbers cannot be replaced without breaking the step.
        """
        num_rows = sum(self._sizes)
        batch = batch_slices.rows(self.batch, 0, num_rows)
        given = num_rows if self.has_fixed_rows else None
        found = [self._trace(step, 1, given).run(batch).gradients for step in steps]
        weights = ((1.0, 0.0, 0.0), (1.0, -1.0, 0.0), (1.0, -3.0, 2.0), (1.0, -2.0, 0.0))
        whole, moved, bent, halved = (_squared_norm_of(found, one) ** 0.5 for one in weights)
        tolerance = self.of_whole.tolerance
        if not moved > tolerance * whole or bent > tolerance * moved:
            return Division.NONE
        return Division.WHOLE if halved <= tolerance * whole else Division.PART

    def compares_examples(self) -> bool:
        """Returns whether grouping examples in another way changes the gradients, whatever the parts weigh.

        A mean over the valid entries of a mask depends on how a batch is divided, too, but its gradients are
        a weighted sum of those of the parts.
        """
        batch, size = self.batch, int(batch_slices.num_rows(self.batch)) // 2
        if size < 2:
            return False
        whole = self.of_whole.run(batch_slices.rows(batch, 0, 2 * size))
        parts = [
            *(batch_slices.rows(batch, start, size) for start in (0, size)),
            *(
                tf.nest.map_structure(lambda one, first=first: one[first : 2 * size : 2], batch)
                for first in (0, 1)
            ),
        ]
        of_parts = [self.of_half.run(part, statistics=whole.statistics).gradients for part in parts]
        gradients = [whole.gradients, *of_parts]

        def norm(*weights: float) -> float:
            return _squared_norm_of(gradients, weights)

        def product(one: int, other: int) -> float:
            plus, minus = (
                [float(index == one) + sign * (index == other) for index in range(3)] for sign in (1, -1)
            )
            return (norm(*plus) - norm(*minus)) / 4

        moved = norm(0, 1, 1, -1, -1)  # if other examples are together
        both = product(1, 2)
        matrix = np.array([[norm(0, 1), both], [both, norm(0, 0, 1)]])
        projected = np.array([product(0, 1), product(0, 2)])
        missed = norm(1) - projected @ np.linalg.pinv(matrix, rcond=1e-6) @ projected
        return bool(moved > TOLERANCE**2 * norm(0, 1, 1) and missed > _MISSED_PART**2 * norm(1))


class _Differences:
    """How far the gradients of parts are from those of a batch."""

    def __init__(self, whole: Outcome) -> None:
        self._whole = whole.gradients, whole.before_clipping
        self._references = [_references(whole.gradients)]
        if whole.before_clipping is not whole.gradients:
            self._references.append(_references(whole.before_clipping))

    def of(self, parts: Sequence[Outcome], weights: Sequence[float]) -> tuple[float, float]:
        """Returns the errors of the weighted sum of some parts, and those of the gradients of tapes."""
        of_parts = [one.gradients for one in parts], [one.before_clipping for one in parts]
        errors = [
            _error(whole, own, weights, references)
            for whole, own, references in zip(self._whole, of_parts, self._references, strict=False)
        ]
        return errors[0], errors[-1]


def _references(whole: Sequence[Sequence[Any]]) -> list[float]:
    """Returns the squared norm of each variable's gradient: at least that of a small part of its update.

    What is zero up to rounding would show nothing but rounding.
    """
    references = []
    for update in whole:
        own = [_squared_norm([(one, 1.0)]) for one in update if one is not None]
        least = _LEAST_PART**2 * sum(own)
        references += [max(reference, least) for reference in own]
    return references


def _error(
    whole: Sequence[Sequence[Any]],
    parts: Sequence[Sequence[Sequence[Any]]],
    weights: Sequence[float],
    references: Sequence[float],
) -> float:
    """Returns the largest relative difference of a variable's gradient.

    Of each variable by itself: a large gradient would hide what is wrong in a small one. An update that is
    zero, or overflows, shows nothing.
    """
    if any(len(part) != len(whole) for part in parts):
        raise ValueError("the step gave its optimizers something more often for a part of the batch")
    left, known = iter(references), []
    for index, update in enumerate(whole):
        for position, gradient in enumerate(update):
            if gradient is not None:
                own = [part[index][position] for part in parts]
                weighted = zip(own, weights, strict=True)
                terms = [(gradient, -1.0), *((one, weight) for one, weight in weighted if one is not None)]
                difference, reference = _squared_norm(terms), next(left)
                known += [difference / reference] if reference > 0 else []
    known = [one for one in known if np.isfinite(one)]
    return float(max(known) ** 0.5) if known else NOT_COMPUTED


def _are_equal(whole: np.ndarray, parts: np.ndarray, tolerances: Sequence[float]) -> np.ndarray:
    # Where values cancel out, as those of a layer behind BatchNormalization, only their rounding is left.
    return np.abs(whole - parts) <= np.maximum(np.abs(whole) * tolerances[: len(whole)], _LEAST_SHOWN / 4)


def _kinds_of(
    whole: np.ndarray, total: np.ndarray, mean: np.ndarray, tolerances: Sequence[float]
) -> np.ndarray:
    """Returns of each number whether it is a sum, a mean, or both, see `StepCheck.returned`."""
    is_sum, is_mean = _are_equal(whole, total, tolerances), _are_equal(whole, mean, tolerances)
    is_zero = (np.abs(whole) < _LEAST_SHOWN) & (np.abs(total) < _LEAST_SHOWN)
    return np.select([is_zero, is_mean, is_sum], [np.nan, 0.0, 1.0], -1.0)


def _is_averaged(variable: Any) -> bool:
    """Whether it becomes the mean of what replicas assign, each of which counts alike."""
    is_mean = tf_private.is_of_strategy(variable) and variable.aggregation == tf.VariableAggregation.MEAN
    return is_mean and not tf_private.is_synchronized_on_read(variable)


def _squared_norm_of(parts: Sequence[Sequence[Sequence[Any]]], weights: Sequence[float]) -> float:
    """Returns the squared norm of the weighted sum of what optimizers were given for several parts."""
    flat = [[one for update in part for one in update] for part in parts[: len(weights)]]
    terms = [
        [(one, weight) for one, weight in zip(of_parts, weights, strict=True) if one is not None and weight]
        for of_parts in zip(*flat, strict=True)
    ]
    return sum(_squared_norm(one) for one in terms if one)


def _squared_norm(terms: Sequence[tuple[Any, float]]) -> float:
    """Returns the squared norm of a weighted sum of gradients, without making sparse ones dense."""
    if all(isinstance(gradient, tf.IndexedSlices) for gradient, _ in terms):
        values = [tf.cast(gradient.values, tf.float64) * weight for gradient, weight in terms]
        indices = [tf.cast(gradient.indices, tf.int64) for gradient, _ in terms]
        joined = tf.IndexedSlices(tf.concat(values, axis=0), tf.concat(indices, axis=0))
        return float(tf.reduce_sum(tf.square(with_unique_rows(joined).values)))
    weighted = [tf.cast(tf.convert_to_tensor(gradient), tf.float64) * weight for gradient, weight in terms]
    return float(tf.reduce_sum(tf.square(tf.add_n(weighted))))
