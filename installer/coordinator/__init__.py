"""How a coordinator gets onto a machine of its own, and is watched there.

cottage-coordinator.service   for /etc/systemd/system; settings in /etc/cottage/coordinator.toml
Dockerfile                    the same in a container; installer/compose/ has it beside its database, relay and proxy
prometheus.yaml               what Prometheus needs to ask it for its metrics, with the alerts
alerts.yaml                   rules of Prometheus; each names its heading of docs/how-to/runbook.md
dashboard.json                for Grafana, over the same metrics
"""
