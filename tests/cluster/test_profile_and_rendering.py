"""What a person writes in a profile, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops import profile, render
from ops.errors import UsageError

MINIMAL: dict[str, Any] = {"name": "mine", "groups": {"cpu": {}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"idle_second": 5}, "unknown key idle_second, did you mean idle_seconds?"),
        ({"head": {"dashbord_port": 1}}, "unknown key head.dashbord_port, did you mean dashboard_port?"),
        ({"groups": {"cpu": {"maximum": 1}}}, "unknown key groups.cpu.maximum, did you mean max?"),
        (
            {"failure_detection": {"period": 1}},
            "unknown key failure_detection.period, did you mean period_ms?",
        ),
        ({"zebra": 1}, "unknown key zebra"),
        ({"groups": {"cpu": {"min": 3, "max": 2}}}, "min (3) is above max (2)"),
        ({"groups": {"head": {}}}, "a group cannot be called 'head'"),
        ({"groups": {"CPU nodes": {}}}, "group name 'CPU nodes'"),
        ({"idle_seconds": 0}, "idle_seconds: Input should be greater than 0"),
        ({"name": "Has Spaces"}, "name: String should match pattern"),
        ({"head": {"object_store_mib": 10}}, "head.object_store_mib"),
    ],
)
def test_a_wrong_profile_is_refused_with_key_and_fix(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(profile.merge(MINIMAL, change)))
    with pytest.raises(UsageError) as error:
        profile.load(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", None])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "profile.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=str(path)):
        profile.load(path)


def test_every_value_of_a_profile_says_what_it_means() -> None:
    models = (profile.Profile, profile.Head, profile.Group, profile.FailureDetection)
    nested = {"head", "failure_detection"}
    silent = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description and name not in nested
    ]
    assert silent == []


def test_overrides_change_only_what_they_name(small_profile: Callable[[dict[str, Any]], Any]) -> None:
    plain = profile.load(render.profile_path("local"))
    changed = profile.load(render.profile_path("local"), {"groups": {"cpu": {"max": 9}}})
    assert changed.groups["cpu"].max == 9
    assert changed.groups["gpu"] == plain.groups["gpu"]
    assert changed.model_copy(update={"groups": plain.groups}) == plain


@pytest.mark.parametrize("name", render.profile_names())
def test_the_committed_rendering_is_what_the_profile_renders_to(name: str) -> None:
    wanted = profile.load(render.profile_path(name))
    assert render.rendered_path(name).read_text() == render.launcher_yaml(wanted)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the profiles that ship with the repository, empty."""
    monkeypatch.setattr(profile, "PROFILES", tmp_path)
    monkeypatch.setattr(render, "PROFILES", tmp_path)
    monkeypatch.setattr(render, "rendered_path", lambda name: tmp_path / f"{name}.rendered")
    return tmp_path


def test_all_profiles_are_rendered_and_compared(
    shipped: Path, steadyray: Callable[..., tuple[int, str, str]]
) -> None:
    for name in ("one", "two"):
        (shipped / f"{name}.yaml").write_text(yaml.safe_dump({**MINIMAL, "name": name}))
    assert steadyray("cluster", "render", "--check")[0] == 1
    assert steadyray("cluster", "render")[0] == 0
    assert steadyray("cluster", "render", "--check")[0] == 0
    (shipped / "two.rendered").write_text("old")
    code, _, err = steadyray("cluster", "render", "--check")
    assert (code, "'two'" in err) == (1, True)


def test_a_shipped_profile_bears_the_name_of_its_file_and_another_one_any(shipped: Path) -> None:
    """What `make cluster-up ENV=x` makes, `make cluster-down ENV=x` ends."""
    text = yaml.safe_dump({**MINIMAL, "name": "mine"})
    (shipped / "other.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"name is 'mine', and the file is called other\.yaml"):
        profile.load(shipped / "other.yaml", {"name": "second"})
    (shipped / "mine.yaml").write_text(text)
    assert profile.load(shipped / "mine.yaml", {"name": "second"}).name == "second"
    (shipped / "elsewhere").mkdir()
    assert profile.load((shipped / "other.yaml").rename(shipped / "elsewhere/other.yaml")).name == "mine"


def test_a_rendering_says_that_it_was_made_and_names_no_path_of_a_machine() -> None:
    text = render.rendered_path("local").read_text()
    assert text.startswith("# Made by `steadyray cluster render`")
    assert "/work" not in text
    assert "/tmp" not in text


def test_a_rendering_holds_groups_floors_and_the_resource_that_keeps_work_off_the_head() -> None:
    wanted = profile.load(
        render.profile_path("local"), {"groups": {"big": {"gpus": 8, "cpus": 4, "labels": {"zone": "a"}}}}
    )
    data = yaml.safe_load(render.launcher_yaml(wanted, {"big": 2}))
    types = data["available_node_types"]
    assert types["big"]["resources"]["GPU"] == 8
    assert types["big"]["min_workers"] == 2
    assert types["big"]["labels"] == {"steadyray.io/group": "big", "zone": "a"}
    assert types["cpu"]["min_workers"] == wanted.groups["cpu"].min
    assert "steadyray_worker" not in types["head"]["resources"]
    assert all(types[name]["resources"]["steadyray_worker"] == 1000 for name in wanted.groups)
    assert data["provider"]["module"] == "ops.adapters.local_provider.LocalNodeProvider"


def test_token_mode_and_tuned_detection_reach_every_node() -> None:
    wanted = profile.load(render.profile_path("local"))
    data = yaml.safe_load(render.launcher_yaml(wanted))
    for node_type in data["available_node_types"].values():
        environment = node_type["node_config"]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_health_check_period_ms"] == "1000"
        assert environment["RAY_kill_worker_timeout_milliseconds"] == "300"
    head = data["available_node_types"]["head"]["node_config"]["environment"]
    assert head["RAY_gcs_storage"] == "rocksdb"
