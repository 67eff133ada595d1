"""What is allowed stays the user's own: signatures and the key behind them, and what counts as named."""

import stat
from pathlib import Path

import pytest

from sweeplab import permissions
from sweeplab.errors import BadInput
from sweeplab.permissions import (
    TRACKING,
    WANDB,
    allow,
    check_address,
    has_pickles,
    is_allowed,
    mirror_address,
    signed,
    without_unsigned,
)

PICKLE = "cma:optimizer:0"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    for variable in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(permissions, "_named", set())
    permissions._key.cache_clear()
    yield tmp_path / "state" / "sweeplab"
    permissions._key.cache_clear()


def test_a_pickle_is_read_with_this_user_s_signature_only():
    attributes = {**signed(3, PICKLE, "ab"), **signed(3, "plain", "cd")}
    assert set(attributes) == {PICKLE, f"signed:{PICKLE}", "plain"}
    assert without_unsigned(3, attributes) == {PICKLE: "ab", "plain": "cd"} and has_pickles(
        attributes
    )
    signature = f"signed:{PICKLE}"
    for changed in (
        {PICKLE: "other"},
        {signature: "0" * 64},
        {signature: "f" * 64},
        {signature: None},
        {signature: attributes[signature][:-1]},
    ):
        assert PICKLE not in without_unsigned(3, {**attributes, **changed})
    assert PICKLE not in without_unsigned(4, attributes), "it is another trial's"
    other = {PICKLE[:-1]: "ab", signature[:-1]: attributes[signature]}
    assert PICKLE[:-1] not in without_unsigned(3, other), "it is another attribute's"
    assert without_unsigned(3, {"plain": "cd"}) == {"plain": "cd"} and not has_pickles(
        ["plain"]
    )


def test_the_key_is_made_once_and_nobody_else_reads_it(state, monkeypatch):
    first = signed(1, PICKLE, "ab")
    key = state / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(key.read_bytes()) == 32
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    known = key.read_bytes()
    permissions._key.cache_clear()
    assert signed(1, PICKLE, "ab") == first and key.read_bytes() == known
    others = [first]
    for part in (known[:5], known[:5], known * 2):  # as while another process writes it
        key.write_bytes(part)
        permissions._key.cache_clear()
        others.append(signed(1, PICKLE, "ab"))
        assert key.read_bytes() == part, "a part of a key is no key"
    assert len({text for each in others for text in each.values()}) == 5
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "relative")
    permissions._key.cache_clear()
    assert signed(1, PICKLE, "ab") != first and not Path("relative").exists()


def test_a_permission_is_of_all_its_parts_together(state):
    allow("a", "b")
    assert (
        is_allowed("a", "b")
        and not is_allowed("a")
        and not is_allowed("b", "a")
        and not is_allowed("ab")
    )
    (kept,) = (state / "allowed").iterdir()
    assert kept.read_text() == "a\nb\n" and stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    kept.unlink()
    assert not is_allowed("a", "b")


def test_where_a_home_cannot_be_written_nothing_is_remembered(state):
    state.parent.touch()
    allow("a")
    assert not is_allowed("a") and without_unsigned(1, signed(1, PICKLE, "ab")) == {
        PICKLE: "ab"
    }


@pytest.mark.parametrize(
    ("address", "is_ambiguous"),
    [
        ("postgresql://me@host/db", False),
        ("postgresql://u:@evil:1/x@host/db", True),
        ("postgresql://u:@host:1/x@host:2/db", True),
        ("postgresql://u:@host:2/x@host:1/db", True),
        ("postgresql://host:port/db", True),
        ("https://u:@evil/x@host", False),
    ],
)
def test_an_address_that_reads_as_two_is_contacted_by_the_environment_only(
    address, is_ambiguous, monkeypatch
):
    permissions.name_address(address)
    if is_ambiguous:
        with pytest.raises(BadInput, match="can be read as two"):
            check_address(TRACKING, address)
    else:
        check_address(TRACKING, address)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    check_address(TRACKING, address)


def test_weights_and_biases_is_reached_as_its_own_settings_say(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb, of the extra wandb, is not installed")
    assert mirror_address() == "https://api.wandb.ai"
    for folder in (tmp_path / ".config" / "wandb", tmp_path / "other"):
        folder.mkdir(parents=True)
        (folder / "settings").write_text(
            f"[default]\nbase_url = https://{folder.name}.example\n"
        )
    assert mirror_address() == "https://wandb.example"
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "other"))
    assert mirror_address() == "https://other.example"
    monkeypatch.setenv("WANDB_BASE_URL", "https://named.example")
    assert mirror_address() == "https://named.example"
    for other in ("https://x.example", "https://a.example"):
        with pytest.raises(BadInput, match=f"wandb_project names {other}.*WANDB_MODE=offline"):
            check_address(WANDB, other)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mirror_address() == ""
    monkeypatch.setenv("WANDB_MODE", "shared")
    assert mirror_address() == "https://named.example"
