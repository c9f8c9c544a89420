"""Secrets leave no trace in any text or record; ordinary text is left alone, and records stay whole."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops import submission
from ops.adapters.fakes import FakeClock, MemoryStore
from ops.errors import UsageError
from ops.policy.redaction import HIDDEN, SHORTEST_REST, names_secret, redact, redact_record, too_plain
from ops.record import Recorder
from ops.spec import RunSpec

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
    (r"{\"api_key\": \"abcdef123456\"}", "abcdef123456"),
    (r"password=\"hunter2hunter2\"", "hunter2hunter2"),
    (r"{\\\"password\\\": \\\"hunter2hunter2\\\"}", "hunter2hunter2"),
    ("password='two words here'", "words"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ("HUB_TOKEN=abcdef123456", "abcdef123456"),
    ("train.py --password hunter2hunter2 --lr 1", "hunter2hunter2"),
    ("train.py --hf-token 'abcd efgh'", "abcd"),
    ("git clone https://0123456789abcdef0123@host/repo", "0123456789abcdef0123"),
    ("$ wandb login --relogin 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4", "SflKxwRJSMeKKF2QT4"),
    ("glpat-AbCdEfGhIjKlMnOpQrSt", "AbCdEfGhIjKlMnOpQrSt"),
    ("key=AIzaSyA-1234567890abcdefghijklmnopqrstu", "1234567890abcdef"),
    ("passphrase=correct-horse", "correct-horse"),
    ("Server=db;Uid=me;Pwd=hunter22;", "hunter22"),
    ("DefaultEndpointsProtocol=https;AccountKey=abcd1234efgh==;", "abcd1234efgh"),
    ("proxy: Basic dXNlcjpwYXNzd29yZDE=", "dXNlcjpwYXNzd29yZDE"),
    ("Set-Cookie: session=abcdef0123456789; Path=/", "abcdef0123456789"),
    ("AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12", "wJalrXUtnFEMI"),
    ("https://h/x?X-Amz-Credential=AKIA%2F2026&x=1", "AKIA%2F2026"),
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
        '{"tokens_per_second": 123.456}',
        "TOKENIZERS_PARALLELISM=disabled",
        "--tokenizer=some/model-name",
        "max_tokens=1000000",
        "https://example.org/x?max_tokens=1000000",
        "eos_token_id=50256000 pad_token=<|endoftext|>",
        "PWD=/srv/work OLDPWD=/srv",
        "train.py --max-tokens 512 --tokenizer-name gpt2 --secret-env HF_TOKEN --token-file /run/token",
        "steadyray job run --secret-env WANDB_API_KEY -- python t.py",
        "git@github.com:org/repo ssh://git@host/x author@example.org https://host/a@b",
        "password policy: ok, login successful, basic training of 12 epochs, pass rate 0.93",
        "checkpoints/0000000200-0001-0001 sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c",
        "sk-learn and scikit-learn; hf_hub; npm_config; AIzawa",
        "wandb login succeeded",
    ],
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


SECRETS = st.text(min_size=6, max_size=30).filter(lambda s: s.strip() and not too_plain(s))


@given(st.text(max_size=60), SECRETS, st.text(max_size=60))
def test_a_named_value_never_survives_wherever_it_stands(before: str, secret: str, after: str) -> None:
    cleaned = redact(before + secret + after, [secret])
    assert secret not in cleaned.replace(HIDDEN, "")


SECRET = "sEcr3t/with+odd=chars-42"


def encodings() -> dict[str, str]:
    raw = SECRET.encode()
    return {
        "wrapped": f"{SECRET[:9]}\n{SECRET[9:]}",
        "wrapped twice, by Ray": f"(pid=7) {SECRET[:5]}\n(pid=7) {SECRET[5:11]}\n(pid=7)   {SECRET[11:]}",
        "wrapped in JSON": json.dumps(f"{SECRET[:9]}\n{SECRET[9:]}"),
        "percent": quote(SECRET, safe=""),
        "hex": raw.hex(),
        "base64": base64.b64encode(raw).decode(),
        "base64 of user and it": base64.b64encode(b"user:" + raw + b"\n").decode(),
        "base64 for URLs": base64.urlsafe_b64encode(b"ab" + raw).decode(),
        "base64 in lines": base64.encodebytes(b"a" * 50 + raw).decode(),
    }


@pytest.mark.parametrize("how", encodings())
def test_a_named_value_is_found_in_its_usual_disguises(how: str) -> None:
    text = encodings()[how]
    cleaned = redact(f"before {text} after", [SECRET])
    assert HIDDEN in cleaned
    seen = "".join(cleaned.replace(HIDDEN, "").split())
    for size in (9, 12):
        parts = [text[i : i + size] for i in range(len(text)) if SECRET[4:12] in text]
        assert not any(part in seen for part in parts if part.strip() and part in SECRET)
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")


@given(st.binary(max_size=9), st.binary(max_size=9))
def test_base64_of_anything_around_a_named_value_tells_nothing_of_it(before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + SECRET.encode() + after).decode()
    cleaned = redact(encoded, [SECRET])
    # the letters at its ends hold bits of a neighbour as well
    assert base64.b64encode(SECRET.encode()).decode()[4:-8] not in cleaned
    assert HIDDEN in cleaned


@given(st.integers(SHORTEST_REST, len(SECRET) - 1))
def test_no_part_of_a_named_value_stays_where_a_text_was_cut(size: int) -> None:
    assert redact(f"{SECRET[-size:]} and the rest", [SECRET], cut=True) == f"{HIDDEN} and the rest"
    assert redact(f"the rest and {SECRET[:size]}", [SECRET], cut=True) == f"the rest and {HIDDEN}"


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a ",
        "=",
        "://",
        "--password ",
        "eyJ.",
        "\\",
        "'\"",
        "token",
        "pwd:",
        "wandb login ",
        "eyJaaaaaaaaa-",
        "https.",
        "x=",
        "-",
    ],
)
def test_the_work_grows_with_the_text_and_not_faster(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        began = time.process_time()
        redact(text, [SECRET])
        return time.process_time() - began

    seconds(1000)
    small = min(seconds(25_000) for _ in range(3))
    assert min(seconds(100_000) for _ in range(2)) < 8 * small + 0.2, "four times the text, not sixteen"


def test_a_secret_that_contains_another_leaves_no_rest() -> None:
    assert redact("x=abcdefgh", ["abcd", "abcdefgh"]) == f"x={HIDDEN}"


ENCODED = [
    'curl -H "Authorization: Bearer abc"',
    '{"url": "s3://b/x?X-Amz-Signature=abc"}',
    'authorization: "abc"',
    'password="hunter2hunter2"',
    "api_key=C:\\keys\\",
]


@pytest.mark.parametrize("text", ENCODED)
def test_a_record_is_whole_json_after_redaction(text: str) -> None:
    record = Recorder(MemoryStore(), FakeClock())
    again = json.loads(record.encoded({"message": text, "more": [text], "tokens_per_second": 123.4}))
    assert HIDDEN in again["message"]
    assert again["tokens_per_second"] == 123.4
    assert json.loads(redact(json.dumps({"message": text})))["message"], "nor is JSON inside a text broken"


def test_a_text_under_a_key_that_names_a_secret_is_hidden_and_a_number_under_tokens_is_not() -> None:
    record = {"api_key": "abc def", "max_tokens": 10, "secret_env": ["NAME"], "deep": [{"password": "x"}]}
    clean = redact_record(record)
    hidden = {"api_key": HIDDEN, "deep": [{"password": HIDDEN}]}
    assert clean == {"max_tokens": 10, "secret_env": ["NAME"], **hidden}


def test_each_line_of_a_secret_with_several_lines_is_hidden() -> None:
    secret = "first-line-1234\nsecond-line-5678\n"
    for text in (secret, "(pid=7) second-line-5678", json.dumps({"x": secret}), repr(secret)):
        assert "line-" not in redact(text, [secret])


def test_a_common_or_short_value_does_not_hide_everything() -> None:
    text = "falsehood false Running run 12 ab12 abx"
    assert redact(text, ["false", "Running", "12", "ab"]) == text.replace(" 12 ", f" {HIDDEN} ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SPOILERS = st.sampled_from(
    ["", "Bearer ", "password=", '"api_key": "', "?sig=", "Authorization: ", '\\"', "tokens=", "\\"]
)


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [t for pair in value.items() for part in pair for t in texts(part)]
    if isinstance(value, list):
        return [t for part in value for t in texts(part)]
    return [value] if isinstance(value, str) else []


@given(JSON, SPOILERS, st.text("abcXYZ\"'\\\n 789-é", min_size=6, max_size=20).filter(str.strip), st.text())
def test_a_redacted_record_is_always_json_and_never_has_the_secret(
    value: Any, spoiler: str, secret: str, around: str
) -> None:
    record = Recorder(MemoryStore(), FakeClock(), (secret,))
    told = around + spoiler + secret + around
    encoded = record.encoded(
        {"value": value, "message": told, "list": [{told: secret}], "inner": json.dumps(told)}
    )
    for text in texts(json.loads(encoded)):
        assert secret not in text.replace(HIDDEN, "")
        assert json.dumps(secret)[1:-1] not in text.replace(HIDDEN, "")


def spec(**values: Any) -> RunSpec:
    return RunSpec(name="x", code_hash="0", **values)


def test_options_about_tokens_are_accepted_and_credentials_are_refused() -> None:
    words = ("python", "t.py", "--tokenizer=org/model-name", "max_tokens=1000000")
    submission.check_no_secrets(spec(entrypoint=words, env={"TOKENIZERS_PARALLELISM": "false"}))
    assert not names_secret("TOKENIZERS_PARALLELISM")
    for bad in ({"entrypoint": ("t", "--token=abcdef123456")}, {"entrypoint": (), "env": {"HF_TOKEN": "x"}}):
        with pytest.raises(UsageError):
            submission.check_no_secrets(spec(**bad))


@pytest.mark.parametrize("value", ["false", "12345", "Running", ""])
def test_a_secret_too_short_or_common_to_hide_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MY_SETTING", value)
    with pytest.raises(UsageError, match="MY_SETTING"):
        submission.check_no_secrets(spec(entrypoint=("t",), secret_env=("MY_SETTING",)))
