"""The paper's tables at laptop scale, on the bundled model: `bench paper`.

cells   a measurement as data, and the folder of finished ones
plans   the tables of the benchmark as lists of cells
measuring  measures one cell; rivals and distribution are its instruments
runner  measures the cells of a plan, in worker processes, until all are done or time is up
report  tables, claims and plots of whatever is finished
"""

from .runner import measure

__all__ = ["measure"]
