"""Training of solver tables: `fit`, by Gauss-Newton or by the paper's gradient methods."""
