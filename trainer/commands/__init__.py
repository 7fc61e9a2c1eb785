"""One module per command; see `trainer.cli`."""
