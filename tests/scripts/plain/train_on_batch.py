# check: workers=mirrored,2,3 keras=legacy,3,legacy kill=3lines
"""Loops over batches by hand: train_on_batch, test_on_batch, predict_on_batch."""

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import MinMaxScaler
from tensorflow.keras.layers import Dense
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import Adam
from tensorflow.keras.utils import set_random_seed

set_random_seed(4)
x, y = load_breast_cancer(return_X_y=True)
x = MinMaxScaler().fit_transform(x)
x_train, y_train, x_test, y_test = x[:400], y[:400], x[400:], y[400:]

model = Sequential()
model.add(Dense(16, input_dim=30, activation="relu"))
model.add(Dense(1, activation="sigmoid"))
model.compile(loss="binary_crossentropy", optimizer=Adam(0.01), metrics=["accuracy"])
print(model.metrics_names)

batch_size = 32
steps = []
for epoch in range(3):
    order = np.random.permutation(len(x_train))
    losses = []
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        loss, accuracy = model.train_on_batch(x_train[rows], y_train[rows])
        losses.append(float(loss))
    test_loss, test_accuracy = model.test_on_batch(x_test, y_test)
    print(f"epoch {epoch}: loss {np.mean(losses):.5f} test {test_loss:.5f} accuracy {test_accuracy:.4f}")
    steps.append(losses)
np.savetxt("losses.txt", np.array(steps))
print(model.predict_on_batch(x_test[:5]).ravel())
print(model.evaluate(x_test, y_test, verbose=0))
model.save("cancer.keras")
