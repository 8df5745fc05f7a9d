"""Every bad input of which the answer needs neither Ray nor TensorFlow: one sentence, no traceback."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run

Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        pytest.param(["jbo.py"], ["there is no job file jbo.py", "job.py"], id="missing-file"),
        pytest.param(["empty.py"], ["empty.py has no job", "@raydist.job"], id="no-job"),
        pytest.param(["two.py"], ["2 jobs", "two.py:train or two.py:other"], id="two-jobs"),
        pytest.param(["broken.py"], ["broken.py, line 6", "fix the syntax error"], id="syntax-error"),
        pytest.param(
            ["job.py", "--", "--epochs", "2"],
            ["args are '--epochs 2', but job.py:train is a job", "(epochs", "-p KEY=VALUE"],
            id="arguments-of-a-job",
        ),
        pytest.param(["job.py", "--run-on", "all"], ["run_on is all", "is a job"], id="run-on-of-a-job"),
        pytest.param(["script.py", "--epochs", "2"], ["--epochs", "after --"], id="option-of-the-script"),
        pytest.param(["job.py:trane"], ["no function 'trane'", "train"], id="unknown-function"),
        pytest.param(
            ["job.py", "-p", "epoch=2"], ["params.epoch", "did you mean epochs?"], id="unknown-param"
        ),
        pytest.param(["job.py", "-p", "epochs=two"], ["params.epochs is 'two'", "3"], id="ill-typed-param"),
        pytest.param(["job.py", "-p", "epochs"], ["no value", "-p KEY=VALUE"], id="param-without-value"),
        pytest.param(["job.py", "-p", "=3"], ["no key", "-p KEY=VALUE"], id="param-without-key"),
        pytest.param(["job.py", "-p"], ["'-p'", "`raydist submit --help`"], id="param-without-anything"),
        pytest.param(
            ["job.py", "--workers"], ["'--workers'", "`raydist submit --help`"], id="option-without-value"
        ),
        pytest.param(
            ["job.py", "--address", "host:99999"], ["'host:99999'", "HOST:PORT"], id="port-of-the-address"
        ),
        pytest.param(["async.py"], ["async.py, line 2", "async", "define it with def"], id="async"),
        pytest.param(["bare.py"], ["bare.py, line 2: train takes no", "ctx"], id="without-the-context"),
        pytest.param(
            ["dangling.py"], ["dangling.py is a link to", "does not exist; give"], id="dangling-link"
        ),
        pytest.param(["pipe.py"], ["pipe.py is not a regular file"], id="pipe"),
        pytest.param(["job.py", "--workers", "0"], ["workers is 0", "at least 1"], id="no-workers"),
        pytest.param(["job.py", "--workers", "-1"], ["workers is -1", "at least 1"], id="negative-workers"),
        pytest.param(["job.py", "--workers", "4:2"], ["workers is 4:2", "2:4"], id="min-above-max"),
        pytest.param(["job.py", "--ps", "-1"], ["ps is -1", "at least 0"], id="negative-ps"),
        pytest.param(["job.py", "--ps", "10001"], ["ps is 10001", "at most 10000"], id="many-ps"),
        pytest.param(
            ["job.py", "--strategy", "parameter_server", "--workers", "2"],
            ["ps is 0", "needs at least 1: --ps 1"],
            id="no-ps",
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--workers", "0"], ["workers is 0", "at least 1"], id="ps-no-workers"
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--workers", "4:2"], ["workers is 4:2", "2:4"], id="ps-min-above-max"
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--strategy", "multi_worker_mirrored"],
            ["ps is 1", "has no parameter servers", "--strategy parameter_server"],
            id="ps-of-another-strategy",
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--devices", "2"],
            ["devices is 2", "parameter_server has one CPU replica per worker", "drop --devices"],
            id="devices-under-ps",
        ),
        pytest.param(
            ["job.py", "--workers", "1", "--evaluator"],
            ["one_device has no evaluator task", "--no-evaluator"],
            id="evaluator-on-one-device",
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--keras", "3", "--partitioner", "fixed_shards:2"],
            ["Keras 3 has no sharded variables", "--keras legacy, or --partitioner none"],
            id="keras-3-with-partitioner",
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--partitioner", "min_sise:9"],
            ["min_sise", "did you mean min_size?"],
            id="unknown-partitioner",
        ),
        pytest.param(
            ["job.py", "--ps", "1", "--partitioner", "max_shards:0"],
            ["partitioner is max_shards:0", "at least 1"],
            id="no-shards",
        ),
        pytest.param(
            ["job.py", "-c", "shards.yaml", "--ps", "1"],
            ["shards.yaml, line 1: partitioner is {'min_size': 9}", "write min_size:BYTES"],
            id="partitioner-as-a-mapping",
        ),
        pytest.param(["job.py", "--strategy", "mirored"], ["did you mean mirrored?"], id="unknown-strategy"),
        pytest.param(
            ["job.py", "--strategy", "mirrored", "--workers", "2"],
            ["workers is 2", "mirrored runs on one host"],
            id="workers-of-one-host",
        ),
        pytest.param(["job.py", "-c", "no.yaml"], ["cannot read the config no.yaml"], id="missing-config"),
        pytest.param(
            ["job.py", "-c", "typo.yaml"],
            ["typo.yaml, line 2", "'wokers'", "did you mean workers"],
            id="unknown-key",
        ),
        pytest.param(["job.py", "--name", "a/b"], ["name is 'a/b'"], id="name-with-slash"),
        pytest.param(["job.py", "--name", ".."], ["name is '..'"], id="name-with-dots"),
        pytest.param(["job.py", "--name", "n" * 101], ["101 characters"], id="long-name"),
        pytest.param(["job.py", "--ports", "9-8"], ["ports is 9-8", "LOW-HIGH"], id="ports"),
        pytest.param(["job.py", "--resume"], ["--name RUN"], id="resume-without-name"),
        pytest.param(["--resume", "job.py"], ["--name RUN"], id="resume-before-the-job"),
        pytest.param(["job.py", "--resume", "auto"], ["--name RUN"], id="resume-auto-without-name"),
        pytest.param(["job.py", "--resume=never"], ["resume is 'never'", "auto"], id="resume-word"),
        pytest.param(
            ["job.py", "--resume", "--name", "gone"], ["no run named 'gone'"], id="resume-of-nothing"
        ),
        pytest.param(
            ["job.py", "--detach"],
            ["embedded Ray ends with this process", "`raydist up`"],
            id="detach-without-ray",
        ),
        pytest.param(["job.py", "--working-dir", "nowhere"], ["there is no such folder"], id="working-dir"),
    ],
)
def test_mistake_is_exit_2_and_one_sentence(
    raydist: Run, job_file: Write, arguments: list[str], sentences: list[str], tmp_path: Path
) -> None:
    decorator = '@raydist.job(params={"epochs": 3})'
    job_file(decorator, top="import tensorflow_that_does_not_exist")
    job_file("", name="empty.py")
    (tmp_path / "script.py").write_text("print('trains')\n")
    job_file(name="two.py", more="\n\n@raydist.job\ndef other(ctx):\n    pass\n")
    job_file(name="broken.py", more="\nreturn (\n").write_text("\n\n\nimport raydist\n\ndef train(ctx:\n")
    (tmp_path / "async.py").write_text("import raydist\n@raydist.job(workers=2)\nasync def train(ctx): ...\n")
    (tmp_path / "bare.py").write_text("import raydist\n@raydist.job\ndef train(): ...\n")
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "typo.yaml").write_text("address: local\nwokers: 2\n")
    (tmp_path / "shards.yaml").write_text("partitioner: {min_size: 9}\n")

    has_address = "-c" in arguments or "--address" in arguments
    code, out, err = raydist("submit", *([] if has_address else ["--address", "local"]), *arguments)

    assert (code, out) == (2, "")
    assert err.startswith("raydist: ")
    assert err.count("\n") == 1
    for sentence in sentences:
        assert sentence in err


def test_name_that_exists_is_refused_without_resume(
    raydist: Run, job_file: Write, stored_run: dict[str, object]
) -> None:
    code, _, err = raydist("submit", str(job_file()), "--name", "digits-1", "--address", "local")
    assert code == 2
    assert "--resume" in err


@pytest.mark.parametrize("command", ["submit", "plan"])
@pytest.mark.parametrize(
    ("arguments", "sentences"),
    [
        pytest.param(["--cpus", "worker=9999"], ["9999 CPUs", "this machine"], id="cpus"),
        pytest.param(["--gpus", "worker=64"], ["64 GPUs", "this machine"], id="gpus"),
        pytest.param(
            ["--ps", "2", "--cpus", "ps=9999"],
            ["1 chief (1 CPU)", "2 ps (9999 CPUs each)", "--cpus ps=N"],
            id="ps",
        ),
        pytest.param(["--strategy", "tpu"], ["no TPU", "TPU_NAME"], id="tpu"),
    ],
)
def test_what_can_never_fit_is_exit_3(
    raydist: Run, job_file: Write, command: str, arguments: list[str], sentences: list[str]
) -> None:
    code, out, err = raydist(command, str(job_file()), "--address", "local", "--json", *arguments)
    assert code == 3
    error = json.loads(out)["error"]
    assert error["type"] == "ClusterError"
    for sentence in sentences:
        assert sentence in error["message"]
        assert sentence in err


def test_ray_address_that_is_none_is_exit_2(
    raydist: Run, job_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "garbage")
    code, out, err = raydist("submit", str(job_file()))
    assert (code, out) == (2, "")
    assert err == "raydist: RAY_ADDRESS is 'garbage'; write local, auto, HOST:PORT or ray://HOST:PORT\n"


def test_address_that_does_not_answer_is_exit_3(raydist: Run, job_file: Write) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        code, _, err = raydist("submit", str(job_file()), "--address", address)
    assert code == 3
    assert f"no Ray answers at {address}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "storage",
    ["file", "/proc/runs", "ftp://host/runs", "s3:/bucket"],
    ids=["file", "no-disk", "scheme", "slashes"],
)
def test_storage_that_cannot_be_written_is_exit_4(
    raydist: Run, job_file: Write, tmp_path: Path, storage: str
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = raydist("submit", str(job_file()), "--storage", storage, "--address", "local", "--json")
    assert code == 4
    assert json.loads(out)["error"]["type"] == "StorageError"
    assert err.count("\n") == 1


def test_failed_start_leaves_no_run_folder(raydist: Run, job_file: Write, tmp_path: Path) -> None:
    raydist("submit", str(job_file()), "--address", "local", "--cpus", "worker=9999")
    raydist("submit", str(job_file()), "--address", "127.0.0.1:1")
    assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("predict nobody data -o out", "nobody"),
        ("predict numbers nowhere -o out", "there is no such file, or folder with files"),
        ("predict numbers job.py -o out", "tell no format; give --format"),
        ("export numbers --to onx", "--to names 'onx'; did you mean onnx?"),
        ("export numbers --to ,", "--to names ','; write one of saved_model, onnx"),
        ("export empty --to keras", "run empty has no exported model"),
    ],
)
def test_mistake_about_an_export_is_told_before_ray_is_asked(
    raydist: Run, job_file: Write, tmp_path: Path, arguments: str, sentence: str
) -> None:
    job_file()
    exported = tmp_path / "raydist_runs/numbers/export/saved_model/saved_model.pb"
    exported.parent.mkdir(parents=True)
    exported.touch()
    for run in ("numbers", "empty"):
        (tmp_path / "raydist_runs" / run).mkdir(exist_ok=True)
        (tmp_path / "raydist_runs" / run / "run.json").write_text("{}")
    address = ["--address", "127.0.0.1:1"] if "predict" in arguments else []
    code, out, err = raydist(*arguments.split(), *address)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
