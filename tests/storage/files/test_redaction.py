"""Secrets are taken out, and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from raydist.spec.tasks import TaskId, TaskType
from raydist.storage.files.redaction import is_secret_key, redact, redact_text
from raydist.storage.plain_json import dump_plain_json


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


@pytest.mark.parametrize(
    ("key", "expected"),
    [("api_key", True), ("PASSWORD", True), ("hf_access_token", True), ("max_tokens", False), ("key", False)],
)
def test_is_secret_key(key: str, expected: bool) -> None:
    assert is_secret_key(key) is expected


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
    ],
)
def test_arguments_are_kept_without_their_secrets(args: list[str], expected: list[str]) -> None:
    assert json.loads(dump_plain_json({"spec": {"args": tuple(args)}})) == {"spec": {"args": expected}}
