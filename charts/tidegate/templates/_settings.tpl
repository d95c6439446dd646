{{- /* Fields of OperatorSettings; what is not given keeps the default that stands there. */ -}}
{{- define "tidegate.settings" -}}
{{- $engine := .Values.engine -}}
- {name: TIDEGATE_ENGINE__IMAGE, value: {{ $engine.image | default (include "tidegate.image" .) | quote }}}
- {name: TIDEGATE_ENGINE__IMAGE_PULL_POLICY, value: {{ $engine.imagePullPolicy | default .Values.image.pullPolicy }}}
- {name: TIDEGATE_ENGINE__RUNNER, value: {{ $engine.runner }}}
- {name: TIDEGATE_LOG_LEVEL, value: {{ .Values.logLevel }}}
- {name: TIDEGATE_PORT, value: {{ .Values.port | quote }}}
- {name: TIDEGATE_DRAIN_TOKEN_FILE, value: /etc/tidegate/drain/token}
- {name: TIDEGATE_ELECTION__NAMESPACE, value: {{ .Release.Namespace }}}
- {name: TIDEGATE_ELECTION__NAME, value: {{ include "tidegate.name" . }}}
{{- if .Values.networkPolicy.enabled }}
- {name: TIDEGATE_ADMIN_PEERS, value: {{ include "tidegate.adminPeers" . | quote }}}
{{- with .Values.networkPolicy.clients }}
- {name: TIDEGATE_CLIENT_PEERS, value: {{ toJson . | quote }}}
{{- end }}
{{- end }}
{{- if .Values.monitoring.podMonitors }}
- {name: TIDEGATE_MONITORING__POD_MONITORS, value: "true"}
- {name: TIDEGATE_MONITORING__LABELS, value: {{ toJson .Values.monitoring.labels | quote }}}
{{- end }}
- {name: TIDEGATE_PRICES_FILE, value: /etc/tidegate/prices/prices.yaml}
{{- with .Values.watchNamespaces }}
- {name: TIDEGATE_NAMESPACES, value: {{ toJson . | quote }}}
{{- end }}
{{- with $engine.simPreemptionsPerMinute }}
- {name: TIDEGATE_ENGINE__SIM_PREEMPTIONS_PER_MINUTE, value: {{ quote . }}}
{{- end }}
{{- with $engine.podTemplatePatch }}
- {name: TIDEGATE_ENGINE__POD_TEMPLATE_PATCH, value: {{ toJson . | quote }}}
{{- end }}
{{- range $group, $fields := pick .Values "hub" "scrape" "reconcile" "election" }}
{{- range $field, $value := $fields }}
- {name: {{ printf "TIDEGATE_%s__%s" $group (snakecase $field) | upper }}, value: {{ quote $value }}}
{{- end }}
{{- end }}
{{- end }}
