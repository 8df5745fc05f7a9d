"""The `ray.data.Dataset`s that a run is given: checked, sent along, and cut into a share for each worker.

Ray is imported inside the functions that need it: a driver that gives no dataset, or something else in
place of one, does not pay for Ray Data's import.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from raydist.errors import SpecError

Datasets = Mapping[str, Any]


def check_datasets(datasets: object) -> dict[str, Any]:
    """Returns the datasets by name, none for None; raises SpecError for anything but `ray.data.Dataset`s."""
    if datasets is None:
        return {}
    if not isinstance(datasets, Mapping):
        raise SpecError(
            f"datasets is {type(datasets).__name__}; give a dict of names and datasets, such as "
            '{"train": ray.data.read_parquet(...)}'
        )
    # No process can have one without that module.
    data: Any = sys.modules.get("ray.data")
    for name, dataset in datasets.items():
        if not isinstance(name, str):
            raise SpecError(f"datasets has the name {name!r}; give a string")
        if data is None or not isinstance(dataset, data.Dataset):
            kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}".removeprefix("builtins.")
            raise SpecError(
                f"datasets[{name!r}] is {kind}; give a ray.data.Dataset, such as ray.data.read_parquet(...)"
            )
    return dict(datasets)


def check_resumed(run: str, datasets: Datasets, *, before: Sequence[str]) -> None:
    """Raises SpecError when a resumed run lacks datasets that it had: only their names are kept."""
    missing = [name for name in before if name not in datasets]
    if missing:
        given = ", ".join(f'"{name}": ...' for name in before)
        raise SpecError(
            f"run {run} was given datasets ({', '.join(before)}), which are kept nowhere, and "
            f"{', '.join(missing)} is missing; continue it in Python with "
            f'raydist.run(job, name="{run}", resume=True, datasets={{{given}}})'
        )


def serialize(datasets: Datasets) -> dict[str, bytes]:
    """Returns what each dataset is made of, without its data, for a process that outlives this one.

    Raises SpecError for one whose data are objects of this process, which end with it.
    """
    for name, dataset in datasets.items():
        if not dataset.has_serializable_lineage():
            raise SpecError(
                f"datasets[{name!r}] holds data that end with this process (from_items, from_numpy, "
                "materialize, union, zip), and detach is asked; write them with "
                "dataset.write_parquet(...) and give ray.data.read_parquet(...)"
            )
    return {name: dataset.serialize_lineage() for name, dataset in datasets.items()}


def deserialize(serialized: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the datasets that `serialize` was given; raises SpecError where that needs what is not here."""
    if not serialized:
        return {}
    import ray.data

    datasets = {}
    for name, lineage in serialized.items():
        try:
            datasets[name] = ray.data.Dataset.deserialize_lineage(lineage)
        except Exception as error:  # unpickling a user's functions may raise anything
            raise SpecError(
                f"datasets[{name!r}] cannot be read by the run's controller in the cluster: {error}; define "
                "its functions in the submitting script, or install their module on the head"
            ) from error
    return datasets


class DatasetSplits:
    """The streams of one attempt: a dataset is read once per epoch, and cut among the workers as it comes."""

    def __init__(self, splits: Mapping[str, Sequence[Any]]) -> None:
        self._splits = splits

    @classmethod
    def start(cls, datasets: Datasets, *, node_ids: Sequence[str]) -> DatasetSplits:
        """Starts each dataset's coordinator, an actor of Ray Data's without CPUs.

        Args:
          node_ids: Where each worker is. Blocks go to a worker of the node that has them, where that is even.
        """
        return cls(
            {
                name: dataset.streaming_split(len(node_ids), equal=True, locality_hints=list(node_ids))
                for name, dataset in datasets.items()
            }
        )

    def share_of(self, worker: int) -> dict[str, Any]:
        """Returns the `ray.data.DataIterator` of a worker for each dataset; all have equally many rows."""
        shares = {name: shares[worker] for name, shares in self._splits.items()}
        for share in shares.values():
            share.schema = functools.partial(_schema_of_tensors, share)  # `to_tf` asks this iterator's
        return shares

    def stop(self) -> None:
        """Ends the coordinators, and with them what they still read. Idempotent."""
        from raydist.runtime.cluster import ray_internals

        splits, self._splits = self._splits, {}
        for shares in splits.values():
            ray_internals.kill_split_coordinator(shares[0])


def _schema_of_tensors(share: Any) -> Any:
    """Returns the schema of a `DataIterator`, whose lists of either kind are those that Ray's `to_tf` knows.

    It knows `list`, of any lengths, and tensor columns.
    """
    import pyarrow as pa
    from ray.data import Schema
    from ray.data.extensions import ArrowTensorType

    schema = type(share).schema(share)
    if schema is None or not isinstance(schema.base_schema, pa.Schema):
        return schema

    def known(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_fixed_size_list(kind):
            return ArrowTensorType((kind.list_size,), kind.value_type)
        return pa.list_(kind.value_type) if pa.types.is_large_list(kind) else kind

    return Schema(pa.schema([one.with_type(known(one.type)) for one in schema.base_schema]))
