# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# cluster.sh - makes the files for clusters in the lab. To be sourced in the root of the tree.

# cluster_environment DIRECTORY [RELEASE]: sets the variables with the paths of the files that
# make_cluster makes
cluster_environment() {
	export RDMA_LAB_IMAGE=$1/rdma-device-plugin.oci.tar RDMA_KUBERNETES
	RDMA_KUBERNETES=$(integration/kubernetes/build "${2:-1.34}")
}

# make_cluster DIRECTORY [RELEASE]: builds the image in DIRECTORY, and Kubernetes' programs in the lab's cache
make_cluster() {
	# each machine has its own image, because the guest of another machine may be reading the one in
	# dist/
	scripts/image --arch amd64 --binaries "$PWD/dist" --output "$1/rdma-device-plugin.oci.tar"
	integration/kubernetes/build "${2:-1.34}" >/dev/null
}
