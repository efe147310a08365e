"""What is done with trace files: looked into, cut, scaled, converted, merged, made."""
