"""Several proxies on one port of one host: a supervisor that starts them and speaks for them."""
