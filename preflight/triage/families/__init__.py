"""What log lines tell, one module per family of causes; see `rule.Rule`."""
