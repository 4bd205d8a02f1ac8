{{- define "ai-models.labels" -}}
heritage: deckhouse
module: ai-models
app.kubernetes.io/name: ai-models
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
