"""Every Prometheus metric of the proxy (`lanewise_*`), with its buckets and closed label sets."""

from proxy.metrics.whole import Metrics

__all__ = ["Metrics"]
