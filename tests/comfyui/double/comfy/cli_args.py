from types import SimpleNamespace

args = SimpleNamespace(listen="127.0.0.1", port=8188, tls_keyfile=None)
