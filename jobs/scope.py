"""What belongs inside of `strategy.scope()`, and what happens to what is made outside.

raydist submit jobs/scope.py
raydist submit jobs/scope.py --strategy mirrored --devices 2
raydist submit jobs/scope.py --strategy parameter_server --workers 2 --ps 1

Inside: whatever creates variables, that is models, optimizers, metrics, random generators and `tf.Variable`.
Outside: datasets, step functions, `fit`. They find the strategy by the variables, or are given it.
`raydist metrics RUN` has the chief's values, `raydist metrics RUN --local` those of the other workers.
"""

from __future__ import annotations

import tensorflow as tf

import raydist


@raydist.job(workers=2)
def train(ctx: raydist.TrainContext):
    strategy = ctx.strategy
    with strategy.scope():
        inside = new_variable()
        inside_model = new_model()
    outside = new_variable()
    outside_model = new_model()

    @tf.function
    def step():
        """Adds 1 in the first replica, 2 in the second, and so on."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        amount = tf.cast(replica, tf.float32) + 1.0
        inside.assign_add(amount)  # aggregated: every copy gets the sum over all replicas
        outside.assign_add(amount)  # not aggregated, and no other worker hears of it

    if ctx.coordinator is None:
        strategy.run(step)
    else:  # one worker runs it; the outside variable stays in the chief, where no worker can reach it
        ctx.coordinator.schedule(tf.function(lambda: inside.assign_add(1.0)))
        ctx.coordinator.join()

    for place, variable, model in (("inside", inside, inside_model), ("outside", outside, outside_model)):
        copies = strategy.experimental_local_results(variable)
        print(
            f"{ctx.task}: {place}, {type(variable).__name__} on {', '.join(copy.device for copy in copies)}"
        )
        print(f"{ctx.task}: {place}, the model's strategy is {type(strategy_of(model)).__name__}")
    ctx.report(
        {
            "inside_copies": len(strategy.experimental_local_results(inside)),
            "inside_value": inside.numpy(),
            "inside_model_is_distributed": strategy_of(inside_model) is strategy,
            "outside_copies": len(strategy.experimental_local_results(outside)),
            "outside_value": outside.numpy(),
            "outside_model_is_distributed": strategy_of(outside_model) is strategy,
            "mixing_is_refused": is_refused(strategy, outside_model),
        },
        step=1,
    )


def new_variable():
    return tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


def new_model():
    return tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])


def strategy_of(model):
    """Returns the strategy that `model.fit` would train under: that of the model's variables."""
    return model.distribute_strategy


def is_refused(strategy, outside_model):
    """Whether an optimizer made inside refuses the variables of a model made outside."""
    with strategy.scope():
        optimizer = tf.keras.optimizers.Adam()
    try:
        optimizer.build(outside_model.trainable_variables)
    except (RuntimeError, ValueError) as error:
        print(f"the optimizer says: {error}")
        return True
    return False
