// SPDX-License-Identifier: Apache-2.0
//! Outcome of a request, in `NLMSG_ERROR` and `NLMSG_DONE`: the errno and, with `NETLINK_EXT_ACK`, the kernel's
//! error text (`Documentation/userspace-api/netlink/intro.rst`). With `NETLINK_CAP_ACK` an acknowledgement has only the
//! header of the request.

use super::{HEADER, NetlinkError, attribute, text};
use netlink_packet_core::NLM_F_ACK_TLVS;
use nix::libc;
use std::io;

/// `NLMSGERR_ATTR_MSG`
const MESSAGE: u16 = 1;

/// Parses an `NLMSG_ERROR` with `flags`. Errno 0 is the acknowledgement.
pub(super) fn acknowledgement(flags: u16, body: &[u8]) -> Result<(), NetlinkError> {
    outcome(flags, body, body.get(4 + HEADER..).unwrap_or_default())
}

/// Parses an `NLMSG_DONE` with `flags`, which ends a dump.
pub(super) fn end_of_dump(flags: u16, body: &[u8]) -> Result<(), NetlinkError> {
    if body.is_empty() {
        return Ok(());
    }
    outcome(flags, body, body.get(4..).unwrap_or_default())
}

fn outcome(flags: u16, body: &[u8], rest: &[u8]) -> Result<(), NetlinkError> {
    let Some(code) = body.get(..4).and_then(|bytes| bytes.try_into().ok()) else {
        return Err(io::Error::from_raw_os_error(libc::EBADMSG).into());
    };
    let code = i32::from_ne_bytes(code);
    if code >= 0 {
        return Ok(());
    }
    let message = (flags & NLM_F_ACK_TLVS != 0)
        .then(|| attribute(rest, MESSAGE))
        .flatten()
        .and_then(text)
        .map(str::to_owned);
    Err(NetlinkError {
        source: io::Error::from_raw_os_error(code.saturating_neg()),
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message with the errno, the request's header, and the kernel's error text.
    fn error(code: i32, sentence: &str) -> Vec<u8> {
        let mut body = code.to_ne_bytes().to_vec();
        body.extend([0; HEADER]);
        body.extend((sentence.len() as u16 + 5).to_ne_bytes());
        body.extend(MESSAGE.to_ne_bytes());
        body.extend(sentence.as_bytes());
        body.push(0);
        body.resize(body.len().next_multiple_of(4), 0);
        body
    }

    #[test]
    fn the_kernels_sentence_is_found() {
        let sentence = "Nexthop has invalid gateway";
        let error = acknowledgement(NLM_F_ACK_TLVS, &error(-libc::ENETUNREACH, sentence));
        let error = error.expect_err("an error");
        assert_eq!(error.errno(), Some(libc::ENETUNREACH));
        assert_eq!(error.message.as_deref(), Some(sentence));
        assert!(error.to_string().ends_with("(Nexthop has invalid gateway)"));
    }

    #[test]
    fn without_the_flag_no_sentence_is_parsed() {
        let error = acknowledgement(0, &error(-libc::EPERM, "x")).expect_err("error");
        assert_eq!((error.errno(), error.message), (Some(libc::EPERM), None));
    }

    #[test]
    fn success_and_malformed_answers() {
        assert!(acknowledgement(0, &[0; 20]).is_ok());
        assert!(end_of_dump(0, &[]).is_ok());
        assert!(end_of_dump(0, &[0; 4]).is_ok());
        assert_eq!(
            acknowledgement(0, &[1, 2]).expect_err("short").errno(),
            Some(libc::EBADMSG)
        );
        let minimum = acknowledgement(NLM_F_ACK_TLVS, &i32::MIN.to_ne_bytes());
        assert_eq!(minimum.expect_err("an errno").errno(), Some(i32::MAX));
    }
}
