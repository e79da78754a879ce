"""From the log of a dead job to its cause: reading, understanding, hypotheses."""
