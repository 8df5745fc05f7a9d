"""What TensorFlow's guide "Multi-worker training with Keras" does, with its parts on saving."""

import json
import os
import tempfile

import mnist_setup
import tensorflow as tf

per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
multi_worker_dataset = mnist_setup.mnist_dataset().repeat().batch(global_batch_size)

with strategy.scope():
    multi_worker_model = mnist_setup.build_and_compile_cnn_model()

history = multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=8, verbose=2)
print(f"Final loss: {history.history['loss'][-1]}, Accuracy: {history.history['accuracy'][-1]}")

# All workers save, for what they share; only the chief's files stay.
model_path = os.path.join(tempfile.gettempdir(), "keras-model")


def _is_chief(task_type, task_id):
    return (task_type == "worker" and task_id == 0) or task_type is None


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, f"workertemp_{task_id}")
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id):
    dirpath = os.path.dirname(filepath)
    if not _is_chief(task_type, task_id):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, os.path.basename(filepath))


task_type, task_id = (strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id)
write_model_path = write_filepath(model_path, task_type, task_id)
multi_worker_model.save(write_model_path)
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))

checkpoint_dir = os.path.join(tempfile.gettempdir(), "ckpt")
checkpoint = tf.train.Checkpoint(model=multi_worker_model)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
checkpoint_manager.save()
if not _is_chief(task_type, task_id):
    tf.io.gfile.rmtree(write_checkpoint_dir)
checkpoint.restore(tf.train.latest_checkpoint(checkpoint_dir))
multi_worker_model.fit(multi_worker_dataset, epochs=1, steps_per_epoch=4, verbose=2)

# BackupAndRestore, at each epoch and every few steps.
for options in ({}, {"save_freq": 5}):
    backup_dir = os.path.join(tempfile.gettempdir(), "backup")
    callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=backup_dir, **options)]
    with strategy.scope():
        multi_worker_model = mnist_setup.build_and_compile_cnn_model()
    multi_worker_model.fit(multi_worker_dataset, epochs=2, steps_per_epoch=8, callbacks=callbacks, verbose=2)

# Other tasks have temporary folders of their own.
if _is_chief(task_type, task_id):
    loaded_model = tf.keras.models.load_model(model_path)
    loaded_model.fit(multi_worker_dataset, epochs=1, steps_per_epoch=2, verbose=2)
