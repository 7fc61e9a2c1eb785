"""Benchmarks of this repository: `python s4s.py bench NAME`.

command   command-line options, and the list of benchmarks
engine    time spent in the sampling loop itself
training  error against training cost, for every training method
paper     the paper's tables on the bundled model
memory    peak memory of a function
report    tables as Markdown and JSON

Each benchmark is a module or package with `measure(args) -> Report`.
"""
