# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# functions.sh - shell functions that add the modelled PCI functions of the tiers erdma and mlx5 to a VM, and that start
# the process that models the PCI functions. To be sourced by vm and pair, which set tier, erdma_protocol, link,
# virtual, functions and tick; vm also sets node, pair and qemu_args.
# shellcheck disable=SC2154

# find_model: sets 'model' to the path of the program that models the tier's functions
find_model() {
	local name=RDMA_LAB_${tier^^}_MODEL
	model=${!name:-${CARGO_TARGET_DIR:-$LAB/../../target}/debug/$tier-model}
	[[ -x $model ]] || die "--tier $tier: there is no $model: run 'cargo build --package hardware'," \
		"or set $name to the program that models the functions"
}

# function_device ID BUS ADDRESS SOCKET [OPTION]: adds a modelled function to qemu_args. OPTION is a JSON member with a
# comma. Disables the ROM BAR, which QEMU adds by default: the driver erdma refuses a function with a ROM BAR.
function_device() {
	qemu_args+=(-device "$(printf '{"driver":"vfio-user-pci","id":"%s","bus":"%s","addr":"%s","rombar":0,%s
		"socket":{"type":"unix","path":"%s"}}' "$1" "$2" "$3" "${5-}" "$4")")
}

# name_functions NODE SOCKETS: adds the functions of machine NODE to 'functions', the arguments of the model. SOCKETS is
# the prefix of the sockets' paths, SOCKETS0 and SOCKETS1, here and below.
name_functions() {
	local nic mac
	case $tier in
	erdma)
		for nic in 0 1; do
			mac=52:54:00:ee:0$1:0$((nic + 1))
			functions+=("$2$nic=$mac$([[ $erdma_protocol == iwarp ]] || echo ",$erdma_protocol")")
		done
		;;
	mlx5)
		mac=52:54:00:bb:0$1:0
		if ((virtual)); then
			functions+=("${2}0=${mac}1,virtual" "${2}1=${mac}2,virtual")
		else
			functions+=("${2}0=${mac}1+${2}1=${mac}2")
		fi
		;;
	esac
}

# add_erdma SOCKETS: adds to each NUMA node a virtio NIC, and an eRDMA function with the NIC's MAC. If 'pair' is not
# empty, also connects the NICs to the other machine.
add_erdma() {
	local nic wire
	for nic in 0 1; do
		qemu_args+=(
			-device "i82801b11-bridge,id=bridge$nic,bus=pxb$nic"
			-device "virtio-net-pci,id=nic$nic,bus=bridge$nic,addr=1,netdev=hub$nic,mac=52:54:00:ee:0$node:0$((nic + 1))"
		)
		function_device "function$nic" "bridge$nic" 2 "$1$nic"
	done
	if [[ -n $pair ]]; then
		# the first machine listens, and the second connects
		[[ $node == 1 ]] && wire=server=on || wire=server=off,reconnect-ms=200
		qemu_args+=(-netdev "stream,id=wire,$wire,addr.type=unix,addr.path=${pair//,/,,}/wire"
			-netdev "hubport,id=hub2,hubid=1,netdev=wire")
	fi
}

# add_mlx5 SOCKETS: adds to NUMA node 0 a card with two functions, or with 'virtual' two virtual functions
add_mlx5() {
	qemu_args+=(-device "i82801b11-bridge,id=bridge0,bus=pxb0")
	if ((virtual)); then
		function_device function0 bridge0 1 "${1}0"
		function_device function1 bridge0 2 "${1}1"
	else
		function_device function0 bridge0 1.0 "${1}0" '"multifunction":true,'
		function_device function1 bridge0 1.1 "${1}1"
	fi
}

# run_model LOG ORDERS SOCKET...: starts the process that models 'functions', and sets model_pid. Returns when the model
# listens on the socket ORDERS and on each SOCKET. Fails if the model ends before.
run_model() {
	local socket options=(--control "$2")
	[[ $tier != mlx5 ]] || options+=(--link "$link")
	rm -f "${@:2}"
	setpriv --pdeathsig KILL "$model" "${options[@]}" "${functions[@]}" >"$1" 2>&1 </dev/null &
	model_pid=$!
	for socket in "${@:2}"; do
		# a socket's file exists before the model listens, so test the flag __SO_ACCEPTCON (unix_seq_show(), net/unix/af_unix.c)
		until grep -q " 00010000 .* $socket\$" /proc/net/unix; do
			kill -0 "$model_pid" 2>/dev/null || return 1
			read -rt 0.05 -u "$tick" || true
		done
	done
}
