// SPDX-License-Identifier: Apache-2.0

use super::*;

fn offset(text: &str) -> Offset {
    Offset::parse(text).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn an_offset_counts_from_either_end() {
    for (text, prefix, ip) in [
        ("+0", "10.1.0.0/24", "10.1.0.0"),
        ("+50", "10.1.0.0/24", "10.1.0.50"),
        ("+300", "10.1.0.0/16", "10.1.1.44"),
        ("-0", "10.1.0.0/24", "10.1.0.255"),
        ("-6", "10.1.0.0/24", "10.1.0.249"),
        ("+0x1000", "fd00:1::/64", "fd00:1::1000"),
        ("-1", "fd00:1::/64", "fd00:1::ffff:ffff:ffff:fffe"),
        ("-0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ] {
        let prefix = cidr(prefix).unwrap();
        let place = offset(text).in_prefix(prefix);
        let expected = number(ip.parse().unwrap());
        assert_eq!(place, Some(expected), "{text} of {prefix}");
    }
    for text in ["+256", "-256", "+0xffffffffffffffffffffffffffffffff"] {
        let prefix = cidr("10.1.0.0/24").unwrap();
        assert_eq!(offset(text).in_prefix(prefix), None, "{text}");
    }
}

#[test]
fn an_offset_has_one_sign_and_one_number() {
    for text in [
        "",
        "+",
        "-",
        "50",
        "++5",
        "+-5",
        "-+5",
        "+0x",
        "+0x+5",
        "+5a",
        "+ 5",
        "+5 ",
        "+1.5",
        "+0X5",
        "\u{2212}6",
        "+0xg",
        "+340282366920938463463374607431768211456",
    ] {
        assert_eq!(Offset::parse(text), None, "{text:?}");
    }
}

/// The test tries every pair of bounds in prefixes of length 26, 28 and 30. Each pair is refused, or leaves exactly
/// the addresses between the bounds. The netdev's own address is never among these addresses.
#[test]
fn bounds_leave_what_is_between_them() {
    let all = |size: u128| {
        let first = (0..=size).map(Offset::First);
        first.chain((0..=size).map(Offset::Last))
    };
    for length in [26, 28, 30] {
        let prefix = cidr(&format!("10.1.0.64/{length}")).unwrap();
        let (first, size) = (number(prefix.network()), 1 << (32 - length));
        let own = Family::V4.address(first + size / 2);
        let owned = IpNetwork::new(own, length).unwrap();
        for (start, end) in all(size).flat_map(|it| all(size).map(move |end| (it, end))) {
            let bounds = Bounds {
                start: Some(start),
                end: Some(end),
                ..Bounds::none(Family::V4)
            };
            let places = (start.in_prefix(prefix), end.in_prefix(prefix));
            let Ok(bounds) = bounds.checked() else {
                let (start, end) = places;
                assert!(start.is_none() || end.is_none() || start > end);
                continue;
            };
            let mut range = Range::of_prefix(prefix).unwrap();
            let cut = bounds.cut(&mut range, &[owned]);
            let context = format!("{start}..{end} of {prefix}: {cut:?}");
            match places {
                (Some(start), Some(end)) if start <= end => {
                    assert_eq!((range.start, range.end), (start, end), "{context}");
                    let is_own = (start..=end).contains(&number(own));
                    assert_eq!(cut == Err(BoundsError::Own(own)), is_own, "{context}");
                    assert_eq!(cut == Ok(vec![]), !is_own, "{context}");
                }
                (Some(_), Some(_)) => {
                    assert!(matches!(cut, Err(BoundsError::Crossed { .. })), "{context}");
                }
                _ => assert!(matches!(cut, Err(BoundsError::Outside { .. })), "{context}"),
            }
        }
    }
}

/// Nodes with different addresses and the same configuration never assign the same address, and never assign a
/// node's address.
#[test]
fn blocks_of_different_nodes_are_disjoint() {
    let prefix = cidr("10.1.0.0/22").unwrap();
    let node = |own: u128, size| {
        let bounds = Bounds {
            start: Some(offset("+32")),
            end: Some(offset("-2")),
            per_node: Some(size),
            ..Bounds::none(Family::V4)
        };
        let mut range = Range::of_prefix(prefix).unwrap();
        let own = Family::V4.address(number(prefix.network()) + own);
        let own = IpNetwork::new(own, prefix.prefix()).unwrap();
        let cut = bounds.cut(&mut range, &[own]);
        cut.map(|_| (range.start, range.end))
    };
    for size in [1, 3, 16, 32, 33, 100] {
        let mut given = std::collections::BTreeSet::new();
        for own in 1..32 {
            match node(own, size) {
                Ok((start, end)) => {
                    assert_eq!(end - start + 1, u128::from(size));
                    for ip in start..=end {
                        assert!(given.insert(ip), "node {own} and another one give {ip}");
                        assert!(ip >= number(prefix.network()) + 32);
                    }
                }
                Err(BoundsError::Block { node, .. }) => assert_eq!(node, own),
                other => panic!("{other:?}"),
            }
        }
        assert!(!given.is_empty());
    }
    assert!(matches!(node(32, 1), Err(BoundsError::Own(_))));
}

#[test]
fn an_excluded_own_address_is_in_order() {
    let prefix = cidr("10.1.0.0/24").unwrap();
    let own = cidr("10.1.0.77/24").unwrap();
    for (element, numbers) in [
        ("+77", (77, 77)),
        ("+70..+80", (70, 80)),
        ("+70..-100", (70, 155)),
        ("10.1.0.77", (77, 77)),
        ("10.1.0.64/28", (64, 79)),
        ("10.1.0.70..10.1.0.77", (70, 77)),
    ] {
        let bounds = Bounds {
            start: Some(offset("+50")),
            excluded: vec![Excluded::parse(element).expect(element)],
            ..Bounds::none(Family::V4)
        };
        let mut range = Range::of_prefix(prefix).unwrap();
        let first = number(prefix.network());
        let expected = vec![(first + numbers.0, first + numbers.1)];
        let cut = bounds.cut(&mut range, &[own]);
        assert_eq!(cut, Ok(expected), "{element}");
    }
}

#[test]
fn elements_of_exclude_are_read_strictly() {
    for text in [
        "",
        "..",
        "+1..",
        "..+9",
        "+9..+1",
        "-1..-9",
        "+1..10.0.0.9",
        "10.0.0.9..10.0.0.1",
        "10.0.0.1..fd00::1",
        "10.0.0.0/33",
        "10.0.0.5/26",
        "fd00::1/127",
        "10.0.0.0/26..10.0.0.64/26",
        "+1...+9",
        "+1-+9",
        "::ffff:10.0.0.1",
    ] {
        assert_eq!(Excluded::parse(text), None, "{text:?}");
    }
}
