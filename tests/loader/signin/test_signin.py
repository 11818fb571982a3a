"""Logins at a real issuer on loopback: who is let in, who isn't, and where tokens are kept."""

import json
import socket
import stat
import threading

import keyring
import pytest
from joserfc.jwk import RSAKey
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring
from keyring.errors import PasswordDeleteError

from knonik.ingest import pack, run
from knonik_assets.cli import main
from knonik_loader import access
from knonik_loader.errors import ConfigError, LoginRequired
from knonik_loader.signin import store
from knonik_loader.signin.settings import settings
from tests.support.issuer import CLIENT, Issuer
from tests.support.packed import write_packed
from tests.support.road import loader_config


class MemoryKeyring(KeyringBackend):
    """The operating system's part, which no test machine has."""

    priority = 1

    def __init__(self):
        super().__init__()
        self.kept = {}

    def get_password(self, service, username):
        return self.kept.get((service, username))

    def set_password(self, service, username, password):
        self.kept[service, username] = password

    def delete_password(self, service, username):
        del self.kept[service, username]


@pytest.fixture
def issuer(monkeypatch, tmp_path):
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())
    with Issuer() as found:
        monkeypatch.setenv("KNONIK_ISSUER", found.url)
        monkeypatch.setenv("KNONIK_CLIENT_ID", CLIENT)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        yield found
    keyring.set_keyring(before)


def login(product="ingest", *more):
    return main(["login", "--product", product, *more])


def in_file(product="ingest"):
    assert login(product, "--allow-file-key-store") == 0


def test_a_login_opens_its_product_and_no_other(issuer, capsys):
    with pytest.raises(LoginRequired, match="knonik login --product ingest"):
        access.require("ingest")
    in_file()
    said = capsys.readouterr().out
    assert f"{issuer.url}/activate" in said
    assert "ABCD-EFGH" in said
    assert "ada@example.org" in said
    access.require("ingest")
    with pytest.raises(LoginRequired, match="knonik login --product multidataloader"):
        access.require("multidataloader")
    assert main(["status", "--product", "ingest"]) == 0
    assert "ada@example.org" in capsys.readouterr().out
    assert main(["logout", "--product", "ingest"]) == 0
    assert not store.key_file().exists()
    assert main(["status", "--product", "ingest"]) == 1
    assert main(["logout", "--product", "ingest"]) == 0


def test_the_loader_asks_and_is_let_in(issuer, tmp_path):
    from knonik_loader import ShardedDataLoader

    config = loader_config(write_packed(tmp_path / "packed", (9,)).manifest)
    with pytest.raises(LoginRequired):
        ShardedDataLoader(config)
    issuer.products = "ingest multidataloader"
    in_file("multidataloader")
    with ShardedDataLoader(config) as loader:
        assert next(iter(loader))


def test_ingest_and_pack_are_closed_until_then(issuer, tmp_path):
    for call in (lambda: run({}, tmp_path, tmp_path / "o"), lambda: pack(tmp_path, tmp_path / "o", "x")):
        with pytest.raises(LoginRequired):
            call()
    in_file()
    for call in (lambda: run({}, tmp_path, tmp_path / "o"), lambda: pack(tmp_path / "no", tmp_path / "o", "x")):
        with pytest.raises(ConfigError):
            call()


def test_the_file_is_for_its_owner_alone(issuer):
    assert login() == 1
    assert not store.key_file().exists()
    in_file()
    assert stat.S_IMODE(store.key_file().stat().st_mode) == 0o600
    store.key_file().chmod(0o644)
    with pytest.raises(LoginRequired, match="can be read by others"):
        access.require("ingest")


def test_a_keyring_is_preferred(issuer):
    held = MemoryKeyring()
    keyring.set_keyring(held)
    in_file()
    assert len(held.kept) == 1
    assert not store.key_file().exists()
    access.require("ingest")
    assert main(["logout", "--product", "ingest"]) == 0
    assert held.kept == {}
    with pytest.raises(LoginRequired):
        access.require("ingest")


def test_two_products_share_the_file(issuer):
    issuer.products = ["ingest", "multidataloader"]
    in_file("ingest")
    issuer.polls = []
    in_file("multidataloader")
    assert main(["logout", "--product", "ingest"]) == 0
    access.require("multidataloader")
    with pytest.raises(LoginRequired):
        access.require("ingest")


def expire(issuer):
    issuer.lifetime = -600
    kept, _ = store.load(settings("ingest"), "ingest")
    text = json.dumps({**json.loads(as_text(kept)), "id_token": issuer.token()})
    store._write({store._name(settings("ingest"), "ingest"): text})


def as_text(tokens):
    from dataclasses import asdict

    return json.dumps(asdict(tokens))


def test_an_expired_login_is_renewed_once_and_kept(issuer):
    in_file()
    expire(issuer)
    access.require("ingest")
    assert [form["grant_type"] for _, form in issuer.asked if form.get("refresh_token")] == ["refresh_token"]
    access.require("ingest")
    assert issuer.renewals == 0
    expire(issuer)
    with pytest.raises(LoginRequired, match=r"has expired.*could not be renewed.*invalid_grant"):
        access.require("ingest")


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"aud": "another"}, "for the client 'another'"),
        ({"iss": "https://elsewhere.example"}, "not of http"),
        ({"exp": None}, "does not say that it is valid now"),
        ({"exp": True}, "does not say that it is valid now"),
        ({"exp": float("nan")}, "does not say that it is valid now"),
        ({"exp": 1e18}, "does not say that it is valid now"),
        ({"nbf": 4e9}, "does not say that it is valid now"),
        ({"exp": 1}, "has expired"),
        ({"knonik_products": ["multidataloader"]}, "it names multidataloader"),
        ({"knonik_products": None}, "no claim 'knonik_products'"),
        ({"knonik_products": "ingesting"}, "it names ingesting"),
    ],
)
def test_tokens_that_are_not_for_this_keep_nothing(issuer, claims, words, capsys):
    issuer.claims = claims
    assert login("ingest", "--allow-file-key-store") == 1
    assert words in capsys.readouterr().err
    assert not store.key_file().exists()


def test_a_token_that_another_key_signed_is_none(issuer, capsys):
    in_file()
    issuer.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}, private=True)
    kept, _ = store.load(settings("ingest"), "ingest")
    text = json.dumps({**json.loads(as_text(kept)), "id_token": issuer.token()})
    store._write({store._name(settings("ingest"), "ingest"): text})
    with pytest.raises(LoginRequired, match="signature is none of the issuer's"):
        access.require("ingest")


@pytest.mark.parametrize(
    ("polls", "words"),
    [
        (["access_denied"], "access_denied"),
        (["authorization_pending", "expired_token"], "was not typed in"),
        (["unheard_of"], "unheard_of"),
    ],
)
def test_a_flow_that_ends_without_a_token(issuer, polls, words, capsys):
    issuer.polls = polls
    assert login("ingest", "--allow-file-key-store") == 1
    assert words in capsys.readouterr().err


def test_an_issuer_that_asks_for_patience_gets_it(issuer):
    from knonik_loader.signin.device import sign_in

    issuer.polls = ["authorization_pending", "slow_down", "slow_down"]
    waits = []
    sign_in(settings("ingest"), lambda where, code: None, waits.append)
    assert waits == [0, 0, 5, 10]
    issuer.polls = ["slow_down"] * 50
    with pytest.raises(LoginRequired, match="in time"):
        sign_in(settings("ingest"), lambda where, code: None, waits.append)


@pytest.mark.parametrize("lacking", ["device_authorization_endpoint", "token_endpoint", "jwks_uri"])
def test_an_issuer_without_a_device_flow(issuer, lacking, capsys):
    issuer.without = {lacking}
    assert login("ingest", "--allow-file-key-store") == 1
    assert lacking in capsys.readouterr().err


def test_what_the_environment_gets_wrong(issuer, monkeypatch, capsys):
    monkeypatch.setenv("KNONIK_CLIENT_ID", "stranger")
    assert login() == 1
    assert "nobody knows this client" in capsys.readouterr().err
    monkeypatch.delenv("KNONIK_CLIENT_ID")
    assert login() == 1
    assert "KNONIK_CLIENT_ID" in capsys.readouterr().err
    monkeypatch.setenv("KNONIK_CLIENT_ID", CLIENT)
    monkeypatch.setenv("KNONIK_ISSUER", f"{issuer.url}/other")
    assert login() == 1
    assert "does not describe" in capsys.readouterr().err
    for address in ("http://login.example.org", "login.example.org", "file:///etc/passwd", "https://"):
        monkeypatch.setenv("KNONIK_ISSUER", address)
        assert login() == 2
        assert "https://" in capsys.readouterr().err
        with pytest.raises(ConfigError):
            access.require("ingest")
    monkeypatch.setenv("KNONIK_ISSUER", "http://127.0.0.1:9")
    assert login() == 1
    assert "cannot be asked" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}'])
def test_a_damaged_file_closes(issuer, text):
    in_file()
    store.key_file().write_text(text)
    with pytest.raises(LoginRequired, match="remove it"):
        access.require("ingest")


def test_tokens_are_in_no_traceback(issuer):
    in_file()
    kept, _ = store.load(settings("ingest"), "ingest")
    assert kept.id_token not in repr(kept)
    assert repr(kept.refresh_token) not in repr(kept)


def test_a_keyring_that_keeps_what_is_to_be_forgotten(issuer, monkeypatch, capsys):
    held = MemoryKeyring()
    keyring.set_keyring(held)
    in_file()

    def refuse(service, username):
        raise PasswordDeleteError

    monkeypatch.setattr(held, "delete_password", refuse)
    assert main(["logout", "--product", "ingest"]) == 1
    assert "keyring keeps the login of 'ingest'" in capsys.readouterr().err


def test_what_answers_and_speaks_no_http(issuer, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_other_answer, args=(server,), daemon=True).start()
        monkeypatch.setenv("KNONIK_ISSUER", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert login() == 1
    assert "cannot be asked" in capsys.readouterr().err


def _other_answer(server):
    connection, _ = server.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(b"SSH-2.0-other\r\n")


def test_a_damaged_entry_closes(issuer):
    in_file()
    store._write({store._name(settings("ingest"), "ingest"): '{"id_token": "x"}'})
    with pytest.raises(LoginRequired, match="damaged"):
        access.require("ingest")
