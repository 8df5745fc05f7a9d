"""What TensorBoard shows of a model where the job asks for it: histograms of its weights, and its layers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from raydist.training import tf_private
from raydist.training.reporting.reporter import Reporter

# The shard of a variable that parameter_server has cut.
_PART = re.compile(r"/part_[0-9]+(?=[:/]|$)")


def fit_begins(model: Any, reporter: Reporter) -> None:
    """Writes the layers of the first model that a `fit` trains. Runs nothing of the model."""
    if not reporter.wants_graph():
        return
    graph = graph_of(model)
    if graph is None:
        reporter.note(
            f"tensorboard_graph: model {model.name} is neither Sequential nor functional, or has a layer "
            "without a get_config, so Keras has no graph of its layers, and TensorBoard shows none"
        )
    reporter.graph(graph)


def epoch_ended(model: Any, reporter: Reporter, *, epoch: int, step: int) -> None:
    """Writes histograms of the weights after `epoch` epochs and `step` steps, if they are due.

    Every task of the training calls it: reading a variable that is synchronized on read (tf_keras's moving
    statistics) is a collective. What needs no collective is read by the chief alone.
    """
    if not reporter.wants_histograms(epoch):
        return
    weights: dict[str, np.ndarray] = {}
    for name, parts in _weights_of(model).items():
        if reporter.is_chief or tf_private.is_synchronized_on_read(parts[0]):
            arrays = [np.asarray(part.read_value()) for part in parts]
            if reporter.is_chief:
                weights[name] = np.concatenate([one.astype(np.float64).ravel() for one in arrays])
    reporter.histograms(weights, step=step)


def graph_of(model: Any) -> str | None:
    """Returns a model's layers for TensorBoard's graph page: Keras's JSON; None where it has none."""
    try:
        config = json.loads(model.to_json())
    except (NotImplementedError, TypeError, ValueError):
        return None
    if "layers" not in config.get("config", {}):
        return None
    _write_inbound_nodes_as_keras_3(config)
    return json.dumps(config)


def _write_inbound_nodes_as_keras_3(layer: dict[str, Any]) -> None:
    """Has the layers name their inputs as Keras 3 does: TensorBoard leaves those of tf_keras out."""
    for inner in layer.get("config", {}).get("layers", ()):
        _write_inbound_nodes_as_keras_3(inner)
        nodes = inner.get("inbound_nodes") or []
        if nodes and all(isinstance(node, list) for node in nodes):
            inner["inbound_nodes"] = [
                {"args": [[{"config": {"keras_history": history}} for history in _histories(node)]]}
                for node in nodes
            ]


def _histories(node: Any) -> Iterator[list[Any]]:
    """Yields [layer, node, tensor] of each input that a node of tf_keras has, however deep."""
    match node:
        case [str(), int(), int(), *_]:
            yield node[:3]
            yield from _histories(node[3:])  # what else the layer was called with
        case list():
            for one in node:
                yield from _histories(one)
        case dict():
            for one in node.values():
                yield from _histories(one)


def _weights_of(model: Any) -> dict[str, list[Any]]:
    """Returns the variables of each weight that is a number, by the name that Keras gives it."""
    found: dict[str, list[Any]] = {}
    for layer in model.layers:
        for position, weight in enumerate(layer.weights):
            parts = tf_private.parts_of(weight)
            if not parts or not parts[0].dtype.is_floating:
                continue  # a counter, a seed, or a table
            name = str(getattr(weight, "path", None) or weight.name)
            stem = _PART.sub("", name).replace(":", "_")
            if stem == name.replace(":", "_") and stem in found:
                stem = f"{stem}_{position}"  # of another layer with that name
            found.setdefault(stem, []).extend(parts)
    return found
