"""Ways to spread each layer: each file holds one `Strategy` and is an implementation by being here."""
