# check: workers=mirrored,2 keras=3,legacy kill=25
"""Tells good reviews from bad ones: TextVectorization and an Embedding."""

import random
import re
import string

import tensorflow as tf
from tensorflow.keras import layers, losses

random.seed(0)
tf.keras.utils.set_random_seed(0)

good = "good great lovely wonderful funny touching clever".split()
bad = "bad awful boring dull stupid slow predictable".split()
filler = "the a film movie plot actor was is and it with music scene of".split()


def review(label):
    words = random.choices(filler, k=random.randint(5, 20)) + random.choices(good if label else bad, k=2)
    random.shuffle(words)
    return " ".join(words).capitalize() + "!<br />"


labels = [random.randint(0, 1) for _ in range(400)]
texts = [review(label) for label in labels]
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts[:320], labels[:320])).shuffle(320, seed=1).batch(32)
raw_test_ds = tf.data.Dataset.from_tensor_slices((texts[320:], labels[320:])).batch(32)


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, "[%s]" % re.escape(string.punctuation), "")


vectorize_layer = layers.TextVectorization(
    standardize=custom_standardization, max_tokens=100, output_mode="int", output_sequence_length=25
)
vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))
print("Vocabulary:", vectorize_layer.get_vocabulary()[:10])


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(tf.data.AUTOTUNE)
test_ds = raw_test_ds.map(vectorize_text).cache().prefetch(tf.data.AUTOTUNE)

model = tf.keras.Sequential(
    [layers.Embedding(101, 16), layers.GlobalAveragePooling1D(), layers.Dense(1, activation="sigmoid")]
)
model.compile(
    loss=losses.BinaryCrossentropy(),
    optimizer=tf.keras.optimizers.Adam(0.01),
    metrics=[tf.metrics.BinaryAccuracy(threshold=0.5)],
)
history = model.fit(train_ds, validation_data=test_ds, epochs=4)
loss, accuracy = model.evaluate(test_ds)
print("Loss: ", loss)
print("Accuracy: ", accuracy)

export_model = tf.keras.Sequential([vectorize_layer, model])
export_model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
print(export_model.evaluate(raw_test_ds))
print(export_model.predict(tf.constant([["The movie was great!"], ["The movie was boring..."]])))
