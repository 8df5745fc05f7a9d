"""TrainContext: what a train function is given. Imports neither ray nor tensorflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from raydist.spec.tasks import TaskId


def context() -> TrainContext | None:
    """Returns the context of the task that calls it; None outside of a run.

    For scripts, which get none as an argument, and for code that is called by a train function. In a script
    `context().strategy` is the one that the script has built; where it has built none, raydist builds that
    of the run.

    Example:
        if (ctx := raydist.context()) is not None:
            ctx.report({"loss": loss}, step=step)
    """
    return _Current.context


def set_context(current: TrainContext | None) -> None:
    """Makes it the one of this process; None at the end of the session."""
    _Current.context = current


class TrainContext(Protocol):
    """What a train function is given.

    Example:
        @raydist.job(workers=2, params={"epochs": 3})
        def train(ctx: raydist.TrainContext):
            with ctx.strategy.scope():
                model = build_model()
                model.compile("adam", loss="mse")
            ctx.fit(model, make_dataset, epochs=ctx.params["epochs"])

    Attributes:
      strategy: The `tf.distribute.Strategy` of this run, already built.
      coordinator: The `ClusterCoordinator` under ParameterServer; None under every other strategy.
      params: The job's params, each with its final value.
      task: This task.
      is_chief: Whether this task writes checkpoints and summaries. False in an evaluator, where
        TensorFlow's own `is_chief` is true.
      num_workers: Tasks of type worker as the attempt begins.
      attempt: 0 for the first attempt of the run, one more after each failure.
      run_name: The run's name.
      storage: URI of the run's folder.
      step: Steps that the run has completed, those before a restart included.
    """

    strategy: Any
    coordinator: Any
    params: Mapping[str, Any]
    task: TaskId
    is_chief: bool
    num_workers: int
    attempt: int
    run_name: str
    storage: str

    @property
    def step(self) -> int:
        """Steps that the run has completed, those before a restart included.

        Example:
            if ctx.step >= 1000:
                ctx.save(step=ctx.step, model=model)
        """
        ...

    @property
    def output_dir(self) -> Path:
        """A local folder of this task; what it writes there is kept with the run.

        It is stored about once a minute and when the task ends: the chief's files in `output/` of the run's
        folder, those of another task in a place of its own such as `output/worker-1/`. In a new attempt it
        holds what the attempts before have stored.

        Example:
            ctx.fit(model, data, epochs=3, callbacks=[CSVLogger(ctx.output_dir / "log.csv", append=True)])
            if ctx.is_chief:
                (ctx.output_dir / "labels.txt").write_text("cat dog")

        Raises:
          StorageError: What is stored there cannot be read.
        """
        ...

    def fit(
        self,
        model: Any,
        train_data: Any,
        y: Any = None,
        *,
        epochs: int,
        batch_size: int | None = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        validation_data: Any = None,
        validation_split: float = 0.0,
        validation_batch_size: int | None = None,
        validation_steps: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        class_weight: Mapping[int, float] | None = None,
        accumulate: int = 1,
        callbacks: Sequence[Any] = (),
        verbose: int | str | None = None,
    ) -> Any:
        """Trains a compiled Keras 3 or tf_keras model and returns its `History`.

        Example:
            history = ctx.fit(model, make_dataset, epochs=3, validation_data=test_data)
            print(history.history["loss"])

        Reports, checkpoints, and continues from the last checkpoint. `train_data` is a
        `tf.data.Dataset` batched with the global batch size, a function without arguments that
        returns one, or a function of a `tf.distribute.InputContext` that shards for itself and
        batches per replica. As `model.fit` it also takes arrays, with labels in `y`, where `batch_size`
        is the global one; a `PyDataset`; and a generator, which needs `steps_per_epoch` if there
        is more than one epoch. A global batch that the replicas do not divide is weighted by each replica's
        number of examples. If `validation_data` are batches of raydist.data, each validation uses one epoch,
        regardless of their `epochs`. The other arguments are those of Keras's `fit`. Only the chief prints;
        `verbose=None` is a line for each epoch.

        Args:
          accumulate: Global batches that make one update of the weights, as one batch of that many times
            the size would; the last update of an epoch may have fewer. A step is an update: in
            `steps_per_epoch`, in checkpoints, for callbacks and for learning rate schedules.

        Raises:
          UnsupportedError: The model asks for something that cannot work under this strategy.
        """

    def evaluate(
        self,
        model: Any,
        data: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        verbose: int | str | None = None,
    ) -> dict[str, Any]:
        """Returns the loss and metrics of a compiled model over all of `data`, each example counted once.

        Example:
            print(ctx.evaluate(model, test_data)["loss"])

        Values are floats, or NumPy arrays of metrics that return one number for each class.

        Every task calls it. `data` are as `train_data` of `fit`; arrays are `(x, y)` or
        `(x, y, sample_weight)`, or `x` with `y` and `sample_weight` beside it, as Keras takes them. A
        `PyDataset` is read in order, and a generator until it ends. Under parameter_server `data` are arrays,
        batches of raydist.data, a `tf.data.Dataset`, or a function that returns one.

        Args:
          batch_size: Of arrays: examples of a global batch, 32 by default.
          steps: Global batches to take; None for all. More than there are evaluate each example once.

        Raises:
          UnsupportedError: The data are of another kind, or have labels already.
        """

    def predict(
        self, model: Any, data: Any, *, batch_size: int | None = None, steps: int | None = None
    ) -> Any:
        """Returns the model's outputs for all of `data`, in their order, as NumPy arrays; in every task.

        Example:
            labels = ctx.predict(model, images).argmax(axis=-1)

        Every task calls it. `data` are a `tf.data.Dataset` batched with the global batch size, a function
        without arguments that returns one, batches of raydist.data, or the model's inputs as arrays or
        tensors: one, or a list, tuple or dict of several.

        Args:
          batch_size: Of arrays: examples of a global batch, 32 by default.
          steps: Global batches to take; None for all.

        Raises:
          UnsupportedError: The data are of another kind, or have no rows.
        """

    def callbacks(self) -> list[Any]:
        """Returns Keras callbacks that report, checkpoint and restore.

        They are for train functions that call `model.fit` themselves. A `tf.data.Dataset` continues at the
        next batch after a restore; of other data see `raydist guide input-data`.

        Example:
            model.fit(dataset, epochs=3, callbacks=[*ctx.callbacks(), my_callback])
        """

    def dataset(self, name: str) -> Any:
        """Returns this worker's share of the `ray.data.Dataset` that the run was given by that name.

        Example:
            raydist.run(train, workers=2, datasets={"train": ray.data.read_parquet("s3://bucket/train")})

            data = ctx.dataset("train").to_tf("features", "label", batch_size=256)  # in train
            ctx.fit(model, data, epochs=3)

        It is Ray Data's `DataIterator`: `iter_tf_batches(...)`, `to_tf(...)`. Each worker gets other rows
        and equally many. All workers begin a pass together; a new attempt begins at the first row. `fit`
        takes `to_tf(..., batch_size=...)` with the global batch size.

        Raises:
          UnsupportedError: The run was given none by that name; or under parameter_server.
        """

    def distribute(self, dataset: Any, *, sharding: str = "dynamic") -> Any:
        """Returns `dataset`, a `tf.data.Dataset`, as the run's data workers make it (tf.data service).

        Example:
            dataset = tf.data.TFRecordDataset(files).map(decode)  # runs in the data workers
            ctx.fit(model, ctx.distribute(dataset).batch(256), epochs=3)

        What is done to it afterwards, such as batching, is done here, in the training tasks. The
        workers share the elements: each goes to one of them, whichever asks first, in no fixed order.
        Without data workers the dataset is returned as it is. Every worker calls it for the same
        datasets in the same order.

        Args:
          sharding: `dynamic` has each data worker make some of the elements: an epoch has each element
            once. If a data worker dies, the run starts a new attempt. The data have to come from files,
            tensors or a range. `off` has each data worker make all of them, for data that are
            shuffled and repeated. Then another one takes the place of a dead one.

        Raises:
          UnsupportedError: It is no `tf.data.Dataset`, such as batches of raydist.data; or it is repeated,
            and `sharding` is `dynamic`.
        """

    def train_steps(
        self,
        step_fn: Callable[[Any], Mapping[str, Any]],
        train_data: Any,
        *,
        num_steps: int,
        steps_per_call: int = 10,
    ) -> Mapping[str, float]:
        """Runs `step_fn(batch)` on each replica, `num_steps` times, `steps_per_call` in one `tf.function`.

        Example:
            def step_fn(batch):
                with tf.GradientTape() as tape:
                    losses = loss_of(model, batch)
                    loss = tf.nn.compute_average_loss(losses, global_batch_size=256)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
                return {"loss": tf.reduce_mean(losses)}

            ctx.restore(model=model, optimizer=optimizer)
            metrics = ctx.train_steps(step_fn, dataset, num_steps=1000)

        Gradients are summed over replicas where a loss divides by the global batch size, and averaged by the
        number of examples where it is a mean over the replica's own; before the first step a check finds out
        which, except under parameter_server. Of the numbers that `step_fn` returns, means over the examples
        are averaged over replicas (by their number of examples), sums are summed, and all are averaged over
        the steps of a call, and reported. Returns those of the last call. If the data end, they are read
        again from the beginning. `step_fn` is converted by AutoGraph, as `tf.function` does it.
        Checkpoints hold what `restore` was given before; what `step_fn` changes besides that is noted.
        A replica without examples runs `step_fn` on a padding example; its gradients count for nothing with
        a Keras optimizer.

        Raises:
          UnsupportedError: Batches of raydist.data end, by their `epochs`, before `num_steps` steps.
        """

    def report(self, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        """Reports values that hold after `step` steps; never waits for another task.

        Example:
            ctx.report({"test_accuracy": 0.93}, step=1000)

        Args:
          metrics: Numbers; an array is recorded element by element, as `name/0`, `name/1` and so on.
          step: Steps completed; when omitted, as many as this task has completed so far.

        Raises:
          UnsupportedError: A value is not a number.
        """

    def save(self, *, step: int, **trackables: Any) -> None:
        """Saves the given models, optimizers, random generators and variables as they are after `step` steps.

        Example:
            ctx.save(step=step, model=model, optimizer=optimizer)

        Every task calls it. It returns once they are copied; the chief commits the checkpoint while
        training continues, and waits for one that is still under way first.

        Raises:
          UnsupportedError: Nothing was given to save.
          StorageError: The checkpoint before this one could not be written.
        """

    def wants_save(self) -> bool:
        """Whether the run needs a checkpoint now: a host is about to go, or `--checkpoint-every 60s` is due.

        Example:
            if step % 1000 == 0 or ctx.wants_save():
                ctx.save(step=step, model=model, optimizer=optimizer)

        For loops of your own: `fit` and `train_steps` save by themselves. All workers call it at the same
        step, as they agree by a collective.
        """
        ...

    def restore(self, **trackables: Any) -> int | None:
        """Restores the newest whole checkpoint; returns its step, or None where there is none.

        Every task calls it: the workers compare what they found, and what they hold after it.

        Example:
            first_step = ctx.restore(model=model, optimizer=optimizer) or 0

        Raises:
          CheckpointError: The checkpoint does not fit what is given.
        """

    def global_batch_size(self, per_replica: int) -> int:
        """Returns `per_replica` times the number of replicas.

        Example:
            dataset = dataset.batch(ctx.global_batch_size(64))
        """

    def scale_learning_rate(
        self,
        base: float,
        *,
        base_batch_size: int,
        batch_size: int,
        rule: str = "linear",
        warmup_steps: int = 0,
    ) -> Any:
        """Returns the learning rate for global batches of `batch_size`; `base` was good for another size.

        The rate is added to the run's notes.

        Example:
            batch_size = ctx.global_batch_size(64)
            rate = ctx.scale_learning_rate(1e-3, base_batch_size=64, batch_size=batch_size)

        Args:
          rule: `linear` multiplies by `batch_size / base_batch_size` (arXiv 1706.02677), `sqrt` by its
            square root (arXiv 1404.5997).
          warmup_steps: 0 returns a float. More returns a learning rate schedule for an optimizer of the
            run's Keras: it begins with `base`, rises by as much each step, and stays at the scaled rate.

        Raises:
          UnsupportedError: A size is not above 0, the rule is unknown, or the warm-up negative.
        """

    def note(self, sentence: str) -> None:
        """Adds a sentence to the run's `notes`, which the user sees once.

        Example:
            ctx.note("trained on the digits, as CIFAR-10 cannot be downloaded")
        """


class _Current:
    context: TrainContext | None = None
