"""The registry in a real PostgreSQL server: what test_voices.py shows of SQLite where the databases could differ."""

import itertools
import threading

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from duoplda import PLDA, Backend
from duoplda.errors import DuopldaError
from duoplda.voices import Registry
from postgres import server

D = 6


@pytest.fixture(scope="module")
def database():
    with server() as url:
        yield url


@pytest.fixture
def url(database, numbers=itertools.count()):  # noqa: B008
    """A new database of the server."""
    name = f"voices{next(numbers)}"
    engine = sa.create_engine(database, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    return database.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="module")
def chain():
    rng = np.random.default_rng(0)
    V = rng.normal(size=(D, 4))
    return Backend.from_plda(PLDA.from_parameters(np.zeros(D), V, 0.5 * rng.normal(size=(D, 3)), 4 * np.eye(D)))


def test_the_same_answers_as_in_a_file(url, tmp_path, chain):
    X = np.random.default_rng(1).normal(size=(20, D)) * 2
    with (
        Registry.create(url, chain, "embeddings") as ours,
        Registry.create(tmp_path / "v.db", chain, "embeddings") as file,
    ):
        for registry in (ours, file):
            for i in range(5):
                registry.add(f"Zoë {i}", X[3 * i : 3 * i + 3], ["a", "a", "b"], by="ann")
            registry.merge("Zoë 4", "Zoë 3")
            registry.remove_session("Zoë 0", "a")
            registry.remove("Zoë 1")
            registry.rename("Zoë 2", "zoe")
        assert ours.identify(X[18:]) == file.identify(X[18:])
        assert ours.name_speakers({"A": X[1], "B": X[7]}) == file.name_speakers({"A": X[1], "B": X[7]})
        names = [[(v.name, v.n_sessions, v.n_recordings, v.by) for v in r.voices()] for r in (ours, file)]
        assert names[0] == names[1]
        new = Backend.from_plda(PLDA.from_parameters(np.ones(D), np.eye(D), None, np.eye(D)))
        ours.migrate(new)
        file.migrate(new)
        assert ours.identify(X[18:]) == file.identify(X[18:])


def test_changes_of_several_connections(url, chain):
    with Registry.create(url, chain) as registry:
        registry.add("everybody", np.zeros(D), "first")
        reader = Registry.open(url, chain)
        reader.identify(np.zeros(D))

        def work(w):
            with Registry.open(url, chain) as other:
                for i in range(6):
                    other.add("everybody", np.full(D, i), f"session {w} {i}")
                    other.add(f"voice {w} {i}", np.full(D, i))
                    other.identify(np.zeros(D))

        threads = [threading.Thread(target=work, args=(w,)) for w in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert registry.voice("everybody").n_sessions == 19
        assert len(reader.identify(np.zeros(D), k=99).candidates) == 19
        reader.close()


def test_nothing_is_left_in_the_tables(url, chain):
    with Registry.create(url, chain) as registry:
        for name in ("ann", "Agatha Christie"):
            registry.add(name, np.ones((2, D)))
        registry.remove("Agatha Christie")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in ("voices", "sessions"):
            place = connection.exec_driver_sql(f"SELECT pg_relation_filepath('{table}')").scalar()
            folder = connection.exec_driver_sql("SHOW data_directory").scalar()
            data = connection.exec_driver_sql("SELECT pg_read_binary_file(%s)", (f"{folder}/{place}",)).scalar()
            assert b"Agatha" not in data
            assert len(data) > 0
    engine.dispose()


def test_an_export_goes_from_a_file_to_a_server(url, tmp_path, chain):
    with Registry.create(tmp_path / "v.db", chain) as file:
        file.add("ann", np.ones((2, D)))
        file.export(tmp_path / "e")
        with Registry.import_(tmp_path / "e", url, chain) as ours:
            assert ours.voices() == file.voices()
            ours.add("bob", -np.ones(D))
            ours.add("ann", np.ones(D))
            assert [v.n_sessions for v in ours.voices()] == [3, 1]


def test_errors(url, chain):
    with pytest.raises(DuopldaError, match="not a registry"):
        Registry.open(url, chain)
    with Registry.create(url, chain), pytest.raises(DuopldaError, match="already"):
        Registry.create(url, chain)
    with pytest.raises(DuopldaError, match="no such database"):
        Registry.open(url.replace("/voices", "/nothing"), chain)
