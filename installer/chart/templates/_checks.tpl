{{/* Values that do not go together; what one value may be is in values.schema.json. */}}
{{- define "cottage.checks" -}}
{{- $files := .Values.files -}}
{{- $database := .Values.database -}}
{{- if and $database.builtIn.enabled $database.url -}}
{{- fail "database.url and database.builtIn.enabled: name your PostgreSQL, or have the chart bring one up" -}}
{{- end -}}
{{- if not (or $database.builtIn.enabled $database.url) -}}
{{- fail "database.url is missing: name a PostgreSQL, as postgresql+asyncpg://cottage@HOST/cottage, or set database.builtIn.enabled for a trial" -}}
{{- end -}}
{{- if and $files.bucket.url (not $files.bucket.keySecret) -}}
{{- fail "files.bucket.keySecret is missing: with a bucket pods keep nothing, so the coordinator's key has to be in a Secret" -}}
{{- end -}}
{{- if and (not $files.bucket.url) (or $files.bucket.secret $files.bucket.keySecret) -}}
{{- fail "files.bucket.secret and files.bucket.keySecret change nothing without files.bucket.url" -}}
{{- end -}}
{{- if and $files.bucket.url $files.claim.existing -}}
{{- fail "files.bucket.url and files.claim.existing: files lie in a bucket, or on a volume" -}}
{{- end -}}
{{- if and (not $files.bucket.url) (not $files.claim.existing) (gt (int .Values.coordinator.replicas) 1) (ne $files.claim.accessMode "ReadWriteMany") -}}
{{- fail "files.claim.accessMode: two coordinators share the volume, so it has to be ReadWriteMany; or name a bucket, or set coordinator.replicas to 1" -}}
{{- end -}}
{{- if and .Values.relay.enabled (not .Values.relay.secret) -}}
{{- fail "relay.secret is missing: a Secret with the relay's key and shared secret; docs/how-to/kubernetes.md says how to make it" -}}
{{- end -}}
{{- if and .Values.relay.enabled (not .Values.relay.image) -}}
{{- fail "relay.image is missing: name the image that installer/relay/Dockerfile makes" -}}
{{- end -}}
{{- if and .Values.relay.enabled (gt (int .Values.relay.minPort) (int .Values.relay.maxPort)) -}}
{{- fail "relay.minPort is above relay.maxPort" -}}
{{- end -}}
{{- if and .Values.monitoring.enabled (not .Values.monitoring.keySecret) -}}
{{- fail "monitoring.keySecret is missing: a Secret whose key `key` is what `cottage accounts key NAME --scope operate` prints" -}}
{{- end -}}
{{- end -}}
