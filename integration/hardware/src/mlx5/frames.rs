// SPDX-License-Identifier: Apache-2.0
//! Ethernet frames, and the changes that a sender's offloads make to them.

const TYPE: usize = 12;
const HEADER: usize = 14;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The largest number of frames into which one request is segmented.
const MAX_SEGMENTS: usize = 1024;
const TCP_FIN_PSH: u8 = 0x09;

/// The offsets of the headers of a TCP or UDP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Headers {
    /// The IP header.
    network: usize,
    is_ipv4: bool,
    /// The TCP or UDP header.
    transport: usize,
    protocol: u8,
}

fn be16(frame: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk::<2>()?))
}

fn put16(frame: &mut [u8], at: usize, value: u16) {
    if let Some(bytes) = frame.get_mut(at..at + 2) {
        bytes.copy_from_slice(&value.to_be_bytes());
    }
}

impl Headers {
    /// Returns the positions of a frame's headers, or `None` if the frame is neither TCP nor UDP, or is a fragment.
    fn of(frame: &[u8]) -> Option<Headers> {
        let mut at = TYPE;
        while TAGS.contains(&be16(frame, at)?) {
            at += 4;
        }
        let (network, kind) = (at + 2, be16(frame, at)?);
        let (is_ipv4, protocol, len) = match kind {
            IPV4 if be16(frame, network + 6)? & 0x3fff == 0 => {
                let len = usize::from(frame.get(network)? & 0xf) * 4;
                (true, *frame.get(network + 9)?, len)
            }
            IPV6 => (false, *frame.get(network + 6)?, 40),
            _ => return None,
        };
        let transport = network + len;
        let needed = match protocol {
            TCP => 20,
            UDP => 8,
            _ => return None,
        };
        (len >= 20 && frame.len() >= transport + needed).then_some(Headers {
            network,
            is_ipv4,
            transport,
            protocol,
        })
    }

    /// The offset of the TCP or UDP checksum.
    fn checksum(self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }
}

/// The one's complement sum of the big-endian 16-bit numbers. An odd last byte is the upper byte of a number.
fn sum(bytes: &[u8], start: u32) -> u32 {
    let words = bytes.chunks(2).map(|it| match it {
        [high, low] => u32::from(*high) << 8 | u32::from(*low),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum = words.fold(u64::from(start), |sum, word| sum + u64::from(word));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u32
}

/// The sum over a frame after its Ethernet header. The driver gets the sum with the frame (`CHECKSUM_COMPLETE`).
pub fn payload_sum(frame: &[u8]) -> u16 {
    sum(frame.get(HEADER..).unwrap_or_default(), 0) as u16
}

/// Inserts a VLAN tag into a frame. `tci` contains priority and VLAN number.
pub fn insert_vlan(frame: &mut Vec<u8>, is_service: bool, tci: u16) {
    if frame.len() >= TYPE {
        let [high, low] = TAGS[usize::from(is_service)].to_be_bytes();
        let [upper, lower] = tci.to_be_bytes();
        frame.splice(TYPE..TYPE, [high, low, upper, lower]);
    }
}

/// Computes the checksums of a TCP or UDP frame, also that of the IPv4 header. Leaves any other frame unchanged.
pub fn fill_checksums(frame: &mut [u8]) {
    let Some(headers) = Headers::of(frame) else {
        return;
    };
    let Headers {
        network, transport, ..
    } = headers;
    let addresses = if headers.is_ipv4 {
        put16(frame, network + 10, 0);
        let value = !sum(&frame[network..transport], 0) as u16;
        put16(frame, network + 10, value);
        network + 12..network + 20
    } else {
        network + 8..network + 40
    };
    let len = (frame.len() - transport) as u32;
    let pseudo = sum(&frame[addresses], len + u32::from(headers.protocol));
    put16(frame, headers.checksum(), 0);
    let value = match !sum(&frame[transport..], pseudo) as u16 {
        // in UDP, 0 means "no checksum"
        0 if headers.protocol == UDP => 0xffff,
        value => value,
    };
    put16(frame, headers.checksum(), value);
}

/// Splits a frame into frames with the same first `header` bytes and at most `size` bytes of the rest. Returns `None`
/// if the frame is neither TCP nor UDP, has too many segments, or `header` or `size` is too small.
pub fn segments(frame: &[u8], header: usize, size: usize) -> Option<Vec<Vec<u8>>> {
    let headers = Headers::of(frame)?;
    let payload = frame.get(header..)?;
    if size == 0 || header <= headers.transport || payload.len().div_ceil(size) > MAX_SEGMENTS {
        return None;
    }
    let count = payload.len().div_ceil(size);
    let cut = |(index, part): (usize, &[u8])| {
        let mut segment = [&frame[..header], part].concat();
        let network = headers.network;
        let len = segment.len() - network;
        if headers.is_ipv4 {
            put16(&mut segment, network + 2, len as u16);
            let id = be16(frame, network + 4).unwrap_or(0);
            put16(&mut segment, network + 4, id.wrapping_add(index as u16));
        } else {
            put16(&mut segment, network + 4, (len - 40) as u16);
        }
        let transport = headers.transport;
        if headers.protocol == TCP {
            let number: [u8; 4] = [0, 1, 2, 3].map(|it| frame[transport + 4 + it]);
            let number = u32::from_be_bytes(number).wrapping_add((index * size) as u32);
            segment[transport + 4..transport + 8].copy_from_slice(&number.to_be_bytes());
            if index + 1 < count {
                segment[transport + 13] &= !TCP_FIN_PSH;
            }
        } else {
            let len = segment.len() - transport;
            put16(&mut segment, transport + 4, len as u16);
        }
        fill_checksums(&mut segment);
        segment
    };
    Some(payload.chunks(size).enumerate().map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 frame with TCP, sequence number 1000, PSH, and `len` bytes of payload.
    fn frame(len: usize) -> Vec<u8> {
        let mut frame = vec![0; HEADER + 40 + len];
        frame[TYPE..HEADER].copy_from_slice(&IPV4.to_be_bytes());
        frame[14] = 0x45;
        frame[18..20].copy_from_slice(&[0xff, 0xff]);
        frame[23] = TCP;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[40..42].copy_from_slice(&1000u16.to_be_bytes()); // the lower half
        frame[46..48].copy_from_slice(&[0x50, 0x18]);
        for (at, byte) in frame[54..].iter_mut().enumerate() {
            *byte = at as u8;
        }
        put16(&mut frame, 16, (40 + len) as u16);
        frame
    }

    fn is_right(frame: &[u8]) -> bool {
        let at = Headers::of(frame).expect("headers");
        let len = (frame.len() - at.transport) as u32;
        let pseudo = sum(
            &frame[at.network + 12..at.network + 20],
            len + u32::from(TCP),
        );
        sum(&frame[at.network..at.transport], 0) == 0xffff
            && sum(&frame[at.transport..], pseudo) == 0xffff
    }

    #[test]
    fn checksums_are_computed() {
        for len in [0, 1, 2, 100] {
            let mut frame = frame(len);
            assert!(!is_right(&frame));
            fill_checksums(&mut frame);
            assert!(is_right(&frame), "{len}");
        }
    }

    #[test]
    fn a_long_frame_is_cut() {
        let cut = segments(&frame(2500), 54, 1000).expect("segments");
        assert_eq!(
            cut.iter().map(Vec::len).collect::<Vec<_>>(),
            [1054, 1054, 554]
        );
        for (index, segment) in (0..).zip(&cut) {
            assert!(is_right(segment));
            assert_eq!(
                segment[38..42],
                (1000 + 1000 * u32::from(index)).to_be_bytes()
            );
            assert_eq!(be16(segment, 18), Some(0xffffu16.wrapping_add(index)));
            assert_eq!(segment[47], if index == 2 { 0x18 } else { 0x10 });
        }
        assert_eq!(segments(&frame(100), 54, 0), None);
        assert_eq!(segments(&frame(100), 14, 10), None);
        assert_eq!(segments(&[0; 60], 54, 10), None);
    }

    #[test]
    fn a_tag_is_in_front_of_the_type() {
        let mut tagged = frame(10);
        insert_vlan(&mut tagged, false, 0x6064);
        assert_eq!(tagged[12..18], [0x81, 0, 0x60, 0x64, 8, 0]);
        fill_checksums(&mut tagged);
        assert!(is_right(&tagged));
    }
}
