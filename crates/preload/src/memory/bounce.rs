//! Bounce buffers: unmanaged memory that the kernel gets in place of the program's.

use std::ops::Range;

use folioswap::PAGE_SIZE;
use folioswap_sys::memory::place_apart;

use crate::ground::heap::PRIVATE;
use crate::ground::real::own;
use crate::ground::{guard, state};
use crate::memory::access::{self, Access};
use crate::memory::cover::Outcome;
use crate::memory::small_buffers;

/// Unmanaged memory at the same offset in its page as the buffer that it replaces, so that it meets O_DIRECT's
/// alignment whenever that buffer does; it takes none so short as those of [`small_buffers`]. What a jump out of a call
/// leaves behind is lost: the call may still be returned to, so it cannot be freed.
pub struct Bounce {
    block: *mut u8,
    offset: usize,
    /// Bytes that may be accessed.
    room: usize,
    /// Bytes of a mapping of its own, which ends with a page without access; 0 if it needs none.
    mapped: usize,
}

/// Longer ones are mappings of their own: the private heap gives nothing back.
const MOST_HEAP_BYTES: usize = 1 << 20;

impl Bounce {
    /// For a buffer of which all bytes may be accessed.
    pub fn new(stands_for: usize, len: usize) -> Option<Bounce> {
        let is_small = len <= small_buffers::MOST_BYTES;
        if is_small && let Some((block, offset)) = small_buffers::take(stands_for) {
            return Some(Bounce { block, offset, room: len, mapped: 0 });
        }
        if len > MOST_HEAP_BYTES {
            return Bounce::fenced(stands_for, len);
        }
        let _guard = guard::enter();
        let alignment = if is_small { small_buffers::ALIGNMENT } else { PAGE_SIZE };
        let offset = stands_for % alignment;
        let block = state::keeping_errno(|| PRIVATE.allocate(offset + len, alignment));
        (!block.is_null()).then_some(Bounce { block, offset, room: len, mapped: 0 })
    }

    /// In a mapping of its own. For a buffer of which only `room` bytes may be accessed, up to the end of a page: the
    /// kernel finds an inaccessible page after them, as it would in the buffer itself.
    fn fenced(stands_for: usize, room: usize) -> Option<Bounce> {
        let offset = stands_for % PAGE_SIZE;
        let (len, flags) = (offset + room + PAGE_SIZE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        state::keeping_errno(|| {
            // SAFETY: a new mapping, which only this bounce knows. The part that is protected is all but its last page.
            unsafe {
                let block = own!(libc::SYS_mmap, place_apart(len), len, libc::PROT_NONE, flags, -1i32, 0usize);
                let open = block >= 0
                    && own!(libc::SYS_mprotect, block, offset + room, libc::PROT_READ | libc::PROT_WRITE) == 0;
                open.then_some(Bounce { block: block as *mut u8, offset, room, mapped: len })
            }
        })
    }

    /// For the beginning of a buffer, of at least `len` bytes that may be accessed. `Ok(None)`: there are none.
    pub fn beginning(stands_for: usize, len: usize) -> Result<Option<Bounce>, ()> {
        let end = (stands_for + len) & !(PAGE_SIZE - 1);
        match end.saturating_sub(stands_for) {
            0 => Ok(None),
            room => Bounce::fenced(stands_for, room).map(Some).ok_or(()),
        }
    }

    /// For a buffer of the program's; how much of it may be accessed is found out. `Ok(None)`: nothing, so that the
    /// kernel may have the buffer itself. An error: there is no memory.
    pub fn fitting(stands_for: usize, len: usize, access: Access) -> Result<Option<Bounce>, ()> {
        match access::prefix(stands_for, len, access) {
            0 => Ok(None),
            room if room < len => Bounce::fenced(stands_for, room).map(Some).ok_or(()),
            _ => Bounce::new(stands_for, len).map(Some).ok_or(()),
        }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the block is longer than the offset.
        unsafe { self.block.add(self.offset) }
    }

    /// Bytes that may be accessed.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Fills this from the buffer that it stands for.
    ///
    /// # Safety
    /// The buffer is as long as this is, and may be read.
    pub unsafe fn fill(&self, from: usize) {
        // SAFETY: the caller upholds this function's own contract. No lock is held, so the source may fault.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, self.as_ptr(), self.room) };
    }

    /// Copies at most `len` bytes to the buffer that this stands for. Returns how many: all that this has, unless
    /// another thread has taken the buffer away during the call.
    ///
    /// # Safety
    /// The buffer is the program's, and as long as this is.
    pub unsafe fn empty(&self, to: usize, len: usize) -> usize {
        let len = access::prefix(to, len.min(self.room), Access::Write);
        // SAFETY: the caller upholds this function's own contract, and the buffer may be written so far. No lock is
        // held, so the destination may fault.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), to as *mut u8, len) };
        len
    }

    /// As [`empty`](Self::empty), for a call that has returned `result`.
    ///
    /// # Safety
    /// As for [`empty`](Self::empty).
    pub unsafe fn empty_result(&self, to: usize, len: usize, result: isize) -> isize {
        let got = len.min(result.max(0) as usize).min(self.room);
        // SAFETY: the caller upholds this function's own contract.
        match unsafe { self.empty(to, got) } {
            taken if taken == got => result,
            0 => isize::refused(),
            taken => taken as isize,
        }
    }

    /// Whether of the buffer that this stands for the first `len` bytes may still be written, and what is behind them
    /// and not as in `before`, which is as long as this is.
    pub fn fits(&self, to: usize, len: usize, before: Option<&Bounce>) -> bool {
        let is_open = |part: Range<usize>| access::prefix(to + part.start, part.len(), Access::Write) == part.len();
        let len = len.min(self.room);
        is_open(0..len) && before.is_none_or(|before| self.changed(len, before).all(is_open))
    }

    /// The parts behind the first `len` bytes that are not as in `before`.
    fn changed<'b>(&'b self, len: usize, before: &'b Bounce) -> impl Iterator<Item = Range<usize>> + 'b {
        // SAFETY: two blocks of this length, which nothing else uses.
        let bytes = |of: &'b Bounce| unsafe { std::slice::from_raw_parts(of.as_ptr(), self.room) };
        let (now, before) = (bytes(self), bytes(before));
        let parts = (len..self.room).step_by(PAGE_SIZE).map(|start| start..self.room.min(start + PAGE_SIZE));
        parts.filter(|part| now[part.clone()] != before[part.clone()])
    }

    /// Copies `len` bytes to the buffer that this stands for, and of what is behind them those that are not as in
    /// `before`.
    ///
    /// # Safety
    /// The buffer is as long as this is, and may be written. `before` is as long as this is.
    pub unsafe fn empty_changed(&self, to: usize, len: usize, before: &Bounce) {
        let len = len.min(self.room);
        // SAFETY: the caller upholds this function's own contract, and nothing else uses the two blocks.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr(), to as *mut u8, len);
            for index in self.changed(len, before).flatten() {
                let byte = self.as_ptr().add(index).read();
                if byte != before.as_ptr().add(index).read() {
                    (to as *mut u8).add(index).write(byte);
                }
            }
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if small_buffers::give_back(self.block) {
            return;
        }
        let _guard = guard::enter();
        state::keeping_errno(|| {
            // SAFETY: this bounce owns the block, or the mapping.
            unsafe {
                if self.mapped > 0 {
                    own!(libc::SYS_munmap, self.block, self.mapped);
                } else {
                    PRIVATE.release(self.block);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_not_in_the_heap() {
        for (len, is_in_heap) in [(64 << 10, true), (MOST_HEAP_BYTES, true), (16 << 20, false)] {
            for offset in [0, 1, PAGE_SIZE - 1] {
                let bounce = Bounce::new(offset, len).unwrap();
                assert_eq!(bounce.as_ptr() as usize % PAGE_SIZE, offset);
                assert_eq!(PRIVATE.owns(bounce.as_ptr()), is_in_heap, "{len}");
                // SAFETY: the bounce's own bytes.
                unsafe { bounce.as_ptr().write_bytes(1, bounce.room()) };
            }
        }
    }
}
