# check: workers=2 keras=3,legacy rtol=1e-4 libraries=yes
"""Curves and a confusion matrix by matplotlib, and a bar by tqdm."""

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine
from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix
from sklearn.preprocessing import scale
from tensorflow import keras
from tqdm import tqdm

keras.utils.set_random_seed(9)
x, y = load_wine(return_X_y=True)
x = scale(x)


class Bar(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.bar = tqdm(total=self.params["epochs"], desc="epochs")

    def on_epoch_end(self, epoch, logs=None):
        self.bar.update(1)
        self.bar.set_postfix(loss=logs["loss"])

    def on_train_end(self, logs=None):
        self.bar.close()


model = keras.Sequential(
    [
        keras.Input((13,)),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, epochs=4, validation_split=0.2, verbose=0, callbacks=[Bar()])
print("loss", *history.history["loss"])

plt.figure(figsize=(4, 3))
for name in ("loss", "val_loss"):
    plt.plot(history.history[name], label=name)
plt.legend()
plt.savefig("curves.png")
plt.show()
plt.close()

predicted = []
for start in tqdm(range(0, 160, 40)):
    predicted.append(int(model.predict(x[start : start + 40], verbose=0).argmax(axis=1).sum()))
print("predicted", *predicted)
matrix = confusion_matrix(y, model.predict(x, verbose=0).argmax(axis=1))
ConfusionMatrixDisplay(matrix).plot()
plt.savefig("confusion.pdf")
plt.show()
print("right", int(matrix.trace()))
