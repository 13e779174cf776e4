// SPDX-License-Identifier: Apache-2.0
//! Draws the node as SVG: NUMA nodes with their NICs on the left, pods on the right, and lines from NICs to pods. The
//! drawing has a maximum number of elements. It shows how many further elements it leaves out.

use super::{
    nics::{Device, Link, Nic, Numa},
    pods::{self, Pod},
    text::{count, cut, text},
};
use attachments::pods::PodRail;

const NICS: usize = 48;
/// Largest number of drawn virtual functions and sub-functions, of all NICs together.
const CELLS: usize = 512;
const PODS: usize = 12;
/// Largest number of drawn rails, of all pods together.
const RAILS: usize = 64;
/// Number of rail colours in the style sheet.
const COLOURS: usize = 8;

/// Width of the drawing in its own unit. The unit is one pixel if the page is wide enough.
const WIDTH: usize = 1160;
/// Width of a NUMA node's box.
const NUMA: usize = 540;
/// Left edge of the pods' boxes.
const POD: usize = 700;
/// Space between boxes, and inside the boxes.
const GAP: usize = 12;
const HEADING: usize = 34;
const CARD: usize = 50;
/// Height of a NIC without RDMA and functions.
const LOW_CARD: usize = 30;
const ROW: usize = 20;
/// Distance between two neighbouring squares. Each square is a virtual function or sub-function.
const CELL: usize = 12;

/// Point at a NIC where the lines of its rails begin.
struct Port<'a> {
    nic: &'a Nic,
    y: usize,
    colour: usize,
}

pub(super) fn drawing(numa: &[Numa], pods: &[Pod]) -> String {
    let (left, ports, low) = nodes(numa);
    let (right, rails, low_right) = boxes(pods, &ports);
    // add 2: a line is drawn on both sides of its coordinates
    let height = low.max(low_right) + 2;
    format!(
        "<div class=\"drawing\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"NUMA nodes with their NICs, and the pods that have rails of them\">\
         {left}{rails}{right}</svg></div>"
    )
}

/// Draws the NUMA nodes. Also returns the points where the lines of rails begin, and the lower edge of the boxes.
fn nodes(numa: &[Numa]) -> (String, Vec<Port<'_>>, usize) {
    let (mut drawn, mut ports, mut y) = (String::new(), Vec::new(), 0);
    if numa.is_empty() {
        let none = note(
            GAP,
            HEADING,
            "This node has no NIC on the PCI or auxiliary bus.",
        );
        return (none, ports, 2 * HEADING);
    }
    let mut cells = CELLS;
    let mut colours = (0..COLOURS).cycle();
    for node in numa {
        let top = y;
        y += HEADING;
        let mut cards = String::new();
        let room = NICS - ports.len();
        for nic in node.nics.iter().take(room) {
            let functions = &nic.functions[..nic.functions.len().min(cells)];
            cells -= functions.len();
            let height = height(nic, functions);
            let colour = match height {
                LOW_CARD => 0,
                _ => colours.next().unwrap_or_default(),
            };
            cards.push_str(&card(nic, functions, (y, height), colour));
            ports.push(Port {
                nic,
                y: y + CARD.min(height) / 2,
                colour,
            });
            y += height + GAP / 2;
        }
        if node.nics.len() > room {
            let more = format!("and {} more NICs", count(node.nics.len() - room));
            cards.push_str(&note(2 * GAP, y + ROW / 2 + 4, &more));
            y += ROW;
        }
        y += GAP / 2;
        drawn.push_str(&heading(node, top, y - top));
        drawn.push_str(&cards);
        y += GAP;
    }
    (drawn, ports, y - GAP)
}

fn heading(node: &Numa, y: usize, height: usize) -> String {
    let name = match node.number {
        Some(number) => format!("NUMA node {number}"),
        None => "NUMA node not known".to_owned(),
    };
    let accelerators = match node.accelerators {
        0 => String::new(),
        1 => "1 accelerator".to_owned(),
        many => format!("{} accelerators", count(many)),
    };
    let (at, end) = (y + 22, NUMA - GAP);
    format!(
        "<rect class=\"numa\" x=\"0.5\" y=\"{y}.5\" width=\"{NUMA}\" height=\"{height}\" rx=\"8\"/>\
         <text class=\"title\" x=\"{GAP}\" y=\"{at}\">{name}</text>\
         <text class=\"small end\" x=\"{end}\" y=\"{at}\">{accelerators}</text>"
    )
}

fn height(nic: &Nic, functions: &[Device]) -> usize {
    match nic.functions.len() {
        0 if !nic.own.counts() => LOW_CARD,
        0 => CARD,
        _ => CARD + ROW + functions.len().div_ceil(cells_in_row()) * CELL + CELL / 2,
    }
}

fn cells_in_row() -> usize {
    (NUMA - 5 * GAP) / CELL
}

fn card(nic: &Nic, cells: &[Device], (y, height): (usize, usize), colour: usize) -> String {
    let (class, state) = state(nic);
    let width = NUMA - 2 * GAP;
    let quiet = if height == LOW_CARD { " quiet" } else { "" };
    let (x, end) = (2 * GAP + 4, NUMA - 2 * GAP);
    let (first, second) = (y + 20, y + 39);
    let netdev = nic.netdev.as_deref().unwrap_or_default();
    let mut drawn = format!(
        "<g class=\"nic {class}{quiet}\"><rect class=\"card\" x=\"{GAP}\" y=\"{y}\" width=\"{width}\" \
         height=\"{height}\" rx=\"6\"/><rect class=\"mark\" x=\"{GAP}\" y=\"{y}\" width=\"5\" height=\"{height}\" \
         rx=\"2\"/><text class=\"name\" x=\"{x}\" y=\"{first}\">{name}<tspan class=\"netdev\" dx=\"10\">{netdev}</tspan>\
         </text><text class=\"state end\" x=\"{end}\" y=\"{first}\">{state}</text>",
        name = cut(&nic.own.name, 20),
        netdev = cut(netdev, 24),
        state = text(&state),
    );
    if height >= CARD {
        let about = nic.own.fault.clone();
        let about = about.unwrap_or_else(|| nic.about.join(" · "));
        drawn.push_str(&format!(
            "<text class=\"small about\" x=\"{x}\" y=\"{second}\">{}<title>{}</title></text>",
            cut(&about, 78),
            text(&about)
        ));
    }
    if !nic.functions.is_empty() {
        drawn.push_str(&functions(&nic.functions, cells, (x, y + CARD)));
    }
    if height >= CARD {
        let y = y + CARD / 2;
        let x = NUMA - GAP;
        drawn.push_str(&format!(
            "<circle class=\"c{colour}\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>"
        ));
    }
    drawn + "</g>"
}

/// Returns the CSS class and the text for the NIC's link and health.
fn state(nic: &Nic) -> (&'static str, String) {
    let words = nic.link.words();
    match (&nic.own.fault, &nic.link) {
        (Some(_), Link::Unknown(_)) => ("bad", format!("● unhealthy, {words}")),
        (Some(_), _) => ("bad", format!("● unhealthy, link {words}")),
        (None, Link::Up(_)) => ("ok", format!("● {words}")),
        (None, Link::Down(_) | Link::Unknown(_)) => ("off", format!("○ {words}")),
    }
}

/// Draws the number of functions, how many of them are in pods or unhealthy, and one square for each function of
/// `cells`.
fn functions(functions: &[Device], cells: &[Device], (x, y): (usize, usize)) -> String {
    let held = functions.iter().filter(|it| it.pod.is_some()).count();
    let bad = functions.iter().filter(|it| it.fault.is_some());
    let words = [
        format!("{} functions", count(functions.len())),
        format!("{} in pods", count(held)),
        format!("{} unhealthy", count(bad.count())),
    ];
    let more = match functions.len() - cells.len() {
        0 => String::new(),
        more => format!(", {} functions not drawn", count(more)),
    };
    let mut drawn = format!(
        "<text class=\"small\" x=\"{x}\" y=\"{}\">{}{more}</text>",
        y + 11,
        words.join(", ")
    );
    for (place, function) in cells.iter().enumerate() {
        let (column, row) = (place % cells_in_row(), place / cells_in_row());
        let class = match (&function.fault, &function.pod) {
            (Some(_), _) => "bad",
            (None, Some(_)) => "held",
            (None, None) => "free",
        };
        let holder = match &function.pod {
            Some(pod) => format!("{}: {pod}", function.name),
            None => function.name.clone(),
        };
        drawn.push_str(&format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"9\" height=\"9\" rx=\"2\"><title>{}</title></rect>",
            x + column * CELL,
            y + ROW + row * CELL,
            cut(&holder, 80)
        ));
    }
    drawn
}

/// Draws the pods, and the lines from NICs to pods. Also returns the lower edge of the boxes.
fn boxes(pods: &[Pod], ports: &[Port<'_>]) -> (String, String, usize) {
    let (mut drawn, mut lines, mut y, mut left) = (String::new(), String::new(), 0, RAILS);
    let mut shown = 0;
    for pod in pods.iter().take(PODS) {
        if left == 0 {
            break;
        }
        shown += 1;
        let rails = &pod.rails[..pod.rails.len().min(left)];
        left -= rails.len();
        let top = y;
        y += HEADING - 2;
        let mut rows = String::new();
        for rail in rails {
            rows.push_str(&row(rail, y));
            if let Some(port) = ports.iter().find(|it| it.nic.is_behind(&rail.devices)) {
                lines.push_str(&line(rail, port, y + ROW / 2));
            }
            y += ROW;
        }
        if rails.len() < pod.rails.len() {
            let more = format!("and {} more rails", count(pod.rails.len() - rails.len()));
            rows.push_str(&note(POD + GAP, y + 14, &more));
            y += ROW;
        }
        y += GAP / 2;
        let width = WIDTH - POD - 1;
        let under_way = pod.under_way.as_deref().unwrap_or_default();
        drawn.push_str(&format!(
            "<rect class=\"pod\" x=\"{POD}.5\" y=\"{top}.5\" width=\"{width}\" height=\"{}\" rx=\"8\"/>\
             <text class=\"title\" x=\"{}\" y=\"{}\">{}<title>{}</title></text>\
             <text class=\"small end\" x=\"{}\" y=\"{}\">{}</text>{rows}",
            y - top,
            POD + GAP,
            top + 21,
            cut(&pod.name, 46),
            text(&pod.name),
            WIDTH - GAP,
            top + 21,
            text(under_way),
        ));
        y += GAP;
    }
    if pods.is_empty() {
        drawn.push_str(&note(POD, 22, "No pod has a rail now."));
        y = HEADING + GAP;
    } else if shown < pods.len() {
        let more = format!(
            "and {} more pods, in the table below",
            count(pods.len() - shown)
        );
        drawn.push_str(&note(POD + GAP, y + 14, &more));
        y += ROW + GAP;
    }
    (drawn, lines, y - GAP)
}

fn row(rail: &PodRail, y: usize) -> String {
    let at = y + 14;
    let interface = pods::interface(rail).unwrap_or_else(|| pods::device(rail));
    let first = rail.addresses.first();
    let address = match (first, rail.addresses.len()) {
        (None, _) => "no address".to_owned(),
        (Some(it), 1) => it.ip.to_string(),
        (Some(it), many) => format!("{} +{}", it.ip, many - 1),
    };
    let gid = first.and_then(|it| it.gid_index);
    let gid = gid.map(|index| format!("GID {index}")).unwrap_or_default();
    format!(
        "<text class=\"rail\" x=\"{}\" y=\"{at}\">{}</text><text class=\"address\" x=\"{}\" y=\"{at}\">{}</text>\
         <text class=\"gid end\" x=\"{}\" y=\"{at}\">{gid}</text>",
        POD + GAP + 4,
        cut(interface, 10),
        POD + GAP + 76,
        text(&address),
        WIDTH - GAP,
    )
}

fn line(rail: &PodRail, port: &Port<'_>, y: usize) -> String {
    let mut children = port.nic.functions.iter();
    let child = children.find(|it| rail.devices.contains(&it.address));
    let class = match child.unwrap_or(&port.nic.own).fault {
        Some(_) => "bad".to_owned(),
        None => format!("c{}", port.colour),
    };
    let (from, bend) = (NUMA - GAP, (POD - NUMA) / 2 + GAP);
    format!(
        "<path class=\"line {class}\" d=\"M{from} {y1}C{x1} {y1} {x2} {y} {POD} {y}\"/>\
         <circle class=\"{class}\" cx=\"{POD}\" cy=\"{y}\" r=\"3\"/>",
        y1 = port.y,
        x1 = from + bend,
        x2 = POD - bend,
    )
}

fn note(x: usize, y: usize, words: &str) -> String {
    format!("<text class=\"small\" x=\"{x}\" y=\"{y}\">{words}</text>")
}
