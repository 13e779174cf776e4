# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# cluster.sh - clusters in the lab. To be sourced in the root of the tree.

# cluster_environment DIRECTORY [RELEASE]: sets the variables that name the files of make_cluster
cluster_environment() {
	export RDMA_LAB_IMAGE=$1/rdma-device-plugin.oci.tar RDMA_KUBERNETES
	RDMA_KUBERNETES=$(integration/kubernetes/build "${2:-1.34}")
}

# make_cluster DIRECTORY [RELEASE]: builds the image in DIRECTORY, and Kubernetes' own programs
make_cluster() {
	# an image of its own: the guest of another machine may be reading dist/'s
	scripts/image --arch amd64 --binaries "$PWD/dist" --output "$1/rdma-device-plugin.oci.tar"
	integration/kubernetes/build "${2:-1.34}" >/dev/null
}
