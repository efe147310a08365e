"""The engines, watched: are they up, which models do they serve, how busy do they say they are."""

from proxy.backends.describing import BackendView, Model, PrefixCaching, ProbeError
from proxy.backends.watched import Newcomer, Told
from proxy.backends.watching import Backends
from proxy.policy.health import State

__all__ = ["BackendView", "Backends", "Model", "Newcomer", "PrefixCaching", "ProbeError", "State", "Told"]
