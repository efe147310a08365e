{{- define "lanewise.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lanewise.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lanewise.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "lanewise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lanewise.account" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}{{ include "lanewise.fullname" . }}
{{- else }}default{{ end }}
{{- end }}

{{- /* How many proxies there may be at once. */ -}}
{{- define "lanewise.proxies" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.maxReplicas }}{{ else }}{{ .Values.replicaCount }}{{ end }}
{{- end }}

{{- define "lanewise.check" -}}
{{- if and (eq .Values.sharing.mode "none") (gt (int .Values.replicaCount) 1) }}
{{- fail "replicaCount is more than 1: set sharing.mode to static or redis, or the limits of all proxies add up in front of the engines" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (ne .Values.sharing.mode "redis") }}
{{- fail "autoscaling needs sharing.mode redis: with any other the limits change with the number of proxies" }}
{{- end }}
{{- if and (eq .Values.sharing.mode "redis") (not .Values.sharing.store) }}
{{- fail "sharing.mode redis needs sharing.store, such as redis://HOST:6379/0" }}
{{- end }}
{{- end }}
