{{/* image name with tag or digest */}}
{{- define "rdma.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ with .digest }}@{{ . }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* ServiceAccount whose token deletes refused pods; empty if the daemon deletes none */}}
{{- define "rdma.deleter" -}}
{{- if eq .Values.refusedPods "delete" }}{{ .Values.serviceAccountName | default "rdma-device-plugin" }}{{ end -}}
{{- end -}}

{{/* value of the daemon's option --report; empty if the daemon reports nothing to the API server */}}
{{- define "rdma.reported" -}}
{{- $topics := list -}}
{{- if .Values.report.events }}{{ $topics = append $topics "events" }}{{ end -}}
{{- if .Values.report.nodeCondition }}{{ $topics = append $topics "node-condition" }}{{ end -}}
{{ join "," $topics }}
{{- end -}}

{{/* name of the resource that the value nics selects */}}
{{- define "rdma.resource" -}}
{{- if eq .Values.nics "exclusive" }}{{ .Values.customResourceName | default .Values.exclusive.resource -}}
{{ else if eq .Values.nics "erdma" }}aliyun/erdma{{ else }}{{ .Values.customResourceName | default "rdma/hca" }}{{ end -}}
{{- end -}}

{{/* name of the resource that claims allocate; empty without dra.enabled */}}
{{- define "rdma.claimed" -}}
{{- if hasKey (.Values.config | default dict) "dra" -}}
{{ fail "config.dra: the chart has neither the mounts nor the rights for it; use dra.enabled, without config" }}
{{- end -}}
{{- if .Values.dra.enabled -}}
{{- if .Values.config -}}
{{ fail "dra.enabled: the chart cannot create DeviceClasses for the resources of config; remove dra.enabled or config" }}
{{- end -}}
{{ include "rdma.resource" . }}
{{- end -}}
{{- end -}}

{{/* ServiceAccount whose token the daemon has; empty if the daemon has no token */}}
{{- define "rdma.account" -}}
{{- if or (include "rdma.deleter" .) (include "rdma.claimed" .) (include "rdma.reported" .) }}{{ .Values.serviceAccountName | default "rdma-device-plugin" }}{{ end -}}
{{- end -}}

{{/* ServiceAccount of the daemon's pods, with or without a token; empty: the namespace's default account */}}
{{- define "rdma.podAccount" -}}
{{- if or (include "rdma.account" .) .Values.securityContextConstraints -}}
{{ .Values.serviceAccountName | default "rdma-device-plugin" }}
{{- else -}}
{{ .Values.serviceAccountName }}
{{- end -}}
{{- end -}}

{{/* values of chain with their defaults; chain: null means the defaults */}}
{{- define "rdma.chainValues" -}}
{{- $usual := dict
     "plugin" dict
     "capabilities" list
     "runtime" "containerd"
     "placement" "list"
     "binDir" "/opt/cni/bin"
     "confDir" "/etc/cni/net.d"
     "cacheDir" "/var/lib/cni/results" -}}
{{ toJson (mergeOverwrite $usual (deepCopy (.Values.chain | default dict))) }}
{{- end -}}

{{/* list of the directories of chain.binDir, in the order in which the runtime searches for plugins */}}
{{- define "rdma.binDirs" -}}
{{- $dirs := (include "rdma.chainValues" . | fromJson).binDir -}}
{{- if kindIs "string" $dirs }}{{ $dirs = list $dirs }}{{ end -}}
{{ toJson $dirs }}
{{- end -}}

{{/* list for the field environment of the resource. auto: with cdi [rails, nccl], without cdi [nccl], and without
     enableNonHostNetwork []. Containers with claims have RDMA_RAILS without this field */}}
{{- define "rdma.environment" -}}
{{- $nics := get .Values .Values.nics -}}
{{- if kindIs "slice" $nics.environment -}}
{{ toJson $nics.environment }}
{{- else if not .Values.enableNonHostNetwork -}}
[]
{{- else -}}
{{ ternary (list "rails" "nccl") (list "nccl") $nics.cdi | toJson }}
{{- end -}}
{{- end -}}

{{/* address of the daemon's metrics; for metrics.address: node, kubelet inserts the node's address */}}
{{- define "rdma.metricsHost" -}}
{{- $address := .Values.metrics.address -}}
{{- if eq $address "node" }}{{ $address = "[$(NODE_ADDRESS)]" }}{{ end -}}
{{- if regexMatch "^[^\\[].*:" $address }}{{ $address = printf "[%s]" $address }}{{ end -}}
{{ $address }}
{{- end -}}

{{/* volume with a token of the pod's ServiceAccount */}}
{{- define "rdma.token" -}}
projected:
  sources:
  - serviceAccountToken:
      path: token
      expirationSeconds: 3600
  - configMap:
      name: kube-root-ca.crt
      items:
      - key: ca.crt
        path: ca.crt
{{- end -}}

{{/* field chain of config.json, {} for its defaults; empty: the daemon does not change the node's CNI list */}}
{{- define "rdma.chain" -}}
{{- if .Values.config -}}
{{- $given := not (kindIs "invalid" .Values.config.chain) -}}
{{- if and .Values.enableNonHostNetwork (not $given) -}}
{{ fail "enableNonHostNetwork: config replaces this value; write chain into config (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- if $given }}{{ toJson .Values.config.chain }}{{ end -}}
{{- else if .Values.enableNonHostNetwork -}}
{{- $values := include "rdma.chainValues" . | fromJson -}}
{{- $plugin := dict "ipam" (dict "type" "rdma-ipam" "from" "parent") -}}
{{- if eq .Values.nics "exclusive" }}{{ $plugin = dict }}{{ end -}}
{{- if or (eq .Values.nics "exclusive") .Values.customResourceName }}{{ $_ := set $plugin "resources" (list (include "rdma.resource" .)) }}{{ end -}}
{{- if eq .Values.nics "erdma" }}{{ $plugin = dict "smcr" "annotation" }}{{ end -}}
{{- if ne .Values.kubeletDir "/var/lib/kubelet" -}}
{{- $_ := set $plugin "podResourcesSocket" (printf "%s/pod-resources/kubelet.sock" .Values.kubeletDir) -}}
{{- end -}}
{{- $chain := dict "plugin" (mergeOverwrite $plugin $values.plugin) -}}
{{- if ne $values.runtime "containerd" }}{{ $_ := set $chain "runtime" $values.runtime }}{{ end -}}
{{- if ne $values.placement "list" }}{{ $_ := set $chain "placement" $values.placement }}{{ end -}}
{{- if ne $values.confDir "/etc/cni/net.d" }}{{ $_ := set $chain "confDir" $values.confDir }}{{ end -}}
{{ toJson $chain }}
{{- end -}}
{{- end -}}

{{/* fails if memlock or limits is set without CDI entries or without rdma-cni: setting the limits needs both */}}
{{- define "rdma.limitsChecked" -}}
{{- $nics := get .Values .Values.nics -}}
{{- range $name := list "memlock" "limits" -}}
{{- if get $nics $name -}}
{{- if not (or $nics.cdi (include "rdma.claimed" $)) -}}
{{ fail (printf "%s.%s: the hook of a CDI entry sets the limit; set %s.cdi to true, set dra.enabled, or remove %s" $.Values.nics $name $.Values.nics $name) }}
{{- end -}}
{{- if not $.Values.enableNonHostNetwork -}}
{{ fail (printf "%s.%s: rdma-cni sets the limit, and only enableNonHostNetwork installs rdma-cni; set enableNonHostNetwork to true, or remove %s" $.Values.nics $name $name) }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* config.json: the value config if it is set, otherwise made from the other values */}}
{{- define "rdma.config" -}}
{{- if and .Values.config .Values.errors -}}
{{ fail "errors: config replaces this value; write errors into config (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- $reporters := ternary .Values.reporters (list "fw" "fw_fatal") (kindIs "slice" .Values.reporters) -}}
{{- $otherReporters := ne (join " " $reporters) "fw fw_fatal" -}}
{{- if and .Values.config .Values.fabric.enabled (not (get .Values.config "fabric")) -}}
{{ fail "fabric.enabled: config replaces this value; write fabric: true into config (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- if and .Values.config $otherReporters -}}
{{ fail "reporters: config replaces this value; write reporters into config (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- if and .Values.config (or .Values.lldp.listen .Values.lldp.file) -}}
{{ fail "lldp: config replaces this value; write lldp into config (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- if and .Values.lldp.listen .Values.lldp.file -}}
{{ fail "lldp: has listen: true and file; remove one of the two, because the daemon learns the switches from only one source" }}
{{- end -}}
{{- if and .Values.config .Values.customResourceName -}}
{{ fail "customResourceName: config replaces this value; write the resource's name into config (docs/device-plugin-conf.md)" }}
{{- end -}}
{{- if and .Values.customResourceName (eq .Values.nics "erdma") -}}
{{ fail "customResourceName: with nics: erdma the resource is aliyun/erdma, as with the eRDMA controller; remove customResourceName" }}
{{- end -}}
{{- if .Values.config -}}
{{ toJson .Values.config }}
{{- else -}}
{{- $config := dict -}}
{{- $chain := include "rdma.chain" . -}}
{{- if eq .Values.nics "shared" -}}
{{- $shared := .Values.shared -}}
{{- $environment := include "rdma.environment" . | fromJsonArray -}}
{{- if and (has "rails" $environment) (not $shared.cdi) -}}
{{ fail "shared.environment: rails needs CDI; set shared.cdi to true, or remove rails" }}
{{- end -}}
{{- include "rdma.limitsChecked" . -}}
{{- if $shared.cdi }}{{ $_ := set $config "cdi" true }}{{ end -}}
{{- if or $chain $shared.devices $shared.require $shared.parents $environment $shared.cdi .Values.customResourceName -}}
{{- $hca := dict "name" (include "rdma.resource" .) "kind" "shared" -}}
{{- with $shared.devices }}{{ $_ := set $hca "devices" . }}{{ end -}}
{{- with $shared.require }}{{ $_ := set $hca "require" . }}{{ end -}}
{{- with $shared.parents }}{{ $_ := set $hca "parents" . }}{{ end -}}
{{- with $environment }}{{ $_ := set $hca "environment" . }}{{ end -}}
{{- with $shared.memlock }}{{ $_ := set $hca "memlock" . }}{{ end -}}
{{- with $shared.limits }}{{ $_ := set $hca "limits" . }}{{ end -}}
{{- $_ := set $config "resources" (list $hca) -}}
{{- else -}}
{{- $_ := set $config "mode" "hca" -}}
{{- end -}}
{{- else if eq .Values.nics "exclusive" -}}
{{- $exclusive := .Values.exclusive -}}
{{- $environment := include "rdma.environment" . | fromJsonArray -}}
{{- if and (has "rails" $environment) (not $exclusive.cdi) -}}
{{ fail "exclusive.environment: rails needs CDI; set exclusive.cdi to true, or remove rails" }}
{{- end -}}
{{- include "rdma.limitsChecked" . -}}
{{- if $exclusive.cdi }}{{ $_ := set $config "cdi" true }}{{ end -}}
{{- $nic := dict "name" (include "rdma.resource" .) "kind" "exclusive" "devices" $exclusive.devices -}}
{{- with $environment }}{{ $_ := set $nic "environment" . }}{{ end -}}
{{- with $exclusive.memlock }}{{ $_ := set $nic "memlock" . }}{{ end -}}
{{- with $exclusive.limits }}{{ $_ := set $nic "limits" . }}{{ end -}}
{{- $_ := set $config "resources" (list $nic) -}}
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
{{- if include "rdma.claimed" . -}}
{{- $dra := dict -}}
{{- if ne .Values.dra.driverName "hca.rdma" }}{{ $_ := set $dra "driverName" .Values.dra.driverName }}{{ end -}}
{{- if .Values.dra.metadata }}{{ $_ := set $dra "metadata" true }}{{ end -}}
{{- if .Values.dra.evict }}{{ $_ := set $dra "evict" true }}{{ end -}}
{{- $_ := set $config "dra" $dra -}}
{{- end -}}
{{- with .Values.errors }}{{ $_ := set $config "errors" . }}{{ end -}}
{{- if .Values.fabric.enabled }}{{ $_ := set $config "fabric" true }}{{ end -}}
{{- if $otherReporters }}{{ $_ := set $config "reporters" $reporters }}{{ end -}}
{{- if .Values.lldp.listen }}{{ $_ := set $config "lldp" (dict "listen" true) }}{{ end -}}
{{- with .Values.lldp.file }}{{ $_ := set $config "lldp" (dict "file" .) }}{{ end -}}
{{ toJson $config }}
{{- end -}}
{{- end -}}

{{/* input of checksum/chain: the parts of config.json from which the daemon makes the entry of rdma-cni. These are chain,
     and the resources' names if chain does not have them. A jq command in docs/deploy.md makes the same input */}}
{{- define "rdma.entry" -}}
{{- $config := include "rdma.config" . | fromJson -}}
{{- if (($config.chain).plugin).resources -}}
{{ toJson $config.chain }}
{{- else -}}
{{- $names := list -}}
{{- range (list $config.resources $config.configList $config.resourceList) -}}
{{- range . }}{{ $names = append $names (list .name .resourcePrefix .resourceName) }}{{ end -}}
{{- end -}}
{{ toJson (list $config.chain $config.mode $config.customResourceName (not (kindIs "invalid" $config.erdma)) $names) }}
{{- end -}}
{{- end -}}

{{- /* field lldp of config.json */}}
{{- define "rdma.lldp" -}}
{{ include "rdma.config" . | fromJson | dig "lldp" dict | toJson }}
{{- end -}}

{{- /* directory from which node-feature-discovery's worker reads files with labels */}}
{{- define "rdma.nodeFeatures" -}}
/etc/kubernetes/node-feature-discovery/features.d
{{- end -}}

{{- /* directory from which Multus reads device information */}}
{{- define "rdma.deviceInfo" -}}
/var/run/k8s.cni.cncf.io/devinfo/dp
{{- end -}}

{{- /* affinity to nodes of an architecture for which the image has programs */}}
{{- define "rdma.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    - matchExpressions:
      - key: kubernetes.io/arch
        operator: In
        values: {{ toJson .Values.architectures }}
{{- end -}}
