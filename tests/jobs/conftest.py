import pytest


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A data folder of its own."""
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    return tmp_path
