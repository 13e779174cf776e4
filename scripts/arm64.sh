# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# arm64.sh - runs tests of arm64 on an amd64 machine: test programs for arm64, and tests that call arm64's release
# binaries. QEMU emulates each arm64 process (Debian's qemu-user). To be sourced in the root of the tree, after
# prerequisites.sh and programs.sh.
#
# QEMU translates system calls, and passes them to this machine's kernel. QEMU passes netlink messages about links,
# addresses and routes, refuses messages about rules, neighbours and next hops, and opens no socket of RDMA netlink or
# generic netlink (linux-user/fd-trans.c, linux-user/syscall.c). ADD fails under QEMU, because ADD reads a namespace's
# rules.

# The test program, for amd64, that examines arm64's binaries and image.
ARM64='cni/rdma-device-plugin/arm64'
ARM64_PROGRAMS=${CARGO_TARGET_DIR:-target}/test-programs-arm64

# The only tests of rdma-netns/kernel that arm64's run includes: they do not read a namespace's rules.
ARM64_IN_NAMESPACES=(announce::a_link_that_is_not_there
	inside::sysfs_is_the_pods_and_only_for_a_moment inside::two_pods_can_be_read_at_once
	monitor::a_new_device_is_reported_by_a_uevent monitor::another_namespace_at_the_path_is_not_taken_for_it
	monitor::lost_events_are_reported monitor::without_capabilities_less_is_reported
	pods::an_rdma_device_that_is_not_there routes::the_kernels_sentence_reaches_the_error
	suite::addresses::an_address_that_is_not_there_cannot_be_taken_away suite::links::what_is_not_there_is_refused)

# Tests of integration/protocol that call ADD, which fails under QEMU. arm64's run skips these tests.
ARM64_NEEDS_ADD=(long_and_upper_case_container_ids_are_fine unknown_fields_and_arguments_are_ignored
	del_and_gc_pass_over_a_wrong_value_that_they_do_not_need
	with_a_wrong_state_directory_del_leaves_the_record_to_a_verb_with_the_right_one
	no_line_of_the_log_is_forged_by_what_others_are_called)

# Test programs that arm64's run includes in addition to the libraries' unit tests.
ARM64_TESTS=(headers kernel plans corpora)

# compile_arm64_programs: compiles for arm64 the libraries' unit tests and ARM64_TESTS
compile_arm64_programs() {
	local -x PROGRAMS=$ARM64_PROGRAMS
	arm64_environment
	rust_target "$(target_of arm64)"
	compile_programs --target "$(target_of arm64)" --workspace --exclude integration --lib \
		"${ARM64_TESTS[@]/#/--test=}"
}

arm64_programs() {
	local -x PROGRAMS=$ARM64_PROGRAMS RDMA_TEST_EMULATOR=qemu-aarch64
	# Skipped tests: the first measures time, the next two start their own program again without QEMU, and the last
	# needs MADV_POPULATE_WRITE, which QEMU does not emulate (target_madvise() in linux-user/mmap.c).
	natively '.*' 'rdma-netns/kernel' --skip many_virtual_functions_are_read_quickly \
		--skip a_lock_is_waited_for_where_no_thread_can_be_started \
		--skip the_last_lock_holder_is_not_blamed_for_the_whole_wait \
		--skip pages_that_are_there_are_touched_without_a_fault
	natively 'rdma-netns/kernel' '' --exact "${ARM64_IN_NAMESPACES[@]}"
}

image_of_arm64() { natively "$ARM64" ''; }

# protocol_of_arm64: runs amd64's test program integration/protocol, which calls arm64's release binaries under QEMU
protocol_of_arm64() {
	local binary name into=$PWD/${CARGO_TARGET_DIR:-target}/arm64-emulated arguments=()
	mkdir -p "$into"
	for binary in rdma-cni rdma-ipam; do
		# shellcheck disable=SC2016 # the written script expands $0 and $@
		printf '#!/bin/sh\nexec /usr/bin/qemu-aarch64 -0 "$0" %s "$@"\n' "$PWD/dist/arm64/$binary" >"$into/$binary"
		chmod 755 "$into/$binary"
	done
	for name in "${ARM64_NEEDS_ADD[@]}"; do
		arguments+=(--skip "$name")
	done
	RDMA_CNI=$into/rdma-cni natively integration/protocol '' "${arguments[@]}"
}
