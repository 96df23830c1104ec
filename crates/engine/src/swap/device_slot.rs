//! A slot in use, on its device: what may be done with it there, and where it lies.

use std::io::{self, IoSliceMut};
use std::os::fd::RawFd;
use std::sync::Arc;

use folioswap_core::{CpuId, Direction, Freed, Locked, Order, SlotId};
use folioswap_sys::uring::Start;

use crate::device::{RamDevice, checksum};
use crate::process::turns::Turns;
use crate::swap::attached::Attached;
use crate::swap::devices::InUse;
use crate::swap::figures::IoFigures;
use crate::swap::health::Trouble;

/// A slot on its device, which stays while this is held.
pub(crate) struct DeviceSlot<'s> {
    pub(super) attached: InUse<'s>,
    /// The slot's number on the device.
    pub(super) within: SlotId,
}

impl std::ops::Deref for DeviceSlot<'_> {
    type Target = Attached;

    fn deref(&self) -> &Attached {
        &self.attached
    }
}

impl<'s> DeviceSlot<'s> {
    /// Frees slots, possibly later: all that were handed out at once, or an aligned part of them.
    pub(super) fn free(&self, cpu: CpuId, order: Order) -> Freed {
        self.attached.free(cpu, self.within, order)
    }

    /// The same at once, for slots that were handed out and not used.
    pub(super) fn free_now(&self, order: Order) {
        self.attached.free_now(self.within, order);
    }

    /// Whether slots in use may be written once more: their device is not being removed, failing, or a parent's, and no
    /// forked child may read them.
    pub fn may_write_again(&self, order: Order) -> bool {
        self.attached.may_write_again(self.within, order)
    }

    /// Takes slots out of use permanently after a failed write.
    pub fn mark_bad(&self, order: Order) {
        self.attached.mark_bad(self.within, order);
    }

    /// Counts a failure. See [`Health::note`](crate::swap::health::Health::note).
    pub(super) fn note_failure(&self, trouble: &Trouble, again: bool) -> Option<String> {
        self.figures.failed(trouble.kind());
        self.health.note(trouble, again)
    }

    /// Its place in memory, if the device lies there.
    pub(super) fn into_memory(self) -> Option<InMemory<'s>> {
        self.device.memory().is_some().then_some(InMemory(self))
    }

    /// Where it lies, for io_uring, if the device has a descriptor.
    pub(super) fn extent(&self) -> Option<Extent> {
        let fd = self.device.fd()?;
        self.note_use();
        let (offset, figures) = (self.within.offset_bytes(), Arc::clone(&self.figures));
        Some(Extent { fd, offset, most_bytes_at_once: self.most_bytes_at_once, figures })
    }
}

/// Where slots lie, for I/O that bypasses the device's own calls.
#[derive(Clone)]
pub(crate) struct Extent {
    pub fd: RawFd,
    pub offset: u64,
    /// Most bytes that the disk takes in one request.
    pub most_bytes_at_once: usize,
    /// The device's I/O statistics, which count this I/O too.
    pub figures: Arc<IoFigures>,
}

impl Extent {
    /// Reads `len` bytes from there, or fewer, and waits by turns.
    pub async fn read(&self, pieces: &mut [IoSliceMut<'_>], len: usize, turns: &Turns) -> io::Result<usize> {
        let begun = self.figures.begin();
        let read = turns.read(self.fd, self.offset, pieces, Start::of(len, self.most_bytes_at_once)).await;
        self.figures.end(begun, Direction::Read, read.as_ref().ok().copied().filter(|&len| len > 0));
        read
    }
}

/// Slots of a device that lies in memory.
pub(crate) struct InMemory<'s>(DeviceSlot<'s>);

impl InMemory<'_> {
    fn device(&self) -> &RamDevice {
        self.0.device.memory().expect("it was seen to lie in memory")
    }

    /// Content of the slots, for comparison. The caller holds the lock of their folio's block.
    pub fn bytes(&self, len: usize) -> &[u8] {
        self.device().bytes(self.0.within.offset_bytes(), len)
    }

    /// Copies a folio from there, and verifies it on the way.
    pub fn load(&self, block: &Locked<'_>, page: usize, to: &mut [u8]) -> bool {
        self.0.figures.count_load(to.len());
        checksum::load(block, page, self.bytes(to.len()), to)
    }

    /// Copies a folio of a locked block there, and notes its hashes on the way.
    pub fn store(&self, block: &mut Locked<'_>, page: usize, bytes: &[u8]) {
        self.0.figures.count_store(bytes.len(), || self.0.used_bytes());
        self.device().store(block, page, self.0.within.offset_bytes(), bytes);
    }
}
