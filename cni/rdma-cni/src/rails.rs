//! What programs in a pod have to name to use RDMA: told in the result, and in a file that can
//! be mounted into the pod's containers.
//!
//! ```text
//! <stateDir>/rails/<network>/<pod namespace>_<pod name>/rails.json
//! ```
//! A pod that the runtime does not name has its container id there. All attachments of a pod to
//! the network are in it; a pod that is created again, while the old one's sandbox still goes,
//! has it to itself.

use crate::{
    attachment::{Attachment, Key, Rail},
    store::StoreError,
};
use serde_json::{Value, json};
use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// The format of the file.
const FORMAT: u32 = 1;

/// One object for each rail: interface in the pod, its addresses, netdev on the host, RDMA device,
/// port, the index of each address's GID, and the attachment's `CNI_IFNAME`. A rail without RDMA
/// device and addresses has nothing to tell.
pub fn list(attachment: &Attachment) -> Vec<Value> {
    let rails = attachment.rails.iter().filter_map(describe);
    let of_attachment = |mut rail: Value| {
        rail["ifname"] = attachment.key.interface.to_string().into();
        rail
    };
    rails.map(of_attachment).collect()
}

fn describe(rail: &Rail) -> Option<Value> {
    let given = &rail.given.addresses;
    if rail.rdma.is_none() && given.is_empty() {
        return None;
    }
    let addresses = given.iter().map(|it| format!("{}/{}", it.ip, it.prefix));
    let mode = if rail.shared.is_some() {
        "share"
    } else {
        "move"
    };
    let mut rail_object = json!({
        "interface": rail.pod_name,
        "netdev": rail.name(),
        "mode": mode,
        "addresses": addresses.collect::<Vec<_>>(),
    });
    if let Some(rdma) = &rail.rdma {
        rail_object["rdmaDevice"] = rdma.name.to_string().into();
    }
    if let Some(first) = rail.gids.first() {
        rail_object["port"] = first.port.into();
        rail_object["gidIndex"] = first.index.into();
        rail_object["gids"] = json!(rail.gids);
    }
    Some(rail_object)
}

/// The file of `attachment` under the state directory `root`.
fn path(root: &Path, key: &Key, pod: Option<&str>) -> PathBuf {
    let pod = match pod {
        Some(pod) => pod.replace('/', "_"),
        None => key.container.clone(),
    };
    root.join("rails")
        .join(&key.network)
        .join(pod)
        .join("rails.json")
}

/// Writes the rails of `attachment` into the file.
pub fn write(root: &Path, attachment: &Attachment) -> Result<(), StoreError> {
    let rails = list(attachment);
    if rails.is_empty() {
        return Ok(());
    }
    let key = &attachment.key;
    let path = path(root, key, attachment.pod.as_deref());
    let _lock = lock(root)?;
    let mut all = others(&path, key)?.unwrap_or_default();
    all.extend(rails);
    put(&path, attachment.pod.as_deref(), key, all)
}

/// Takes what is of `key` out of the file, and the file away if that was all of it.
pub fn remove(root: &Path, key: &Key, pod: Option<&str>) -> Result<(), StoreError> {
    let path = path(root, key, pod);
    if !path.parent().is_some_and(Path::is_dir) {
        return Ok(());
    }
    let _lock = lock(root)?;
    match others(&path, key)? {
        // a pod of the same name is there already
        None => return Ok(()),
        Some(others) if !others.is_empty() => return put(&path, pod, key, others),
        Some(_) => {}
    }
    for file in [path.with_extension("json.new"), path.clone()] {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::new("remove", &file, error));
            }
            _ => {}
        }
    }
    // empty unless somebody keeps something there
    let _ = fs::remove_dir(path.parent().unwrap_or(root));
    Ok(())
}

/// The rails of the pod's other attachments in the file; none if the file is another pod's.
fn others(path: &Path, key: &Key) -> Result<Option<Vec<Value>>, StoreError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(vec![])),
        text => text.map_err(|source| StoreError::new("read", path, source))?,
    };
    let Ok(content) = serde_json::from_slice::<Value>(&text) else {
        // written just before the machine lost power: that pod is gone
        return Ok(Some(vec![]));
    };
    if content["containerID"] != key.container {
        return Ok(None);
    }
    let rails = content["rails"].as_array().into_iter().flatten();
    let others = rails.filter(|rail| rail["ifname"] != *key.interface);
    Ok(Some(others.cloned().collect()))
}

/// Writes the file, whole.
fn put(path: &Path, pod: Option<&str>, key: &Key, rails: Vec<Value>) -> Result<(), StoreError> {
    let content = json!({
        "format": FORMAT,
        "network": key.network,
        "pod": pod,
        "containerID": key.container,
        "rails": rails,
    });
    let temporary = path.with_extension("json.new");
    let write = || {
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        fs::write(&temporary, format!("{content:#}\n"))?;
        // for whomever the pod's programs run as, and whatever the runtime's umask is
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
        fs::set_permissions(&temporary, Permissions::from_mode(0o644))?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| StoreError::new("write", path, source))
}

/// One at a time: between a look at a file and its change it stays as it is.
fn lock(root: &Path) -> Result<File, StoreError> {
    let directory = root.join("rails");
    let path = directory.join("lock");
    let lock = || {
        fs::create_dir_all(&directory)?;
        let file = File::create(&path)?;
        file.lock()?;
        Ok(file)
    };
    lock().map_err(|source| StoreError::new("lock", &path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_netns::InterfaceName;

    #[test]
    fn a_file_that_came_back_empty_after_a_loss_of_power_goes_and_another_pods_stays() {
        let state = tempfile::tempdir().unwrap();
        let key = |container: &str| Key {
            network: "net".into(),
            container: container.into(),
            interface: InterfaceName::try_from("eth0").unwrap(),
        };
        let pod = Some("default/web-0");
        let file = path(state.path(), &key("old"), pod);
        put(&file, pod, &key("old"), vec![json!({"ifname": "eth0"})]).unwrap();
        fs::write(&file, "").unwrap();
        remove(state.path(), &key("old"), pod).unwrap();
        assert!(!file.parent().unwrap().exists());

        put(&file, pod, &key("new"), vec![json!({"ifname": "eth0"})]).unwrap();
        remove(state.path(), &key("old"), pod).unwrap();
        assert!(file.exists());
    }
}
