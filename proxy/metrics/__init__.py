"""Every Prometheus metric of the proxy (`lanewise_*`), with its buckets and closed label sets."""
