// sriov-network-device-plugin v3.0.0 has no go.mod. Kubernetes 1.14 is the release of its time; the others are later.
module github.com/intel/sriov-network-device-plugin

go 1.24

require (
	github.com/Mellanox/rdmamap v1.1.0
	github.com/gogo/protobuf v1.3.2
	github.com/golang/glog v1.2.4
	github.com/jaypipes/ghw v0.12.0
	github.com/pkg/errors v0.9.1
	github.com/vishvananda/netlink v1.1.0
	golang.org/x/net v0.41.0
	google.golang.org/grpc v1.73.0
	k8s.io/kubernetes v1.14.0
)

require (
	github.com/ghodss/yaml v1.0.0 // indirect
	github.com/jaypipes/pcidb v1.0.0 // indirect
	github.com/mitchellh/go-homedir v1.1.0 // indirect
	github.com/vishvananda/netns v0.0.0-20191106174202-0a2b9b5464df // indirect
	golang.org/x/sys v0.33.0 // indirect
	golang.org/x/text v0.26.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250324211829-b45e905df463 // indirect
	google.golang.org/protobuf v1.36.6 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
)
