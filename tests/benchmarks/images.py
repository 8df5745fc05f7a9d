"""Pictures, decoded and augmented: images/s of raydist.data, tf.data, torch's DataLoader and LitData.

    python -m tests.benchmarks.images [--rounds 3] [--images 8000] [--epochs 2] [--ways WAY ...]

JPEG files of 256 x 256 in ten classes, about 20 KB each, in shuffled batches of 64: each image is flipped at
random, cropped at random to 224 x 224, made brighter or darker, and scaled to floats. In turn, each in a
process of its own, with a warm page cache: raydist's from_images, which keeps the exactly-once order; tf.data
by hand, with AUTOTUNE, paths shuffled and decoding fused with the crop; the same without the
fusion; torch's DataLoader over ImageFolder, with two workers and torchvision's decoder and transforms;
LitData's StreamingDataLoader with two workers over the same JPEGs, packed by `optimize` before. The first
epoch is not counted. Prints images/s and the CPU time of an image, of all processes of a way (target: at
least 1.0 of the best).

torch, torchvision and litdata come from a temporary environment, or from that of the Python that
RAYDIST_BENCHMARK_RIVALS names. Where they cannot be installed, the reason is printed and they are left out.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Read by the Python that has torch and nothing of raydist: what it lacks is imported where it is used.
_BATCH, _SIDE, _CROP, _NUM_CLASSES = 64, 256, 224, 10
_BRIGHTNESS = 0.2
_NUM_WORKERS = 2
_CHECKOUT = Path(__file__).parents[2]
_RIVALS = "RAYDIST_BENCHMARK_RIVALS"


def write_images(folder: Path, num_images: int) -> None:
    """Writes mixtures of noise at several scales, which JPEG packs about as well as photographs."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    layers = [
        np.asarray(tf.image.resize(rng.normal(size=(side, side, 3)), (_SIDE, _SIDE), "bicubic")) * scale
        for side, scale in ((4, 50), (12, 30), (40, 18), (128, 9)) * 8
    ]
    for number in range(num_images):
        place = folder / f"class-{number % _NUM_CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        chosen = rng.integers(8, size=4) * 4 + np.arange(4)
        parts = [np.roll(layers[one], tuple(rng.integers(_SIDE, size=2)), (0, 1)) for one in chosen]
        picture = np.clip(128 + sum(parts), 0, 255).astype(np.uint8)
        tf.io.write_file(str(place / f"{number:05}.jpg"), tf.io.encode_jpeg(picture, quality=90))


def _brighter(tf: Any, image: Any) -> Any:
    change = tf.random.uniform([], -_BRIGHTNESS, _BRIGHTNESS)
    return tf.clip_by_value(tf.cast(image, tf.float32) / 255 + change, 0, 1)


def by_raydist(folder: Path, epochs: int) -> Iterator[int]:
    import tensorflow as tf

    from raydist import data

    def augment(images: Any, labels: Any) -> Any:
        def one(image: Any) -> Any:  # which stays in the processor's cache, as a batch does not
            cropped = tf.image.random_crop(image, (_CROP, _CROP, 3))
            return _brighter(tf, tf.image.random_flip_left_right(cropped))

        spec = tf.TensorSpec([_CROP, _CROP, 3])
        return tf.map_fn(one, images, fn_output_signature=spec), labels

    batches = data.from_images(folder).batches(global_batch_size=_BATCH, seed=1).map(augment)
    for _, labels in batches.for_epochs(epochs).dataset():
        yield len(labels)


def by_tf_data(folder: Path, epochs: int, *, is_fused: bool = True) -> Iterator[int]:
    import tensorflow as tf

    paths = sorted(str(path) for path in folder.glob("*/*"))
    labels = [int(path.rpartition("/")[0][-1]) for path in paths]

    def load(path: Any, label: Any) -> Any:
        content = tf.io.read_file(path)
        if is_fused:
            top, left = tf.unstack(tf.random.uniform([2], 0, _SIDE - _CROP + 1, tf.int32))
            image = tf.io.decode_and_crop_jpeg(content, [top, left, _CROP, _CROP], channels=3)
        else:
            image = tf.image.random_crop(tf.io.decode_jpeg(content, channels=3), (_CROP, _CROP, 3))
        return _brighter(tf, tf.image.random_flip_left_right(image)), label

    auto = tf.data.AUTOTUNE
    files = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat(epochs)
    loaded = files.map(load, num_parallel_calls=auto, deterministic=False)
    for _, labels in loaded.batch(_BATCH, num_parallel_calls=auto).prefetch(auto):
        yield len(labels)


def by_tf_data_unfused(folder: Path, epochs: int) -> Iterator[int]:
    return by_tf_data(folder, epochs, is_fused=False)


def _torch_transform() -> Any:
    import torch
    from torchvision.transforms import v2

    steps = [v2.RandomHorizontalFlip(), v2.RandomCrop(_CROP), v2.ColorJitter(brightness=_BRIGHTNESS)]
    return v2.Compose([*steps, v2.ToDtype(torch.float32, scale=True)])


def by_torch(folder: Path, epochs: int) -> Iterator[int]:
    import torch
    from torchvision import datasets, io

    files = datasets.ImageFolder(folder, _torch_transform(), loader=io.decode_image)
    options = {"batch_size": _BATCH, "shuffle": True, "num_workers": _NUM_WORKERS}
    loader = torch.utils.data.DataLoader(files, persistent_workers=True, **options)
    for _ in range(epochs):
        yield from (len(labels) for _, labels in loader)


def packed(path: str) -> tuple[bytes, int]:
    return Path(path).read_bytes(), int(path.rpartition("/")[0][-1])


def unpacked(augment: Callable[[Any], Any], sample: tuple[bytes, int]) -> tuple[Any, int]:
    import torch
    from torchvision import io

    content, label = sample
    return augment(io.decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8))), label


def by_litdata(folder: Path, epochs: int) -> Iterator[int]:
    import litdata

    chunks = folder.with_name("chunks")
    if not chunks.exists():
        paths = sorted(str(path) for path in folder.glob("*/*"))
        options = {"chunk_bytes": "64MB", "num_workers": _NUM_WORKERS}
        litdata.optimize(packed, paths, str(chunks), **options)

    transform = functools.partial(unpacked, _torch_transform())
    files = litdata.StreamingDataset(str(chunks), shuffle=True, transform=transform)
    options = {"batch_size": _BATCH, "shuffle": True, "num_workers": _NUM_WORKERS}
    loader = litdata.StreamingDataLoader(files, persistent_workers=True, **options)
    for _ in range(epochs):
        yield from (len(labels) for _, labels in loader)


WAYS: dict[str, Callable[[Path, int], Iterator[int]]] = {
    "raydist": by_raydist,
    "tf.data": by_tf_data,
    "tf.data, not fused": by_tf_data_unfused,
    "torch": by_torch,
    "LitData": by_litdata,
}
_OF_RIVALS = ("torch", "LitData")


def _cpu_s(pid: str = "self") -> float:
    """Returns the CPU time of a process and of its children that live."""
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    found = ticks / os.sysconf("SC_CLK_TCK")
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += sum(map(_cpu_s, path.read_text().split()))
    return found


def measure(way: str, folder: Path, num_images: int, epochs: int) -> None:
    """Prints images/s of all epochs but the first, and their CPU time."""
    count, marks = 0, []
    for size in WAYS[way](folder, epochs + 1):
        count += size
        # The last one while the processes of a way live.
        if len(marks) * num_images * epochs + num_images <= count:
            marks.append((count, time.perf_counter(), _cpu_s()))
    assert count == num_images * (epochs + 1), f"{way} gave {count} images"
    num_counted, took_s, cpu_s = (end - begin for begin, end in zip(*marks, strict=True))
    print(json.dumps({"rate": num_counted / took_s, "cpu_s": cpu_s / num_counted}))


def rivals(folder: Path) -> str | None:
    """Returns a Python that has torch and LitData; None, and a printed reason, where there can be none."""
    if python := os.environ.get(_RIVALS):
        return python
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", "torch", "torchvision", "litdata"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"without {' and '.join(_OF_RIVALS)}, which pip cannot install: {reason}")
        return None
    return python


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--child", nargs=2, metavar=("WAY", "FOLDER"))
    options = parser.parse_args()
    if options.child:
        return measure(options.child[0], Path(options.child[1]), options.images, options.epochs)
    from tests.benchmarks.figures.printing import figure

    found: dict[str, list[dict[str, float]]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory(prefix="rd-images-") as name:
        folder, other = Path(name) / "images", None
        if any(way in _OF_RIVALS for way in found):
            other = rivals(Path(name) / "rivals")
        if other is None:
            found = {way: values for way, values in found.items() if way not in _OF_RIVALS}
        write_images(folder, options.images)
        size = sum(path.stat().st_size for path in folder.glob("*/*")) / options.images
        print(f"{len(os.sched_getaffinity(0))} cores, {options.images} files of {size / 1000:.1f} KB")
        for _ in range(options.rounds):
            for way, values in found.items():
                python = other if way in _OF_RIVALS else sys.executable
                size = ["--images", str(options.images), "--epochs", str(options.epochs)]
                command = [str(python), __file__, "--child", way, str(folder), *size]
                env = {**os.environ, "PYTHONPATH": "" if python == other else str(_CHECKOUT)}
                done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
                values.append(json.loads(done.stdout.splitlines()[-1]))
                print(f"{way}: {values[-1]['rate']:.0f} images/s, {values[-1]['cpu_s'] * 1e3:.2f} ms of CPU")
    own = found["raydist"]
    for way in (way for way in found if way != "raydist"):
        key = way.replace(".", "_").replace(", ", "_").replace(" ", "_").lower()
        for part, what, unit in (("rate", "", "images/s"), ("cpu_s", "_cpu", "s of CPU an image")):
            theirs = [one[part] for one in found[way]]
            figure(f"{key}{what}", [one[part] for one in own], unit, against=(way, theirs))
    return None


if __name__ == "__main__":
    main()
