"""Secrets are taken out, and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from raydist.spec.secrecy import (
    Secrets,
    dump_plain_json,
    holds_redacted,
    redact,
    redact_arguments,
    redact_text,
)
from raydist.spec.tasks import TaskId, TaskType


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        pytest.param("/a/path?x=1", "/a/path?x=1", id="path"),
        pytest.param("s3://bucket/key", "s3://bucket/key", id="nothing_secret"),
        pytest.param("s3://key:sec/ret@bucket/k", "s3://***@bucket/k", id="slash_in_the_password"),
        pytest.param("hdfs://host:8020/a@b", "hdfs://host:8020/a@b", id="port_is_no_password"),
        pytest.param("s3://bucket/a:b@c", "s3://bucket/a:b@c", id="at_sign_in_the_key"),
        pytest.param("s3://key:secret@bucket/k", "s3://***@bucket/k", id="user_and_password"),
        pytest.param("s3://b/k?region=x&token=t", "s3://b/k?region=x&token=***", id="query"),
        pytest.param(
            "s3://b?endpoint_override=http://h:1", "s3://b?endpoint_override=http://h:1", id="endpoint"
        ),
        pytest.param(
            "s3://b?endpoint_override=u:p@h", "s3://b?endpoint_override=***", id="endpoint_with_user"
        ),
    ],
)
def test_redact(uri: str, expected: str) -> None:
    assert redact(uri) == expected


def test_redact_text_finds_the_uris_in_a_sentence() -> None:
    text = "reads 's3://a:b@c/d' and mail me@home and hdfs://u:p@nn:1/x?y=1."
    assert redact_text(text) == "reads 's3://***@c/d' and mail me@home and hdfs://***@nn:1/x?y=***"


def test_plain_json_is_strict_and_keeps_no_secret() -> None:
    value = {
        "loss": math.nan,
        "accuracy": np.float32(0.5),
        "steps": np.int64(7),
        "tasks": (TaskId(task_type=TaskType.PS, index=0),),
        "type": TaskType.CHIEF,
        "path": Path("/a"),
        "data": "s3://u:p@bucket/d",
        "params": {"api_key": "abc", "done": True, 3: None},
    }
    assert json.loads(dump_plain_json(value)) == {
        "loss": None,
        "accuracy": 0.5,
        "steps": 7,
        "tasks": ["ps/0"],
        "type": "chief",
        "path": "/a",
        "data": "s3://***@bucket/d",
        "params": {"api_key": "***", "done": True, "3": None},
    }


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--epochs", "3", "key"], ["--epochs", "3", "key"]),
        (["--api-key", "abc", "3"], ["--api-key", "***", "3"]),
        (["--api_key=abc", "--token=x=y"], ["--api_key=***", "--token=***"]),
        (["-password", "abc"], ["-password", "***"]),
        (["--token", "--epochs", "3"], ["--token", "--epochs", "3"]),
        (["s3://u:p@bucket/d"], ["s3://***@bucket/d"]),
        (
            ["-p", "api_key=abc", "-papi_key=x", "-p", "lr=1"],
            ["-p", "api_key=***", "-papi_key=***", "-p", "lr=1"],
        ),
        (["-p", "db={user: u, 'password': p}", "a={b: 1}"], ["-p", "db=***", "a={b: 1}"]),
        (["model.api_key=abc", "model.layers=3"], ["model.api_key=***", "model.layers=3"]),
        (['{"api_key": "abc"}', "{a: 1}"], ["***", "{a: 1}"]),
        (["--env", "PGPASSWORD=abc", "--env", "A=b"], ["--env", "PGPASSWORD=***", "--env", "A=b"]),
        (["--env=SENTRY_DSN=abc", "--env=A=b"], ["--env=SENTRY_DSN=***", "--env=A=b"]),
        (["--env", "A=hf_abcdefghijklmnopqrstuvwx"], ["--env", "A=***"]),
        (["--runtime-env", "{env_vars: {DB_PASS: abc}}"], ["--runtime-env", "***"]),
        (["--runtime-env={env_vars: {DB_PASS: abc}}"], ["--runtime-env=***"]),
        (["-p", "sort={key: abc}", "-p", "key=abc"], ["-p", "sort={key: abc}", "-p", "key=abc"]),
    ],
)
def test_arguments_are_kept_without_their_secrets(args: list[str], expected: list[str]) -> None:
    assert json.loads(dump_plain_json({"spec": {"args": tuple(args)}})) == {"spec": {"args": expected}}


SECRETS = Secrets.of(
    {
        "params": {
            "api_key": "swordfish",
            "optimizer": {"passwords": ["inner-one", "inner-two"]},
            "pin": {"password": 12345},
            "data": "s3://KEYID:pass%2Fword@bucket/d?x=query-secret&region=eu-west-9",
            "epochs": 1000,
            "short": {"token": "ab"},
        },
        "args": ["--auth-key", "given-key", "db.password=hunter22", "--rate", "fine-text"],
    }
)


@pytest.mark.parametrize(
    "secret", *[["swordfish", "inner-one", "inner-two", "12345", "pass%2Fword", "pass/word"]]
)
def test_secret_is_hidden_in_any_text(secret: str) -> None:
    assert SECRETS.hide(f"no: {secret}!") == "no: ***!"


@pytest.mark.parametrize("secret", ["query-secret", "given-key", "hunter22"])
def test_secret_of_an_argument_or_a_query_is_hidden(secret: str) -> None:
    assert SECRETS.hide(secret) == "***"


@pytest.mark.parametrize("text", ["1000", "ab", "eu-west-9", "fine-text", "bucket", "--rate"])
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert SECRETS.hide(text) == text


def test_secrets_do_not_show_themselves() -> None:
    assert "swordfish" not in repr(SECRETS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("***", True), ("s3://***@bucket/d", True), ("s3://b?x=***", True), ({"a": ["***"]}, True)),
        *(("a *** b", True), ("**bold**", False), (3, False), ("s3://b/***", True)),
    ],
)
def test_value_that_was_redacted_is_known(value: object, expected: bool) -> None:
    assert holds_redacted(value) is expected


def test_arguments_that_hold_nothing_secret_stay() -> None:
    args = ["train.py", "-p", "epochs=3", "--storage", "s3://bucket/runs?region=x"]
    assert redact_arguments(args) == args


def test_secret_is_hidden_in_the_forms_that_others_write_it_in() -> None:
    secrets = Secrets.of({"password": "a\\b\nc d", "repository": "https://ghp-0123456789abcdef@host/x"})
    assert secrets.hide(str(KeyError("a\\b\nc d"))) == "'***'"
    assert secrets.hide("?p=a%5Cb%0Ac%20d") == "?p=***"
    assert secrets.hide("bad token ghp-0123456789abcdef") == "bad token ***"
    assert Secrets.of("hdfs://hadoop@namenode/x").hide("user hadoop") == "user hadoop"


def test_password_in_the_uri_of_a_secret_is_hidden_by_itself_too() -> None:
    secrets = Secrets.of({"secrets": ["postgres://me:swordfish@db/x"]})
    assert secrets.hide("FATAL: swordfish was refused for me") == "FATAL: *** was refused for me"
