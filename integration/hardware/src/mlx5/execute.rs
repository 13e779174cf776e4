// SPDX-License-Identifier: Apache-2.0
//! The commands (`MLX5_CMD_OP_*`).

use super::{
    counters,
    fields::{Field, field, numbers, paste},
    function::Function,
    infiniband::query_partition_keys,
    status::Status,
};

const OPCODE: Field = field(0, 16);
const OP_MOD: Field = field(0x30, 16);
const ID: Field = field(0x48, 24);
const STATUS: Field = field(0, 8);
/// The largest number of pages that the driver can give to the firmware.
const MAX_PAGES: usize = 1 << 16;

impl Function {
    /// Executes a command. The caller ensures that input and output have at least 16 bytes.
    pub(super) fn execute(&mut self, input: &[u8], output: &mut [u8]) {
        let opcode = OPCODE.get(input) as u16;
        match self.answer(opcode, input, output) {
            Ok(()) => log::trace!("{}: command {opcode:#x}", self.name),
            Err(status) => {
                log::warn!("{}: command {opcode:#x} fails: {status:?}", self.name);
                output.fill(0);
                STATUS.put(output, status as u64);
            }
        }
    }

    fn answer(&mut self, opcode: u16, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
        let lid = self.place.lid;
        match opcode {
            0x100 => self.capabilities.query(input, output),
            0x101 => query_adapter(output),
            0x102 => self.is_started = true,
            0x103 => self.is_started = false,
            0x107 => query_pages(input, output),
            0x108 => self.manage_pages(input, output),
            0x109 => self.capabilities.set(input)?,
            0x10a => query_issi(output),
            0x203 => query_special_contexts(output),
            0x301 => self.create_event_queue(input, output)?,
            0x302 => self.destroy_event_queue(input)?,
            0x303 => self.query_event_queue(input, output)?,
            0x50d if let Some(lid) = lid => self.mad_ifc(lid, input, output),
            0x750 => self.query_vport_state(output),
            0x751 => self.modify_vport_state(input),
            0x754 => self.vport.query(input, output),
            0x755 => self.vport.modify(input)?,
            0x760 => self.vport.query_roce_address(input, output)?,
            0x761 => self.vport.set_roce_address(input)?,
            0x762 if let Some(lid) = lid => self.query_hca_context(lid, output),
            0x763 if lid.is_some() => self.modify_hca_context(input),
            0x764 if lid.is_some() => self.query_gid(input, output),
            0x765 => query_partition_keys(lid.is_none(), input, output),
            0x770 => self.vport.query_counters(output),
            0x805 => self.access_register(input, output),
            0x806 | 0x807 => self.attach(input, opcode == 0x806)?,
            0x840 => self.set_lag(input, 8),
            0x841 => self.set_lag(input, 16),
            0x842 => paste(output, 8, &self.lag.unwrap_or_default()),
            0x843 => self.lag = None,
            _ if ACCEPTED.contains(&opcode) => {}
            _ => return self.of_object(opcode, input, output),
        }
        Ok(())
    }

    fn of_object(&mut self, opcode: u16, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
        match self.objects.execute(input, output) {
            Some(executed) => executed?,
            None => {
                log::warn!("{}: command {opcode:#x} is unknown", self.name);
                return Err(Status::Opcode);
            }
        }
        if opcode == counters::QUERY {
            self.counters.query(output);
        }
        let changed = self.queues_changed(opcode, input, output);
        if changed.is_err() {
            self.objects.remove(opcode, ID.get32(output));
        }
        changed
    }

    /// `MANAGE_PAGES`: the driver gives pages to the firmware or takes them back.
    fn manage_pages(&mut self, input: &[u8], output: &mut [u8]) {
        let count = field(0x60, 32).get(input) as usize;
        match OP_MOD.get(input) {
            1 => {
                let room = MAX_PAGES.saturating_sub(self.pages.len());
                (self.pages).extend(numbers(input, 16).take(count.min(room)));
            }
            2 => {
                let room = output.len().saturating_sub(16) / 8;
                let rest = self.pages.len().saturating_sub(count.min(room));
                let taken = self.pages.split_off(rest);
                field(0x40, 32).put(output, taken.len() as u64);
                for (at, page) in (16..).step_by(8).zip(taken) {
                    paste(output, at, &page.to_be_bytes());
                }
            }
            _ => {}
        }
    }

    /// `CREATE_LAG` and `MODIFY_LAG`, with `lagc` at the byte `at`.
    fn set_lag(&mut self, input: &[u8], at: usize) {
        let mut context = [0; 8];
        paste(&mut context, 0, input.get(at..).unwrap_or_default());
        self.lag = Some(context);
    }
}

/// Commands that succeed and change nothing in the model.
const ACCEPTED: &[u16] = &[
    0x104, // ENABLE_HCA
    0x105, // DISABLE_HCA
    0x10b, // SET_ISSI
    0x10d, // SET_DRIVER_VERSION
    0x76f, // QUERY_VNIC_ENV
    0x780, // SET_PP_RATE_LIMIT
    0x804, // CONFIG_INT_MODERATION
    0x80b, // QUERY_MAD_DEMUX
    0x80c, // SET_MAD_DEMUX
    0x80d, // NOP
    0x822, // QUERY_CONG_STATUS
    0x823, // MODIFY_CONG_STATUS
    0x824, // QUERY_CONG_PARAMS
    0x825, // MODIFY_CONG_PARAMS
    0x826, // QUERY_CONG_STATISTICS
    0x827, // ADD_VXLAN_UDP_DPORT
    0x828, // DELETE_VXLAN_UDP_DPORT
    0x829, // SET_L2_TABLE_ENTRY
    0x82b, // DELETE_L2_TABLE_ENTRY
    0x844, // CREATE_VPORT_LAG
    0x845, // DESTROY_VPORT_LAG
    0x92f, // SET_FLOW_TABLE_ROOT
    0x936, // SET_FLOW_TABLE_ENTRY
    0x937, // QUERY_FLOW_TABLE_ENTRY
    0x938, // DELETE_FLOW_TABLE_ENTRY
    0x93b, // QUERY_FLOW_COUNTER
];

fn query_adapter(output: &mut [u8]) {
    field(0x148, 24).put(output, 0x2c9);
    paste(output, 0x100, b"MT_0000000000");
}

/// Number of pages that the firmware requests at boot, at `INIT_HCA`, and later.
fn query_pages(input: &[u8], output: &mut [u8]) {
    let count = match OP_MOD.get(input) {
        1 => 16,
        2 => 64,
        _ => 0,
    };
    field(0x60, 32).put(output, count);
}

/// The supported versions of the command interface: 0 and 1.
fn query_issi(output: &mut [u8]) {
    field(0x360, 32).put(output, 3);
}

fn query_special_contexts(output: &mut [u8]) {
    // dump_fill_mkey, resd_lkey
    field(0x40, 32).put(output, 0x1234);
    field(0x60, 32).put(output, RESERVED_KEY.into());
}

/// The key with which a guest's kernel accesses its memory by address.
pub(super) const RESERVED_KEY: u32 = 0x300;
