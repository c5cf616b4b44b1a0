"""A real PostgreSQL server for tests, from the binaries of this machine, in a folder that goes with it."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binary(name: str) -> str | None:
    """Where a program of PostgreSQL is: on the path, or where Debian puts it."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)]))


def unprivileged() -> dict[str, str | int]:
    """Options of subprocess: PostgreSQL does not run as root, so another user's id is taken there."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid}


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database of a server that ends with the block; tests are skipped where there is none."""
    initdb = binary("initdb")
    pg_ctl = binary("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("there is no PostgreSQL here (initdb and pg_ctl): its tests are skipped")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    folder = Path(tempfile.mkdtemp(prefix="duoplda-pg-"))
    who = unprivileged()
    if who:
        os.chown(folder, int(who["user"]), int(who["group"]))
    data = folder / "data"
    quiet = {"check": True, "cwd": folder, "capture_output": True, "timeout": 400, **who}
    try:
        subprocess.run([initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"], **quiet)
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c shared_buffers=16MB"
        start = [pg_ctl, "-D", data, "-w", "-l", folder / "log", "-o", options, "-t", "300", "start"]
        subprocess.run(start, **{**quiet, "capture_output": False}, stdout=subprocess.DEVNULL)
        try:
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        finally:
            subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
