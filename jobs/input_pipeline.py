"""What each worker reads: the auto-shard policies of tf.data, and sharding by hand.

raydist submit jobs/input_pipeline.py
raydist submit jobs/input_pipeline.py --workers 3 -p files=6
raydist logs RUN --task worker/1

OFF: each worker reads everything, so each example is trained on once per worker.
DATA: each worker reads everything and keeps its part of each batch.
FILE: each worker reads every Nth file; there have to be at least as many files as workers.
by hand: `distribute_datasets_from_function` leaves it to the function, which knows its pipeline's number.
`ctx.fit` and `raydist.data` shard by themselves; `--auto-shard` is their choice of policy.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tensorflow as tf
from mnist_images import load_images

import raydist

POLICIES = ("off", "data", "file")


@raydist.job(workers=2, params={"files": 4, "examples": 240, "batch_size": 24, "data_dir": ""})
def train(ctx: raydist.TrainContext):
    strategy, batch_size, num_examples = ctx.strategy, ctx.params["batch_size"], ctx.params["examples"]
    (_, labels), _ = load_images(ctx)
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), labels[:num_examples], num_files=ctx.params["files"])
        pipelines = {}
        for name in POLICIES:
            options = tf.data.Options()
            policy = tf.data.experimental.AutoShardPolicy[name.upper()]
            options.experimental_distribute.auto_shard_policy = policy
            data = examples_of(files).batch(batch_size).with_options(options)
            # Takes global batches, and gives each of this worker's replicas its part of them.
            pipelines[name] = strategy.experimental_distribute_dataset(data)

        def by_hand(context):
            """Is called once in each worker; batches for one replica."""
            shard = examples_of(files).shard(context.num_input_pipelines, context.input_pipeline_id)
            return shard.batch(context.get_per_replica_batch_size(batch_size))

        pipelines["by_hand"] = strategy.distribute_datasets_from_function(by_hand)
        results = {}
        for name, pipeline in pipelines.items():
            results |= what_was_seen(ctx, name, pipeline, num_examples)
        ctx.report(results, step=1)


def what_was_seen(ctx, name, pipeline, num_examples):
    @tf.function
    def count(batch):
        """Returns how often each example is in a batch, over all replicas and over those of this worker."""
        own = ctx.strategy.run(
            lambda numbers, _: tf.math.bincount(numbers, minlength=num_examples), args=batch
        )
        everywhere = ctx.strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)
        return everywhere, tf.add_n(ctx.strategy.experimental_local_results(own))

    everywhere = here = tf.zeros(num_examples, tf.int32)
    for batch in pipeline:
        counts = count(batch)
        everywhere, here = everywhere + counts[0], here + counts[1]
    seen = tf.where(here > 0)[:, 0].numpy()
    print(f"{ctx.task}: {name} has {len(seen)} of {num_examples} examples here: {seen[:12]}...")
    return {
        f"{name}/examples_here": len(seen),
        f"{name}/sum_of_numbers_here": seen.sum(),
        f"{name}/seen_at_least": tf.reduce_min(everywhere),
        f"{name}/seen_at_most": tf.reduce_max(everywhere),
    }


def write_files(folder, labels, *, num_files):
    """Writes lines of `number label`, an equal part of the examples to each file."""
    files = [str(folder / f"{number:03}.txt") for number in range(num_files)]
    for number, file in enumerate(files):
        first, end = (len(labels) * part // num_files for part in (number, number + 1))
        Path(file).write_text("".join(f"{index} {labels[index]}\n" for index in range(first, end)))
    return files


def examples_of(files):
    """Returns a dataset of (number, label), which reads one file after another."""

    def parse(line):
        number, label = tf.unstack(tf.strings.to_number(tf.strings.split(line), tf.int32), 2)
        return number, label

    # Auto-sharding by file finds the dataset of file names.
    return tf.data.Dataset.from_tensor_slices(files).flat_map(tf.data.TextLineDataset).map(parse)
