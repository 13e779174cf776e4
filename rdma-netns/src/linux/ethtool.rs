// SPDX-License-Identifier: Apache-2.0
//! Settings of a netdev's driver, read and written by ethtool's `ioctl` (`net/ethtool/ioctl.c`). Drivers keep these
//! settings when the netdev moves.

use crate::{DeviceSettings, Link, device_settings::UNREADABLE};
use nix::libc;
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// `SIOCETHTOOL`
const SIOCETHTOOL: u32 = 0x8946;

const ETHTOOL_GWOL: u32 = 0x05;
const ETHTOOL_GMSGLVL: u32 = 0x07;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GPAUSEPARAM: u32 = 0x12;
const ETHTOOL_GPFLAGS: u32 = 0x27;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GEEE: u32 = 0x44;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const ETHTOOL_GTUNABLE: u32 = 0x48;
const ETHTOOL_GFECPARAM: u32 = 0x50;

/// A structure of ethtool, with the commands that read and write it.
struct Block {
    name: &'static str,
    get: u32,
    /// Words of a request after its command.
    head: &'static [u32],
    /// Number of 32-bit words of the structure, including its command.
    words: usize,
    /// Bit mask of the words that can be set. All other words are limits or negotiated values.
    settable: u32,
}

const fn block(name: &'static str, get: u32, words: usize, settable: u32) -> Block {
    Block {
        name,
        get,
        head: &[],
        words,
        settable,
    }
}

const fn tunable(name: &'static str, head: &'static [u32]) -> Block {
    Block {
        head,
        ..block(name, ETHTOOL_GTUNABLE, 5, 1 << 4)
    }
}

/// The structures of `include/uapi/linux/ethtool.h`. The head of a tunable is its id, its type and its length in bytes.
const BLOCKS: [Block; 12] = [
    block("channels", ETHTOOL_GCHANNELS, 9, 0x1e0),
    block("coalesce", ETHTOOL_GCOALESCE, 23, 0x7f_fffe),
    block("eee", ETHTOOL_GEEE, 10, 0xe4),
    block("fec", ETHTOOL_GFECPARAM, 4, 0x4),
    block("messages", ETHTOOL_GMSGLVL, 2, 0x2),
    block("pause", ETHTOOL_GPAUSEPARAM, 4, 0xe),
    block("private", ETHTOOL_GPFLAGS, 2, 0x2),
    block("rings", ETHTOOL_GRINGPARAM, 9, 0x1e0),
    tunable("rx-copybreak", &[1, 3, 4]),
    tunable("tx-copybreak", &[2, 3, 4]),
    tunable("tx-copybreak-buffer", &[4, 3, 4]),
    block("wake", ETHTOOL_GWOL, 5, 0x1c),
];

/// Number of words in a feature block: available, requested, active, never changed (`struct
/// ethtool_get_features_block`).
const FEATURES: usize = 4;
/// Number of feature blocks of 32 features. No kernel has more.
const FEATURE_BLOCKS: usize = 8;

/// Number of words before the table of `struct ethtool_rxfh`. The next two constants are indexes of words: the table's
/// size in entries, and the key's size in bytes.
const RSS: usize = 6;
const RSS_ENTRIES: usize = 2;
const RSS_KEY: usize = 3;

/// Number of words before the list of locations in `struct ethtool_rxnfc` (47). The constants below are indexes of
/// words: the number of locations, the rule's location, and the rule itself with its location and its RSS context.
const RULES: usize = 47;
const RULES_COUNT: usize = 46;
const RULES_PLACE: usize = 44;
const RULE: std::ops::Range<usize> = 4..RULES;

/// Names of the settings that are not in [`BLOCKS`].
const FEATURES_NAME: &str = "features";
const RSS_NAME: &str = "rss";
const RULES_NAME: &str = "rules";

/// Adds the settings of the driver of `link`. A netdev without hardware gets at most `features` and `channels`.
#[cold]
pub(super) fn read(socket: BorrowedFd<'_>, link: &Link, settings: &mut DeviceSettings) {
    let ask = |words: &mut [u32]| ioctl(socket, &link.name, words);
    let mut add = |name: &str, value: String| settings.set(&format!("ethtool/{name}"), &value);
    if let Ok(features) = features(&ask) {
        let requested = |block: &[u32; FEATURES]| block[0] & !block[3] & block[1];
        let words: Vec<u32> = features.iter().map(requested).collect();
        add(FEATURES_NAME, text(&words));
    }
    for block in &BLOCKS {
        if link.parent.is_none() && block.name != "channels" {
            continue;
        }
        let mut words = block.request(block.get);
        if ask(&mut words).is_ok() {
            let words: Vec<u32> = block.places().map(|place| words[place]).collect();
            add(block.name, text(&words));
        }
    }
    if link.parent.is_none() {
        return;
    }
    if let Ok(words) = rss(&ask) {
        add(RSS_NAME, text(&words[RSS_ENTRIES..]));
    }
    if let Some(rules) = rules_text(&ask) {
        add(RULES_NAME, rules);
    }
}

/// Returns the flow rules as text, or [`UNREADABLE`]. Returns `None` if the driver does not support flow rules.
fn rules_text(ask: Ask<'_>) -> Option<String> {
    match rules(ask) {
        Ok(rules) => {
            let rules: Vec<String> = rules.iter().map(|it| text(it)).collect();
            Some(rules.join(" "))
        }
        // mlx4 returns EINVAL if the device does not steer packets (`mlx4_en_get_rxnfc()`,
        // `drivers/net/ethernet/mellanox/mlx4`)
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => None,
        Err(_) => Some(UNREADABLE.to_owned()),
    }
}

/// Sets the setting `setting` of the netdev `name`.
#[cold]
pub(super) fn write(
    socket: BorrowedFd<'_>,
    name: &str,
    setting: &str,
    value: &str,
) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let ask = |words: &mut [u32]| ioctl(socket, name, words);
    if setting == RULES_NAME {
        return keep_rules(&ask, value);
    }
    let wanted = words_of(value).ok_or_else(invalid)?;
    let mut words = match setting {
        FEATURES_NAME => {
            let present = features(&ask)?;
            let blocks = present.iter().zip(&wanted);
            let blocks = blocks.flat_map(|(block, wanted)| [block[0] & !block[3], *wanted]);
            let count = present.len().min(wanted.len()) as u32;
            [ETHTOOL_SFEATURES, count]
                .into_iter()
                .chain(blocks)
                .collect()
        }
        RSS_NAME => [&[ETHTOOL_SRSSH, 0][..], &wanted].concat(),
        _ => {
            let mut blocks = BLOCKS.iter();
            let block = blocks.find(|it| it.name == setting).ok_or_else(invalid)?;
            let mut words = block.request(block.get + 1);
            for (place, value) in block.places().zip(wanted) {
                words[place] = value;
            }
            words
        }
    };
    ask(&mut words)
}

impl Block {
    fn request(&self, command: u32) -> Vec<u32> {
        let mut words = vec![0; self.words];
        words[0] = command;
        words[1..=self.head.len()].copy_from_slice(self.head);
        words
    }

    /// Returns the indexes of the words that can be set.
    fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.words).filter(|place| self.settable & (1 << place) != 0)
    }
}

type Ask<'a> = &'a dyn Fn(&mut [u32]) -> io::Result<()>;

#[cold]
fn features(ask: Ask<'_>) -> io::Result<Vec<[u32; FEATURES]>> {
    let mut words = [0; 2 + FEATURE_BLOCKS * FEATURES];
    (words[0], words[1]) = (ETHTOOL_GFEATURES, FEATURE_BLOCKS as u32);
    ask(&mut words)?;
    // the kernel has set the second word to the number of blocks
    let count = (words[1] as usize).min(FEATURE_BLOCKS);
    let (blocks, _) = words[2..].as_chunks();
    Ok(blocks[..count].to_vec())
}

#[cold]
fn rss(ask: Ask<'_>) -> io::Result<Vec<u32>> {
    let mut words = vec![0; RSS];
    words[0] = ETHTOOL_GRSSH;
    ask(&mut words)?;
    let room = words[RSS_ENTRIES] as usize + (words[RSS_KEY] as usize).div_ceil(4);
    words[0] = ETHTOOL_GRSSH;
    words.resize(RSS + room, 0);
    ask(&mut words)?;
    Ok(words)
}

/// Adds the flow rules in `value` to the driver, and removes the driver's other rules.
#[cold]
fn keep_rules(ask: Ask<'_>, value: &str) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let wanted = value.split(' ').filter(|it| !it.is_empty()).map(words_of);
    let wanted: Option<Vec<Vec<u32>>> = wanted.collect();
    let wanted = wanted.ok_or_else(invalid)?;
    if wanted.iter().any(|it| it.len() != RULE.len()) {
        return Err(invalid());
    }
    let present = rules(ask)?;
    // a location has only one rule, so the present rule is removed before the changed rule is added
    for rule in present.iter().filter(|it| !wanted.contains(it)) {
        ask(&mut on_rule(ETHTOOL_SRXCLSRLDEL, rule))?;
    }
    for rule in wanted.iter().filter(|it| !present.contains(it)) {
        ask(&mut on_rule(ETHTOOL_SRXCLSRLINS, rule))?;
    }
    Ok(())
}

fn on_rule(command: u32, rule: &[u32]) -> [u32; RULES + 1] {
    let mut words = [0; RULES + 1];
    words[0] = command;
    words[RULE].copy_from_slice(rule);
    words
}

/// Returns the flow rules, in the order of their locations.
#[cold]
fn rules(ask: Ask<'_>) -> io::Result<Vec<Vec<u32>>> {
    let mut words = vec![0; RULES + 1];
    words[0] = ETHTOOL_GRXCLSRLCNT;
    ask(&mut words)?;
    let count = words[RULES_COUNT] as usize;
    words = vec![0; RULES + 1 + count];
    (words[0], words[RULES_COUNT]) = (ETHTOOL_GRXCLSRLALL, count as u32);
    ask(&mut words)?;
    let mut places = words[RULES..RULES + count].to_vec();
    places.sort_unstable();
    let rule = |place| {
        let mut words = [0; RULES + 1];
        (words[0], words[RULES_PLACE]) = (ETHTOOL_GRXCLSRULE, place);
        ask(&mut words).map(|()| words[RULE].to_vec())
    };
    places.into_iter().map(rule).collect()
}

#[cold]
fn text(words: &[u32]) -> String {
    words.iter().map(|word| format!("{word:08x}")).collect()
}

#[cold]
fn words_of(text: &str) -> Option<Vec<u32>> {
    let digits = text.as_bytes().chunks(8);
    let word = |digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    digits.map(word).collect()
}

/// Passes `words` to the driver of the netdev `name`. The first word is the command. The driver writes its answer into
/// `words`. `socket` can be any socket in the netdev's namespace (`sock_do_ioctl()`, `net/socket.c`).
fn ioctl(socket: BorrowedFd<'_>, name: &str, words: &mut [u32]) -> io::Result<()> {
    // SAFETY: the structure consists of numbers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.iter_mut();
    for (to, byte) in room.zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = byte as _;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the name ends with a NUL, and `words` is the whole structure of its command, with the length that the
    // structure states.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_settings::FLOW_RULES;
    use std::{cell::RefCell, collections::BTreeMap};

    /// Models a driver with the flow rules `rules`.
    fn driver(rules: &RefCell<BTreeMap<u32, Vec<u32>>>, words: &mut [u32]) -> io::Result<()> {
        let mut rules = rules.borrow_mut();
        let place = words[RULES_PLACE];
        match words[0] {
            ETHTOOL_GRXCLSRLCNT => words[RULES_COUNT] = rules.len() as u32,
            ETHTOOL_GRXCLSRLALL => {
                for (word, place) in words[RULES..].iter_mut().zip(rules.keys()) {
                    *word = *place;
                }
            }
            ETHTOOL_GRXCLSRULE => words[RULE].copy_from_slice(&rules[&place]),
            ETHTOOL_SRXCLSRLDEL => drop(rules.remove(&place)),
            ETHTOOL_SRXCLSRLINS => {
                let is_new = rules.insert(place, words[RULE].to_vec()).is_none();
                assert!(is_new, "drivers may refuse a place that is taken");
            }
            other => panic!("{other:#x}"),
        }
        Ok(())
    }

    /// Two rules at the same location with different destinations are different rules.
    #[test]
    fn flow_rules_are_kept_by_their_contents() {
        let rule = |place: u32, queue: u32| {
            let mut words = vec![0; RULE.len()];
            (words[38], words[RULES_PLACE - RULE.start]) = (queue, place);
            (place, words)
        };
        let rules = RefCell::new(BTreeMap::from([rule(1, 1), rule(4, 2)]));
        let before = rules.borrow().clone();
        let ask = |words: &mut [u32]| driver(&rules, words);
        let value = before
            .values()
            .map(|it| text(it))
            .collect::<Vec<_>>()
            .join(" ");
        *rules.borrow_mut() = BTreeMap::from([rule(1, 9), rule(7, 2)]);
        keep_rules(&ask, &value).expect("set");
        assert_eq!(*rules.borrow(), before);
        assert!(keep_rules(&ask, "1 4").is_err(), "no rules");
        assert_eq!(*rules.borrow(), before);
        keep_rules(&ask, "").expect("set");
        assert!(rules.borrow().is_empty());
    }

    /// A driver refuses to report rules while it resets the device. If ADD recorded the refusal, DEL changes no rules.
    #[test]
    fn flow_rules_that_cannot_be_read_are_not_taken_for_none() {
        let refuse = |errno| rules_text(&move |_| Err(io::Error::from_raw_os_error(errno)));
        let recorded = |value: Option<String>| {
            let mut settings = DeviceSettings::default();
            if let Some(value) = value {
                settings.set(FLOW_RULES, &value);
            }
            settings
        };
        let present = recorded(Some("0000000100000002".to_owned()));
        let unreadable = recorded(refuse(libc::EBUSY));
        assert_eq!(unreadable.lacking(&present), []);
        assert_eq!(unreadable.lacking(&DeviceSettings::default()), []);
        let none = recorded(refuse(libc::EOPNOTSUPP));
        assert_eq!(none.lacking(&present), [(FLOW_RULES, "")]);
        assert_eq!(none.lacking(&unreadable), []);
        assert_eq!(present.lacking(&unreadable).len(), 1);
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        let words = [0, 1, u32::MAX, 0x1234_5678];
        assert_eq!(words_of(&text(&words)).as_deref(), Some(&words[..]));
        assert_eq!(words_of("xyz"), None);
        assert_eq!(words_of("0"), Some(vec![0]));
    }
}
