"""How a relay gets onto a server: a systemd unit and a container.

cottage-relay.service   for /etc/systemd/system; options in /etc/cottage/relay.env
Dockerfile, compose.yaml  the same in a container, on the host's network
"""
