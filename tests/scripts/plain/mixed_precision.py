# check: workers=2 keras=3,legacy rtol=5e-2 kill=30
"""Mixed precision of both kinds, with the policy set for all layers."""

import numpy as np
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.keras import layers, mixed_precision

digits = load_digits()
x = (digits.images / 16.0)[..., None].astype("float32")[:640]
y = digits.target[:640]

for policy in ("mixed_float16", "mixed_bfloat16"):
    keras.utils.set_random_seed(1)
    mixed_precision.set_global_policy(policy)
    inputs = keras.Input(shape=(8, 8, 1))
    h = layers.Conv2D(8, 3, activation="relu")(inputs)
    h = layers.Flatten()(h)
    h = layers.Dense(32, activation="relu")(h)
    outputs = layers.Dense(10, activation="softmax", dtype="float32")(h)
    model = keras.Model(inputs, outputs)
    optimizer = keras.optimizers.Adam(2e-3, epsilon=1e-3)  # or noise of tiny gradients would grow
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=64, epochs=3, shuffle=False, validation_split=0.2, verbose=0)
    print("loss", *history.history["loss"])
    print("validation", *history.history["val_loss"])
    first = model.layers[1]
    print(
        "compute",
        int(first.compute_dtype == policy.removeprefix("mixed_")),
        int(first.kernel.dtype == "float32"),
    )
    print("scaled", int(type(model.optimizer).__name__ == "LossScaleOptimizer"))
    model.save(f"{policy}.keras")
    again = keras.models.load_model(f"{policy}.keras")
    same = np.abs(again.predict(x[:5], verbose=0) - model.predict(x[:5], verbose=0)).max()
    print("same", float(same))
