{{- define "cottage.name" -}}
{{- if contains "cottage" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-cottage" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of one part; called with (list $ "part"). */}}
{{- define "cottage.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: cottage
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "cottage.labels" -}}
{{- $root := index . 0 -}}
{{ include "cottage.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "cottage.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Of a pod: everything of the Pod Security Standard "restricted". OnRootMismatch: else each mount makes keys readable by the group, which the program refuses. */}}
{{- define "cottage.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65432
runAsGroup: 65432
fsGroup: 65432
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "cottage.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Pods of one part keep apart, where there is room; called with (list $ "part"). */}}
{{- define "cottage.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "cottage.selector" . | nindent 6 }}
{{- end -}}

{{- define "cottage.databaseUrl" -}}
{{- if .Values.database.builtIn.enabled -}}
postgresql+asyncpg://cottage@{{ include "cottage.name" . }}-database/cottage
{{- else -}}
{{ .Values.database.url }}
{{- end -}}
{{- end -}}

{{/* A value in TOML. Numbers of a values file arrive as floats: whole ones are written as such. */}}
{{- define "cottage.toml" -}}
{{- if kindIs "slice" . -}}
[{{ range $i, $one := . }}{{ if $i }}, {{ end }}{{ include "cottage.toml" $one }}{{ end }}]
{{- else if kindIs "float64" . -}}
{{ if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if kindIs "string" . -}}
{{ mustToRawJson . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}
