{{/* the image with its tag */}}
{{- define "rdma.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* config.json, as the switches say */}}
{{- define "rdma.config" -}}
{{- if .Values.config -}}
{{ toJson .Values.config }}
{{- else if eq .Values.nics "shared" -}}
{"mode":"hca"}
{{- else if eq .Values.nics "exclusive" -}}
{{ dict "cdi" true "resources" (list (dict
     "name" .Values.exclusive.resource
     "kind" "exclusive"
     "devices" .Values.exclusive.devices)) | toJson }}
{{- else -}}
{{- $erdma := dict -}}
{{- with .Values.preferDriver }}{{ $_ := set $erdma "preferDriver" . }}{{ end -}}
{{- if not .Values.loadDriver }}{{ $_ := set $erdma "reloadDriver" false }}{{ end -}}
{{- $config := dict "erdma" $erdma -}}
{{- if .Values.allocateAllDevices -}}
{{- $_ := set $config "resources" (list (dict
     "name" "aliyun/erdma"
     "kind" "perNic"
     "allocate" "all"
     "devices" (list (dict "driver" "erdma")))) -}}
{{- end -}}
{{ toJson $config }}
{{- end -}}
{{- end -}}
