"""What to look at if training is slow or odd: a profile, device placement, `tf.print`, gradients by replica.

raydist submit jobs/monitor.py
raydist submit jobs/monitor.py -p unscaled_replica=1
raydist logs RUN --task worker/1
raydist tensorboard RUN

The metrics have the norm of each replica's own gradient. Replicas that see data of one kind have about equal
norms. In the second command one replica sees pixels of 0..16 where the others see 0..1, as if one worker's
files were not normalized: its norm is far above theirs, which the loss alone does not show.
"""

from __future__ import annotations

import tempfile
from collections import Counter

import pyarrow.fs
import tensorflow as tf
from mnist_images import load_images

import raydist

PROFILED_STEPS = range(5, 9)  # the first steps trace and warm up


@raydist.job(
    workers=2,
    params={"steps": 40, "batch_size": 128, "learning_rate": 0.1, "unscaled_replica": -1, "data_dir": ""},
)
def train(ctx: raydist.TrainContext):
    params, strategy, batch_size = ctx.params, ctx.strategy, ctx.params["batch_size"]
    if params["steps"] < PROFILED_STEPS.stop:
        raise raydist.SpecError(f"param steps is {params['steps']}; give {PROFILED_STEPS.stop} or more")
    (images, labels), _ = load_images(ctx)
    data = tf.data.Dataset.from_tensor_slices((images.reshape(len(images), -1), labels)).repeat()
    iterator = iter(strategy.experimental_distribute_dataset(data.batch(batch_size)))
    with strategy.scope():
        weights = tf.Variable(tf.zeros([images[0].size, 10]), aggregation=tf.VariableAggregation.MEAN)

    def train_step(x, y, step):
        replica_context = tf.distribute.get_replica_context()
        replica = replica_context.replica_id_in_sync_group
        x = tf.where(replica == params["unscaled_replica"], x * 16.0, x)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ weights)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        own = tape.gradient(loss, weights)
        if step % 10 == 0:  # in the graph; print() would run once, while it is traced
            tf.print("step", step, "replica", replica, "loss of its part", tf.reduce_mean(losses))
        reduced = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, own)
        weights.assign_sub(params["learning_rate"] * reduced)
        return loss, tf.norm(own)[tf.newaxis]

    @tf.function
    def distributed_train_step(batch, step):
        loss, norms = strategy.run(train_step, args=(*batch, step))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None), strategy.gather(norms, axis=0)

    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, params["steps"] + 1):
            if step == PROFILED_STEPS.start:
                tf.profiler.experimental.start(folder)
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):  # a step, for TensorBoard
                batch = next(iterator)
                loss, norms = distributed_train_step(batch, tf.constant(step))
            if step == PROFILED_STEPS[-1]:
                tf.profiler.experimental.stop()
                keep_profile(ctx, folder)
            by_replica = {f"gradient_norm/replica_{index}": norm for index, norm in enumerate(norms.numpy())}
            imbalance = tf.reduce_max(norms) / tf.reduce_mean(norms)
            ctx.report({"loss": loss, "imbalance": imbalance, **by_replica}, step=step)
    log_placement(ctx, distributed_train_step.get_concrete_function(batch, tf.constant(step)))


def log_placement(ctx, function):
    """Prints how many operations of the traced step are for which device.

    `tf.debugging.set_log_device_placement(True)` logs each operation where it runs, but only in a program
    that calls it before TensorFlow's first operation. In a run that is the start of the strategy.
    """
    devices = Counter(operation.device for operation in function.graph.get_operations())
    for device, count in sorted(devices.items()):
        print(f"{ctx.task}: {count} operations on {device or 'the device that TensorFlow finds'}")


def keep_profile(ctx, folder):
    """Copies the profile of this task to the run's storage, where TensorBoard finds it."""
    traces = tf.io.gfile.glob(f"{folder}/plugins/profile/*/*.xplane.pb")
    ctx.report(
        {"trace_files": len(traces), "trace_bytes": sum(tf.io.gfile.stat(one).length for one in traces)}
    )
    storage, path = pyarrow.fs.FileSystem.from_uri(ctx.storage)
    target = f"{path}/tensorboard/{ctx.task.task_type.value}-{ctx.task.index}"
    storage.create_dir(target)
    pyarrow.fs.copy_files(folder, target, destination_filesystem=storage)
