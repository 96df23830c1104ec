//! A swap device in RAM, outside the budget. For tests, for machines with more RAM than a container may use, and to
//! measure the least that a device can cost.

use std::io;

use folioswap_core::{Locked, NodeId};
use folioswap_sys::memory::{self, Reservation};
use folioswap_sys::numa;

use super::Device;
use crate::config::error::Error;
use crate::device::checksum;
use crate::process::fatal;

/// Memory that stores slots. The kernel allocates it when slots are first written.
pub(crate) struct RamDevice {
    memory: Reservation,
}

impl RamDevice {
    /// `node`: where all of its memory should be. If the system does not allow binding memory (most containers do not),
    /// that is reported, and the device is used anyway.
    pub fn new(size: u64, node: Option<NodeId>) -> Result<Self, Error> {
        let folio = folioswap_core::Order::HUGE.bytes();
        let len = size as usize / folio * folio;
        let memory = Reservation::undumped(len, folio)
            .and_then(|memory| {
                memory.protect_rw(memory.range())?;
                memory::advise_hugepage(memory.addr(), len)
                    .or_else(|error| if memory::has_huge_pages() { Err(error) } else { Ok(()) })?;
                memory::dontfork(memory.addr(), len)?;
                Ok(memory)
            })
            .map_err(Error::system("reserving a device in RAM"))?;
        bind(&memory, node);
        Ok(RamDevice { memory })
    }

    /// The bytes of slots. For the holder of the lock of their folio's block.
    pub fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        self.run(offset, len)
    }

    /// Copies in the folio that begins at `page` of a locked block, and notes its hashes on the way.
    pub fn store(&self, block: &mut Locked<'_>, page: usize, offset: u64, bytes: &[u8]) {
        checksum::store(block, page, bytes, self.run(offset, bytes.len()));
    }

    #[allow(clippy::mut_from_ref)] // a run has one owner, the holder of its folio's block
    fn run(&self, offset: u64, len: usize) -> &mut [u8] {
        assert!(offset as usize + len <= self.memory.len());
        // SAFETY: within the reservation (asserted), which is readable, writable, anonymous memory for as long as
        // `self` lives. Only the holder of the lock of the block that owns the run reads or writes it.
        unsafe { std::slice::from_raw_parts_mut((self.memory.addr() + offset as usize) as *mut u8, len) }
    }
}

/// Binds the memory of a device to a node, if one is wanted.
pub(super) fn bind(memory: &Reservation, node: Option<NodeId>) {
    if let Some(node) = node
        && let Err(error) = numa::bind(memory.addr(), memory.len(), node.index())
    {
        fatal::say(&format!("swap in RAM: its memory could not be bound to node {} ({error})", node.get()));
    }
}

/// [`Device::let_children_have`] for a device with this memory.
pub(super) fn let_children_have(memory: &Reservation, have: bool) -> io::Result<()> {
    if have { memory::dofork(memory.addr(), memory.len()) } else { memory::dontfork(memory.addr(), memory.len()) }
}

impl Device for RamDevice {
    fn limit_bytes(&self) -> Option<u64> {
        Some(self.memory.len() as u64)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(self.run(offset, bytes.len()));
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.run(offset, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn let_children_have(&self, have: bool) -> io::Result<()> {
        let_children_have(&self.memory, have)
    }

    fn memory(&self) -> Option<&RamDevice> {
        Some(self)
    }

    fn name(&self) -> String {
        format!("ram:{}", crate::config::size::Bytes(self.memory.len() as u64))
    }
}
