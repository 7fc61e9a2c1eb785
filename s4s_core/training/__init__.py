"""Learning solver tables: `fit`, by gradient as in the paper or by Gauss-Newton."""
