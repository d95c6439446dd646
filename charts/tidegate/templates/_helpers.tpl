{{- define "tidegate.name" -}}
{{- contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* Cluster-wide objects of releases in several namespaces must not meet. */ -}}
{{- define "tidegate.clusterName" -}}
{{- printf "%s-%s" (include "tidegate.name" .) .Release.Namespace | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tidegate.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "tidegate.name" .) }}
{{- end }}

{{- define "tidegate.drainSecret" -}}
{{- .Values.drainToken.existingSecret | default (printf "%s-drain-token" (include "tidegate.name" .)) }}
{{- end }}

{{- define "tidegate.prices" -}}
{{- .Values.prices.configMap | default (printf "%s-prices" (include "tidegate.name" .)) }}
{{- end }}

{{- define "tidegate.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion }}
{{- printf "%s%s" .Values.image.repository (.Values.image.digest | empty | ternary (printf ":%s" $tag) (printf "@%s" .Values.image.digest)) }}
{{- end }}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Who may reach admin ports: the operator, and whoever reads metrics. */ -}}
{{- define "tidegate.adminPeers" -}}
{{- $home := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) }}
{{- $operator := dict "namespaceSelector" $home "podSelector" (dict "matchLabels" (include "tidegate.selector" . | fromYaml)) }}
{{- prepend .Values.networkPolicy.monitoring $operator | toJson }}
{{- end }}
