"""How numbers and addresses are written, wherever a person reads them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import URL, make_url

from sweeplab.formatting import (
    rounded,
    span,
    without_password,
    without_passwords,
    written,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(27008, "27,008"), (3.1712e-4, "3.17e-4"), (9.05e-3, "9.05e-3"), (0.25, "0.25"), (5.02e12, "5.02e12"),
     ((0.9, 0.95), "(0.9, 0.95)"), (True, "True"), (None, "none"), (np.nan, "none"), (np.inf, "inf"),
     ("gelu", "gelu"), (np.int64(3), "3"), (np.bool(False), "False")],
)  # fmt: skip
def test_written(value, text):
    assert written(value) == text


def test_a_measured_number_has_three_digits_and_an_interval_two_ends():
    assert [rounded(each) for each in (0.34567, 2183.0, 2.9412e8)] == ["0.346", "2,180", "294M"]
    assert span(0.1, 2e6) == "0.1 to 2M" and span(None, None) == "no limits"
    assert span(None, 3.0) == "up to 3" and span(3.0, None) == "from 3, no upper limit"


# What no other part of the addresses below has: so a piece of it that is left is found.
SECRET = st.text("QXZ01/#?@:%;+ .\\'\"", min_size=1).map(lambda text: f"Q{text}Q")
SCHEMES = st.sampled_from(
    ["http", "https", "postgresql", "mysql+pymysql", "postgresql+psycopg"]
)
PLACES = st.sampled_from(
    ["host", "host:5000", "host/database", "host:5432/database?sslmode=require", "[::1]:5000/"]
)


@given(SCHEMES, st.sampled_from(["", "user", "a.user"]), SECRET, PLACES)
def test_no_password_is_shown(scheme, user, secret, place):
    address = f"{scheme}://{user}:{secret}@{place}"
    shown = without_password(address)
    assert shown == f"{scheme}://{place}"
    assert without_password(shown) == shown
    assert shown in without_passwords(f"{address.replace(' ', '%20')} does not answer")


@given(
    SCHEMES,
    PLACES,
    st.sampled_from(["password", "sslpassword", "p%61ssword", "PWD", "auth_token", "api_key"]),
    SECRET,
)
def test_no_secret_of_a_query_is_shown(scheme, place, key, secret):
    start = f"{scheme}://{place}{'&' if '?' in place else '?'}"
    for address in (f"{start}{key}={secret}&timeout=3", f"{start}timeout=3&{key}={secret}"):
        assert "Q" not in without_password(address)


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_no_password_that_sqlalchemy_reads_is_shown(secret):
    url = URL.create("postgresql", "user", secret, "host", database="database")
    address = url.render_as_string(hide_password=False)
    assert make_url(address).password == secret
    assert without_password(address) == "postgresql://host/database"


@pytest.mark.parametrize(
    "address",
    [
        "sqlite:////a/b:c@d/mlflow.db",
        "http://host:5000/api?experiment=3",
        "https://host/path@v1",
        "postgresql://user@host/database",
        "databricks",
        "databricks://profile",
        "no address",
    ],
)
def test_an_address_without_a_password_stays_as_it_is(address):
    assert without_password(address) == without_passwords(address) == address


def test_a_token_in_the_place_of_a_user_is_not_shown():
    assert without_password("https://token@host/path") == "https://host/path"
