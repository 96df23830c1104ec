//! Swap devices of a process that forks, and of the child.

use std::sync::atomic::Ordering;

use folioswap_core::DeviceId;
use folioswap_sys::descriptor::Descriptor;
use folioswap_sys::hidden_numbers::KeptNumber;

use crate::process::fatal;
use crate::swap::attached::Attached;
use crate::swap::devices::Devices;

impl Devices {
    /// Before a fork: holds what is in use on files for that fork, and lets the child have what is in memory.
    pub fn share_with_child(&self, fork: u64) {
        self.share_again(fork);
        for (_, attached) in self.each() {
            let_child_have(&attached, true);
            if let Some(Err(error)) = attached.device.descriptor().map(Descriptor::be_inherited) {
                fatal::say(&format!("swap {}: a child will not find what is there: {error}", attached.name));
            }
        }
    }

    /// Whether a child finds too few places for devices of its own beside those of its ancestors.
    pub fn lacks_places_for_child(&self) -> bool {
        let nr_own = self.each().filter(|(_, attached)| attached.is_shared_with_children()).count();
        self.each().count() + nr_own > self.entries.len()
    }

    /// The devices of this process's ancestors, those with the least content first.
    pub fn foreign(&self) -> Vec<DeviceId> {
        let foreign = self.each().filter(|(_, attached)| attached.is_foreign());
        let mut foreign: Vec<_> = foreign.map(|(id, attached)| (attached.nr_used(), id)).collect();
        foreign.sort_unstable();
        foreign.into_iter().map(|(_, id)| id).collect()
    }

    /// How many slots are free on this process's own devices.
    pub fn nr_free_of_own(&self) -> usize {
        let own = self.each().filter(|(_, attached)| !attached.is_foreign());
        own.map(|(_, attached)| attached.capacity_slots().saturating_sub(attached.nr_used())).sum()
    }

    /// Holds for a fork what has come to be in use on files since [`Devices::share_with_child`].
    pub fn share_again(&self, fork: u64) {
        let shared = self.each().filter(|(_, attached)| attached.is_shared_with_children());
        shared.for_each(|(_, attached)| attached.hold_for(fork));
    }

    /// Whether slots were freed that forks hold.
    pub fn has_freed_held(&self) -> bool {
        self.each().any(|(_, attached)| attached.held.any_freed())
    }

    /// Whether all slots in use of a device were freed, and only forks hold them.
    pub fn is_for_children(&self, id: DeviceId) -> bool {
        let device = self.device(id);
        device.held.any() && device.held.nr_freed() >= device.nr_used()
    }

    /// Frees the slots that were held for forks whose descendants are gone.
    pub fn end_held(&self, is_over: impl Fn(u64) -> bool) {
        for (id, attached) in self.each().filter(|(_, attached)| attached.held.any()) {
            let over: Vec<_> = attached.held.forks().into_iter().filter(|&fork| is_over(fork)).collect();
            if !over.is_empty() {
                attached.end_held(|fork| over.contains(&fork));
                self.availability.freed(id);
            }
        }
    }

    /// After a fork: keeps what is in memory from children that are not managed.
    pub fn end_sharing(&self) {
        self.each().for_each(|(_, attached)| let_child_have(&attached, false));
    }

    /// In a forked child: drops its parent's devices that are not in use, which would fill the places of devices within
    /// a few generations. Returns the descriptors of the others.
    pub fn kept_in_child(&self) -> Vec<KeptNumber> {
        let ids = (0..self.nr_places.load(Ordering::Acquire)).map(DeviceId::from_index);
        ids.for_each(|id| self.drop_unused_file(id));
        self.each().filter_map(|(_, attached)| attached.device.descriptor().map(Descriptor::kept_number)).collect()
    }

    /// In a forked child, whose descriptors are settled: the parent's devices are only read from now on.
    pub fn enter_child(&self) {
        self.nr_changing.store(0, Ordering::Relaxed);
        self.each().for_each(|(_, attached)| attached.figures.begin_child());
        for (_, attached) in self.each().filter(|(_, attached)| attached.device.descriptor().is_some()) {
            attached.become_foreign();
            attached.end_held(|_| true);
        }
    }

    /// In a forked child: drops a device of the parent's in a file, unless it is in use, or a thread of the parent's
    /// was removing it or looking at it.
    fn drop_unused_file(&self, id: DeviceId) {
        let Ok(mut place) = self.entries[id.index()].0.try_write() else { return };
        let is_unused = |attached: &Attached| {
            attached.device.descriptor().is_some() && attached.nr_used() == 0 && !attached.is_leaving()
        };
        if place.as_ref().is_some_and(is_unused) {
            let _blocked = folioswap_sys::signals::block_all(); // as in `DeviceEntry::set`
            self.availability.begin_removal(id);
            self.availability.remove(id);
            *place = None;
        }
    }

    /// In a forked child: lets the engine's threads read the parent's devices.
    pub fn keep_in_child(&self) {
        for (_, attached) in self.each() {
            if let Some(Err(error)) = attached.device.descriptor().map(Descriptor::keep_in_child) {
                fatal::say(&format!(
                    "swap {}: what was there when this process was forked is lost: {error}",
                    attached.name
                ));
            }
        }
    }
}

fn let_child_have(attached: &Attached, have: bool) {
    if let Err(error) = attached.device.let_children_have(have) {
        let done = if have { "a child cannot have its content" } else { "other children may get its content" };
        fatal::say(&format!("swap {}: {done}: {error}", attached.name));
    }
}
