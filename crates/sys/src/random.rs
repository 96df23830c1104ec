//! Random bytes from the kernel.

use std::io;

use crate::check;

/// Fills `bytes`, at most 256 of them. Early in a boot it waits until the kernel has gathered enough entropy.
///
/// # Errors
/// EINTR: a signal interrupted the wait. ENOSYS: a sandbox denies it.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    assert!(bytes.len() <= 256, "the kernel fills so many at once");
    // SAFETY: the kernel writes to a slice that this call borrows exclusively, and no more than its length.
    let filled = check(unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) })?;
    if filled == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_alike() {
        let [mut one, mut other] = [[0; 32]; 2];
        super::fill(&mut one).unwrap();
        super::fill(&mut other).unwrap();
        assert_ne!(one, other);
    }
}
