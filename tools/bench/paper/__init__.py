"""`bench paper`: the paper's tables on the bundled model, at laptop scale.

cells      a measurement as data, and the store of finished ones
plans      the benchmark's tables as lists of cells
measuring  measures one cell, with the help of measures, rivals, dpm_v3 and frechet
runner     measures the cells of a plan, in worker processes, until done or out of time
results    finished cells, and how their numbers are printed
headline   the tables of how results look, and their targets
tables     the paper's tables
claims     what the benchmark is expected to show, and whether it does
plots      the charts of the report
pictures   sheets of pictures
report     the whole report
"""

from .runner import measure

__all__ = ["measure"]
