"""Input data: sources, one global order of their examples, and each worker's part of it as `tf.data`.

    source = raydist.data.from_parquet("s3://bucket/train", features=["a", "b"], label="y")
    ctx.fit(model, source.batches(global_batch_size=1024, seed=7).map(augment), epochs=3)

Importing it loads neither TensorFlow nor Ray.
"""

from raydist.data.arrays import from_arrays
from raydist.data.batches import Batches
from raydist.data.parquet import from_parquet
from raydist.data.source import Source

__all__ = ["Batches", "Source", "from_arrays", "from_parquet"]
