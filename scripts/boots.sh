# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# boots.sh - defines the machines of the lab, and boots a machine, which runs its test programs one after the other.
# To be sourced, after programs.sh and cluster.sh. A program must not leave objects on the machine for the next program.

BOOTS=() # names of the machines. The first takes longest of the machines that `scripts/test` boots without --full
declare -A BOOT_PROGRAMS BOOT_OPTIONS BOOT_IN_FULL

# machine NAME PROGRAMS OPTION...: defines a machine. PROGRAMS is a pattern of test programs (programs.sh), and OPTIONs are
# options of integration/lab/vm.
machine() {
	BOOTS+=("$1")
	BOOT_PROGRAMS[$1]=$2
	BOOT_OPTIONS[$1]=$(printf '%q ' "${@:3}")
}

# in_full NAME PROGRAMS OPTION...: defines a machine like `machine`. Only `scripts/test --full` boots it.
in_full() {
	machine "$@"
	BOOT_IN_FULL[$1]=1
}

machine exclusive 'integration/lab_(exclusive|ping|vf|kubelet_exclusive|driver_settings)' --tier full --exclusive --timeout 3600
machine bonds 'integration/lab_share' --tier fast --shared --timeout 2400
machine erdma 'integration/lab_erdma(_(claims|driver|faults|pods|node))?' --tier erdma --exclusive --monitor --timeout 1800
machine cluster 'integration/lab_cluster' --tier full --shared --memory 4096 --timeout 2400
machine exclusive-containers 'integration/lab_(pods_exclusive|smc_exclusive|crash)' \
	--tier full --exclusive --memory 2560 --timeout 2400
machine fast 'rdma-netns/rdma|integration/lab_(fabric|smc_readout)' --tier fast --exclusive --timeout 1800
machine pods 'integration/lab_pods_(share|limits)' --tier full --shared --memory 4096 --timeout 1800
machine installed 'integration/lab_(installed|kubelet_share|shared)' --tier full --shared --memory 4096 --timeout 1800
machine reboot 'integration/lab_reboot' --tier full --exclusive --memory 2560 --timeout 1200 \
	--disk /var/lib/cni --disk /var/lib/kubelet --disk /var/lib/containerd --disk /etc/cni/net.d \
	--disk /opt/cni/bin --disk /var/lib/reboot
machine mlx5 'integration/lab_mlx5(_ping)?' --tier mlx5 --exclusive --timeout 1500
machine rocev1-shared 'integration/lab_smc_shared' --tier full --shared --rocev1 --timeout 900
machine erdma-pair 'integration/lab_erdma_pair' --tier erdma --exclusive --memory 1024 --timeout 600
machine stock-rxe 'integration/lab_(stock_rxe|siw)' --tier fast --stock-rxe --timeout 600

for runtime in containerd-2 crio; do
	in_full "cluster-$runtime" 'integration/lab_cluster' --tier full --shared --memory 4096 --timeout 2400
	in_full "pods-$runtime" 'integration/lab_(pods_share|pods_limits|installed|placement|status)' --tier full --shared --memory 4096 --timeout 2400
	in_full "exclusive-$runtime" 'integration/lab_pods_exclusive' --tier full --exclusive --memory 2560 --timeout 1500
done

in_full chained 'integration/lab_chained' --tier full --exclusive --timeout 600
in_full mlx5-virtual 'integration/lab_mlx5_vf' --tier mlx5 --virtual --exclusive --timeout 900
in_full mlx5-infiniband 'integration/lab_mlx5_ib' --tier mlx5 --infiniband --exclusive --timeout 1500
in_full mlx5-pair 'integration/lab_mlx5_pair' --tier mlx5 --exclusive --timeout 1500
in_full erdma-removed 'integration/lab_erdma_removed' --tier erdma --exclusive --timeout 600 \
	--expect 'unregister_netdevice: waiting'
in_full erdma-roce 'integration/lab_erdma_(roce|smc)' --tier erdma --exclusive --erdma-roce --timeout 600
in_full cluster-two-nodes 'integration/lab_two_nodes' --tier full --shared --memory 4096 --timeout 2400
in_full cluster-limits 'integration/lab_cluster_limits' --tier full --shared --memory 4096 --timeout 1500
in_full cluster-limits-systemd 'integration/lab_cluster_limits' --tier full --shared --memory 4096 --timeout 1500
in_full cluster-erdma 'integration/lab_cluster_erdma' --tier erdma --shared --memory 4096 --timeout 900
in_full cluster-mlx5 'integration/lab_cluster_migration' --tier mlx5 --shared --memory 4096 --timeout 1800
in_full cluster-dranet 'integration/lab_cluster_dranet' --tier mlx5 --virtual --exclusive --memory 4096 --timeout 1800
in_full cluster-multus 'integration/lab_cluster_multus' --tier full --exclusive --memory 2800 --timeout 2400
in_full cluster-1.37 'integration/lab_cluster' --tier full --shared --memory 4096 --timeout 2400
in_full cluster-claims 'integration/lab_claims' --tier full --shared --memory 4096 --timeout 1500
in_full cluster-claims-1.36 'integration/lab_claims' --tier full --shared --memory 4096 --timeout 1500
in_full cluster-claims-killed 'integration/lab_claims_killed' --tier full --shared --memory 4096 --timeout 2400
in_full cluster-claims-exclusive 'integration/lab_claims_exclusive' --tier full --exclusive --memory 4096 --timeout 1500
in_full cluster-claims-1.34 'integration/lab_claims_exclusive' --tier full --exclusive --memory 4096 --timeout 1500
in_full cluster-claims-reboot 'integration/lab_claims_reboot' --tier full --exclusive --memory 4096 --timeout 1500 \
	--disk /var/lib/cni --disk /var/lib/kubelet --disk /var/lib/containerd --disk /etc/cni/net.d --disk /opt/cni/bin \
	--disk /var/lib/reboot
in_full day 'integration/lab_day' --tier full --exclusive --memory 2560 --monitor --timeout 3600
for series in 5.10 6.1 7.3; do
	in_full "kernel-$series" 'integration/lab_(kernels|kubelet_share|fabric)' --kernel "$series" \
		--tier full --shared --memory 4096 --timeout 3000
done
for series in 5.10 6.1 7.3; do
	in_full "mlx5-$series" 'integration/lab_mlx5' --kernel "$series" --tier mlx5 --exclusive --timeout 1500
done

# boot NAME [PATTERN [WORD]]: boots the machine, and runs the tests whose names contain WORD (default: all) in the
# machine's programs that match PATTERN (default: all)
boot() {
	local name=$1 pattern=${2:-.*} word=${3-} options chosen vm=(integration/lab/vm) below=() made
	eval "options=(${BOOT_OPTIONS[$name]})"
	mapfile -t chosen < <(both "${BOOT_PROGRAMS[$name]}" "$pattern")
	((${#chosen[@]})) || {
		echo "the machine $name has no program $pattern"
		return 1
	}
	made=$(realpath "${CARGO_TARGET_DIR:-target}")/lab-$name
	make_for "$name" "$made"
	[[ $name != *-pair ]] || vm=(integration/lab/pair)
	# cluster-lab also starts a control plane on the host, to which the machine's kubelet connects
	[[ $name != cluster* ]] || vm=("${CARGO_TARGET_DIR:-target}/debug/cluster-lab" "$made/pki" "$(nodes_of "$name")")
	[[ $name != *-systemd ]] || below=("$PWD/integration/lab/under-systemd")
	"${vm[@]}" "${options[@]}" -- "${below[@]}" "$PWD/scripts/run-programs" "${chosen[@]}" -- --test-threads=1 ${word:+"$word"}
}

# left_out MACHINE: succeeds if only `scripts/test --full` boots the machine, and this run is not `--full`
left_out() { [[ -n ${BOOT_IN_FULL[$1]-} && ${RDMA_TEST_FULL-} != 1 ]]; }

# boots_with PATTERN: prints the machines that have a program that matches PATTERN. Without --full, omits
# machines that only `scripts/test --full` boots, unless no other machine has such a program.
boots_with() {
	local name usual=() others=()
	for name in "${BOOTS[@]}"; do
		[[ -n $(both "${BOOT_PROGRAMS[$name]}" "$1") ]] || continue
		if left_out "$name"; then others+=("$name"); else usual+=("$name"); fi
	done
	((${#usual[@]})) || usual=("${others[@]}")
	printf '%s\n' "${usual[@]}"
}

# make_for MACHINE DIRECTORY: makes the files that tests inside the machine need, in DIRECTORY and in the cache, and
# exports variables with their paths
make_for() {
	local of
	for of in $(others_of "$1"); do
		integration/runtimes/build "${of%:*}" >/dev/null
		export "${of#*:}=$(integration/runtimes/build "${of%:*}")"
	done
	case $1 in
	*-containerd-2) name_runtime containerd ;;
	*-crio) name_runtime crio ;;
	kernel-* | mlx5-[567].*) integration/lab/kernel "${1#*-}" >/dev/null ;;
	cluster-1.37 | cluster-claims*) export RDMA_TEST_FULL=0 ;;
	esac
	case $1 in
	installed | pods-*)
		scripts/versions
		# each machine has its own image file, because another machine's guest may be reading dist/'s file
		export RDMA_LAB_IMAGE=$2/rdma-device-plugin.oci.tar
		scripts/image --arch amd64 --binaries "$PWD/dist" --output "$RDMA_LAB_IMAGE"
		;;
	cluster*)
		make_cluster "$2" "$(kubernetes_of "$1")"
		cluster_environment "$2" "$(kubernetes_of "$1")"
		[[ $1 != cluster-two-nodes ]] || {
			integration/coredns/build >/dev/null
			RDMA_COREDNS=$(integration/coredns/build)
			export RDMA_COREDNS
		}
		[[ $1 != cluster-dranet ]] || export RDMA_LAB_NRI=1
		[[ ${RDMA_TEST_FULL-} != 1 && $1 != cluster-@(two-nodes|mlx5|dranet|multus) ]] || {
			integration/helm/build >/dev/null
			RDMA_HELM=$(integration/helm/build)
			export RDMA_HELM
		}
		;;
	esac
}

# others_of MACHINE: prints NAME:VARIABLE for each other project whose programs the machine's tests use. NAME is the
# argument of integration/runtimes/build, VARIABLE the environment variable with the programs' directory
others_of() {
	case $1 in
	chained) echo rdma-plugin:RDMA_PLUGIN sriov-cni:RDMA_SRIOV_CNI ;;
	cluster-mlx5) echo shared-device-plugin:RDMA_SHARED_DEVICE_PLUGIN ;;
	cluster-dranet) echo dranet:RDMA_DRANET ;;
	cluster-multus)
		echo multus:RDMA_MULTUS rdma-plugin:RDMA_PLUGIN sriov-cni:RDMA_SRIOV_CNI whereabouts:RDMA_WHEREABOUTS \
			sriov-network-device-plugin:RDMA_SRIOV_DEVICE_PLUGIN
		;;
	esac
}

# nodes_of MACHINE: prints the number of equal nodes of MACHINE's cluster
nodes_of() { [[ $1 == cluster-two-nodes ]] && echo 2 || echo 1; }

# kubernetes_of MACHINE: prints the release of the machine's control plane and kubelet
kubernetes_of() {
	case $1 in
	*-1.3[46]) echo "${1##*-}" ;;
	cluster-1.37 | cluster-claims*) echo 1.37 ;;
	*) echo 1.34 ;;
	esac
}

# name_runtime NAME: sets the environment for the container runtime NAME, which integration/runtimes builds, and for CNI
# 1.1's plugins. Excludes the tests that only `scripts/test --full` runs.
name_runtime() {
	export RDMA_LAB_RUNTIME=$1 RDMA_LAB_RUNTIME_PROGRAMS RDMA_LAB_CNI_PLUGINS RDMA_TEST_FULL=0
	RDMA_LAB_RUNTIME_PROGRAMS=$(integration/runtimes/build "$1")
	RDMA_LAB_CNI_PLUGINS=$(integration/runtimes/build plugins)
}

# can_name_runtime NAME: succeeds if name_runtime works, else prints the reason
can_name_runtime() {
	integration/runtimes/build --check "$1" && integration/runtimes/build --check plugins
}

# cannot_boot MACHINE: prints the reason if this host cannot boot the machine or cannot make its files (make_for)
cannot_boot() {
	local of
	for of in $(others_of "$1"); do
		integration/runtimes/build --check "${of%:*}" || return 0
	done
	case $1 in
	*-containerd-2) can_name_runtime containerd || return 0 ;;
	*-crio) can_name_runtime crio || return 0 ;;
	kernel-* | mlx5-[567].*) integration/lab/kernel --check "${1#*-}" || return 0 ;;
	esac
	[[ $1 != *-systemd || -x /lib/systemd/systemd ]] || echo "there is no /lib/systemd/systemd (apt-get install systemd)"
	case $1 in
	installed | pods-*)
		scripts/versions --check || echo "this clone lacks the commit whose rdma-cni the tests need; in a shallow clone: git fetch --unshallow"
		;;
	cluster*)
		integration/kubernetes/build --check "$(kubernetes_of "$1")" || return 0
		[[ $1 != cluster-two-nodes ]] || {
			integration/coredns/build --check || return 0
			integration/helm/build --check || return 0
		}
		[[ $1 != cluster-@(mlx5|dranet|multus) ]] || integration/helm/build --check || return 0
		# with --full the machine 'cluster' also tests the chart, which needs helm
		[[ $1 != cluster || ${RDMA_TEST_FULL-} != 1 ]] || integration/helm/build --check || true
		;;
	esac
}
