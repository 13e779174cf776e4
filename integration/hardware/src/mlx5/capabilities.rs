// SPDX-License-Identifier: Apache-2.0
//! The capabilities of a function (`QUERY_HCA_CAP`, `SET_HCA_CAP`), by type and field.

use super::{
    fields::{Field, field, paste},
    place::Place,
    status::Status,
};
use std::collections::BTreeMap;

/// Bytes of the capabilities of one type.
pub const SIZE: usize = 0x1000;
/// The offset of the capabilities in input and output.
const AT: usize = 16;
const OP_MOD: Field = field(0x30, 16);

const GENERAL: u64 = 0;
const ETHERNET: u64 = 1;
const ATOMIC: u64 = 3;
const ROCE: u64 = 4;
const FLOW_TABLE: u64 = 7;
/// The number of capability types that a driver may set.
const TYPES: u64 = 0x40;

/// A field of `mlx5_ifc.h`: its name there, its position, and its value.
type Capability = (&'static str, Field, u64);

/// `cmd_hca_cap`: a port of a ConnectX-5.
const GENERAL_FIELDS: &[Capability] = &[
    ("log_max_srq_sz", field(0x80, 8), 15),
    ("log_max_qp_sz", field(0x88, 8), 15),
    ("log_max_qp", field(0x9b, 5), 18),
    ("log_max_srq", field(0xab, 5), 16),
    ("log_max_cq_sz", field(0xc8, 8), 22),
    ("log_max_cq", field(0xdb, 5), 16),
    ("log_max_eq_sz", field(0xe0, 8), 22),
    ("log_max_mkey", field(0xea, 6), 16),
    ("log_max_eq", field(0xfc, 4), 7),
    ("log_max_mrw_sz", field(0x109, 7), 32),
    ("umr_extended_translation_offset", field(0x118, 1), 1),
    ("log_max_klm_list_size", field(0x11a, 6), 16),
    ("log_max_ra_req_dc", field(0x12a, 6), 6),
    ("log_max_ra_res_dc", field(0x13a, 6), 6),
    ("log_max_ra_req_qp", field(0x14a, 6), 6),
    ("log_max_ra_res_qp", field(0x15a, 6), 6),
    ("start_pad", field(0x163, 1), 1),
    ("gid_table_size", field(0x170, 16), 3),
    ("out_of_seq_cnt", field(0x180, 1), 1),
    ("vport_counters", field(0x181, 1), 1),
    ("retransmission_q_counters", field(0x182, 1), 1),
    ("max_qp_cnt", field(0x186, 10), 255),
    ("vport_group_manager", field(0x1a0, 1), 1),
    ("nic_flow_table", field(0x1a6, 1), 1),
    ("port_type", field(0x1b6, 2), 1),
    ("num_ports", field(0x1b8, 8), 1),
    ("log_max_msg", field(0x1c3, 5), 30),
    ("max_tc", field(0x1cc, 4), 8),
    ("cqe_version", field(0x1fc, 4), 1),
    // makes the driver register memory by commands only
    ("umr_modify_entity_size_disabled", field(0x207, 1), 1),
    ("eth_net_offloads", field(0x21c, 1), 1),
    ("roce", field(0x21d, 1), 1),
    ("atomic", field(0x21e, 1), 1),
    ("cq_moderation", field(0x222, 1), 1),
    ("scqe_break_moderation", field(0x22a, 1), 1),
    ("cd", field(0x22c, 1), 1),
    ("umr_ptr_rlky", field(0x230, 1), 1),
    ("xrc", field(0x23c, 1), 1),
    ("ud", field(0x23d, 1), 1),
    ("uc", field(0x23e, 1), 1),
    ("rc", field(0x23f, 1), 1),
    ("log_pg_sz", field(0x258, 8), 12),
    ("bf", field(0x260, 1), 1),
    ("log_bf_reg_size", field(0x26b, 5), 9),
    ("max_wqe_sz_sq", field(0x290, 16), 1024),
    ("max_wqe_sz_rq", field(0x2b0, 16), 512),
    ("log_max_transport_domain", field(0x323, 5), 16),
    ("log_max_pd", field(0x32b, 5), 16),
    ("log_max_xrcd", field(0x33b, 5), 16),
    ("max_flow_counter_15_0", field(0x350, 16), 100),
    ("log_max_rq", field(0x363, 5), 16),
    ("log_max_sq", field(0x36b, 5), 16),
    ("log_max_tir", field(0x373, 5), 16),
    ("log_max_tis", field(0x37b, 5), 16),
    ("basic_cyclic_rcv_wqe", field(0x380, 1), 1),
    ("log_max_rmp", field(0x383, 5), 16),
    ("log_max_rqt", field(0x38b, 5), 12),
    ("log_max_rqt_size", field(0x393, 5), 10),
    ("log_max_tis_per_sq", field(0x39b, 5), 3),
    ("roce_rw_supported", field(0x3a1, 1), 1),
    ("log_max_stride_sz_rq", field(0x3a3, 5), 13),
    ("log_min_stride_sz_rq", field(0x3ab, 5), 5),
    ("log_max_stride_sz_sq", field(0x3b3, 5), 6),
    ("log_min_stride_sz_sq", field(0x3bb, 5), 6),
    ("log_max_wq_sz", field(0x3db, 5), 15),
    ("log_max_vlan_list", field(0x3eb, 5), 12),
    ("log_max_current_mc_list", field(0x3f3, 5), 12),
    ("log_max_current_uc_list", field(0x3fb, 5), 7),
    ("device_frequency_khz", field(0x4e0, 32), 1_000_000),
];

/// The values of an InfiniBand port that differ from [`GENERAL_FIELDS`]. A `gid_table_size` of 0 means 8 GIDs.
const INFINIBAND_FIELDS: &[Capability] = &[
    ("gid_table_size", field(0x170, 16), 0),
    ("ib_virt", field(0x1a2, 1), 1),
    ("nic_flow_table", field(0x1a6, 1), 0),
    ("port_type", field(0x1b6, 2), 0),
    ("eth_net_offloads", field(0x21c, 1), 0),
    ("roce", field(0x21d, 1), 0),
    ("roce_rw_supported", field(0x3a1, 1), 0),
];

/// The values of a virtual function that differ from [`GENERAL_FIELDS`]: it manages no other functions.
const VIRTUAL_FIELDS: &[Capability] = &[("vport_group_manager", field(0x1a0, 1), 0)];

/// The fields of an Ethernet card with more than one port, with which the driver can bond the card's functions.
const LAG_FIELDS: &[(&str, Field)] = &[
    ("lag_master", field(0x27b, 1)),
    ("num_lag_ports", field(0x27c, 4)),
    ("native_port_num", field(0x608, 8)),
];

/// `per_protocol_networking_offload_caps`.
const ETHERNET_FIELDS: &[Capability] = &[
    ("csum_cap", field(0x0, 1), 1),
    ("vlan_cap", field(0x1, 1), 1),
    ("self_lb_en_modifiable", field(0x8, 1), 1),
    ("max_lso_cap", field(0xb, 5), 16),
    ("wqe_inline_mode", field(0x12, 2), 2),
    ("rss_ind_tbl_cap", field(0x14, 4), 7),
];

/// `atomic_caps`: compare-and-swap and fetch-and-add of 8 bytes, in the byte order of the host.
const ATOMIC_FIELDS: &[Capability] = &[
    ("atomic_req_8B_endianness_mode", field(0x40, 2), 1),
    (
        "supported_atomic_req_8B_endianness_mode_1",
        field(0x46, 1),
        1,
    ),
    ("atomic_operations", field(0x90, 16), 3),
    ("atomic_size_qp", field(0xb0, 16), 8),
];

/// `roce_cap`: versions 1 and 2.
const ROCE_FIELDS: &[Capability] = &[
    ("l3_type", field(0x8c, 4), 6),
    ("roce_version", field(0x98, 8), 5),
    ("r_roce_max_src_udp_port", field(0xc0, 16), 0xffff),
    ("r_roce_min_src_udp_port", field(0xd0, 16), 0xc000),
    (
        "roce_address_table_size",
        field(0xf0, 16),
        super::vport::ROCE_ADDRESSES as u64,
    ),
];

/// `flow_table_nic_cap`: the bit offsets of the four kinds of tables that the driver needs.
const FLOW_TABLE_KINDS: [usize; 4] = [0x200, 0x400, 0x800, 0xa00];

/// `flow_table_prop_layout`, with the fields of packets that a rule can match.
const FLOW_TABLE_FIELDS: &[Capability] = &[
    ("ft_support", field(0x0, 1), 1),
    ("flow_counter", field(0x2, 1), 1),
    ("flow_modify_en", field(0x3, 1), 1),
    ("modify_root", field(0x4, 1), 1),
    ("identified_miss_table_mode", field(0x5, 1), 1),
    ("flow_table_modify", field(0x6, 1), 1),
    ("ignore_flow_level", field(0x15, 1), 1),
    ("log_max_ft_size", field(0x22, 6), 20),
    ("max_ft_level", field(0x38, 8), 255),
    ("log_max_ft_num", field(0x78, 8), 8),
    ("log_max_flow_counter", field(0x90, 8), 8),
    ("log_max_destination", field(0x98, 8), 8),
    ("log_max_flow", field(0xb8, 8), 16),
    ("outer_dmac", field(0x100, 1), 1),
    ("outer_smac", field(0x101, 1), 1),
    ("outer_ether_type", field(0x102, 1), 1),
    ("outer_ip_version", field(0x103, 1), 1),
    ("outer_first_prio", field(0x104, 1), 1),
    ("outer_first_cfi", field(0x105, 1), 1),
    ("outer_first_vid", field(0x106, 1), 1),
    ("outer_second_vid", field(0x10a, 1), 1),
    ("outer_sip", field(0x10c, 1), 1),
    ("outer_dip", field(0x10d, 1), 1),
    ("outer_frag", field(0x10e, 1), 1),
    ("outer_ip_protocol", field(0x10f, 1), 1),
    ("outer_ip_ecn", field(0x110, 1), 1),
    ("outer_ip_dscp", field(0x111, 1), 1),
    ("outer_udp_sport", field(0x112, 1), 1),
    ("outer_udp_dport", field(0x113, 1), 1),
    ("outer_tcp_sport", field(0x114, 1), 1),
    ("outer_tcp_dport", field(0x115, 1), 1),
    ("outer_tcp_flags", field(0x116, 1), 1),
    ("source_eswitch_port", field(0x11f, 1), 1),
    ("bth_dst_qp", field(0x15a, 1), 1),
];

/// The capabilities that the driver changed, and the function's place on its card.
#[derive(Debug)]
pub struct Capabilities {
    place: Place,
    set: BTreeMap<u64, Vec<u8>>,
}

impl Capabilities {
    /// Returns the capabilities of the port at `place`.
    pub fn new(place: Place) -> Capabilities {
        Capabilities {
            place,
            set: BTreeMap::new(),
        }
    }

    /// `QUERY_HCA_CAP`: the maximum values, or the current values. All fields of an unknown type are zero.
    pub fn query(&self, input: &[u8], output: &mut [u8]) {
        let (kind, is_current) = (OP_MOD.get(input) >> 1, OP_MOD.get(input) & 1 == 1);
        match self.set.get(&kind).filter(|_| is_current) {
            Some(set) => paste(output, AT, set),
            None => self.greatest(kind, output),
        }
    }

    /// `SET_HCA_CAP`.
    pub fn set(&mut self, input: &[u8]) -> Result<(), Status> {
        let kind = OP_MOD.get(input) >> 1;
        let value = input.get(AT..AT + SIZE).ok_or(Status::InputLength)?;
        if kind >= TYPES {
            return Err(Status::Parameter);
        }
        // of the atomic capabilities only the byte order can be set, and the model has only one
        if kind != ATOMIC {
            self.set.insert(kind, value.to_vec());
        }
        Ok(())
    }

    fn greatest(&self, kind: u64, output: &mut [u8]) {
        let mut put = |fields: &[Capability], at: usize| {
            for (_, field, value) in fields {
                field.within(AT * 8 + at).put(output, *value);
            }
        };
        match kind {
            GENERAL => {
                put(GENERAL_FIELDS, 0);
                let Place { port, ports, .. } = self.place;
                let lag = [1, ports, port];
                if self.place.is_virtual {
                    put(VIRTUAL_FIELDS, 0);
                }
                if self.place.lid.is_some() {
                    put(INFINIBAND_FIELDS, 0);
                } else if ports > 1 {
                    for ((name, field), value) in LAG_FIELDS.iter().zip(lag) {
                        put(&[(name, *field, value.into())], 0);
                    }
                }
            }
            ETHERNET => put(ETHERNET_FIELDS, 0),
            ATOMIC => put(ATOMIC_FIELDS, 0),
            ROCE => put(ROCE_FIELDS, 0),
            FLOW_TABLE => FLOW_TABLE_KINDS
                .iter()
                .for_each(|at| put(FLOW_TABLE_FIELDS, *at)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_apart_and_hold_their_values() {
        for table in [
            GENERAL_FIELDS,
            INFINIBAND_FIELDS,
            ETHERNET_FIELDS,
            ATOMIC_FIELDS,
            ROCE_FIELDS,
            FLOW_TABLE_FIELDS,
        ] {
            let mut all = vec![0; SIZE];
            for (name, field, value) in table {
                assert_eq!(field.get(&all), 0, "{name} overlaps another field");
                field.put(&mut all, u64::MAX);
                let mut alone = vec![0; SIZE];
                field.put(&mut alone, *value);
                assert_eq!(field.get(&alone), *value, "{name} is too narrow");
            }
        }
    }
}
