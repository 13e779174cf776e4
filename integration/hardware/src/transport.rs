// SPDX-License-Identifier: Apache-2.0
//! The vfio-user server. It passes the accesses of a virtual machine to a [`Function`].

use crate::pci::{CONFIG_SIZE, ConfigSpace, Function};
use std::{
    fs,
    fs::File,
    io, iter, panic,
    path::Path,
    thread::{self, JoinHandle},
};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_NORESIZE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

/// A function on a socket. One virtual machine at a time attaches to it.
pub struct Endpoint<F> {
    server: Server,
    backend: Backend<F>,
}

impl<F: Function> Endpoint<F> {
    /// Listens on `socket`. Replaces a socket file that an earlier process left there.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn new(socket: &Path, function: F) -> io::Result<Endpoint<F>> {
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let identity = function.identity();
        let regions = (0..VFIO_PCI_NUM_REGIONS).map(|index| {
            let size = match index {
                VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
                _ => identity.bars.get(index as usize).copied().unwrap_or(0),
            };
            region(index, size)
        });
        let interrupts = (0..VFIO_PCI_NUM_IRQS).map(|index| match index {
            VFIO_PCI_MSIX_IRQ_INDEX => IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_NORESIZE,
                count: u32::from(identity.vectors),
            },
            _ => IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD,
                count: 0,
            },
        });
        let server = Server::new(socket, true, interrupts.collect(), regions.collect())
            .map_err(io::Error::other)?;
        let config = ConfigSpace::new(&identity);
        Ok(Endpoint {
            server,
            backend: Backend { function, config },
        })
    }

    /// Serves one virtual machine until it detaches. Then sets the function to its state after power-on.
    ///
    /// # Errors
    /// The connection broke, or the server cannot decode a request of the client.
    pub fn serve(&mut self) -> io::Result<()> {
        let (server, backend) = (&self.server, &mut self.backend);
        // `Server::run` panics if the client's version message is invalid
        let served = panic::catch_unwind(panic::AssertUnwindSafe(|| server.run(backend)));
        backend.power_off();
        match served {
            Ok(served) => served.map_err(io::Error::other),
            Err(_) => Err(io::Error::other(
                "a request of the client could not be handled",
            )),
        }
    }
}

/// Creates an endpoint on each socket.
///
/// # Errors
/// A socket cannot be created. The error names the socket.
pub fn endpoints<F: Function>(
    functions: impl IntoIterator<Item = (String, F)>,
) -> io::Result<Vec<(String, Endpoint<F>)>> {
    let endpoint =
        |(socket, function): (String, F)| match Endpoint::new(Path::new(&socket), function) {
            Ok(endpoint) => Ok((socket, endpoint)),
            Err(error) => Err(io::Error::new(error.kind(), format!("{socket}: {error}"))),
        };
    functions.into_iter().map(endpoint).collect()
}

/// Serves each of `endpoints` in its own thread, one virtual machine after the other. The threads do not
/// end.
pub fn serve<F: Function + Send + 'static>(
    endpoints: Vec<(String, Endpoint<F>)>,
) -> Vec<JoinHandle<()>> {
    let serve = |(socket, mut endpoint): (String, Endpoint<F>)| {
        thread::spawn(move || {
            loop {
                if let Err(error) = endpoint.serve() {
                    log::warn!("{socket}: {error}");
                }
            }
        })
    };
    endpoints.into_iter().map(serve).collect()
}

fn region(index: u32, size: u64) -> ServerRegion {
    let flags = match size {
        0 => 0,
        _ => VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
    };
    let region_info = vfio_region_info {
        argsz: size_of::<vfio_region_info>() as u32,
        flags,
        index,
        size,
        ..Default::default()
    };
    ServerRegion {
        region_info,
        sparse_areas: Vec::new(),
        mmap_fd: None,
    }
}

struct Backend<F> {
    function: F,
    config: ConfigSpace,
}

impl<F: Function> Backend<F> {
    /// Returns true if the function does not respond on its bus. In this case resets its configuration space to the
    /// state after power-on.
    fn is_gone(&mut self) -> bool {
        let is_gone = !self.function.is_present();
        if is_gone {
            self.config = ConfigSpace::new(&self.function.identity());
        }
        is_gone
    }

    fn power_off(&mut self) {
        self.function.reset();
        self.function.memory(&mut |memory| memory.clear());
        self.function.interrupts(&mut |vectors| vectors.clear());
        self.config = ConfigSpace::new(&self.function.identity());
    }
}

impl<F: Function> ServerBackend for Backend<F> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if self.is_gone() {
            data.fill(0xff);
        } else if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.read(offset, data);
        } else if region < 6 {
            self.function.read(region as u8, offset, data);
        } else {
            data.fill(0);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_gone() {
            // a bus drops a write to an absent function
        } else if region == VFIO_PCI_CONFIG_REGION_INDEX {
            self.config.write(offset, data);
        } else if region < 6 {
            self.function.write(region as u8, offset, data);
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        // DMA cannot use memory that is not shared, or ROM
        let (Some(file), true) = (file, flags.contains(DmaMapFlags::READ_WRITE)) else {
            return Ok(());
        };
        let mut file = Some(file);
        let mut mapped = Ok(());
        self.function.memory(&mut |memory| {
            if let Some(file) = file.take() {
                mapped = memory.map(address, size, offset, file);
            }
        });
        mapped
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        let all = flags.contains(DmaUnmapFlags::UNMAP_ALL);
        self.function.memory(&mut |memory| match all {
            true => memory.clear(),
            false => memory.unmap(address, size),
        });
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.function.reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        files: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        if count == 0 {
            self.function.interrupts(&mut |vectors| vectors.clear());
            return Ok(());
        }
        let vectors = u32::from(self.function.identity().vectors);
        if start.checked_add(count).is_none_or(|end| end > vectors) {
            return Err(io::Error::other(format!(
                "{count} vectors from {start} on: the function has {vectors}"
            )));
        }
        let mut files: Vec<Option<File>> = (files.into_iter().map(Some))
            .chain(iter::repeat_with(|| None))
            .take(count as usize)
            .collect();
        self.function
            .interrupts(&mut |vectors| vectors.set(start as usize, files.drain(..)));
        Ok(())
    }
}
