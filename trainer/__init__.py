"""The command line around `s4s_core`: train, sample, compare, inspect.

`python -m trainer` in a checkout; `s4s` where the wheel is installed (there as `s4s_trainer`, so
imports within this package are relative).
"""
