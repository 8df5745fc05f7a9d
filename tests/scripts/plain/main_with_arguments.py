#!/usr/bin/env python
# check: workers=3,2 keras=legacy,3
"""A program as people lay one out: main, argparse, modules of its own, folders of output, an exit code."""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
from own_project import build_model
from own_project.settings import DEFAULTS

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s")
logger = logging.getLogger("train")


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=DEFAULTS["epochs"])
    parser.add_argument("--batch-size", type=int, default=DEFAULTS["batch_size"])
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--output", default="outputs")
    return parser.parse_args()


def load_data():
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), y


def main():
    args = parse_args()
    import tensorflow as tf

    tf.keras.utils.set_random_seed(0)
    here = Path(__file__).resolve().parent
    logger.info("script %s with %s", Path(__file__).name, vars(args))
    output = here / args.output / "run_1"
    output.mkdir(parents=True, exist_ok=True)
    os.chdir(output)

    x, y = load_data()
    model = build_model(x.shape[1], 3)
    model.compile(tf.keras.optimizers.Adam(args.lr), "sparse_categorical_crossentropy", metrics=["acc"])
    history = model.fit(
        *(x, y),
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_split=0.2,
        verbose=2,
        callbacks=[tf.keras.callbacks.ModelCheckpoint("best.keras", monitor="val_acc", save_best_only=True)],
    )
    with open("history.json", "w") as file:
        json.dump({name: [float(one) for one in values] for name, values in history.history.items()}, file)
    with open("config.json", "w") as file:
        json.dump(vars(args), file, indent=2)
    model.save("model.keras")
    logger.info("wrote %s", sorted(os.listdir(".")))
    logger.info("accuracy %.4f", model.evaluate(x, y, verbose=0)[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
