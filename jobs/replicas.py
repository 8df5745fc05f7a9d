"""What a replica is: each one has a copy of the model and a part of each batch; variables stay in step.

raydist submit jobs/replicas.py
raydist submit jobs/replicas.py --strategy mirrored --devices 4 -p batch_size=8

`raydist logs RUN --task worker/1` shows what a worker has printed.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(workers=2, params={"batch_size": 6, "data_dir": ""})
def train(ctx: raydist.TrainContext):
    strategy, batch_size = ctx.strategy, ctx.params["batch_size"]
    (images, labels), _ = load_images(ctx)

    # 1. A replica is one copy of the computation, on one device. Workers add up: 2 workers with 4 GPUs
    #    each make 8 replicas.
    print(
        f"{ctx.task} has {len(strategy.extended.worker_devices)} of {strategy.num_replicas_in_sync} replicas"
    )

    # 2. A distributed dataset cuts each global batch into one batch per replica.
    data = tf.data.Dataset.from_tensor_slices((images, labels)).take(batch_size).batch(batch_size)
    images_by_replica, labels_by_replica = next(iter(strategy.experimental_distribute_dataset(data)))
    for part in strategy.experimental_local_results(labels_by_replica):
        print(f"{ctx.task}: a replica has {len(part)} of {batch_size} images, of the digits {part.numpy()}")

    # 3. A variable made in the scope has a copy on each replica. What replicas assign to it is aggregated,
    #    here added up, so that the copies are always equal.
    with strategy.scope():
        num_seen = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.SUM)

    def on_each_replica(images, labels):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        num_seen.assign_add(tf.size(labels, out_type=tf.int64))
        return replica, tf.reduce_sum(images), labels

    replica_ids, brightness, labels_seen = strategy.run(
        on_each_replica, (images_by_replica, labels_by_replica)
    )

    # 4. `run` returns a PerReplica value: one tensor for each replica of this task, each with its own value.
    print(f"{ctx.task}: replicas {replica_ids} have the brightness {brightness}")

    # 5. `reduce` makes one value of those of all replicas; `gather` puts them one after another.
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, brightness, axis=None)
    gathered = strategy.gather(labels_seen, axis=0)
    copies = [int(copy) for copy in strategy.experimental_local_results(num_seen)]
    print(f"{ctx.task}: the copies of num_seen are {copies}, the digits of all replicas {gathered.numpy()}")

    local_labels = [part.numpy() for part in strategy.experimental_local_results(labels_seen)]
    ctx.report(
        {
            "num_replicas": strategy.num_replicas_in_sync,
            "images_here": sum(map(len, local_labels)),
            "images_of_largest_replica": max(map(len, local_labels)),
            "num_seen": min(copies),
            "num_seen_spread": max(copies) - min(copies),
            "brightness": total,
            "digits_sum": tf.reduce_sum(gathered),
        },
        step=1,
    )
