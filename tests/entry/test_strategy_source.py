"""What a job's source says of strategies, and of loops of its own: the file is read, and not run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from raydist.entry.definition import define_from_object, read_job
from raydist.entry.own_source import Part, own_modules
from raydist.spec.job import SourceFacts

ROOT = Path(__file__).parents[2]

FIT = "import keras\nmodel = keras.Sequential([keras.layers.Dense(1)])\nmodel.fit(x, y)\n"
LOOP = "with tf.GradientTape() as tape:\n    loss = f(x)\n"
UPDATE = "optimizer.apply_gradients(zip(tape.gradient(loss, w), w))\n"


def read(folder: Path, source: str, **modules: str) -> SourceFacts:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "main.py").write_text(source)
    return read_job("main.py", cwd=folder).source


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n", "line 2, uses tf.distribute"),
        ("from tensorflow import distribute\n" + FIT, "line 1, uses tensorflow.distribute"),
        ("import horovod.tensorflow.keras as hvd\n" + FIT, "line 1, uses horovod.tensorflow.keras"),
        (FIT + "import os\nprint(os.environ.get('TF_CONFIG'))\n", "line 5, uses TF_CONFIG"),
        ("import raydist\nctx = raydist.context()\nctx.strategy.scope()\n", "line 3, uses ctx.strategy"),
        ("import raydist as r\nscope = r.context().strategy.scope()\n", "line 2, uses r.context().strategy"),
        ("t = tensorflow\nt.compat.v1.distribute.get_strategy()\n", "line 2, uses t.compat.v1.distribute"),
        ("import raydist\ndata = raydist.context().distribute(data)\n" + FIT, None),
        ("args = parse()\nprint(args.strategy)\n" + FIT, None),
        (FIT, None),
        ("import raydist\nctx = raydist.context()\n" + FIT, None),
        ("from sklearn.impute import SimpleImputer\nSimpleImputer(strategy='mean')\n" + FIT, None),
        ("from torch.distributed import init\n" + FIT, None),
    ],
    ids=str,
)
def test_source_that_has_to_do_with_strategies_is_told_with_its_line(
    source: str, use: str | None, tmp_path: Path
) -> None:
    assert read(tmp_path, source).strategy_use == (use and f"main.py, {use}")


def test_modules_of_raydist_are_not_the_jobs_in_a_checkout_either() -> None:
    job = Part("job.py", ast.parse("import raydist, raydist.outcome.result, tests.spec.importable_jobs"))
    own = own_modules([job], file=None, roots=[ROOT])
    assert [one.shown for one in own] == ["tests/spec/importable_jobs.py"]


def test_own_modules_of_a_script_are_read_too(tmp_path: Path) -> None:
    definition = read(
        tmp_path,
        "from models import build\nbuild().fit(x, y)\n",
        models="import tensorflow as tf\nfrom loops import step\ntf.distribute.get_strategy().scope()\n",
        loops=f"def step(x):\n    {LOOP.replace(chr(10), chr(10) + '    ')}{UPDATE}",
    )
    assert definition.strategy_use == "models.py, line 3, uses tf.distribute"
    assert definition.own_loop == "loops.py, line 4"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (LOOP + UPDATE, 3),
        (LOOP + "w.assign_sub(0.1 * tape.gradient(loss, w))\n", 3),
        (
            "class Base: ...\nclass Trainer(Base, ABC):\n def step(self, x):\n"
            "  with tf.GradientTape() as tape: pass\n  " + UPDATE,
            5,
        ),
        # Grad-CAM looks at gradients, and a model's own train_step runs in fit.
        (LOOP + "heat = tape.gradient(loss, layer.output)\n", None),
        ("class M(keras.Model):\n def train_step(self, x):\n  tape = tf.GradientTape()\n  " + UPDATE, None),
        ("table.apply(f)\n" + FIT, None),
        (LOOP + "grads = tape.gradient(loss, w)\nfor v, g in zip(w, grads):\n v.assign_sub(g)\n", 5),
        (LOOP + "heat = tape.gradient(loss, w)\ncount.assign_add(1)\n", None),
        ("from tensorflow import GradientTape as T\nwith T() as tape: pass\n" + UPDATE, 3),
        (LOOP + "def step(opt):\n self.optimizer.apply(gradients)\n", 4),
        (LOOP + "from scipy import optimize\noptimize.minimize(f, 0)\n", None),
        (
            "def look():\n with tf.GradientTape() as tape: pass\nstep = tf.Variable(0)\nstep.assign_add(1)",
            None,
        ),
    ],
    ids=str,
)
def test_loop_of_its_own_is_told_with_the_line_of_its_update(
    source: str, line: int | None, tmp_path: Path
) -> None:
    assert read(tmp_path, f"{source}\nrun()\n").own_loop == (line and f"main.py, line {line}")


def test_functions_are_read_as_files_are(tmp_path: Path) -> None:
    job = "import raydist\n@raydist.job\ndef train(ctx):\n    with ctx.strategy.scope(): pass\n"
    assert read(tmp_path, job).strategy_use == "main.py, line 4, uses ctx.strategy"

    def train(ctx: Any) -> None:
        ctx.strategy.scope()

    known = define_from_object(train, pickle=lambda one: b"")
    assert (known.source.strategy_use or "").endswith("uses ctx.strategy")
    unread: dict[str, object] = {}
    exec("def train(ctx): ...", unread)
    unknown = define_from_object(unread["train"], pickle=lambda one: b"")
    assert unknown.source.strategy_use == "the job has no source that could be read"
