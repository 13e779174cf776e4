# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154  # the variables are vm's
# functions.sh - the modelled PCI functions of the tiers erdma and mlx5, and the process that models them.
# To be sourced by vm, whose variables and functions it uses.
# shellcheck disable=SC2154

# find_model: sets 'model' to the path of the program that models the tier's functions
find_model() {
	local name=RDMA_LAB_${tier^^}_MODEL
	model=${!name:-${CARGO_TARGET_DIR:-$LAB/../../target}/debug/$tier-model}
	[[ -x $model ]] || die "--tier $tier: there is no $model: run 'cargo build --package hardware'," \
		"or set $name to the program that models the functions"
}

# function_device ID BUS ADDRESS SOCKET [OPTION]: adds a modelled function to qemu_args. The function has no ROM, which QEMU
# adds by default, because the driver erdma refuses a function with a ROM's BAR.
function_device() {
	qemu_args+=(-device "$(printf '{"driver":"vfio-user-pci","id":"%s","bus":"%s","addr":"%s","rombar":0,%s
		"socket":{"type":"unix","path":"%s"}}' "$1" "$2" "$3" "${5-}" "$4")")
}

# add_erdma: adds to each NUMA node a virtio NIC, and an eRDMA function with the NIC's MAC
add_erdma() {
	local nic mac function wire
	for nic in 0 1; do
		mac=52:54:00:ee:0$node:0$((nic + 1))
		function=$run/function$nic
		[[ -z $erdma_fabric ]] || function=$erdma_fabric/function-$node-$nic
		[[ -n $erdma_fabric ]] || functions+=("$function=$mac$([[ $erdma_protocol == iwarp ]] || echo ",$erdma_protocol")")
		qemu_args+=(
			-device "i82801b11-bridge,id=bridge$nic,bus=pxb$nic"
			-device "virtio-net-pci,id=nic$nic,bus=bridge$nic,addr=1,netdev=hub$nic,mac=$mac"
		)
		function_device "function$nic" "bridge$nic" 2 "$function"
	done
	if [[ -n $erdma_fabric ]]; then
		# the first machine listens, and the others connect
		[[ $node == 1 ]] && wire=server=on || wire=server=off,reconnect-ms=200
		qemu_args+=(-netdev "stream,id=wire,$wire,addr.type=unix,addr.path=${erdma_fabric//,/,,}/wire"
			-netdev "hubport,id=hub2,hubid=1,netdev=wire")
	fi
}

# add_mlx5: adds to NUMA node 0 a card with two functions, or two virtual functions, of the link layer 'link'. The guest
# writes orders for the model to a serial port.
add_mlx5() {
	local mac=52:54:00:bb:0$node:0
	qemu_args+=(-device "i82801b11-bridge,id=bridge0,bus=pxb0")
	functions=(--link "$link")
	if ((virtual)); then
		functions+=("$run/function0=${mac}1,virtual" "$run/function1=${mac}2,virtual")
		function_device function0 bridge0 1 "$run/function0"
		function_device function1 bridge0 2 "$run/function1"
	else
		functions+=("$run/function0=${mac}1+$run/function1=${mac}2")
		function_device function0 bridge0 1.0 "$run/function0" '"multifunction":true,'
		function_device function1 bridge0 1.1 "$run/function1"
	fi
	qemu_args+=(-chardev "socket,id=orders,path=${run//,/,,}/orders" -device "virtserialport,chardev=orders,nr=4")
}

# start_model: starts the process that models the functions, and waits until QEMU can connect. stop_vm ends the process.
start_model() {
	local socket
	rm -f "$run"/{function?,orders}
	setpriv --pdeathsig KILL "$model" --control "$run/orders" "${functions[@]}" >"$run/model.log" 2>&1 </dev/null &
	model_pid=$!
	for socket in function0 function1 orders; do
		# a socket's file exists before the model listens, so test the flag __SO_ACCEPTCON (unix_seq_show(), net/unix/af_unix.c)
		until grep -q " 00010000 .* $run/$socket\$" /proc/net/unix; do
			kill -0 "$model_pid" 2>/dev/null || give_up 125 "the model of the $tier functions ended before the VM started"
			read -rt 0.05 -u "$tick" || true
		done
	done
}
