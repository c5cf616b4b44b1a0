"""The registry of known voices over HTTP, and a page for people: `duoplda serve` (docs/service.md).

    socket -> server (HTTP, slow connections) -> gate (hosts, tokens, limits, log) -> routes -> duoplda.voices

It needs the extra `serve`. There is no logic here beyond that of HTTP: a route reads the request, calls one method of
the registry, and sends its answer.
"""
