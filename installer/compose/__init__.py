"""A whole network's servers as containers: `docker compose up`, from this folder; docs/how-to/operate.md says how.

compose.yaml      two coordinators, PostgreSQL, a relay, a proxy with TLS, Prometheus; Grafana and a test ledger as profiles
.env.example      all settings; copied to .env
Caddyfile         the proxy: TLS, and whichever coordinator is ready
prometheus.yaml   what Prometheus asks; its rules are ../coordinator/alerts.yaml
grafana/          where Grafana finds Prometheus, and ../coordinator/dashboard.json
"""
