"""Storage options of fsspec users as settings of the core: each is translated, or fsspec reads the URL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.limits import CALM, DATA
from tests.object_store import ObjectStore
from tests.range_server import RangeServer
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources.remote import settings
from windrow.sources.remote.fetcher import ByteRange, Fetcher
from windrow.sources.remote.settings import CoreSettings, UntranslatedError, core_settings

BASIC = ("Authorization", "Basic dXNlcjpwdw==")
PLAIN = ("Accept-Encoding", "identity")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No settings of this machine, and no cloud around it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(settings, "_answers", lambda address: False)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("http://h:8/a/b c.bin", {}, ("http://h:8", "a/b c.bin", (PLAIN,))),
        ("https://user:pw@h/a", {}, ("https://h", "a", (BASIC, PLAIN))),
        ("https://h/a", {"auth": ("user", "pw")}, ("https://h", "a", (BASIC, PLAIN))),
        (
            "https://h/a",
            {"client_kwargs": {"headers": {"X": "1"}}, "block_size": 3},
            ("https://h", "a", (("X", "1"), PLAIN)),
        ),
        ("https://h/a?sig=1", {}, ("https://h/a?sig=1", "", (PLAIN,))),
        ("https://h/a%2Fb", {}, ("https://h/a%2Fb", "", (PLAIN,))),
        ("https://h/a//b", {}, ("https://h/a//b", "", (PLAIN,))),
        ("https://h/a/", {}, ("https://h/a/", "", (PLAIN,))),
    ],
)
def test_servers_of_http(url: str, options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    base, path, headers = expected
    assert core_settings(url, options) == CoreSettings(base, path, (), headers)


def s3(options: dict[str, Any], url: str = "s3://b/a/k%20y") -> dict[str, str]:
    found = core_settings(url, {"region_name": "r", **options})
    assert (found.url, found.path) == ("s3://b", "a/k%20y")
    assert "secret" not in repr(found)
    return {key.removeprefix("aws_"): value for key, value in found.options}


def test_s3() -> None:
    keys = {"access_key_id": "k", "secret_access_key": "secret", "region": "r"}
    assert s3({"key": "k", "secret": "secret"}) == keys
    assert s3({"key": "k", "secret": "secret", "token": "t"}) == {**keys, "session_token": "t"}
    assert (
        s3({"client_kwargs": {"aws_access_key_id": "k", "aws_secret_access_key": "secret"}}) == keys
    )
    anonymous = {"skip_signature": "true", "region": "r"}
    assert s3({"anon": True, "key": "k", "use_ssl": True}) == anonymous
    assert s3({"anon": True, "endpoint_url": "http://m"}) == {**anonymous, "endpoint": "http://m"}
    assert s3({"anon": True, "requester_pays": True}) == {**anonymous, "request_payer": "true"}
    assert s3({"anon": True, "client_kwargs": {"region_name": "q"}})["region"] in ("r", "q")
    alone = core_settings("s3://b/a", {"anon": True, "endpoint_url": "http://m"})
    assert dict(alone.options)["aws_region"] == "us-east-1"


def test_credentials_of_s3_are_found_where_botocore_looks(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UntranslatedError, match="no credentials"):
        s3({})
    (bare / ".aws").mkdir()
    (bare / ".aws/credentials").write_text(
        "[default]\naws_access_key_id=d\naws_secret_access_key=secret\n"
        "[lab]\naws_access_key_id=l\naws_secret_access_key=secret\n[broken]\n"
    )
    (bare / ".aws/config").write_text(
        "[profile lab]\nregion=lab-1\n[profile sso]\nsso_session=x\n[default]\nregion=here-1\n"
    )
    assert s3({})["access_key_id"] == "d"
    assert s3({"profile": "lab"})["access_key_id"] == "l"
    assert dict(core_settings("s3://b/a", {"profile": "lab"}).options)["aws_region"] == "lab-1"
    for name in ("sso", "broken", "none"):
        with pytest.raises(UntranslatedError, match=f"profile '{name}'"):
            s3({"profile": name})
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert s3({})["access_key_id"] == "l"
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "e-1")
    assert s3({})["access_key_id"] == "e"
    assert dict(core_settings("s3://b/a", {}).options)["aws_region"] == "e-1"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    assert s3({})["web_identity_token_file"] == "/token"


def test_google_and_azure(bare: Path) -> None:
    def of(url: str, options: dict[str, Any]) -> dict[str, str]:
        found = core_settings(url, options)
        assert found.url == url.rpartition("/")[0].replace("abfs", "az").replace("gcs", "gs")
        return dict(found.options)

    assert of("gs://b/a", {"token": "anon"}) == {"google_skip_signature": "true"}
    assert of("gcs://b/a", {"project": "p"}) == {"google_skip_signature": "true"}  # none are found
    token = {"type": "service_account"}
    assert of("gs://b/a", {"token": token}) == {"google_service_account_key": json.dumps(token)}
    (bare / "key.json").write_text("{}")
    named = {"google_application_credentials": str(bare / "key.json")}
    assert of("gs://b/a", {"token": str(bare / "key.json")}) == named
    emulated = of("gs://b/a", {"endpoint_url": "http://e"})
    assert emulated == {"google_base_url": "http://e", "google_skip_signature": "true"}
    account = {"azure_storage_account_name": "n", "azure_storage_account_key": "secret"}
    assert of("az://c/a", {"account_name": "n", "account_key": "secret"}) == account
    assert of("abfs://c/a", {"connection_string": "AccountName=n;AccountKey=secret"}) == account


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("memory://a", {}, "protocol 'memory'"),
        ("zip://a::s3://b/c", {}, "protocol 'zip'"),
        ("http://h/a", {"cookies": {}}, "'cookies'"),
        ("http://h/a", {"client_kwargs": {"trust_env": True}}, "'trust_env'"),
        ("s3://b/a//c", {"anon": True}, "such a path"),
        ("s3://b/a", {"anon": True, "config_kwargs": {}}, "'config_kwargs'"),
        ("s3://b/a", {"anon": True, "version_aware": True}, "'version_aware'"),
        ("gs://b/a", {"token": "ya29.secret"}, "'token'"),
        ("gs://b/a", {"requester_pays": "p"}, "'requester_pays'"),
        ("az://c/a", {"credential": object()}, "'credential'"),
    ],
)
def test_what_fsspec_reads(url: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UntranslatedError, match=why) as caught:
        core_settings(url, options)
    assert "secret" not in str(caught.value)


def test_an_option_that_only_fsspec_has_reads_the_same() -> None:
    with RangeServer({"a.bin": DATA}) as server:
        for options in ({}, {"cookies": {"a": "b"}}):
            reader = Fetcher("Tests", options, CALM)
            file = reader.tails([server.url("a.bin")], 10)[0].file
            assert reader.confirms(file.url) is (native() is not None and not options)
            wanted = [ByteRange(file, n, n + 100) for n in range(0, 5000, 100)]
            assert reader.read(wanted) == [DATA[n : n + 100] for n in range(0, 5000, 100)]


@pytest.mark.jobs
def test_keys_of_odd_names_in_s3() -> None:
    names = ["a b", "a%20b", "a+b", "hash#x", "q?x", "é", "[1]*", "tilde~"]
    with ObjectStore() as store:
        reader = Fetcher("Tests", store.storage_options, CALM)
        for name in names:
            store.put(f"d/{name}", name.encode())
        for name in names:
            assert reader.read_small(store.url(f"d/{name}")) == name.encode()
        assert reader.names_in(store.url("d")) == sorted(names)
        assert reader.glob(store.url("d/a*")) == [
            store.url(f"d/{n}") for n in ("a b", "a%20b", "a+b")
        ]
        assert reader.glob(store.url("**/q*")) == [store.url("d/q?x")]
        store.put("same/same", b"a file that is named like its folder")
        store.put("same/", b"")
        assert reader.names_in(store.url("same")) == ["same"]
        wrong = Fetcher(
            "Tests", {**store.storage_options, "endpoint_url": "http://127.0.0.1:1"}, CALM
        )
        with pytest.raises(ReadError, match="no connection"):
            wrong.read_small(store.url("d/a b"))
