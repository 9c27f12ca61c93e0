{{- define "node.name" -}}
{{- if contains "cottage" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-cottage" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of what belongs to no namespace. */}}
{{- define "node.wide" -}}
{{ .Release.Namespace }}-{{ include "node.name" . }}
{{- end -}}

{{- define "node.selector" -}}
app.kubernetes.io/name: cottage-node
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "node.labels" -}}
{{ include "node.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Of pods that agents make: desktop/agent/cluster/manifest.py has these labels. */}}
{{- define "node.workers" -}}
app.kubernetes.io/name: cottage-node
app.kubernetes.io/component: worker
{{- end -}}
