"""What to do about messages of TensorFlow that are right, and that do not say it."""

from __future__ import annotations

_ADVICE = {
    "for loss reduction when losses are used with `tf.distribute.Strategy`": (
        "Make the loss with reduction='none' and divide the sum by the global batch size, as "
        "tf.nn.compute_average_loss(losses, global_batch_size=...) does: gradients are summed over replicas."
    ),
    "Shape mismatch in the collective instance": (
        "The workers reduce or gather tensors of different shapes, such as a loss per example of batches "
        "of different sizes: reduce them to scalars first, or give every worker batches of one size "
        "(drop_remainder=True); ctx.fit and ctx.train_steps cut global batches themselves."
    ),
    "Collective ops must be configured at program startup": (
        "Build MultiWorkerMirroredStrategy() before the first tensor, variable, dataset or model; before "
        "tf.config.list_logical_devices(); tf.config.list_physical_devices() may come first."
    ),
    # TensorFlow has not brought it along since 2.21. raydist's extra `tensorflow` does not either, because
    # only programs that write summaries themselves need it.
    "TensorBoard is not installed, missing implementation for tf.summary": (
        "Install it on each host: `pip install 'raydist[tensorboard]'`; or leave out tf.summary and Keras's "
        "TensorBoard callback: raydist writes its metrics for TensorBoard without them."
    ),
}


def with_advice(message: str) -> str:
    """Returns an error's message, with a sentence of what to do where there is one."""
    found = [advice for text, advice in _ADVICE.items() if text in message]
    return "\n".join([message.rstrip(), *found]) if found else message
