// SPDX-License-Identifier: Apache-2.0
//! Moves a netdev into a network namespace under another name, and back: `move NETDEV NETNS-PATH NAME`. Prints each
//! operation as the equivalent `ip` command. Needs root.
//!
//! Use a named namespace in which no program uses the netdev. The moves remove the netdev's addresses and other
//! settings. `rdma-cni` records and restores them; this example does not.

use rdma_netns::{InterfaceName, Kernel, Linux, NetnsSide, Op};
use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [netdev, path, name] = &arguments[..] else {
        return Err("usage: move NETDEV NETNS-PATH NAME".into());
    };
    let host_name = InterfaceName::try_from(netdev.clone())?;
    let pod_name = InterfaceName::try_from(name.clone())?;
    let kernel = Linux::new();
    let pod = kernel.open_pod(Path::new(path))?;

    let there = Op::MoveLink {
        link: host_name.clone(),
        from: NetnsSide::Host,
        to: NetnsSide::Pod,
        name: pod_name.clone(),
    };
    let back = Op::MoveLink {
        link: pod_name,
        from: NetnsSide::Pod,
        to: NetnsSide::Host,
        name: host_name,
    };
    for op in [there, back] {
        println!("{op}");
        kernel.execute(&op, Some(&pod))?;
        let observed = kernel.observe(Some(&pod))?;
        for (side, namespace) in [
            ("host", Some(&observed.host)),
            ("pod", observed.pod.as_ref()),
        ] {
            let names = namespace.iter().flat_map(|it| &it.links);
            let mut names: Vec<String> = names.map(|link| link.name.to_string()).collect();
            names.sort();
            println!("  {side}: {}", names.join(" "));
        }
    }
    Ok(())
}
