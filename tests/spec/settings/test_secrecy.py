"""What counts as a secret, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from raydist.spec.secrecy import (
    HEADERS,
    REDACTED,
    TOKENS,
    holds_redacted,
    holds_secret,
    is_secret_name,
    is_secret_variable,
    redact_text,
    without_secrets,
)

HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        *(("api_key", True), ("PASSWORD", True), ("hf_access_token", True), ("apiKey", True)),
        *(("db.pwd", True), ("client-secret", True), ("max_tokens", False)),
        *(("key", False), ("tokenizer", False), ("keyboard", False), ("tokenizer_path", False)),
    ],
)
def test_is_secret_name(key: str, expected: bool) -> None:
    assert is_secret_name(key) is expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(
            ("password", 12345, True),
            ("password", None, False),
            ("password", "", False),
            ("secret", True, False),
        ),
        *(("max_tokens", 512, False), ("pad_token", 0, False), ("token", "t", True)),
        *(
            ("api_keys", ["a"], True),
            ("special_tokens", ["<pad>"], False),
            ("credentials", {"user": "u"}, True),
        ),
    ],
)
def test_value_is_a_secret_by_its_name_and_type(key: str, value: object, expected: bool) -> None:
    assert holds_secret(key, value) is expected


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "PGPASSWORD",
        "DB_PASS",
        "PASSWORDS",
        "hfToken",
        "MYSQL_PWD",
        "AWS_SECRET_ACCESS_KEY",
        "SENTRY_DSN",
        *("DB_PW", "REDIS_AUTH", "DATABASE_URL", "SSHPASS", "PASSWORT", "AZURE_STORAGE_SAS", "SMTP_LOGIN"),
    ],
)
def test_variable_with_such_a_name_is_secret(name: str) -> None:
    assert is_secret_variable(name, "x")
    assert is_secret_variable(name.lower(), "x")


@pytest.mark.parametrize(
    "value",
    [
        *("hf_abcdefghijklmnopqrstuvwx", "ghp_0123456789abcdefghij01", "AKIAIOSFODNN7EXAMPLE", HEX),
        *(
            "postgres://me:hush@db/x",
            "https://h/hook?sig=abc",
            "Bearer abcdefgh1",
            "eyJhbGciOiJI.eyJzdWIiOiIx",
        ),
        "-----BEGIN RSA PRIVATE KEY-----\nabc",
        *(
            "glpat-abcdefghijklmnopqrst",
            "npm_abcdefghijklmnopqrstuvwxyz0123",
            "pypi-AgEIcHlwaS5vcmcCJDEyMzQ1",
        ),
        *("hvs.CAESIJabcdefghijklmnop", "sk_live_abcdefghijklmnopqrstuvwx", f"SK{HEX}", f"dapi{HEX}"),
        *(
            "nvapi-aaaaaaaaaaaaaaaaaaaaaaaa",
            "sk-ant-api03-xxxxxxxxxxxxxxxxxxxx",
            "ya29.aaaaaaaaaaaaaaaaaaaaaaaa",
        ),
        "SG.aaaaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbbbb",
        "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXX",
        *("sv=2022-11-02&sig=abcdefghijk%3D", "?sv=2022&sig=abc", "FwoGZXIvYXdzEBYaDD"),
        *("Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic dXNlcjpwYXNzd29yZA=="),
        *('{"private_key": "x"}', '{"client_secret":"abcd"}', '{"auths":{"r.io":{"auth":"dXNlcjpwYXNz"}}}'),
        *("Server=h;User Id=sa;Password=hunter22;", "machine a login b password c"),
    ],
)
def test_value_with_such_a_form_is_secret(value: str) -> None:
    assert is_secret_variable("HARMLESS", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("TOKENIZERS_PARALLELISM", "false"), ("MONKEY", "1"), ("PWD", "/home/me"), ("API_KEY", "")),
        ("XLA_FLAGS", "--xla_gpu_autotune_level=2 --xla_gpu_enable_triton_gemm=false"),
        ("EXPERIMENT", "resnet50-imagenet-2026-11-baseline-run-3"),
        ("TFDS_DATA_DIR", "/data/imagenet2012/tfrecords/0123456789abcdef0123"),
        ("SERVER", "http://mlflow.example.com:5000/path"),
        ("LIST", "a,b,c"),
        *(("RAY_AUTH_MODE", "disabled"), ("SSH_AUTH_SOCK", "/tmp/ssh"), ("HELP", "no password needed")),
        *(("KIND", "basic understanding"), ("SEED", "7"), ("AUTHOR", "me")),
    ],
)
def test_other_variables_are_kept(name: str, value: str) -> None:
    assert not is_secret_variable(name, value)


def test_values_of_secrets_are_hidden_and_their_names_stay() -> None:
    assert without_secrets({"A": "1", "HF_TOKEN": "hush"}) == {"A": "1", "HF_TOKEN": "***"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "curl -H 'Authorization: Bearer abcdefghijk' http://x",
            "curl -H 'Authorization: Bearer ***' http://x",
        ),
        ("-H 'X-Api-Key: abcdefgh'", "-H 'X-Api-Key: ***'"),
        ("key hf_abcdefghijklmnopqrstuvwx is wrong", "key *** is wrong"),
        ("https://hooks.slack.com/services/T0/B0/XX", "https://hooks.slack.com/services/***"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nnext", "***\nnext"),
        ("a basic understanding of bearer certificates", "a basic understanding of bearer certificates"),
    ],
)
def test_tokens_and_headers_are_hidden_in_a_text(text: str, shown: str) -> None:
    assert redact_text(text) == redact_text(redact_text(text)) == shown
    assert holds_redacted({"a": [shown]}) is (shown != text)  # or a resume would take it for the value


@pytest.mark.parametrize("pattern", [*TOKENS.values(), *HEADERS.values()])
def test_each_token_has_a_mark_by_which_its_text_is_searched(pattern: str) -> None:
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_regex(pattern, alphabet=st.characters(codec="ascii")))
    def check(text: str) -> None:
        assert REDACTED in redact_text(text)

    check()
