{{/* the image with its tag */}}
{{- define "rdma.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* chain of config.json, {} for all its defaults; empty: the node's network is left as it is */}}
{{- define "rdma.chain" -}}
{{- if .Values.config -}}
{{- $given := not (kindIs "invalid" .Values.config.chain) -}}
{{- if and .Values.enableNonHostNetwork (not $given) -}}
{{ fail "enableNonHostNetwork: config takes the place of the switches; put chain into it (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- if $given }}{{ toJson .Values.config.chain }}{{ end -}}
{{- else if .Values.enableNonHostNetwork -}}
{{- $plugin := dict "ipam" (dict "type" "rdma-ipam" "from" "parent") -}}
{{- if eq .Values.nics "exclusive" }}{{ $plugin = dict "resources" (list .Values.exclusive.resource) }}{{ end -}}
{{- if eq .Values.nics "erdma" }}{{ $plugin = dict "smcr" "annotation" }}{{ end -}}
{{- $chain := dict "plugin" (mergeOverwrite $plugin (deepCopy .Values.chain.plugin)) -}}
{{- if ne .Values.chain.runtime "containerd" }}{{ $_ := set $chain "runtime" .Values.chain.runtime }}{{ end -}}
{{- if ne .Values.chain.confDir "/etc/cni/net.d" }}{{ $_ := set $chain "confDir" .Values.chain.confDir }}{{ end -}}
{{ toJson $chain }}
{{- end -}}
{{- end -}}

{{/* config.json, as the switches say */}}
{{- define "rdma.config" -}}
{{- if .Values.config -}}
{{ toJson .Values.config }}
{{- else -}}
{{- $config := dict -}}
{{- $chain := include "rdma.chain" . -}}
{{- if eq .Values.nics "shared" -}}
{{- if $chain -}}
{{- $_ := set $config "resources" (list (dict "name" "rdma/hca" "kind" "shared")) -}}
{{- else -}}
{{- $_ := set $config "mode" "hca" -}}
{{- end -}}
{{- else if eq .Values.nics "exclusive" -}}
{{- $_ := set $config "cdi" true -}}
{{- $_ := set $config "resources" (list (dict
     "name" .Values.exclusive.resource
     "kind" "exclusive"
     "devices" .Values.exclusive.devices)) -}}
{{- else -}}
{{- $erdma := dict -}}
{{- with .Values.preferDriver }}{{ $_ := set $erdma "preferDriver" . }}{{ end -}}
{{- if not .Values.loadDriver }}{{ $_ := set $erdma "reloadDriver" false }}{{ end -}}
{{- $_ := set $config "erdma" $erdma -}}
{{- if .Values.allocateAllDevices -}}
{{- $_ := set $config "resources" (list (dict
     "name" "aliyun/erdma"
     "kind" "perNic"
     "allocate" "all"
     "devices" (list (dict "driver" "erdma")))) -}}
{{- end -}}
{{- end -}}
{{- with $chain }}{{ $_ := set $config "chain" (fromJson .) }}{{ end -}}
{{ toJson $config }}
{{- end -}}
{{- end -}}
