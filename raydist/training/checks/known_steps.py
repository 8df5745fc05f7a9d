"""What one process has found out of a training step, for the next one that takes the training up.

It is kept in memory beside the state, with a checksum of what each worker traced by it: a step of which one
worker traces something else is looked at anew. loss_rules.py and trainers/custom_loop.py set and confirm it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster import collectives, worker_shares
from raydist.training.replicas.model_states import LossRule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KnownStep:
    """What is known of a step, as JSON.

    Attributes:
      rule: The value of its `LossRule`.
      replicas: How many there are, of how many workers, and what the workers' shares are where these differ.
      graphs: A checksum of what each worker has traced by the rule.
      names: Of a loop's step, the scalars that it returns. `sums`: those that are sums over examples.
    """

    rule: str
    replicas: Sequence[int]
    graphs: Sequence[int]
    names: Sequence[str] = ()
    sums: Sequence[str] = ()

    @property
    def loss_rule(self) -> LossRule:
        return LossRule(self.rule)


class Known:
    """What is known of the step of one training: nothing at first, in a process that begins it."""

    def __init__(self, packed: Mapping[str, Any] | None = None) -> None:
        """Takes what `packed` has returned in another process."""
        self._step = None if packed is None else KnownStep(**packed)

    def packed(self) -> dict[str, Any] | None:
        return None if self._step is None else dataclasses.asdict(self._step)

    def step(self, strategy: tf.distribute.Strategy) -> KnownStep | None:
        """Returns what was found with as many replicas; None for nothing."""
        is_of_strategy = self._step is not None and [*self._step.replicas] == _replicas(strategy)
        return self._step if is_of_strategy else None

    def confirmed(self, strategy: tf.distribute.Strategy, trace: Callable[[], tf.Graph]) -> tf.Graph | None:
        """Returns what `trace` does; None, and forgets, if it is another graph on any worker. A collective.

        Args:
          trace: Traces the step by what is known of it.
        """
        graph = None
        try:
            graph = trace()
        except Exception as error:  # the user's code; the step itself shows what is wrong
            logger.info("a step could not be traced by what is known of it: %s", error)
        if self._step is not None and _checksums(strategy, graph) == [*self._step.graphs]:
            return graph
        self._step = None
        return None

    def set(self, strategy: tf.distribute.Strategy, graph: tf.Graph, rule: LossRule, **found: Any) -> None:
        """Takes what was found and traced: a collective.

        Args:
          found: `names` and `sums` of `KnownStep`.
        """
        graphs = _checksums(strategy, graph)
        self._step = KnownStep(rule=rule.value, replicas=_replicas(strategy), graphs=graphs, **found)


def _replicas(strategy: tf.distribute.Strategy) -> list[int]:
    num_workers = 1 if collectives.is_alone(strategy) else tf_private.num_workers_of(strategy)
    return [strategy.num_replicas_in_sync, num_workers, *worker_shares.of(strategy)]


def _checksums(strategy: tf.distribute.Strategy, graph: tf.Graph | None) -> list[int]:
    """Returns those of all workers' graphs, 0 for None. A collective."""
    own = 0 if graph is None else tf_private.checksum_of(graph)
    if collectives.is_alone(strategy):
        return [own]
    return [checksum for [checksum] in collectives.gather_over_workers(strategy, [own])]
