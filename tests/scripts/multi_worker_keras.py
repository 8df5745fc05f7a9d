"""As main.py of TensorFlow's guide "Multi-worker training with Keras".

Usage: multi_worker_keras.py OUT [BACKUP]
"""

import json
import os
import sys

import digits_setup
import tensorflow as tf

per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

tf.keras.utils.set_random_seed(7)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = digits_setup.digits_dataset(global_batch_size)

with strategy.scope():
    # Model building/compiling need to be within `strategy.scope()`.
    multi_worker_model = digits_setup.build_and_compile_cnn_model()

callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=path) for path in sys.argv[2:]]
history = multi_worker_model.fit(
    multi_worker_dataset, epochs=3, steps_per_epoch=14, callbacks=callbacks, verbose=2
)

task = tf_config["task"]
with open(os.path.join(sys.argv[1], f"{task['type']}-{task['index']}.json"), "w") as file:
    sums = [float(tf.reduce_sum(tf.abs(weight))) for weight in multi_worker_model.get_weights()]
    json.dump({"loss": history.history["loss"], "weights": sums}, file)
