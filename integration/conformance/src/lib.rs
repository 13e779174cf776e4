// SPDX-License-Identifier: Apache-2.0
//! Rules of the kernel's behaviour for each change ([`ops`]). [`suite!`] makes a test of each rule for an
//! implementation of [`Kernel`]: the real kernel in network namespaces (`rdma-netns/tests/kernel`) and in the lab
//! (`rdma-netns/tests/rdma`), and the fake kernel (`integration/fake-kernel/tests/rules`). If the results differ, the
//! fake kernel is wrong.
//!
//! A rule for only one implementation is in that implementation's own tests.
//!
//! | module | owns |
//! |---|---|
//! | [`node`] | the node on which a rule is tested |
//! | [`ops`] | short constructors of changes |
//! | [`links`], [`moves`], [`addresses`], [`detection`], [`routes`], [`children`], [`rules`] | the rules |
//! | [`rdma`], [`gids`], [`ipvlan`], [`vlan`], [`smc`] | rules that need the lab: RDMA devices, ipvlan, VLANs, SMC |

pub mod addresses;
pub mod children;
pub mod detection;
pub mod gids;
pub mod ipvlan;
pub mod links;
pub mod moves;
pub mod node;
pub mod ops;
pub mod rdma;
pub mod routes;
pub mod rules;
pub mod smc;
pub mod vlan;

pub use node::Node;
pub use rdma_netns::Kernel;

/// Makes a test of each rule. `suite!(with_node)` runs the rules for any kernel: `with_node` runs one rule on a new
/// [`Node`]. `suite!(rdma: with_node)` runs the rules that need the lab, on a [`Node`] with RDMA devices.
#[macro_export]
macro_rules! suite {
    (rdma: $with_node:path) => {
        $crate::suite!($with_node;
            rdma {
                in_exclusive_mode_one_namespace_sees_it
                the_caller_has_to_be_where_the_device_is
                a_port_reports_its_netdev_where_both_are
                what_is_not_there_has_no_gids
            }
            gids {
                a_childs_gids_are_in_its_parents_table
                two_netdevs_with_one_address_have_a_gid_each
                those_of_a_vlans_child_are_in_the_table_of_its_lower
                a_moved_device_has_those_of_its_netdev_there
            }
            ipvlan {
                it_has_its_parents_mac_for_good
                all_have_one_mode
                it_follows_its_parents_mtu
                macvlan_and_ipvlan_exclude_each_other
            }
            vlan {
                it_has_its_lowers_mac_and_mtu
                it_is_up_and_down_with_its_lower
                a_child_of_it_has_its_carrier_and_ends_with_it
                it_stays_when_its_lower_leaves_its_namespace
            }
            smc {
                each_namespace_has_a_table_and_the_host_has_the_ports
                names_need_not_be_there
                one_entry_per_netdev_and_per_device
                an_entry_follows_neither_netdev_nor_device
                all_of_an_id_are_removed_in_one_namespace
                four_user_eids_for_the_whole_node
                max_links_are_the_pods
            }
        );
    };
    ($with_node:path) => {
        $crate::suite!($with_node;
            links {
                names_and_alternative_names_are_one_set
                down_keeps_ipv4_addresses_only
                an_mtu_below_1280_takes_ipv6
                an_mtu_has_bounds
                disable_ipv6_takes_addresses_and_gives_the_link_local_one_back
                a_link_that_is_down_is_renamed
                every_flag_alone
                what_is_not_there_is_refused
            }
            moves {
                a_move_drops_addresses_routes_and_up
                a_move_resets_settings_to_those_of_the_namespace
                a_move_keeps_the_other_things
                a_name_that_is_taken_stops_a_move
                an_alternative_name_that_is_taken_stops_a_move
                the_old_name_may_be_taken_where_it_goes
                what_cannot_be_moved
                an_observed_netdev_is_found_under_any_name
            }
            addresses {
                the_newest_ipv6_address_stands_first
                ipv4_primaries_stand_before_secondaries
                replacing_an_ipv4_address_changes_metric_and_lifetime_only
                prefix_routes_come_and_go_with_addresses
                a_peer_has_the_prefix_route
                an_ipv4_primary_takes_its_secondaries_along
                the_last_ipv4_address_takes_all_ipv4_routes_along
                a_metric_is_that_of_the_prefix_route
                what_was_added_is_seen
                lifetimes_are_seen
                an_address_that_is_not_there_cannot_be_taken_away
            }
            detection {
                up_makes_the_link_local_address
                there_is_no_link_local_address_where_none_is_wanted
                detection_takes_its_time
                optimistic_is_dropped_in_silence
                replacing_nodad_by_nothing_starts_no_detection
                an_address_that_was_set_while_down_works_once_up
            }
            routes {
                a_gateway_has_to_be_on_the_link
                a_netdev_that_is_down_has_no_routes
                one_s_own_address_is_no_gateway
                a_source_has_to_be_an_address_that_is_usable
                a_route_that_is_there_is_added_in_peace
                the_default_metric_is_reported_as_none
                ipv6_routes_of_two_netdevs_are_two
                what_was_added_is_seen
            }
            children {
                made_in_the_pod_with_a_mac_of_its_own
                a_name_is_taken_in_the_pod_alone
                a_passthru_child_is_the_only_one
                no_larger_than_its_parent_and_it_shrinks_with_it
                it_has_a_carrier_while_its_parent_is_up
                it_ends_by_hand
                a_group_ends_by_one_deletion
                a_child_stays_linked_when_its_parent_moves
                it_stays_when_its_parent_leaves_its_namespace
            }
            rules {
                there_once_and_gone_once_in_the_kernels_order
                a_rule_stays_when_the_netdev_goes
            }
        );
    };
    ($with_node:path; $($module:ident { $($rule:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $rule() {
                $with_node(|node| $crate::$module::$rule(node));
            })*
        })*
    };
}
