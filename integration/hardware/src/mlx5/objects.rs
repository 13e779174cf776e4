// SPDX-License-Identifier: Apache-2.0
//! Objects that commands create and name by an id. The model stores the beginning of the creating command's input. The
//! answer to a query contains the object's context at the same offset as this input.

use super::{
    context::{TRANSITIONS, Transition},
    fields::{Field, field, paste},
    keys, queue_pair, registers,
    status::Status,
    work_queue::{opcode::CREATE_RMP, work},
};
use std::collections::BTreeMap;

/// Bytes of the creating command's input that the model stores: the context, and the first queues of a table.
const KEPT: usize = 0x190;

/// A kind of object.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The opcode of `CREATE_…` or `ALLOC_…`.
    pub create: u16,
    /// The opcode of `DESTROY_…` or `DEALLOC_…`.
    pub destroy: u16,
    /// The opcode of `QUERY_…`, or 0.
    query: u16,
    /// The opcode of `MODIFY_…`, or 0.
    modify: u16,
    /// The position of the id in the answer to the creating command.
    made: Field,
    /// The position of the id in the other commands.
    id: Field,
    /// The position of the id in a query.
    queried: Field,
    /// The smallest id.
    first: u32,
    /// The largest number of objects.
    pub most: usize,
}

const ID: Field = field(0x48, 24);
const SHORT_ID: Field = field(0x58, 8);
const UID: Field = field(0x50, 16);
const LONG_ID: Field = field(0x40, 32);
const TABLE_ID: Field = field(0xa8, 24);
const GROUP_ID: Field = field(0xc0, 32);
const MOST: usize = 1 << 14;

const fn kind(create: u16, destroy: u16, query: u16, modify: u16) -> Kind {
    Kind {
        create,
        destroy,
        query,
        modify,
        made: ID,
        id: ID,
        queried: ID,
        first: 1,
        most: MOST,
    }
}

/// All kinds of objects except event queues.
pub const KINDS: &[Kind] = &[
    // memory keys; 0x100 ends a list of segments, and 0x300 is reserved
    Kind {
        first: 64,
        ..kind(keys::CREATE, keys::DESTROY, 0x201, 0)
    },
    kind(0x400, 0x401, 0x402, 0x403), // completion queues
    // queue pairs
    Kind {
        first: queue_pair::FIRST,
        ..kind(queue_pair::CREATE, queue_pair::DESTROY, 0x50b, 0)
    },
    kind(0x710, 0x711, 0x713, 0), // DCT
    // shared receive queues, also those of XRC, XRQ and RMP, have distinct numbers: the driver keeps all of them in one
    // table
    kind(0x700, 0x701, 0x702, 0),
    Kind {
        first: 0x1_0000,
        ..kind(0x705, 0x706, 0x707, 0)
    },
    Kind {
        first: 0x2_0000,
        ..kind(0x717, 0x718, 0x719, 0)
    },
    Kind {
        first: 0x3_0000,
        ..kind(CREATE_RMP, 0x90e, 0x90f, 0x90d)
    },
    // queue counters
    Kind {
        made: SHORT_ID,
        id: SHORT_ID,
        queried: field(0xf8, 8),
        most: 255,
        ..kind(0x771, 0x772, 0x773, 0)
    },
    kind(0x800, 0x801, 0, 0), // protection domains
    // pages of doorbells
    Kind {
        first: registers::FIRST_PAGE,
        most: (registers::PAGES - registers::FIRST_PAGE) as usize,
        ..kind(0x802, 0x803, 0, 0)
    },
    kind(0x80e, 0x80f, 0, 0),         // XRC domains
    kind(0x816, 0x817, 0, 0),         // transport domains
    kind(0x900, 0x902, 0x903, 0x901), // TIR
    kind(0x904, 0x906, 0x907, 0x905), // send queues
    kind(0x908, 0x90a, 0x90b, 0x909), // receive queues
    kind(0x912, 0x914, 0x915, 0x913), // TIS
    kind(0x916, 0x918, 0x919, 0x917), // RQT
    // flow tables
    Kind {
        id: TABLE_ID,
        queried: TABLE_ID,
        ..kind(0x930, 0x931, 0x932, 0x93c)
    },
    // flow groups
    Kind {
        id: GROUP_ID,
        queried: GROUP_ID,
        ..kind(0x933, 0x934, 0x935, 0)
    },
    // flow counters
    Kind {
        made: LONG_ID,
        id: LONG_ID,
        ..kind(0x939, 0x93a, 0, 0)
    },
    // contexts of packet reformats
    Kind {
        made: LONG_ID,
        id: LONG_ID,
        ..kind(0x93d, 0x93e, 0, 0)
    },
    // contexts of header changes
    Kind {
        made: LONG_ID,
        id: LONG_ID,
        ..kind(0x940, 0x941, 0, 0)
    },
    // general objects
    Kind {
        made: LONG_ID,
        id: LONG_ID,
        queried: LONG_ID,
        ..kind(0xa00, 0xa03, 0xa02, 0xa01)
    },
    // user contexts
    Kind {
        made: UID,
        id: UID,
        ..kind(0xa04, 0xa06, 0, 0)
    },
];

/// The position of a queue's state, in the input of a command and in a queue's context.
const QUEUE_STATE: Field = field(0x108, 4);
const CREATE_SEND_QUEUE: u16 = 0x904;
const CREATE_RECEIVE_QUEUE: u16 = 0x908;
const CREATE_RQT: u16 = 0x916;

const OPCODE: Field = field(0, 16);

/// The objects of a function, by the opcode of the creating command and the id.
#[derive(Debug, Default)]
pub struct Objects {
    made: BTreeMap<u16, BTreeMap<u32, Vec<u8>>>,
}

impl Objects {
    /// The stored input of an object. It contains the context at the offset that the command `create` uses.
    pub fn get(&self, create: u16, id: u32) -> Option<&[u8]> {
        self.made.get(&create)?.get(&id).map(Vec::as_slice)
    }

    /// [`Objects::get`], mutable.
    pub fn get_mut(&mut self, create: u16, id: u32) -> Option<&mut Vec<u8>> {
        self.made.get_mut(&create)?.get_mut(&id)
    }

    /// Removes an object.
    pub fn remove(&mut self, create: u16, id: u32) {
        if let Some(objects) = self.made.get_mut(&create) {
            objects.remove(&id);
        }
    }

    /// The ids of all objects of one kind.
    pub fn ids(&self, create: u16) -> impl Iterator<Item = u32> {
        self.made.get(&create).into_iter().flatten().map(|it| *it.0)
    }

    /// Executes a command on an object. Returns `None` if the command belongs to none of the [`KINDS`] and
    /// [`TRANSITIONS`].
    pub fn execute(&mut self, input: &[u8], output: &mut [u8]) -> Option<Result<(), Status>> {
        let opcode = OPCODE.get(input) as u16;
        if let Some(transition) = TRANSITIONS.iter().find(|it| it.opcode == opcode) {
            return Some(self.transit(input, transition));
        }
        let kind = KINDS.iter().find(|kind| {
            opcode != 0 && [kind.create, kind.destroy, kind.query, kind.modify].contains(&opcode)
        })?;
        let objects = self.made.entry(kind.create).or_default();
        if opcode == kind.create {
            return Some(create(objects, kind, input, output));
        }
        let is_query = opcode == kind.query;
        let place = if is_query { kind.queried } else { kind.id };
        let id = place.get32(input);
        Some(match objects.get_mut(&id) {
            None => Err(Status::Resource),
            Some(_) if opcode == kind.destroy => {
                objects.remove(&id);
                Ok(())
            }
            Some(object) if is_query => {
                // the function, not the object, has the values of queue counters
                if kind.made != SHORT_ID {
                    paste(output, 16, object.get(16..).unwrap_or_default());
                }
                Ok(())
            }
            Some(object) => {
                modify(kind.create, object, input);
                Ok(())
            }
        })
    }

    fn transit(&mut self, input: &[u8], transition: &Transition) -> Result<(), Status> {
        let pairs = self.made.entry(queue_pair::CREATE).or_default();
        let pair = pairs.get_mut(&ID.get32(input)).ok_or(Status::Resource)?;
        transition.apply(pair, input);
        Ok(())
    }
}

fn create(
    objects: &mut BTreeMap<u32, Vec<u8>>,
    kind: &Kind,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    if objects.len() >= kind.most {
        return Err(Status::Limit);
    }
    let is_free = |id: &u32| !objects.contains_key(id);
    let id = (kind.first..).find(is_free).ok_or(Status::Limit)?;
    let mut kept = vec![0; KEPT];
    paste(&mut kept, 0, input);
    objects.insert(id, kept);
    kind.made.put(output, id.into());
    Ok(())
}

fn modify(create: u16, object: &mut [u8], input: &[u8]) {
    match create {
        CREATE_SEND_QUEUE | CREATE_RECEIVE_QUEUE => QUEUE_STATE.copy(object, input),
        CREATE_RMP => work::LIMIT.copy(object, input),
        CREATE_RQT => paste(object, 0x20, input.get(0x20..).unwrap_or_default()),
        _ => {}
    }
}
