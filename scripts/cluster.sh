# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# cluster.sh - makes the image and Kubernetes' programs for clusters in the lab. RELEASE is Kubernetes' release,
# default 1.34. To be sourced in the root of the tree.

# cluster_environment DIRECTORY [RELEASE]: sets RDMA_LAB_IMAGE and RDMA_KUBERNETES to the paths of the files that
# make_cluster makes
cluster_environment() {
	export RDMA_LAB_IMAGE=$1/rdma-device-plugin.oci.tar RDMA_KUBERNETES
	RDMA_KUBERNETES=$(integration/kubernetes/build "${2:-1.34}")
}

# make_cluster DIRECTORY [RELEASE]: makes the image of dist/'s binaries in DIRECTORY, and builds Kubernetes' programs in
# the lab's cache
make_cluster() {
	# each machine has its own image file, because another machine's guest may be reading dist/'s file
	scripts/image --arch amd64 --binaries "$PWD/dist" --output "$1/rdma-device-plugin.oci.tar"
	integration/kubernetes/build "${2:-1.34}" >/dev/null
}
