"""`lanewise doctor`: what in front of, inside and behind the proxy does not fit together, each with the next step.

Facts are gathered once (`gather`), then judged by pure checks (`engine`, `limits`, `traffic`). What is not known is
said to be unknown; it is never taken for zero, or for a default.
"""
