// SPDX-License-Identifier: Apache-2.0
//! Names of RDMA devices as text. Any pod with `NET_ADMIN` can rename its RDMA devices, and the kernel accepts any
//! bytes except NUL (`nldev_set_doit()`, `drivers/infiniband/core/nldev.c`).

use std::{
    ffi::OsString,
    fmt::Write as _,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// Returns `name` as text. `\`, `/`, control characters and bytes that are not UTF-8 become `\xNN`. Different names
/// have different texts.
pub fn text(name: &[u8]) -> String {
    let mut text = String::new();
    let escape = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "\\x{byte:02x}");
        }
    };
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' | '/' => escape(&mut text, &[character as u8]),
                character if character.is_control() => {
                    escape(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                character => text.push(character),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// Returns the name from which [`text`] made `text`.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(|it| u8::from_str_radix(it, 16).ok());
        bytes.extend(byte);
        bytes.extend(part.bytes().skip(2));
    }
    bytes
}

/// Returns the sysfs directory of the RDMA device `name`. For a name with a `/`, the directory does not exist.
pub fn directory(sysfs: &Path, name: &str) -> PathBuf {
    let bytes = Some(bytes(name)).filter(|it| !it.contains(&b'/'));
    let name = bytes.unwrap_or_else(|| name.as_bytes().to_vec());
    let class = sysfs.join("class/infiniband");
    class.join(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_text_of_its_own() {
        for (name, expected) in [
            (&b"mlx5_0"[..], "mlx5_0"),
            ("rå \u{1f600}".as_bytes(), "rå \u{1f600}"),
            (b"\xff\xfe", "\\xff\\xfe"),
            (b"a\xffb", "a\\xffb"),
            (b"\\xff", "\\x5cxff"),
            (b"a/b", "a\\x2fb"),
            (b"a\nb\x7f", "a\\x0ab\\x7f"),
            ("\u{85}".as_bytes(), "\\xc2\\x85"),
            (b"", ""),
        ] {
            let text = text(name);
            assert_eq!(text, expected);
            assert_eq!(bytes(&text), name, "{text}");
        }
    }

    #[test]
    fn a_directory_is_below_the_class() {
        let directory = |name: &[u8]| directory(Path::new("/sys"), &text(name));
        let class = Path::new("/sys/class/infiniband");
        assert_eq!(directory(b"mlx5_0"), class.join("mlx5_0"));
        let odd = OsString::from_vec(b"\xff".to_vec());
        assert_eq!(directory(b"\xff"), class.join(odd));
        for name in ["/etc", "../../x"] {
            assert_eq!(directory(name.as_bytes()).parent(), Some(class));
        }
    }
}
