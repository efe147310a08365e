"""The recipe as one guided command: shortest request, one real request, the knee, the first single change to try."""
