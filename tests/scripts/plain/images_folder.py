# check: workers=2,3 keras=legacy,3 rtol=1e-4 kill=25
"""Classifies images of a folder, as the image tutorials do; the images are written first."""

import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf.keras.utils.set_random_seed(7)

digits = load_digits(n_class=3)
for number, (image, label) in enumerate(zip(digits.images, digits.target)):
    os.makedirs(f"data/digit_{label}", exist_ok=True)
    pixels = tf.constant((image * 15.9).astype("uint8")[..., None])
    tf.io.write_file(f"data/digit_{label}/{number:04d}.png", tf.io.encode_png(pixels))

options = dict(validation_split=0.2, seed=123, image_size=(16, 16), batch_size=32)
train_ds = tf.keras.utils.image_dataset_from_directory("data", subset="training", **options)
val_ds = tf.keras.utils.image_dataset_from_directory("data", subset="validation", **options)
class_names = train_ds.class_names
print(class_names)
for images, labels in train_ds.take(1):
    print(images.shape, labels.shape, float(tf.reduce_max(images)))

AUTOTUNE = tf.data.AUTOTUNE
train_ds = train_ds.cache().shuffle(100, seed=1).prefetch(buffer_size=AUTOTUNE)
val_ds = val_ds.cache().prefetch(buffer_size=AUTOTUNE)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Rescaling(1.0 / 255, input_shape=(16, 16, 3)),
        tf.keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(len(class_names)),
    ]
)
model.compile(
    optimizer="adam",
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(train_ds, validation_data=val_ds, epochs=3)
print("accuracy", history.history["accuracy"], "val_accuracy", history.history["val_accuracy"])

image = tf.keras.utils.load_img("data/digit_0/0000.png", target_size=(16, 16))
batch = tf.expand_dims(tf.keras.utils.img_to_array(image), 0)
score = tf.nn.softmax(model.predict(batch)[0])
print(f"This is most likely {class_names[np.argmax(score)]}, {100 * np.max(score):.2f} percent.")
model.save("digits.keras")
