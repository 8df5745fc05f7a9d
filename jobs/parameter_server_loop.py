"""Parameter server training written by hand: `ClusterCoordinator.schedule` and `join`, text, a sharded table.

raydist submit jobs/parameter_server_loop.py
raydist submit jobs/parameter_server_loop.py --workers 3 --ps 2 --partitioner min_size:65536
raydist submit jobs/parameter_server_loop.py -p data_dir=/data

Sentiment of film reviews: IMDb where imdb.py finds it, else generated reviews. `ctx.fit` and
`ctx.train_steps` do all of this for you under parameter_server; this job shows what is inside.
"""

from __future__ import annotations

import tensorflow as tf
from imdb import load_reviews

import raydist

LENGTH = 200  # words of a review that count


@raydist.job(
    strategy="parameter_server",
    workers=2,
    ps=2,
    partitioner="min_size:8192",  # no shard is smaller, in bytes; sharded variables need tf_keras
    params={
        "epochs": 3,
        "steps_per_epoch": 100,
        "batch_size": 64,
        "vocabulary_size": 1000,
        "dimensions": 16,
        "data": "auto",
        "data_dir": "",
        "num_reviews": 6000,
    },
)
def train(ctx: raydist.TrainContext):
    params, strategy, coordinator = ctx.params, ctx.strategy, ctx.coordinator
    if coordinator is None:
        raise raydist.SpecError("this job needs a coordinator; give it --strategy parameter_server --ps 1")
    reviews = load_reviews(ctx, params)
    train_texts, test_texts = ([" ".join(words) for words in reviews[part][0]] for part in ("train", "test"))
    train_labels, test_labels = (tf.constant(reviews[part][1], tf.float32) for part in ("train", "test"))

    with strategy.scope():
        # In the scope, so that each worker gets the table of words.
        to_numbers = tf.keras.layers.TextVectorization(
            params["vocabulary_size"],
            ngrams=2,  # "not good" is a word too: the model averages over the words, and sees no order
            output_sequence_length=LENGTH,
        )
        to_numbers.adapt(train_texts)
        model = build_model(params["vocabulary_size"], params["dimensions"])
        optimizer = tf.keras.optimizers.Adagrad(0.03, initial_accumulator_value=0.0)
        optimizer.build(model.trainable_variables)
        accuracy = tf.keras.metrics.BinaryAccuracy(threshold=0.0)
    table = model.layers[0].embeddings
    shards = getattr(table, "variables", [table])  # of a sharded variable there is one on each ps

    def make_dataset(context):
        """Runs on each worker. Workers do not share the data: each one shuffles all of it by itself."""
        data = tf.data.Dataset.from_tensor_slices((train_texts, train_labels))
        data = data.shuffle(len(train_texts)).repeat().batch(params["batch_size"])
        return data.map(lambda texts, labels: (to_numbers(texts), labels)).prefetch(tf.data.AUTOTUNE)

    @tf.function
    def make_per_worker_dataset():
        return strategy.distribute_datasets_from_function(make_dataset)

    @tf.function
    def train_step(iterator):
        """Runs on one worker; reads the variables from the ps, and sends the gradients there."""

        def replica_fn(words, labels):
            with tf.GradientTape() as tape:
                logits = model(words, training=True)[:, 0]
                losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
                loss = tf.nn.compute_average_loss(losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(labels, logits)
            return loss

        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(coordinator.create_per_worker_dataset(make_per_worker_dataset))
    steps_per_epoch = params["steps_per_epoch"]
    first_step = ctx.restore(model=model, optimizer=optimizer) or 0
    for epoch in range(first_step // steps_per_epoch, params["epochs"]):
        accuracy.reset_state()
        # Queues the step and returns at once. A worker that is free takes it; if it dies, another one does.
        losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(steps_per_epoch)]
        coordinator.join()  # waits for the queue, and raises what a step has raised
        step = (epoch + 1) * steps_per_epoch
        # The chief evaluates by itself. With --evaluator and ctx.fit a task of its own does so meanwhile.
        logits = model(to_numbers(tf.constant(test_texts)))[:, 0]
        results = {
            "loss": sum(loss.fetch() for loss in losses) / steps_per_epoch,
            "accuracy": accuracy.result().numpy(),
            "test_accuracy": tf.reduce_mean(tf.cast((logits > 0) == (test_labels > 0), tf.float32)),
            "updates": optimizer.iterations,
            "shards_of_the_table": len(shards),
        }
        ctx.report(results, step=step)
        ctx.save(step=step, model=model, optimizer=optimizer)


def build_model(vocabulary_size, dimensions):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((LENGTH,), dtype="int64"),
            layers.Embedding(vocabulary_size, dimensions, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
