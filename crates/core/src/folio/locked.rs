//! The guard of a locked block.

use super::entry::Entry;
use super::hashes::HashKey;
use crate::id::{BlockId, FolioId};
use crate::policy::order_choice::Wish;
use crate::sync::{Mutex, MutexGuard, lock, try_lock};
use std::ops::{Deref, DerefMut};

/// A locked block. Dropping it unlocks.
#[must_use = "dropping it unlocks the block"]
pub struct Locked<'t> {
    id: BlockId,
    mutex: &'t Mutex<Entry>,
    /// `None` while it is unlocked.
    block: Option<MutexGuard<'t, Entry>>,
    key: &'t HashKey,
}

impl<'t> Locked<'t> {
    pub(super) fn lock(id: BlockId, mutex: &'t Mutex<Entry>, key: &'t HashKey) -> Self {
        Locked { id, mutex, block: Some(lock(mutex)), key }
    }

    pub(super) fn try_lock(id: BlockId, mutex: &'t Mutex<Entry>, key: &'t HashKey) -> Option<Self> {
        Some(Locked { id, mutex, block: Some(try_lock(mutex)?), key })
    }

    /// The key of its content hashes.
    pub fn key(&self) -> &'t HashKey {
        self.key
    }

    /// The block's id.
    pub fn id(&self) -> BlockId {
        self.id
    }

    /// The id of a folio of the block.
    pub fn name(&self, index: usize) -> FolioId {
        self.id.page(index << self.order().exponent())
    }

    /// Unlocks the block, until it is locked again. Others may change everything about it meanwhile.
    pub fn unlock(&mut self) {
        self.block = None;
    }

    /// Locks it again.
    pub fn relock(&mut self) {
        self.block = Some(lock(self.mutex));
    }

    /// The same, if nobody holds it.
    pub fn try_relock(&mut self) -> bool {
        self.block = try_lock(self.mutex);
        self.block.is_some()
    }

    /// Takes what the entry says of the block. The block is empty afterwards.
    pub fn take(&mut self) -> Entry {
        std::mem::replace(&mut **self, Entry::new(Wish::None))
    }

    /// Puts what was taken from another block into an empty one.
    pub fn put(&mut self, block: Entry) {
        self.replace(block);
    }
}

impl Deref for Locked<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.block.as_ref().expect("it is locked again")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Entry {
        self.block.as_mut().expect("it is locked again")
    }
}
