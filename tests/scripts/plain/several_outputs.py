# check: workers=mirrored,2,3 keras=legacy,3,3 kill=30
"""Routes tickets: several inputs and outputs, weights of losses, of samples and of classes."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(5)
num_tags, num_words, num_departments, rows = 6, 50, 4, 300
rng = np.random.default_rng(1)
title = rng.integers(1, num_words, size=(rows, 8))
body = rng.integers(1, num_words, size=(rows, 20))
tags = rng.integers(2, size=(rows, num_tags)).astype("float32")
priority = rng.random(size=(rows, 1)).astype("float32")
department = rng.integers(num_departments, size=(rows,))

title_input = keras.Input(shape=(8,), dtype="int32", name="title")
body_input = keras.Input(shape=(20,), dtype="int32", name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.GlobalAveragePooling1D()(layers.Embedding(num_words, 8)(title_input))
body_features = layers.GlobalMaxPooling1D()(layers.Embedding(num_words, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model(
    [title_input, body_input, tags_input], {"priority": priority_pred, "department": department_pred}
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-2),
    loss={
        "priority": keras.losses.MeanSquaredError(),
        "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"], "priority": ["mae"]},
)
inputs = {"title": title, "body": body, "tags": tags}
targets = {"priority": priority, "department": department}
weights = {"priority": 0.5 + priority[:, 0], "department": np.where(department == 2, 3.0, 1.0)}
history = model.fit(inputs, targets, sample_weight=weights, epochs=2, batch_size=32, validation_split=0.1)
for name in sorted(history.history):
    print(name, history.history[name])
results = model.evaluate(inputs, targets, batch_size=50, return_dict=True)
print(sorted(results.items()))
predictions = model.predict(inputs)
print(predictions["priority"][:3], predictions["department"].argmax(axis=1)[:20])

imbalanced = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1, activation="sigmoid")])
imbalanced.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
rare = (tags.sum(axis=1) > 4).astype("float32")
neg, pos = np.bincount(rare.astype(int))
class_weight = {0: rows / (2.0 * neg), 1: rows / (2.0 * pos)}
print(f"Weight for class 1: {class_weight[1]:.2f}")
imbalanced.fit(tags, rare, class_weight=class_weight, epochs=3, batch_size=64, verbose=2)
print(imbalanced.evaluate(tags, rare, verbose=0))
