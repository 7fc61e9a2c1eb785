from types import SimpleNamespace

args = SimpleNamespace(listen="127.0.0.1")
