"""A simulator of a model hub (API host and CDN host) that speaks the protocol of huggingface.co.

Start with `tests.support.hub.server.Hub`. Values (`repository`, `bodies`, `faults`), rules (`routes`, `api`, `limits`,
`signing`) and the wire (`wire`, `server`) are separate modules. Nothing here imports the product.
"""
