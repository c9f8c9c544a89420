"""Secrets leave no trace in any text; ordinary text is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.policy.redaction import HIDDEN, redact

CREDENTIALS = [
    ("Authorization: Bearer abcdef123456", "abcdef123456"),
    ('{"Authorization": "Bearer abcdef123456"}', "abcdef123456"),
    ("x-ray-authorization: Bearer s3cr3t-t0ken", "s3cr3t-t0ken"),
    ("curl -H 'authorization: Basic dXNlcjpwYXNz' x", "dXNlcjpwYXNz"),
    ("https://user:hunter22@host/path", "hunter22"),
    ("s3://bucket/x?X-Amz-Signature=0123abcd&x=1", "0123abcd"),
    ("https://h/x?sig=AbC%2F12&se=2026", "AbC%2F12"),
    ("https://h/x?api_key=k-12345678", "k-12345678"),
    ("WANDB_API_KEY=0123456789abcdef", "0123456789abcdef"),
    ("aws_secret_access_key = wJalrXUtnFEMI", "wJalrXUtnFEMI"),
    ("key AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
    ("token ghp_0123456789abcdefghij", "ghp_0123456789abcdefghij"),
    ("hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
]


@pytest.mark.parametrize(("text", "secret"), CREDENTIALS)
def test_a_credential_in_a_known_shape_is_hidden(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "step 12 loss 0.123 samples/s 400",
        "https://example.org/path?page=2",
        "tokens per second: 1234",
        'File "train.py", line 3, in tokenizer',
        "ValueError: key error in layer.3.weight",
    ],
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(st.text(max_size=60), st.text(min_size=4, max_size=30), st.text(max_size=60))
def test_a_named_value_never_survives_wherever_it_stands(before: str, secret: str, after: str) -> None:
    cleaned = redact(before + secret + after, [secret])
    assert secret not in cleaned.replace(HIDDEN, "")


def test_a_secret_that_contains_another_leaves_no_rest() -> None:
    assert redact("x=abcdefgh", ["abcd", "abcdefgh"]) == f"x={HIDDEN}"
