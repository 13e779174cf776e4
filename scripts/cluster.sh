# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# cluster.sh - what a cluster in the lab starts from. To be sourced in the root of the tree.

# cluster_environment DIRECTORY: names in the environment what make_cluster makes there
cluster_environment() {
	export RDMA_LAB_IMAGE=$1/rdma-device-plugin.oci.tar RDMA_LAB_CLUSTER=$1/seed
}

# make_cluster SEED [RELEASE]: the image, Kubernetes' own programs, and what the control plane starts from, which the
# program SEED (integration/src/bin/cluster-seed.rs) leaves
make_cluster() {
	# an image of its own: the guest of another machine may be reading dist/'s
	scripts/image --binaries "$PWD/dist" --output "$RDMA_LAB_IMAGE"
	integration/kubernetes/build "${2:-1.34}" >/dev/null
	RDMA_KUBERNETES=$(integration/kubernetes/build "${2:-1.34}")
	export RDMA_KUBERNETES
	"$1" "$RDMA_LAB_CLUSTER"
}
