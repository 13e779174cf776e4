// SPDX-License-Identifier: Apache-2.0
//! Compares the kernel's interfaces that the sources define by hand (numbers, sizes and offsets) with the kernel's own
//! headers. The C compiler for this program's architecture compares them: `scripts/test` for amd64,
//! `scripts/test --full` also for arm64.
//!
//! The test compares a constant if its name is a name of the headers, or if its comment begins with the C expression
//! whose value it has: `` /// `sizeof(struct ndmsg)` ``. A comment like `` /// `SMC_NLA_DEV_*` `` gives the prefix
//! that the names below it have in the headers.

use std::{
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const HEADERS: &[&str] = &[
    "stddef.h",
    "netinet/in.h",
    "sys/socket.h",
    "asm/socket.h",
    "linux/bpf.h",
    "linux/devlink.h",
    "linux/ethtool.h",
    "linux/fib_rules.h",
    "linux/genetlink.h",
    "linux/if.h",
    "linux/icmpv6.h",
    "linux/if_ether.h",
    "linux/if_link.h",
    "linux/net_namespace.h",
    "linux/nexthop.h",
    "linux/rtnetlink.h",
    "linux/smc.h",
    "linux/smc_diag.h",
    "linux/sock_diag.h",
    "linux/sockios.h",
    "rdma/ib_user_verbs.h",
    "rdma/rdma_netlink.h",
    "rdma/rdma_user_cm.h",
];

/// Prefixes of names in the headers.
const NAMES: &[&str] = &[
    "BPF_", "CTRL_", "ETHTOOL_", "FRA_", "GENL_", "IFA_", "IFLA_", "NDA_", "NETNSA_", "NHA_",
    "RTAX_", "RTA_", "RTM_", "RTNH_", "RTNLGRP_", "SO_",
];

/// Enumerations that a comment can name, each with the prefix of its names.
const ENUMERATIONS: &[(&str, &str)] = &[
    ("enum rdma_nldev_attr", "RDMA_NLDEV_ATTR_"),
    ("enum rdma_nldev_command", "RDMA_NLDEV_CMD_"),
];

/// Offsets and sizes that the sources use in messages without a named constant: in `neighbours`, `monitor`, `routes`,
/// `vfs`, `nldev`, `smc::diag`, `sidr`.
const PLACES: &[(&str, usize)] = &[
    ("offsetof(struct ndmsg, ndm_ifindex)", 4),
    ("offsetof(struct ndmsg, ndm_state)", 8),
    ("offsetof(struct ifaddrmsg, ifa_scope)", 3),
    ("offsetof(struct rta_cacheinfo, rta_expires)", 8),
    ("offsetof(struct rtvia, rtvia_addr)", 2),
    ("offsetof(struct rtnexthop, rtnh_len)", 0),
    ("offsetof(struct nexthop_grp, id)", 0),
    ("offsetof(struct ifla_vf_mac, mac)", 4),
    ("offsetof(struct ifla_vf_vlan_info, vlan_proto)", 12),
    // the compiler's padding precedes the 64 bits
    ("offsetof(struct ifla_vf_guid, guid)", 8),
    ("sizeof(struct ifla_vf_guid)", 16),
    ("offsetof(struct sockaddr_in, sin_addr)", 4),
    ("offsetof(struct sockaddr_in6, sin6_addr)", 8),
    ("offsetof(struct smc_diag_req, diag_ext)", 3),
    ("offsetof(struct smc_diag_msg, diag_state)", 1),
    ("offsetof(struct smc_diag_msg, diag_mode)", 2),
    ("offsetof(struct smc_diag_msg, id.idiag_sport)", 4),
    ("offsetof(struct smc_diag_msg, id.idiag_dport)", 6),
    ("offsetof(struct smc_diag_msg, id.idiag_src)", 8),
    ("offsetof(struct smc_diag_msg, id.idiag_dst)", 24),
    ("offsetof(struct smc_diag_msg, diag_uid)", 52),
    ("offsetof(struct smc_diag_msg, diag_inode)", 56),
    ("offsetof(struct smc_diag_linkinfo, ibname)", 1),
    ("offsetof(struct smc_diag_linkinfo, ibport)", 65),
    ("offsetof(struct smc_diag_linkinfo, gid)", 66),
    ("offsetof(struct smc_diag_linkinfo, peer_gid)", 106),
    ("offsetof(struct smc_diag_lgrinfo, lnk)", 0),
    ("offsetof(struct smc_diag_fallback, peer_diagnosis)", 4),
    ("sizeof(struct rdma_ucm_cmd_hdr)", 8),
    ("sizeof(struct rdma_ucm_create_id)", 24),
    ("sizeof(struct rdma_ucm_bind)", 136),
    ("sizeof(struct rdma_ucm_resolve_addr)", 272),
    ("sizeof(struct rdma_ucm_resolve_route)", 8),
    ("sizeof(struct rdma_ucm_set_option)", 24),
    ("sizeof(struct rdma_ucm_query)", 16),
    ("sizeof(struct rdma_ucm_query_addr_resp)", 280),
    ("sizeof(struct rdma_ucm_connect)", 288),
    ("sizeof(struct rdma_ucm_get_event)", 8),
    ("sizeof(struct rdma_ucm_event_resp)", 336),
    ("offsetof(struct rdma_ucm_cmd_hdr, out)", 6),
    ("offsetof(struct rdma_ucm_create_id, response)", 8),
    ("offsetof(struct rdma_ucm_create_id, ps)", 16),
    ("offsetof(struct rdma_ucm_create_id, qp_type)", 18),
    ("offsetof(struct rdma_ucm_bind, addr_size)", 4),
    ("offsetof(struct rdma_ucm_bind, addr)", 8),
    ("offsetof(struct rdma_ucm_resolve_addr, timeout_ms)", 4),
    ("offsetof(struct rdma_ucm_resolve_addr, src_size)", 8),
    ("offsetof(struct rdma_ucm_resolve_addr, dst_size)", 10),
    ("offsetof(struct rdma_ucm_resolve_addr, src_addr)", 16),
    ("offsetof(struct rdma_ucm_resolve_addr, dst_addr)", 144),
    ("offsetof(struct rdma_ucm_resolve_route, timeout_ms)", 4),
    ("offsetof(struct rdma_ucm_set_option, id)", 8),
    ("offsetof(struct rdma_ucm_set_option, level)", 12),
    ("offsetof(struct rdma_ucm_set_option, optname)", 16),
    ("offsetof(struct rdma_ucm_set_option, optlen)", 20),
    ("offsetof(struct rdma_ucm_query, id)", 8),
    ("offsetof(struct rdma_ucm_query, option)", 12),
    ("offsetof(struct rdma_ucm_query_addr_resp, port_num)", 8),
    ("offsetof(struct rdma_ucm_query_addr_resp, src_addr)", 16),
    (
        "offsetof(struct rdma_ucm_query_addr_resp, ibdev_index)",
        272,
    ),
    ("offsetof(struct rdma_ucm_connect, conn_param.valid)", 271),
    ("offsetof(struct rdma_ucm_connect, id)", 272),
    ("offsetof(struct rdma_ucm_event_resp, event)", 12),
    ("offsetof(struct rdma_ucm_event_resp, status)", 16),
    ("offsetof(struct rdma_ucm_event_resp, reserved)", 324),
];

/// A constant whose value must be the value in the headers.
#[derive(Debug)]
struct Claim {
    place: String,
    expression: String,
    value: String,
}

/// Returns the claims in a source file.
fn claims(file: &Path, text: &str) -> Vec<Claim> {
    let mut claims = Vec::new();
    let (mut comment, mut prefix, mut of_module) = (String::new(), None, false);
    let mut expressions = Vec::new().into_iter();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("/// ") {
            comment.push_str(doc);
            comment.push(' ');
            continue;
        }
        let is_new = !comment.is_empty();
        let doc = std::mem::take(&mut comment);
        let Some(constant) = Constant::parse(line) else {
            of_module = (of_module || line.starts_with("mod ")) && line != "}";
            if is_new || !of_module {
                prefix = prefix_of(&doc).filter(|_| of_module);
            }
            continue;
        };
        if is_new {
            expressions = expressions_of(&doc).into_iter();
            if !of_module {
                prefix = prefix_of(&doc);
            }
        }
        let by_comment = expressions.next();
        let by_prefix = prefix
            .as_ref()
            .map(|prefix| format!("{prefix}{}", constant.name));
        let by_name = NAMES
            .iter()
            .any(|it| constant.name.starts_with(it))
            .then(|| constant.name.to_owned())
            // a `usize` is an offset in a message
            .filter(|_| constant.kind != "usize");
        if let Some(expression) = by_comment.or(by_prefix).or(by_name) {
            claims.push(Claim {
                place: format!("{}:{}", file.display(), number + 1),
                expression,
                value: constant.value.replace('_', ""),
            });
        }
    }
    claims
}

struct Constant<'a> {
    name: &'a str,
    kind: &'a str,
    value: &'a str,
}

impl<'a> Constant<'a> {
    /// Parses the declaration of a constant that is a number.
    fn parse(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once("const ")?;
        let (name, rest) = rest.split_once(": ")?;
        let (kind, value) = rest.strip_suffix(';')?.split_once(" = ")?;
        let is_number = value.starts_with(|it: char| it.is_ascii_digit()) && !value.contains("..");
        is_number.then_some(Self { name, kind, value })
    }
}

/// Returns the C expressions in backquotes at the beginning of a comment, in order. They belong to the constants below
/// the comment.
fn expressions_of(comment: &str) -> Vec<String> {
    let mut expressions = Vec::new();
    let mut rest = comment;
    while let Some((expression, behind)) =
        rest.strip_prefix('`').and_then(|rest| rest.split_once('`'))
    {
        let is_name = |name: &str| {
            let mut all = name.chars();
            all.all(|it| it.is_ascii_uppercase() || it.is_ascii_digit() || it == '_')
        };
        if !(expression.contains("sizeof(") || expression.split('|').all(is_name)) {
            break;
        }
        // headers that programs cannot include are no part of the interface
        if behind.starts_with(", `include/linux/") {
            break;
        }
        expressions.push(expression.to_owned());
        rest = behind
            .strip_prefix(", ")
            .or(behind.strip_prefix(" and "))
            .unwrap_or_default();
    }
    expressions
}

/// Returns the prefix that the names below the comment have in the headers, and lack in the sources.
fn prefix_of(comment: &str) -> Option<String> {
    let (quoted, _) = comment.strip_prefix('`')?.split_once('`')?;
    let enumeration = ENUMERATIONS.iter().find(|(name, _)| *name == quoted);
    let prefix = enumeration
        .map(|(_, prefix)| *prefix)
        .or(quoted.strip_suffix('*'))?;
    Some(prefix.to_owned())
}

/// Adds the source files below `directory`, without tests, to `into`.
fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|it| it.to_str()).expect("UTF-8");
        if path.is_dir() {
            sources(&path, into);
        } else if name.ends_with(".rs") && !name.contains("tests") {
            into.push(path);
        }
    }
}

/// Returns the messages of the C compiler for these assertions. Returns an empty text if the assertions hold.
fn compile(assertions: &str) -> String {
    let (macro_of, cross) = match env::consts::ARCH {
        "x86_64" => ("__x86_64__", None),
        "aarch64" => ("__aarch64__", Some("aarch64-linux-gnu-gcc")),
        other => panic!("no headers are known of {other}"),
    };
    let mut text = format!("#ifndef {macro_of}\n#error another architecture\n#endif\n");
    for header in HEADERS {
        writeln!(text, "#include <{header}>").expect("a String");
    }
    text.push_str(assertions);
    let compiler = cross.unwrap_or("gcc");
    let mut command = Command::new(compiler);
    command.args(["-fsyntax-only", "-x", "c", "-"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(text.as_bytes()).expect("written");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), errors.is_empty(), "{errors}");
    errors
}

fn assertion(expression: &str, value: &str, place: &str) -> String {
    format!("_Static_assert(({expression}) == ({value}), \"{place}\");\n")
}

#[test]
fn numbers_are_the_kernels() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        all.extend(claims(&file, &text));
    }
    let assertions: String = all
        .iter()
        .map(|it| assertion(&it.expression, &it.value, &it.place))
        .collect();
    assert_eq!(compile(&assertions), "");
    // the sources have at least one comment of each kind
    for known in [
        "sizeof(struct smc_diag_msg)",
        "SMC_GEN_LINK_SMCR",
        "SMC_NLA_DEV_PORT2",
        "SMC_NLA_LINK_STATE",
        "RDMA_NLDEV_ATTR_CHARDEV",
        "RDMA_NLDEV_CMD_SYS_SET",
        "NUD_REACHABLE|NUD_STALE|NUD_DELAY|NUD_PROBE|NUD_PERMANENT",
        "SO_NETNS_COOKIE",
        "IFLA_VF_IB_PORT_GUID",
    ] {
        assert!(
            all.iter().any(|it| it.expression == known),
            "{known}: {all:?}"
        );
    }
    assert!(all.len() > 150, "{} numbers", all.len());
}

#[test]
fn messages_have_their_parts_where_they_are_read() {
    let assertions: String = PLACES
        .iter()
        .map(|(expression, value)| assertion(expression, &value.to_string(), "a place"))
        .collect();
    assert_eq!(compile(&assertions), "");
}

#[test]
fn a_wrong_number_is_found() {
    let wrong = assertion("sizeof(struct nlmsghdr)", "17", "here");
    assert!(compile(&wrong).contains("\"here\""));
    let unknown = assertion("IFLA_NOBODYS", "1", "there");
    assert!(compile(&unknown).contains("IFLA_NOBODYS"));
    let text = "/// `sizeof(struct nlmsghdr)`\nconst HEADER: usize = 1_6;\n";
    let [claim] = &claims(Path::new("a"), text)[..] else {
        panic!("not one");
    };
    assert_eq!((claim.place.as_str(), claim.value.as_str()), ("a:2", "16"));
}
