"""Which strategy fits the devices of a host, chosen by hand; and memory growth and soft placement.

raydist submit jobs/device_choice.py --strategy auto
raydist submit jobs/device_choice.py --devices 2
raydist plan jobs/device_choice.py --strategy auto

Before a task starts, raydist chooses by the same rules (`--strategy auto`), and its plan says why. The
job chooses once more, by hand, from the devices that TensorFlow sees, and compares.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(params={"data_dir": ""})
def train(ctx: raydist.TrainContext):
    devices = {
        kind: [one.name for one in tf.config.list_logical_devices(kind)] for kind in ("TPU", "GPU", "CPU")
    }
    chosen, on_devices = choose(tpus=devices["TPU"], gpus=devices["GPU"], cpus=devices["CPU"])
    # A program without raydist would continue with `strategy = chosen(on_devices)`, or for one device
    # `chosen(on_devices[0])`; for a TPU see tpu.py.
    strategy = ctx.strategy
    ctx.note(f"device_choice: {chosen.__name__} on {', '.join(on_devices)}")

    (images, labels), _ = load_images(ctx)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input(images.shape[1:]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
        )
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = model.fit(images[:256], labels[:256], batch_size=64, verbose=0).history["loss"][-1]

    growing = [allow_growth(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    ctx.report(
        {
            "num_replicas": strategy.num_replicas_in_sync,
            "num_devices": len(on_devices),
            "agrees_with_raydist": isinstance(strategy, chosen),
            "gpus_with_memory_growth": sum(growing),
            "soft_placement_runs": runs_on_missing_gpu(soft=True),
            "strict_placement_runs": runs_on_missing_gpu(soft=False),
            "loss": loss,
        },
        step=1,
    )


def choose(*, tpus, gpus, cpus):
    """Returns the class of the strategy that fits one host, and the devices that it takes, by their names.

    A TPU comes first, then GPUs. CPUs come last: a host has one, unless it was split (`--devices`).
    """
    if tpus:
        return tf.distribute.TPUStrategy, tpus
    devices = gpus or cpus
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy, devices
    return tf.distribute.OneDeviceStrategy, devices


def allow_growth(gpu):
    """Makes TensorFlow take a GPU's memory as it needs it; returns whether it does so."""
    try:
        tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:  # the GPU is in use: it has to be set before the first operation
        print(f"memory growth of {gpu.name} stays as it is: {error}")
    # raydist sets TF_FORCE_GPU_ALLOW_GROWTH before it imports TensorFlow.
    return bool(tf.config.experimental.get_memory_growth(gpu))


def runs_on_missing_gpu(*, soft):
    """Whether an operation that is placed on a GPU that does not exist runs: soft placement moves it."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(soft)
    try:
        with tf.device("/gpu:99"):
            print(f"soft placement {soft}: the sum is made on {tf.reduce_sum(tf.ones([4])).device}")
    except (tf.errors.InvalidArgumentError, RuntimeError) as error:
        print(f"soft placement {soft}: {type(error).__name__}")
        return False
    finally:
        tf.config.set_soft_device_placement(before)
    return True
