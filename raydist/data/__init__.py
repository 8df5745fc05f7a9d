"""Input data: sources, one global order of their examples, and each worker's part of it as `tf.data`.

    source = raydist.data.from_parquet("s3://bucket/train", features=["a", "b"], label="y")
    ctx.fit(model, source.batches(global_batch_size=1024, seed=7).map(augment), epochs=3)

Each name is loaded when it is first used: a task that reads no Parquet does not wait for its import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydist.data.batches import Batches as Batches
    from raydist.data.sources.arrays import from_arrays as from_arrays
    from raydist.data.sources.csv import from_csv as from_csv
    from raydist.data.sources.images import from_images as from_images
    from raydist.data.sources.mix import mix as mix
    from raydist.data.sources.parquet import from_parquet as from_parquet
    from raydist.data.sources.ray_blocks import from_ray_dataset as from_ray_dataset
    from raydist.data.sources.source import Source as Source
    from raydist.data.sources.tfrecord import from_tfrecord as from_tfrecord

_MODULES = {
    "Batches": "batches",
    "Source": "sources.source",
    "from_arrays": "sources.arrays",
    "from_csv": "sources.csv",
    "from_images": "sources.images",
    "from_parquet": "sources.parquet",
    "from_ray_dataset": "sources.ray_blocks",
    "from_tfrecord": "sources.tfrecord",
    "mix": "sources.mix",
}

# Type checkers read literals alone.
__all__ = [
    "Batches",
    "Source",
    "from_arrays",
    "from_csv",
    "from_images",
    "from_parquet",
    "from_ray_dataset",
    "from_tfrecord",
    "mix",
]

if not TYPE_CHECKING:  # else a type checker would believe in any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'raydist.data' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"raydist.data.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
