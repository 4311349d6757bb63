"""Tests the file of a team's users: what it holds, and whom it lets in."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.reliability.mutants import mutant
from tilewright.core.private_files import SecretError
from tilewright.services.users import UserError, Users, add_user, remove_user

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users"


def test_a_file_has_names_and_scrypt_hashes_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        secrets = {name: add_user(path, name) for name in ("bob", "ada")}
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ada", "bob"]
    for line in lines:
        name, kind, salt, digest = line.split(":")
        assert kind == "scrypt-16384-8-1"
        hashed = hashlib.scrypt(
            secrets[name].encode(), salt=base64.b64decode(salt), n=16384, r=8, p=1, dklen=32
        )
        assert base64.b64encode(hashed).decode() == digest
    assert len({line.split(":")[2] for line in lines}) == 2, "a salt for each"


def test_a_secret_lets_its_user_in_and_nobody_else(path: Path) -> None:
    ada, bob = add_user(path, "ada"), add_user(path, "bob")
    users = Users(path)
    assert not users.verified("ada", ada), "nothing is remembered yet"
    assert users.verify("ada", ada)
    assert users.verified("ada", ada)
    for name, secret in [("ada", bob), ("bob", ada), ("eve", ada), ("ada", ""), ("", ""),
                         ("ada", ada[:-1]), ("eve", "")]:  # fmt: skip
        assert not users.verified(name, secret)
        assert not users.verify(name, secret)
    assert users.verified("ada", ada), "a wrong guess changes nothing"


def test_who_is_removed_or_has_a_new_secret_is_forgotten(path: Path) -> None:
    first, users = add_user(path, "ada"), Users(path)
    assert users.verify("ada", first)
    second = add_user(path, "ada")
    assert not users.verified("ada", first)
    assert not users.verify("ada", first)
    assert users.verify("ada", second)
    remove_user(path, "ada")
    assert not users.verified("ada", second)
    assert not users.verify("ada", second)
    with pytest.raises(UserError, match=r"'ada' is not a user; .* has nobody"):
        remove_user(path, "ada")


@pytest.mark.attack
@pytest.mark.parametrize("name", ["", ":", "a:b", "a b", "a\nb", "é", ".a", "-a", "a" * 65, "a\0"])
def test_no_name_makes_a_line_of_its_own(path: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not a name"):
        add_user(path, name)
    assert not path.exists()


@pytest.mark.attack
def test_a_file_that_others_may_know_lets_nobody_in(path: Path, tmp_path: Path) -> None:
    secret, users = add_user(path, "ada"), Users(path)
    assert users.verify("ada", secret)
    moved = tmp_path / "moved"
    for unfit in (
        lambda: path.chmod(0o640), lambda: os.link(path, moved), path.unlink,
        lambda: path.symlink_to(moved), lambda: (path.unlink(), os.mkfifo(path)),
    ):  # fmt: skip
        unfit()
        assert not users.verified("ada", secret)
        assert not users.verify("ada", secret)
        if path.is_symlink() or path.exists():
            with pytest.raises(SecretError, match="add the users again"):
                add_user(path, "bob")
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)
            moved.unlink(missing_ok=True)
            assert users.verified("ada", secret)


@pytest.mark.attack
@pytest.mark.slow(seconds=2)
def test_a_damaged_file_lets_nobody_in_who_was_not(path: Path) -> None:
    secret = add_user(path, "ada")
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(12):
        path.write_bytes(mutant(whole, rng))
        users = Users(path)
        assert not users.verify("ada", "")
        assert not users.verify("eve", secret)


def test_users_who_are_added_at_once_are_all_there(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tilewright.services.users import add_user\n"
        "sys.stdin.read(); add_user(Path(sys.argv[1]), sys.argv[2])"
    )
    commands = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", program, str(path), f"user{number}"], cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
        )
        for number in range(4)
    ]  # fmt: skip
    for command in commands:
        assert command.stdin is not None
        command.stdin.close()
    assert [command.wait() for command in commands] == [0] * 4
    assert path.read_text().count("user") == 4


def test_threads_may_ask_at_once(path: Path) -> None:
    secrets = {f"user{number}": add_user(path, f"user{number}") for number in range(4)}
    users, wrong = Users(path), []

    def ask(name: str) -> None:
        for other, secret in secrets.items():
            if users.verify(name, secret) != (name == other):
                wrong.append((name, other))

    threads = [threading.Thread(target=ask, args=[name]) for name in secrets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
