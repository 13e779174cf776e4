// SPDX-License-Identifier: Apache-2.0
//! Vital product data of PCI functions (PCI Local Bus Specification 3.0, appendix I): maker and model of a card.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Tag of the read-only section (`PCI_VPD_LRDT_RO_DATA`, `drivers/pci/vpd.c`).
const READ_ONLY: u8 = 0x90;
/// Bit that is set in the tags of sections with a two-byte length.
const LARGE: u8 = 0x80;
/// Tag that ends the data (`PCI_VPD_STIN_END`).
const END: u8 = 0x78;

/// Cache of vital product data. The data are constant, and the kernel reads them from the device in steps of four
/// bytes.
static READ: Mutex<BTreeMap<PathBuf, Vec<u8>>> = Mutex::new(BTreeMap::new());

/// Returns the vital product data of the function at `directory`. Returns `None` if the data are absent or unreadable.
pub(super) fn read(directory: &Path) -> Option<Vec<u8>> {
    let file = directory.join("vpd");
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = read.get(&file) {
        return Some(known.clone());
    }
    let data = fs::read(&file).ok()?;
    read.insert(file, data.clone());
    Some(data)
}

/// Returns the value of `keyword` in the read-only section of a PCI function's vital product data.
pub fn value<'a>(data: &'a [u8], keyword: &[u8; 2]) -> Option<&'a [u8]> {
    let mut fields = part(data, READ_ONLY)?;
    while let [a, b, length, rest @ ..] = fields {
        let (value, rest) = rest.split_at_checked(usize::from(*length))?;
        if [*a, *b] == *keyword {
            return Some(value);
        }
        fields = rest;
    }
    None
}

fn part(mut data: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        let (tag, length, rest) = match data {
            [tag, low, high, rest @ ..] if tag & LARGE != 0 => {
                (*tag, u16::from_le_bytes([*low, *high]), rest)
            }
            [tag, rest @ ..] if *tag != END && tag & LARGE == 0 => {
                (tag & 0x78, u16::from(tag & 7), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(usize::from(length))?;
        if tag == wanted {
            return Some(content);
        }
        data = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns vital product data: the name of a card, the read-only section, and the end tag.
    fn data(fields: &[(&[u8; 2], &[u8])]) -> Vec<u8> {
        let mut own = Vec::new();
        for (keyword, value) in fields {
            own.extend_from_slice(*keyword);
            own.push(u8::try_from(value.len()).expect("short"));
            own.extend_from_slice(value);
        }
        let length = u16::try_from(own.len()).expect("short").to_le_bytes();
        let mut data = b"\x82\x03\x00CX8\x90".to_vec();
        data.extend(length);
        data.extend(own);
        data.push(END);
        data
    }

    #[test]
    fn a_keyword_is_found_among_others() {
        let data = data(&[(b"PN", b"900-9X"), (b"V3", b"c0ffee"), (b"RV", b"\x00")]);
        assert_eq!(value(&data, b"V3"), Some(b"c0ffee".as_slice()));
        assert_eq!(value(&data, b"SN"), None);
    }

    #[test]
    fn truncated_data_is_ignored() {
        let whole = data(&[(b"V3", b"c0ffee")]);
        for length in 0..whole.len() - 1 {
            assert_eq!(value(&whole[..length], b"V3"), None, "{length} bytes");
        }
        assert_eq!(value(b"\x82\x03\x00CX8\x78\x90\x03\x00V3\x00", b"V3"), None);
        assert_eq!(value(&[0xff; 64], b"V3"), None);
    }
}
