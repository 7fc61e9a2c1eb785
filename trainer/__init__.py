"""The trainer around `s4s_core`: command line, jobs, panel and models.

Run it as `python s4s.py` from a checkout, or as `s4s` where the wheel is installed. The wheel
names this package s4s_trainer, so imports inside it are relative.
"""
