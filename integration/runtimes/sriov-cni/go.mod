// sriov-cni v2.1.0 has no go.mod. The API of its dependencies is that of these versions.
module github.com/intel/sriov-cni

go 1.24

require (
	github.com/containernetworking/cni v0.6.0
	github.com/containernetworking/plugins v0.7.5
	github.com/vishvananda/netlink v1.1.0
)

require (
	github.com/coreos/go-iptables v0.8.0 // indirect
	github.com/vishvananda/netns v0.0.0-20191106174202-0a2b9b5464df // indirect
	golang.org/x/sys v0.0.0-20190606203320-7fc4e5ec1444 // indirect
)
