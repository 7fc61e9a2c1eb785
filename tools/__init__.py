"""Development tools: benchmarks, and the scripts that make files in this repository.

Nothing here is part of the wheel, and the product imports none of it, except that the command
`bench` runs `tools.bench` from a source checkout.
"""
