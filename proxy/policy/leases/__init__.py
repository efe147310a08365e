"""Limits that several proxies keep together, as pure decisions: `now` comes in, requests and holds go out.

    Hold     what one place (a backend, a tenant) lets this proxy use, followed by the Dispatcher
    Member   this proxy in its group: joined, rejoining or degraded; what to ask for, what to give back
    Book     what the store does with a request: the same rules as the Lua text in proxy/leases/sync.lua

Places are told by name: `b/NAME` is a backend with sequences, prefill tokens and KV tokens; `t/NAME` a tenant with
sequences. docs/several-proxies.md explains the rules.
"""
